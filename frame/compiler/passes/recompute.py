"""Copies of forward groups in the backward part: the mechanism of rematerialisation."""

from __future__ import annotations

from collections.abc import Collection

from frame.compiler.passes.forward import Forward
from frame.compiler.passes.operator_fusion import root_of
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value


def recomputed(forward: Forward, chosen: Collection[Value]) -> Graph:
    """Return the graph whose backward part computes the chosen roots again.

    A copy stands right before its first reader and is there for all later ones. What the graph
    returns is in memory anyway and is read as it is.
    """
    again = frozenset(chosen) - forward.returned
    if not again:
        return forward.graph
    done: set[Node] = set()
    with Rewriter(forward.graph) as rewriter:
        for node in forward.nodes:
            rewriter.copy(node)
        for node in forward.backward:
            for source in _missing(forward, node, again, done):
                _copy(rewriter, source, again)
                done.add(source)
            rewriter.copy(node)
        return rewriter.finish()


def _missing(
    forward: Forward, reader: Node, again: Collection[Value], done: Collection[Node]
) -> list[Node]:
    """Return the nodes to copy before a reader, in order."""
    pending, found = list(reader.operands), set()
    while pending:
        value = pending.pop()
        node = value.node
        if node is None or node in done or node in found or root_of(value) not in again:
            continue
        found.add(node)
        pending.extend(node.operands)
    return sorted(found, key=forward.position.__getitem__)


def _copy(rewriter: Rewriter, node: Node, again: Collection[Value]) -> None:
    """Append a copy of a node, and let every later reader read it where that was chosen."""
    copy = node.on(tuple(rewriter[operand] for operand in node.operands), always=True)
    rewriter.append(copy)
    for old, new in zip(node.results, copy.results, strict=True):
        if root_of(old) in again:
            rewriter.replace(old, new)
