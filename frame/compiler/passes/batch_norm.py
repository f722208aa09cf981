"""Folds batch_norm_infer into the weights of the convolution or product before it.

    (w * x + bias - mean) * scale + beta  =  (w * scale) * x + ((bias - mean) * scale + beta)

with scale = gamma / sqrt(variance + eps), one number a channel. The new weights depend on what is
fixed for the model alone, so they are computed in the load program.
"""

from __future__ import annotations

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import begin, constant_for_a_model
from frame.core.dataclass import dataclass
from frame.core.shapes import Size, numel
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value
from frame.ops.registry import create_node


@dataclass(frozen=True, slots=True)
class _Match:
    """A normalisation, the contraction before it, and the bias that is added in between."""

    norm: Node
    contraction: Node
    bias: Value | None


def fold_batch_norms(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with every batch_norm_infer folded that can be."""
    if not any(node.op == "batch_norm_infer" for node in graph.nodes):
        return graph
    fixed = constant_for_a_model(graph)
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            match = _match(graph, node, fixed)
            if match is None:
                rewriter.copy(node)
                continue
            context.count("batch norm folded")
            begin(rewriter, node)
            rewriter.replace(node.results[0], _build(rewriter, match))
        return rewriter.finish()


def _match(graph: Graph, node: Node, fixed: set[Value]) -> _Match | None:
    if node.op != "batch_norm_infer" or not all(v in fixed for v in node.operands[1:]):
        return None
    before, bias = _only_for(graph, node, 0), None
    if before is not None and before.op == "add":
        position = next((i for i, v in enumerate(before.operands) if v in fixed), None)
        if position is None:
            return None
        bias = before.operands[position]
        before = _only_for(graph, before, 1 - position)
    if before is None or not _has_fixed_weights(before, fixed):
        return None
    channels = node.operands[1].shape[0]
    if bias is not None and not _is_per_channel(bias, channels, node.operands[0].rank):
        return None
    return _Match(node, before, bias)


def _only_for(graph: Graph, node: Node, position: int) -> Node | None:
    """Return the node that makes an operand, if nothing else reads what it makes."""
    value = node.operands[position]
    alone = len(graph.uses.get(value, ())) == 1 and value not in graph.returned
    return value.node if alone and value.type == node.results[0].type else None


def _has_fixed_weights(node: Node, fixed: set[Value]) -> bool:
    if node.op == "conv2d":
        return node.operands[1] in fixed
    plain = node.op == "matmul" and all(operand.rank == 2 for operand in node.operands)
    return plain and node.operands[1] in fixed


def _is_per_channel(bias: Value, channels: Size, rank: int) -> bool:
    """Whether a bias has one number a channel, along axis 1 of the result."""
    shape = (1,) * (rank - bias.rank) + bias.shape
    return shape == (1, channels, *(1,) * (rank - 2)) or numel(shape) == 1


def _build(rewriter: Rewriter, match: _Match) -> Value:
    x = rewriter[match.contraction.operands[0]]
    weights = rewriter[match.contraction.operands[1]]
    gamma, beta, mean, variance = (rewriter[v] for v in match.norm.operands[1:])
    scale = ops.div(gamma, ops.sqrt(ops.add(variance, match.norm.attributes["eps"])))
    shift = mean
    if match.bias is not None:
        bias = rewriter[match.bias]
        flat = ops.reshape(bias, (numel(bias.shape),))
        shift = ops.sub(mean, flat)
    offset = ops.sub(beta, ops.mul(shift, scale))
    scaled = ops.mul(weights, _along_outputs(scale, match.contraction))
    node = match.contraction
    begin(rewriter, node)  # the product keeps its own place in the model, the sum that of the norm
    (product,) = create_node(node.op, (x, scaled), node.attributes)
    begin(rewriter, match.norm)
    return ops.add(product, ops.reshape(offset, (*offset.shape, *(1,) * (product.rank - 2))))


def _along_outputs(scale: Value, contraction: Node) -> Value:
    """Reshape the scale so that it meets the output channels of the weights."""
    rank = contraction.operands[1].rank
    last = contraction.op == "matmul" and not contraction.attributes["transpose_b"]
    return scale if last else ops.reshape(scale, (*scale.shape, *(1,) * (rank - 1)))
