"""stage: copy a window of a buffer into near memory before a loop that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.affine import Facts, variables
from frame.codegen.loops.dependence import accesses
from frame.codegen.loops.ir import Alloc, Block, Buffer, Expr, For, Load, LoopKind, Scope, Stmt
from frame.codegen.loops.rewrites.common import ScheduleError, require
from frame.codegen.loops.rewrites.unroll import unroll
from frame.codegen.loops.traverse import (
    Args,
    Mapper,
    bound_variables,
    loads,
    rebuild,
    stem_of,
    walk,
)


def stage(
    loop: For,
    memory: Buffer,
    starts: Sequence[Expr | int],
    extents: Sequence[int],
    scope: Scope = Scope.LOCAL,
    *,
    facts: Facts | None = None,
) -> Block:
    """Copy the window `starts .. starts + extents - 1` of a buffer and let a loop read the copy.

    `facts` says what is known around the loop (outer loops). The part of the window that is not
    proved to lie inside the buffer is copied under a mask. A copy in registers is unrolled, so it
    needs reads with indices that become constant.

    Raises:
        ScheduleError: the loop writes the buffer, reads it in a way that is not one scalar element,
            or a read is not proved to lie in the window.
    """
    if scope not in (Scope.LOCAL, Scope.REGISTER):
        raise ScheduleError(f"stage: expected the scope local or register, received {scope}")
    facts = facts if facts is not None else Facts()
    facts.learn((loop,))
    origin = tuple(b.as_index(start) for start in starts)
    _check(loop, memory, origin, extents, facts)
    near = b.fresh_buffer(f"{stem_of(memory.name)}_near", memory.dtype, tuple(extents), scope)
    (staged,) = _Redirect(memory, near, origin).block((loop,))
    return (Alloc(near), *_fill(memory, near, origin, facts), staged)


def _check(
    loop: For, memory: Buffer, starts: Sequence[Expr], extents: Sequence[int], facts: Facts
) -> None:
    name, rank = memory.name, len(memory.shape)
    if len(starts) != rank or len(extents) != rank or min(extents, default=1) < 1:
        raise ScheduleError(
            f"stage: {name} has rank {rank}, received {len(starts)} starts and extents {extents}"
        )
    inside = {var for s in walk((loop,)) for var in bound_variables(s)}
    require(not variables(starts) & inside, loop, f"can't stage {name}: the window moves inside it")
    touched = [a for a in accesses((loop,)) if a.buffer is memory]
    require(not any(a.writes for a in touched), loop, f"can't stage {name}: it is written")
    for read in loads((loop,)):
        if read.buffer is memory:
            _check_read(loop, read, starts, extents, facts)


def _check_read(
    loop: For, read: Load, starts: Sequence[Expr], extents: Sequence[int], facts: Facts
) -> None:
    name = read.buffer.name
    require(read.type.lanes == 1, loop, f"can't stage {name}: a read of it is a vector")
    for axis, (index, start) in enumerate(zip(read.indices, starts, strict=True)):
        low, high = facts.difference(index, start)
        inside = low is not None and low >= 0 and high is not None and high < extents[axis]
        reason = f"can't stage {name}: a read spans {low} .. {high} of a window of {extents[axis]}"
        require(inside, loop, f"{reason} on axis {axis}")


class _Redirect(Mapper):
    """Reads of one buffer become reads of the copy."""

    def __init__(self, memory: Buffer, near: Buffer, starts: Sequence[Expr]) -> None:
        super().__init__()
        self.far, self.near, self.starts = memory, near, starts

    def node(self, expression: Expr, args: Args) -> Expr:
        """Return the node on new operands, a read of the copy for a read of the buffer."""
        if not isinstance(expression, Load) or expression.buffer is not self.far:
            return rebuild(expression, args)
        rank = len(self.starts)
        places = [b.sub(index, s) for index, s in zip(args[:rank], self.starts, strict=True)]
        return b.load(self.near, places, args[rank] if len(args) > rank else None)


def _fill(memory: Buffer, near: Buffer, starts: Sequence[Expr], facts: Facts) -> Block:
    """Return the loops that copy the window."""
    body = b.Body()
    _fill_axis(body, memory, near, starts, facts, [])
    block = body.block()
    return _unrolled(block) if near.scope is Scope.REGISTER else block


def _fill_axis(
    body: b.Body,
    memory: Buffer,
    near: Buffer,
    starts: Sequence[Expr],
    facts: Facts,
    places: list[Expr],
) -> None:
    axis = len(places)
    if axis == len(starts):
        far = [b.add(start, place) for start, place in zip(starts, places, strict=True)]
        body.store(near, places, b.load(memory, far, _guard(memory, near, starts, far, facts)))
        return
    extent = near.shape[axis]
    with body.loop(extent, "w") as var:
        _fill_axis(body, memory, near, starts, facts, [*places, var])


def _guard(
    memory: Buffer, near: Buffer, starts: Sequence[Expr], far: Sequence[Expr], facts: Facts
) -> Expr | None:
    """Return the mask that keeps a copied window inside its buffer, None where it is proved."""
    mask: Expr | None = None
    for start, place, extent, window in zip(starts, far, memory.shape, near.shape, strict=True):
        end = b.as_index(extent)
        last = b.add(start, b.sub(b.as_index(window), 1))
        conditions = []
        if not facts.is_natural(start):
            conditions.append(b.ge(place, 0))
        high = facts.difference(last, end)[1]
        if high is None or high >= 0:
            conditions.append(b.lt(place, end))
        for condition in conditions:
            mask = condition if mask is None else b.and_(mask, condition)
    return mask


def _unrolled(block: Block) -> Block:
    result: list[Stmt] = []
    for statement in block:
        if isinstance(statement, For):
            flat = For(LoopKind.UNROLL, statement.var, statement.extent, _unrolled(statement.body))
            result.extend(unroll(flat))
        else:
            result.append(statement)
    return tuple(result)
