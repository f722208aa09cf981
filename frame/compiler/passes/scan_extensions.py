"""Scans that return what another scan returns, and more.

The gradient of a scan reruns it with residuals as extra ys. The rerun can stand in for the scan
itself, so that the forward pass runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from frame.ir.graph import Graph, Node
from frame.ir.hashing import structural_hash


def stand_ins(graph: Graph, bodies: Callable[[Graph], Graph]) -> Mapping[Node, Node]:
    """Return, for each scan that another one extends, the one with the most results.

    Both read the same operands, and the results of the first are the first results of the other.
    `bodies` brings a body into the form that is compared.
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "scan":
            groups.setdefault(_key(node), []).append(node)
    return {
        node: max(longer, key=lambda other: len(other.results))
        for nodes in groups.values()
        for node in nodes
        if (longer := [other for other in nodes if _extends(other, node, bodies)])
    }


def _key(node: Node) -> Hashable:
    names = ("carries", "elements", "length", "reverse")
    return node.operands, tuple(node.attributes[name] for name in names)


def _extends(longer: Node, node: Node, bodies: Callable[[Graph], Graph]) -> bool:
    count = len(node.results)
    if len(longer.results) <= count:
        return False
    body, whole = bodies(node.attributes["body"]), bodies(longer.attributes["body"])
    names = whole.output_names[:count]
    first = replace(whole, outputs=whole.outputs[:count], output_names=names)
    return structural_hash(first) == structural_hash(body)
