"""Attention as a composite: softmax(q k^T * scale + mask) v."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import broadcast_shapes, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite
from frame.ops.record import AttributeSpec, Autocast, Operand, Sample
from frame.ops.samples import not_finite, smooth

Operands = tuple[Value, ...]


def _scale(features: object, attributes: Attributes) -> float:
    """Return the factor of the scores: given, or 1 / sqrt(features) for 0."""
    given = float(attributes["scale"])
    if given != 0.0:
        return given
    if not isinstance(features, int):
        raise InvalidArgumentError(
            f"scaled_dot_product_attention needs a known number of features or a scale, received "
            f"{features}"
        )
    return 1 / math.sqrt(max(features, 1))


def _infer(operands: Types, attributes: Attributes) -> TensorType:
    q, k, v = operands[:3]
    ranks = min(t.rank for t in operands[:3]) < 2
    if ranks or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise InvalidArgumentError(
            "scaled_dot_product_attention takes q [..., queries, features], k [..., keys, "
            f"features] and v [..., keys, values], received {shape_text(q.shape)}, "
            f"{shape_text(k.shape)} and {shape_text(v.shape)}"
        )
    _scale(q.shape[-1], attributes)
    batch = broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    scores = (*batch, q.shape[-2], k.shape[-2])
    if len(operands) > 3 and broadcast_shapes(operands[3].shape, scores) != scores:
        raise InvalidArgumentError(
            f"the mask of scaled_dot_product_attention must broadcast to the scores "
            f"{shape_text(scores)}, received {shape_text(operands[3].shape)}"
        )
    return TensorType(q.dtype, (*batch, q.shape[-2], v.shape[-1]))


def _reference(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    q, k, v = operands[:3]
    scores = q @ np.swapaxes(k, -1, -2) * _scale(q.shape[-1], attributes)
    if len(operands) > 3:
        mask = operands[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if attributes["causal"]:
        rows, columns = scores.shape[-2:]
        scores = np.where(np.tri(rows, columns, dtype=bool), scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        # A row without any key attends to nothing: its weights are 0, not NaN.
        weights = np.exp(scores - np.where(top == -np.inf, 0.0, top))
        total = np.sum(weights, -1, keepdims=True)
        return weights / np.where(total == 0, 1.0, total) @ v


def _build(operands: Operands, attributes: Attributes) -> Value:
    q, k, v = operands[:3]
    scores = ops.matmul(q * _scale(q.shape[-1], attributes), k, transpose_b=True)
    allowed: Value | None = None
    if len(operands) > 3:
        mask = operands[3]
        if mask.dtype.is_bool:
            allowed = mask
        else:
            scores = scores + mask
    if attributes["causal"]:
        seen = _earlier(scores)
        allowed = seen if allowed is None else ops.logical_and(allowed, seen)
    if allowed is not None:
        scores = ops.where(allowed, scores, -math.inf)
    if len(operands) == 3 and allowed is None:
        return ops.matmul(ops.softmax(scores, axis=scores.rank - 1), v)
    return ops.matmul(_guarded_softmax(scores), v)


def _earlier(scores: Value) -> Value:
    """Return whether each key stands at or before each query."""
    rows, columns = scores.shape[-2:]
    row = ops.iota(shape=(rows, 1), axis=0, dtype=int64)
    return ops.less_equal(ops.iota(shape=(1, columns), axis=1, dtype=int64), row)


def _guarded_softmax(scores: Value) -> Value:
    """Return softmax over the last axis, with zeros where a row is -inf throughout."""
    last = (scores.rank - 1,)
    if scores.shape[-1] == 0:
        return scores
    top = ops.stop_gradient(ops.max(scores, axes=last, keepdims=True))
    top = ops.where(ops.equal(top, -math.inf), 0.0, top)
    weights = ops.exp(scores - top)
    total = ops.sum(weights, axes=last, keepdims=True)
    return weights / ops.where(ops.equal(total, 0.0), 1.0, total)


def _samples() -> Iterable[Sample]:
    def qkv(queries: int, keys: int, *batch: int) -> tuple[np.ndarray, ...]:
        shapes = ((*batch, queries, 4), (*batch, keys, 4), (*batch, keys, 3))
        return tuple(smooth(shape, seed=seed) for seed, shape in enumerate(shapes))

    heads = qkv(3, 5, 2, 2)
    yield Sample("heads", (*heads, None))
    yield Sample("one_head", (*qkv(4, 4), None), {"causal": True})
    yield Sample("small", (*(smooth((2, 2), seed=s) for s in range(3)), None), {"causal": True})
    yield Sample("causal_cross", (*qkv(3, 5, 2), None), {"causal": True})
    yield Sample("scale", (*qkv(2, 3), None), {"scale": 0.3})
    additive = smooth((3, 5), -1.0, 1.0, seed=7)
    yield Sample("additive", (*heads, additive))
    allowed = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]], bool)
    yield Sample("bool", (*heads, allowed))
    yield Sample("both", (*heads, allowed[None]), {"causal": True}, gradient=False)
    yield Sample("nothing_allowed", (*qkv(3, 5), np.zeros((3, 5), bool)))
    special = not_finite((2, 3, 4), (2, 5, 4), (2, 5, 3))
    yield Sample("not_finite", (*special.operands, None), gradient=False)
    yield Sample("empty", (*qkv(0, 5, 2), None))
    shared = (smooth((2, 3, 4)), smooth((5, 4)), smooth((5, 3)), None)
    yield Sample("shared_keys", shared)


composite(
    "scaled_dot_product_attention",
    "Attention: softmax(q k^T * scale + mask) v over the keys. A bool mask says which keys count, "
    "a float mask is added to the scores; `causal` lets query i see the keys 0 to i. A query that "
    "may see no key gives zeros. Source: Vaswani et al., arXiv 1706.03762.",
    (
        Operand("q", ("float",), doc="queries [..., queries, features]"),
        Operand("k", ("float",), doc="keys [..., keys, features]"),
        Operand("v", ("float",), doc="values [..., keys, values]"),
        Operand("mask", ("float", "bool"), "", optional=True, doc="broadcasts to the scores,"),
    ),
    infer=_infer,
    reference=_reference,
    build=_build,
    samples=_samples,
    attributes=(
        AttributeSpec("causal", "bool", False, "whether a query sees no later key"),
        AttributeSpec("scale", "float", 0.0, "factor of the scores; 0 is 1 / sqrt(features)"),
    ),
    autocast=Autocast.LOW,
)
