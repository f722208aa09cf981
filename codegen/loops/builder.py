"""Terse, typed helpers that write loop IR: one function a kind of expression or statement.

Memory, statements and the recording of bodies stand here; the expressions are those of
`expressions`, and this module hands them on, so that schedules need one name for all.
Every helper checks the types of its operands and raises InternalError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from typing import cast as _typed

from frame.codegen.loops.expressions import (
    BOOL,
    FALSE,
    TRUE,
    Number,
    Operand,
    absolute,
    add,
    add_all,
    and_,
    as_index,
    binary,
    binary_allowed,
    bitcast,
    boolean,
    broadcast,
    cast,
    ceil,
    ceil_div,
    compare,
    const,
    constant_value,
    div,
    eq,
    extract,
    floor,
    fma,
    ge,
    gt,
    index,
    le,
    like,
    lt,
    max_,
    maximum,
    min_,
    minimum,
    mul,
    mul_high,
    ne,
    neg,
    not_,
    or_,
    pair_dot,
    ramp,
    reduce,
    rem,
    require,
    round_even,
    select,
    shl,
    shr,
    shuffle,
    sqrt,
    sub,
    sum_lanes,
    trunc,
    unary,
    unary_allowed,
    unify,
    xor,
)
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Block,
    Buffer,
    Carried,
    Const,
    Expr,
    Fail,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    Var,
    fresh,
)
from frame.core.dtypes import DType
from frame.core.errors import InternalError

Statements: TypeAlias = "Stmt | Iterable[Statements]"
"""A statement or any nest of statements: `block` flattens it."""

__all__ = [
    "Statements",
    "Number",
    "Operand",
    "BOOL",
    "TRUE",
    "FALSE",
    "index",
    "const",
    "boolean",
    "like",
    "constant_value",
    "as_index",
    "unify",
    "broadcast",
    "ramp",
    "extract",
    "shuffle",
    "reduce",
    "sum_lanes",
    "unary",
    "unary_allowed",
    "neg",
    "absolute",
    "sqrt",
    "floor",
    "ceil",
    "round_even",
    "trunc",
    "not_",
    "binary",
    "binary_allowed",
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "min_",
    "max_",
    "minimum",
    "maximum",
    "and_",
    "or_",
    "pair_dot",
    "xor",
    "shl",
    "shr",
    "ceil_div",
    "add_all",
    "compare",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "select",
    "fma",
    "cast",
    "bitcast",
    "mul_high",
    "buffer",
    "fresh_buffer",
    "strides_of",
    "flat_index",
    "load",
    "store",
    "block",
    "let",
    "for_",
    "fold",
    "if_",
    "Folding",
    "Body",
]


# Memory


def buffer(
    name: str,
    dtype: DType,
    shape: Sequence[int | Expr],
    strides: Sequence[int | Expr] = (),
    scope: Scope = Scope.GLOBAL,
    lanes: int = 1,
) -> Buffer:
    """Return a buffer; constant extents and strides are stored as ints."""
    return Buffer(name, dtype, _plain(shape), _plain(strides), scope, lanes)


def _plain(sizes: Sequence[int | Expr]) -> tuple[int | Expr, ...]:
    return tuple(_typed(int, size.value) if isinstance(size, Const) else size for size in sizes)


def fresh_buffer(
    stem: str, dtype: DType, shape: Sequence[int], scope: Scope = Scope.REGISTER, lanes: int = 1
) -> Buffer:
    """Return a LOCAL or REGISTER buffer with a name that no other buffer of this process has."""
    return Buffer(fresh(stem).name, dtype, tuple(shape), (), scope, lanes)


def strides_of(memory: Buffer) -> tuple[int | Expr, ...]:
    """Return the element strides of a buffer, row-major where it declares none."""
    if memory.strides:
        return memory.strides
    strides: list[int | Expr] = []
    step: int | Expr = 1
    for extent in reversed(memory.shape):
        strides.append(step)
        step = _times(step, extent)
    return tuple(reversed(strides))


def _times(a: int | Expr, b: int | Expr) -> int | Expr:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    product = mul(as_index(a), as_index(b))
    return _typed(int, product.value) if isinstance(product, Const) else product


def flat_index(memory: Buffer, indices: Sequence[Operand]) -> Expr:
    """Return the element offset that indices have in a buffer."""
    _rank(memory, indices)
    return add_all(
        mul(as_index(i), as_index(s)) for i, s in zip(indices, strides_of(memory), strict=True)
    )


def _rank(memory: Buffer, indices: Sequence[Operand]) -> None:
    if len(indices) != len(memory.shape):
        raise InternalError(
            f"buffer {memory.name} has rank {len(memory.shape)}, received {len(indices)} indices"
        )


def _indices(memory: Buffer, indices: Sequence[Operand]) -> tuple[Expr, ...]:
    _rank(memory, indices)
    expressions = tuple(as_index(i) for i in indices)
    for i in expressions:
        require(i.type.dtype == INDEX.dtype, f"index of {memory.name}: expected int64", i)
    return expressions


def load(memory: Buffer, indices: Sequence[Operand] = (), mask: Expr | None = None) -> Load:
    """Read an element (a vector for vector indices) where `mask` is true, zero elsewhere."""
    loaded = Load(memory, _indices(memory, indices), None)
    mask = _mask(mask, loaded.type.lanes, memory)
    return loaded if mask is None else Load(memory, loaded.indices, mask)


def _mask(mask: Expr | None, lanes: int, memory: Buffer) -> Expr | None:
    if mask is None or (isinstance(mask, Const) and mask.value is True):
        return None
    require(mask.type.dtype.is_bool, f"mask on {memory.name}: expected bool", mask)
    return broadcast(mask, lanes)


def store(
    memory: Buffer,
    indices: Sequence[Operand],
    value: Operand,
    mask: Expr | None = None,
    streamed: bool = False,
) -> Store:
    """Write a value where `mask` is true; a scalar into vector indices is broadcast."""
    places = _indices(memory, indices)
    lanes = max((i.type.lanes for i in places), default=1)
    lanes = max(lanes, memory.lanes)
    if not isinstance(value, Expr):
        value = const(value, memory.dtype)
    value = broadcast(value, lanes)
    require(
        value.type.dtype == memory.dtype,
        f"store to {memory.name}: expected dtype {memory.dtype}",
        value,
    )
    return Store(memory, places, value, _mask(mask, lanes, memory), streamed)


# Statements


def block(*statements: Statements) -> Block:
    """Flatten statements and nests of them into one block."""
    return tuple(_flatten(statements))


def _flatten(statements: Iterable[Statements]) -> Iterator[Stmt]:
    for statement in statements:
        if isinstance(statement, Stmt):
            yield statement
        else:
            yield from _flatten(statement)


def let(stem: str, value: Expr) -> tuple[Let, Var]:
    """Return a Let of a fresh variable, and the variable."""
    var = fresh(stem, value.type)
    return Let(var, value), var


def for_(
    extent: Operand,
    body: Callable[[Var], Statements],
    name: str = "i",
    kind: LoopKind = LoopKind.SERIAL,
) -> For:
    """Return a loop over `0 .. extent - 1`; `body` makes the statements from the loop variable."""
    var = fresh(name)
    return For(kind, var, as_index(extent), block(body(var)))


def fold(
    extent: Operand,
    inits: Sequence[Expr],
    body: Callable[..., tuple[Statements, Sequence[Expr]]],
    name: str = "i",
    kind: LoopKind = LoopKind.SERIAL,
    stem: str = "acc",
) -> tuple[For, tuple[Var, ...]]:
    """Return a loop with carried values, and the variables that hold them after it.

    `body(i, *values)` returns the statements and the next values.
    """
    var = fresh(name)
    values = [fresh(stem, init.type) for init in inits]
    results = tuple(fresh(stem, init.type) for init in inits)
    statements, following = body(var, *values)
    carried = tuple(
        Carried(value, init, after, result)
        for value, init, after, result in zip(values, inits, following, results, strict=True)
    )
    return For(kind, var, as_index(extent), block(statements), carried), results


def if_(condition: Expr, then: Statements, otherwise: Statements = ()) -> If:
    """Return a branch on a scalar bool."""
    require(condition.type == BOOL, "if: expected a scalar bool condition", condition)
    return If(condition, block(then), block(otherwise))


@dataclass(slots=True)
class Folding:
    """A loop with carried values that a `Body` is writing: set `next`, read `results` after it."""

    index: Var
    values: tuple[Var, ...]
    results: tuple[Var, ...]
    next: Sequence[Expr] = ()


@dataclass(slots=True)
class Body:
    """Write a block statement by statement, with `with` for loops and branches.

    body = Body()
    with body.loop(rows) as i:
        x = body.let("x", load(source, [i]))
        body.store(target, [i], mul(x, x))
    statements = body.block()
    """

    statements: list[Stmt] = field(default_factory=list)

    def block(self) -> Block:
        """Return what was written so far."""
        return tuple(self.statements)

    def add(self, *statements: Statements) -> None:
        """Append statements."""
        self.statements.extend(_flatten(statements))

    def let(self, stem: str, value: Expr) -> Expr:
        """Bind a value to a fresh variable; constants and variables need none."""
        if isinstance(value, (Const, Var)):
            return value
        statement, var = let(stem, value)
        self.statements.append(statement)
        return var

    def store(
        self,
        memory: Buffer,
        indices: Sequence[Operand],
        value: Operand,
        mask: Expr | None = None,
        streamed: bool = False,
    ) -> None:
        """Append a store."""
        self.statements.append(store(memory, indices, value, mask, streamed))

    def prefetch(self, memory: Buffer, indices: Sequence[Operand]) -> None:
        """Append a request for the cache line of an element."""
        self.statements.append(Prefetch(memory, _indices(memory, indices)))

    def alloc(
        self,
        stem: str,
        dtype: DType,
        shape: Sequence[int],
        scope: Scope = Scope.REGISTER,
        lanes: int = 1,
    ) -> Buffer:
        """Allocate a LOCAL or REGISTER buffer for the rest of the block."""
        memory = fresh_buffer(stem, dtype, shape, scope, lanes)
        self.statements.append(Alloc(memory))
        return memory

    def fail(self, site: int, position: Expr, value: Expr) -> None:
        """Append a report of a bad value."""
        self.statements.append(Fail(site, position, value))

    def _nest(self) -> list[Stmt]:
        outer, self.statements = self.statements, []
        return outer

    @contextmanager
    def loop(
        self, extent: Operand, name: str = "i", kind: LoopKind = LoopKind.SERIAL
    ) -> Iterator[Var]:
        """Write the body of a loop."""
        var, outer = fresh(name), self._nest()
        yield var
        inner, self.statements = self.statements, outer
        self.add(For(kind, var, as_index(extent), tuple(inner)))

    @contextmanager
    def fold(
        self,
        extent: Operand,
        inits: Sequence[Expr],
        name: str = "i",
        kind: LoopKind = LoopKind.SERIAL,
        stem: str = "acc",
    ) -> Iterator[Folding]:
        """Write the body of a loop with carried values; it must set `next`."""
        values = tuple(fresh(stem, init.type) for init in inits)
        results = tuple(fresh(stem, init.type) for init in inits)
        folding, outer = Folding(fresh(name), values, results), self._nest()
        yield folding
        inner, self.statements = self.statements, outer
        rows = zip(values, inits, folding.next, results, strict=True)
        carried = tuple(Carried(*row) for row in rows)
        self.add(For(kind, folding.index, as_index(extent), tuple(inner), carried))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Write a branch that runs where a scalar condition is true."""
        outer = self._nest()
        yield
        inner, self.statements = self.statements, outer
        self.add(if_(condition, inner))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Write the other branch of the `when` that was written last."""
        last = self.statements[-1] if self.statements else None
        if not isinstance(last, If) or last.otherwise:
            raise InternalError("otherwise: the last statement is not an If without an else")
        outer = self._nest()
        yield
        inner, self.statements = self.statements, outer
        self.statements[-1] = If(last.condition, last.then, tuple(inner))
