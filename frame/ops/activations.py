"""Further activations, as composites. All keep the float dtype of `x` and propagate NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import exact_divide, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite, same_type
from frame.ops.nn import KINKS
from frame.ops.parts import cut
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    Gradient,
    GradientContext,
    InferTypes,
    Operand,
    Sample,
    Trait,
    check_above_zero,
    normal_axis,
)
from frame.ops.samples import FLOAT_EDGES, not_finite, smooth

X = Operand("x", ("float",), doc="values")
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717

Operands = tuple[Value, ...]
Array = Callable[[np.ndarray, Attributes], np.ndarray]


def _samples(variants: Mapping[str, Attributes], gradient: bool = True) -> Iterable[Sample]:
    for name, attributes in (variants or {"plain": {}}).items():
        yield Sample(f"{name}_matrix", (smooth((5, 7), -4.2, 8.1),), attributes, gradient=gradient)
        yield Sample(f"{name}_scalar", (np.asarray(0.7),), attributes, gradient=gradient)
        yield Sample(f"{name}_empty", (np.zeros((0, 3)),), attributes, gradient=gradient)
        edges = np.concatenate([FLOAT_EDGES, KINKS])
        yield Sample(f"{name}_special", (edges,), attributes, gradient=False)


def _activation(
    name: str,
    doc: str,
    reference: Array,
    build: Callable[[Value, Attributes], Value],
    *,
    attributes: tuple[AttributeSpec, ...] = (),
    infer: InferTypes = same_type,
    gradient: Gradient | None = None,
    variants: Mapping[str, Attributes] | None = None,
    smooth_samples: bool = True,
    expensive: bool = False,
) -> None:
    def compute(operands: Sequence[np.ndarray], values: Attributes) -> np.ndarray:
        with np.errstate(all="ignore"):
            return reference(operands[0], values)

    composite(
        name,
        doc,
        (X,),
        infer=infer,
        reference=compute,
        build=lambda operands, values: build(operands[0], values),
        samples=lambda: _samples(variants or {}, smooth_samples),
        gradient=gradient,
        attributes=attributes,
        traits={Trait.ELEMENTWISE} | ({Trait.EXPENSIVE} if expensive else set()),
        autocast=Autocast.FOLLOW,
    )


def _positive(op: str, name: str) -> InferTypes:
    def infer(operands: Types, attributes: Attributes) -> TensorType:
        check_above_zero(op, name, attributes)
        return operands[0]

    return infer


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


_activation(
    "mish",
    "Mish: x * tanh(softplus(x)). Source: Misra, arXiv 1908.08681.",
    lambda x, values: x * np.tanh(_softplus(x)),
    lambda x, values: x * ops.tanh(ops.softplus(x)),
    expensive=True,
)


def _falling(x: Value, slope: float) -> Value:
    # expm1 sees no positive number: it would overflow, and inf spoils the gradient of where.
    return ops.expm1(ops.minimum(x, 0.0) * slope)


_activation(
    "selu",
    "Scaled exponential linear unit: scale * (x where x > 0, else alpha * (exp(x) - 1)), with "
    "scale 1.0507 and alpha 1.6733 of the paper. Source: Klambauer et al., arXiv 1706.02515.",
    lambda x, values: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0.0))),
    lambda x, values: ops.where(
        x > 0.0, x * SELU_SCALE, _falling(x, 1.0) * (SELU_SCALE * SELU_ALPHA)
    ),
    expensive=True,
)
_activation(
    "celu",
    "Continuously differentiable exponential linear unit: x where x > 0, else "
    "alpha * (exp(x / alpha) - 1). Source: Barron, arXiv 1704.07483.",
    lambda x, values: np.where(
        x > 0, x, values["alpha"] * np.expm1(np.minimum(x, 0.0) / values["alpha"])
    ),
    lambda x, values: ops.where(x > 0.0, x, _falling(x, 1 / values["alpha"]) * values["alpha"]),
    attributes=(AttributeSpec("alpha", "float", 1.0, "limit of the negative side, negated"),),
    infer=_positive("celu", "alpha"),
    variants={"default": {}, "small": {"alpha": 0.3}},
    expensive=True,
)
_activation(
    "hardsigmoid",
    "Piecewise linear sigmoid: min(max(x + 3, 0), 6) / 6. Source: Howard et al., arXiv 1905.02244.",
    lambda x, values: np.minimum(np.maximum(x + 3.0, 0.0), 6.0) / 6,
    lambda x, values: ops.minimum(ops.maximum(x + 3.0, 0.0), 6.0) * (1 / 6),
)


def _infer_hardtanh(operands: Types, attributes: Attributes) -> TensorType:
    low, high = attributes["low"], attributes["high"]
    if not low < high:
        raise InvalidArgumentError(f"hardtanh needs low < high, received {low} and {high}")
    return operands[0]


_activation(
    "hardtanh",
    "The nearest number from low to high: min(max(x, low), high).",
    lambda x, values: np.minimum(np.maximum(x, values["low"]), values["high"]),
    lambda x, values: ops.minimum(ops.maximum(x, values["low"]), values["high"]),
    attributes=(
        AttributeSpec("low", "float", -1.0, "the smallest result"),
        AttributeSpec("high", "float", 1.0, "the largest result"),
    ),
    infer=_infer_hardtanh,
    variants={"default": {}, "wide": {"low": -2.5, "high": 5.0}},
)
_activation(
    "log_sigmoid",
    "The logarithm of sigmoid, -log(1 + exp(-x)), computed without rounding through sigmoid.",
    lambda x, values: -_softplus(-x),
    lambda x, values: -ops.softplus(-x),
    expensive=True,
)
_activation(
    "softsign",
    "Softsign: x / (1 + |x|); an infinite x gives NaN, as in torch.",
    lambda x, values: x / (1.0 + np.abs(x)),
    lambda x, values: x / (ops.abs(x) + 1.0),
)


def _gradient_heaviside(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    alpha = context.attributes["alpha"]
    firing = ops.sigmoid(x * alpha)
    return [cotangent * (firing * (1.0 - firing)) * alpha]


_activation(
    "heaviside_surrogate",
    "The step of a spiking neuron: 1 where x >= 0 (both zeros), else 0 (NaN too). Its gradient is "
    "a surrogate, that of sigmoid(alpha * x). Source: Neftci, Mostafa, Zenke, arXiv 1901.09948.",
    lambda x, values: np.where(x >= 0, 1.0, 0.0),
    lambda x, values: ops.cast(x >= 0.0, x.dtype),
    attributes=(AttributeSpec("alpha", "float", doc="steepness of the surrogate, above 0"),),
    infer=_positive("heaviside_surrogate", "alpha"),
    gradient=_gradient_heaviside,
    variants={"mild": {"alpha": 1.0}, "steep": {"alpha": 3.0}},
    smooth_samples=False,
)


# --- activations of several operands or halves ----------------------------------------------------


def _infer_prelu(operands: Types, attributes: Attributes) -> TensorType:
    x, slope = operands
    channels = x.shape[1:2]
    if slope.shape not in ((), channels) or (slope.shape and x.rank < 2):
        raise InvalidArgumentError(
            f"prelu takes a slope that is a scalar or has one element for each along axis 1 of x "
            f"{shape_text(x.shape)}, received the shape {shape_text(slope.shape)}"
        )
    return x


def _reference_prelu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, slope = operands
    along = slope.reshape(slope.shape + (1,) * max(x.ndim - 2, 0)) if slope.ndim else slope
    with np.errstate(invalid="ignore"):
        return np.where(x > 0, x, x * along)


def _build_prelu(operands: Operands, attributes: Attributes) -> Value:
    x, slope = operands
    if slope.rank:
        slope = ops.reshape(slope, (*slope.shape, *(1,) * (x.rank - 2)))
    return ops.where(x > 0.0, x, x * slope)


def _prelu_samples() -> Iterable[Sample]:
    yield Sample("images", (smooth((2, 3, 2, 2)), smooth((3,), 0.1, 0.9)))
    yield Sample("rows", (smooth((4, 3)), smooth((3,), -0.5, 0.9)))
    yield Sample("one_slope", (smooth((2, 5)), np.asarray(0.25)))
    yield Sample("scalar", (np.asarray(-0.5), np.asarray(0.25)))
    yield Sample("empty", (np.zeros((0, 3)), smooth((3,))))
    yield Sample("special", (FLOAT_EDGES, np.asarray(0.25)), gradient=False)


composite(
    "prelu",
    "Leaky relu with a learned slope: x where x > 0, else slope * x, one slope in all or one a "
    "channel (axis 1). Source: He et al., arXiv 1502.01852.",
    (X, Operand("slope", ("float",), doc="a scalar, or one number a channel")),
    infer=_infer_prelu,
    reference=_reference_prelu,
    build=_build_prelu,
    samples=_prelu_samples,
    autocast=Autocast.FOLLOW,
)


def _infer_glu(operands: Types, attributes: Attributes) -> TensorType:
    (x,), axis = operands, attributes["axis"]
    size = x.shape[axis]
    if isinstance(size, int) and size % 2:
        raise InvalidArgumentError(
            f"glu halves axis {axis} of {shape_text(x.shape)}, whose size must be even"
        )
    return TensorType(x.dtype, (*x.shape[:axis], exact_divide(size, 2), *x.shape[axis + 1 :]))


def _reference_glu(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    left, right = np.split(operands[0], 2, attributes["axis"])
    with np.errstate(all="ignore"):
        return left * np.exp(-_softplus(-right))


def _build_glu(operands: Operands, attributes: Attributes) -> Value:
    (x,), axis = operands, attributes["axis"]
    half = exact_divide(x.shape[axis], 2)
    left, right = (part for part in cut(x, (half, half), axis, (True, True)) if part is not None)
    return left * ops.sigmoid(right)


def _glu_samples() -> Iterable[Sample]:
    yield Sample("last", (smooth((3, 8)),), {"axis": -1})
    yield Sample("channels", (smooth((2, 6, 3)),), {"axis": 1})
    yield Sample("vector", (smooth((4,)),), {"axis": 0})
    yield not_finite((4, 6))
    yield Sample("empty", (np.zeros((0, 4)),))


composite(
    "glu",
    "Gated linear unit: the first half of an axis times sigmoid of the second half. "
    "Source: Dauphin et al., arXiv 1612.08083.",
    (X,),
    infer=_infer_glu,
    reference=_reference_glu,
    build=_build_glu,
    samples=_glu_samples,
    attributes=(AttributeSpec("axis", "int", -1, "the axis to halve; negative from the end"),),
    autocast=Autocast.FOLLOW,
    canonicalize=normal_axis,
)
