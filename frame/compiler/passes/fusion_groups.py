"""What operator_fusion and sibling_fusion share: the record of a growing group, and its limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from frame.core.shapes import Dim, Shape, Size
from frame.ir.graph import Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

ELEMENTWISE, REDUCTION, ATTENTION = "elementwise", "reduction", "attention"

VIEWS = frozenset({"transpose", "slice", "flip", "pad"})
"""Ops whose results are elements of the operand at other indices."""

MOST_NODES = 96
"""Nodes of one group at most. Past this many a loop is bound by arithmetic, so another pass over
memory costs little, while the time to compile a kernel grows faster than its length."""

MOST_WEIGHT = MOST_NODES
"""What the nodes of a group weigh at most: its kernel is one block of code, which takes LLVM time
that grows faster than the block."""

_EXPENSIVE = 8
"""What a node weighs that becomes dozens of instructions, such as a sine; others weigh 1. A chain
of 200 sines and 200 products with its gradient took LLVM 8.0 s in kernels of 96 nodes, 2.5 s in
kernels of 12. Ten such nodes take far longer than the pass over memory that ends a kernel."""

_SYMBOL = 1 << 10  # a symbolic size counts as this many


@dataclass(slots=True, eq=False)
class Group:
    """A group while it grows.

    `first` and `last` are the positions of its nodes in the graph, `reads` the values that it
    reads once free nodes are copied in, `weight` the sum over its nodes; `domain` and `reduced`
    are explained in operator_fusion.
    """

    anchor: str
    domain: Shape
    first: int
    last: int
    nodes: list[Node] = field(default_factory=list)
    reduced: tuple[int, ...] | None = None
    reads: dict[Value, None] = field(default_factory=dict)
    weight: int = 0

    def has_room(self, weight: int) -> bool:
        """Whether nodes of a weight may join."""
        return self.weight + weight <= MOST_WEIGHT


def weight_of(node: Node) -> int:
    """Return what a node weighs in a group."""
    return _EXPENSIVE if Trait.EXPENSIVE in lookup(node.op).traits else 1


def magnitude(shape: Iterable[Size], symbol: int = _SYMBOL) -> int:
    """Return about how many elements a shape has: a symbol counts as `symbol`."""
    total = 1
    for size in shape:
        total *= (
            size.evaluate(dict.fromkeys(size.symbols, symbol)) if isinstance(size, Dim) else size
        )
    return total
