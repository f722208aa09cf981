"""What operator_fusion and sibling_fusion share: the record of a growing group, and its limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from frame.core.shapes import Dim, Shape, Size
from frame.ir.graph import Node, Value

ELEMENTWISE, REDUCTION = "elementwise", "reduction"

VIEWS = frozenset({"transpose", "slice", "flip", "pad"})
"""Ops whose results are elements of the operand at other indices."""

MOST_NODES = 96
"""Nodes of one group at most. Past this many a loop is bound by arithmetic, so another pass over
memory costs little, while the time to compile a kernel grows faster than its length."""

_SYMBOL = 1 << 10  # a symbolic size counts as this many


@dataclass(slots=True, eq=False)
class Group:
    """A group while it grows.

    `first` and `last` are the positions of its nodes in the graph, `reads` the values that it
    reads once free nodes are copied in; `domain` and `reduced` are explained in operator_fusion.
    """

    anchor: str
    domain: Shape
    first: int
    last: int
    nodes: list[Node] = field(default_factory=list)
    reduced: tuple[int, ...] | None = None
    reads: dict[Value, None] = field(default_factory=dict)


def magnitude(shape: Iterable[Size]) -> int:
    """Return about how many elements a shape has."""
    total = 1
    for size in shape:
        total *= (
            size.evaluate(dict.fromkeys(size.symbols, _SYMBOL)) if isinstance(size, Dim) else size
        )
    return total
