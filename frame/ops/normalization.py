"""Normalisations: layer_norm over the last axis, batch_norm over all axes but axis 1.

Means and variances are taken in two passes (the variance of the centred values), which does not
cancel. Variances are biased: they divide by the number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, numel, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.gradients import narrowed, per_element, widened
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    OpDef,
    Operand,
    Sample,
)
from frame.ops.registry import register
from frame.ops.samples import smooth
from frame.ops.vjp import is_zeros

Attributes = Mapping[str, Attribute]
Operands = tuple[Value, ...]
Types = tuple[TensorType, ...]

EPS = AttributeSpec("eps", "float", 1e-5, "added to the variance")
GAMMA = Operand("gamma", ("float",), doc="scale")
BETA = Operand("beta", ("float",), doc="shift")


def check_eps(op: str, attributes: Attributes) -> None:
    """Check that the attribute `eps` is finite and not negative."""
    eps = attributes["eps"]
    if not (math.isfinite(eps) and eps >= 0):
        raise InvalidArgumentError(
            f"attribute 'eps' of {op} must be finite and not negative, received {eps}"
        )


def check_vectors(op: str, operands: Types, names: Sequence[str], axis: int) -> None:
    """Check that the operands after the first are vectors along `axis` of the first."""
    x = operands[0]
    expected = (x.shape[axis],)
    for name, operand in zip(names, operands[1:], strict=True):
        if operand.shape != expected:
            raise InvalidArgumentError(
                f"operand {name!r} of {op} must have the shape {shape_text(expected)}, one element "
                f"for each along axis {axis} of x {shape_text(x.shape)}, received "
                f"{shape_text(operand.shape)}"
            )


def _moments(x: Value, axes: tuple[int, ...]) -> tuple[Value, Value, Value]:
    """Return the mean, the centred values and the biased variance over `axes`, axes kept."""
    mean = ops.mean(x, axes=axes, keepdims=True)
    centred = ops.sub(x, mean)
    return mean, centred, ops.mean(ops.square(centred), axes=axes, keepdims=True)


def _inverse_deviation(variance: Value, attributes: Attributes) -> Value:
    return ops.rsqrt(ops.add(variance, attributes["eps"]))


def _input_gradient(scaled: Value, normal: Value, inverse: Value, axes: tuple[int, ...]) -> Value:
    """Return dx of normal = (x - mean) * inverse for the cotangent `scaled` of `normal`.

    The terms besides `scaled` take out what moves the mean and the variance.
    """
    mean = ops.mean(scaled, axes=axes, keepdims=True)
    correlation = ops.mean(ops.mul(scaled, normal), axes=axes, keepdims=True)
    return ops.mul(ops.sub(ops.sub(scaled, mean), ops.mul(normal, correlation)), inverse)


# --- layer_norm -----------------------------------------------------------------------------------


def _infer_layer_norm(operands: Types, attributes: Attributes) -> TensorType:
    check_eps("layer_norm", attributes)
    if operands[0].rank == 0:
        raise InvalidArgumentError("layer_norm needs at least one axis, received a scalar")
    check_vectors("layer_norm", operands, ("gamma", "beta"), -1)
    return operands[0]


def _reference_layer_norm(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, gamma, beta = operands
    centred = x - np.mean(x, -1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    return centred / np.sqrt(variance + attributes["eps"]) * gamma + beta


def _normal_rows(x: Value, attributes: Attributes) -> tuple[Value, Value]:
    """Return the normalised rows and the inverse deviation of each row."""
    _, centred, variance = _moments(x, (x.rank - 1,))
    inverse = _inverse_deviation(variance, attributes)
    return ops.mul(centred, inverse), inverse


def _build_layer_norm(operands: Operands, attributes: Attributes) -> Value:
    x, gamma, beta = operands
    normal, _ = _normal_rows(x, attributes)
    return ops.add(ops.mul(normal, gamma), beta)


def _gradient_layer_norm(context: GradientContext) -> Sequence[Value | None]:
    (x, gamma, _), (cotangent,) = context.operands, context.cotangents
    need_x, need_gamma, need_beta = context.needed
    normal, inverse = _normal_rows(x, context.attributes)
    rows, last = tuple(range(x.rank - 1)), (x.rank - 1,)

    def total(value: Value) -> Value:
        return ops.sum(value, axes=rows) if rows else value

    return [
        _input_gradient(ops.mul(cotangent, gamma), normal, inverse, last) if need_x else None,
        total(ops.mul(cotangent, normal)) if need_gamma else None,
        total(cotangent) if need_beta else None,
    ]


def _layer_norm_samples() -> Iterable[Sample]:
    for name, shape in (("rows", (3, 7)), ("vector", (5,)), ("rank_4", (2, 3, 2, 4))):
        width = shape[-1:]
        yield Sample(name, (smooth(shape), smooth(width), smooth(width, low=-1.0)))
    yield Sample("eps", (smooth((3, 7)), smooth((7,)), smooth((7,))), {"eps": 0.5})
    yield Sample("single_element", (smooth((4, 1)), smooth((1,)), smooth((1,))), gradient=False)
    yield Sample("constant_row", (np.full((2, 5), 3.0), smooth((5,)), smooth((5,))), gradient=False)
    yield Sample("empty_batch", (np.zeros((0, 4)), smooth((4,)), smooth((4,))))
    rows = smooth((3, 4))
    rows[0, 1], rows[1, 2], rows[2, 0] = np.nan, np.inf, -np.inf
    yield Sample("not_finite", (rows, smooth((4,)), smooth((4,))), gradient=False)


register(
    OpDef(
        "layer_norm",
        "Layer normalisation: (x - mean) / sqrt(variance + eps) * gamma + beta over the last axis. "
        "Source: Ba, Kiros, Hinton, arXiv 1607.06450.",
        (Operand("x", ("float",), doc="values [..., features]"), GAMMA, BETA),
        _infer_layer_norm,
        _reference_layer_norm,
        _gradient_layer_norm,
        attributes=(EPS,),
        autocast=Autocast.FLOAT32,
        decomposition=_build_layer_norm,
        samples=_layer_norm_samples,
    )
)


# --- batch_norm -----------------------------------------------------------------------------------


def _check_channels(op: str, operands: Types, names: Sequence[str], attributes: Attributes) -> None:
    check_eps(op, attributes)
    if operands[0].rank < 2:
        raise InvalidArgumentError(
            f"operand 'x' of {op} must have a batch axis and a channel axis, received the shape "
            f"{shape_text(operands[0].shape)}"
        )
    check_vectors(op, operands, names, 1)


def _reduced(rank: int) -> tuple[int, ...]:
    """Return every axis but the channel axis."""
    return tuple(axis for axis in range(rank) if axis != 1)


def along_channels(vector: Value, rank: int) -> Value:
    """Give a vector [C] the shape [C, 1, ..., 1] that broadcasts along axis 1."""
    return ops.reshape(vector, (*vector.shape, *(1,) * (rank - 2)))


def _array_along_channels(vector: np.ndarray, rank: int) -> np.ndarray:
    return vector.reshape(vector.shape[0], *(1,) * (rank - 2))


def _channel_sum(value: Value) -> Value:
    return ops.sum(value, axes=_reduced(value.rank))


def _infer_batch_norm_infer(operands: Types, attributes: Attributes) -> TensorType:
    names = ("gamma", "beta", "mean", "variance")
    _check_channels("batch_norm_infer", operands, names, attributes)
    return operands[0]


def _reference_batch_norm_infer(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> np.ndarray:
    x = operands[0]
    gamma, beta, mean, variance = (_array_along_channels(v, x.ndim) for v in operands[1:])
    with np.errstate(all="ignore"):
        return (x - mean) / np.sqrt(variance + attributes["eps"]) * gamma + beta


def _build_batch_norm_infer(operands: Operands, attributes: Attributes) -> Value:
    x = operands[0]
    gamma, beta, mean, variance = operands[1:]
    scale = ops.mul(gamma, _inverse_deviation(variance, attributes))
    centred = ops.sub(x, along_channels(mean, x.rank))
    return ops.add(ops.mul(centred, along_channels(scale, x.rank)), along_channels(beta, x.rank))


def _gradient_batch_norm_infer(context: GradientContext) -> Sequence[Value | None]:
    (x, gamma, _, mean, variance), (cotangent,) = context.operands, context.cotangents
    need_x, need_gamma, need_beta, need_mean, need_variance = context.needed
    inverse = _inverse_deviation(variance, context.attributes)
    scale = ops.mul(gamma, inverse)
    total = _channel_sum(cotangent)
    gradients: list[Value | None] = [None] * 5
    if need_x:
        gradients[0] = ops.mul(cotangent, along_channels(scale, x.rank))
    if need_gamma or need_variance:
        centred = ops.sub(x, along_channels(mean, x.rank))
        correlation = ops.mul(_channel_sum(ops.mul(cotangent, centred)), inverse)
        gradients[1] = correlation
        cubed = ops.mul(ops.mul(ops.square(inverse), gamma), correlation)
        gradients[4] = ops.mul(cubed, -0.5)
    gradients[2] = total if need_beta else None
    gradients[3] = ops.neg(ops.mul(total, scale)) if need_mean else None
    return gradients


def _infer_batch_norm_train(operands: Types, attributes: Attributes) -> Types:
    x = operands[0]
    _check_channels("batch_norm_train", operands, ("gamma", "beta"), attributes)
    if numel([x.shape[axis] for axis in _reduced(x.rank)]) == 0:
        raise InvalidArgumentError(
            "batch_norm_train needs at least one element a channel, received x of shape "
            f"{shape_text(x.shape)}; batch_norm_infer takes an empty batch"
        )
    statistic = TensorType(x.dtype, (x.shape[1],))
    return x, statistic, statistic


def _one_element(operands: Types, attributes: Attributes) -> Iterable[tuple[Size, str]]:
    """Ask for an element or more in each channel."""
    shape = operands[0].shape
    for axis in _reduced(len(shape)):
        yield shape[axis] - 1, f"an element or more on axis {axis} of {shape_text(shape)}"


def _reference_batch_norm_train(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> tuple[np.ndarray, ...]:
    x = operands[0]
    gamma, beta = (_array_along_channels(v, x.ndim) for v in operands[1:])
    axes = _reduced(x.ndim)
    centred = x - np.mean(x, axes, keepdims=True)
    variance = np.mean(centred**2, axes, keepdims=True)
    normal = centred / np.sqrt(variance + attributes["eps"])
    return normal * gamma + beta, np.mean(x, axes), variance.reshape(-1)


def _normal_channels(x: Value, attributes: Attributes) -> tuple[Value, ...]:
    """Return normalised values, centred values, inverse deviation, mean and variance."""
    mean, centred, variance = _moments(x, _reduced(x.rank))
    inverse = _inverse_deviation(variance, attributes)
    return ops.mul(centred, inverse), centred, inverse, mean, variance


def _build_batch_norm_train(operands: Operands, attributes: Attributes) -> tuple[Value, ...]:
    x, gamma, beta = operands
    normal, _, _, mean, variance = _normal_channels(x, attributes)
    y = ops.add(ops.mul(normal, along_channels(gamma, x.rank)), along_channels(beta, x.rank))
    return y, ops.reshape(mean, gamma.shape), ops.reshape(variance, gamma.shape)


def _gradient_batch_norm_train(context: GradientContext) -> Sequence[Value | None]:
    (x, gamma, _), (cotangent, to_mean, to_variance) = context.operands, context.cotangents
    need_x, need_gamma, need_beta = context.needed
    normal, centred, inverse, _, _ = _normal_channels(x, context.attributes)
    axes = _reduced(x.rank)
    total = ops.sum(widened(cotangent), axes=axes, keepdims=True)
    correlation = ops.sum(widened(ops.mul(cotangent, normal)), axes=axes, keepdims=True)
    dx = None
    if need_x:
        # Gamma is one number a channel: the sums that dx needs are the gradients of both vectors.
        moved = ops.sub(cotangent, per_element(total, x, axes, x.dtype))
        moved = ops.sub(moved, ops.mul(normal, per_element(correlation, x, axes, x.dtype)))
        dx = ops.mul(moved, ops.mul(inverse, along_channels(gamma, x.rank)))
        if not (is_zeros(to_mean) and is_zeros(to_variance)):
            dx = ops.add(dx, _through_moments(x, centred, to_mean, to_variance))
    return [
        dx,
        ops.reshape(narrowed(correlation, x.dtype), gamma.shape) if need_gamma else None,
        ops.reshape(narrowed(total, x.dtype), gamma.shape) if need_beta else None,
    ]


def _through_moments(x: Value, centred: Value, to_mean: Value, to_variance: Value) -> Value:
    """Return what reaches x through the results batch_mean and batch_variance."""
    axes = _reduced(x.rank)
    from_mean = along_channels(per_element(to_mean, x, axes, x.dtype), x.rank)
    from_variance = per_element(ops.mul(to_variance, 2.0), x, axes, x.dtype)
    from_variance = along_channels(from_variance, x.rank)
    return ops.add(ops.mul(centred, from_variance), from_mean)


def _channel_vectors(number: int, channels: int) -> list[np.ndarray]:
    return [smooth((channels,), low=0.4 + 0.3 * i, high=2.0 - 0.2 * i) for i in range(number)]


def _batch_norm_samples(vectors: int, empty: bool) -> Iterable[Sample]:
    shapes = {
        "images": (3, 2, 5, 3),
        "rows": (5, 4),
        "sequence": (2, 3, 7),
        "one_image": (1, 2, 3, 3),
    }
    for name, shape in shapes.items():
        yield Sample(name, (smooth(shape), *_channel_vectors(vectors, shape[1])))
    yield Sample("eps", (smooth((3, 2, 2, 2)), *_channel_vectors(vectors, 2)), {"eps": 0.25})
    if empty:
        yield Sample("empty_batch", (np.zeros((0, 3, 2, 2)), *_channel_vectors(vectors, 3)))
    yield Sample("no_channel", (np.zeros((3, 0, 2)), *_channel_vectors(vectors, 0)))
    values = smooth((4, 3))
    values[0, 1], values[1, 0], values[1, 2] = np.nan, np.inf, -np.inf
    yield Sample("not_finite", (values, *_channel_vectors(vectors, 3)), gradient=False)


register(
    OpDef(
        "batch_norm_infer",
        "Batch normalisation with given statistics of each channel (axis 1): "
        "(x - mean) / sqrt(variance + eps) * gamma + beta. "
        "Source: Ioffe, Szegedy, arXiv 1502.03167.",
        (
            Operand("x", ("float",), doc="values [N, C, ...]"),
            GAMMA,
            BETA,
            Operand("mean", ("float",), doc="mean of each channel"),
            Operand("variance", ("float",), doc="variance of each channel"),
        ),
        _infer_batch_norm_infer,
        _reference_batch_norm_infer,
        _gradient_batch_norm_infer,
        attributes=(EPS,),
        autocast=Autocast.FLOAT32,
        decomposition=_build_batch_norm_infer,
        samples=lambda: _batch_norm_samples(4, empty=True),
    )
)

register(
    OpDef(
        "batch_norm_train",
        "Batch normalisation with the statistics of x itself, over all axes but axis 1; also "
        "returns the mean and the biased variance of each channel. "
        "Source: Ioffe, Szegedy, arXiv 1502.03167.",
        (Operand("x", ("float",), doc="values [N, C, ...]"), GAMMA, BETA),
        _infer_batch_norm_train,
        _reference_batch_norm_train,
        _gradient_batch_norm_train,
        attributes=(EPS,),
        results=("y", "batch_mean", "batch_variance"),
        autocast=Autocast.FLOAT32,
        decomposition=_build_batch_norm_train,
        samples=lambda: _batch_norm_samples(2, empty=False),
        constraints=_one_element,
    )
)
