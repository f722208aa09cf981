"""unroll: write the iterations of a loop one after the other."""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Carried, Const, Expr, For, Let, LoopKind, Stmt, Var
from frame.codegen.loops.rewrites.common import MAX_COPIES, require
from frame.codegen.loops.rewrites.tile import tile
from frame.codegen.loops.traverse import Substitution


def unroll(loop: For, factor: int | None = None) -> Block:
    """Return the iterations of a loop in a row, as constants of its variable.

    With a `factor`, the loop is split and `factor` iterations at a time are written out; what is
    left of the extent runs in a scalar loop.

    Raises:
        ScheduleError: a parallel loop, an extent that is not constant (without a factor) or too
            many copies.
    """
    require(loop.kind is not LoopKind.PARALLEL, loop, "a parallel loop can't be unrolled")
    if factor is not None:
        return _unroll_by(loop, factor)
    count = b.constant_value(loop.extent)
    require(isinstance(count, int), loop, "can't be unrolled: its extent is not constant")
    require(
        int(count or 0) <= MAX_COPIES, loop, f"can't be unrolled: {count} > {MAX_COPIES} copies"
    )
    statements: list[Stmt] = []
    values: list[Expr] = [c.init for c in loop.carried]
    for trip in range(max(0, int(count or 0))):
        body, values = iteration(loop, b.index(trip), values)
        statements.extend(body)
    results = zip(loop.carried, values, strict=True)
    return (*statements, *(Let(c.result, value) for c, value in results))


def _unroll_by(loop: For, factor: int) -> Block:
    outer, *rest = tile(loop, factor)
    if not isinstance(outer, For):
        return (outer, *rest)
    inner = outer.body[0]
    require(isinstance(inner, For), loop, "can't be unrolled: it was split into something else")
    body = unroll(inner)  # type: ignore[arg-type]
    return (For(outer.kind, outer.var, outer.extent, body, outer.carried), *rest)


def iteration(loop: For, place: Expr, values: list[Expr]) -> tuple[Block, list[Expr]]:
    """Return the body of a loop at one place, from carried values to the next ones.

    Carried values that are neither variables nor constants are bound by a Let, so that a chain of
    iterations stays linear in size.
    """
    lets: list[Stmt] = []
    start: dict[Var, Expr] = {loop.var: place}
    for carried, value in zip(loop.carried, values, strict=True):
        if not isinstance(value, (Var, Const)):
            statement, value = b.let(carried.var.name.split(".")[0], value)
            lets.append(statement)
        start[carried.var] = value
    copy = Substitution(start, refresh=True)
    body = copy.block(loop.body)
    return (*lets, *body), [copy.expression(c.next) for c in loop.carried]


def once(loop: For) -> Block:
    """Return a loop of one trip as its body."""
    values: dict[Var, Expr] = {loop.var: b.index(0)}
    values |= {c.var: c.init for c in loop.carried}
    plain = Substitution(values)
    body = plain.block(loop.body)
    return (*body, *(Let(c.result, plain.expression(c.next)) for c in loop.carried))


def chained(carried: tuple[Carried, ...], values: list[Expr]) -> Block:
    """Return Lets that give the results of a loop that runs no trip."""
    return tuple(Let(c.result, value) for c, value in zip(carried, values, strict=True))
