"""The ops of frame. Written by `python -m frame.ops.stubs` from the op records."""

from collections.abc import Callable, Sequence
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
    "affine_sample",
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "atan",
    "atan2",
    "avg_pool2d",
    "batch_norm_infer",
    "batch_norm_train",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "celu",
    "clamp",
    "concat",
    "cond",
    "constant",
    "conv1d",
    "conv2d",
    "conv2d_filter_grad",
    "conv_transpose2d",
    "cos",
    "cosh",
    "cosine_similarity",
    "cumsum",
    "custom_vjp_call",
    "div",
    "dropout",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand",
    "expm1",
    "flatten",
    "flip",
    "floor",
    "floor_div",
    "fourier_rows",
    "full",
    "gather",
    "gelu",
    "getitem",
    "global_avg_pool",
    "glu",
    "greater",
    "greater_equal",
    "group",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside_surrogate",
    "huber_loss",
    "iota",
    "irfft",
    "isfinite",
    "isinf",
    "isnan",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linear_scan",
    "log",
    "log1p",
    "log2",
    "log_sigmoid",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "max_pool2d",
    "max_pool2d_grad",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "mse_loss",
    "mul",
    "neg",
    "nll_loss",
    "normal",
    "not_equal",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "poisson_nll_loss",
    "pow",
    "prelu",
    "prod",
    "reciprocal",
    "relayout",
    "relu",
    "relu6",
    "reshape",
    "rfft",
    "rms_norm",
    "round",
    "rsqrt",
    "scaled_dot_product_attention",
    "scan",
    "scatter_add",
    "selective_scan",
    "selu",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "size",
    "slice",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "sub",
    "sum",
    "take_along_axis",
    "tan",
    "tanh",
    "tile",
    "topk",
    "transpose",
    "trunc",
    "uniform",
    "unpack",
    "unsqueeze",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]

FAMILIES: tuple[str, ...]
DEFERRED: dict[str, tuple[str, ...]]
Operand: TypeAlias = Value | float | np.ndarray | Sequence[Any]

def abs(x: Operand) -> Value:
    """Return |x|."""

def acos(x: Operand) -> Value:
    """Return the arc cosine."""

def add(a: Operand, b: Operand) -> Value:
    """Return a + b."""

def affine_sample(
    images: Operand,
    places: Operand,
    colours: Operand | None = None,
    *,
    layout: str = "NCHW",
    interpolation: str = "bilinear",
    fill: float = 0.0,
    size: int | Sequence[int] = ...,
) -> Value:
    """Images read along an affine map each, and their colours mixed, in one pass over them."""

def all(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether all elements over axes are true."""

def any(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return whether any element over axes is true."""

def argmax(x: Operand, axis: int, keepdims: bool = False) -> Value:
    """Return the position of the largest element along an axis, as int64."""

def argmin(x: Operand, axis: int, keepdims: bool = False) -> Value:
    """Return the position of the smallest element along an axis, as int64."""

def argsort(x: Operand, axis: int = -1, descending: bool = False) -> Value:
    """The positions of the elements in order along an axis."""

def asin(x: Operand) -> Value:
    """Return the arc sine."""

def atan(x: Operand) -> Value:
    """Return the arc tangent."""

def atan2(a: Operand, b: Operand) -> Value:
    """Return the angle of the point (b, a) in radians, from -pi to pi."""

def avg_pool2d(
    x: Operand,
    kernel: int | Sequence[int],
    strides: int | Sequence[int],
    padding: int | Sequence[int] = ...,
) -> Value:
    """The mean of each window."""

def batch_norm_infer(
    x: Operand,
    gamma: Operand,
    beta: Operand,
    mean: Operand,
    variance: Operand,
    eps: float = 1e-05,
) -> Value:
    """Batch normalisation with given statistics of each channel (axis 1)."""

def batch_norm_train(
    x: Operand,
    gamma: Operand,
    beta: Operand,
    eps: float = 1e-05,
) -> tuple[Value, ...]:
    """Batch normalisation with the statistics of x itself, over all axes but axis 1."""

def binary_cross_entropy(probability: Operand, target: Operand, reduction: str = "mean") -> Value:
    """The cross entropy -(target * log(p) + (1 - target) * log(1 - p)) of a probability and ..."""

def binary_cross_entropy_with_logits(
    logits: Operand,
    target: Operand,
    reduction: str = "mean",
) -> Value:
    """The cross entropy of the probability sigmoid(logits) and a target in [0, 1], computed ..."""

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

def celu(x: Operand, alpha: float = 1.0) -> Value:
    """Continuously differentiable exponential linear unit."""

def clamp(x: Operand, low: Operand, high: Operand) -> Value:
    """Return minimum(maximum(x, low), high)."""

def concat(*tensors: Operand | Sequence[Operand], axis: int = 0) -> Value:
    """Join tensors along an axis."""

def cond(predicate: Value, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return `then()` if the bool scalar `predicate` is true when the graph runs, else the ..."""

def constant(value: Any, dtype: DTypeLike | None = None) -> Value:
    """Return a constant tensor of a number, a nested list of numbers or an array."""

def conv1d(
    x: Operand,
    w: Operand,
    stride: int = 1,
    padding: int | Sequence[int] = ...,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """One-dimensional convolution (cross-correlation) with zero padding."""

def conv2d(
    x: Operand,
    w: Operand,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    input_dilation: int | Sequence[int] = ...,
    groups: int = 1,
) -> Value:
    """Two-dimensional convolution (cross-correlation) with zero padding."""

def conv2d_filter_grad(
    x: Operand,
    gy: Operand,
    window: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
) -> Value:
    """The gradient of conv2d by its weights, without groups."""

def conv_transpose2d(
    x: Operand,
    w: Operand,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    output_padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
) -> Value:
    """Transposed two-dimensional convolution."""

def cos(x: Operand) -> Value:
    """Return the cosine of x radians."""

def cosh(x: Operand) -> Value:
    """Return the hyperbolic cosine."""

def cosine_similarity(a: Operand, b: Operand, axis: int = -1, eps: float = 1e-08) -> Value:
    """The cosine of the angle between vectors along an axis."""

def cumsum(x: Operand, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Value:
    """The sums of the elements up to each one along an axis, added in order."""

def custom_vjp_call(
    *operands: Operand | Sequence[Operand],
    forward: Graph,
    backward: Graph,
    results: int,
) -> Value:
    """Run the forward body."""

def div(a: Operand, b: Operand) -> Value:
    """Return a / b for floats, as IEEE 754 divides."""

def dropout(x: Value, counter: Value, rate: float, *, stream: int | None = None) -> Value:
    """Set each element of x to zero with probability `rate`, divide the others by 1 - rate."""

def elu(x: Operand, alpha: float = 1.0) -> Value:
    """Exponential linear unit."""

def embedding(table: Operand, indices: Operand, padding_index: int = -1) -> Value:
    """The rows of a table at the indices."""

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

def fourier_rows(x: Operand, table: Operand, size: int, count: int, inverse: bool = False) -> Value:
    """What rfft and irfft of long rows become."""

def full(shape: Size | Sequence[Size], value: float, dtype: DTypeLike = ...) -> Value:
    """Return a tensor of a shape, which may hold symbols, with all elements equal to `value`."""

def gather(x: Operand, indices: Operand, axis: int = 0) -> Value:
    """Return the slices of x at the indices along an axis, as numpy.take does."""

def gelu(x: Operand, approximate: str = "none") -> Value:
    """Gaussian error linear unit."""

def getitem(x: Value, key: Any) -> Value:
    """Return `x[key]` with the meaning that numpy gives it."""

def global_avg_pool(x: Operand, keepdims: bool = False) -> Value:
    """The mean of each channel over all axes behind it."""

def glu(x: Operand, axis: int = -1) -> Value:
    """Gated linear unit."""

def greater(a: Operand, b: Operand) -> Value:
    """Return whether a > b, as bool."""

def greater_equal(a: Operand, b: Operand) -> Value:
    """Return whether a >= b, as bool."""

def group(
    *captures: Operand | Sequence[Operand],
    anchor: str,
    body: Graph,
    variant: str | None = None,
) -> Value:
    """Run a body as one kernel."""

def group_norm(x: Operand, gamma: Operand, beta: Operand, groups: int, eps: float = 1e-05) -> Value:
    """Group normalisation."""

def hardsigmoid(x: Operand) -> Value:
    """Piecewise linear sigmoid."""

def hardswish(x: Operand) -> Value:
    """Piecewise approximation of silu."""

def hardtanh(x: Operand, low: float = -1.0, high: float = 1.0) -> Value:
    """The nearest number from low to high."""

def heaviside_surrogate(x: Operand, alpha: float) -> Value:
    """The step of a spiking neuron."""

def huber_loss(
    prediction: Operand,
    target: Operand,
    delta: float = 1.0,
    reduction: str = "mean",
) -> Value:
    """The error e = |prediction - target|, quadratic near zero."""

def iota(shape: Size | Sequence[Size], axis: int = 0, dtype: DTypeLike = ...) -> Value:
    """Return a tensor whose elements are their own index along an axis."""

def irfft(z: Operand, n: int) -> Value:
    """The inverse of rfft."""

def isfinite(x: Operand) -> Value:
    """Return whether x is neither an infinity nor NaN, as bool."""

def isinf(x: Operand) -> Value:
    """Return whether x is an infinity, as bool."""

def isnan(x: Operand) -> Value:
    """Return whether x is NaN, as bool."""

def kl_div(log_prediction: Operand, target: Operand, reduction: str = "mean") -> Value:
    """The Kullback-Leibler divergence, element by element."""

def l1_loss(prediction: Operand, target: Operand, reduction: str = "mean") -> Value:
    """The absolute error |prediction - target|."""

def layer_norm(x: Operand, gamma: Operand, beta: Operand, eps: float = 1e-05) -> Value:
    """Layer normalisation."""

def leaky_relu(x: Operand, slope: float = 0.01) -> Value:
    """Leaky relu."""

def less(a: Operand, b: Operand) -> Value:
    """Return whether a < b, as bool."""

def less_equal(a: Operand, b: Operand) -> Value:
    """Return whether a <= b, as bool."""

def linear_scan(a: Operand, u: Operand, axis: int = -1, reverse: bool = False) -> Value:
    """The linear recurrence h[t] = a[t] * h[t - 1] + u[t] along an axis, from h = 0."""

def log(x: Operand) -> Value:
    """Return the natural logarithm."""

def log1p(x: Operand) -> Value:
    """Return log(1 + x), exact near 0."""

def log2(x: Operand) -> Value:
    """Return the logarithm to base 2."""

def log_sigmoid(x: Operand) -> Value:
    """The logarithm of sigmoid, -log(1 + exp(-x)), computed without rounding through sigmoid."""

def log_softmax(x: Operand, axis: int = -1) -> Value:
    """The logarithm of softmax along `axis`, computed without rounding through softmax itself."""

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

def max_pool2d(
    x: Operand,
    kernel: int | Sequence[int],
    strides: int | Sequence[int],
    padding: int | Sequence[int] = ...,
) -> tuple[Value, ...]:
    """The largest element of each window, and its flat position in the H * W plane of x."""

def max_pool2d_grad(gy: Operand, index: Operand, input_shape: Size | Sequence[Size]) -> Value:
    """The gradient of max_pool2d."""

def maximum(a: Operand, b: Operand) -> Value:
    """Return the larger of a and b."""

def mean(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the mean over axes."""

def min(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the smallest element over axes."""

def minimum(a: Operand, b: Operand) -> Value:
    """Return the smaller of a and b."""

def mish(x: Operand) -> Value:
    """Mish."""

def mod(a: Operand, b: Operand) -> Value:
    """Return the remainder of floor division, with the sign of b."""

def mse_loss(prediction: Operand, target: Operand) -> Value:
    """The mean of (prediction - target)**2 over all elements, a scalar."""

def mul(a: Operand, b: Operand) -> Value:
    """Return a * b."""

def neg(x: Operand) -> Value:
    """Return -x."""

def nll_loss(scores: Operand, labels: Operand, reduction: str = "mean") -> Value:
    """The negative log-likelihood of each row."""

def normal(
    counter: Value,
    shape: Size | Sequence[Size],
    mean: float = 0.0,
    scale: float = 1.0,
    *,
    dtype: DTypeLike = ...,
    stream: int | None = None,
) -> Value:
    """Return normal random numbers."""

def not_equal(a: Operand, b: Operand) -> Value:
    """Return whether a != b, as bool."""

def one_hot(indices: Operand, depth: Size, dtype: DTypeLike = ...) -> Value:
    """One at the position that each index names along a new last axis, zero elsewhere."""

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

def poisson_nll_loss(log_rate: Operand, target: Operand, reduction: str = "mean") -> Value:
    """The negative log-likelihood of counts under a Poisson distribution of log-rate x, ..."""

def pow(a: Operand, b: Operand) -> Value:
    """Return a ** b, for floats as C's pow."""

def prelu(x: Operand, slope: Operand) -> Value:
    """Leaky relu with a learned slope."""

def prod(x: Operand, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Return the product over axes."""

def reciprocal(x: Operand) -> Value:
    """Return 1 / x."""

def relayout(
    x: Operand,
    permutation: int | Sequence[int] = ...,
    blocks: int | Sequence[int] = ...,
    winograd: int = 0,
) -> Value:
    """Store the elements in another order in memory."""

def relu(x: Operand) -> Value:
    """Return 0 where x <= 0, else x (so NaN stays NaN)."""

def relu6(x: Operand) -> Value:
    """Relu with a ceiling."""

def reshape(x: Operand, shape: Size | Sequence[Size]) -> Value:
    """Return the elements in row-major order under another shape."""

def rfft(x: Operand, count: int = 0) -> Value:
    """The discrete Fourier transform of real x along the last axis, not scaled."""

def rms_norm(x: Operand, gamma: Operand, eps: float = 1e-05) -> Value:
    """Root mean square normalisation."""

def round(x: Operand) -> Value:
    """Return the nearest whole number."""

def rsqrt(x: Operand) -> Value:
    """Return 1 / sqrt(x)."""

def scaled_dot_product_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    *,
    causal: bool = False,
    scale: float = 0.0,
) -> Value:
    """Attention."""

def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Size | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `fn(carry, x) -> (carry, y)` over the leading axis of xs."""

def scatter_add(
    updates: Operand,
    indices: Operand,
    shape: Size | Sequence[Size],
    axis: int = 0,
) -> Value:
    """Add slices into zeros at the indices along an axis."""

def selective_scan(
    x: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
    d: Operand,
    axis: int = -1,
) -> Value:
    """The scan of a selective state space model with one state."""

def selu(x: Operand) -> Value:
    """Scaled exponential linear unit."""

def shift_left(a: Operand, b: Operand) -> Value:
    """Return a << b."""

def shift_right(a: Operand, b: Operand) -> Value:
    """Return a >> b, which keeps the sign."""

def sigmoid(x: Operand) -> Value:
    """Return 1 / (1 + exp(-x))."""

def sign(x: Operand) -> Value:
    """Return -1, 0 or 1."""

def silu(x: Operand) -> Value:
    """Sigmoid linear unit, also called swish."""

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

def smooth_l1_loss(
    prediction: Operand,
    target: Operand,
    beta: float = 1.0,
    reduction: str = "mean",
) -> Value:
    """The error e = |prediction - target|, quadratic near zero."""

def soft_margin_loss(prediction: Operand, target: Operand, reduction: str = "mean") -> Value:
    """The logistic loss log(1 + exp(-target * prediction)) for targets 1 and -1."""

def softmax(x: Operand, axis: int = -1) -> Value:
    """The exponentials of x, scaled to the sum one along `axis`."""

def softmax_cross_entropy(logits: Operand, labels: Operand) -> Value:
    """Cross entropy of each row."""

def softplus(x: Operand) -> Value:
    """Smooth relu."""

def softsign(x: Operand) -> Value:
    """Softsign."""

def sort(x: Operand, axis: int = -1, descending: bool = False) -> tuple[Value, ...]:
    """The elements in order along an axis, and the positions that they came from."""

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

def take_along_axis(x: Operand, indices: Operand, axis: int = -1) -> Value:
    """The elements of x at the indices along an axis, as numpy.take_along_axis does."""

def tan(x: Operand) -> Value:
    """Return the tangent of x radians."""

def tanh(x: Operand) -> Value:
    """Return the hyperbolic tangent."""

def tile(x: Operand, repeats: Size | Sequence[Size]) -> Value:
    """Repeat the tensor along its axes, as numpy.tile does."""

def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> tuple[Value, ...]:
    """The k largest elements (or smallest) along an axis in order, and their positions."""

def transpose(x: Operand, permutation: int | Sequence[int] | None = None) -> Value:
    """Permute the axes."""

def trunc(x: Operand) -> Value:
    """Return x without its fraction."""

def uniform(
    counter: Value,
    shape: Size | Sequence[Size],
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: DTypeLike = ...,
    stream: int | None = None,
) -> Value:
    """Return random numbers that are uniform between `low` and `high`."""

def unpack(x: Value) -> list[Value]:
    """Return the slices of `x` along its first axis, which must have a known size."""

def unsqueeze(x: Operand, axes: int | Sequence[int]) -> Value:
    """Insert axes of size 1 at positions of the result."""

def where(condition: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the condition holds, else y."""

def while_loop(condition: Callable[[Any], Value], body: Callable[[Any], Any], init: Any) -> Any:
    """Run `carry = body(carry)` as long as `condition(carry)` holds, and return the last carry."""

def zeros(shape: Size | Sequence[Size], dtype: DTypeLike = ...) -> Value:
    """Return a tensor of zeros of a shape that may hold symbols."""

def zeros_like(x: Value) -> Value:
    """Return zeros of the dtype and shape of `x`."""
