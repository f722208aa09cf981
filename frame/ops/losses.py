"""Losses: mse_loss and softmax_cross_entropy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import int32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.gradients import per_element
from frame.ops.nn import shift_by_maximum
from frame.ops.record import Autocast, GradientContext, OpDef, Operand, Sample, Trait
from frame.ops.registry import register
from frame.ops.samples import INTEGER_DTYPES, smooth

Attributes = Mapping[str, Attribute]
Operands = tuple[Value, ...]
Types = tuple[TensorType, ...]


# --- mse_loss -------------------------------------------------------------------------------------


def _infer_mse_loss(operands: Types, attributes: Attributes) -> TensorType:
    prediction, target = operands
    if prediction.shape != target.shape:
        raise InvalidArgumentError(
            "mse_loss takes a prediction and a target of one shape, received "
            f"{shape_text(prediction.shape)} and {shape_text(target.shape)}; nothing is broadcast, "
            "because a broadcast target is nearly always a mistake"
        )
    return TensorType(prediction.dtype, ())


def _reference_mse_loss(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    prediction, target = operands
    with np.errstate(all="ignore"):
        squares = (prediction - target) ** 2
        return np.sum(squares) / np.float64(squares.size)


def _build_mse_loss(operands: Operands, attributes: Attributes) -> Value:
    difference = ops.sub(*operands)
    return ops.mean(ops.square(difference), axes=tuple(range(difference.rank)))


def _gradient_mse_loss(context: GradientContext) -> Sequence[Value | None]:
    (prediction, target), (cotangent,) = context.operands, context.cotangents
    axes = range(prediction.rank)
    scale = per_element(ops.mul(cotangent, 2.0), prediction, axes, prediction.dtype)
    gradient = ops.mul(ops.sub(prediction, target), scale)
    need_prediction, need_target = context.needed
    return [gradient if need_prediction else None, ops.neg(gradient) if need_target else None]


def _mse_loss_samples() -> Iterable[Sample]:
    for name, shape in (("matrix", (5, 3)), ("scalar", ()), ("images", (2, 3, 4, 5))):
        yield Sample(name, (smooth(shape), smooth(shape, low=-1.0, high=2.0)))
    yield Sample("equal", (np.ones((3,)), np.ones((3,))))
    yield Sample("empty", (np.zeros((0, 2)), np.zeros((0, 2))), gradient=False)
    yield Sample(
        "not_finite",
        (np.array([np.nan, 1.0, -np.inf]), np.array([1.0, np.inf, 2.0])),
        gradient=False,
    )


register(
    OpDef(
        "mse_loss",
        "The mean of (prediction - target)**2 over all elements, a scalar; NaN for no element.",
        (
            Operand("prediction", ("float",), doc="values of any shape"),
            Operand("target", ("float",), doc="values of the same shape"),
        ),
        _infer_mse_loss,
        _reference_mse_loss,
        _gradient_mse_loss,
        autocast=Autocast.FLOAT32,
        decomposition=_build_mse_loss,
        samples=_mse_loss_samples,
    )
)


# --- softmax_cross_entropy ------------------------------------------------------------------------


def _infer_cross_entropy(operands: Types, attributes: Attributes) -> TensorType:
    logits, labels = operands
    if logits.rank == 0 or logits.shape[:-1] != labels.shape:
        raise InvalidArgumentError(
            "softmax_cross_entropy takes logits [..., classes] and one label for each row, "
            f"received logits {shape_text(logits.shape)} and labels {shape_text(labels.shape)}"
        )
    return TensorType(logits.dtype, labels.shape)


def _check_labels(labels: np.ndarray, classes: int) -> None:
    flat = labels.reshape(-1)
    wrong = np.flatnonzero((flat < 0) | (flat >= classes))
    if wrong.size:
        position = int(wrong[0])
        raise InvalidArgumentError(
            f"softmax_cross_entropy: the label at position {position} is {int(flat[position])}, "
            f"expected a class from 0 to {classes - 1}"
        )


def _reference_cross_entropy(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    logits, labels = operands
    _check_labels(labels, logits.shape[-1])
    if logits.size == 0:
        return np.zeros(labels.shape)
    with np.errstate(all="ignore"):
        shifted = logits - np.max(logits, -1, keepdims=True)
        total = np.log(np.sum(np.exp(shifted), -1))
        chosen = np.take_along_axis(shifted, labels[..., None].astype(np.int64), -1)
        return total - chosen[..., 0]


def checked_selection(logits: Value, labels: Value) -> Value:
    """Return the bool mask [..., classes] of each row's label; a label out of range is an error.

    The labels pass through a gather from 0, 1, ..., classes - 1: the identity on every label in
    range, and a run-time check of the others.
    """
    classes = logits.shape[-1]
    # Not the labels' own dtype: uint8 labels may come with a thousand classes.
    narrow = isinstance(classes, int) and classes < 2**31
    table = ops.iota(shape=(classes,), axis=0, dtype=int32 if narrow else int64)
    checked = ops.gather(table, labels, axis=0)
    return ops.equal(ops.reshape(checked, (*labels.shape, 1)), table)


def _build_cross_entropy(operands: Operands, attributes: Attributes) -> Value:
    logits, labels = operands
    last = (logits.rank - 1,)
    shifted = shift_by_maximum(logits, logits.rank - 1)
    total = ops.log(ops.sum(ops.exp(shifted), axes=last))
    # Chosen by where, not by a product: -inf * 0 is NaN.
    chosen = ops.where(checked_selection(logits, labels), shifted, 0.0)
    return ops.sub(total, ops.sum(chosen, axes=last))


def _gradient_cross_entropy(context: GradientContext) -> Sequence[Value | None]:
    (logits, labels), (cotangent,) = context.operands, context.cotangents
    probability = ops.softmax(logits, axis=logits.rank - 1)
    selected = checked_selection(logits, labels)
    slope = ops.where(selected, ops.sub(probability, 1.0), probability)
    return [ops.mul(slope, ops.reshape(cotangent, (*labels.shape, 1))), None]


def _cross_entropy_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((5, 7)), np.array([0, 6, 3, 3, 1])), fixed=(1,))
    for row in INTEGER_DTYPES:
        labels = np.array([3, 0, 2], row.numpy)
        yield Sample(f"{row}", (smooth((3, 4)), labels), fixed=(1,))
    many = np.zeros((2, 300)) + smooth((300,))
    yield Sample("more_than_uint8", (many, np.array([7, 44], np.uint8)), fixed=(1,))
    yield Sample("vector", (smooth((4,)), np.asarray(2)), fixed=(1,))
    yield Sample("sequence", (smooth((2, 3, 4)), np.arange(6).reshape(2, 3) % 4), fixed=(1,))
    yield Sample("one_class", (smooth((3, 1)), np.zeros(3, np.int64)), fixed=(1,))
    yield Sample("empty_batch", (np.zeros((0, 3)), np.zeros(0, np.int64)), fixed=(1,))
    large = smooth((3, 5)) * 3e2
    yield Sample("large", (large, np.array([4, 0, 1])), fixed=(1,), gradient=False)
    rows = np.tile(np.array([0.5, -1.0, 2.0]), (3, 1))
    rows[0, 1], rows[1, 0], rows[2, 2] = np.nan, -np.inf, np.inf
    yield Sample("not_finite", (rows, np.array([0, 0, 1])), fixed=(1,), gradient=False)


register(
    OpDef(
        "softmax_cross_entropy",
        "Cross entropy of each row: -log(softmax(logits)[label]). Labels are checked when the "
        "graph runs: one out of range is an InvalidArgumentError that names position and value.",
        (
            Operand("logits", ("float",), doc="scores [..., classes]"),
            Operand("labels", ("int", "uint"), group="L", doc="classes [...]"),
        ),
        _infer_cross_entropy,
        _reference_cross_entropy,
        _gradient_cross_entropy,
        results=("loss",),
        traits=frozenset({Trait.CHECKED, Trait.EXPENSIVE}),
        autocast=Autocast.FLOAT32,
        decomposition=_build_cross_entropy,
        samples=_cross_entropy_samples,
        indices=lambda node: {node.operands[1]: node.operands[0].shape[-1]},
    )
)
