"""How work is cut into chunks: by shapes and costs alone, never by the number of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.group import Group
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core import config
from frame.core.dtypes import DType, float32
from frame.ir.graph import Graph, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

# One chunk should cost about this many simple vectorised element operations: some 10 microseconds,
# far above the cost of handing a chunk to a thread.
_CHUNK_COST = 1 << 17
_EXPENSIVE_COST = 16
_LEAST_STREAM = 1 << 23  # bytes of an output that goes past the caches, at least


def grain(body: Graph, least: int = 64) -> int:
    """Return how many elements of the domain make one chunk."""
    forced = config.get("FRAME_GRAIN")
    if forced:
        return int(forced)
    cost = 2 * (len(body.inputs) + len(body.outputs))
    for node in body.nodes:
        cost += _EXPENSIVE_COST if Trait.EXPENSIVE in lookup(node.op).traits else 1
    return max(least, _CHUNK_COST // cost // least * least)


def is_streamed(group: Group, output: Value) -> bool:
    """Whether an output goes past the caches: it is larger than they are, so that a later kernel
    finds none of it there, and each line would be read from memory before it is written."""
    size = product(output.shape)
    least = max(group.target.l3, _LEAST_STREAM)
    return isinstance(size, int) and size * output.dtype.itemsize > least


def lanes_of(group: Group) -> int:
    """Return the lanes of a vector of the widest element type that the group computes with."""
    widest = max((_width(value.dtype) for value in _values(group.body)), default=4)
    return max(1, group.target.vector_bits // (8 * widest))


def _width(dtype: DType) -> int:
    # Indices and counters are 64 bits wide in most groups but rarely limit the arithmetic.
    wide = compute_dtype(dtype)
    return wide.itemsize if wide.is_float else min(wide.itemsize, float32.itemsize)


def _values(body: Graph) -> Iterator[Value]:
    yield from body.input_values
    for node in body.nodes:
        yield from node.results


def unflatten(position: Expr, extents: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the row-major index of a flat position. An extent of 0 has no position at all."""
    index: list[Expr] = []
    for extent in reversed(extents[1:]):
        extent = b.max_(extent, 1)
        index.append(b.rem(position, extent))
        position = b.div(position, extent)
    return (position, *reversed(index)) if extents else ()


def flat_extent(extents: Iterable[Expr]) -> Expr:
    """Return the product of extents; 1 where there are none."""
    total: Expr = b.index(1)
    for extent in extents:
        total = b.mul(total, extent)
    return total


def remaining(total: Expr, start: Expr, size: Expr | int) -> Expr:
    """Return how many of `size` items from `start` on lie below `total`."""
    return b.min_(size, b.sub(total, start))
