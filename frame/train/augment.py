"""Augmentation as a part of the graph: random shifts and flips, and normalisation, in one gather.

The random numbers are those of the step's counter, so that they follow from the seed and the step
alone. In inference only the normalisation is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count, numel
from frame.ir.graph import Value
from frame.nn.module import Module, Scope

LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True, slots=True)
class ImageAugmentation:
    """What happens to each image on its way into the network.

    Attributes:
        shift: each image moves by up to so many pixels along both axes, every distance as likely as
            another; what comes in is `fill`. That is a random crop out of a padded image.
        flip: the probability of a mirror image, left and right exchanged.
        fill: the value beyond the edges, before normalisation.
        mean, std: one number a channel; (x - mean) / std, in inference, too.
        layout: `NCHW`, or `NHWC` for blueprints.

    Raises:
        InvalidArgumentError: an option is out of its range.
    """

    shift: int = 0
    flip: float = 0.0
    fill: float = 0.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        whole = is_count(self.shift, 0, int)
        _require(whole, "shift to be an integer of at least 0", self.shift)
        _require(_number(self.flip) and 0 <= self.flip <= 1, "flip to be in [0, 1]", self.flip)
        _require(_number(self.fill), "fill to be a finite number", self.fill)
        object.__setattr__(self, "mean", _numbers("mean", self.mean))
        object.__setattr__(self, "std", _numbers("std", self.std))
        same = len(self.mean) == len(self.std)
        _require(same, "mean and std of the same channels", (self.mean, self.std))
        _require(all(each > 0 for each in self.std), "std above 0", self.std)
        _require(self.layout in LAYOUTS, f"layout to be one of {', '.join(LAYOUTS)}", self.layout)

    def around(self, module: Module) -> Module:
        """Return a module whose first input goes through this; paths of parameters are the same."""
        return replace(module, builder=_Around(self, module.builder))

    def build(self, scope: Scope, images: Value) -> Value:
        """Append it to the graph being built.

        Raises:
            InvalidArgumentError: the value is no batch of float images of the layout.
        """
        if images.rank != 4 or not images.dtype.is_float:
            raise InvalidArgumentError(
                f"augmentation: expected float images {self.layout}, received {images.type}"
            )
        if scope.training and (self.shift or self.flip):
            images = self._moved(scope.counter(), images)
        return self._normalised(images) if self.mean else images

    def _normalised(self, images: Value) -> Value:
        axis = self.layout.index("C")
        if images.shape[axis] != len(self.mean):
            raise InvalidArgumentError(
                f"augmentation: expected images of {len(self.mean)} channels, as mean and std "
                f"have, received {images.type}"
            )
        shape = tuple(len(self.mean) if place == axis else 1 for place in range(4))
        mean, scale = (ops.constant(values, images.dtype) for values in (self.mean, self._scale()))
        return (images - ops.reshape(mean, shape)) * ops.reshape(scale, shape)

    def _scale(self) -> tuple[float, ...]:
        return tuple(1.0 / each for each in self.std)

    def _moved(self, counter: Value, images: Value) -> Value:
        """Read each pixel from where it comes from: one gather from the flat images."""
        shape, (high, wide) = images.shape, (self.layout.index("H"), self.layout.index("W"))
        height, width = shape[high], shape[wide]
        if not isinstance(height, int) or not isinstance(width, int):
            raise InvalidArgumentError(
                f"augmentation: expected images of known height and width, received {images.type}"
            )
        each = (shape[0], 1, 1, 1)
        rows = ops.iota(shape, high) + self._distance(counter, each)
        columns = ops.iota(shape, wide)
        if self.flip:
            mirrored = ops.less(ops.uniform(counter, each), self.flip)
            columns = ops.where(mirrored, width - 1 - columns, columns)
        columns = columns + self._distance(counter, each)
        inside = ops.logical_and(_within(rows, height), _within(columns, width))
        places = [ops.iota(shape, axis) for axis in range(4)]
        places[high] = ops.clamp(rows, 0, height - 1)
        places[wide] = ops.clamp(columns, 0, width - 1)
        flat = places[0]
        for axis in (1, 2, 3):
            flat = flat * shape[axis] + places[axis]
        found = ops.gather(ops.reshape(images, (numel(shape),)), flat)
        return ops.where(inside, found, ops.full((), self.fill, images.dtype))

    def _distance(self, counter: Value, shape: Sequence[Any]) -> Value:
        """Return whole numbers from -shift to shift, each as likely as another."""
        drawn = ops.uniform(counter, shape, 0.0, 2.0 * self.shift + 1.0, dtype=float32)
        # rounding can reach the upper bound
        return ops.minimum(ops.cast(drawn, int64), 2 * self.shift) - self.shift


@dataclass(frozen=True, slots=True)
class _Around:
    """The builder of a module that augments its first input."""

    augmentation: ImageAugmentation
    inner: Callable[..., Any]

    def __call__(self, scope: Scope, images: Value, *others: Value) -> Any:
        return self.inner(scope, self.augmentation.build(scope, images), *others)


def _within(places: Value, size: Any) -> Value:
    return ops.logical_and(ops.greater_equal(places, 0), ops.less(places, size))


def _number(value: Any) -> bool:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and math.isfinite(value)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    good = isinstance(values, (tuple, list)) and all(map(_number, values))
    _require(good, f"{name} to be finite numbers, one a channel", values)
    return tuple(map(float, values))


def _require(condition: bool, expected: str, received: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"augmentation: expected {expected}, received {received!r:.80}")
