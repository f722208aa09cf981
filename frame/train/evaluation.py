"""`evaluate`: the loss and the metrics of a model over batches, without a change to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Role
from frame.nn.losses import shares_of_batch
from frame.runtime.model import EVALUATE, INFER, CompiledModel
from frame.train.metrics import Metric, named_metrics

Batch = Sequence[Any]


class Means:
    """Means over the samples of batches: the loss and the metrics."""

    def __init__(self, metrics: dict[str, Metric]) -> None:
        self.metrics = metrics
        self.samples = 0
        self._loss, self._weight = 0.0, 0.0
        self._sums = dict.fromkeys(metrics, 0.0)

    def add(
        self, count: int, loss: float, outputs: Any, targets: Any, shares: tuple[float, float]
    ) -> None:
        """Add a batch of `count` samples, whose loss counts by `shares` (`shares_of_batch`)."""
        factor, weight = shares
        self.samples += count
        self._weight += weight
        self._loss += loss * factor if factor else 0.0  # the mean over nothing is no number
        for name, function in self.metrics.items():
            self._sums[name] += float(function(outputs, targets))

    @property
    def loss(self) -> float:
        """The mean loss; NaN where every row was left out."""
        if not self._weight:
            return math.nan if self.samples else 0.0
        return self._loss / self._weight

    def to_data(self) -> dict[str, Any]:
        """Return the sums so far as plain data."""
        return {
            "samples": self.samples,
            "loss": self._loss,
            "weight": self._weight,
            "sums": dict(self._sums),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from the sums of `to_data`."""
        self.samples, self._loss = int(data["samples"]), float(data["loss"])
        self._weight = float(data.get("weight", self.samples))
        self._sums = {name: float(data["sums"][name]) for name in self.metrics}

    def values(self) -> dict[str, float]:
        """Return the means of the metrics."""
        return {name: total / max(self.samples, 1) for name, total in self._sums.items()}

    def with_loss(self) -> dict[str, float]:
        """Return the mean loss and those of the metrics."""
        return {"loss": self.loss, **self.values()}


class Shape:
    """How the batches of a model divide: its inputs, then the targets of the loss."""

    def __init__(self, model: CompiledModel) -> None:
        graph = model.declaration(INFER).graph
        self.inputs = [entry.name for entry in graph.inputs if entry.role is Role.INPUT]

    def divide(self, batch: Batch, targets: int | None = None) -> tuple[tuple[Any, ...], Any]:
        """Return the inputs and the targets of a batch (one, or a tuple of several).

        Raises:
            InvalidArgumentError: the batch does not hold the inputs and (if a number is given)
                that number of targets.
        """
        if isinstance(batch, np.ndarray) or not isinstance(batch, (tuple, list)):
            raise InvalidArgumentError(
                f"expected batches (inputs..., targets...), received a {type(batch).__name__}"
            )
        count = len(self.inputs)
        found = len(batch) - count
        if found < 1 or (targets is not None and found != targets):
            wanted = "at least 1 target" if targets is None else f"{targets} target(s)"
            raise InvalidArgumentError(
                f"expected batches of {count} input(s) ({', '.join(self.inputs)}) and {wanted}, "
                f"received {len(batch)} array(s)"
            )
        wanted_targets = tuple(batch[count:])
        return tuple(batch[:count]), one_or_all(wanted_targets)


def one_or_all(values: Sequence[Any]) -> Any:
    """Return the only value, or all of them as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def sample_count(batch: Batch) -> int:
    """Return the number of samples of a batch: the rows of its first array."""
    shape = np.shape(batch[0])
    return int(shape[0]) if shape else 1


def evaluate(
    model: CompiledModel, batches: Iterable[Batch], metrics: Sequence[str | Metric] = ("loss",)
) -> dict[str, float]:
    """Return the mean of each metric over the samples of batches.

    The model runs as in inference (no dropout, batch norm with its running statistics) and is left
    as it was. Several inputs, outputs or targets are allowed; see `frame.train.metrics.Metric`.

    Args:
        model: the compiled model.
        batches: batches (inputs..., targets...); the last may be shorter if the sizes are symbols.
        metrics: names from `frame.train.METRICS`, or functions of (outputs, targets) that return a
            sum over the samples. The name `loss` is the loss of a model compiled with `loss=`: that
            over all the rows at once, whatever the sizes of the batches, see
            `frame.nn.losses.shares_of_batch`; the mean over the rows for a loss that sums.

    Raises:
        InvalidArgumentError: there is no batch, or one does not fit the model.
        NotFoundError: a metric is unknown, or `loss` is asked of a model without one.
    """
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    functions = named_metrics([each for each in names if each != "loss"])
    with_loss = "loss" in names
    means = means_over(model, batches, functions, with_loss)
    return means.with_loss() if with_loss else means.values()


def means_over(
    model: CompiledModel, batches: Iterable[Batch], metrics: dict[str, Metric], with_loss: bool
) -> Means:
    """Return the means over batches; see `evaluate`."""
    means, shape = Means(metrics), Shape(model)
    entry = model.entry(EVALUATE if with_loss else INFER)
    targets = len(entry.inputs) - len(shape.inputs) if with_loss else None
    for batch in batches:
        inputs, target = shape.divide(batch, targets)
        results = entry.run(batch if with_loss else inputs)
        loss = float(results.pop(0)) if with_loss else 0.0
        rows = sample_count(batch)
        shares = shares_of_batch(model.loss, target, rows) if with_loss else (0.0, 0.0)
        means.add(rows, loss, one_or_all(results), target, shares)
    if not means.samples:
        raise InvalidArgumentError("expected at least one sample to evaluate on, received none")
    return means
