"""The one loop over batches: `fit`, tasks and specs run their training steps through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from frame.core.errors import InvalidArgumentError
from frame.nn.losses import shares_of_batch
from frame.runtime.model import TRAIN_STEP, CompiledModel
from frame.train.evaluation import Batch, Means, Shape, one_or_all, sample_count
from frame.train.metrics import Metric
from frame.train.records import EpochRecord
from frame.train.schedules import Schedule, checked_rate


def _weights() -> str:
    return "the weights are those after this step"


class Steps:
    """Compiled training steps, one after another.

    Attributes:
        model: the compiled model; a variant of it may take its place between two steps.
        total: how many steps there will be, for the schedule.
        step: how many are done.
        loss, rate: of the last step.
        means: the means over the samples since the last record.
    """

    def __init__(
        self,
        model: CompiledModel,
        schedule: Schedule,
        total: int,
        metrics: Mapping[str, Metric] | None = None,
        left: Callable[[], str] = _weights,
    ) -> None:
        """Compile the training step.

        `left` says, for the message of a loss that is not finite, what the user still has; it may
        be empty.

        Raises:
            NotFoundError: the model has no training step.
        """
        self.model, self.total = model, total
        self.step, self.loss, self.rate = 0, 0.0, 0.0
        self.means = Means(dict(metrics or {}))
        self._schedule, self._left, self._shape = schedule, left, Shape(model)
        self._targets = len(model.entry(TRAIN_STEP).inputs) - len(self._shape.inputs)

    def over(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Run a step on each batch, and give its loss when all of it is done.

        Raises:
            InvalidArgumentError: a batch does not fit the model (the step changed nothing), the
                rate is not a number, or the loss is not finite (the step has been done).
        """
        for batch in batches:
            _, target = self._shape.divide(batch, self._targets)
            self.rate = checked_rate(self._schedule, self.step, self.total)
            loss, *outputs = self.model.train_step(*batch, learning_rate=np.float32(self.rate))
            self.step, self.loss = self.step + 1, float(loss)
            self._check_loss()
            rows = sample_count(batch)
            shares = shares_of_batch(self.model.loss, target, rows)
            self.means.add(rows, self.loss, one_or_all(outputs), target, shares)
            yield self.loss

    def _check_loss(self) -> None:
        if not math.isfinite(self.loss):
            left = self._left()
            raise InvalidArgumentError(
                f"the loss is {self.loss} at step {self.step} of {self.total} (learning rate "
                f"{self.rate:.3g}): lower the learning rate, clip the gradients, or look for NaN "
                f"and infinities in the data{left and f'; {left}'}"
            )

    def record(
        self, epoch: int, steps: int, seconds: float, validation: Mapping[str, float]
    ) -> EpochRecord:
        """Return the record of an epoch of so many steps that has ended, and begin new means."""
        means, self.means = self.means, Means(self.means.metrics)
        return EpochRecord(
            epoch, means.loss, means.values(), validation, seconds, steps, means.samples, self.rate
        )
