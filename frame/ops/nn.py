"""Activations and softmax: composites with stable decompositions.

All of them keep the shape and the float dtype of `x` and propagate NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.elementwise import sigmoid_array
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    Decomposition,
    Gradient,
    GradientContext,
    InferTypes,
    OpDef,
    Operand,
    Reference,
    Sample,
    Trait,
    normal_axis,
)
from frame.ops.registry import register
from frame.ops.samples import FLOAT_EDGES, smooth
from frame.ops.vjp import composite_gradient, zeros_like

Attributes = Mapping[str, Attribute]
Operands = tuple[Value, ...]

X = Operand("x", ("float",), doc="values")
SQRT_HALF = math.sqrt(0.5)
SQRT_TWO_OVER_PI = math.sqrt(2 / math.pi)
TANH_CUBIC = 0.044715

KINKS = np.array([-1e3, -20.0, -3.0, -1e-8, 1e-8, 3.0, 6.0, 20.0, 1e3])
"""Where the piecewise activations change, tiny numbers, and saturation on both sides."""


# --- activations ----------------------------------------------------------------------------------


def _same(operands: tuple[TensorType, ...], attributes: Attributes) -> TensorType:
    return operands[0]


def _elementwise_samples(**variants: Attributes) -> Iterable[Sample]:
    for name, attributes in (variants or {"plain": {}}).items():
        yield Sample(f"{name}_matrix", (smooth((5, 7), -4.0, 8.0),), attributes)
        yield Sample(f"{name}_scalar", (np.asarray(0.7),), attributes)
        yield Sample(f"{name}_empty", (np.zeros((0, 3)),), attributes)
        yield Sample(
            f"{name}_special", (np.concatenate([FLOAT_EDGES, KINKS]),), attributes, gradient=False
        )


def _activation(
    name: str,
    doc: str,
    reference: Reference,
    decomposition: Decomposition,
    *,
    gradient: Gradient | None = None,
    attributes: tuple[AttributeSpec, ...] = (),
    infer: InferTypes = _same,
    expensive: bool = False,
    variants: Mapping[str, Attributes] | None = None,
) -> None:
    traits = {Trait.ELEMENTWISE} | ({Trait.EXPENSIVE} if expensive else set())
    register(
        OpDef(
            name,
            doc,
            (X,),
            infer,
            reference,
            gradient or composite_gradient(decomposition),
            attributes=attributes,
            traits=frozenset(traits),
            decomposition=decomposition,
            samples=lambda: _elementwise_samples(**(variants or {})),
        )
    )


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda v: 0.5 * math.erfc(-v * SQRT_HALF), otypes=[np.float64])(x)


def _reference_gelu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    with np.errstate(all="ignore"):
        if attributes["approximate"] == "tanh":
            return x * sigmoid_array(2 * SQRT_TWO_OVER_PI * (x + TANH_CUBIC * x**3))
        return x * _normal_cdf(x)


def _build_gelu(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    if attributes["approximate"] == "tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2 z), which does not cancel for negative z.
        inner = ops.mul(x, ops.add(ops.mul(ops.square(x), TANH_CUBIC), 1.0))
        return ops.mul(x, ops.sigmoid(ops.mul(inner, 2 * SQRT_TWO_OVER_PI)))
    return ops.mul(x, ops.mul(ops.add(ops.erf(ops.mul(x, SQRT_HALF)), 1.0), 0.5))


_activation(
    "gelu",
    "Gaussian error linear unit: x * Phi(x), Phi the standard normal distribution function; "
    "`approximate='tanh'` takes the tanh form. gelu(-inf) is NaN, as in torch. "
    "Source: Hendrycks, Gimpel, arXiv 1606.08415.",
    _reference_gelu,
    _build_gelu,
    attributes=(
        AttributeSpec("approximate", "str", "none", "the form of Phi", choices=("none", "tanh")),
    ),
    expensive=True,
    variants={"exact": {"approximate": "none"}, "tanh": {"approximate": "tanh"}},
)


def _reference_silu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    with np.errstate(all="ignore"):
        return operands[0] * sigmoid_array(operands[0])


def _gradient_silu(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    weight = ops.sigmoid(x)
    slope = ops.mul(weight, ops.add(ops.mul(x, ops.sub(1.0, weight)), 1.0))
    return [ops.mul(cotangent, slope)]


_activation(
    "silu",
    "Sigmoid linear unit, also called swish: x * sigmoid(x). silu(-inf) is NaN, as in torch.",
    _reference_silu,
    lambda operands, attributes: ops.mul(operands[0], ops.sigmoid(operands[0])),
    gradient=_gradient_silu,
    expensive=True,
)


def _reference_softplus(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _build_softplus(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    tail = ops.log1p(ops.exp(ops.neg(ops.abs(x))))
    return ops.add(ops.maximum(x, 0.0), tail)


_activation(
    "softplus",
    "Smooth relu: log(1 + exp(x)), computed as max(x, 0) + log1p(exp(-|x|)).",
    _reference_softplus,
    _build_softplus,
    gradient=lambda context: [ops.mul(context.cotangents[0], ops.sigmoid(context.operands[0]))],
    expensive=True,
)


def _finite_attribute(name: str) -> InferTypes:
    def infer(operands: tuple[TensorType, ...], attributes: Attributes) -> TensorType:
        if not math.isfinite(attributes[name]):
            raise InvalidArgumentError(
                f"attribute {name!r} must be finite, received {attributes[name]}"
            )
        return operands[0]

    return infer


def _reference_leaky_relu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    with np.errstate(invalid="ignore"):
        return np.where(x > 0, x, x * attributes["slope"])


def _build_leaky_relu(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    return ops.where(ops.greater(x, 0.0), x, ops.mul(x, attributes["slope"]))


def _gradient_leaky_relu(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    falling = ops.mul(cotangent, context.attributes["slope"])
    return [ops.where(ops.greater(x, 0.0), cotangent, falling)]


_activation(
    "leaky_relu",
    "Leaky relu: x where x > 0, else slope * x. The derivative at 0 is the slope.",
    _reference_leaky_relu,
    _build_leaky_relu,
    gradient=_gradient_leaky_relu,
    attributes=(AttributeSpec("slope", "float", 0.01, "derivative of the negative side"),),
    infer=_finite_attribute("slope"),
    variants={"default": {}, "steep": {"slope": 1.5}, "negative": {"slope": -0.25}},
)


def _reference_elu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    return np.where(x > 0, x, attributes["alpha"] * np.expm1(np.minimum(x, 0.0)))


def _build_elu(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    # expm1 sees no positive number: it would overflow, and inf spoils the gradient of where.
    falling = ops.mul(ops.expm1(ops.minimum(x, 0.0)), attributes["alpha"])
    return ops.where(ops.greater(x, 0.0), x, falling)


def _gradient_elu(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    slope = ops.mul(ops.exp(ops.minimum(x, 0.0)), context.attributes["alpha"])
    return [ops.where(ops.greater(x, 0.0), cotangent, ops.mul(cotangent, slope))]


_activation(
    "elu",
    "Exponential linear unit: x where x > 0, else alpha * (exp(x) - 1). "
    " Source: Clevert et al., arXiv 1511.07289.",
    _reference_elu,
    _build_elu,
    gradient=_gradient_elu,
    attributes=(AttributeSpec("alpha", "float", 1.0, "limit of the negative side, negated"),),
    infer=_finite_attribute("alpha"),
    expensive=True,
    variants={"default": {}, "small": {"alpha": 0.3}},
)


def _reference_relu6(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    return np.minimum(np.maximum(operands[0], 0.0), 6.0)


def _build_relu6(operands: Operands, attributes: Attributes) -> Value:
    return ops.minimum(ops.maximum(operands[0], 0.0), 6.0)


def _inside(x: Value, low: float, high: float, inner: Value, below: Value, above: Value) -> Value:
    """Choose by low < x < high; NaN counts as inside."""
    upper = ops.where(ops.greater_equal(x, high), above, inner)
    return ops.where(ops.less_equal(x, low), below, upper)


def _gradient_relu6(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    zero = zeros_like(cotangent)
    return [_inside(x, 0.0, 6.0, cotangent, zero, zero)]


_activation(
    "relu6",
    "Relu with a ceiling: min(max(x, 0), 6). The derivative at both kinks is 0.",
    _reference_relu6,
    _build_relu6,
    gradient=_gradient_relu6,
)


def _reference_hardswish(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    with np.errstate(invalid="ignore"):
        return x * np.minimum(np.maximum(x + 3.0, 0.0), 6.0) * (1 / 6)


def _build_hardswish(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    gate = ops.minimum(ops.maximum(ops.add(x, 3.0), 0.0), 6.0)
    return ops.mul(ops.mul(x, gate), 1 / 6)


def _gradient_hardswish(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    slope = ops.add(ops.mul(x, 1 / 3), 0.5)
    inner = ops.mul(cotangent, slope)
    return [_inside(x, -3.0, 3.0, inner, zeros_like(cotangent), cotangent)]


_activation(
    "hardswish",
    "Piecewise approximation of silu: x * min(max(x + 3, 0), 6) / 6. "
    " Source: Howard et al., arXiv 1905.02244.",
    _reference_hardswish,
    _build_hardswish,
    gradient=_gradient_hardswish,
)


# --- softmax --------------------------------------------------------------------------------------

AXIS = AttributeSpec("axis", "int", -1, "the axis whose elements sum to one; negative from the end")


def _shifted(x: np.ndarray, axis: int) -> np.ndarray:
    """Return x minus its maximum, so that no exponential overflows."""
    with np.errstate(invalid="ignore"):
        return x - np.max(x, axis, keepdims=True, initial=-np.inf)


def _reference_softmax(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    axis = attributes["axis"]
    weights = np.exp(_shifted(operands[0], axis))
    return weights / np.sum(weights, axis, keepdims=True)


def _reference_log_softmax(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    axis = attributes["axis"]
    shifted = _shifted(operands[0], axis)
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def shift_by_maximum(x: Value, axis: int) -> Value:
    """Return x minus its maximum along `axis`, so that no exponential of it overflows."""
    return ops.sub(x, ops.max(x, axes=(axis,), keepdims=True))


def _build_softmax(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    axis = attributes["axis"]
    if x.shape[axis] == 0:
        return x
    weights = ops.exp(shift_by_maximum(x, axis))
    return ops.div(weights, ops.sum(weights, axes=(axis,), keepdims=True))


def _build_log_softmax(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    axis = attributes["axis"]
    if x.shape[axis] == 0:
        return x
    shifted = shift_by_maximum(x, axis)
    return ops.sub(shifted, ops.log(ops.sum(ops.exp(shifted), axes=(axis,), keepdims=True)))


def _gradient_softmax(context: GradientContext) -> Sequence[Value | None]:
    (y,), (cotangent,) = context.results, context.cotangents
    axis = context.attributes["axis"]
    mean = ops.sum(ops.mul(cotangent, y), axes=(axis,), keepdims=True)
    return [ops.mul(ops.sub(cotangent, mean), y)]


def _gradient_log_softmax(context: GradientContext) -> Sequence[Value | None]:
    (y,), (cotangent,) = context.results, context.cotangents
    total = ops.sum(cotangent, axes=(context.attributes["axis"],), keepdims=True)
    return [ops.sub(cotangent, ops.mul(ops.exp(y), total))]


def _softmax_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((5, 7)),), {"axis": -1})
    yield Sample("columns", (smooth((5, 7)),), {"axis": 0})
    yield Sample("middle", (smooth((2, 3, 4)),), {"axis": 1})
    yield Sample("vector", (smooth((9,)),))
    yield Sample("single", (smooth((4, 1)),))
    yield Sample("empty_batch", (np.zeros((0, 3)),))
    yield Sample("empty_axis", (np.zeros((3, 0)),))
    yield Sample("large", (smooth((3, 5)) * 3e2,), gradient=False)
    rows = np.tile(np.array([0.5, -1.0, 2.0]), (4, 1))
    rows[0, 1], rows[1, 2], rows[2, 0], rows[3] = np.nan, np.inf, -np.inf, -np.inf
    yield Sample("not_finite", (rows,), gradient=False)


def _register_softmax(
    name: str, doc: str, reference: Reference, build: Decomposition, gradient: Gradient
) -> None:
    register(
        OpDef(
            name,
            doc,
            (X,),
            _same,
            reference,
            gradient,
            attributes=(AXIS,),
            traits=frozenset({Trait.EXPENSIVE}),
            autocast=Autocast.FLOAT32,
            decomposition=build,
            samples=_softmax_samples,
            canonicalize=normal_axis,
        )
    )


_register_softmax(
    "softmax",
    "The exponentials of x, scaled to the sum one along `axis`; the maximum is subtracted "
    "first. A slice that holds NaN or +inf, or nothing but -inf, becomes NaN.",
    _reference_softmax,
    _build_softmax,
    _gradient_softmax,
)
_register_softmax(
    "log_softmax",
    "The logarithm of softmax along `axis`, computed without rounding through softmax itself.",
    _reference_log_softmax,
    _build_log_softmax,
    _gradient_log_softmax,
)
