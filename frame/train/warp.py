"""Where each pixel of an augmented image comes from, as parts of a graph.

An affine map takes a place (row, column) of the result to one of the source; pixel centres are
whole numbers. The map of each image is a few numbers, each [rows of the batch, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32
from frame.core.shapes import Size
from frame.ir.graph import Value

Number = Any  # a Value of the shape [batch, 1], or a float for all images
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

    @property
    def size(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.height, self.width


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

    def resized(self, frame: Frame, size: tuple[int, int]) -> Affine:
        """Return this map of a result like the frame for one of another size over the same area."""
        if size == frame.size:
            return self
        down, right = (old / new for old, new in zip(frame.size, size, strict=True))
        edges = 0.5 * down - 0.5, 0.5 * right - 0.5  # where the first pixel of the result lies

        def scaled(line: tuple[Number, Number, Number]) -> tuple[Number, Number, Number]:
            offset = line[0] * edges[0] + line[1] * edges[1] + line[2]
            return (line[0] * down, line[1] * right, offset)

        return Affine(scaled(self.rows), scaled(self.columns))

    def packed(self, batch: Size) -> Value:
        """Return the maps of a batch [batch, 2, 3], as `ops.affine_sample` takes them."""
        return stacked((*self.rows, *self.columns), batch, (2, 3))


def stacked(numbers: Sequence[Number], batch: Size, shape: tuple[int, int]) -> Value:
    """Return numbers as a matrix of each image, row by row, float32."""
    columns = [
        number if isinstance(number, Value) else ops.full((batch, 1), number, float32)
        for number in numbers
    ]
    return ops.reshape(ops.concat(columns, 1), (batch, *shape))


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
