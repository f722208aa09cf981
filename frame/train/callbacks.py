"""Callbacks: what else happens in a training run; logs as CSV, JSON lines and for TensorBoard."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from frame.core.arguments import path as path_text
from frame.core.arguments import shown
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.files import atomic_write
from frame.train.records import EpochRecord, History

if TYPE_CHECKING:
    from frame.train.running import TrainingRun

Pathlike = str | os.PathLike[str]


class Callback:
    """What a run calls; every method does nothing by default.

    An error that a method raises ends the training. `run.stop(reason)` ends it after the epoch.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Before the first step, or after a resume: `run.records` has the epochs so far."""

    def on_step(self, run: TrainingRun) -> None:
        """After each step: `run.step`, `run.loss`, `run.rate`."""

    def on_epoch(self, run: TrainingRun, record: EpochRecord) -> None:
        """After each epoch and its validation, before the checkpoint."""

    def on_end(self, run: TrainingRun, history: History) -> None:
        """After the last epoch."""


def checked_path(path: Pathlike) -> str:
    """Return the path of a file to write; raise NotFoundError if its folder does not exist."""
    found = path_text("file", "path", path)
    if not os.path.isdir(os.path.dirname(os.path.abspath(found))):
        raise NotFoundError(f"can't write {found}: its folder does not exist")
    return found


class EpochFunction(Callback):
    """A function of the record of each epoch as a callback."""

    def __init__(self, function: Callable[[EpochRecord], Any]) -> None:
        self._function = function

    def on_epoch(self, run: TrainingRun, record: EpochRecord) -> None:
        """Call the function."""
        self._function(record)


class _LogFile(Callback):
    """A text file with a row an epoch. A resumed run writes the rows so far again."""

    def __init__(self, path: Pathlike) -> None:
        self.path = checked_path(path)
        self._rows = 0

    def on_start(self, run: TrainingRun) -> None:
        """Write the rows so far in place of an older file."""
        text = io.StringIO(newline="")
        self._rows = 0
        for record in run.records:
            self._row(text, record)
        atomic_write(self.path, lambda file: file.write(text.getvalue().encode()))

    def on_epoch(self, run: TrainingRun, record: EpochRecord) -> None:
        """Append a row, and let the system have it at once."""
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            self._row(file, record)

    def _row(self, file: TextIO, record: EpochRecord) -> None:
        self._write(file, record.to_data(), first=self._rows == 0)
        self._rows += 1

    @abstractmethod
    def _write(self, file: TextIO, row: dict[str, Any], first: bool) -> None:
        """Write a row, and before the first one what a file begins with."""


class JsonLinesLog(_LogFile):
    """One JSON object an epoch: the fields of `EpochRecord.to_data`.

    Raises:
        NotFoundError: the folder of the file does not exist.
    """

    def _write(self, file: TextIO, row: dict[str, Any], first: bool) -> None:
        file.write(json.dumps(row) + "\n")


class CsvLog(_LogFile):
    """A line of column names, then one line an epoch.

    An epoch without validation has empty fields there; the columns are those of the first epoch
    and of a validation.

    Raises:
        NotFoundError: the folder of the file does not exist.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Write the column names and the rows so far."""
        rule = run.task.resolutions
        sizes = ["resolution"] if rule is not None and rule.train else []
        self._columns = ["epoch", *run.value_names(), *_FACTS, *sizes]
        super().on_start(run)
        if not run.records:
            text = io.StringIO(newline="")
            csv.writer(text).writerow(self._columns)
            atomic_write(self.path, lambda file: file.write(text.getvalue().encode()))
            self._rows = 1

    def _write(self, file: TextIO, row: dict[str, Any], first: bool) -> None:
        writer = csv.writer(file)
        if first:
            writer.writerow(self._columns)
            self._rows += 1
        writer.writerow([row.get(column, "") for column in self._columns])


_FACTS = ("seconds", "steps", "samples", "learning_rate")


class TensorBoardLog(Callback):
    """Scalars of each epoch as TensorBoard event files, through the package tensorboardX.

    Raises:
        NotFoundError: the package is not installed.
    """

    def __init__(self, folder: Pathlike) -> None:
        place = path_text("TensorBoardLog", "folder", folder)
        try:
            make: Any = importlib.import_module("tensorboardX").SummaryWriter
        except ImportError:
            raise NotFoundError(
                "TensorBoardLog needs the package tensorboardX, which is not installed: "
                "pip install tensorboardX"
            ) from None
        self._make: Callable[[int], Any] = lambda first: make(place, purge_step=first)
        self._writer: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Open a file; rows from the epoch on that comes next count no more."""
        self._writer = self._make(len(run.records))

    def on_epoch(self, run: TrainingRun, record: EpochRecord) -> None:
        """Write the values of the epoch, its rate and its speed."""
        for name, value in record.values().items():
            kind = "validation" if name.startswith("val_") else "training"
            self._writer.add_scalar(f"{kind}/{name.removeprefix('val_')}", value, record.epoch)
        self._writer.add_scalar("learning_rate", record.learning_rate, record.epoch)
        speed = record.samples / max(record.seconds, 1e-9)
        self._writer.add_scalar("samples_per_second", speed, record.epoch)
        self._writer.flush()

    def on_end(self, run: TrainingRun, history: History) -> None:
        """Close the file."""
        self._writer.close()


def as_callback(value: Any) -> Callback:
    """Return a callback, or a function of the record of an epoch as one.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(value, Callback):
        return value
    if callable(value) and not isinstance(value, type):
        return EpochFunction(value)
    raise InvalidArgumentError(
        f"expected callbacks, each a Callback or a function of the record of an epoch, received "
        f"{shown(value)}"
    )
