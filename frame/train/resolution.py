"""Resolutions of a task: to which size images are scaled on their way into the network, and when.

Source: Howard, "Training Imagenet in 3 hours for USD 25", fast.ai 2018; Tan, Le, "EfficientNetV2",
arXiv 2104.00298, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from frame.core.arguments import LARGEST, shown
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.logs import Logger
from frame.core.shapes import is_count
from frame.ir.graph import TensorType, Value
from frame.nn.module import Module, Scope, build_graph
from frame.train.augment import LAYOUTS, ImageAugmentation
from frame.train.warp import Look, Pixels

_LOG = Logger("frame.train")


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which size the images have, epoch by epoch.

    Attributes:
        train: (epochs done, size) by epochs, the first for 0: from there on images have that size;
            empty for that of the data.
        validate: the size in validation, and for the trained model; None for that of the data.
        layout: `NCHW`, or `NHWC` for blueprints; empty for that of the augmentation or the model.
        resizes: before and after the one boundary of `train`, what images are scaled to before
            a window of them is taken; empty for their own size.
        crops: before and after it, the window at a random place that is scaled to the size of
            `train`; empty for all of the image.
    """

    train: tuple[tuple[int, Pixels], ...] = ()
    validate: Pixels | None = None
    layout: str = ""
    resizes: tuple[Pixels, ...] = ()
    crops: tuple[Pixels, ...] = ()

    def at(self, epoch: int) -> Look:
        """Return what an epoch, counted from 0, sees of an image."""
        reached = [place for place, (start, _) in enumerate(self.train) if start <= epoch]
        return self._look(reached[-1]) if reached else Look()

    @property
    def last(self) -> Look:
        """What the last epochs see."""
        return self._look(len(self.train) - 1) if self.train else Look()

    def _look(self, place: int) -> Look:
        resize, window = (each[place] if each else None for each in (self.resizes, self.crops))
        return Look(self.train[place][1], resize, window)

    def in_turn(self) -> Resolution:
        """Return the same with one epoch each."""
        return replace(self, train=tuple((k, size) for k, (_, size) in enumerate(self.train)))

    def warn_unreached(self, epochs: int) -> None:
        """Log a warning for each size that begins only after so many epochs, which are all."""
        for start, size in self.train:
            if start >= epochs:
                _LOG.warning(
                    "train_resolution: %d x %d pixels begin after %d epochs, and the training ends "
                    "after %d: they are never reached",
                    *size,
                    start,
                    epochs,
                )

    def around(self, module: Module, augmentation: ImageAugmentation, look: Look) -> Module:
        """Return a module that trains on such looks at images, augmented in the same pass."""
        return replace(module, builder=_Around(augmentation, look, self.validate, module.builder))

    def scaled(self, inputs: Sequence[TensorType], layout: str) -> list[TensorType]:
        """Return types of inputs whose first is images of the last size.

        Raises:
            InvalidArgumentError: the first is no batch of images.
        """
        images, *others = inputs
        if images.rank != 4:
            raise _wrong(f"images {layout} as the first input", str(images))
        shape = list(images.shape)
        for axis, number in zip("HW", self.last.size or (), strict=False):
            shape[layout.index(axis)] = number
        return [replace(images, shape=tuple(shape)), *others]

    def check(
        self, make: Callable[[Look], Module], inputs: Sequence[TensorType], layout: str
    ) -> None:
        """Build what `make` gives for every size.

        Raises:
            InvalidArgumentError: the network does not take a size, a window is larger than what it
                is taken from, or there is no boundary for two sizes of it.
        """
        self.check_counts()
        self._check_windows(inputs, layout)
        for look in dict.fromkeys(self._look(place) for place in range(len(self.train))):
            _build(make(look), inputs, "train", _shown(look.size))
        seen = self.validate
        _build(make(self.last), inputs, "infer", _shown(seen) if seen else "the size of the data")

    def check_counts(self) -> None:
        """Raise InvalidArgumentError where two sizes stand without the one boundary for them."""
        for name, sizes in (("progressive_resize", self.resizes), ("progressive_crop", self.crops)):
            if sizes and len(self.train) != 2:
                raise _wrong(
                    "train_resolution({0: begin, boundary: end}), whose boundary it takes",
                    dict(self.train),
                    name,
                )
        if self.resizes and not self.crops:
            raise _wrong(
                "progressive_crop with it; train_resolution alone scales whole images",
                self.resizes,
                "progressive_resize",
            )

    def _check_windows(self, inputs: Sequence[TensorType], layout: str) -> None:
        for place, window in enumerate(self.crops):
            shape = inputs[0].shape if inputs[0].rank == 4 else ()
            data = tuple(shape[layout.index(axis)] for axis in "HW") if shape else ()
            whole = self.resizes[place] if self.resizes else data
            if any(isinstance(b, int) and a > b for a, b in zip(window, whole, strict=False)):
                raise _wrong(
                    f"windows of at most {_shown(whole)}, out of which they are cut",
                    window,
                    "progressive_crop",
                )

    def text(self) -> str:
        """Return what decides which pixels a step sees."""
        more = f" resizes {self.resizes} crops {self.crops}" if self.resizes or self.crops else ""
        return f"{self.layout} {dict(self.train)}{more}"


@dataclass(frozen=True, slots=True)
class _Around:
    """The builder of a module whose first input is scaled and, in training, augmented."""

    augmentation: ImageAugmentation
    train: Look
    validate: Pixels | None
    inner: Callable[..., Any]

    def __call__(self, scope: Scope, images: Value, *others: Value) -> Any:
        look = self.train if scope.training else Look(self.validate)
        return self.inner(scope, self.augmentation.build(scope, images, look), *others)


def train_sizes(sizes: Any) -> tuple[tuple[int, Pixels], ...]:
    """Return checked sizes by epochs done; see `DeepLearningTask.train_resolution`."""
    starts = dict(sizes) if isinstance(sizes, Mapping) else {0: sizes}
    if not all(is_count(start, 0) for start in starts) or 0 not in starts:
        raise _wrong(
            "size by epochs done, integers of at least 0 with 0 among them",
            sizes,
            "train_resolution",
        )
    return tuple(
        (int(start), pixels("train_resolution", "size", starts[start])) for start in sorted(starts)
    )


def checked_layout(owner: str, layout: Any) -> str:
    """Return a layout, or an empty text for the usual one."""
    if layout is not None and layout not in LAYOUTS:
        raise _wrong(f"layout to be one of {', '.join(LAYOUTS)}, or None", layout, owner)
    return layout or ""


def pixels(owner: str, name: str, value: Any) -> Pixels:
    """Return (height, width), given as such or as one number; raise InvalidArgumentError else."""
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or not all(is_count(each, 1) and each <= LARGEST for each in pair):
        raise _wrong(f"{name} as a number of pixels or (height, width), at least 1", value, owner)
    return int(pair[0]), int(pair[1])


def _shown(size: Any) -> str:
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


def _wrong(expected: str, received: object, owner: str = "resolution") -> InvalidArgumentError:
    return InvalidArgumentError(f"{owner}: expected {expected}, received {shown(received)}")
