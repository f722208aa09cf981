"""Augmentation as a part of the graph: where pixels come from, their colours, normalisation.

The random numbers are those of the step's counter, so that they follow from the seed and the step
alone, image by image. In inference only the normalisation is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from frame import ops
from frame.core.arguments import is_finite_number, settle, shown, whole
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.module import Module, Scope
from frame.train.colour import ColourJitter
from frame.train.warp import Affine, Draw, Frame, Look, resized_crop

LAYOUTS = ("NCHW", "NHWC")
ALL = Look()
"""All of an image, in its own size."""
_FACTORS = ("brightness", "contrast", "saturation")


@dataclass(frozen=True, slots=True)
class ImageAugmentation:
    """What happens to each image on its way into the network, in this order.

    An image is moved, mirrored, rotated, and a part of it is scaled to the whole; then its colours
    change. All of it reads each pixel once: whole distances and mirrors copy pixels, rotations and
    resized crops interpolate between four. Values may leave the range of the image: nothing clamps
    them.

    Attributes:
        shift: each image moves by up to so many pixels along both axes, every distance as likely as
            another; what comes in is `fill`. That is a random crop out of a padded image.
        flip: the probability of a mirror image, left and right exchanged.
        rotate: each image turns around its middle by up to so many degrees to both sides.
        crop: (least, most) share of the area that a random rectangle has, which is scaled to the
            size of the image; () for none.
        ratio: (least, most) width over height of that rectangle, in pixels.
        brightness, contrast, saturation: a factor from max(0, 1 - x) to 1 + x; contrast is around
            the mean luma of the image, saturation around the luma of each pixel.
        hue: a turn of the hue by up to this share of the circle to both sides, at most 0.5.
        fill: the value beyond the edges, before colours and normalisation.
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
    rotate: float = 0.0
    crop: tuple[float, ...] = ()
    ratio: tuple[float, ...] = (3 / 4, 4 / 3)
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        whole("augmentation", "shift", self.shift, 0)
        _require(_number(self.flip) and 0 <= self.flip <= 1, "flip to be in [0, 1]", self.flip)
        _require(_number(self.fill), "fill to be a finite number", self.fill)
        object.__setattr__(self, "mean", _numbers("mean", self.mean))
        object.__setattr__(self, "std", _numbers("std", self.std))
        same = len(self.mean) == len(self.std)
        _require(same, "mean and std of the same channels", (self.mean, self.std))
        _require(all(each > 0 for each in self.std), "std above 0", self.std)
        _require(self.layout in LAYOUTS, f"layout to be one of {', '.join(LAYOUTS)}", self.layout)
        self._check_places()
        self._check_colours()
        settle("augmentation", self)

    def _check_places(self) -> None:
        turn = _number(self.rotate) and 0 <= self.rotate <= 180
        _require(turn, "rotate to be from 0 to 180 degrees", self.rotate)
        share = self.crop in ((), []) or _rising(self.crop, 1.0)
        _require(share, "crop to be () or (least, most) in (0, 1]", self.crop)
        ratio = _rising(self.ratio, math.inf)
        _require(ratio, "ratio to be (least, most) above 0", self.ratio)
        for name in ("crop", "ratio"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))

    def _check_colours(self) -> None:
        for name in _FACTORS:
            value = getattr(self, name)
            _require(_number(value) and value >= 0, f"{name} to be a number of 0 or more", value)
        half = _number(self.hue) and 0 <= self.hue <= 0.5
        _require(half, "hue to be in [0, 0.5]", self.hue)

    def around(self, module: Module) -> Module:
        """Return a module whose first input goes through this; paths of parameters are the same."""
        return replace(module, builder=_Around(self, module.builder))

    def build(self, scope: Scope, images: Value, look: Look = ALL) -> Value:
        """Append it to the graph being built.

        With a size (height, width) in the look the images are scaled to it, in inference, too: in
        the same pass, bilinear between the four pixels around a place, without smoothing before.

        Raises:
            InvalidArgumentError: the value is no batch of float images of the layout.
        """
        if images.rank != 4 or not images.dtype.is_float:
            raise InvalidArgumentError(
                f"augmentation: expected float images {self.layout}, received {images.type}"
            )
        jitter = ColourJitter(self.brightness, self.contrast, self.saturation, self.hue)
        moves = self.shift or self.flip or self.rotate or self.crop
        if scope.training and (moves or jitter.works or look.window):
            images = self._changed(_draws(scope.counter(), images), images, jitter, look)
        elif look.size:
            images = self._scaled(images, look)
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

    def _frame(self, images: Value) -> Frame:
        frame = Frame(images.shape, self.layout.index("H"), self.layout.index("W"))
        if not isinstance(images.shape[frame.high], int) or not isinstance(
            images.shape[frame.wide], int
        ):
            raise InvalidArgumentError(
                f"augmentation: expected images of known height and width, received {images.type}"
            )
        return frame

    def _changed(self, draw: Draw, images: Value, jitter: ColourJitter, look: Look) -> Value:
        """Read each pixel from where it comes from, in its new colours."""
        frame = self._frame(images)
        size, scaled = look.result(frame.size), look.scales(frame.size)
        places = look.of(self._map(draw, frame), frame.size, draw)
        axis = self.layout.index("C")
        return ops.affine_sample(
            images,
            places.packed(images.shape[0]),
            *((jitter.matrices(draw, images, axis),) if jitter.works else ()),
            layout=self.layout,
            interpolation="bilinear" if self.rotate or self.crop or scaled else "nearest",
            fill=float(self.fill),
            size=size if size != frame.size else (),
        )

    def _scaled(self, images: Value, look: Look) -> Value:
        """Return the whole of each image in the size of the look."""
        frame = self._frame(images)
        size = look.result(frame.size)
        if not look.scales(frame.size):
            return images
        places = Affine().resized(frame.size, size).packed(images.shape[0])
        return ops.affine_sample(images, places, layout=self.layout, size=size)

    def _steps(self, draw: Draw) -> tuple[Value | None, Value, Value]:
        """Draw whether an image is mirrored (None for never), and how far it moves, int64."""
        mirrored = ops.less(draw(0.0, 1.0), self.flip) if self.flip else None
        down, right = (self._distance(draw) for _ in range(2))
        return mirrored, down, right

    def _distance(self, draw: Draw) -> Value:
        """Return whole numbers from -shift to shift, each as likely as another."""
        drawn = draw(0.0, 2.0 * self.shift + 1.0)
        # rounding can reach the upper bound
        return ops.minimum(ops.cast(drawn, int64), 2 * self.shift) - self.shift

    def _map(self, draw: Draw, frame: Frame) -> Affine:
        """Return the map from a place of the result to one of the image."""
        if not (self.shift or self.flip or self.rotate or self.crop):
            return Affine()
        least, most = self.crop or (1.0, 1.0)
        found = resized_crop(draw, frame, (least, most), self._ratio()) if self.crop else Affine()
        if self.rotate:
            angle = draw(-self.rotate, self.rotate) * (math.pi / 180.0)
            middle = (0.5 * (frame.height - 1), 0.5 * (frame.width - 1))
            found = found.rotated(ops.cos(angle), ops.sin(angle), middle)
        mirrored, down, right = self._steps(draw)
        if mirrored is not None:
            hit = ops.cast(mirrored, float32)
            found = found.scaled_columns(1.0 - 2.0 * hit, (frame.width - 1.0) * hit)
        return found.moved(ops.cast(down, float32), ops.cast(right, float32))

    def _ratio(self) -> tuple[float, float]:
        least, most = self.ratio
        return least, most


@dataclass(frozen=True, slots=True)
class _Around:
    """The builder of a module that augments its first input."""

    augmentation: ImageAugmentation
    inner: Callable[..., Any]

    def __call__(self, scope: Scope, images: Value, *others: Value) -> Any:
        return self.inner(scope, self.augmentation.build(scope, images), *others)


def _draws(counter: Value, images: Value) -> Draw:
    """Return what draws a float32 for each image, from a stream of its own at each call."""
    shape = (images.shape[0], 1)
    return lambda low, high: ops.uniform(counter, shape, low, high, dtype=float32)


def _rising(values: Any, most: float) -> bool:
    pair = isinstance(values, (tuple, list)) and len(values) == 2 and all(map(_number, values))
    return pair and 0 < values[0] <= values[1] <= most


def _number(value: Any) -> bool:
    return is_finite_number(value)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    good = isinstance(values, (tuple, list)) and all(map(_number, values))
    _require(good, f"{name} to be finite numbers, one a channel", values)
    return tuple(map(float, values))


def _require(condition: bool, expected: str, received: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"augmentation: expected {expected}, received {shown(received)}")
