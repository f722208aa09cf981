"""Losses as modules of two inputs, (prediction, target)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.arguments import is_finite_number, is_number, shown
from frame.core.dtypes import DType
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count, shape_text
from frame.ir.graph import Value
from frame.nn.module import Module, Scope

REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise InvalidArgumentError(
            f"reduction must be one of {', '.join(REDUCTIONS)}, got {shown(reduction)}"
        )
    return reduction


def _reduced(loss: Value, reduction: str) -> Value:
    if reduction == "none":
        return loss
    return (ops.mean if reduction == "mean" else ops.sum)(loss, axes=tuple(range(loss.rank)))


def _build_mse_loss(self: Scope, prediction: Value, target: Any) -> Value:
    reduction = self.options["reduction"]
    if reduction == "mean":
        return ops.mse_loss(prediction, target)
    return _reduced(ops.square(ops.sub(prediction, target)), reduction)


def MseLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return (prediction - target)**2, reduced to its mean (default), its sum, or not at all.

    Source: Bishop, "Neural Networks for Pattern Recognition", 1995, section 6.1.
    """
    options = (("reduction", _check_reduction(reduction)),)
    return Module(name, (), (), _build_mse_loss, "MseLoss", options)


def _kept(labels: Value, ignored: int | None) -> tuple[Value, Value | None]:
    """Return labels with class 0 where they are ignored, and which rows count."""
    if ignored is None:
        return labels, None
    counts = ops.not_equal(labels, ignored)
    return ops.where(counts, labels, 0), counts


def _smoothed(logits: Value, labels: Value, smoothing: float, weights: Value | None) -> Value:
    """Return the loss of each row: (1 - s) on its label plus s / classes everywhere, weighted."""
    loss = ops.softmax_cross_entropy(logits, labels)
    if weights is not None:
        loss = loss * ops.gather(weights, labels, axis=0)
    if not smoothing:
        return loss
    scores = ops.log_softmax(logits)
    scores = scores if weights is None else scores * weights
    every = ops.neg(ops.mean(scores, axes=(logits.rank - 1,)))
    return loss * (1.0 - smoothing) + every * smoothing


def _build_cross_entropy_loss(self: Scope, logits: Value, labels: Any) -> Value:
    options = self.options
    given, reduction = options["weight"], options["reduction"]
    weights = None if given is None else ops.constant(np.asarray(given), logits.dtype)
    if weights is not None and weights.shape[0] != logits.shape[-1]:
        raise InvalidArgumentError(
            f"CrossEntropyLoss has the weights of {len(given)} classes, and the logits have the "
            f"shape {shape_text(logits.shape)}"
        )
    labels, counts = _kept(labels, options["ignore_index"])
    loss = _smoothed(logits, labels, options["label_smoothing"], weights)
    if counts is not None:  # no product: the loss of a row that is left out may be infinite
        loss = ops.where(counts, loss, 0.0)
    heavy = _heaviness(labels, weights, counts, logits.dtype)
    if reduction != "mean" or heavy is None:
        return _reduced(loss, reduction)
    return ops.sum(loss) / ops.sum(heavy)


def _heaviness(
    labels: Value, weights: Value | None, counts: Value | None, dtype: DType
) -> Value | None:
    """Return how much each row counts in the mean; None where all count the same."""
    kept = None if counts is None else ops.cast(counts, dtype)
    if weights is None:
        return kept
    heavy = ops.gather(weights, labels, axis=0)
    return heavy if kept is None else heavy * kept


def shares_of_batch(loss: Module | None, targets: Any, rows: int) -> tuple[float, float]:
    """Return (factor, weight) by which the loss of a batch counts in that of many batches.

    sum(factor * loss) / sum(weight) over batches of any sizes is the loss over all their rows at
    once, or, for a loss that sums, its mean over the rows. A mean counts by the elements that it is
    over: rows of an ignored label weigh nothing, others what `weight` says. A loss without an
    option `reduction`, or one of several targets, is taken for a mean over rows.

    Args:
        loss: a module of this library, or any other.
        targets: the targets of the batch.
        rows: how many rows it has.
    """
    options = dict(loss.options) if loss is not None else {}
    if options.get("reduction") == "sum":
        return 1.0, float(rows)
    if options.get("reduction") != "mean" or isinstance(targets, tuple):
        return float(rows), float(rows)
    weight = _weight_of(np.asarray(targets), options.get("weight"), options.get("ignore_index"))
    return weight, weight


def _weight_of(found: np.ndarray, weight: Sequence[float] | None, ignored: int | None) -> float:
    if ignored is not None:
        found = found[found != ignored]
    return float(found.size if weight is None else np.asarray(weight)[found.ravel()].sum())


def _checked_smoothing(value: float) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise InvalidArgumentError(f"label_smoothing must be in [0, 1], got {shown(value)}")
    return float(value)


def _checked_label(label: int | None) -> int | None:
    if label is None:
        return None
    if not is_count(label, -(2**31)) or label >= 2**31:
        raise InvalidArgumentError(
            f"ignore_index must be an integer of 32 bits or None, got {shown(label, 60)}"
        )
    return int(label)


def _checked_weight(weight: Sequence[float] | None) -> tuple[float, ...] | None:
    if weight is None:
        return None
    if isinstance(weight, str) or not isinstance(weight, Iterable):
        raise InvalidArgumentError(f"weight must be one number a class, got {shown(weight)}")
    found = tuple(weight)
    for place, each in enumerate(found):
        if not is_finite_number(each) or each < 0:
            raise InvalidArgumentError(
                f"weight must be finite numbers of at least 0, got {shown(each)} for class {place}"
            )
    return tuple(map(float, found))


def CrossEntropyLoss(
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    ignore_index: int | None = None,
    *,
    name: str = "",
) -> Module:
    """Return the softmax cross entropy of logits [..., classes] and integer labels [...].

    Labels out of range are an error when the graph runs. Source: Bridle, NATO ASI F68 (1990);
    label smoothing: Szegedy et al., arXiv 1512.00567; it, weights and ignored labels have the
    semantics of torch.

    Args:
        label_smoothing: the share of the target that is spread over all classes, in [0, 1].
        reduction: "mean" over the rows, "sum", or "none".
        weight: how heavy each class is; the mean divides by the weights of the labels.
        ignore_index: a label whose rows count nothing, such as padding; NaN if all rows are.
        name: the name in the parent.
    """
    options = (
        ("label_smoothing", _checked_smoothing(label_smoothing)),
        ("reduction", _check_reduction(reduction)),
        ("weight", _checked_weight(weight)),
        ("ignore_index", _checked_label(ignore_index)),
    )
    return Module(name, (), (), _build_cross_entropy_loss, "CrossEntropyLoss", options)
