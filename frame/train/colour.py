"""Colour jitter as a part of a graph: brightness, contrast, saturation and hue.

All four together are one matrix and one offset an image. A grey pixel stays grey under saturation
and hue, so the offset of the contrast passes through them unchanged.

    x -> M (contrast * brightness * x) + (1 - contrast) * brightness * mean luma
    M = 1 w^T + saturation * (cos(2 pi hue) A + sin(2 pi hue) B)

w are the weights of the luma (ITU-R BT.601), A takes the chroma of a pixel, B the chroma turned by
a quarter in the IQ plane of YIQ (the hue of the NTSC standard, where it is a rotation).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.train.warp import Draw

LUMA = (0.299, 0.587, 0.114)
_TO_YIQ = np.array([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
_QUARTER = np.array([(0.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 1.0, 0.0)])
CHROMA = np.eye(3) - np.outer(np.ones(3), LUMA)
TURNED = CHROMA @ np.linalg.inv(_TO_YIQ) @ _QUARTER @ _TO_YIQ @ CHROMA


@dataclass(frozen=True, slots=True)
class ColourJitter:
    """How far the colours of an image may move.

    Attributes:
        brightness, contrast, saturation: a factor from max(0, 1 - x) to 1 + x.
        hue: a share of the circle from -x to x.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float

    @property
    def works(self) -> bool:
        """Whether it changes anything."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue)

    def apply(self, draw: Draw, images: Value, source: Value, axis: int) -> Value:
        """Return images in other colours.

        Args:
            draw: draws a number an image.
            images: the images, with their channels along `axis`.
            source: the images before they were moved, for their mean luma.
            axis: of the channels.

        Raises:
            InvalidArgumentError: there are neither 1 nor 3 channels, or 1 for saturation or hue.
        """
        channels = images.shape[axis]
        mixes = bool(self.saturation or self.hue)
        if channels != 3 and (mixes or channels != 1):
            raise InvalidArgumentError(
                f"augmentation: expected 3 channels for saturation and hue and 1 or 3 for other "
                f"jitter, received {images.type}"
            )
        light, contrast = self._factor(draw, self.brightness), self._factor(draw, self.contrast)
        mixed = self._mixed(draw, images, axis) if mixes else images
        found = mixed * ops.cast(light * contrast, images.dtype)
        if not self.contrast:
            return found
        middle = ops.cast((1.0 - contrast) * light, images.dtype)
        return found + middle * _mean_luma(source, axis)

    def _factor(self, draw: Draw, reach: float) -> Any:
        one = ops.ones((1, 1, 1, 1), "float32")
        return draw(max(0.0, 1.0 - reach), 1.0 + reach) if reach else one

    def _mixed(self, draw: Draw, images: Value, axis: int) -> Value:
        """Return the images through M."""
        strength = self._factor(draw, self.saturation)
        angle = draw(-self.hue, self.hue) * (2.0 * math.pi) if self.hue else None
        along = strength if angle is None else strength * ops.cos(angle)
        across = None if angle is None else strength * ops.sin(angle)
        parts = []
        for channel, weight in enumerate(LUMA):
            column = weight + along * _column(CHROMA, channel, axis)
            if across is not None:
                column = column + across * _column(TURNED, channel, axis)
            parts.append(ops.cast(column, images.dtype) * _channel(images, channel, axis))
        first, second, third = parts
        return first + second + third


def _column(matrix: np.ndarray, channel: int, axis: int) -> Value:
    shape = [1, 1, 1, 1]
    shape[axis] = 3
    return ops.constant(matrix[:, channel].reshape(shape).astype(np.float32))


def _channel(images: Value, channel: int, axis: int) -> Value:
    starts, ends = [0] * 4, list(images.shape)
    starts[axis], ends[axis] = channel, channel + 1
    return ops.slice(images, tuple(starts), tuple(ends))


def _mean_luma(images: Value, axis: int) -> Value:
    """Return the mean luma of each image [batch, 1, 1, 1]."""
    planes = tuple(each for each in (1, 2, 3) if each != axis)
    means = ops.mean(images, axes=planes, keepdims=True)
    if images.shape[axis] == 1:
        return means
    shape = [1, 1, 1, 1]
    shape[axis] = 3
    weights = ops.reshape(ops.constant(LUMA, images.dtype), tuple(shape))
    return ops.sum(means * weights, axes=(axis,), keepdims=True)
