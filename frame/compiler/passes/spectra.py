"""Spectra of which only the lowest frequencies are used: rfft makes, and irfft takes, those alone.

    rfft(x)[..., :m, :]                  =  rfft(x, count=m)[..., :m, :]
    irfft(z with zeros behind, n)        =  irfft(z, n)

A slice that reads no frequency above the first m, and zeros behind all others, are what a Fourier
operator is written with. Few frequencies cost a product with their part of the matrix of the
transform; many cost no more than all, so there is nothing to weigh here: rfft and irfft choose.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import BodyPass, begin, has_bodies, take_over
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value

_TRANSFORMS = frozenset({"rfft", "irfft"})


def narrow_spectra(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with transforms of the frequencies alone that are used."""
    if not any(node.op in _TRANSFORMS or has_bodies(node) for node in graph.nodes):
        return graph
    bodies = BodyPass(lambda body: narrow_spectra(body, context))
    counts = _counts(graph)
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            begin(rewriter, node)
            found = _narrowed(rewriter, node, counts)
            if found is None:
                take_over(rewriter, node, bodies)
                continue
            context.count("frequencies left out")
            rewriter.replace(node.results[0], found)
        return rewriter.finish()


def _narrowed(rewriter: Rewriter, node: Node, counts: Mapping[Node, int]) -> Value | None:
    if node in counts:
        return ops.rfft(rewriter[node.operands[0]], count=counts[node])
    kept = _before_zeros(node.operands[0]) if node.op == "irfft" else None
    return None if kept is None else ops.irfft(rewriter[kept], **node.attributes)


def _counts(graph: Graph) -> dict[Node, int]:
    """Return how many frequencies are used of each rfft that makes more."""
    found = {}
    for node in graph.nodes:
        used = _used(graph, node) if node.op == "rfft" else None
        if used is not None and used < node.results[0].shape[-2]:
            found[node] = used
    return found


def _used(graph: Graph, node: Node) -> int | None:
    """Return how many frequencies the readers of an rfft use; None where it is not known."""
    (z,) = node.results
    readers = [reader for reader, _ in graph.uses.get(z, ())]
    if z in graph.returned or not readers or any(reader.op != "slice" for reader in readers):
        return None
    stops = [reader.attributes["stops"][z.rank - 2] for reader in readers]
    if not all(isinstance(stop, int) for stop in stops):
        return None
    return max(1, *stops)


def _before_zeros(z: Value) -> Value | None:
    """Return the frequencies that stand before zeros in a spectrum."""
    node, axis = z.node, z.rank - 2
    if node is None:
        return None
    if node.op == "pad":
        elsewhere = any(high for k, high in enumerate(node.attributes["high"]) if k != axis)
        if elsewhere or any(node.attributes["low"]) or node.attributes["value"] != 0:
            return None
        kept = node.operands[0]
    elif node.op == "concat" and node.attributes["axis"] == axis and len(node.operands) == 2:
        kept, behind = node.operands
        if not _is_zero(behind):
            return None
    else:
        return None
    return kept if kept.shape[axis] != 0 else None


def _is_zero(value: Value) -> bool:
    node = value.node
    while node is not None and node.op in ("expand", "reshape", "cast"):
        node = node.operands[0].node
    return node is not None and node.op == "constant" and not np.any(node.attributes["value"].array)
