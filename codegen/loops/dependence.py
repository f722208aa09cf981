"""Which accesses of different iterations of a loop may meet in memory.

Distinct buffers are taken to be distinct memory, or memory that is read before it is overwritten
at the same place (an output that the plan lays over an input).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from frame.codegen.loops import builder
from frame.codegen.loops.affine import Facts, LinearForm
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Const,
    Copy,
    Expr,
    For,
    Launch,
    Load,
    Ramp,
    Stmt,
    Store,
    Type,
    Var,
    View,
    fresh,
)
from frame.codegen.loops.traverse import bound_variables, fold_dag, loads, walk
from frame.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A read or a write of a buffer, one index a dimension, None for an index that is not known.

    `spans` are variables that run over the lanes of a vector or over a copied region.
    """

    buffer: Buffer
    indices: tuple[Expr | None, ...]
    writes: bool
    spans: tuple[tuple[Var, Expr], ...] = ()


def accesses(block: Block) -> list[Access]:
    """Return every access to memory in a block; a Call may write all that its views reach."""
    found = [_element(load, writes=False) for load in loads(block)]
    for statement in walk(block):
        found.extend(_statement_accesses(statement))
    return found


def _statement_accesses(s: Stmt) -> Iterator[Access]:
    if isinstance(s, Store):
        yield _element(s, writes=True)
    elif isinstance(s, Copy):
        yield _region(s.target, s.extents, writes=True)
        yield _region(s.source, s.extents, writes=False)
    elif isinstance(s, (Call, Launch)):
        for view in s.buffers:
            yield Access(view.buffer, (None,) * len(view.buffer.shape), True)


def _element(access: Load | Store, writes: bool) -> Access:
    if all(index.type.lanes == 1 for index in access.indices):
        return Access(access.buffer, access.indices, writes)
    spans: list[tuple[Var, Expr]] = []
    memo: dict[Expr, Expr | None] = {}

    def visit(node: Expr, args: list[Expr | None]) -> Expr | None:
        return _one_lane(node, args, spans)

    indices = tuple(fold_dag(index, memo, visit) for index in access.indices)
    return Access(access.buffer, indices, writes, tuple(spans))


def _one_lane(node: Expr, args: list[Expr | None], spans: list[tuple[Var, Expr]]) -> Expr | None:
    """Return a scalar that stands for any lane of an index, None where there is no simple one."""
    if node.type == INDEX and not isinstance(node, Broadcast):
        return node
    if isinstance(node, Const):
        return Const(node.value, Type(node.type.dtype))
    first, second = (*args, None, None)[:2]
    if isinstance(node, Broadcast):
        return first
    if isinstance(node, Ramp) and first is not None:
        spans.append((fresh("lane"), builder.index(node.lanes)))
        return builder.add(first, spans[-1][0])
    if isinstance(node, Binary) and first is not None and second is not None:
        return builder.binary(node.op, first, second)
    return None


def _region(view: View, extents: tuple[Expr, ...], writes: bool) -> Access:
    starts = view.indices or tuple(builder.index(0) for _ in extents)
    spans = tuple((fresh("region"), extent) for extent in extents)
    indices = tuple(builder.add(start, var) for start, (var, _) in zip(starts, spans, strict=True))
    return Access(view.buffer, indices, writes, spans)


def private_buffers(block: Block) -> set[Buffer]:
    """Return the buffers that a block allocates: each iteration has its own."""
    return {s.buffer for s in walk(block) if isinstance(s, Alloc)}


class Dependences:
    """The accesses of the body of a loop, and which of them meet in different iterations.

    `outer` says what is known around the loop. Buffers in `assume` are left out: the caller vouches
    that no two iterations meet in them.
    """

    def __init__(
        self, loop: For, assume: Collection[Buffer] = (), outer: Facts | None = None
    ) -> None:
        self.facts = outer if outer is not None else Facts()
        self.facts.learn((loop,))
        skipped = private_buffers(loop.body) | set(assume)
        found = [a for a in accesses(loop.body) if a.buffer not in skipped]
        written = {a.buffer for a in found if a.writes}
        self.accesses = [a for a in found if a.buffer in written]
        self.inner = {v for s in walk(loop.body) for v in bound_variables(s)}
        self.inner.add(loop.var)
        for carried in loop.carried:
            self.inner.add(carried.var)
        for access in self.accesses:
            for var, extent in access.spans:
                self.inner.add(var)
                self.facts.enter(var, extent)
        self._varies: dict[Expr, bool] = {}

    def pairs(self) -> Iterator[tuple[Access, Access]]:
        """Yield each write with each access to its buffer, itself included."""
        for i, a in enumerate(self.accesses):
            for b in self.accesses[i:]:
                if a.buffer is b.buffer and (a.writes or b.writes):
                    yield a, b

    def conflict(self, var: Var) -> tuple[Access, Access] | None:
        """Return two accesses that may meet in iterations with different `var`, or None."""
        for a, b in self.pairs():
            if not self.separated(a, b, var):
                return a, b
        return None

    def separated(self, a: Access, b: Access, var: Var) -> bool:
        """Tell whether two accesses are proved never to meet where `var` differs."""
        rows = zip(a.indices, b.indices, _steps(a.buffer), strict=True)
        return any(
            x is not None and y is not None and step != 0 and self._index_separates(x, y, var)
            for x, y, step in rows
        )

    def _index_separates(self, x: Expr, y: Expr, var: Var) -> bool:
        form_x, form_y = self.facts.form(x), self.facts.form(y)
        stride = abs(form_x.coefficient(var))
        if stride == 0 or form_x.coefficient(var) != form_y.coefficient(var):
            return False
        fixed_x, free_x = self._split(form_x.without(var))
        fixed_y, free_y = self._split(form_y.without(var))
        fixed = fixed_x.plus(fixed_y, -1)
        upper, lower = self.facts.upper, self.facts.lower
        high = upper(fixed).plus(upper(free_x)).plus(lower(free_y), -1)
        low = lower(fixed).plus(lower(free_x)).plus(upper(free_y), -1)
        if not (high.is_constant and low.is_constant):
            return False
        if high.constant == low.constant and high.constant % stride:
            return True
        return high.constant < stride and low.constant > -stride

    def _split(self, form: LinearForm) -> tuple[LinearForm, LinearForm]:
        """Split a form into what all iterations share and what may differ between them."""
        free = {atom: c for atom, c in form.terms.items() if self.varies(atom)}
        fixed = {atom: c for atom, c in form.terms.items() if atom not in free}
        return LinearForm(fixed, form.constant), LinearForm(free)

    def varies(self, expression: Expr) -> bool:
        """Tell whether an expression may differ between iterations of the loop."""

        def visit(node: Expr, args: list[bool]) -> bool:
            return isinstance(node, Load) or node in self.inner or any(args)

        return fold_dag(expression, self._varies, visit)


def _steps(memory: Buffer) -> tuple[int | Expr, ...]:
    return memory.strides or (1,) * len(memory.shape)


def describe(conflict: tuple[Access, Access]) -> str:
    """Return a phrase for a message."""
    a, b = conflict
    kinds = " and ".join("a write" if x.writes else "a read" for x in (a, b))
    return f"{kinds} of buffer {a.buffer.name} may touch one element in different iterations"
