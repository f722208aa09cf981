"""Layers over graphs and hypergraphs whose edges are known when the layer is declared.

Nodes are the rows of x [nodes, features]. Edge lists are stored in the declaration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count
from frame.ir.graph import Value
from frame.nn.checks import divides, layer, of_shape
from frame.nn.layers import Linear, finite, positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import param, xavier_uniform, zeros


def _indices(what: str, values: Sequence[int], size: int) -> tuple[int, ...]:
    if not isinstance(values, Iterable):
        raise InvalidArgumentError(f"{what} must be a sequence of integers, got {values!r}")
    found = tuple(values)
    for position, value in enumerate(found):
        if not is_count(value, 0) or value >= size:
            raise InvalidArgumentError(
                f"{what} must be integers from 0 to {size - 1}, got {value!r} at position "
                f"{position}"
            )
    return tuple(map(int, found))


def _edges(
    first: tuple[str, Sequence[int], int], second: tuple[str, Sequence[int], int], least: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, right = _indices(*first), _indices(*second)
    if len(left) != len(right) or len(left) < least:
        raise InvalidArgumentError(
            f"{first[0]} and {second[0]} must be of one length of at least {least}, got "
            f"{len(left)} and {len(right)}"
        )
    return left, right


def _counts(indices: Sequence[int], size: int) -> np.ndarray:
    return np.bincount(np.asarray(indices, np.int64), minlength=size).astype(np.float64)


def _inverse(counts: np.ndarray, power: float) -> np.ndarray:
    """Return counts ** -power, and 0 where nothing was counted."""
    return np.where(counts > 0, np.maximum(counts, 1.0) ** -power, 0.0)


def _column(values: np.ndarray, like: Value) -> Value:
    return ops.constant(values[:, None], like.dtype)


def _places(values: Sequence[int] | np.ndarray) -> Value:
    return ops.constant(np.asarray(values, np.int64))


# --- graph convolution ----------------------------------------------------------------------------


def _build_graph_conv(self: Scope, x: Value) -> Value:
    options = self.options
    nodes, sources, targets = (options[n] for n in ("nodes", "sources", "targets"))
    of_shape("GraphConv", x, nodes, options["in_features"])
    leaving, arriving = _counts(sources, nodes), _counts(targets, nodes)
    norm = _inverse(leaving[list(sources)] * arriving[list(targets)], 0.5)
    messages = ops.gather(self.linear(x), _places(sources), axis=0) * _column(norm, x)
    shape = (nodes, options["out_features"])
    y = ops.scatter_add(messages, _places(targets), shape=shape)
    return y + self.bias if options["bias"] else y


def _graph_options(
    nodes: int, in_features: int, out_features: int, sources: Sequence[int], targets: Sequence[int]
) -> dict[str, Any]:
    positive("nodes", nodes)
    left, right = _edges(("sources", sources, nodes), ("targets", targets, nodes), 1)
    return {
        "nodes": nodes,
        "in_features": positive("in_features", in_features),
        "out_features": positive("out_features", out_features),
        "sources": left,
        "targets": right,
    }


def GraphConv(
    nodes: int,
    in_features: int,
    out_features: int,
    sources: Sequence[int],
    targets: Sequence[int],
    bias: bool = False,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return graph convolution: [nodes, in_features] -> [nodes, out_features].

    Each edge carries linear(x)[source] / sqrt(edges that leave the source * edges that reach the
    target) to its target, where messages are summed. Loops from a node to itself count only where
    they are listed. Source: Kipf, Welling, arXiv 1609.02907.

    Args:
        nodes: how many nodes there are.
        in_features: features of x.
        out_features: features of the result.
        sources: the node that each edge leaves.
        targets: the node that each edge reaches.
        bias: whether a bias is added to the sums.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    options = _graph_options(nodes, in_features, out_features, sources, targets)
    specs = [param(out_features, zeros(), dtype=dtype, name="bias")] if bias else []
    children = {"linear": Linear(in_features, out_features, bias=False, dtype=dtype)}
    return layer("GraphConv", _build_graph_conv, {**options, "bias": bias}, specs, children, name)


# --- graph attention ------------------------------------------------------------------------------


def _largest_of_target(scores: Value, targets: Sequence[int]) -> Value:
    """Return for each edge the largest score [E, heads] among the edges that reach its target.

    Edges are sorted by their targets; maxima of 1, 2, 4, ... neighbours then meet at the last edge
    of each target, in as many steps as the largest number of edges has bits.
    """
    order = np.argsort(np.asarray(targets), kind="stable")
    ends = np.asarray(targets)[order]
    places = np.arange(len(ends))
    first = np.searchsorted(ends, ends)
    y, reach = ops.gather(scores, _places(order), axis=0), 1
    while reach <= int((places - first).max()):
        before = np.maximum(places - reach, first)
        y = ops.maximum(y, ops.gather(y, _places(before), axis=0))
        reach *= 2
    last = np.searchsorted(ends, np.asarray(targets), side="right") - 1
    return ops.gather(y, _places(last), axis=0)


def _edge_softmax(scores: Value, targets: Sequence[int], nodes: int, heads: int) -> Value:
    """Return the weights of the edges [E, heads], which add up to one at each target."""
    # Each target has a shift of its own: with one for all, those whose scores lie far below the
    # largest would lose all their weights to rounding.
    top = ops.stop_gradient(_largest_of_target(scores, targets))
    weights, places = ops.exp(scores - top), _places(targets)
    total = ops.scatter_add(weights, places, shape=(nodes, heads))
    return weights / ops.gather(total, places, axis=0)


def _build_gat(self: Scope, x: Value) -> Value:
    options: Mapping[str, Any] = self.options
    nodes, heads, width = (options[n] for n in ("nodes", "heads", "width"))
    of_shape("GATConv", x, nodes, options["in_features"])
    sources, targets = _places(options["sources"]), _places(options["targets"])
    h = ops.reshape(self.linear(x), (nodes, heads, width))
    leaving = ops.sum(h * self.attention_source, axes=(2,))
    arriving = ops.sum(h * self.attention_target, axes=(2,))
    scores = ops.gather(leaving, sources, axis=0) + ops.gather(arriving, targets, axis=0)
    scores = ops.leaky_relu(scores, slope=options["slope"])
    weights = _edge_softmax(scores, options["targets"], nodes, heads)
    edges = len(options["sources"])
    messages = ops.gather(h, sources, axis=0) * ops.reshape(weights, (edges, heads, 1))
    y = ops.scatter_add(messages, targets, shape=(nodes, heads, width))
    joined = ops.reshape(y, (nodes, heads * width))
    return joined + self.bias if options["bias"] else joined


def GATConv(
    nodes: int,
    in_features: int,
    out_features: int,
    sources: Sequence[int],
    targets: Sequence[int],
    heads: int = 1,
    slope: float = 0.2,
    bias: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return graph attention: [nodes, in_features] -> [nodes, out_features].

    An edge weighs softmax over the edges that reach its target of leaky_relu(a . h[source] +
    b . h[target]), h = linear(x). `heads` parts of the result have weights of their own, side by
    side. Source: Velickovic et al., arXiv 1710.10903.

    Args:
        nodes: how many nodes there are.
        in_features: features of x.
        out_features: features of the result, all heads together.
        sources: the node that each edge leaves.
        targets: the node that each edge reaches.
        heads: how many parts have weights of their own.
        slope: the slope of leaky_relu below zero.
        bias: whether a bias is added.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    options = _graph_options(nodes, in_features, out_features, sources, targets)
    width = divides("out_features", out_features, "heads", heads)
    specs = [
        param((heads, width), xavier_uniform(), dtype=dtype, name=f"attention_{end}")
        for end in ("source", "target")
    ]
    specs += [param(out_features, zeros(), dtype=dtype, name="bias")] if bias else []
    options |= {"heads": heads, "width": width, "slope": finite("slope", slope), "bias": bias}
    linear = Linear(in_features, out_features, bias=False, dtype=dtype, init=xavier_uniform())
    return layer("GATConv", _build_gat, options, specs, {"linear": linear}, name)


# --- hypergraph convolution -----------------------------------------------------------------------


def _build_hypergraph(self: Scope, x: Value) -> Value:
    options = self.options
    nodes, hyperedges, features = (options[n] for n in ("nodes", "hyperedges", "out_features"))
    of_shape("HypergraphConv", x, nodes, options["in_features"])
    members, groups = options["node_indices"], options["hyperedge_indices"]
    scale = _column(_inverse(_counts(members, nodes), 0.5), x)
    share = _column(_inverse(_counts(groups, hyperedges), 1.0), x)
    sent = ops.gather(self.linear(x) * scale, _places(members), axis=0)
    gathered = ops.scatter_add(sent, _places(groups), shape=(hyperedges, features)) * share
    back = ops.gather(gathered, _places(groups), axis=0)
    return ops.scatter_add(back, _places(members), shape=(nodes, features)) * scale


def HypergraphConv(
    nodes: int,
    hyperedges: int,
    in_features: int,
    out_features: int,
    node_indices: Sequence[int],
    hyperedge_indices: Sequence[int],
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return hypergraph convolution: Dv^-1/2 H De^-1 H^T Dv^-1/2 x W over [nodes, in_features].

    H is 1 where node_indices[i] belongs to hyperedge_indices[i]; a node without a hyperedge gives
    zeros. Source: Feng et al., "Hypergraph Neural Networks", AAAI 2019, arXiv 1809.09401.

    Args:
        nodes: how many nodes there are.
        hyperedges: how many hyperedges there are.
        in_features: features of x.
        out_features: features of the result.
        node_indices: the node of each membership.
        hyperedge_indices: the hyperedge of each membership; a pair may stand once only.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    positive("nodes", nodes), positive("hyperedges", hyperedges)
    first = ("node_indices", node_indices, nodes)
    members, groups = _edges(first, ("hyperedge_indices", hyperedge_indices, hyperedges), 0)
    pairs = list(zip(members, groups, strict=True))
    twice = next((pair for pair, count in Counter(pairs).items() if count > 1), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"node {twice[0]} belongs to hyperedge {twice[1]} twice: list a membership once"
        )
    options = {
        "nodes": nodes,
        "hyperedges": hyperedges,
        "in_features": positive("in_features", in_features),
        "out_features": positive("out_features", out_features),
        "node_indices": members,
        "hyperedge_indices": groups,
    }
    linear = Linear(in_features, out_features, bias=False, dtype=dtype)
    return layer("HypergraphConv", _build_hypergraph, options, (), {"linear": linear}, name)
