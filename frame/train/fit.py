"""`fit`: run a compiled training step over the batches of a loader."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from frame.core.errors import InvalidArgumentError
from frame.runtime.model import CompiledModel
from frame.train.metrics import metric
from frame.train.schedules import Schedule, constant


class Batches(Protocol):
    """What `fit` needs of a loader: batches (inputs..., targets...), and how many there are."""

    def __iter__(self) -> Iterator[Sequence[np.ndarray]]:
        """Iterate over one epoch."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch: mean training loss and metrics, validation metrics, seconds and steps."""

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    validation: Mapping[str, float]
    seconds: float
    steps: int
    samples: int


@dataclass(frozen=True, slots=True)
class History:
    """What a call of `fit` did. `stopped` says why it ended before its last epoch."""

    epochs: tuple[EpochRecord, ...]
    stopped: str = ""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(record.steps for record in self.epochs)

    @property
    def seconds(self) -> float:
        """The time of all epochs, validation excluded."""
        return sum(record.seconds for record in self.epochs)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Stop when `value` has not improved by `least` for `patience` epochs.

    `value` is `loss`, a metric, or `val_` and a metric. Losses and errors should fall, the rest
    should rise.
    """

    value: str = "loss"
    patience: int = 5
    least: float = 0.0

    def improved(self, new: float, best: float | None) -> bool:
        """Whether a value is better than the best one so far."""
        if best is None:
            return True
        falls = self.value.endswith(("loss", "error"))
        return best - new > self.least if falls else new - best > self.least


def fit(
    model: CompiledModel,
    loader: Batches,
    *,
    epochs: int,
    learning_rate: float | Schedule,
    validation: Iterable[Sequence[np.ndarray]] | None = None,
    metrics: Sequence[str] = (),
    early_stop: EarlyStop | None = None,
    progress: bool | None = None,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
) -> History:
    """Train a model that was compiled with `loss=` and `optimizer=`.

    Args:
        model: the compiled model.
        loader: batches (inputs..., targets...) of each epoch.
        epochs: how many epochs to run.
        learning_rate: a number, or a schedule of (step, total steps).
        validation: batches for the metrics after each epoch.
        metrics: names from `frame.train.METRICS`.
        early_stop: when to stop before the last epoch.
        progress: whether to show a progress bar; by default on a terminal only.
        on_epoch: called with the record of each epoch.

    Raises:
        InvalidArgumentError: a number is out of range, the data does not fit the model, or the
            loss is not finite (the step that found it has been done).
    """
    if epochs < 1:
        raise InvalidArgumentError(f"epochs must be at least 1, received {epochs}")
    schedule = learning_rate if callable(learning_rate) else constant(learning_rate)
    run = _Fit(model, loader, epochs, schedule, tuple(metrics), validation)
    with _progress_bar(progress, epochs * len(loader)) as bar:
        return run.all_epochs(early_stop, on_epoch, bar)


class _Fit:
    """The state of one call of `fit`."""

    def __init__(
        self,
        model: CompiledModel,
        loader: Batches,
        epochs: int,
        schedule: Schedule,
        metrics: tuple[str, ...],
        validation: Iterable[Sequence[np.ndarray]] | None,
    ) -> None:
        self.model, self.loader, self.epochs = model, loader, epochs
        self.schedule, self.metrics, self.validation = schedule, metrics, validation
        self.total = epochs * len(loader)
        self.step = 0

    def all_epochs(
        self,
        early_stop: EarlyStop | None,
        on_epoch: Callable[[EpochRecord], Any] | None,
        bar: Callable[[str], None],
    ) -> History:
        """Run the epochs."""
        records: list[EpochRecord] = []
        best, waited = None, 0
        for epoch in range(self.epochs):
            records.append(self.epoch(epoch, bar))
            if on_epoch is not None:
                on_epoch(records[-1])
            if early_stop is None:
                continue
            value = _value_of(records[-1], early_stop.value)
            better = early_stop.improved(value, best)
            best, waited = (value, 0) if better else (best, waited + 1)
            if waited >= early_stop.patience:
                reason = f"{early_stop.value} has not improved for {waited} epochs"
                return History(tuple(records), reason)
        return History(tuple(records))

    def epoch(self, epoch: int, bar: Callable[[str], None]) -> EpochRecord:
        """Run one epoch and validate."""
        start, steps = time.perf_counter(), self.step
        loss_sum, samples = 0.0, 0
        sums = dict.fromkeys(self.metrics, 0.0)
        for batch in self.loader:
            loss, outputs, target = self._train(batch)
            count = len(batch[0])
            loss_sum += loss * count
            samples += count
            for name in self.metrics:
                sums[name] += metric(name)(outputs, target)
            bar(f"epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}")
        seconds = time.perf_counter() - start
        found = (
            {} if self.validation is None else evaluate(self.model, self.validation, self.metrics)
        )
        means = {name: total / max(samples, 1) for name, total in sums.items()}
        mean_loss = loss_sum / max(samples, 1)
        return EpochRecord(epoch, mean_loss, means, found, seconds, self.step - steps, samples)

    def _train(self, batch: Sequence[np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
        rate = np.float32(self.schedule(self.step, self.total))
        loss, outputs, *_ = self.model.train_step(*batch, learning_rate=rate)
        self.step += 1
        value = float(loss)
        if not math.isfinite(value):
            raise InvalidArgumentError(
                f"the loss is {value} at step {self.step}: lower the learning rate, or look for "
                "NaN and infinities in the data"
            )
        return value, outputs, batch[-1]


def evaluate(
    model: CompiledModel, batches: Iterable[Sequence[np.ndarray]], metrics: Sequence[str]
) -> dict[str, float]:
    """Return the mean of each metric over the samples of batches (inputs..., target)."""
    sums = dict.fromkeys(metrics, 0.0)
    samples = 0
    entry = model.entry("infer")
    for *inputs, target in batches:
        outputs = entry(*inputs)
        samples += len(target)
        for name in metrics:
            sums[name] += metric(name)(outputs, target)
    return {name: total / max(samples, 1) for name, total in sums.items()}


def _value_of(record: EpochRecord, name: str) -> float:
    values = {"loss": record.loss, **record.metrics}
    values.update({f"val_{key}": value for key, value in record.validation.items()})
    if name not in values:
        raise InvalidArgumentError(
            f"early stopping watches {name!r}, known values are {', '.join(values)}"
        )
    return values[name]


@contextmanager
def _progress_bar(wanted: bool | None, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on the terminal, or nothing."""
    import sys

    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
