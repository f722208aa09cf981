"""Metrics of a batch: sums over samples, so that batches of different sizes add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from frame.core.errors import InvalidArgumentError, NotFoundError

Metric: TypeAlias = Callable[[Any, Any], float]
"""A function of the outputs and the targets of a batch that returns a sum over its samples.

Outputs and targets are arrays, or tuples of arrays where the model or the loss has several.
"""


def _rows(name: str, outputs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs [rows, classes] and labels [rows], from any number of leading axes."""
    outputs, labels = _arrays(name, outputs, labels)
    if labels.dtype.kind not in "iu" or outputs.shape[:-1] != labels.shape or outputs.ndim < 2:
        raise InvalidArgumentError(
            f"{name}: expected outputs [N, classes] and integer labels [N], received outputs "
            f"{list(outputs.shape)} and labels {labels.dtype}{list(labels.shape)}"
        )
    bad = labels[(labels < 0) | (labels >= outputs.shape[-1])]
    if bad.size:
        raise InvalidArgumentError(
            f"{name}: expected labels from 0 to {outputs.shape[-1] - 1}, received {bad[0]}; it "
            "counts every row: where the loss ignores a label, give a function of (outputs, "
            "targets) that leaves its rows out as the metric"
        )
    return outputs, labels


def _arrays(name: str, outputs: Any, targets: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(outputs, tuple) or isinstance(targets, tuple):
        raise InvalidArgumentError(
            f"{name}: the model has several outputs or targets; give a function of (outputs, "
            "targets), which gets them as tuples, as the metric"
        )
    return np.asarray(outputs), np.asarray(targets)


def _per_sample(counted: np.ndarray) -> float:
    """Sum over samples of the mean over a sample's elements."""
    return float(np.sum(np.mean(counted.reshape(len(counted), -1), axis=1)))


def accuracy(outputs: Any, labels: Any) -> float:
    """Return how many rows of `outputs` [N, classes] are largest at their label [N]."""
    outputs, labels = _rows("accuracy", outputs, labels)
    return _per_sample(np.argmax(outputs, axis=-1) == labels)


def top5_accuracy(outputs: Any, labels: Any) -> float:
    """Return how many rows of `outputs` have less than five values above that of their label."""
    outputs, labels = _rows("top5_accuracy", outputs, labels)
    own = np.take_along_axis(outputs, labels[..., None].astype(np.int64), axis=-1)
    return _per_sample(np.count_nonzero(outputs > own, axis=-1) < 5)


def _difference(name: str, outputs: Any, targets: Any) -> np.ndarray:
    outputs, targets = _arrays(name, outputs, targets)
    if outputs.shape != targets.shape or outputs.ndim == 0:
        raise InvalidArgumentError(
            f"{name}: expected targets in the shape of the outputs {list(outputs.shape)}, received "
            f"{list(targets.shape)}"
        )
    return np.asarray(outputs, np.float64) - np.asarray(targets, np.float64)


def squared_error(outputs: Any, targets: Any) -> float:
    """Return the sum over samples of the mean squared error of a sample."""
    return _per_sample(_difference("squared_error", outputs, targets) ** 2)


def absolute_error(outputs: Any, targets: Any) -> float:
    """Return the sum over samples of the mean absolute error of a sample."""
    return _per_sample(np.abs(_difference("absolute_error", outputs, targets)))


METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "top1": accuracy,
    "top5_accuracy": top5_accuracy,
    "top5": top5_accuracy,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
}
"""The metrics by name. Each returns a sum over the samples of a batch."""


def metric(name: str) -> Metric:
    """Return a metric by name; raise NotFoundError for an unknown one."""
    if name not in METRICS:
        raise NotFoundError(f"there is no metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[name]


def named_metrics(metrics: Sequence[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name; a function has the name that it was defined with.

    Raises:
        NotFoundError: there is no metric of a name.
        InvalidArgumentError: an item is neither a name nor a function, or a name occurs twice or
            is `loss`.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    found: dict[str, Metric] = {}
    for item in metrics:
        if not isinstance(item, str) and not callable(item):
            raise InvalidArgumentError(
                f"expected metrics, each a name or a function of (outputs, targets), received "
                f"{item!r:.60}"
            )
        name = item if isinstance(item, str) else getattr(item, "__name__", "metric")
        if name in found or name == "loss":
            raise InvalidArgumentError(
                f"the metric {name!r} is given twice; each needs a name of its own beside 'loss'"
            )
        found[name] = metric(item) if isinstance(item, str) else item
    return found
