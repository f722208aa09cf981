"""Metrics of a batch: sums over samples, so that batches of different sizes add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from frame.core.errors import NotFoundError

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return how many rows of `outputs` [N, classes] are largest at their label [N]."""
    return float(np.count_nonzero(np.argmax(outputs, axis=-1) == labels))


def squared_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the sum over samples of the mean squared error of a sample."""
    difference = np.asarray(outputs, np.float64) - targets
    return float(np.sum(np.mean(difference**2, axis=tuple(range(1, difference.ndim)))))


METRICS: Mapping[str, Metric] = {"accuracy": accuracy, "squared_error": squared_error}
"""The metrics by name. Each returns a sum over the samples of a batch."""


def metric(name: str) -> Metric:
    """Return a metric by name; raise NotFoundError for an unknown one."""
    if name not in METRICS:
        raise NotFoundError(f"there is no metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[name]
