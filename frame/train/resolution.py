"""Resolutions of a task: to which size images are scaled on their way into the network, and when.

Source: Howard, "Training Imagenet in 3 hours for USD 25", fast.ai 2018; Tan, Le, "EfficientNetV2",
arXiv 2104.00298, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count
from frame.ir.graph import TensorType, Value
from frame.nn.module import Module, Scope, build_graph
from frame.train.augment import LAYOUTS, ImageAugmentation

Pixels = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which size the images have, epoch by epoch.

    Attributes:
        train: (epochs done, size) by epochs, the first for 0: from there on images have that size.
        validate: the size in validation, and for the trained model; None for that of the data.
        layout: `NCHW`, or `NHWC` for blueprints.
    """

    train: tuple[tuple[int, Pixels], ...]
    validate: Pixels | None = None
    layout: str = "NCHW"

    def at(self, epoch: int) -> Pixels:
        """Return the size of the images of an epoch, counted from 0."""
        return [size for start, size in self.train if start <= epoch][-1]

    @property
    def last(self) -> Pixels:
        """The size of the last epochs."""
        return self.train[-1][1]

    def around(
        self, module: Module, augmentation: ImageAugmentation | None, size: Pixels
    ) -> Module:
        """Return a module that trains on images scaled to a size and augmented in the same pass."""
        change = augmentation or ImageAugmentation(layout=self.layout)
        return replace(module, builder=_Around(change, size, self.validate, module.builder))

    def scaled(self, inputs: Sequence[TensorType]) -> list[TensorType]:
        """Return types of inputs whose first is images of the last size.

        Raises:
            InvalidArgumentError: the first is no batch of images.
        """
        images, *others = inputs
        if images.rank != 4:
            raise _wrong(f"images {self.layout} as the first input", str(images))
        shape = list(images.shape)
        for axis, number in zip("HW", self.last, strict=True):
            shape[self.layout.index(axis)] = number
        return [replace(images, shape=tuple(shape)), *others]

    def check(
        self,
        make: Callable[[Pixels], Module],
        inputs: Sequence[TensorType],
        augmentation: ImageAugmentation | None,
    ) -> None:
        """Build what `make` gives for every size.

        Raises:
            InvalidArgumentError: it does not take a size, or the layout is not the augmentation's.
        """
        if augmentation is not None and augmentation.layout != self.layout:
            raise _wrong(f"the layout of the augmentation, {augmentation.layout}", self.layout)
        for size in dict.fromkeys(size for _, size in self.train):
            _build(make(size), inputs, "train", _shown(size))
        seen = self.validate
        _build(make(self.last), inputs, "infer", _shown(seen) if seen else "the size of the data")

    def text(self) -> str:
        """Return what decides which pixels a step sees."""
        return f"{self.layout} {dict(self.train)}"


@dataclass(frozen=True, slots=True)
class _Around:
    """The builder of a module whose first input is scaled and, in training, augmented."""

    augmentation: ImageAugmentation
    train: Pixels
    validate: Pixels | None
    inner: Callable[..., Any]

    def __call__(self, scope: Scope, images: Value, *others: Value) -> Any:
        size = self.train if scope.training else self.validate
        return self.inner(scope, self.augmentation.build(scope, images, size), *others)


def resolution(train: Any, validate: Any, layout: Any) -> Resolution:
    """Return checked resolutions; see `DeepLearningTask.resolution`."""
    starts = dict(train) if isinstance(train, Mapping) else {0: train}
    if not all(is_count(start, 0) for start in starts) or 0 not in starts:
        raise _wrong("train by epochs done, integers of at least 0 with 0 among them", train)
    if layout not in LAYOUTS:
        raise _wrong(f"layout to be one of {', '.join(LAYOUTS)}", layout)
    rows = tuple((int(start), _size("train", starts[start])) for start in sorted(starts))
    return Resolution(rows, None if validate is None else _size("validate", validate), layout)


def _size(name: str, value: Any) -> Pixels:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or not all(is_count(each, 1) for each in pair):
        raise _wrong(f"{name} as a number of pixels or (height, width), at least 1", value)
    return int(pair[0]), int(pair[1])


def _shown(size: Pixels) -> str:
    return f"{size[0]} x {size[1]} pixels"


def _build(module: Module, inputs: Sequence[TensorType], mode: str, size: str) -> None:
    try:
        build_graph(module, inputs, mode)
    except InvalidArgumentError as error:
        purpose = {"train": "training", "infer": "validation"}[mode]
        raise InvalidArgumentError(
            f"resolution: expected a network that takes every size, received one that can't be "
            f"built for {purpose} at {size}: {error}; a layer whose weights depend on the "
            "resolution needs a global pool before it, and pools need enough pixels"
        ) from error


def _wrong(expected: str, received: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"resolution: expected {expected}, received {received!r:.80}")
