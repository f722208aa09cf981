"""The forward and the backward part of a training graph of groups, for rematerialisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frame.compiler.passes.operator_fusion import is_alias, root_of
from frame.core.forks import cached_property
from frame.core.shapes import known
from frame.ir.graph import Graph, Node, Value


def bytes_of(value: Value) -> int:
    """Return the bytes of a value without symbols."""
    return int(known(value.type.nbytes))


class Forward:
    """A training graph: its forward part ends with the last node that an output comes from.

    Attributes:
        graph: the graph.
        nodes: the forward part, in order.
        backward: all that follows: the backward walk and the updates.
        returned: the roots of what the graph returns.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        made = [value.node for value in graph.outputs if value.node is not None]
        end = max((self.position[node] for node in made), default=-1) + 1
        self.nodes: Sequence[Node] = graph.nodes[:end]
        self.backward: Sequence[Node] = graph.nodes[end:]
        self.returned = frozenset(map(root_of, graph.returned))

    @cached_property
    def _readers(self) -> dict[Value, list[Node]]:
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            if not is_alias(node):
                for root in dict.fromkeys(map(root_of, node.operands)):
                    found.setdefault(root, []).append(node)
        return found

    @cached_property
    def residuals(self) -> frozenset[Value]:
        """The roots that the forward part makes and the backward part reads."""
        reads = {root_of(operand) for node in self.backward for operand in node.operands}
        return frozenset(filter(self.is_made, reads - self.returned))

    def made(self) -> Iterator[tuple[Node, Value]]:
        """Yield each root that the forward part makes, with its node; constants are kept anyway."""
        for node in self.nodes:
            if not is_alias(node) and node.op != "constant":
                for result in node.results:
                    yield node, result

    def readers(self, root: Value) -> Sequence[Node]:
        """Return the forward nodes that read a root, through reshapes, too."""
        return self._readers.get(root, ())

    def is_made(self, root: Value) -> bool:
        """Whether a node of the forward part makes a root, and no constant."""
        node = root.node
        return node is not None and node.op != "constant" and self.position[node] < len(self.nodes)
