"""Normalisations beside layer and batch: group_norm and rms_norm, as composites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import known, numel, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite
from frame.ops.normalization import (
    BETA,
    EPS,
    GAMMA,
    along_channels,
    check_eps,
    check_vectors,
)
from frame.ops.record import AttributeSpec, Operand, Sample
from frame.ops.samples import not_finite, smooth

Operands = tuple[Value, ...]


# --- group_norm -----------------------------------------------------------------------------------


def _infer_group_norm(operands: Types, attributes: Attributes) -> TensorType:
    x, groups = operands[0], attributes["groups"]
    channels = x.shape[1] if x.rank > 1 else 0
    if x.rank < 2 or not isinstance(channels, int) or groups < 1 or channels % groups:
        raise InvalidArgumentError(
            f"group_norm takes x [N, C, ...] with a known C that divides into groups, received x "
            f"{shape_text(x.shape)} and groups {groups}"
        )
    check_eps("group_norm", attributes)
    check_vectors("group_norm", operands, ("gamma", "beta"), 1)
    return x


def _reference_group_norm(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x = operands[0]
    gamma, beta = (v.reshape(v.shape + (1,) * (x.ndim - 2)) for v in operands[1:])
    rows = math.prod(x.shape[2:]) * x.shape[1] // attributes["groups"]
    grouped = x.reshape(x.shape[0], attributes["groups"], rows)
    centred = grouped - np.mean(grouped, -1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    return (centred / np.sqrt(variance + attributes["eps"])).reshape(x.shape) * gamma + beta


def _build_group_norm(operands: Operands, attributes: Attributes) -> Value:
    x, gamma, beta = operands
    groups = attributes["groups"]
    inner = known(x.shape[1]) // groups
    grouped = ops.reshape(x, (x.shape[0], groups, numel((inner, *x.shape[2:]))))
    centred = grouped - ops.mean(grouped, axes=(2,), keepdims=True)
    variance = ops.mean(ops.square(centred), axes=(2,), keepdims=True)
    normal = ops.reshape(centred * ops.rsqrt(variance + attributes["eps"]), x.shape)
    return normal * along_channels(gamma, x.rank) + along_channels(beta, x.rank)


def _group_norm_samples() -> Iterable[Sample]:
    def sample(name: str, shape: tuple[int, ...], **attributes: object) -> Sample:
        vectors = (smooth(shape[1:2], 0.4, 2.0), smooth(shape[1:2], -1.0, 1.0, seed=1))
        return Sample(name, (smooth(shape), *vectors), attributes)

    yield sample("images", (2, 6, 3, 5), groups=3)
    yield sample("one_group", (3, 4, 2), groups=1)
    yield sample("instances", (2, 3, 7), groups=3)
    yield sample("rows", (2, 4), groups=2)
    yield sample("eps", (2, 4, 3), groups=2, eps=0.5)
    yield sample("empty_batch", (0, 4, 3), groups=2)
    yield not_finite((3, 4, 3), (4,), (4,), attributes={"groups": 2})


composite(
    "group_norm",
    "Group normalisation: (x - mean) / sqrt(variance + eps) over each group of channels (axis 1) "
    "and all axes behind, then * gamma + beta a channel. One group a channel is instance "
    "normalisation. Source: Wu, He, arXiv 1803.08494.",
    (Operand("x", ("float",), doc="values [N, C, ...]"), GAMMA, BETA),
    infer=_infer_group_norm,
    reference=_reference_group_norm,
    build=_build_group_norm,
    samples=_group_norm_samples,
    attributes=(AttributeSpec("groups", "int", doc="how many groups the channels form"), EPS),
)


# --- rms_norm -------------------------------------------------------------------------------------


def _infer_rms_norm(operands: Types, attributes: Attributes) -> TensorType:
    if operands[0].rank == 0:
        raise InvalidArgumentError("rms_norm needs at least one axis, received a scalar")
    check_eps("rms_norm", attributes)
    check_vectors("rms_norm", operands, ("gamma",), -1)
    return operands[0]


def _reference_rms_norm(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, gamma = operands
    with np.errstate(all="ignore"):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + attributes["eps"]) * gamma


def _build_rms_norm(operands: Operands, attributes: Attributes) -> Value:
    x, gamma = operands
    power = ops.mean(ops.square(x), axes=(x.rank - 1,), keepdims=True)
    return x * ops.rsqrt(power + attributes["eps"]) * gamma


def _rms_norm_samples() -> Iterable[Sample]:
    for name, shape in (("rows", (3, 7)), ("vector", (5,)), ("rank_4", (2, 3, 2, 4))):
        yield Sample(name, (smooth(shape), smooth(shape[-1:], seed=1)))
    yield Sample("eps", (smooth((3, 4)), smooth((4,))), {"eps": 0.5})
    yield Sample("empty_batch", (np.zeros((0, 4)), smooth((4,))))
    yield not_finite((3, 4), (4,))


composite(
    "rms_norm",
    "Root mean square normalisation: x / sqrt(mean(x**2) + eps) * gamma over the last axis. "
    "Source: Zhang, Sennrich, arXiv 1910.07467.",
    (Operand("x", ("float",), doc="values [..., features]"), GAMMA),
    infer=_infer_rms_norm,
    reference=_reference_rms_norm,
    build=_build_rms_norm,
    samples=_rms_norm_samples,
    attributes=(EPS,),
)
