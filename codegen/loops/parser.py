"""Read the text that the printer writes. Every error is an InvalidArgumentError naming its line.

The parser builds nodes as written, without folding: printing what was parsed gives the same text.
It resolves names and checks syntax; what the IR means is the verifier's matter.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, NoReturn, TypeVar

from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Bitcast,
    Block,
    Broadcast,
    Buffer,
    Call,
    Carried,
    Cast,
    Compare,
    CompareOp,
    Const,
    ConstantData,
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
    Module,
    MulHigh,
    PairDot,
    Place,
    Placement,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Scope,
    Select,
    Shuffle,
    Stmt,
    Store,
    Type,
    Unary,
    UnaryOp,
    Var,
    View,
    While,
)
from frame.codegen.loops.printer import KEYWORDS
from frame.core.dataclass import dataclass
from frame.core.dtypes import DTYPES, DType, bool_
from frame.core.errors import InvalidArgumentError

T = TypeVar("T")

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf\b)|nan\b)"
    r"|(?P<name>%?[A-Za-z_][\w.$/-]*|%\d+)"
    r'|(?P<string>"[^"]*")'
    r"|(?P<sign><-|->|[()\[\]{}<>,:|=]))"
)
_MAX_NESTING = 100
_LOOPS = {keyword: kind for kind, keyword in KEYWORDS.items()}


def parse_module(text: str) -> Module:
    """Return the module that a text describes.

    Raises:
        InvalidArgumentError: the text is not one, with the line and what was expected there.
    """
    reader = _Reader(text)
    reader.word("module")
    name = reader.identifier()
    reader.end()
    constants = tuple(reader.several("constant", _constant_data))
    kernels = tuple(reader.several("kernel", _kernel))
    reader.word("entry")
    entry = _entry(reader)
    reader.finish()
    return Module(name, kernels, entry, constants)


def parse_kernel(text: str) -> Kernel:
    """Return the kernel that a text describes.

    Raises:
        InvalidArgumentError: the text is not one, with the line and what was expected there.
    """
    reader = _Reader(text)
    reader.word("kernel")
    kernel = _kernel(reader)
    reader.finish()
    return kernel


@dataclass(slots=True)
class _Names:
    """The names of one kernel or entry; an alias stands for an expression."""

    variables: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    aliases: dict[str, Expr] = field(default_factory=dict)


class _Reader:
    """Tokens line by line. `number` is the current line, counted from 1."""

    def __init__(self, text: str) -> None:
        self.lines = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
        self.position = 0
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.names = _Names()
        self.nesting = 0
        self.load_line()

    # Lines

    @property
    def number(self) -> int:
        at = min(self.position, len(self.lines) - 1)
        return self.lines[at][0] if self.lines else 1

    def load_line(self) -> None:
        """Tokenise the current line, past comments."""
        while self.position < len(self.lines) and self.lines[self.position][1].startswith("#"):
            self.position += 1
        self.tokens, self.at = [], 0
        if self.position < len(self.lines):
            self.tokens = self.tokenise(self.lines[self.position][1])

    def tokenise(self, line: str) -> list[tuple[str, str]]:
        tokens, start = [], 0
        while start < len(line):
            match = _TOKEN.match(line, start)
            if match is None:
                self.error("a token of the loop IR", line[start : start + 20])
            kind = str(match.lastgroup)
            tokens.append((kind, match.group(kind)))
            start = match.end()
        return tokens

    def notes(self) -> str:
        """Return the comment lines that follow the current line, and go past both."""
        self.position += 1
        start = self.position
        while self.position < len(self.lines) and self.lines[self.position][1].startswith("#"):
            self.position += 1
        texts = [line for _, line in self.lines[start : self.position]]
        self.load_line()
        return "\n".join(text[2:] if text[1:2] == " " else text[1:] for text in texts)

    def end(self) -> None:
        """Expect the end of the line and go to the next."""
        if self.at < len(self.tokens):
            self.error("the end of the line", self.tokens[self.at][1])
        self.position += 1
        self.load_line()

    def finish(self) -> None:
        """Expect the end of the text."""
        if self.position < len(self.lines):
            self.error("the end of the text", self.lines[self.position][1])

    def error(self, expected: str, received: str | None = None) -> NoReturn:
        if received is None:
            received = self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"
        raise InvalidArgumentError(
            f"line {self.number}: expected {expected}, received {received!r}"
        )

    # Tokens

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def accept(self, text: str) -> bool:
        found = self.peek() == text and self.kind() != "string"
        self.at += found
        return found

    def word(self, text: str) -> None:
        if not self.accept(text):
            self.error(repr(text))

    def identifier(self) -> str:
        if self.kind() != "name":
            self.error("a name")
        self.at += 1
        return self.peek(-1)

    def integer(self) -> int:
        try:
            value = int(self.peek())
        except ValueError:
            self.error("an integer")
        self.at += 1
        return value

    def string(self) -> str:
        if self.kind() != "string":
            self.error("a string in quotes")
        self.at += 1
        return self.peek(-1)[1:-1]

    def member(self, kind: Callable[[str], T], what: str) -> T:
        """Return the member of an enumeration that the next name is."""
        try:
            found = kind(self.peek())
        except ValueError:
            self.error(what)
        self.at += 1
        return found

    def listed(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Read items between commas up to and past a closing sign."""
        items: list[T] = []
        while not self.accept(close):
            if items:
                self.word(",")
            items.append(item())
        return tuple(items)

    def several(self, keyword: str, item: Callable[[_Reader], T]) -> Iterator[T]:
        while self.accept(keyword):
            yield item(self)

    # Types and names

    def dtype(self) -> DType:
        found = DTYPES.get(self.peek())
        if found is None:
            self.error("a dtype")
        self.at += 1
        return found

    def type(self) -> Type:
        match = re.fullmatch(r"([a-z_0-9]+?)(?:x(\d+))?", self.peek())
        if match is None or match[1] not in DTYPES:
            self.error("a type such as float32 or float32x8")
        self.at += 1
        return Type(DTYPES[match[1]], int(match[2] or 1))

    def new_variable(self, default: Type | None = None) -> Var:
        name = self.identifier()
        if name in self.names.variables:
            self.error("a name that is not bound yet", name)
        type_ = default
        if type_ is None or self.peek() == ":":
            self.word(":")
            type_ = self.type()
        var = self.names.variables[name] = Var(name, type_)
        return var

    def variable(self) -> Var:
        found = self.names.variables.get(self.identifier())
        if found is None:
            self.error("a variable that is bound", self.peek(-1))
        return found

    def buffer(self) -> Buffer:
        found = self.names.buffers.get(self.identifier())
        if found is None:
            self.error("a buffer that is declared", self.peek(-1))
        return found

    # Expressions

    def expression(self) -> Expr:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            self.error(f"at most {_MAX_NESTING} nested expressions")
        found = self._expression()
        self.nesting -= 1
        return found

    def _expression(self) -> Expr:
        if self.kind() == "number" or self.peek() in ("true", "false"):
            return self.constant()
        name = self.identifier()
        if name.startswith("%"):
            found = self.names.aliases.get(name)
            return found if found is not None else self.error("a defined alias", name)
        if self.peek() == "[":
            return self.load(name)
        if self.peek() in ("(", "<"):
            return self.operation(name)
        variable = self.names.variables.get(name)
        return variable if variable is not None else self.error("a variable that is bound", name)

    def constant(self) -> Const:
        text = self.peek()
        self.at += 1
        default = Type(bool_) if text in ("true", "false") else INDEX
        type_ = self.type() if self.accept(":") else default
        if type_.dtype.is_bool:
            if text not in ("true", "false"):
                self.error("true or false", text)
            return Const(text == "true", type_)
        if type_.dtype.is_float:
            return Const(float(text), type_)
        try:
            return Const(int(text), type_)
        except ValueError:
            self.error(f"a value of {type_}", text)

    def load(self, name: str) -> Load:
        memory = self.names.buffers.get(name)
        if memory is None:
            self.error("a buffer that is declared", name)
        indices, mask = self.place()
        return Load(memory, indices, mask)

    def place(self) -> tuple[tuple[Expr, ...], Expr | None]:
        """Read `[index, index | mask]`."""
        self.word("[")
        indices: list[Expr] = []
        while self.peek() not in ("]", "|"):
            if indices:
                self.word(",")
            indices.append(self.expression())
        mask = self.expression() if self.accept("|") else None
        self.word("]")
        return tuple(indices), mask

    def operation(self, name: str) -> Expr:
        row = _OPERATIONS.get(name)
        if row is None:
            self.error("an operation of the loop IR", name)
        parameter = None
        if row.parameter is not None:
            self.word("<")
            parameter = row.parameter(self)
            self.word(">")
        self.word("(")
        args = self.listed(self.expression, ")")
        if len(args) != row.arity:
            self.error(f"{row.arity} operands of {name}", str(len(args)))
        return row.make(args) if parameter is None else row.make(args, parameter)

    # Declarations and statements

    def declaration(self) -> Buffer:
        name = self.identifier()
        if name in self.names.buffers:
            self.error("a buffer name that is not declared yet", name)
        self.word(":")
        dtype = self.dtype()
        self.word("[")
        shape = self.listed(self.size, "]")
        strides: tuple[int | Expr, ...] = ()
        if self.accept("strides"):
            self.word("[")
            strides = self.listed(self.size, "]")
        scope = Scope.GLOBAL
        if self.peek() in (Scope.WORKSPACE, Scope.LOCAL, Scope.REGISTER):
            scope = self.member(Scope, "a scope")
        lanes = self.integer() if self.accept("lanes") else 1
        memory = Buffer(name, dtype, shape, strides, scope, lanes)
        self.names.buffers[name] = memory
        return memory

    def size(self) -> int | Expr:
        found = self.expression()
        plain = isinstance(found, Const) and found.type == INDEX
        return int(found.value) if plain else found  # type: ignore[attr-defined]

    def alias(self) -> None:
        name = self.identifier()
        self.word("=")
        if name in self.names.aliases:
            self.error("an alias that is not defined yet", name)
        self.names.aliases[name] = self.expression()
        self.end()

    def aliases(self) -> None:
        while self.peek().startswith("%") and self.peek(1) == "=":
            self.alias()

    def block(self) -> Block:
        """Read statements up to a line that starts with `}` or `next`."""
        statements: list[Stmt] = []
        while True:
            self.aliases()
            keyword = self.peek()
            if keyword in ("}", "next"):
                return tuple(statements)
            rule = _STATEMENTS.get(keyword)
            if rule is None:
                self.error("a statement or '}'")
            self.at += 1
            statements.append(rule(self))

    def close(self) -> None:
        self.word("}")
        self.end()

    def let(self) -> Let:
        name = self.at
        self.identifier()
        self.word(":")
        self.type()
        self.word("=")
        value = self.expression()
        after, self.at = self.at, name
        var = self.new_variable()
        self.at = after
        self.end()
        return Let(var, value)

    def loop(self) -> For:
        kind = _LOOPS[self.peek(-1)]
        var = self.new_variable(INDEX)
        self.word("<")
        extent = self.expression()
        self.word("{")
        self.end()
        rows = list(self.several("carry", _Reader.carry))
        body = self.block()
        carried = tuple(self.next(*row) for row in rows)
        self.close()
        return For(kind, var, extent, body, carried)

    def carry(self) -> tuple[Var, Expr, Var]:
        var = self.new_variable()
        self.word("=")
        init = self.expression()
        self.word("->")
        result = self.new_variable(var.type)
        self.end()
        return var, init, result

    def next(self, var: Var, init: Expr, result: Var) -> Carried:
        self.aliases()
        self.word("next")
        if self.variable() is not var:
            self.error(f"the next value of {var.name}", self.peek(-1))
        self.word("=")
        after = self.expression()
        self.end()
        return Carried(var, init, after, result)

    def if_(self) -> If:
        condition = self.expression()
        self.word("{")
        self.end()
        then = self.block()
        self.word("}")
        otherwise: Block = ()
        if self.accept("else"):
            self.word("{")
            self.end()
            otherwise = self.block()
            self.word("}")
        self.end()
        return If(condition, then, otherwise)

    def while_(self) -> While:
        condition = self.buffer()
        self.word("{")
        self.end()
        body = self.block()
        self.close()
        return While(condition, body)

    def alloc(self) -> Alloc:
        memory = self.declaration()
        self.end()
        return Alloc(memory)

    def store(self) -> Store:
        memory = self.buffer()
        indices, mask = self.place()
        self.word("=")
        value = self.expression()
        self.end()
        return Store(memory, indices, value, mask)

    def stream(self) -> Store:
        return replace(self.store(), streamed=True)

    def prefetch(self) -> Prefetch:
        view = self.view()
        self.end()
        return Prefetch(view.buffer, view.indices)

    def view(self) -> View:
        memory = self.buffer()
        return View(memory, self.listed(self.expression, "]") if self.accept("[") else ())

    def copy(self) -> Copy:
        target = self.view()
        self.word("<-")
        source = self.view()
        self.word("extents")
        self.word("[")
        extents = self.listed(self.expression, "]")
        self.end()
        return Copy(target, source, extents)

    def invocation(self) -> tuple[str, tuple[View, ...], tuple[Expr, ...]]:
        name = self.identifier()
        self.word("(")
        views = self.listed(self.view, ")")
        self.word("(")
        return name, views, self.listed(self.expression, ")")

    def call(self) -> Call:
        parts = self.invocation()
        self.end()
        return Call(*parts)

    def launch(self) -> Launch:
        parts = self.invocation()
        self.word("chunks")
        chunks = self.expression()
        self.end()
        return Launch(*parts, chunks)

    def fail(self) -> Fail:
        site = self.integer()
        self.word("(")
        args = self.listed(self.expression, ")")
        if len(args) != 2:
            self.error("a position and a value", str(len(args)))
        self.end()
        return Fail(site, *args)

    def return_(self) -> Return:
        self.end()
        return Return()


def _constant_data(reader: _Reader) -> ConstantData:
    name, text = reader.identifier(), reader.string()
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        reader.error("base64 data", text[:20])
    reader.end()
    return ConstantData(name, data)


def _kernel(reader: _Reader) -> Kernel:
    reader.names = _Names()
    name = reader.identifier()
    reader.word("{")
    note = reader.notes()
    scalars = _scalars(reader)
    buffers: list[Buffer] = []
    reader.aliases()
    while reader.accept("buffer"):
        buffers.append(reader.declaration())
        reader.end()
        reader.aliases()
    body = reader.block()
    reader.close()
    return Kernel(name, tuple(buffers), scalars, body, note)


def _entry(reader: _Reader) -> Entry:
    reader.names = _Names()
    name = reader.identifier()
    reader.word("{")
    reader.end()
    scalars = _scalars(reader)
    placements: list[Placement] = []
    reader.aliases()
    while reader.accept("buffer"):
        memory = reader.declaration()
        reader.word("at")
        place = reader.member(Place, f"one of {', '.join(Place)}")
        placements.append(Placement(memory, place, reader.integer()))
        reader.end()
        reader.aliases()
    body = reader.block()
    reader.close()
    return Entry(name, tuple(placements), scalars, body)


def _scalars(reader: _Reader) -> tuple[Var, ...]:
    scalars: list[Var] = []
    while reader.accept("scalar"):
        scalars.append(reader.new_variable(INDEX))
        reader.end()
    return tuple(scalars)


@dataclass(frozen=True, slots=True)
class _Operation:
    """How an operation is made: its number of operands and its parameter in angle brackets."""

    arity: int
    make: Callable[..., Expr]
    parameter: Callable[[_Reader], Any] | None = None


def _pattern(reader: _Reader) -> tuple[int, ...]:
    positions = [reader.integer()]
    while reader.accept(","):
        positions.append(reader.integer())
    return tuple(positions)


def _lanes(reader: _Reader) -> int:
    lanes = reader.integer()
    return lanes if lanes >= 1 else reader.error("a positive number of lanes", str(lanes))


_OPERATIONS: Mapping[str, _Operation] = {
    **{op: _Operation(1, lambda args, op=op: Unary(op, *args)) for op in UnaryOp},
    **{op: _Operation(2, lambda args, op=op: Binary(op, *args)) for op in BinaryOp},
    **{op: _Operation(2, lambda args, op=op: Compare(op, *args)) for op in CompareOp},
    "select": _Operation(3, lambda args: Select(*args)),
    "fma": _Operation(3, lambda args: Fma(*args)),
    "pair_dot": _Operation(3, lambda args: PairDot(*args)),
    "mul_high": _Operation(2, lambda args: MulHigh(*args)),
    "cast": _Operation(1, lambda args, dtype: Cast(args[0], dtype), _Reader.dtype),
    "bitcast": _Operation(1, lambda args, dtype: Bitcast(args[0], dtype), _Reader.dtype),
    "broadcast": _Operation(1, lambda args, lanes: Broadcast(args[0], lanes), _lanes),
    "ramp": _Operation(1, lambda args, lanes: Ramp(args[0], lanes), _lanes),
    "shuffle": _Operation(2, lambda args, pattern: Shuffle(args[0], args[1], pattern), _pattern),
    "extract": _Operation(1, lambda args, lane: Extract(args[0], lane), _Reader.integer),
    "reduce": _Operation(
        1,
        lambda args, op: Reduce(op, args[0]),
        lambda reader: reader.member(BinaryOp, "a binary operator"),
    ),
}

_STATEMENTS: Mapping[str, Callable[[_Reader], Stmt]] = {
    **dict.fromkeys(_LOOPS, _Reader.loop),
    "let": _Reader.let,
    "if": _Reader.if_,
    "while": _Reader.while_,
    "alloc": _Reader.alloc,
    "store": _Reader.store,
    "stream": _Reader.stream,
    "copy": _Reader.copy,
    "prefetch": _Reader.prefetch,
    "call": _Reader.call,
    "launch": _Reader.launch,
    "fail": _Reader.fail,
    "return": _Reader.return_,
}
"""How each statement is read, by its first word."""
