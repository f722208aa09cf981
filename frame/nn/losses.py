"""Losses as modules of two inputs, (prediction, target)."""

from __future__ import annotations

from typing import Any

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.module import Module, Scope

REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise InvalidArgumentError(
            f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
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
    """Return (prediction - target)**2, reduced to its mean (default), its sum, or not at all."""
    options = (("reduction", _check_reduction(reduction)),)
    return Module(name, (), (), _build_mse_loss, "MseLoss", options)


def _build_cross_entropy_loss(self: Scope, logits: Value, labels: Any) -> Value:
    smoothing = self.options["label_smoothing"]
    loss = ops.softmax_cross_entropy(logits, labels)
    if smoothing:
        # The target is (1 - s) on the label plus s / classes everywhere.
        every = ops.neg(ops.mean(ops.log_softmax(logits), axes=(logits.rank - 1,)))
        loss = ops.add(ops.mul(loss, 1.0 - smoothing), ops.mul(every, smoothing))
    return _reduced(loss, self.options["reduction"])


def CrossEntropyLoss(
    label_smoothing: float = 0.0, reduction: str = "mean", *, name: str = ""
) -> Module:
    """Return the softmax cross entropy of logits [N, classes] and integer labels [N].

    Labels out of range are an error when the graph runs. Label smoothing: Szegedy et al.,
    arXiv 1512.00567, with the semantics of torch.

    Args:
        label_smoothing: the share of the target that is spread over all classes, in [0, 1].
        reduction: "mean" over the rows, "sum", or "none".
        name: the name in the parent.
    """
    right = isinstance(label_smoothing, (int, float)) and not isinstance(label_smoothing, bool)
    if not right or not 0 <= label_smoothing <= 1:
        raise InvalidArgumentError(f"label_smoothing must be in [0, 1], got {label_smoothing!r}")
    options = (
        ("label_smoothing", float(label_smoothing)),
        ("reduction", _check_reduction(reduction)),
    )
    return Module(name, (), (), _build_cross_entropy_loss, "CrossEntropyLoss", options)
