"""Canonical forms of ops that move elements: what does nothing goes, two in a row become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.core.dtypes import DType, int64
from frame.core.shapes import Shape, numel
from frame.ir.graph import Node, Value
from frame.ops.registry import create_node

Results = Value | Sequence[Value] | None
Rule = Callable[[Node, PassContext], Results]


def _producer(value: Value, op: str) -> Node | None:
    node = value.node
    return node if node is not None and node.op == op else None


def _same_shape(node: Node, context: PassContext) -> Results:
    """A view whose result has the shape of its operand, for ops that then change nothing."""
    (x,) = node.operands
    return x if x.type == node.results[0].type else None


def _reshape_of(node: Node, context: PassContext) -> Results:
    inner = _producer(node.operands[0], "reshape")
    return None if inner is None else ops.reshape(inner.operands[0], node.attributes["shape"])


def _reshape_of_one(node: Node, context: PassContext) -> Results:
    """A reshape of a broadcast of one element is a broadcast of it."""
    inner = _producer(node.operands[0], "expand")
    if inner is None or numel(inner.operands[0].shape) != 1:
        return None
    return ops.expand(ops.reshape(inner.operands[0], ()), node.attributes["shape"])


def _expand_of(node: Node, context: PassContext) -> Results:
    inner = _producer(node.operands[0], "expand")
    return None if inner is None else ops.expand(inner.operands[0], node.attributes["shape"])


def _adds_leading_ones(old: Shape, new: Shape) -> bool:
    extra = len(new) - len(old)
    return extra >= 0 and new[extra:] == old and all(size == 1 for size in new[:extra])


def _expand_of_leading_ones(node: Node, context: PassContext) -> Results:
    """Broadcasting adds leading axes itself."""
    inner = _producer(node.operands[0], "reshape")
    if inner is None:
        return None
    (x,) = inner.operands
    wanted = _adds_leading_ones(x.shape, inner.attributes["shape"])
    return ops.expand(x, node.attributes["shape"]) if wanted else None


def _identity_permutation(node: Node, context: PassContext) -> Results:
    permutation = node.attributes["permutation"]
    return node.operands[0] if permutation == tuple(range(len(permutation))) else None


def _transpose_of(node: Node, context: PassContext) -> Results:
    inner = _producer(node.operands[0], "transpose")
    if inner is None:
        return None
    first, second = inner.attributes["permutation"], node.attributes["permutation"]
    return ops.transpose(inner.operands[0], tuple(first[axis] for axis in second))


def _transpose_of_ones(node: Node, context: PassContext) -> Results:
    """A transpose that keeps the order of all axes but those of size 1 is a reshape."""
    (x,), permutation = node.operands, node.attributes["permutation"]
    order = [axis for axis in permutation if x.shape[axis] != 1]
    return ops.reshape(x, node.results[0].shape) if order == sorted(order) else None


def _no_axes(node: Node, context: PassContext) -> Results:
    """A flip of no axis, or of axes of size 1 alone."""
    (x,) = node.operands
    return x if all(x.shape[axis] == 1 for axis in node.attributes["axes"]) else None


def _whole_slice(node: Node, context: PassContext) -> Results:
    (x,), steps = node.operands, node.attributes["steps"]
    same = x.shape == node.results[0].shape and all(step == 1 for step in steps)
    return x if same else None


def _no_padding(node: Node, context: PassContext) -> Results:
    widths = (*node.attributes["low"], *node.attributes["high"])
    return node.operands[0] if not any(widths) else None


def _only_part(node: Node, context: PassContext) -> Results:
    return node.operands[0] if len(node.operands) == 1 else None


def widens(narrow: DType, wide: DType) -> bool:
    """Tell whether every value of one dtype is a value of another."""
    return wide.name in _WIDER.get(narrow.name, ())


_WIDER: Mapping[str, tuple[str, ...]] = {
    "bfloat16": ("float32", "float64"),
    "float16": ("float32", "float64"),
    "float32": ("float64",),
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64"),
    "uint16": ("uint32", "uint64", "int32", "int64"),
    "uint32": ("uint64", "int64"),
}


def _cast_of(node: Node, context: PassContext) -> Results:
    """A cast of a cast that lost nothing is a cast of what that began with."""
    inner = _producer(node.operands[0], "cast")
    if inner is None or not widens(inner.operands[0].dtype, inner.results[0].dtype):
        return None
    return ops.cast(inner.operands[0], node.attributes["dtype"])


def _transposes_matrix(value: Value) -> bool:
    """Whether a value is a transpose that swaps the last two axes and leaves the others."""
    inner = _producer(value, "transpose")
    if inner is None or value.rank < 2:
        return False
    rank = value.rank
    return bool(inner.attributes["permutation"] == (*range(rank - 2), rank - 1, rank - 2))


def _matmul_of_transpose(node: Node, context: PassContext) -> Results:
    """Matmul reads a transposed operand by itself."""
    flags = dict(node.attributes)
    operands = list(node.operands)
    for position, flag in enumerate(("transpose_a", "transpose_b")):
        inner = operands[position].node
        if inner is not None and _transposes_matrix(operands[position]):
            flags[flag] = not flags[flag]
            operands[position] = inner.operands[0]
    if flags == dict(node.attributes):
        return None
    return create_node("matmul", tuple(operands), flags)


def _symbolic_size(node: Node, context: PassContext) -> Results:
    """A symbolic size is read from a tensor that takes no memory, so that none is kept for it."""
    (x,), axis = node.operands, node.attributes["axis"]
    if not context.capabilities.anchors or isinstance(x.shape[axis], int):
        return None
    if (x.node is not None and x.node.op == "iota") and x.rank == 1:
        return None
    return ops.size(ops.iota(shape=(x.shape[axis],), axis=0, dtype=int64), 0)


_SAME = ("does nothing", _same_shape)

VIEW_RULES: Mapping[str, tuple[tuple[str, Rule], ...]] = {
    "reshape": (
        _SAME,
        ("reshape of reshape", _reshape_of),
        ("reshape of one element", _reshape_of_one),
    ),
    "expand": (
        _SAME,
        ("expand of expand", _expand_of),
        ("expand of leading ones", _expand_of_leading_ones),
    ),
    "cast": (_SAME, ("cast of cast", _cast_of)),
    "transpose": (
        ("does nothing", _identity_permutation),
        ("transpose of transpose", _transpose_of),
        ("transpose of ones", _transpose_of_ones),
    ),
    "flip": (("does nothing", _no_axes),),
    "slice": (("does nothing", _whole_slice),),
    "pad": (("does nothing", _no_padding),),
    "concat": (("does nothing", _only_part),),
    "stop_gradient": (_SAME,),  # gradients have been built when passes run
    "size": (("symbolic size", _symbolic_size),),
    "matmul": (("matmul of transpose", _matmul_of_transpose),),
}
