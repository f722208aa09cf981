"""Further losses as modules of two inputs, (prediction, target)."""

from __future__ import annotations

from typing import Any

from frame import ops
from frame.ir.graph import Value
from frame.nn.checks import above_zero, choice, layer
from frame.nn.losses import REDUCTIONS
from frame.nn.module import Module, Scope


def _build(self: Scope, prediction: Value, target: Any) -> Value:
    options = dict(self.options)
    loss = getattr(ops, options.pop("op"))
    return loss(prediction, target, **options)  # type: ignore[no-any-return]


def _loss(kind: str, op: str, reduction: str, name: str, **attributes: float) -> Module:
    for key, value in attributes.items():
        above_zero(key, value)
    options = {"op": op, "reduction": choice("reduction", reduction, REDUCTIONS)}
    return layer(kind, _build, {**options, **attributes}, name=name)


def L1Loss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return |prediction - target|, reduced to its mean (default), its sum, or not at all.

    Source: Bloomfield, Steiger, "Least Absolute Deviations", 1983.
    """
    return _loss("L1Loss", "l1_loss", reduction, name)


def SmoothL1Loss(beta: float = 1.0, reduction: str = "mean", *, name: str = "") -> Module:
    """Return the absolute error, quadratic below beta. Source: Girshick, arXiv 1504.08083."""
    return _loss("SmoothL1Loss", "smooth_l1_loss", reduction, name, beta=beta)


def HuberLoss(delta: float = 1.0, reduction: str = "mean", *, name: str = "") -> Module:
    """Return Huber's error: quadratic below delta, then delta times the absolute error.

    Source: Huber, Annals of Mathematical Statistics 35 (1964).
    """
    return _loss("HuberLoss", "huber_loss", reduction, name, delta=delta)


def BCEWithLogitsLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return the cross entropy of sigmoid(logits) and targets in [0, 1], of one shape.

    Source: Bishop, "Neural Networks for Pattern Recognition", 1995, section 6.7.
    """
    return _loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", reduction, name)


def BCELoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return the cross entropy of probabilities and targets in [0, 1]; logarithms from -100 on.

    Source: Bishop, "Neural Networks for Pattern Recognition", 1995, section 6.7.
    """
    return _loss("BCELoss", "binary_cross_entropy", reduction, name)


def NLLLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return -scores[label] of log-probabilities [..., classes] and integer labels [...].

    Source: Bishop, "Neural Networks for Pattern Recognition", 1995, section 6.9.
    """
    return _loss("NLLLoss", "nll_loss", reduction, name)


def KLDivLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return target * (log(target) - prediction), the prediction a logarithm.

    Source: Kullback, Leibler, Annals of Mathematical Statistics 22 (1951).
    """
    return _loss("KLDivLoss", "kl_div", reduction, name)


def SoftMarginLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return log(1 + exp(-target * prediction)) for targets 1 and -1.

    Source: Friedman, Hastie, Tibshirani, Annals of Statistics 28 (2000): the binomial deviance.
    """
    return _loss("SoftMarginLoss", "soft_margin_loss", reduction, name)


def PoissonNLLLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return exp(prediction) - target * prediction, the prediction a log-rate of counts.

    Source: McCullagh, Nelder, "Generalized Linear Models", 1989, chapter 6.
    """
    return _loss("PoissonNLLLoss", "poisson_nll_loss", reduction, name)


def _build_cosine(self: Scope, prediction: Value, target: Any) -> Value:
    distance = 1.0 - ops.cosine_similarity(prediction, target)
    reduction = self.options["reduction"]
    if reduction == "none":
        return distance
    return (ops.mean if reduction == "mean" else ops.sum)(distance)


def CosineLoss(reduction: str = "mean", *, name: str = "") -> Module:
    """Return 1 - the cosine of the angle between prediction and target, along the last axis.

    Source: Barz, Denzler, WACV 2020, arXiv 1901.09054.
    """
    options = {"reduction": choice("reduction", reduction, REDUCTIONS)}
    return layer("CosineLoss", _build_cosine, options, name=name)
