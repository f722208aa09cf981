"""What a training run leaves: a record an epoch, the history, and when to stop early."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

from frame.core import views
from frame.core.arguments import settle
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from frame.runtime.model import CompiledModel

_FALLING = ("loss", "error")
_SHOWN = 20  # how many lines of epochs a text has


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch.

    Attributes:
        epoch: its number, from 0.
        loss: the mean of the losses of its steps, each by what it is a mean over; see `evaluate`.
        metrics: the means of the metrics over its samples, each measured in the step that saw it.
        validation: the loss and the metrics of the validation batches after it; may be empty.
        seconds: the time of its steps, validation excluded.
        steps: how many steps it had.
        samples: how many samples it saw.
        learning_rate: that of its last step.
        resolution: the size that the images were scaled to, as `24x32` for height and width; empty
            for that of the data.
    """

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    validation: Mapping[str, float]
    seconds: float
    steps: int
    samples: int
    learning_rate: float = 0.0
    resolution: str = ""

    def values(self) -> dict[str, float]:
        """Return the loss and the metrics, those of the validation with `val_` before the name."""
        checked = {f"val_{name}": value for name, value in self.validation.items()}
        return {"loss": self.loss, **self.metrics, **checked}

    def state(self) -> dict[str, Any]:
        """Return the record field by field, for a checkpoint: `EpochRecord(**state)` is equal."""
        own = {name.name: getattr(self, name.name) for name in fields(self)}
        return own | {"metrics": dict(self.metrics), "validation": dict(self.validation)}

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {
            "epoch": self.epoch,
            **self.values(),
            "seconds": self.seconds,
            "steps": self.steps,
            "samples": self.samples,
            "learning_rate": self.learning_rate,
            **({"resolution": self.resolution} if self.resolution else {}),
        }


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """What a call of `fit` or the run of a task did.

    `stopped` says why it ended before its last epoch; it is empty when it did not. `best` is the
    number of the best epoch where something watched for it. `model` is the trained model of a task.
    `print(history)` shows a table, notebooks an HTML one.
    """

    epochs: tuple[EpochRecord, ...]
    stopped: str = ""
    best: int | None = None
    model: CompiledModel | None = field(default=None, compare=False, repr=False)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(record.steps for record in self.epochs)

    @property
    def seconds(self) -> float:
        """The time of the steps of all epochs, validation excluded."""
        return sum(record.seconds for record in self.epochs)

    def column(self, name: str) -> list[float]:
        """Return a value of every epoch: `loss`, a metric, or `val_` and a metric.

        Raises:
            InvalidArgumentError: no epoch has such a value.
        """
        return [value_of(record, name) for record in self.epochs]

    def to_data(self) -> list[dict[str, Any]]:
        """Return the records as plain data, one row an epoch."""
        return [record.to_data() for record in self.epochs]

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the heads of the columns, and a row of cells for each epoch."""
        names = list(dict.fromkeys(name for e in self.epochs for name in e.values()))
        rows = [
            (
                str(e.epoch + 1),
                *(f"{e.values()[n]:.4f}" if n in e.values() else "" for n in names),
                f"{e.seconds:.2f}",
            )
            for e in self.epochs
        ]
        return ("epoch", *names, "seconds"), rows

    def _summary(self) -> str:
        parts = [f"{len(self.epochs)} epochs, {self.steps:,} steps in {self.seconds:.2f} s"]
        parts += [f"best epoch {self.best + 1}"] if self.best is not None else []
        return "; ".join([*parts, self.stopped] if self.stopped else parts)

    def __repr__(self) -> str:
        last = self.epochs[-1].values() if self.epochs else {}
        values = [f"{name}={value:.4g}" for name, value in last.items()]
        return f"History({', '.join([f'{len(self.epochs)} epochs', *values])})"

    def __str__(self) -> str:
        heads, rows = self._table()
        if len(rows) > _SHOWN:
            left_out = len(rows) - _SHOWN + 1
            gap = (f"({left_out} more)", *[""] * (len(heads) - 1))
            rows = [*rows[: _SHOWN // 2], gap, *rows[left_out + _SHOWN // 2 :]]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (heads, *rows)
        ]
        return "\n".join([*lines, self._summary()])

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        note = f"<div>{html.escape(self._summary())}</div>"
        return views.table(heads, rows, "r" * len(heads)) + note


def value_of(record: EpochRecord, name: str) -> float:
    """Return a value of an epoch by name; raise InvalidArgumentError for an unknown one."""
    values = record.values()
    require_value(name, values)
    return values[name]


def require_value(name: str, names: Iterable[str]) -> None:
    """Raise InvalidArgumentError for a name that is not among those of the values of epochs."""
    known = tuple(names)
    if name not in known:
        raise InvalidArgumentError(
            f"the epochs have no value {name!r}; they have {', '.join(known)}"
        )


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Stop when a value has not improved for some epochs.

    Attributes:
        value: `loss`, a metric, or `val_` and a metric. Losses and errors should fall, other
            values should rise.
        patience: after how many epochs without a better value to stop.
        least: an improvement counts if it is larger than this.
        restore: whether the model gets the parameters of its best epoch back at the end.

    Raises:
        InvalidArgumentError: `patience` is below 1, or `least` is negative.
    """

    value: str = "loss"
    patience: int = 5
    least: float = 0.0
    restore: bool = False

    def __post_init__(self) -> None:
        settle("early stopping", self)
        if self.patience < 1 or not self.least >= 0:
            raise InvalidArgumentError(
                f"early stopping needs a patience of at least 1 epoch and least >= 0, received "
                f"patience={self.patience} and least={self.least}"
            )

    def improved(self, new: float, best: float | None) -> bool:
        """Whether a value is better than the best one so far."""
        if best is None:
            return True
        falls = self.value.endswith(_FALLING)
        return best - new > self.least if falls else new - best > self.least


@dataclass(slots=True)
class Watch:
    """Early stopping at work: the best value so far, when it was, and the parameters then."""

    rule: EarlyStop
    best: float | None = None
    epoch: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)

    def better(self, record: EpochRecord) -> bool:
        """Look at an epoch; return whether it is the best one so far.

        An epoch that was not validated is not looked at for a value of the validation.
        """
        if self.rule.value.startswith("val_") and not record.validation:
            return False
        value = value_of(record, self.rule.value)
        if not self.rule.improved(value, self.best):
            return False
        self.best, self.epoch = value, record.epoch
        return True

    def reason(self, record: EpochRecord) -> str:
        """Return why to stop after an epoch; empty to go on."""
        waited = record.epoch - self.epoch
        if self.best is None or waited < self.rule.patience:
            return ""
        return (
            f"{self.rule.value} has not been better than {self.best:.6g} (epoch "
            f"{self.epoch + 1}) for {waited} epochs"
        )
