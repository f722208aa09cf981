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
from frame.core.dtypes import float32, int64
from frame.core.shapes import Size
from frame.ir.graph import Value

Number = Any  # a Value of the shape [batch, 1], or a float for all images
Pixels = tuple[int, int]
"""Height and width."""

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

    def resized(self, old: Pixels, new: Pixels) -> Affine:
        """Return this map of a result of a size for one of another size over the same area."""
        if old == new:
            return self
        down, right = (before / after for before, after in zip(old, new, strict=True))
        edges = 0.5 * down - 0.5, 0.5 * right - 0.5  # where the first pixel of the result lies

        def scaled(line: tuple[Number, Number, Number]) -> tuple[Number, Number, Number]:
            offset = line[0] * edges[0] + line[1] * edges[1] + line[2]
            return (line[0] * down, line[1] * right, offset)

        return Affine(scaled(self.rows), scaled(self.columns))

    def cut(self, down: Number, right: Number) -> Affine:
        """Return this map for the part of its result that begins at a place."""

        def moved(line: tuple[Number, Number, Number]) -> tuple[Number, Number, Number]:
            return (line[0], line[1], line[0] * down + line[1] * right + line[2])

        return Affine(moved(self.rows), moved(self.columns))

    def packed(self, batch: Size) -> Value:
        """Return the maps of a batch [batch, 2, 3], as `ops.affine_sample` takes them."""
        return stacked((*self.rows, *self.columns), batch, (2, 3))


@dataclass(frozen=True, slots=True)
class Look:
    """What a step sees of an image: scaled, then a window of it, then that scaled.

    Attributes:
        size: of what is seen; None for that of the window.
        resize: what the image is scaled to before a window is taken of it; None for its own size.
        window: the part that is taken, at a random place; None for all of it.
    """

    size: Pixels | None = None
    resize: Pixels | None = None
    window: Pixels | None = None

    def text(self) -> str:
        """Return the size of what is seen, such as `24x32`; nothing for that of the data."""
        size = self.size or self.window or self.resize
        return f"{size[0]}x{size[1]}" if size else ""

    def result(self, image: Pixels) -> Pixels:
        """Return the size of what is seen of an image of a size."""
        return self.size or self.window or self.resize or image

    def scales(self, image: Pixels) -> bool:
        """Whether pixels are read between those of an image of a size."""
        whole = self.resize or image
        return whole != image or self.result(image) != (self.window or whole)

    def of(self, places: Affine, image: Pixels, draw: Draw) -> Affine:
        """Return the map of what is seen, behind one whose result has the size of the image."""
        whole = self.resize or image
        places = places.resized(image, whole)
        if self.window is not None:
            free = [a - b for a, b in zip(whole, self.window, strict=True)]
            places = places.cut(*(whole_number(draw, most) for most in free))
        return places.resized(self.window or whole, self.result(image))


def whole_number(draw: Draw, most: int) -> Value:
    """Return whole numbers from 0 to `most`, each as likely as another, float32."""
    drawn = ops.cast(draw(0.0, most + 1.0), int64)
    return ops.cast(ops.minimum(drawn, most), float32)  # rounding can reach the upper bound


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
