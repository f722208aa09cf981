"""Images in host memory, one byte a channel, that become numbers in [0, 1] batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from frame.core.errors import InvalidArgumentError
from frame.data.datasets import Batch, checked_rows, random_halves

LAYOUTS = ("NCHW", "NHWC")
_WHITE = np.float32(255)


class ImageDataset:
    """Images of one byte a channel and their labels; a batch has float32 in [0, 1] and int64.

    The bytes stay as they are: as float32 they would take four times the memory.

    Attributes:
        images: uint8, of the layout.
        labels: int64 [rows], in [0, len(classes)).
        classes: the names of the labels; empty where they have none.

    Raises:
        InvalidArgumentError: the images are no uint8 of rank 4, the labels no integers, there is no
            row, their numbers differ, or a label has no name.
    """

    def __init__(self, images: Any, labels: Any, classes: Sequence[str] = ()) -> None:
        self.images = np.asarray(images)
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise InvalidArgumentError(
                f"expected images as uint8 of rank 4, received "
                f"{self.images.dtype}{list(self.images.shape)}: {images!r:.60}"
            )
        given = np.asarray(labels)
        if given.dtype.kind not in "iu" or given.shape != self.images.shape[:1] or not given.size:
            raise InvalidArgumentError(
                f"expected labels, an integer for each of {len(self.images)} image(s), at least "
                f"one, received {given.dtype}{list(given.shape)}: {labels!r:.60}"
            )
        self.labels = given.astype(np.int64)
        self.classes = checked_names("classes", classes)
        if self.classes and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise InvalidArgumentError(
                f"expected labels from 0 to {len(self.classes) - 1}, for which there are names, "
                f"received {self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageDataset({len(self)} images {list(self.images.shape[1:])})"

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the images at `indices` as float32 in [0, 1], and their labels."""
        taken = np.take(self.images, indices, axis=0)
        return np.divide(taken, _WHITE, dtype=np.float32), np.take(self.labels, indices)

    def subset(self, indices: Any) -> ImageDataset:
        """Return a dataset of copies of the rows at `indices`; raises as TensorDataset.subset."""
        rows = checked_rows(indices, len(self))
        return ImageDataset(self.images[rows], self.labels[rows], self.classes)

    def split(self, fraction: float, seed: int = 0) -> tuple[ImageDataset, ImageDataset]:
        """Return two datasets of randomly chosen rows, the first with `fraction` of them.

        Raises:
            InvalidArgumentError: one of the two would be empty.
        """
        first, second = random_halves(len(self), fraction, seed)
        return self.subset(first), self.subset(second)


class Splits(NamedTuple):
    """The two parts that a benchmark data set comes in."""

    train: ImageDataset
    test: ImageDataset


def checked_names(what: str, names: Any) -> tuple[str, ...]:
    """Return names as a tuple; raise InvalidArgumentError for what is no sequence of texts."""
    found = None if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__") else names
    made = () if found is None else tuple(found)
    if found is None or not all(isinstance(each, str) for each in made):
        raise InvalidArgumentError(
            f"expected {what} as a sequence of names, received {names!r:.80}"
        )
    return made


def laid_out(planes: npt.NDArray[np.uint8], layout: str) -> npt.NDArray[np.uint8]:
    """Return images NCHW in a layout, dense."""
    if layout == "NCHW":
        return planes
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def checked_layout(layout: object) -> str:
    """Return the layout; raise InvalidArgumentError for one that there is not."""
    if layout not in LAYOUTS:
        raise InvalidArgumentError(
            f"expected the layout to be one of {', '.join(LAYOUTS)}, received {layout!r}"
        )
    return str(layout)
