"""The structural hash of a graph."""

from __future__ import annotations

import hashlib
import weakref

from frame.ir.graph import Graph
from frame.ir.printer import GraphPrinter

# Graphs are immutable: a hash holds for good.
_hashes: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()


class _HashPrinter(GraphPrinter):
    """Prints a body as its hash: a body that stands in many nodes is looked at once."""

    def body(self, graph: Graph, indent: str) -> str:
        return f"graph #{structural_hash(graph)}"


def structural_hash(graph: Graph) -> str:
    """Return the SHA-256, in hexadecimal, of what a graph computes.

    It covers ops, order, attributes, constants, types with layouts and devices, roles, bodies and
    updates. Names, locations and origins don't enter. It takes time linear in the nodes, and is
    the same in every process.
    """
    found = _hashes.get(graph)
    if found is None:
        text = _HashPrinter(names=False).graph(graph)
        found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        _hashes[graph] = found
    return found
