"""How much work a group does: floating-point operations and bytes moved, for profiles."""

from __future__ import annotations

from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.shapes import Size
from frame.ir.graph import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of memory traffic of one run, possibly symbolic.

    `width` is the bytes of the widest floats computed with: half as many fit a vector of float64.
    """

    flops: Size = 0
    bytes: Size = 0
    width: int = 4


def group_work(group: Node) -> Work:
    """Return the work of a group: every operand and result moves once."""
    body: Graph = group.attributes["body"]
    flops: Size = 0
    for node in body.nodes:
        flops = flops + node_flops(node)
    moved: Size = 0
    for value in (*group.operands, *group.results):
        moved = moved + product(value.shape) * value.dtype.itemsize
    made = (result.dtype for node in body.nodes for result in node.results)
    width = max((dtype.itemsize for dtype in made if dtype.is_float), default=4)
    return Work(flops, moved, max(width, 4))


def node_flops(node: Node) -> Size:
    """Return the operations of one node; a multiply-add counts two, an element of the rest one."""
    rule = _FLOPS.get(node.op)
    if rule is not None:
        return rule(node)
    return product(max(node.operands or node.results, key=_rank_key).shape)


def _rank_key(value: Value) -> int:
    return sum(size if isinstance(size, int) else 1 << 20 for size in value.shape)


def _matmul(node: Node) -> Size:
    a, _ = node.operands
    depth = a.shape[-2] if node.attributes.get("transpose_a") else a.shape[-1]
    return product(node.results[0].shape) * depth * 2


def _conv2d(node: Node) -> Size:
    weight = node.operands[1]
    return product(node.results[0].shape) * product(weight.shape[1:]) * 2


def _filter_gradient(node: Node) -> Size:
    _, cotangent = node.operands
    return product(cotangent.shape) * product(node.results[0].shape[1:]) * 2


def _nothing(node: Node) -> Size:
    return 0


_FLOPS = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "conv2d_filter_grad": _filter_gradient,
    **dict.fromkeys(("constant", "reshape", "transpose", "slice", "expand", "concat"), _nothing),
}
