"""tile: split a loop into a loop of tiles and a loop inside a tile; reorder: exchange two loops."""

from __future__ import annotations

from collections.abc import Collection

from frame.codegen.loops import builder as b
from frame.codegen.loops.affine import variables
from frame.codegen.loops.dependence import Dependences, describe
from frame.codegen.loops.ir import (
    Block,
    Buffer,
    Carried,
    Expr,
    For,
    If,
    Let,
    LoopKind,
    Stmt,
    Var,
    fresh,
)
from frame.codegen.loops.rewrites.common import ScheduleError, require
from frame.codegen.loops.traverse import Substitution, has_load, stem_of

TAILS = ("scalar", "mask")


def tile(loop: For, factor: int, tail: str = "scalar") -> Block:
    """Split a loop by a factor: `for i in n` becomes `for t in n / factor: for u in factor`.

    What is left of the extent runs in a loop after it (`tail="scalar"`), or the last tile runs
    whole and a branch skips what lies beyond the end (`tail="mask"`). The order of the iterations
    stays, so this is legal for every serial loop; `mask` needs a loop without carried values.

    Raises:
        ScheduleError: a factor below 1, a parallel loop, or `mask` with carried values.
    """
    require(factor >= 1, loop, f"can't be split by {factor}")
    require(loop.kind is not LoopKind.PARALLEL, loop, "a parallel loop can't be split")
    if tail not in TAILS:
        raise ScheduleError(f"tile: expected a tail in {', '.join(TAILS)}, received {tail!r}")
    exact = b.constant_value(b.rem(loop.extent, factor)) == 0
    if tail == "mask" and not exact:
        return (_masked(loop, factor),)
    tiles = b.div(loop.extent, factor)
    between = [c.result if exact else _again(c.result) for c in loop.carried]
    main = _tiles(loop, tiles, factor, between)
    return (main,) if exact else (main, _rest(loop, b.mul(tiles, factor), between))


def _again(var: Var) -> Var:
    return fresh(stem_of(var.name), var.type)


def _names(loop: For) -> tuple[Var, Var]:
    stem = stem_of(loop.var.name)
    return fresh(f"{stem}_tile"), fresh(stem)


def _tiles(loop: For, tiles: Expr, factor: int, results: list[Var]) -> For:
    """Return the loop over whole tiles; carried values pass through both loops."""
    outer, inner = _names(loop)
    place = b.add(b.mul(outer, factor), inner)
    entering = [_again(c.var) for c in loop.carried]
    leaving = [_again(c.result) for c in loop.carried]
    body = Substitution({loop.var: place})
    statements = body.block(loop.body)
    inside = tuple(
        Carried(c.var, start, body.expression(c.next), end)
        for c, start, end in zip(loop.carried, entering, leaving, strict=True)
    )
    across = tuple(
        Carried(start, c.init, end, result)
        for c, start, end, result in zip(loop.carried, entering, leaving, results, strict=True)
    )
    nest = For(loop.kind, inner, b.index(factor), statements, inside)
    return For(LoopKind.SERIAL, outer, tiles, (nest,), across)


def _rest(loop: For, done: Expr, inits: list[Var]) -> For:
    """Return the loop over the iterations after the last whole tile."""
    var = _again(loop.var)
    names = {c.var: _again(c.var) for c in loop.carried}
    body = Substitution({loop.var: b.add(done, var), **names}, refresh=True)
    statements = body.block(loop.body)
    carried = tuple(
        Carried(names[c.var], init, body.expression(c.next), c.result)
        for c, init in zip(loop.carried, inits, strict=True)
    )
    return For(LoopKind.SERIAL, var, b.sub(loop.extent, done), statements, carried)


def _masked(loop: For, factor: int) -> For:
    require(not loop.carried, loop, "can't be split with a mask: it has carried values")
    outer, inner = _names(loop)
    place = b.add(b.mul(outer, factor), inner)
    body = Substitution({loop.var: place}).block(loop.body)
    guarded = If(b.lt(place, loop.extent), body)
    nest = For(loop.kind, inner, b.index(factor), (guarded,))
    return For(LoopKind.SERIAL, outer, b.ceil_div(loop.extent, b.index(factor)), (nest,))


def reorder(loop: For, *, assume: Collection[Buffer] = ()) -> Block:
    """Exchange a loop with the loop that is its body.

    Lets between the two loops move into the inner body. Legal when the inner extent does not depend
    on the outer variable, neither loop carries values, and no two accesses meet in iterations that
    would change their order.

    Raises:
        ScheduleError: the loops are not nested tightly, or one of the conditions fails.
    """
    *between, last = loop.body or (None,)
    if not isinstance(last, For) or not all(isinstance(s, Let) for s in between):
        require(False, loop, "can't be exchanged: its body is not one loop after Lets")
        return ()
    _check_exchange(loop, last, [s for s in between if s is not None])
    conflict = _crossing(loop, last, assume)
    if conflict is not None:
        require(False, loop, f"can't be exchanged with the loop inside it: {conflict}")
    inner = For(loop.kind, loop.var, loop.extent, (*between, *last.body))  # type: ignore[arg-type]
    return (For(last.kind, last.var, last.extent, (inner,)),)


def _check_exchange(loop: For, inner: For, between: list[Stmt]) -> None:
    parallel = LoopKind.PARALLEL in (loop.kind, inner.kind)
    require(not parallel, loop, "can't be exchanged: a parallel loop stays outermost")
    require(not loop.carried and not inner.carried, loop, "can't be exchanged: it carries values")
    bound = {loop.var, *(s.var for s in between if isinstance(s, Let))}
    free = not variables([inner.extent]) & bound
    require(free, loop, "can't be exchanged: the inner extent depends on it")
    reads = any(has_load(s.value) for s in between if isinstance(s, Let))
    require(not reads, loop, "can't be exchanged: a Let between the loops reads memory")


def _crossing(loop: For, inner: For, assume: Collection[Buffer]) -> str | None:
    """Describe two accesses that may meet where both loop variables differ."""
    dependences = Dependences(loop, assume)
    for a, c in dependences.pairs():
        if dependences.separated(a, c, loop.var) or dependences.separated(a, c, inner.var):
            continue
        return describe((a, c))
    return None
