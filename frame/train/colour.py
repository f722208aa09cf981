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
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.train.warp import Draw, stacked

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

    def matrices(self, draw: Draw, images: Value, axis: int) -> Value:
        """Return the matrix and the offset of each image [batch, channels, channels + 1].

        Args:
            draw: draws a number an image.
            images: the images before they are moved, for their mean luma.
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
        mixed = self._mixed(draw) if mixes else np.eye(int(channels)).tolist()  # type: ignore[arg-type]
        offset: Any = 0.0
        if self.contrast:
            offset = (1.0 - contrast) * light * _mean_luma(images, axis)
        numbers = [
            number
            for row in mixed
            for number in (*(light * contrast * each for each in row), offset)
        ]
        return stacked(numbers, images.shape[0], (int(channels), int(channels) + 1))  # type: ignore[arg-type]

    def _factor(self, draw: Draw, reach: float) -> Any:
        return draw(max(0.0, 1.0 - reach), 1.0 + reach) if reach else 1.0

    def _mixed(self, draw: Draw) -> list[list[Any]]:
        """Return M, row by row."""
        along, across = self._factor(draw, self.saturation), 0.0
        if self.hue:
            angle = draw(-self.hue, self.hue) * (2.0 * math.pi)
            along, across = along * ops.cos(angle), along * ops.sin(angle)
        return [
            [LUMA[k] + along * float(CHROMA[c, k]) + across * float(TURNED[c, k]) for k in range(3)]
            for c in range(3)
        ]


def _mean_luma(images: Value, axis: int) -> Value:
    """Return the mean luma of each image [batch, 1], float32."""
    planes = tuple(each for each in (1, 2, 3) if each != axis)
    means = ops.mean(ops.cast(images, float32), axes=planes)
    if images.shape[axis] == 1:
        return means
    return ops.sum(means * ops.constant(LUMA, float32), axes=(1,), keepdims=True)
