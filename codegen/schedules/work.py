"""How much work a group does: floating-point operations and bytes moved, for profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.shapes import Size, exact_divide
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup


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
    """Return the operations of one node; a multiply-add counts two, an element of the rest one.

    Ops that move elements count none. A scan counts its body once a step.
    """
    rule = _FLOPS.get(node.op)
    if rule is not None:
        return rule(node)
    traits = lookup(node.op).traits
    if Trait.VIEW in traits:
        return 0
    if Trait.ELEMENTWISE in traits:
        return product(node.results[0].shape)
    return product(max(node.operands or node.results, key=_elements).shape)


def _elements(value: Value) -> int:
    total = 1
    for size in value.shape:
        total *= size if isinstance(size, int) else 1 << 20
    return total


def _matmul(node: Node) -> Size:
    a, _ = node.operands
    depth = a.shape[-2] if node.attributes.get("transpose_a") else a.shape[-1]
    return product(node.results[0].shape) * depth * 2


def _convolution(node: Node) -> Size:
    """Each result adds up a window of the channels of its group; with zeros between the elements of
    x, each of these goes to as many results."""
    x, weight = node.operands[:2]
    if all(step == 1 for step in node.attributes.get("input_dilation", ())):
        return product(node.results[0].shape) * product(weight.shape[1:]) * 2
    outputs = exact_divide(weight.shape[0], node.attributes["groups"])
    return product(x.shape) * outputs * product(weight.shape[2:]) * 2


def _transposed(node: Node) -> Size:
    """Each element of x goes to a window of the channels of its group."""
    x, weight = node.operands[:2]
    return product(x.shape) * product(weight.shape[1:]) * 2


def _filter_gradient(node: Node) -> Size:
    """Each cotangent meets what the weights of its channel have met; the result is the weights'."""
    return product(node.operands[1].shape) * product(node.results[0].shape[1:]) * 2


def _fourier(node: Node) -> Size:
    """A transform of n real elements counts 5 n / 2 log2 n, half of a complex one."""
    x, result = node.operands[0].shape, node.results[0].shape
    inverse = node.op == "irfft" or bool(node.attributes.get("inverse"))
    rows, size = product(x[:-2] if inverse else x[:-1]), (result if inverse else x)[-1]
    return rows * round(2.5 * int(size) * math.log2(int(size)))  # type: ignore[arg-type]


def _scan(node: Node) -> Size:
    body: Graph = node.attributes["body"]
    total: Size = 0
    for inner in body.nodes:
        total = total + (group_work(inner).flops if inner.op == "group" else node_flops(inner))
    return total * node.attributes["length"]


def _nothing(node: Node) -> Size:
    return 0


_MOVES = ("constant", "concat", "gather", "iota", "relayout", "size", "stop_gradient")
_FLOPS: Mapping[str, Callable[[Node], Size]] = {
    "matmul": _matmul,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv_transpose2d": _transposed,
    "conv2d_filter_grad": _filter_gradient,
    "rfft": _fourier,
    "irfft": _fourier,
    "fourier_rows": _fourier,
    "scan": _scan,
    **dict.fromkeys(_MOVES, _nothing),
}
