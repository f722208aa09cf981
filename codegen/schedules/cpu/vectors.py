"""Carrying out the loops that a schedule has marked as vector loops.

    vector for k < n      becomes     for v < n / (f lanes)       f vectors in flight
                                      for v < rest / lanes        one vector
                                      the rest, masked

One vector at a time waits for the latency of each operation in turn. Several independent ones,
as many as the registers hold, keep the arithmetic units busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import INDEX, Block, Const, Expr, For, If, Let, LoopKind, Stmt, Store
from frame.codegen.loops.rewrites import vectorise
from frame.codegen.loops.traverse import all_expressions
from frame.core.targets import TargetDescription

_MOST_LANES = 64
_MOST_IN_FLIGHT = 4
_OVERCOMMIT = 2  # a value that waits in memory costs less than an arithmetic unit that waits


def vectorise_loops(
    body: Iterable[Stmt], lanes: int, target: TargetDescription | None = None
) -> Block:
    """Return a block with every `vector` loop rewritten to run `lanes` iterations at a time.

    With a target, innermost loops run up to four such vectors at a time, as far as its registers
    reach; those that reduce keep as many vectors of partial results. One lane means a scalar loop.
    """
    done: list[Stmt] = []
    for statement in body:
        done.extend(_rewritten(statement, lanes, target))
    return tuple(done)


def _rewritten(statement: Stmt, lanes: int, target: TargetDescription | None) -> Block:
    if isinstance(statement, If):
        then = vectorise_loops(statement.then, lanes, target)
        otherwise = vectorise_loops(statement.otherwise, lanes, target)
        return (replace(statement, then=then, otherwise=otherwise),)
    if not isinstance(statement, For):
        return (statement,)
    if statement.kind is LoopKind.VECTOR:
        count = 1 if target is None else in_flight(statement, lanes, target)
        return _vectorised(statement, lanes, count)
    return (replace(statement, body=vectorise_loops(statement.body, lanes, target)),)


def _vectorised(loop: For, lanes: int, count: int) -> Block:
    """Run `count` vectors at a time, then single ones, then the rest under a mask."""
    width = min(_MOST_LANES, lanes * count)
    if width == 1:
        return (replace(loop, kind=LoopKind.SERIAL),)
    if width <= lanes:
        return vectorise(loop, width)
    *main, rest = vectorise(loop, width, "scalar")
    if lanes == 1 or not isinstance(rest, For) or b.constant_value(b.rem(loop.extent, width)) == 0:
        return (*main, rest)
    return (*main, *vectorise(rest, lanes))


def in_flight(loop: For, lanes: int, target: TargetDescription) -> int:
    """Return how many vectors of `lanes` iterations a loop of plain statements runs at a time."""
    if not all(isinstance(statement, (Let, Store)) for statement in loop.body):
        return 1
    space = _OVERCOMMIT * target.vector_registers * target.vector_bits // 8
    count = min(_MOST_IN_FLIGHT, space // max(1, lanes * live_bytes(loop)))
    extent = b.constant_value(loop.extent)
    if isinstance(extent, int):
        count = min(count, extent // lanes)
    return 1 << max(0, count.bit_length() - 1)


def live_bytes(loop: For) -> int:
    """Return the most bytes that one iteration holds in registers at a time, indices left out."""
    named = {s.var: s.value for s in loop.body if isinstance(s, Let)}
    order = [node for node in all_expressions(loop.body) if node not in named]
    uses = [{named.get(arg, arg) for arg in node.args} for node in order]  # type: ignore[call-overload]
    last = {used: place for place, found in enumerate(uses) for used in found}
    live = peak = sum(carried.var.type.dtype.itemsize for carried in loop.carried)
    for place, (node, found) in enumerate(zip(order, uses, strict=True)):
        live -= sum(_size(used) for used in found if last[used] == place)
        live += _size(node) if node in last else 0
        peak = max(peak, live)
    return peak


def _size(node: Expr) -> int:
    return 0 if isinstance(node, Const) or node.type == INDEX else node.type.dtype.itemsize


def picked(body: b.Body, vectors: Sequence[Expr], places: Sequence[int]) -> Expr:
    """Return the lanes at some places of the concatenation of vectors."""
    lanes = vectors[0].type.lanes
    if lanes == 1:
        return vectors[places[0]]
    first, *others = sorted({place // lanes for place in places})
    found = vectors[first]
    kept = [place % lanes if place // lanes == first else 0 for place in places]
    for number in others or [first]:
        # A lane whose vector comes later holds anything until then.
        order = [
            lanes + place % lanes if place // lanes == number else kept[lane]
            for lane, place in enumerate(places)
        ]
        found = body.let("p", b.shuffle(found, vectors[number], order))
        kept = list(range(lanes))
    return found
