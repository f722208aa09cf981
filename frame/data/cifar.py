"""The binary version of CIFAR-10 and CIFAR-100.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, and the layout on
the page of the data set: a record is the label (CIFAR-100: the coarse label, then the fine one),
then 1,024 bytes of red, of green and of blue, row by row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data.files import Pathlike, existing_file, existing_folder, unsound
from frame.data.images import ImageDataset, Splits, checked_layout, laid_out

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the two data sets: its files, and the labels of a record.

    `labels` has a row a byte before the pixels: how many classes, and the file of their names.
    """

    name: str
    inner: str
    train: tuple[str, ...]
    test: str
    labels: tuple[tuple[int, str], ...]


_CIFAR10 = _Kind(
    "CIFAR-10",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    ((10, "batches.meta.txt"),),
)
_CIFAR100 = _Kind(
    "CIFAR-100",
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    ((20, "coarse_label_names.txt"), (100, "fine_label_names.txt")),
)
_COLUMNS = ("coarse", "fine")


def cifar10(folder: Pathlike, layout: str = "NCHW") -> Splits:
    """Read the binary version of CIFAR-10 from its folder, or from the one around that.

    Args:
        folder: where `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` are; the names
            of the classes come from `batches.meta.txt` if it is there.
        layout: `NCHW` for [rows, 3, 32, 32], `NHWC` for blueprints.

    Raises:
        NotFoundError: the folder, or a file, is missing.
        InvalidArgumentError: a file is cut short, or is no file of this data set.
    """
    return _splits(_CIFAR10, folder, 0, layout)


def cifar100(folder: Pathlike, labels: str = "fine", layout: str = "NCHW") -> Splits:
    """Read the binary version of CIFAR-100 (`train.bin`, `test.bin`); see `cifar10`.

    Args:
        folder: where the files are, or the one around that.
        labels: `fine` for the 100 classes, `coarse` for the 20 groups of them.
        layout: `NCHW` or `NHWC`.
    """
    if labels not in _COLUMNS:
        raise InvalidArgumentError(
            f"expected labels to be one of {', '.join(_COLUMNS)}, received {labels!r}"
        )
    return _splits(_CIFAR100, folder, _COLUMNS.index(labels), layout)


def _splits(kind: _Kind, folder: Pathlike, column: int, layout: str) -> Splits:
    place, order = existing_folder(folder, f"the folder of {kind.name}"), checked_layout(layout)
    if not (place / kind.test).exists() and (place / kind.inner).is_dir():
        place = place / kind.inner
    classes = _names(kind, place, column)
    parts = (kind.train, (kind.test,))
    return Splits(*(_part(kind, place, names, column, classes, order) for names in parts))


def _part(
    kind: _Kind,
    folder: Path,
    names: tuple[str, ...],
    column: int,
    classes: tuple[str, ...],
    layout: str,
) -> ImageDataset:
    records = [_records(kind, folder / name) for name in names]
    labels = np.concatenate([each[:, column] for each in records])
    planes = np.concatenate([each[:, len(kind.labels) :] for each in records])
    images = planes.reshape(-1, _CHANNELS, _SIDE, _SIDE)
    return ImageDataset(laid_out(images, layout), labels, classes)


def _records(kind: _Kind, path: Path) -> npt.NDArray[np.uint8]:
    """Return the records of a file, a row each."""
    what = f"a binary file of {kind.name}"
    size = len(kind.labels) + _PIXELS
    data = np.fromfile(existing_file(path, what), np.uint8)
    if not data.size or data.size % size:
        whole = f"{data.size:,} bytes are no whole number of records of {size:,} bytes"
        unsound(what, path, f"{whole}: it is cut short, or another file")
    records = data.reshape(-1, size)
    for column, (count, _) in enumerate(kind.labels):
        bad = np.flatnonzero(records[:, column] >= count)
        if bad.size:
            found = f"record {bad[0]} has the label {records[bad[0], column]}"
            unsound(what, path, f"{found}, expected 0 to {count - 1}")
    return records


def _names(kind: _Kind, folder: Path, column: int) -> tuple[str, ...]:
    """Return the names of the classes; none where their file is not there."""
    count, name = kind.labels[column]
    try:
        lines = existing_file(folder / name, "names of classes").read_text("utf-8").split()
    except NotFoundError:
        return ()
    except UnicodeDecodeError as problem:
        unsound("names of classes", folder / name, problem)
    if len(lines) != count:
        unsound(f"{count} names of classes", folder / name, f"it has {len(lines)}")
    return tuple(lines)
