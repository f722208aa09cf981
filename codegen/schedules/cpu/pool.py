"""Pooling groups: a sweep over the windows, like an elementwise one.

parallel chunk                    rows of the result
vector for column in row
for element in window         unrolled while windows are small
"""

from __future__ import annotations

import numpy as np

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.access import INDEX_RULES, Reader
from frame.codegen.schedules.cpu import elementwise
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core.dataclass import dataclass
from frame.core.dtypes import int64
from frame.core.shapes import Size
from frame.ir.graph import Node

_UNROLLED = 16  # elements of a window that is written out


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one axis: element k of position o is element `o * stride + k - low`."""

    size: Size
    positions: Size
    stride: int
    low: int

    def place(self, position: Expr, k: Expr) -> Expr:
        """Return which element of the axis an element of a window is."""
        return b.sub(b.add(b.mul(position, self.stride), k), self.low)

    def inside(self, reader: Reader, place: Expr, k: Expr) -> Expr:
        """Return whether a place is inside of the axis; constant where it always is."""
        known = b.constant_value(k)
        inside: Expr = b.boolean(True)
        if known is None or known < self.low:
            inside = b.ge(place, 0)
        if known is None or self._reaches_end(int(known)):
            inside = b.and_(inside, b.lt(place, reader.group.extent(self.size)))
        return inside

    def _reaches_end(self, k: int) -> bool:
        if not isinstance(self.size, int) or not isinstance(self.positions, int):
            return True
        return (self.positions - 1) * self.stride + k - self.low >= self.size


def _max_pool(reader: Reader, node: Node, index: Index) -> tuple[Expr, Expr]:
    """The largest element of a window and its place in the plane.

    The first element inside of the plane is taken, then each greater one; a NaN is taken over any
    number, and nothing over a NaN.
    """
    (x,) = node.operands
    dtype = compute_dtype(x.dtype)
    if reader.trace is not None:
        reader.trace.opaque.extend(index[2:])
        found = reader.load(x, (*index[:2], b.fresh("row"), b.fresh("column")))
        return found, b.fresh("position")
    start = (b.const(-np.inf, dtype), b.const(-1, int64))
    height, width = node.attributes["kernel"]
    if height * width <= _UNROLLED:
        best: tuple[Expr, Expr] = start
        for i in range(height):
            for j in range(width):
                best = _better(reader, node, index, (b.index(i), b.index(j)), best)
        return best
    body = reader.body
    with body.fold(b.index(height * width), start, "k") as folding:
        k = folding.index
        place = (b.div(k, width), b.rem(k, width))
        value, position = folding.values
        folding.next = _better(reader.inside(), node, index, place, (value, position))
    return folding.results[0], folding.results[1]


def _better(
    reader: Reader, node: Node, index: Index, k: tuple[Expr, Expr], best: tuple[Expr, Expr]
) -> tuple[Expr, Expr]:
    """Return the better of the best element so far and element `k` of the window."""
    (x,) = node.operands
    inside: Expr = b.boolean(True)
    places = []
    for axis, offset in zip((2, 3), k, strict=True):
        window = _window(node, axis)
        place = window.place(index[axis], offset)
        within = window.inside(reader, place, offset)
        if b.constant_value(within) is None:
            last = b.sub(reader.group.extent(window.size), 1)
            place = b.max_(b.min_(place, last), 0)
        inside = b.and_(inside, within)
        places.append(reader.body.let("place", place))
    value = reader.body.let("value", reader.load(x, (*index[:2], *places)))
    position = b.add(b.mul(places[0], reader.group.extent(x.shape[3])), places[1])
    # Nothing is less than the value to begin with: only the place asks whether one was found.
    nan = b.and_(b.ne(value, value), b.eq(best[0], best[0]))
    wins = reader.body.let("wins", b.and_(b.or_(nan, b.gt(value, best[0])), inside))
    first = reader.body.let("first", b.and_(b.lt(best[1], 0), inside))
    return (
        reader.body.let("best", b.select(wins, value, best[0])),
        reader.body.let("at", b.select(b.or_(first, wins), position, best[1])),
    )


def _window(node: Node, axis: int) -> Window:
    top, _, left, _ = node.attributes["padding"]
    return Window(
        node.operands[0].shape[axis],
        node.results[0].shape[axis],
        node.attributes["strides"][axis - 2],
        (top, left)[axis - 2],
    )


INDEX_RULES["max_pool2d"] = _max_pool


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the one kernel of a pooling group."""
    return elementwise.lower(group)
