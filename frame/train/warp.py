"""Where each pixel of an augmented image comes from, as parts of a graph.

An affine map takes a place (row, column) of the result to one of the source; pixel centres are
whole numbers. The map of each image is a few numbers [rows of the batch, 1, 1, 1], so that only one
multiply-add an axis is done for each pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32, int64
from frame.core.shapes import numel
from frame.ir.graph import Value

Number = Any  # a Value of the shape [batch, 1, 1, 1], or a float for all images
Draw = Callable[[float, float], Value]
"""Draws one uniform number between two bounds for each image."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The shape of a batch of images, and the axes of their rows and columns."""

    shape: tuple[Any, ...]
    high: int
    wide: int

    @property
    def height(self) -> int:
        """The number of rows."""
        return int(self.shape[self.high])

    @property
    def width(self) -> int:
        """The number of columns."""
        return int(self.shape[self.wide])

    def places(self) -> tuple[Value, Value]:
        """Return the row and the column of each pixel, int64, with one channel."""
        shape = list(self.shape)
        shape[6 - self.high - self.wide] = 1
        return ops.iota(shape, self.high), ops.iota(shape, self.wide)

    def reader(self, images: Value) -> Callable[[Value, Value], Value]:
        """Return what reads the pixels of all channels at whole places inside of the images.

        Places have one channel, as those of `places`. So an index is there once for all channels of
        a pixel, and flat: what checks it is one loop.
        """
        channels = 6 - self.high - self.wide  # axes 1, 2 and 3 without the two
        order = (channels, 0, self.high, self.wide)
        shape = tuple(self.shape[axis] for axis in order)
        count = numel(shape[1:])
        table = ops.reshape(ops.transpose(images, order), (shape[0], count))
        back = tuple(order.index(axis) for axis in range(4))

        def read(rows: Value, columns: Value) -> Value:
            image = ops.iota(rows.shape, 0)
            flat = (image * self.height + rows) * self.width + columns
            found = ops.gather(table, ops.reshape(flat, (count,)), axis=1)
            return ops.transpose(ops.reshape(found, shape), back)

        return read


@dataclass(frozen=True, slots=True)
class Affine:
    """(row, column) of the source for (i, j) of the result.

    Each is (by i, by j, offset): row = rows[0] * i + rows[1] * j + rows[2].
    """

    rows: tuple[Number, Number, Number] = (1.0, 0.0, 0.0)
    columns: tuple[Number, Number, Number] = (0.0, 1.0, 0.0)

    def rotated(self, cosine: Number, sine: Number, middle: tuple[float, float]) -> Affine:
        """Return this map, then a rotation around the middle (row, column)."""
        down = (self.rows[0], self.rows[1], self.rows[2] - middle[0])
        right = (self.columns[0], self.columns[1], self.columns[2] - middle[1])
        rows = [cosine * y - sine * x for y, x in zip(down, right, strict=True)]
        columns = [sine * y + cosine * x for y, x in zip(down, right, strict=True)]
        return Affine(
            (rows[0], rows[1], rows[2] + middle[0]),
            (columns[0], columns[1], columns[2] + middle[1]),
        )

    def scaled_columns(self, factor: Number, offset: Number) -> Affine:
        """Return this map, then column = factor * column + offset."""
        by_row, by_column, before = (factor * part for part in self.columns)
        return Affine(self.rows, (by_row, by_column, before + offset))

    def moved(self, down: Number, right: Number) -> Affine:
        """Return this map, then a shift."""
        rows, columns = self.rows, self.columns
        return Affine((*rows[:2], rows[2] + down), (*columns[:2], columns[2] + right))


def resized_crop(
    draw: Draw, frame: Frame, area: tuple[float, float], ratio: tuple[float, float]
) -> Affine:
    """Return the map of a random rectangle onto the whole result.

    Its share of the area is uniform, and so is the logarithm of its width over its height; a side
    longer than the image is that of the image. Source: Szegedy et al., "Going Deeper with
    Convolutions", arXiv 1409.4842, section 6.
    """
    share = draw(*area)
    aspect = ops.exp(draw(math.log(ratio[0]), math.log(ratio[1])))
    pixels = share * float(frame.height * frame.width)
    rows = ops.minimum(ops.sqrt(pixels / aspect), float(frame.height))
    columns = ops.minimum(ops.sqrt(pixels * aspect), float(frame.width))
    down = draw(0.0, 1.0) * (float(frame.height) - rows)
    right = draw(0.0, 1.0) * (float(frame.width) - columns)
    tall, broad = rows * (1.0 / frame.height), columns * (1.0 / frame.width)
    return Affine(
        (tall, 0.0, 0.5 * tall - 0.5 + down),
        (0.0, broad, 0.5 * broad - 0.5 + right),
    )


def sampled(images: Value, frame: Frame, place: Affine, fill: float) -> Value:
    """Return the images read along a map, bilinearly between the four pixels around a place.

    A place beyond the outer edges of the pixels at the border reads `fill`.
    """
    i, j = (ops.cast(each, float32) for each in frame.places())
    rows, columns = (part[0] * i + part[1] * j + part[2] for part in (place.rows, place.columns))
    inside = ops.logical_and(_within(rows, frame.height), _within(columns, frame.width))
    (top, bottom, down), (left, right, across) = (
        _around(rows, frame.height),
        _around(columns, frame.width),
    )
    read = frame.reader(images)
    corners = [[read(row, column) for column in (left, right)] for row in (top, bottom)]
    down, across = ops.cast(down, images.dtype), ops.cast(across, images.dtype)
    upper, lower = (first + across * (second - first) for first, second in corners)
    return ops.where(inside, upper + down * (lower - upper), ops.full((), fill, images.dtype))


def _within(places: Value, size: int) -> Value:
    """Whether a place is on a pixel, which reaches half a step to both sides."""
    return ops.logical_and(ops.greater_equal(places, -0.5), ops.less_equal(places, size - 0.5))


def _around(places: Value, size: int) -> tuple[Value, Value, Value]:
    """Return the pixels before and after each place, and how far it is from the first."""
    kept = ops.clamp(places, 0.0, size - 1.0)
    before = ops.floor(kept)
    first = ops.cast(before, int64)
    return first, ops.minimum(first + 1, size - 1), kept - before


def whole_shift(images: Value, frame: Frame, places: Sequence[Value], fill: float) -> Value:
    """Return the pixels at whole places (rows, columns), and `fill` beyond the edges."""
    rows, columns = places
    inside = ops.logical_and(
        ops.logical_and(ops.greater_equal(rows, 0), ops.less(rows, frame.height)),
        ops.logical_and(ops.greater_equal(columns, 0), ops.less(columns, frame.width)),
    )
    held = ops.clamp(rows, 0, frame.height - 1), ops.clamp(columns, 0, frame.width - 1)
    found = frame.reader(images)(*held)
    return ops.where(inside, found, ops.full((), fill, images.dtype))
