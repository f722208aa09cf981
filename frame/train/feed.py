"""What a task is fed with: datasets, checked when they are declared, and the loaders of a run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from frame.core.arguments import flag, whole
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.logs import Logger
from frame.data import DataLoader, Dataset, TensorDataset
from frame.ir.graph import TensorType
from frame.runtime.specs import spec

_LOG = Logger("frame.train")


@dataclass(frozen=True, slots=True)
class Feed:
    """Training and validation data of one task.

    Attributes:
        train: rows (inputs..., targets...).
        validation: the same for validation; None for none.
        batch: rows of a batch.
        shuffle: whether each epoch has an order of its own.
        drop_last: whether an incomplete last batch is left out.
        targets: how many of the last columns are targets.
        loader: a loader of the user's own for the training rows.
    """

    train: Dataset
    validation: Dataset | None
    batch: int
    shuffle: bool = True
    drop_last: bool = False
    targets: int = 1
    loader: DataLoader | None = None

    def columns(self) -> list[np.ndarray]:
        """Return the columns of one row, for their types."""
        return [np.asarray(column) for column in self.train.batch(np.zeros(1, np.int64))]

    def specs(self) -> tuple[list[TensorType], list[TensorType]]:
        """Return the types of the inputs and of the targets; axis 0 is the symbol `batch`."""
        found = [spec(("batch", *c.shape[1:]), c.dtype.name) for c in self.columns()]
        return found[: -self.targets], found[-self.targets :]

    def fixed_batch(self) -> int | None:
        """Return the rows of every batch, or None where a last batch is shorter."""
        whole = self.drop_last or len(self.train) % self.batch == 0
        return self.batch if whole else None

    def sizes(self) -> dict[str, int]:
        """Return the numbers that a training step is compiled for."""
        batch = self.fixed_batch()
        return {} if batch is None else {"batch": batch}

    def first(self, batches: int) -> Feed:
        """Return the rows of some batches, and of one of each other size that a split has.

        They are the first rows in the order of the data.
        """
        short = 0 if self.drop_last else len(self.train) % self.batch
        rows = min(batches * self.batch + short, len(self.train))
        held_out = self.validation
        if held_out is not None:
            held_out = _rows(held_out, min(self.batch, len(held_out)))
        return replace(self, train=_rows(self.train, rows), validation=held_out, loader=None)

    def train_loader(self, seed: int) -> DataLoader:
        """Return a new loader of the training rows."""
        if self.loader is not None:
            return copy.copy(self.loader)
        return DataLoader(self.train, self.batch, self.shuffle, seed, self.drop_last)

    def validation_loader(self) -> DataLoader | None:
        """Return a new loader of the validation rows."""
        if self.validation is None:
            return None
        return DataLoader(self.validation, min(self.batch, len(self.validation)))

    def text(self) -> str:
        """Return what decides which rows a step sees."""
        own = "" if self.loader is None else f" loader seed={self.loader.seed}"
        return (
            f"{len(self.train)} rows, batch={self.batch} shuffle={self.shuffle} "
            f"drop_last={self.drop_last}{own}"
        )


def make_feed(
    train: Any, validation: Any, batch: Any, shuffle: bool, drop_last: bool, targets: Any
) -> Feed:
    """Return checked data.

    Raises:
        InvalidArgumentError: a split is empty or of another kind than data, holds NaN or
            infinities, or training and validation have different columns.
    """
    loader = train if isinstance(train, DataLoader) else None
    if loader is not None:
        if batch is not None:
            raise InvalidArgumentError(
                f"data: expected batch_size or a DataLoader, which has one, received both "
                f"({batch} and {loader.batch_size})"
            )
        batch, shuffle, drop_last = loader.batch_size, loader.shuffle, loader.drop_last
    held_out = None if validation is None else _dataset("validation", validation)
    rows = _dataset("train", train)
    size = whole("data", "batch_size", 32 if batch is None else batch)
    shuffle, drop_last = flag("data", "shuffle", shuffle), flag("data", "drop_last", drop_last)
    targets = whole("data", "targets", targets)
    if drop_last and size > len(rows):
        raise InvalidArgumentError(
            f"data: drop_last leaves no batch: {len(rows)} rows are fewer than batch_size {size}"
        )
    feed = Feed(rows, held_out, size, shuffle, drop_last, targets, loader)
    _check_columns(feed)
    return feed


def _rows(data: Dataset, count: int) -> TensorDataset:
    return TensorDataset(data.batch(np.arange(count)))


def _dataset(name: str, data: Any) -> Dataset:
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, (tuple, list)):
        try:
            data = TensorDataset(data)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"data: {name}: {error}: {data!r:.60}") from error
    if not isinstance(data, Dataset):
        raise InvalidArgumentError(
            f"data: expected {name} as arrays (inputs..., targets...), a Dataset or a DataLoader, "
            f"received a {type(data).__name__}: {data!r:.60}"
        )
    if len(data) == 0:
        raise InvalidArgumentError(
            f"data: expected rows in {name}, received an empty split: {data!r:.60}"
        )
    if isinstance(data, TensorDataset):
        for position, column in enumerate(data.columns):
            _check_finite(name, position, column)
    return data


def _check_finite(name: str, position: int, column: np.ndarray) -> None:
    if column.dtype.kind in "iub" or bool(np.isfinite(column).all()):
        return
    bad = np.argwhere(~np.isfinite(column))
    raise InvalidArgumentError(
        f"data: column {position} of {name} holds {len(bad)} value(s) that are not finite, the "
        f"first at {bad[0].tolist()}: {column[tuple(bad[0])]}"
    )


def _check_columns(feed: Feed) -> None:
    """Check that there are inputs and targets, the same in both splits."""
    columns = feed.columns()
    if len(columns) <= feed.targets:
        raise InvalidArgumentError(
            f"data: expected at least one input and {feed.targets} target(s), received "
            f"{len(columns)} column(s)"
        )
    if feed.validation is None:
        return
    first = feed.validation.batch(np.zeros(1, np.int64))
    train, held_out = ([f"{c.dtype}{list(c.shape[1:])}" for c in x] for x in (columns, first))
    if train != held_out:
        raise InvalidArgumentError(
            f"data: expected the same columns in both splits, received {', '.join(train)} to train "
            f"and {', '.join(held_out)} to validate"
        )


def check_label_types(feed: Feed) -> None:
    """Raise InvalidArgumentError for labels that are no integers."""
    labels = feed.columns()[-1]
    if labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"data: expected integer labels for a cross entropy, received {labels.dtype}"
        )


def check_labels(feed: Feed, classes: int, ignored: int | None = None) -> None:
    """Warn of classes that no training row has; `ignored` is a label that stands for none.

    Raises:
        InvalidArgumentError: a label is out of range.
    """
    splits = (("train", feed.train), ("validation", feed.validation))
    for name, data in splits:
        labels = _labels(data)
        if labels is not None:
            _check_range(name, labels, classes, ignored)
    labels = _labels(feed.train)
    if labels is not None:
        missing = sorted(set(range(classes)) - set(np.unique(labels).tolist()))
        if missing:
            _LOG.warning("no training row has the label %s", _some(missing))


def _labels(data: Dataset | None) -> np.ndarray | None:
    """Return all labels of a dataset where it has them at hand."""
    if isinstance(data, TensorDataset):
        return data.columns[-1]
    found = getattr(data, "labels", None)
    return found if isinstance(found, np.ndarray) else None


def _check_range(name: str, labels: np.ndarray, classes: int, ignored: int | None) -> None:
    wrong = (labels < 0) | (labels >= classes)
    bad = np.flatnonzero(wrong if ignored is None else wrong & (labels != ignored))
    if bad.size:
        raise InvalidArgumentError(
            f"data: expected labels from 0 to {classes - 1} in {name}, received "
            f"{labels.reshape(-1)[bad[0]]} in row {bad[0]} ({bad.size} such label(s))"
        )


def _some(values: Sequence[int]) -> str:
    more = ", ..." if len(values) > 8 else ""
    return ", ".join(map(str, values[:8])) + more
