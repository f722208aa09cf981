"""`fit`: run a compiled training step over the batches of a loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from frame.core.arguments import whole
from frame.core.errors import InvalidArgumentError
from frame.runtime.model import CompiledModel
from frame.train.evaluation import Batch, means_over
from frame.train.metrics import Metric, named_metrics
from frame.train.progress import Advance, progress_bar
from frame.train.records import EarlyStop, EpochRecord, History, Watch, require_value
from frame.train.schedules import Schedule, constant
from frame.train.steps import Steps


class Batches(Protocol):
    """What `fit` needs of a loader: batches (inputs..., targets...), and how many there are."""

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""


def fit(
    model: CompiledModel,
    loader: Batches,
    *,
    epochs: int,
    learning_rate: float | Schedule,
    validation: Iterable[Batch] | None = None,
    metrics: Sequence[str | Metric] = (),
    early_stop: EarlyStop | None = None,
    progress: bool | None = None,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
) -> History:
    """Train a model that was compiled with `loss=` and `optimizer=`.

    Each batch is one call of the compiled training step. With the same seeds, data and batch order
    the weights are the same bit for bit, whatever the number of threads. An interrupt (Ctrl-C)
    leaves between two steps: the model has the weights of the last whole step and can be used,
    saved or trained on.

    Args:
        model: the compiled model.
        loader: the batches (inputs..., targets...) of each epoch, such as a `frame.data.DataLoader`
            or a list. Batches of other sizes than the rest, such as a short last one, need symbols
            in the specs (or `drop_last=True`).
        epochs: how many epochs to run.
        learning_rate: a number, or a schedule of (step, total steps).
        validation: batches for the loss and the metrics after each epoch; iterated once an epoch.
        metrics: names from `frame.train.METRICS`, or functions of (outputs, targets) that return a
            sum over the samples of a batch.
        early_stop: when to stop before the last epoch.
        progress: whether to show a progress bar; by default on a terminal only.
        on_epoch: called with the record of each epoch.

    Raises:
        InvalidArgumentError: a number is out of range, a batch does not fit the model or holds a
            label out of range (that step then changed nothing), the schedule gives a rate that is
            not a number, or the loss is not finite (that step has been done).
        NotFoundError: a metric is unknown, or the model has no training step.
    """
    total = whole("fit", "epochs", epochs) * _batch_count(loader)
    schedule = learning_rate if callable(learning_rate) else constant(learning_rate)
    steps = Steps(model, schedule, total, named_metrics(metrics))
    run = _Fit(steps, loader, validation)
    watch = None if early_stop is None else Watch(early_stop)
    if early_stop is not None:
        require_value(early_stop.value, run.value_names())
    with progress_bar(progress, total) as bar:
        return run.all_epochs(epochs, watch, on_epoch, bar)


def _batch_count(loader: Any) -> int:
    try:
        count = len(loader)
    except TypeError:
        raise InvalidArgumentError(
            f"expected a loader with a length, such as frame.data.DataLoader or a list of batches, "
            f"received a {type(loader).__name__}; make a list of it"
        ) from None
    if count == 0:
        raise InvalidArgumentError("expected at least one batch to train on, received none")
    return count


class _Fit:
    """The state of one call of `fit`."""

    def __init__(self, steps: Steps, loader: Batches, validation: Iterable[Batch] | None) -> None:
        self.steps, self.loader, self.validation = steps, loader, validation
        self.model, self.metrics = steps.model, steps.means.metrics

    def value_names(self) -> list[str]:
        """Return the names of the values of each epoch."""
        own = ["loss", *self.metrics]
        return own if self.validation is None else [*own, *(f"val_{name}" for name in own)]

    def all_epochs(
        self,
        epochs: int,
        watch: Watch | None,
        on_epoch: Callable[[EpochRecord], Any] | None,
        bar: Advance,
    ) -> History:
        """Run the epochs."""
        records: list[EpochRecord] = []
        stopped = ""
        for epoch in range(epochs):
            record = self.epoch(epoch, f"epoch {epoch + 1}/{epochs}", bar)
            records.append(record)
            if on_epoch is not None:
                on_epoch(record)
            stopped = "" if watch is None else self._watched(watch, record)
            if stopped:
                break
        if watch is not None and watch.parameters:
            self.model.load_params(watch.parameters)
        return History(tuple(records), stopped, None if watch is None else watch.epoch)

    def _watched(self, watch: Watch, record: EpochRecord) -> str:
        """Look whether an epoch is the best one; return why to stop, or an empty text."""
        if watch.better(record) and watch.rule.restore:
            watch.parameters = dict(self.model.params)
        return watch.reason(record)

    def epoch(self, epoch: int, title: str, bar: Advance) -> EpochRecord:
        """Run one epoch and validate."""
        start, first = time.perf_counter(), self.steps.step
        for loss in self.steps.over(self.loader):
            bar(f"{title}  loss {loss:.4f}")
        seconds, count = time.perf_counter() - start, self.steps.step - first
        found = {}
        if self.validation is not None:
            checked = means_over(self.model, self.validation, self.metrics, with_loss=True)
            found = checked.with_loss()
        return self.steps.record(epoch, count, seconds, found)
