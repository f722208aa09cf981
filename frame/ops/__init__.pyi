"""The ops of frame. Written by `python -m frame.ops.stubs` from the op records."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from frame.core.dtypes import DTypeLike
from frame.core.shapes import Size
from frame.ir.graph import Graph, Value
from frame.ops.registry import lookup, records, register, unregister

__all__ = [
    "lookup",
    "records",
    "register",
    "unregister",
    "abs",
    "acos",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "asin",
    "atan",
    "atan2",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "clamp",
    "concat",
    "constant",
    "cos",
    "cosh",
    "div",
    "equal",
    "erf",
    "exp",
    "expand",
    "expm1",
    "flatten",
    "flip",
    "floor",
    "floor_div",
    "full",
    "gather",
    "getitem",
    "greater",
    "greater_equal",
    "group",
    "iota",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "mul",
    "neg",
    "not_equal",
    "ones",
    "ones_like",
    "pad",
    "pow",
    "prod",
    "reciprocal",
    "relayout",
    "relu",
    "reshape",
    "round",
    "rsqrt",
    "scatter_add",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "size",
    "slice",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "sub",
    "sum",
    "tan",
    "tanh",
    "tile",
    "transpose",
    "trunc",
    "unpack",
    "unsqueeze",
    "where",
    "zeros",
    "zeros_like",
]

FAMILIES: tuple[str, ...]
Operand: TypeAlias = Value | float | np.ndarray | Sequence[Any]

def abs(x: Operand) -> Value:
    """Return |x|."""

def acos(x: Operand) -> Value:
    """Return the arc cosine."""

def add(a: Operand, b: Operand) -> Value:
    """Return a + b."""

def all(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether all elements over axes are true."""

def any(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether any element over axes is true."""

def argmax(x: Operand, axis: int, keepdims: bool = False) -> Value:
    """Return the position of the largest element along an axis, as int64."""

def argmin(x: Operand, axis: int, keepdims: bool = False) -> Value:
    """Return the position of the smallest element along an axis, as int64."""

def asin(x: Operand) -> Value:
    """Return the arc sine."""

def atan(x: Operand) -> Value:
    """Return the arc tangent."""

def atan2(a: Operand, b: Operand) -> Value:
    """Return the angle of the point (b, a) in radians, from -pi to pi."""

def bitwise_and(a: Operand, b: Operand) -> Value:
    """Return a & b."""

def bitwise_not(x: Operand) -> Value:
    """Return ~x."""

def bitwise_or(a: Operand, b: Operand) -> Value:
    """Return a | b."""

def bitwise_xor(a: Operand, b: Operand) -> Value:
    """Return a ^ b."""

def cast(x: Operand, dtype: DTypeLike) -> Value:
    """Convert the elements to another dtype."""

def ceil(x: Operand) -> Value:
    """Return the smallest whole number >= x."""

def clamp(x: Operand, low: Operand, high: Operand) -> Value:
    """Return minimum(maximum(x, low), high)."""

def concat(*tensors: Operand | Sequence[Operand], axis: int = 0) -> Value:
    """Join tensors along an axis."""

def constant(value: Any, dtype: DTypeLike | None = None) -> Value:
    """Return a constant tensor of a number, a nested list of numbers or an array."""

def cos(x: Operand) -> Value:
    """Return the cosine of x radians."""

def cosh(x: Operand) -> Value:
    """Return the hyperbolic cosine."""

def div(a: Operand, b: Operand) -> Value:
    """Return a / b for floats, as IEEE 754 divides."""

def equal(a: Operand, b: Operand) -> Value:
    """Return whether a == b, as bool."""

def erf(x: Operand) -> Value:
    """Return the error function."""

def exp(x: Operand) -> Value:
    """Return e ** x."""

def expand(x: Operand, shape: Size | Sequence[Size]) -> Value:
    """Broadcast to a shape, as numpy.broadcast_to does."""

def expm1(x: Operand) -> Value:
    """Return exp(x) - 1, exact near 0."""

def flatten(x: Operand, start_axis: int = 0, end_axis: int = -1) -> Value:
    """Merge the axes from start_axis to end_axis into one."""

def flip(x: Operand, axes: int | Sequence[int] | None = None) -> Value:
    """Reverse the order of the elements along axes."""

def floor(x: Operand) -> Value:
    """Return the largest whole number <= x."""

def floor_div(a: Operand, b: Operand) -> Value:
    """Return the floor of a / b, as Python and numpy do."""

def full(shape: Size | Sequence[Size], value: float, dtype: DTypeLike = ...) -> Value:
    """Return a tensor of a shape, which may hold symbols, with all elements equal to `value`."""

def gather(x: Operand, indices: Operand, axis: int = 0) -> Value:
    """Return the slices of x at the indices along an axis, as numpy.take does."""

def getitem(x: Value, key: Any) -> Value:
    """Return `x[key]` with the meaning that numpy gives it."""

def greater(a: Operand, b: Operand) -> Value:
    """Return whether a > b, as bool."""

def greater_equal(a: Operand, b: Operand) -> Value:
    """Return whether a >= b, as bool."""

def group(*captures: Operand | Sequence[Operand], anchor: str, body: Graph) -> Value:
    """Run a body as one kernel."""

def iota(shape: Size | Sequence[Size], axis: int = 0, dtype: DTypeLike = ...) -> Value:
    """Return a tensor whose elements are their own index along an axis."""

def isfinite(x: Operand) -> Value:
    """Return whether x is neither an infinity nor NaN, as bool."""

def isinf(x: Operand) -> Value:
    """Return whether x is an infinity, as bool."""

def isnan(x: Operand) -> Value:
    """Return whether x is NaN, as bool."""

def less(a: Operand, b: Operand) -> Value:
    """Return whether a < b, as bool."""

def less_equal(a: Operand, b: Operand) -> Value:
    """Return whether a <= b, as bool."""

def log(x: Operand) -> Value:
    """Return the natural logarithm."""

def log1p(x: Operand) -> Value:
    """Return log(1 + x), exact near 0."""

def log2(x: Operand) -> Value:
    """Return the logarithm to base 2."""

def logical_and(a: Operand, b: Operand) -> Value:
    """Return a and b."""

def logical_not(x: Operand) -> Value:
    """Return not x."""

def logical_or(a: Operand, b: Operand) -> Value:
    """Return a or b."""

def logical_xor(a: Operand, b: Operand) -> Value:
    """Return a xor b."""

def matmul(a: Operand, b: Operand, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Return the matrix product a @ b with the rules of numpy.matmul."""

def max(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the largest element over axes."""

def maximum(a: Operand, b: Operand) -> Value:
    """Return the larger of a and b."""

def mean(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the mean over axes."""

def min(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the smallest element over axes."""

def minimum(a: Operand, b: Operand) -> Value:
    """Return the smaller of a and b."""

def mod(a: Operand, b: Operand) -> Value:
    """Return the remainder of floor division, with the sign of b."""

def mul(a: Operand, b: Operand) -> Value:
    """Return a * b."""

def neg(x: Operand) -> Value:
    """Return -x."""

def not_equal(a: Operand, b: Operand) -> Value:
    """Return whether a != b, as bool."""

def ones(shape: Size | Sequence[Size], dtype: DTypeLike = ...) -> Value:
    """Return a tensor of ones of a shape that may hold symbols."""

def ones_like(x: Value) -> Value:
    """Return ones of the dtype and shape of `x`."""

def pad(
    x: Operand,
    low: Size | Sequence[Size],
    high: Size | Sequence[Size],
    value: float = 0.0,
) -> Value:
    """Surround the tensor with elements of one value."""

def pow(a: Operand, b: Operand) -> Value:
    """Return a ** b, for floats as C's pow."""

def prod(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the product over axes."""

def reciprocal(x: Operand) -> Value:
    """Return 1 / x."""

def relayout(
    x: Operand,
    permutation: int | Sequence[int] = ...,
    blocks: int | Sequence[int] = ...,
) -> Value:
    """Store the elements in another order in memory."""

def relu(x: Operand) -> Value:
    """Return 0 where x <= 0, else x (so NaN stays NaN)."""

def reshape(x: Operand, shape: Size | Sequence[Size]) -> Value:
    """Return the elements in row-major order under another shape."""

def round(x: Operand) -> Value:
    """Return the nearest whole number."""

def rsqrt(x: Operand) -> Value:
    """Return 1 / sqrt(x)."""

def scatter_add(
    updates: Operand,
    indices: Operand,
    shape: Size | Sequence[Size],
    axis: int = 0,
) -> Value:
    """Add slices into zeros at the indices along an axis."""

def shift_left(a: Operand, b: Operand) -> Value:
    """Return a << b."""

def shift_right(a: Operand, b: Operand) -> Value:
    """Return a >> b, which keeps the sign."""

def sigmoid(x: Operand) -> Value:
    """Return 1 / (1 + exp(-x))."""

def sign(x: Operand) -> Value:
    """Return -1, 0 or 1."""

def sin(x: Operand) -> Value:
    """Return the sine of x radians."""

def sinh(x: Operand) -> Value:
    """Return the hyperbolic sine."""

def size(x: Operand, axis: int) -> Value:
    """Return the size of one axis as an int64 scalar of the graph, known or symbolic."""

def slice(
    x: Operand,
    starts: Size | Sequence[Size],
    stops: Size | Sequence[Size],
    steps: Size | Sequence[Size] | None = None,
) -> Value:
    """Return the elements start, start + step, ."""

def split(x: Value, sizes: int | Sequence[Size], axis: int = 0) -> tuple[Value, ...]:
    """Cut a tensor along an axis into parts."""

def sqrt(x: Operand) -> Value:
    """Return the square root."""

def square(x: Operand) -> Value:
    """Return x * x."""

def squeeze(x: Operand, axes: int | Sequence[int] | None = None) -> Value:
    """Remove axes of size 1."""

def stack(*tensors: Operand | Sequence[Operand], axis: int = 0) -> Value:
    """Join tensors of one shape along a new axis."""

def stop_gradient(x: Operand) -> Value:
    """Return x, and let no gradient flow back through it."""

def sub(a: Operand, b: Operand) -> Value:
    """Return a - b."""

def sum(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the sum over axes."""

def tan(x: Operand) -> Value:
    """Return the tangent of x radians."""

def tanh(x: Operand) -> Value:
    """Return the hyperbolic tangent."""

def tile(x: Operand, repeats: Size | Sequence[Size]) -> Value:
    """Repeat the tensor along its axes, as numpy.tile does."""

def transpose(x: Operand, permutation: int | Sequence[int] | None = None) -> Value:
    """Permute the axes."""

def trunc(x: Operand) -> Value:
    """Return x without its fraction."""

def unpack(x: Value) -> list[Value]:
    """Return the slices of `x` along its first axis, which must have a known size."""

def unsqueeze(x: Operand, axes: int | Sequence[int]) -> Value:
    """Insert axes of size 1 at positions of the result."""

def where(condition: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the condition holds, else y."""

def zeros(shape: Size | Sequence[Size], dtype: DTypeLike = ...) -> Value:
    """Return a tensor of zeros of a shape that may hold symbols."""

def zeros_like(x: Value) -> Value:
    """Return zeros of the dtype and shape of `x`."""
