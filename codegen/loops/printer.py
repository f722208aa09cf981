"""The canonical text of modules, kernels, statements and expressions.

    kernel scale {
      scalar n.0
      buffer x.1: float32[n.0]
      buffer y.2: float32[n.0]
      for i.3 < n.0 {
        let v.4: float32 = x.1[i.3]
        store y.2[i.3] = mul(v.4, 2.0:float32)
      }
    }

Names are the stems that the program chose, numbered in the order of binding, so that the text does
not depend on what was built before. An expression that is used twice, or nested deeply, is written
once as `%n = ...` before the first statement that uses it: an alias of the expression, read where
it is used, not a value. So the text is linear in the size of the DAG.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    Bitcast,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Copy,
    Entry,
    Expr,
    Extract,
    Fail,
    Fma,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    LoopKind,
    Module,
    MulHigh,
    PairDot,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Scope,
    Select,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
    View,
    While,
)
from frame.codegen.loops.traverse import (
    expressions,
    fold_dag,
    post_order,
    stem_of,
    trailing_expressions,
    walk,
)

DEPTH = 10
"""How deep calls nest in one line before a sub-expression gets a line of its own."""

KEYWORDS: Mapping[LoopKind, str] = {
    LoopKind.SERIAL: "for",
    LoopKind.PARALLEL: "parallel",
    LoopKind.VECTOR: "vector",
    LoopKind.UNROLL: "unroll",
}


def print_module(module: Module) -> str:
    """Return the text of a module; constants are base64."""
    lines = [f"module {module.name}"]
    for constant in module.constants:
        data = base64.b64encode(constant.data).decode("ascii")
        lines.append(f'constant {constant.name} "{data}"')
    parts = ["\n".join(lines), *map(print_kernel, module.kernels), print_entry(module.entry)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def print_kernel(kernel: Kernel) -> str:
    """Return the text of a kernel, its note as comments."""
    printer = _Printer()
    printer.line(f"kernel {kernel.name} {{")
    for line in kernel.note.splitlines():
        printer.line(f"  # {line}".rstrip())
    printer.function(kernel.scalars, kernel.buffers, kernel.body)
    return printer.text()


def print_entry(entry: Entry) -> str:
    """Return the text of an entry, with the place of each buffer."""
    printer = _Printer()
    printer.line(f"entry {entry.name} {{")
    buffers = [placement.buffer for placement in entry.placements]
    places = [f" at {placement.place} {placement.slot}" for placement in entry.placements]
    printer.function(entry.scalars, buffers, entry.body, places)
    return printer.text()


def print_block(block: Iterable[Stmt]) -> str:
    """Return the text of statements; variables bound outside get a name at their first use."""
    block = tuple(block)
    printer = _Printer()
    printer.count(_roots(block))
    printer.block(block)
    return printer.text()


def print_expression(expression: Expr) -> str:
    """Return the text of an expression, lines for shared parts first."""
    printer = _Printer()
    printer.count([expression])
    printer.line(printer.expression(expression))
    return printer.text()


def kernel_key(kernel: Kernel) -> str:
    """Return a hash that two kernels share exactly if they differ in nothing but names and note."""
    printer = _Printer(anonymous=True)
    printer.function(kernel.scalars, kernel.buffers, kernel.body)
    return hashlib.sha256(printer.text().encode()).hexdigest()


def _roots(block: Block) -> list[Expr]:
    roots: list[Expr] = []
    for statement in walk(block):
        roots.extend(expressions(statement))
        roots.extend(trailing_expressions(statement))
        if isinstance(statement, Alloc):
            roots.extend(_sizes(statement.buffer))
    return roots


def _sizes(memory: Buffer) -> list[Expr]:
    return [size for size in (*memory.shape, *memory.strides) if isinstance(size, Expr)]


class _Printer:
    def __init__(self, anonymous: bool = False) -> None:
        self.anonymous = anonymous
        self.lines: list[str] = []
        self.indent = ""
        self.names: dict[Var | Buffer, str] = {}
        self.aliased: set[Expr] = set()
        self.aliases = 0
        self.texts: dict[Expr, str] = {}

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    # Names and aliases

    def name(self, item: Var | Buffer) -> str:
        """Return the name of a variable or buffer; the first question numbers it."""
        found = self.names.get(item)
        if found is None:
            plain = "v" if isinstance(item, Var) else "b"
            stem = plain if self.anonymous else stem_of(item.name)
            found = self.names[item] = f"{stem}.{len(self.names)}"
        return found

    def count(self, roots: Sequence[Expr]) -> None:
        """Decide which expressions get a line: those used twice and those nested deeply."""
        if self.anonymous:
            return  # a key needs no short text: every expression gets a line
        order = post_order(roots)
        uses: dict[Expr, int] = dict.fromkeys(order, 0)
        for used in (*roots, *(arg for node in order for arg in node.args)):
            uses[used] += 1
        depth: dict[Expr, int] = {}
        for node in order:
            nesting = max([depth[arg] for arg in node.args], default=-1) + 1
            leaf = isinstance(node, (Const, Var))
            if not leaf and (uses[node] > 1 or nesting >= DEPTH):
                self.aliased.add(node)
                nesting = 0
            depth[node] = nesting

    def expression(self, root: Expr) -> str:
        """Return the text of an expression, after the lines of the aliases that it needs."""
        return fold_dag(root, self.texts, self.node)

    def node(self, node: Expr, args: list[str]) -> str:
        if isinstance(node, Var):
            return self.name(node)
        text = _EXPRESSIONS[type(node)](self, node, args)
        if node not in self.aliased and not (self.anonymous and args):
            return text
        alias = f"%{self.aliases}"
        self.aliases += 1
        self.line(f"{alias} = {text}")
        return alias

    def listed(self, items: Iterable[Expr | int]) -> str:
        return ", ".join(str(x) if isinstance(x, int) else self.expression(x) for x in items)

    # Functions and statements

    def function(
        self,
        scalars: Sequence[Var],
        buffers: Sequence[Buffer],
        body: Block,
        places: Sequence[str] = (),
    ) -> None:
        """Write the declarations and the body of a kernel or entry, and the closing brace."""
        self.count([*(size for memory in buffers for size in _sizes(memory)), *_roots(body)])
        self.indent = "  "
        for scalar in scalars:
            self.line(f"scalar {self.name(scalar)}{_type_suffix(scalar)}")
        for position, memory in enumerate(buffers):
            place = places[position] if places else ""
            self.line(f"buffer {self.declaration(memory)}{place}")
        self.block(body)
        self.indent = ""
        self.line("}")

    def declaration(self, memory: Buffer) -> str:
        shape, strides = self.listed(memory.shape), self.listed(memory.strides)
        text = f"{self.name(memory)}: {memory.dtype}[{shape}]"
        if memory.strides:
            text += f" strides [{strides}]"
        if memory.scope is not Scope.GLOBAL:
            text += f" {memory.scope}"
        return text if memory.lanes == 1 else f"{text} lanes {memory.lanes}"

    def block(self, block: Block) -> None:
        for statement in block:
            _STATEMENTS[type(statement)](self, statement)

    def nest(self, header: str, block: Block) -> None:
        self.line(f"{header} {{")
        self.indent += "  "
        self.block(block)
        self.indent = self.indent[:-2]

    def let(self, s: Let) -> None:
        value = self.expression(s.value)
        self.line(f"let {self.name(s.var)}: {s.var.type} = {value}")

    def for_(self, s: For) -> None:
        extent = self.expression(s.extent)
        inits = [self.expression(c.init) for c in s.carried]
        self.line(f"{KEYWORDS[s.kind]} {self.name(s.var)} < {extent} {{")
        self.indent += "  "
        for c, init in zip(s.carried, inits, strict=True):
            name = self.name(c.var)
            self.line(f"carry {name}: {c.var.type} = {init} -> {self.name(c.result)}")
        self.block(s.body)
        following = [self.expression(c.next) for c in s.carried]
        for c, after in zip(s.carried, following, strict=True):
            self.line(f"next {self.name(c.var)} = {after}")
        self.indent = self.indent[:-2]
        self.line("}")

    def if_(self, s: If) -> None:
        self.nest(f"if {self.expression(s.condition)}", s.then)
        if s.otherwise:
            self.nest("} else", s.otherwise)
        self.line("}")

    def while_(self, s: While) -> None:
        self.nest(f"while {self.name(s.condition)}", s.body)
        self.line("}")

    def store(self, s: Store) -> None:
        place = self.place(s.buffer, [self.expression(index) for index in s.indices], s.mask)
        verb = "stream" if s.streamed else "store"
        self.line(f"{verb} {place} = {self.expression(s.value)}")

    def prefetch(self, s: Prefetch) -> None:
        place = self.place(s.buffer, [self.expression(index) for index in s.indices], None)
        self.line(f"prefetch {place}")

    def place(self, memory: Buffer, indices: Sequence[str], mask: Expr | None) -> str:
        guard = "" if mask is None else f" | {self.expression(mask)}"
        return f"{self.name(memory)}[{', '.join(indices)}{guard}]"

    def view(self, view: View) -> str:
        name = self.name(view.buffer)
        return f"{name}[{self.listed(view.indices)}]" if view.indices else name

    def copy(self, s: Copy) -> None:
        target, source = self.view(s.target), self.view(s.source)
        self.line(f"copy {target} <- {source} extents [{self.listed(s.extents)}]")

    def invocation(self, s: Call | Launch) -> str:
        views = ", ".join(self.view(view) for view in s.buffers)
        return f"{s.kernel}({views})({self.listed(s.scalars)})"

    def call(self, s: Call) -> None:
        self.line(f"call {self.invocation(s)}")

    def launch(self, s: Launch) -> None:
        text = self.invocation(s)
        self.line(f"launch {text} chunks {self.expression(s.chunks)}")

    def fail(self, s: Fail) -> None:
        self.line(f"fail {s.site}({self.listed((s.position, s.value))})")


def _type_suffix(var: Var) -> str:
    return "" if var.type == INDEX else f": {var.type}"


def _constant(printer: _Printer, e: Const, args: list[str]) -> str:
    if isinstance(e.value, bool):
        text = "true" if e.value else "false"
        return text if e.type.lanes == 1 else f"{text}:{e.type}"
    return repr(e.value) if e.type == INDEX else f"{e.value!r}:{e.type}"


def _call(name: object, args: list[str], parameter: object = None) -> str:
    angle = "" if parameter is None else f"<{parameter}>"
    return f"{name}{angle}({', '.join(args)})"


def _load(printer: _Printer, e: Load, args: list[str]) -> str:
    rank = len(e.indices)
    guard = f" | {args[rank]}" if e.mask is not None else ""
    return f"{printer.name(e.buffer)}[{', '.join(args[:rank])}{guard}]"


_EXPRESSIONS: Mapping[type[Expr], Callable[[_Printer, Any, list[str]], str]] = {
    Const: _constant,
    Unary: lambda p, e, args: _call(e.op, args),
    Binary: lambda p, e, args: _call(e.op, args),
    Compare: lambda p, e, args: _call(e.op, args),
    Select: lambda p, e, args: _call("select", args),
    Fma: lambda p, e, args: _call("fma", args),
    PairDot: lambda p, e, args: _call("pair_dot", args),
    Cast: lambda p, e, args: _call("cast", args, e.dtype),
    Bitcast: lambda p, e, args: _call("bitcast", args, e.dtype),
    MulHigh: lambda p, e, args: _call("mul_high", args),
    Broadcast: lambda p, e, args: _call("broadcast", args, e.lanes),
    Ramp: lambda p, e, args: _call("ramp", args, e.lanes),
    Shuffle: lambda p, e, args: _call("shuffle", args, ", ".join(map(str, e.pattern))),
    Extract: lambda p, e, args: _call("extract", args, e.lane),
    Reduce: lambda p, e, args: _call("reduce", args, e.op),
    Load: _load,
}
"""The text of each expression but variables, from the texts of its operands."""

_STATEMENTS: Mapping[type[Stmt], Callable[[_Printer, Any], None]] = {
    Let: _Printer.let,
    For: _Printer.for_,
    If: _Printer.if_,
    While: _Printer.while_,
    Alloc: lambda p, s: p.line(f"alloc {p.declaration(s.buffer)}"),
    Store: _Printer.store,
    Copy: _Printer.copy,
    Prefetch: _Printer.prefetch,
    Call: _Printer.call,
    Fail: _Printer.fail,
    Launch: _Printer.launch,
    Return: lambda p, s: p.line("return"),
}
"""The lines of each statement."""
