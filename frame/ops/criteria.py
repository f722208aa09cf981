"""Losses beside mse_loss and softmax_cross_entropy, as composites with a reduction.

Operands of a loss have one shape: nothing is broadcast, because a broadcast target is nearly
always a mistake. The reduction is the mean over all elements, their sum, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite, in_float32
from frame.ops.gather import check_indices
from frame.ops.record import AttributeSpec, Operand, Sample, Trait, axis_or_scalar, check_above_zero
from frame.ops.samples import INTEGER_DTYPES, not_finite, smooth
from frame.ops.tables import checked, positions

Operands = tuple[Value, ...]
Arrays = Sequence[np.ndarray]

REDUCTION = AttributeSpec(
    "reduction", "str", "mean", "what becomes of the elements", choices=("mean", "sum", "none")
)


def _reduced_type(type_: TensorType, attributes: Attributes) -> TensorType:
    return type_ if attributes["reduction"] == "none" else TensorType(type_.dtype, ())


def _reduce(loss: Value, attributes: Attributes) -> Value:
    if attributes["reduction"] == "none":
        return loss
    total = ops.mean if attributes["reduction"] == "mean" else ops.sum
    return total(loss, axes=tuple(range(loss.rank)))


def _reduce_array(loss: np.ndarray, attributes: Attributes) -> np.ndarray:
    if attributes["reduction"] == "none":
        return loss
    with np.errstate(all="ignore"):
        total = np.sum(loss)
        return total / np.float64(loss.size) if attributes["reduction"] == "mean" else total


# --- losses of two tensors of one shape -----------------------------------------------------------


def _same_shape(op: str, positive: Sequence[str], operands: Types, attributes: Attributes) -> None:
    first, second = operands[:2]
    if first.shape != second.shape:
        raise InvalidArgumentError(
            f"{op} takes a prediction and a target of one shape, received "
            f"{shape_text(first.shape)} and {shape_text(second.shape)}; nothing is broadcast"
        )
    for name in positive:
        check_above_zero(op, name, attributes)


def _pair_samples(
    ranges: tuple[tuple[float, float], tuple[float, float]], variants: Sequence[Attributes]
) -> Iterable[Sample]:
    for number, attributes in enumerate(variants):
        for name, shape in (("matrix", (5, 3)), ("scalar", ()), ("images", (2, 3, 2, 2))):
            pair = (smooth(shape, *ranges[0]), smooth(shape, *ranges[1], seed=1))
            yield Sample(f"{name}_{number}", pair, attributes)
        empty = (np.zeros((0, 2)), np.zeros((0, 2)))
        yield Sample(f"empty_{number}", empty, {**attributes, "reduction": "sum"}, gradient=False)
    yield not_finite((3, 3), (3, 3), attributes={"reduction": "none"})
    for reduction in ("sum", "none"):
        pair = (smooth((4, 3), *ranges[0], seed=2), smooth((4, 3), *ranges[1], seed=3))
        yield Sample(reduction, pair, {"reduction": reduction})


def _loss(
    name: str,
    doc: str,
    names: tuple[str, str],
    reference: Callable[[np.ndarray, np.ndarray, Attributes], np.ndarray],
    build: Callable[[Value, Value, Attributes], Value],
    *,
    attributes: tuple[AttributeSpec, ...] = (),
    ranges: tuple[tuple[float, float], tuple[float, float]] = ((-2.0, 2.0), (-1.1, 2.3)),
    variants: Sequence[Attributes] = ({},),
) -> None:
    positive = tuple(spec.name for spec in attributes)

    def infer(operands: Types, values: Attributes) -> TensorType:
        _same_shape(name, positive, operands, values)
        return _reduced_type(operands[0], values)

    def compute(operands: Arrays, values: Attributes) -> np.ndarray:
        with np.errstate(all="ignore"):
            return _reduce_array(reference(operands[0], operands[1], values), values)

    composite(
        name,
        doc,
        tuple(Operand(label, ("float",), doc="values of any one shape") for label in names),
        infer=infer,
        reference=compute,
        build=lambda operands, values: _reduce(build(operands[0], operands[1], values), values),
        samples=lambda: _pair_samples(ranges, variants),
        attributes=(*attributes, REDUCTION),
        results=("loss",),
    )


def _huber(error: Value, quadratic: Value, linear: Value, limit: float) -> Value:
    return ops.where(error < limit, quadratic, linear)


_PAIR = ("prediction", "target")
_loss(
    "l1_loss",
    "The absolute error |prediction - target|.",
    _PAIR,
    lambda p, t, values: np.abs(p - t),
    lambda p, t, values: ops.abs(p - t),
)
_loss(
    "smooth_l1_loss",
    "The error e = |prediction - target|, quadratic near zero: e**2 / (2 beta) below beta, else "
    "e - beta / 2. Source: Girshick, arXiv 1504.08083.",
    _PAIR,
    lambda p, t, values: np.where(
        np.abs(p - t) < values["beta"],
        (p - t) ** 2 / (2 * values["beta"]),
        np.abs(p - t) - values["beta"] / 2,
    ),
    lambda p, t, values: _huber(
        ops.abs(p - t),
        ops.square(p - t) * (0.5 / values["beta"]),
        ops.abs(p - t) - values["beta"] / 2,
        values["beta"],
    ),
    attributes=(AttributeSpec("beta", "float", 1.0, "where the quadratic part ends"),),
    variants=({}, {"beta": 0.3}),
)
_loss(
    "huber_loss",
    "The error e = |prediction - target|, quadratic near zero: e**2 / 2 below delta, else "
    "delta * (e - delta / 2). Source: Huber, Annals of Mathematical Statistics 35 (1964).",
    _PAIR,
    lambda p, t, values: np.where(
        np.abs(p - t) < values["delta"],
        (p - t) ** 2 / 2,
        values["delta"] * (np.abs(p - t) - values["delta"] / 2),
    ),
    lambda p, t, values: _huber(
        ops.abs(p - t),
        ops.square(p - t) * 0.5,
        (ops.abs(p - t) - values["delta"] / 2) * values["delta"],
        values["delta"],
    ),
    attributes=(AttributeSpec("delta", "float", 1.0, "where the quadratic part ends"),),
    variants=({}, {"delta": 0.3}),
)
_loss(
    "binary_cross_entropy_with_logits",
    "The cross entropy of the probability sigmoid(logits) and a target in [0, 1], computed as "
    "max(x, 0) - x * target + log1p(exp(-|x|)), which does not overflow.",
    ("logits", "target"),
    lambda x, t, values: np.maximum(x, 0.0) - x * t + np.log1p(np.exp(-np.abs(x))),
    lambda x, t, values: ops.softplus(x) - x * t,
    ranges=((-4.0, 4.0), (0.05, 0.95)),
)
_loss(
    "binary_cross_entropy",
    "The cross entropy -(target * log(p) + (1 - target) * log(1 - p)) of a probability and a "
    "target in [0, 1]; logarithms are at least -100, as in torch. Prefer "
    "binary_cross_entropy_with_logits, which does not round through sigmoid.",
    ("probability", "target"),
    lambda p, t, values: (
        -(t * np.maximum(np.log(p), -100.0) + (1 - t) * np.maximum(np.log1p(-p), -100.0))
    ),
    lambda p, t, values: (
        -(t * ops.maximum(ops.log(p), -100.0) + (1.0 - t) * ops.maximum(ops.log1p(-p), -100.0))
    ),
    ranges=((0.06, 0.93), (0.05, 0.95)),
)


def _entropy_term(t: Value) -> Value:
    # log(1) where the target is 0: 0 * log(0) counts as 0, and so does its gradient.
    return ops.where(t > 0.0, t * ops.log(ops.where(t > 0.0, t, 1.0)), 0.0)


_loss(
    "kl_div",
    "The Kullback-Leibler divergence, element by element: target * (log(target) - prediction), "
    "where the prediction is a logarithm (of log_softmax) and a target of 0 gives 0.",
    ("log_prediction", "target"),
    lambda p, t, values: np.where(t > 0, t * np.log(np.where(t > 0, t, 1.0)), 0.0) - t * p,
    lambda p, t, values: _entropy_term(t) - t * p,
    ranges=((-3.0, -0.1), (0.05, 0.95)),
)
_loss(
    "soft_margin_loss",
    "The logistic loss log(1 + exp(-target * prediction)) for targets 1 and -1.",
    _PAIR,
    lambda p, t, values: np.maximum(-t * p, 0.0) + np.log1p(np.exp(-np.abs(t * p))),
    lambda p, t, values: ops.softplus(-(t * p)),
)
_loss(
    "poisson_nll_loss",
    "The negative log-likelihood of counts under a Poisson distribution of log-rate x, without the "
    "term that depends on the target alone: exp(x) - target * x.",
    ("log_rate", "target"),
    lambda x, t, values: np.exp(x) - t * x,
    lambda x, t, values: ops.exp(x) - t * x,
    ranges=((-2.0, 2.0), (0.0, 3.0)),
)


# --- negative log-likelihood ----------------------------------------------------------------------


def _infer_nll(operands: Types, attributes: Attributes) -> TensorType:
    scores, labels = operands
    if scores.rank == 0 or scores.shape[:-1] != labels.shape:
        raise InvalidArgumentError(
            "nll_loss takes log-probabilities [..., classes] and one label for each row, received "
            f"{shape_text(scores.shape)} and labels {shape_text(labels.shape)}"
        )
    return _reduced_type(TensorType(scores.dtype, labels.shape), attributes)


def _reference_nll(operands: Arrays, attributes: Attributes) -> np.ndarray:
    scores, labels = operands
    check_indices("nll_loss", labels, scores.shape[-1])
    chosen = np.take_along_axis(scores, labels.astype(np.int64)[..., None], -1)
    return _reduce_array(-chosen[..., 0], attributes)


def _build_nll(operands: Operands, attributes: Attributes) -> Value:
    scores, labels = operands
    classes = scores.shape[-1]
    label = ops.reshape(checked(labels, classes), (*labels.shape, 1))
    # Chosen by where, not by a product: -inf * 0 is NaN.
    chosen = ops.where(ops.equal(label, positions(classes)), scores, 0.0)
    return _reduce(-ops.sum(chosen, axes=(scores.rank - 1,)), attributes)


def _nll_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((4, 3), -3.0, 0.0), np.array([2, 0, 1, 1])), fixed=(1,))
    none = {"reduction": "none"}
    pixels = np.arange(6).reshape(2, 3) % 4
    yield Sample("none", (smooth((2, 3, 4), -3.0, 0.0), pixels), none, fixed=(1,))
    yield Sample("sum", (smooth((3, 2)), np.array([1, 0, 1])), {"reduction": "sum"}, fixed=(1,))
    yield Sample("vector", (smooth((4,)), np.asarray(2)), fixed=(1,))
    yield Sample("empty", (np.zeros((0, 3)), np.zeros(0, np.int64)), none, fixed=(1,))
    for row in INTEGER_DTYPES:
        yield Sample(f"{row}", (smooth((3, 3)), np.array([1, 0, 2], row.numpy)), fixed=(1,))
    rows = np.array([[-np.inf, 0.0], [np.nan, -1.0], [np.inf, 1.0]])
    yield Sample("not_finite", (rows, np.array([1, 1, 0])), none, fixed=(1,), gradient=False)


composite(
    "nll_loss",
    "The negative log-likelihood of each row: -scores[label], where the scores are logarithms of "
    "probabilities. Labels are checked when the graph runs.",
    (
        Operand("scores", ("float",), doc="log-probabilities [..., classes]"),
        Operand("labels", ("int", "uint"), group="L", doc="classes [...]"),
    ),
    infer=_infer_nll,
    reference=_reference_nll,
    build=_build_nll,
    samples=_nll_samples,
    attributes=(REDUCTION,),
    results=("loss",),
    traits={Trait.CHECKED},
)


# --- cosine ---------------------------------------------------------------------------------------

_COSINE: Mapping[str, AttributeSpec] = {
    "axis": AttributeSpec("axis", "int", -1, "the axis of the vectors; negative from the end"),
    "eps": AttributeSpec("eps", "float", 1e-8, "the least product of the lengths"),
}


def _infer_cosine(operands: Types, attributes: Attributes) -> TensorType:
    first, second = operands
    if first.shape != second.shape or first.rank == 0:
        raise InvalidArgumentError(
            "cosine_similarity takes two tensors of one shape with an axis or more, received "
            f"{shape_text(first.shape)} and {shape_text(second.shape)}"
        )
    if not attributes["eps"] > 0:
        raise InvalidArgumentError(
            f"attribute 'eps' of cosine_similarity must be above 0, received {attributes['eps']}"
        )
    axis = attributes["axis"]
    return TensorType(first.dtype, (*first.shape[:axis], *first.shape[axis + 1 :]))


def _reference_cosine(operands: Arrays, attributes: Attributes) -> np.ndarray:
    (a, b), axis = operands, attributes["axis"]
    lengths = np.sqrt(np.sum(a * a, axis)) * np.sqrt(np.sum(b * b, axis))
    return np.sum(a * b, axis) / np.maximum(lengths, attributes["eps"])


def _build_cosine(operands: Operands, attributes: Attributes) -> Value:
    (a, b), axes = operands, (attributes["axis"],)
    lengths = ops.sqrt(ops.sum(a * a, axes=axes)) * ops.sqrt(ops.sum(b * b, axes=axes))
    return ops.sum(a * b, axes=axes) / ops.maximum(lengths, attributes["eps"])


def _cosine_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((3, 5)), smooth((3, 5), seed=1)))
    yield Sample("columns", (smooth((4, 2)), smooth((4, 2), seed=1)), {"axis": -2})
    yield Sample("vector", (smooth((6,)), smooth((6,), seed=2)))
    yield not_finite((4, 3), (4, 3))
    yield Sample("zero", (np.zeros((2, 3)), smooth((2, 3))), gradient=False)
    yield Sample("empty", (np.zeros((0, 3)), np.zeros((0, 3))))


composite(
    "cosine_similarity",
    "The cosine of the angle between vectors along an axis: a . b / max(|a| |b|, eps).",
    (
        Operand("a", ("float",), doc="vectors"),
        Operand("b", ("float",), doc="vectors of the same shape"),
    ),
    infer=_infer_cosine,
    reference=_reference_cosine,
    build=in_float32(_build_cosine),
    samples=_cosine_samples,
    attributes=tuple(_COSINE.values()),
    canonicalize=axis_or_scalar,
)
