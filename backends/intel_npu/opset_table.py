"""The opset table: one row an op of frame, and what OpenVINO's version of it can't do.

A row says which dtypes it computes with, how the op is built, and which attributes or shapes it
must refuse. Where OpenVINO loses a NaN (max, relu, exp, reductions, softmax) the row adds the
selection that keeps it. OpenVINO's CPU computes 64-bit types in 32 bits, so float64 is never
taken, and int64 only where its values are known to be small: sizes, and indices that are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.dtypes import float32, int64
from frame.core.shapes import Dim, Size, numel, shape_symbols
from frame.ir.graph import ROW_MAJOR, Node, Value
from frame.ops.holes import BACKENDS

if TYPE_CHECKING:
    from frame.backends.intel_npu.model import Lowering

Build = Callable[["Lowering", Node, list[Any]], Any]
Limit = Callable[[Node], str | None]
Kinds = frozenset[str]

FLOATS: Kinds = frozenset({"float32", "float16", "bfloat16"})
NUMBERS: Kinds = FLOATS | {"int32"}
BOOLS: Kinds = frozenset({"bool"})
MOVED: Kinds = NUMBERS | BOOLS | {"int8", "int16", "uint8", "uint16"}
INDICES: Kinds = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
ANY: Kinds = INDICES | MOVED


HALVES: Kinds = frozenset({"float16", "bfloat16"})
WORDS: Kinds = frozenset({"int32"})
EMPTY = "OpenVINO fails on tensors without elements, some end the process"


def no_limit(node: Node) -> str | None:
    """Refuse nothing."""
    return None


@dataclass(frozen=True, slots=True)
class Row:
    """How one op is built.

    `operands` are the dtypes taken by position (the last stands for all further ones), `results`
    those of the results; `limit` returns why a node is refused for its attributes or shapes.
    """

    build: Build
    operands: tuple[Kinds, ...] = (FLOATS,)
    results: tuple[Kinds, ...] = (MOVED,)
    limit: Limit = no_limit

    def refusal(self, node: Node) -> str | None:
        """Return why the node can't run, or None."""
        for values, kinds in ((node.operands, self.operands), (node.results, self.results)):
            for position, value in enumerate(values):
                if value.dtype.name not in kinds[min(position, len(kinds) - 1)]:
                    return f"OpenVINO does not compute {node.op} in {value.dtype} as frame does"
                if value.type.layout != ROW_MAJOR:
                    return f"the layout {value.type.layout} is not row-major"
                if 0 in value.shape:
                    return EMPTY
        return self.limit(node)


# --- how rows are built ---------------------------------------------------------------------------


def direct(name: str) -> Build:
    """Build by the opset function of that name, operands in order."""
    return lambda c, node, x: getattr(c.ov, name)(*x)


def keep_nan(build: Build) -> Build:
    """Build, and let NaN through where an operand is NaN."""

    def checked(c: Lowering, node: Node, x: list[Any]) -> Any:
        result = build(c, node, x)
        for operand in reversed(x):
            result = c.ov.select(c.ov.is_nan(operand), operand, result)
        return result

    return checked


def _scalar(c: Lowering, node: Node, value: float) -> Any:
    return c.constant(value, node.operands[0].dtype)


def _relu(c: Lowering, node: Node, x: list[Any]) -> Any:
    # Not opset's relu: it turns NaN into 0.
    zero = _scalar(c, node, 0)
    return c.ov.select(c.ov.less_equal(x[0], zero), zero, x[0])


def _equality(name: str) -> Build:
    def build(c: Lowering, node: Node, x: list[Any]) -> Any:
        if node.operands[0].dtype.is_float:
            return getattr(c.ov, name)(*x)
        # OpenVINO compares integers as float32; their wrapped difference keeps being nonzero.
        return getattr(c.ov, name)(c.ov.subtract(*x), _scalar(c, node, 0))

    return build


def _rsqrt(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.divide(_scalar(c, node, 1), c.ov.sqrt(x[0]))


def _reciprocal(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.divide(_scalar(c, node, 1), x[0])


def _square(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.multiply(x[0], x[0])


def _clamp(c: Lowering, node: Node, x: list[Any]) -> Any:
    low = c.ov.maximum(x[0], x[1])
    return c.ov.minimum(low, x[2])


def _cast(c: Lowering, node: Node, x: list[Any]) -> Any:
    target = node.attributes["dtype"]
    if target.is_bool:
        return c.ov.not_equal(x[0], _scalar(c, node, 0))
    return c.convert(x[0], target)


def _cast_limit(node: Node) -> str | None:
    source, target = node.operands[0].dtype, node.results[0].dtype
    if source == int64 and not _is_small(node.operands[0]):
        return "OpenVINO keeps integers in 32 bits"
    if source.is_float and target.is_integer:
        return "OpenVINO does not saturate a cast of floats to integers"
    if source.is_integer and target.is_integer:
        return "OpenVINO saturates some casts of integers, frame's wrap around"
    return None


def _is_small(value: Value) -> bool:
    """Tell whether an int64 is known to hold sizes, counts or positions only."""
    return value.node is not None and value.node.op in ("size", "iota", "constant", "max_pool2d")


def _constant(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.constant(node.attributes["value"].array, node.results[0].dtype)


def _constant_limit(node: Node) -> str | None:
    values = node.attributes["value"].array
    if values.dtype.kind in "iu" and values.size and not _fits(values):
        return "OpenVINO keeps integers in 32 bits"
    return None


def _fits(values: np.ndarray) -> bool:
    limits = np.iinfo(np.int32)
    return int(values.min()) >= limits.min and int(values.max()) <= limits.max


def _iota(c: Lowering, node: Node, x: list[Any]) -> Any:
    shape, axis = node.attributes["shape"], node.attributes["axis"]
    dtype = node.results[0].dtype
    length = shape[axis]
    if isinstance(length, Dim):
        stop = c.ov.squeeze(c.size(length), c.numbers([0]))
        start, step = c.ov.constant(np.int64(0)), c.ov.constant(np.int64(1))
        line = c.convert(c.ov.range(start, stop, step, "i64"), dtype)
    else:
        line = c.constant(np.arange(length), dtype)
    column = c.reshape(line, tuple(length if k == axis else 1 for k in range(len(shape))))
    return c.ov.broadcast(column, c.shape(shape))


def _iota_limit(node: Node) -> str | None:
    length = node.attributes["shape"][node.attributes["axis"]]
    kind, bits = node.results[0].dtype.kind, min(node.results[0].dtype.bits, 32)
    most = 1 << (bits - 1 if kind == "int" else bits) if kind != "float" else 1 << 24
    if isinstance(length, int) and length > most:
        return f"the count of {length} is more than OpenVINO's {node.results[0].dtype} holds"
    return None


def _size(c: Lowering, node: Node, x: list[Any]) -> Any:
    size = node.operands[0].shape[node.attributes["axis"]]
    return c.ov.squeeze(c.size(size), c.numbers([0]))


def _reduction(name: str) -> Build:
    def build(c: Lowering, node: Node, x: list[Any]) -> Any:
        axes, keep = node.attributes["axes"], node.attributes["keepdims"]
        return getattr(c.ov, name)(x[0], c.numbers(axes), keep) if axes else x[0]

    return build


def _extreme(name: str) -> Build:
    """A maximum or minimum over axes, NaN if there is one."""
    plain = _reduction(name)

    def build(c: Lowering, node: Node, x: list[Any]) -> Any:
        result = plain(c, node, x)
        axes, keep = node.attributes["axes"], node.attributes["keepdims"]
        if not axes:
            return result
        found = c.ov.reduce_logical_or(c.ov.is_nan(x[0]), c.numbers(axes), keep)
        return c.ov.select(found, _scalar(c, node, float("nan")), result)

    return build


def _matmul(c: Lowering, node: Node, x: list[Any]) -> Any:
    flags = node.attributes
    return c.ov.matmul(x[0], x[1], flags["transpose_a"], flags["transpose_b"])


def _reshape(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.reshape(x[0], node.results[0].shape)


def _transpose(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.transpose(x[0], c.numbers(node.attributes["permutation"]))


def _flip(c: Lowering, node: Node, x: list[Any]) -> Any:
    axes = node.attributes["axes"]
    if not axes:
        return c.ov.reshape(x[0], c.shape(node.results[0].shape), False)
    # From beyond the last element to before the first, as numpy's [::-1].
    last, first = [np.iinfo(np.int32).max] * len(axes), [np.iinfo(np.int32).min] * len(axes)
    steps = [-1] * len(axes)
    numbers = c.numbers
    return c.ov.slice(x[0], numbers(last), numbers(first), numbers(steps), numbers(axes))


def _expand(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.broadcast(x[0], c.shape(node.results[0].shape))


def _tile(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.tile(x[0], c.shape(node.attributes["repeats"]))


def _slice(c: Lowering, node: Node, x: list[Any]) -> Any:
    starts, stops, steps = (c.shape(node.attributes[n]) for n in ("starts", "stops", "steps"))
    return c.ov.slice(x[0], starts, stops, steps, c.numbers(range(node.operands[0].rank)))


def _slice_limit(node: Node) -> str | None:
    steps = node.attributes["steps"]
    if any(isinstance(step, Dim) or step < 1 for step in steps):
        return "the opset table slices with positive steps only"
    return _rank0(node)


def _rank0(node: Node) -> str | None:
    return "OpenVINO does not do it to a scalar" if node.operands[0].rank == 0 else None


def _pad(c: Lowering, node: Node, x: list[Any]) -> Any:
    low, high = c.shape(node.attributes["low"]), c.shape(node.attributes["high"])
    value = c.constant(node.attributes["value"], node.operands[0].dtype)
    return c.ov.pad(x[0], low, high, "constant", value)


def _concat(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.concat(x, node.attributes["axis"])


def _gather(c: Lowering, node: Node, x: list[Any]) -> Any:
    axis = node.attributes["axis"]
    indices = c.checked(node, 1, node.operands[0].shape[axis], x[1])
    return c.ov.gather(x[0], indices, c.ov.constant(np.int64(axis)))


def _scatter_add(c: Lowering, node: Node, x: list[Any]) -> Any:
    """Zeros of the shape, to which slices are added along one axis."""
    axis, shape = node.attributes["axis"], node.attributes["shape"]
    count = numel(node.operands[1].shape)
    indices = c.checked(node, 1, shape[axis], x[1])
    before, after = shape[:axis], shape[axis + 1 :]
    rows: tuple[Size, ...] = (*before, count, *after)
    column = c.reshape(indices, tuple(count if k == axis else 1 for k in range(len(shape))))
    spread = c.ov.broadcast(column, c.shape(rows))
    zeros = c.ov.broadcast(c.constant(0, node.results[0].dtype), c.shape(shape))
    updates, place = c.reshape(x[0], rows), c.ov.constant(np.int64(axis))
    return c.ov.scatter_elements_update(zeros, spread, updates, place, "sum")


# --- neural networks ------------------------------------------------------------------------------


def _gelu(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.gelu(x[0], {"none": "erf", "tanh": "tanh"}[node.attributes["approximate"]])


def _leaky_relu(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.prelu(x[0], _scalar(c, node, node.attributes["slope"]))


def _silu(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.swish(x[0], _scalar(c, node, 1))


def _relu6(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.clamp(x[0], 0.0, 6.0)


def _softmax(name: str) -> Build:
    def build(c: Lowering, node: Node, x: list[Any]) -> Any:
        axis = node.attributes["axis"] % node.operands[0].rank
        plain = getattr(c.ov, name)(x[0], axis)
        # A row with NaN or +inf, or of -inf alone, is NaN: then a distance from its maximum is.
        axes = c.numbers([axis])
        distance = c.ov.subtract(x[0], c.ov.reduce_max(x[0], axes, True))
        poison = c.ov.reduce_sum(distance, axes, True)
        return c.ov.select(c.ov.is_nan(poison), poison, plain)

    return build


def _layer_norm(c: Lowering, node: Node, x: list[Any]) -> Any:
    axes = c.numbers([node.operands[0].rank - 1])
    normal = c.ov.mvn(x[0], axes, True, node.attributes["eps"], "inside_sqrt")
    return c.ov.add(c.ov.multiply(normal, x[1]), x[2])


def _batch_norm_infer(c: Lowering, node: Node, x: list[Any]) -> Any:
    return c.ov.batch_norm_inference(*x, node.attributes["eps"])


def _conv2d(c: Lowering, node: Node, x: list[Any]) -> Any:
    attributes = node.attributes
    image, padding = _cropped(c, node, _spread(c, node, x[0]))
    top, bottom, left, right = padding
    settings = (
        list(attributes["strides"]), [top, left], [bottom, right], list(attributes["dilation"])
    )  # fmt: skip
    groups = attributes["groups"]
    if groups == 1:
        return c.ov.convolution(image, x[1], *settings)
    outputs, *rest = node.operands[1].shape
    weights = c.reshape(x[1], (groups, outputs // groups, *rest))
    return c.ov.group_convolution(image, weights, *settings)


def _spread(c: Lowering, node: Node, x: Any) -> Any:
    """Put zeros between the elements of the image, as input_dilation says."""
    high, wide = node.attributes["input_dilation"]
    if (high, wide) == (1, 1):
        return x
    batch, channels, height, width = node.operands[0].shape
    apart = c.reshape(x, (batch, channels, height, 1, width, 1))
    zero = c.constant(0, node.operands[0].dtype)
    rest = c.numbers([0, 0, 0, high - 1, 0, wide - 1])
    padded = c.ov.pad(apart, c.numbers([0] * 6), rest, "constant", zero)
    joined = c.reshape(padded, (batch, channels, height * high, width * wide))
    ends = c.numbers([height * high - high + 1, width * wide - wide + 1])
    return c.ov.slice(joined, c.numbers([0, 0]), ends, c.numbers([1, 1]), c.numbers([2, 3]))


def _cropped(c: Lowering, node: Node, x: Any) -> tuple[Any, tuple[int, ...]]:
    """Cut off what a negative padding removes; return the image and the padding that is left."""
    padding = node.attributes["padding"]
    if min(padding) >= 0:
        return x, padding
    top, bottom, left, right = (min(amount, 0) for amount in padding)
    zero = c.constant(0, node.operands[0].dtype)
    low, high = c.numbers([0, 0, top, left]), c.numbers([0, 0, bottom, right])
    kept = tuple(max(amount, 0) for amount in padding)
    return c.ov.pad(x, low, high, "constant", zero), kept


def _conv_limit(node: Node) -> str | None:
    x, w = node.operands
    if shape_symbols((*x.shape[1:], *w.shape)):
        return "OpenVINO needs channels, images and windows of known size"
    dilation, padding = node.attributes["dilation"], node.attributes["padding"]
    reach = [(size - 1) * step for size, step in zip(w.shape[2:], dilation, strict=True)]
    if max(padding[:2]) > reach[0] or max(padding[2:]) > reach[1]:
        return "OpenVINO reads beyond the image where the padding is wider than the window"
    return None


def _pool_settings(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    top, bottom, left, right = node.attributes["padding"]
    kernel, strides = node.attributes["kernel"], node.attributes["strides"]
    return list(strides), [top, left], [bottom, right], list(kernel)


def _max_pool2d(c: Lowering, node: Node, x: list[Any]) -> Any:
    """Pool the values, and the classes -inf, number and NaN: opset's op knows numbers only."""
    strides, low, high, kernel = _pool_settings(node)

    def pool(value: Any) -> list[Any]:
        settings = (strides, [1, 1], low, high, kernel, "floor", None, "i64", 2)
        return list(c.ov.max_pool(value, *settings).outputs())

    dtype = node.operands[0].dtype
    image = x[0] if dtype == float32 else c.convert(x[0], float32)  # bfloat16 loses the indices
    nan, lowest, none, one, two = (
        c.constant(value, float32) for value in (np.nan, -np.inf, 0.0, 1.0, 2.0)
    )
    number = c.ov.select(c.ov.equal(image, lowest), none, one)
    (value, index), (kind, first) = pool(image), pool(c.ov.select(c.ov.is_nan(image), two, number))
    is_number = c.ov.equal(kind, one)
    special = c.ov.select(c.ov.equal(kind, two), nan, lowest)
    y = c.ov.select(is_number, value, special)
    index = c.ov.select(is_number, index, first)
    return (y if dtype == float32 else c.convert(y, dtype)), index


def _max_pool2d_grad(c: Lowering, node: Node, x: list[Any]) -> Any:
    batch, channels, height, width = node.attributes["input_shape"]
    count = numel(node.operands[1].shape[2:])
    indices = c.checked(node, 1, height * width, x[1])
    flat = (batch, channels, count)
    zeros = c.ov.broadcast(
        c.constant(0, node.results[0].dtype), c.shape((batch, channels, height * width))
    )
    summed = c.ov.scatter_elements_update(
        zeros, c.reshape(indices, flat), c.reshape(x[0], flat), c.ov.constant(np.int64(2)), "sum"
    )
    return c.reshape(summed, (batch, channels, height, width))


def _avg_pool2d(c: Lowering, node: Node, x: list[Any]) -> Any:
    strides, low, high, kernel = _pool_settings(node)
    # Without dilations OpenVINO's CPU plug-in 2026.4 ends the process with a segmentation fault.
    return c.ov.avg_pool(x[0], strides, low, high, kernel, False, "floor", dilations=[1, 1])


# --- the table ------------------------------------------------------------------------------------

_NUMBER_PAIRS = {"add": "add", "sub": "subtract", "mul": "multiply"}
_ORDERS = ("less", "less_equal", "greater", "greater_equal")
_FUNCTIONS = {
    "sqrt": "sqrt", "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "sigmoid": "sigmoid", "floor": "floor", "ceil": "ceil",
    "isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite",
    "hardswish": "hswish",
}  # fmt: skip

ROWS: Mapping[str, Row] = MappingProxyType(
    {
        **{op: Row(direct(name), (NUMBERS,)) for op, name in _NUMBER_PAIRS.items()},
        **{op: Row(direct(op), (FLOATS,), (BOOLS,)) for op in _ORDERS},
        **{op: Row(_equality(op), (NUMBERS,), (BOOLS,)) for op in ("equal", "not_equal")},
        **{op: Row(direct(name)) for op, name in _FUNCTIONS.items()},
        **{op: Row(direct(op), (BOOLS,)) for op in ("logical_and", "logical_or", "logical_xor")},
        **{
            op: Row(direct(op), (NUMBERS - FLOATS | BOOLS,))
            for op in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
        },
        "logical_not": Row(direct("logical_not"), (BOOLS,)),
        "div": Row(direct("divide")),
        "pow": Row(direct("power")),
        "maximum": Row(keep_nan(direct("maximum"))),
        "minimum": Row(keep_nan(direct("minimum"))),
        "neg": Row(direct("negative"), (NUMBERS,)),
        "abs": Row(direct("abs"), (NUMBERS,)),
        "sign": Row(direct("sign"), (NUMBERS,)),
        "round": Row(lambda c, node, x: c.ov.round(x[0], "half_to_even")),
        "erf": Row(direct("erf"), (HALVES,)),  # in float32 it is not accurate near 0
        "exp": Row(keep_nan(direct("exp"))),
        "relu": Row(_relu, (NUMBERS,)),
        "square": Row(_square, (NUMBERS,)),
        "rsqrt": Row(_rsqrt),
        "reciprocal": Row(_reciprocal),
        "where": Row(direct("select"), (BOOLS, MOVED)),
        "clamp": Row(keep_nan(_clamp)),
        "cast": Row(_cast, (MOVED | {"int64"},), (MOVED,), _cast_limit),
        "constant": Row(_constant, (), (MOVED | {"int64"},), _constant_limit),
        "iota": Row(_iota, (), (NUMBERS | {"int64"},), _iota_limit),
        "size": Row(_size, (ANY,), (frozenset({"int64"}),)),
        "sum": Row(_reduction("reduce_sum")),
        "mean": Row(_reduction("reduce_mean")),
        "prod": Row(_reduction("reduce_prod")),
        "max": Row(_extreme("reduce_max")),
        "min": Row(_extreme("reduce_min")),
        "any": Row(_reduction("reduce_logical_or"), (BOOLS,)),
        "all": Row(_reduction("reduce_logical_and"), (BOOLS,)),
        "matmul": Row(_matmul),
        "reshape": Row(_reshape, (MOVED,)),
        "squeeze": Row(_reshape, (MOVED,)),
        "unsqueeze": Row(_reshape, (MOVED,)),
        "flatten": Row(_reshape, (MOVED,)),
        "transpose": Row(_transpose, (MOVED,)),
        "flip": Row(_flip, (MOVED,)),
        "expand": Row(_expand, (MOVED,)),
        "tile": Row(_tile, (MOVED,)),
        "slice": Row(_slice, (MOVED,), limit=_slice_limit),
        "pad": Row(_pad, (MOVED,), limit=_rank0),
        "concat": Row(_concat, (MOVED,)),
        "gather": Row(_gather, (MOVED, INDICES)),
        "scatter_add": Row(_scatter_add, (NUMBERS, INDICES)),
        "gelu": Row(_gelu),
        "leaky_relu": Row(_leaky_relu),
        "relu6": Row(keep_nan(_relu6)),
        "silu": Row(_silu),
        "softmax": Row(_softmax("softmax")),
        "log_softmax": Row(_softmax("log_softmax")),
        "layer_norm": Row(_layer_norm),
        "batch_norm_infer": Row(_batch_norm_infer),
        "conv2d": Row(_conv2d, limit=_conv_limit),
        "max_pool2d": Row(_max_pool2d, results=(FLOATS, frozenset({"int64"}))),
        "max_pool2d_grad": Row(_max_pool2d_grad, (FLOATS, INDICES)),
        "avg_pool2d": Row(_avg_pool2d),
    }
)
"""op -> row. A composite that has no row is decomposed by the compiler; other ops are refused."""


def refusal(node: Node) -> str | None:
    """Return why a node can't run on OpenVINO, or None."""
    row = ROWS.get(node.op)
    if row is None:
        return BACKENDS["intel_npu"].get(node.op, "the opset table has no row for it")
    return row.refusal(node)


def known_ops() -> Sequence[str]:
    """Return the ops that have a row, sorted."""
    return sorted(ROWS)
