"""Which carried values of a loop are reductions: values that only ever meet one operator."""

from __future__ import annotations

import math
from collections.abc import Mapping

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    Binary,
    BinaryOp,
    Carried,
    Const,
    Expr,
    Fma,
    For,
    Let,
    Select,
    Type,
    Var,
)
from frame.codegen.loops.rewrites.common import require
from frame.codegen.loops.semantics import integer_range
from frame.codegen.loops.traverse import (
    expressions,
    post_order,
    stem_of,
    trailing_expressions,
    walk,
)
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType

_KINDS: Mapping[BinaryOp, BinaryOp] = {
    op: op
    for op in (
        *(BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX),
        *(BinaryOp.MINIMUM, BinaryOp.MAXIMUM, BinaryOp.AND, BinaryOp.OR),
    )
} | {BinaryOp.SUB: BinaryOp.ADD}
"""The reduction that an operator belongs to; `acc - x` sums negated terms."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A recognised reduction: its operator and the type of its value."""

    op: BinaryOp
    type: Type

    def identity(self, lanes: int) -> Const:
        """Return the neutral element in every lane."""
        return b.const(neutral(self.op, self.type.dtype), Type(self.type.dtype, lanes))


def neutral(op: BinaryOp, dtype: DType) -> bool | int | float:
    """Return the value e with `op(e, x) = x` for every x (for `add` of floats it is -0.0)."""
    if op is BinaryOp.ADD:
        return -0.0 if dtype.is_float else 0
    if op is BinaryOp.MUL:
        return 1.0 if dtype.is_float else 1
    if dtype.is_bool:
        return op is BinaryOp.AND
    low, high = (-math.inf, math.inf) if dtype.is_float else integer_range(dtype)
    if op is BinaryOp.AND:
        return -1 if dtype.is_signed else high
    if op is BinaryOp.OR:
        return 0
    return high if op in (BinaryOp.MIN, BinaryOp.MINIMUM) else low


def recognise(loop: For, carried: Carried) -> Reduction:
    """Return the reduction that a carried value is.

    Raises:
        ScheduleError: the value is used in another way, such as a running sum that is stored.
    """
    chain = _Chain(loop, carried)
    chain.follow(carried.next, carried.var)
    name = stem_of(carried.var.name)
    require(chain.op is not None and chain.sound, loop, f"carried value {name} is no reduction")
    require(not chain.other_uses(), loop, f"carried value {name} is used besides its reduction")
    return Reduction(chain.op or BinaryOp.ADD, carried.var.type)


class _Chain:
    """The operations between a carried value and its next value."""

    def __init__(self, loop: For, carried: Carried) -> None:
        self.loop = loop
        self.op: BinaryOp | None = None
        self.sound = True
        self.links: set[Expr] = set()
        self.definitions = {s.var: s.value for s in walk(loop.body) if isinstance(s, Let)}
        self.loops = {c.result: c for s in walk(loop.body) if isinstance(s, For) for c in s.carried}
        self.tainted = self.find_tainted(carried)

    def find_tainted(self, carried: Carried) -> set[Expr]:
        """Return every expression of the body that depends on the carried value."""
        tainted: set[Expr] = {carried.var}
        while True:
            before = len(tainted)
            for node in post_order([*self.roots(), carried.var]):
                if any(arg in tainted for arg in node.args):
                    tainted.add(node)
            for var, value in self.definitions.items():
                if value in tainted:
                    tainted.add(var)
            for c in self.loops.values():
                if c.init in tainted or c.next in tainted:
                    tainted.update((c.var, c.result))
            if len(tainted) == before:
                return tainted

    def roots(self) -> list[Expr]:
        found: list[Expr] = []
        for statement in walk(self.loop.body):
            found.extend(expressions(statement))
            found.extend(trailing_expressions(statement))
        return [*found, *(c.next for c in self.loop.carried)]

    def follow(self, e: Expr, start: Var) -> None:
        """Walk from a next value down to the carried value; not sound where it can't."""
        while e is not start and self.sound:
            self.links.add(e)
            step = self.step(e, start)
            if step is None:
                self.sound = False
                return
            e = step
        self.links.add(start)

    def step(self, e: Expr, start: Var) -> Expr | None:
        """Return the operand of a link that leads on to the carried value."""
        if isinstance(e, Var):
            return self.through_variable(e, start)
        if isinstance(e, Binary):
            return self.through_binary(e)
        if isinstance(e, Fma) and not self.touches(e.a) and not self.touches(e.b):
            return e.c if self.agree(BinaryOp.ADD) else None
        if isinstance(e, Select) and not self.touches(e.condition):
            self.follow(e.b, start)
            return e.a
        return None

    def through_variable(self, e: Var, start: Var) -> Expr | None:
        if e in self.definitions:
            return self.definitions[e]
        inner = self.loops.get(e)
        if inner is None:
            return None
        self.follow(inner.next, inner.var)
        return inner.init

    def through_binary(self, e: Binary) -> Expr | None:
        kind = _KINDS.get(e.op)
        if kind is None or not self.agree(kind) or self.touches(e.a) == self.touches(e.b):
            return None
        if self.touches(e.a):
            return e.a
        return e.b if e.op is not BinaryOp.SUB else None

    def touches(self, e: Expr) -> bool:
        return e in self.tainted

    def agree(self, op: BinaryOp) -> bool:
        self.op = self.op or op
        return self.op is op

    def other_uses(self) -> bool:
        """Tell whether anything outside the chain depends on the carried value."""
        if any(
            node in self.tainted and node not in self.links for node in post_order(self.roots())
        ):
            return True
        return any(self.escapes(statement) for statement in walk(self.loop.body))

    def escapes(self, statement: object) -> bool:
        """Tell whether a statement other than a Let or a loop's carried value uses a link."""
        if isinstance(statement, Let):
            return False
        if isinstance(statement, For):
            return statement.extent in self.tainted
        return any(root in self.tainted for root in expressions(statement))  # type: ignore[arg-type]
