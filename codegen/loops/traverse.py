"""Walk and rebuild expressions and statements: the one place that knows the fields of each class.

Expressions are DAGs, sometimes deep ones: every walk here visits a node once and keeps its own
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    Alloc,
    Binary,
    Bitcast,
    Block,
    Broadcast,
    Buffer,
    Call,
    Carried,
    Cast,
    Compare,
    Const,
    Copy,
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
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Select,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
    View,
    While,
    fresh,
)

Args = Sequence[Expr]
T = TypeVar("T")


def post_order(roots: Iterable[Expr]) -> list[Expr]:
    """Return every node below the roots once, operands before users."""
    seen: set[Expr] = set()
    order: list[Expr] = []
    stack = list(roots)
    stack.reverse()
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        pending = [arg for arg in node.args if arg not in seen]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        seen.add(node)
        order.append(node)
    return order


def fold_dag(root: Expr, memo: dict[Expr, T], visit: Callable[[Expr, list[T]], T]) -> T:
    """Return `visit(node, values of its operands)` for the root, once a node; `memo` is kept."""
    if root in memo:
        return memo[root]
    stack = [root]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        operands = node.args
        pending = [arg for arg in operands if arg not in memo]
        if pending:
            stack.extend(pending)
            continue
        stack.pop()
        memo[node] = visit(node, [memo[arg] for arg in operands])
    return memo[root]


def _load(e: Any, args: Args) -> Expr:
    rank = len(e.indices)
    return b.load(e.buffer, args[:rank], args[rank] if len(args) > rank else None)


REBUILD: Mapping[type[Expr], Callable[[Any, Args], Expr]] = {
    Const: lambda e, args: e,
    Var: lambda e, args: e,
    Unary: lambda e, args: b.unary(e.op, args[0]),
    Binary: lambda e, args: b.binary(e.op, args[0], args[1]),
    Compare: lambda e, args: b.compare(e.op, args[0], args[1]),
    Select: lambda e, args: b.select(args[0], args[1], args[2]),
    Fma: lambda e, args: b.fma(args[0], args[1], args[2]),
    PairDot: lambda e, args: b.pair_dot(args[0], args[1], args[2]),
    Cast: lambda e, args: b.cast(args[0], e.dtype),
    Bitcast: lambda e, args: b.bitcast(args[0], e.dtype),
    MulHigh: lambda e, args: b.mul_high(args[0], args[1]),
    Broadcast: lambda e, args: b.broadcast(args[0], e.lanes),
    Ramp: lambda e, args: b.ramp(args[0], e.lanes),
    Shuffle: lambda e, args: b.shuffle(args[0], args[1], e.pattern),
    Extract: lambda e, args: b.extract(args[0], e.lane),
    Reduce: lambda e, args: b.reduce(e.op, args[0]),
    Load: _load,
}
"""How to make a node again from new operands: one row a class, through the folding builder."""


def rebuild(expression: Expr, args: Args) -> Expr:
    """Return the expression with new operands; the same object where none changed."""
    for old, new in zip(expression.args, args, strict=True):
        if old is not new:
            return REBUILD[type(expression)](expression, args)
    return expression


class Mapper:
    """Rebuild expressions and statements bottom-up; a subclass overrides what it changes.

    One mapper sees each expression node once (`memo`). `leaf` may replace a variable, `node` sees a
    node after its operands were mapped.
    """

    def __init__(self) -> None:
        self.memo: dict[Expr, Expr] = {}

    def node(self, expression: Expr, args: Args) -> Expr:
        """Return the new node for an expression whose operands became `args`."""
        return rebuild(expression, args)

    def expression(self, root: Expr) -> Expr:
        """Return the mapped expression."""
        return fold_dag(root, self.memo, self.node)

    def expressions(self, roots: Iterable[Expr]) -> tuple[Expr, ...]:
        """Return mapped expressions."""
        return tuple(self.expression(root) for root in roots)

    def optional(self, root: Expr | None) -> Expr | None:
        """Return a mapped expression, None for None."""
        return None if root is None else self.expression(root)

    def bound(self, var: Var) -> Var:
        """Return the variable that takes the place of one that a statement binds."""
        return var

    def buffer(self, memory: Buffer) -> Buffer:
        """Return the buffer that takes the place of a buffer."""
        return memory

    def block(self, statements: Iterable[Stmt]) -> Block:
        """Return the mapped statements, flattened."""
        mapped: list[Stmt] = []
        for statement in statements:
            mapped.extend(self.statement(statement))
        return tuple(mapped)

    def statement(self, statement: Stmt) -> Block:
        """Return the statements that take the place of one statement."""
        return _MAP_STATEMENT[type(statement)](self, statement)

    def view(self, view: View) -> View:
        """Return the mapped view."""
        return View(self.buffer(view.buffer), self.expressions(view.indices))

    def views(self, views: Iterable[View]) -> tuple[View, ...]:
        """Return mapped views."""
        return tuple(self.view(view) for view in views)


def _map_let(m: Mapper, s: Let) -> Block:
    value = m.expression(s.value)
    return (Let(m.bound(s.var), value),)


def _map_for(m: Mapper, s: For) -> Block:
    extent = m.expression(s.extent)
    inits = m.expressions(c.init for c in s.carried)
    var = m.bound(s.var)
    inner = [m.bound(c.var) for c in s.carried]
    body = m.block(s.body)
    following = m.expressions(c.next for c in s.carried)
    results = [m.bound(c.result) for c in s.carried]
    carried = tuple(Carried(*row) for row in zip(inner, inits, following, results, strict=True))
    return (For(s.kind, var, extent, body, carried),)


def _map_if(m: Mapper, s: If) -> Block:
    return (If(m.expression(s.condition), m.block(s.then), m.block(s.otherwise)),)


def _map_store(m: Mapper, s: Store) -> Block:
    indices, value = m.expressions(s.indices), m.expression(s.value)
    return (Store(m.buffer(s.buffer), indices, value, m.optional(s.mask), s.streamed),)


def _map_launch(m: Mapper, s: Launch) -> Block:
    views, scalars = m.views(s.buffers), m.expressions(s.scalars)
    return (Launch(s.kernel, views, scalars, m.expression(s.chunks)),)


_MAP_STATEMENT: Mapping[type[Stmt], Callable[[Mapper, Any], Block]] = {
    Let: _map_let,
    For: _map_for,
    If: _map_if,
    While: lambda m, s: (While(m.buffer(s.condition), m.block(s.body)),),
    Alloc: lambda m, s: (Alloc(m.buffer(s.buffer)),),
    Store: _map_store,
    Copy: lambda m, s: (Copy(m.view(s.target), m.view(s.source), m.expressions(s.extents)),),
    Prefetch: lambda m, s: (Prefetch(m.buffer(s.buffer), m.expressions(s.indices)),),
    Call: lambda m, s: (Call(s.kernel, m.views(s.buffers), m.expressions(s.scalars)),),
    Fail: lambda m, s: (Fail(s.site, m.expression(s.position), m.expression(s.value)),),
    Launch: _map_launch,
    Return: lambda m, s: (s,),
}


class Substitution(Mapper):
    """Replace variables by expressions and, if `refresh`, every bound name by a fresh one.

    A block that is placed twice must be refreshed once: a kernel binds a variable once.
    """

    def __init__(
        self,
        values: Mapping[Var, Expr],
        buffers: Mapping[Buffer, Buffer] | None = None,
        refresh: bool = False,
    ) -> None:
        super().__init__()
        for variable, value in values.items():
            self.memo[variable] = value
        self.buffers = dict(buffers or {})
        self.refresh = refresh

    def bound(self, var: Var) -> Var:
        """Return the variable itself or a fresh one in its place."""
        if not self.refresh:
            return var
        renamed = fresh(stem_of(var.name), var.type)
        self.memo[var] = renamed
        return renamed

    def buffer(self, memory: Buffer) -> Buffer:
        """Return the buffer that replaces this one."""
        return self.buffers.get(memory, memory)

    def node(self, expression: Expr, args: Args) -> Expr:
        """Return the node on new operands and, for a Load, on the new buffer."""
        if isinstance(expression, Load) and expression.buffer in self.buffers:
            rank = len(expression.indices)
            mask = args[rank] if len(args) > rank else None
            return b.load(self.buffers[expression.buffer], args[:rank], mask)
        return rebuild(expression, args)

    def statement(self, statement: Stmt) -> Block:
        """Return the statement with replaced parts; an Alloc may get a fresh buffer."""
        if self.refresh and isinstance(statement, Alloc):
            old = statement.buffer
            name = fresh(stem_of(old.name)).name
            new = Buffer(name, old.dtype, old.shape, old.strides, old.scope, old.lanes)
            self.buffers[old] = new
        return super().statement(statement)


def stem_of(name: str) -> str:
    """Return a name without the number that `fresh` gave it."""
    return name.split(".", 1)[0]


# What a statement holds


def nested(statement: Stmt) -> tuple[Block, ...]:
    """Return the blocks inside a statement."""
    if isinstance(statement, (For, While)):
        return (statement.body,)
    return (statement.then, statement.otherwise) if isinstance(statement, If) else ()


def walk(block: Iterable[Stmt]) -> Iterator[Stmt]:
    """Yield every statement of a block and of the blocks inside it, in order."""
    for statement in block:
        yield statement
        for inner in nested(statement):
            yield from walk(inner)


def called_kernels(module: Module, name: str) -> tuple[Kernel, ...]:
    """Return a kernel of a module and all that it calls, those that are called first."""
    kernels = {kernel.name: kernel for kernel in module.kernels}
    found: dict[str, Kernel] = {}

    def visit(kernel: Kernel) -> None:
        for statement in walk(kernel.body):
            if isinstance(statement, Call) and statement.kernel not in found:
                visit(kernels[statement.kernel])
        found[kernel.name] = kernel

    visit(kernels[name])
    return tuple(found.values())


def _view_expressions(views: Iterable[View]) -> tuple[Expr, ...]:
    return tuple(index for view in views for index in view.indices)


def _store_expressions(s: Store) -> tuple[Expr, ...]:
    return (*s.indices, s.value, *(() if s.mask is None else (s.mask,)))


_EXPRESSIONS: Mapping[type[Stmt], Callable[[Any], tuple[Expr, ...]]] = {
    Let: lambda s: (s.value,),
    For: lambda s: (s.extent, *(c.init for c in s.carried)),
    If: lambda s: (s.condition,),
    While: lambda s: (),
    Alloc: lambda s: (),
    Store: _store_expressions,
    Copy: lambda s: (*s.target.indices, *s.source.indices, *s.extents),
    Prefetch: lambda s: s.indices,
    Call: lambda s: (*_view_expressions(s.buffers), *s.scalars),
    Fail: lambda s: (s.position, s.value),
    Launch: lambda s: (*_view_expressions(s.buffers), *s.scalars, s.chunks),
    Return: lambda s: (),
}


def expressions(statement: Stmt) -> tuple[Expr, ...]:
    """Return the expressions evaluated by a statement itself, before any block inside it.

    The `next` of carried values is evaluated after the body: see `trailing_expressions`.
    """
    return _EXPRESSIONS[type(statement)](statement)


def trailing_expressions(statement: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that a loop evaluates at the end of its body."""
    return tuple(c.next for c in statement.carried) if isinstance(statement, For) else ()


def all_expressions(block: Iterable[Stmt]) -> list[Expr]:
    """Return every expression node of a block and of the blocks inside it once, in post-order."""
    roots: list[Expr] = []
    for statement in walk(block):
        roots.extend(expressions(statement))
        roots.extend(trailing_expressions(statement))
    return post_order(roots)


def bound_variables(statement: Stmt) -> tuple[Var, ...]:
    """Return the variables that a statement binds, for its body or for the rest of the block."""
    if isinstance(statement, Let):
        return (statement.var,)
    if isinstance(statement, For):
        pairs = (v for c in statement.carried for v in (c.var, c.result))
        return (statement.var, *pairs)
    return ()


def loads(block: Iterable[Stmt]) -> list[Load]:
    """Return every Load of a block, once a node."""
    return [e for e in all_expressions(block) if isinstance(e, Load)]


def used_buffers(block: Iterable[Stmt]) -> set[Buffer]:
    """Return the buffers that a block reads or writes."""
    found = {load.buffer for load in loads(block)}
    for statement in walk(block):
        found.update(_TOUCHED[type(statement)](statement))
    return found


def _views(statement: Any) -> tuple[Buffer, ...]:
    return tuple(view.buffer for view in statement.buffers)


def _none(statement: Any) -> tuple[Buffer, ...]:
    return ()


_TOUCHED: Mapping[type[Stmt], Callable[[Any], tuple[Buffer, ...]]] = {
    Let: _none,
    For: _none,
    If: _none,
    Fail: _none,
    Return: _none,
    While: lambda s: (s.condition,),
    Alloc: lambda s: (s.buffer,),
    Store: lambda s: (s.buffer,),
    Copy: lambda s: (s.target.buffer, s.source.buffer),
    Prefetch: lambda s: (s.buffer,),
    Call: _views,
    Launch: _views,
}


def used_variables(block: Iterable[Stmt], memories: Iterable[Buffer] = ()) -> set[Var]:
    """Return the variables that a block, and the shapes of `memories`, read."""
    sizes = [e for m in memories for e in (*m.shape, *m.strides) if isinstance(e, Expr)]
    return {e for e in (*all_expressions(block), *post_order(sizes)) if isinstance(e, Var)}


def has_load(expression: Expr) -> bool:
    """Tell whether an expression reads memory."""
    return any(isinstance(node, Load) for node in post_order([expression]))
