"""Which nodes of a cut graph wait for its last piece: those that do no more than update state.

A state can be updated where it is by the last piece alone: until then a later one may still refuse
an index or lack memory, and nothing must have changed. An optimizer's arithmetic waits for that
piece then, beside the gradient that it reads, instead of leaving each new value beside the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from frame.core.devices import Device
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

_SAME_SIZE = frozenset({"expand", "reshape"})  # views whose operands are no larger than they


def late_nodes(
    graph: Graph, devices: Mapping[Node, Device], donating: Collection[Device]
) -> frozenset[Node]:
    """Return nodes that only updates depend on, and that need not come earlier to save memory.

    A chain of elementwise nodes may wait if it reads one large computed value at most: waiting,
    that value lives as long as the chain's result would have. Nodes on devices other than those
    `donating`, which write state in place, don't wait.
    """
    found = _candidates(graph, devices, donating)
    settled = _settled(graph)
    while wide := _wide(graph, found, settled):
        found = _without(graph, found, wide)
    return frozenset(found)


def _elementwise(node: Node) -> bool:
    return node.op in _SAME_SIZE or Trait.ELEMENTWISE in lookup(node.op).traits


def _candidates(
    graph: Graph, devices: Mapping[Node, Device], donating: Collection[Device]
) -> set[Node]:
    """Return the nodes that make the value of an update, and elementwise ones before them."""
    updated = {update.value for update in graph.updates}
    outputs = set(graph.outputs)
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        read = [user for result in node.results for user, _ in graph.uses.get(result, ())]
        made = not updated.isdisjoint(node.results)
        if (
            node.op != "constant"
            and devices[node] in donating
            and outputs.isdisjoint(node.results)
            and all(user in found for user in read)
            and (made or (read and _elementwise(node)))
        ):
            found.add(node)
    return found


def _settled(graph: Graph) -> set[Value]:
    """Return the values that inputs and constants alone decide, element by element: they cost no
    memory before they are needed."""
    found = set(graph.input_values)
    for node in graph.nodes:
        if node.op == "constant" or (_elementwise(node) and found.issuperset(node.operands)):
            found.update(node.results)
    return found


def _wide(graph: Graph, nodes: set[Node], settled: set[Value]) -> set[Node]:
    """Return the elementwise nodes that would keep more than one large value waiting."""
    reads: dict[Node, frozenset[Value]] = {}
    for node in graph.nodes:
        if node in nodes:
            reads[node] = frozenset(_waiting(node, reads, settled))
    return {node for node, values in reads.items() if len(values) > 1 and _elementwise(node)}


def _waiting(
    reader: Node, reads: Mapping[Node, frozenset[Value]], settled: set[Value]
) -> Iterator[Value]:
    for operand in reader.operands:
        node = operand.node
        if node is not None and node in reads:
            yield from reads[node]
        elif operand not in settled and operand.type.shape:
            yield operand


def _without(graph: Graph, nodes: set[Node], dropped: set[Node]) -> set[Node]:
    """Return `nodes` without some of them, and without those that these depend on."""
    kept = nodes - dropped
    for node in reversed(graph.nodes):
        users = (user for result in node.results for user, _ in graph.uses.get(result, ()))
        if node in kept and any(user not in kept for user in users):
            kept.discard(node)
    return kept
