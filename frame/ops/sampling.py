"""affine_sample: the pixels of images along an affine map, and their colours in the same pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, numel, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite, in_float32
from frame.ops.record import AttributeSpec, Operand, Sample
from frame.ops.samples import smooth

Operands = tuple[Value, ...]
LAYOUTS = ("NCHW", "NHWC")
MOST_CHANNELS = 4
"""Images of more channels have no colours that could be mixed."""


def _infer(operands: Types, attributes: Attributes) -> TensorType:
    images, places, *colours = operands
    layout = attributes["layout"]
    if images.rank != 4:
        raise InvalidArgumentError(
            f"affine_sample needs images {layout}, received {shape_text(images.shape)}"
        )
    sizes = [images.shape[layout.index(axis)] for axis in "HW"]
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidArgumentError(
            f"affine_sample needs images of known height and width, received "
            f"{shape_text(images.shape)}"
        )
    _check_shape("places", places, (images.shape[0], 2, 3))
    if colours:
        channels = images.shape[layout.index("C")]
        if not isinstance(channels, int) or channels > MOST_CHANNELS:
            raise InvalidArgumentError(
                f"affine_sample mixes the colours of at most {MOST_CHANNELS} channels, received "
                f"images {layout} {shape_text(images.shape)}"
            )
        _check_shape("colours", colours[0], (images.shape[0], channels, channels + 1))
    return TensorType(images.dtype, _result_shape(images.shape, attributes))


def _result_shape(shape: tuple[Size, ...], attributes: Attributes) -> tuple[Size, ...]:
    """Return the shape of the result: that of the images, in the size that is asked for."""
    size, layout = attributes["size"], attributes["layout"]
    if not size:
        return shape
    high, wide = layout.index("H"), layout.index("W")
    if len(size) != 2 or min(size) < 1 or 0 in (shape[high], shape[wide]):
        raise InvalidArgumentError(
            f"affine_sample needs a size of (height, width) of at least 1, and images with pixels, "
            f"received size {size} and images {layout} {shape_text(shape)}"
        )
    return tuple(dict(zip((high, wide), size, strict=True)).get(k, n) for k, n in enumerate(shape))


def _check_shape(name: str, type_: TensorType, expected: tuple[Size, ...]) -> None:
    if type_.shape != expected:
        raise InvalidArgumentError(
            f"affine_sample needs {name} of shape {shape_text(expected)}, received "
            f"{shape_text(type_.shape)}"
        )


def _reference(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    images, places, *colours = operands
    axes = tuple(attributes["layout"].index(axis) for axis in "CNHW")
    planes = images.transpose(axes)
    _, rows, height, width = planes.shape
    down, across = attributes["size"] or (height, width)
    i, j = np.arange(down)[:, None], np.arange(across)
    with np.errstate(all="ignore"):
        y, x = (
            line[:, 0, None, None] * i + line[:, 1, None, None] * j + line[:, 2, None, None]
            for line in (places[:, 0], places[:, 1])
        )
        inside = (y >= -0.5) & (y <= height - 0.5) & (x >= -0.5) & (x <= width - 0.5)
        y, x = (np.where(inside, place, 0.0) for place in (y, x))
        read = _read_nearest if attributes["interpolation"] == "nearest" else _read_between
        found = read(planes, np.arange(rows)[:, None, None], y, x)
        found = np.where(inside, found, attributes["fill"])
        if colours:
            mixed, offset = colours[0][..., :-1], colours[0][..., -1]
            found = np.einsum("nck,knyx->cnyx", mixed, found) + offset.T[..., None, None]
    return found.transpose(np.argsort(axes))


def _read_nearest(
    planes: np.ndarray, image: np.ndarray, y: np.ndarray, x: np.ndarray
) -> np.ndarray:
    y, x = (
        np.clip(np.floor(place + 0.5), 0, size - 1).astype(np.int64)
        for place, size in zip((y, x), planes.shape[2:], strict=True)
    )
    return planes[:, image, y, x]


def _read_between(
    planes: np.ndarray, image: np.ndarray, y: np.ndarray, x: np.ndarray
) -> np.ndarray:
    height, width = planes.shape[2:]
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    top, left = y.astype(np.int64), x.astype(np.int64)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = y - top, x - left
    upper, lower = (
        planes[:, image, line, left]
        + across * (planes[:, image, line, right] - planes[:, image, line, left])
        for line in (top, bottom)
    )
    return upper + down * (lower - upper)


# --- in simpler ops -------------------------------------------------------------------------------


def _build(operands: Operands, attributes: Attributes) -> Value:
    images, places, *colours = operands
    order = tuple(attributes["layout"].index(axis) for axis in "CNHW")
    if any(size == 0 for size in images.shape):
        shape = _result_shape(images.shape, attributes)
        return images if shape == images.shape else ops.full(shape, 0.0, images.dtype)
    planes = ops.transpose(images, order)
    _, _, height, width = planes.shape
    found_size = attributes["size"] or (height, width)
    y, x = (_line(places, row, found_size) for row in (0, 1))
    inside = ops.logical_and(_within(y, height), _within(x, width))
    y, x = (ops.where(inside, place, ops.zeros_like(place)) for place in (y, x))
    read = _nearest if attributes["interpolation"] == "nearest" else _between
    found = read(planes, y, x)
    found = ops.where(inside, found, ops.full((), attributes["fill"], images.dtype))
    if colours:
        found = _mixed(found, ops.cast(colours[0], images.dtype))
    return ops.transpose(found, tuple(order.index(axis) for axis in range(4)))


def _line(places: Value, row: int, sizes: tuple[Size, Size]) -> Value:
    """Return the places [N, height, width] along one axis, for a result of these sizes."""
    rows = places.shape[0]
    part = [
        ops.reshape(ops.slice(places, (0, row, k), (rows, row + 1, k + 1)), (rows, 1, 1))
        for k in range(3)
    ]
    i, j = (ops.cast(ops.iota(sizes, axis), places.dtype) for axis in (0, 1))
    return part[0] * i + part[1] * j + part[2]


def _within(places: Value, size: Size) -> Value:
    """Whether a place is on a pixel, which reaches half a step to both sides."""
    edge = float(size) - 0.5  # type: ignore[arg-type]
    return ops.logical_and(ops.greater_equal(places, -0.5), ops.less_equal(places, edge))


def _read(planes: Value, y: Value, x: Value) -> Value:
    """Return the pixels [C, N, h, w] of planes [C, N, H, W] at whole places [N, h, w]."""
    channels, _, height, width = planes.shape
    flat = (ops.iota(y.shape, 0) * height + y) * width + x
    table = ops.reshape(planes, (channels, numel(planes.shape[1:])))
    found = ops.gather(table, ops.reshape(flat, (numel(y.shape),)), axis=1)
    return ops.reshape(found, (channels, *y.shape))


def _nearest(planes: Value, y: Value, x: Value) -> Value:
    row, column = (
        ops.cast(_kept(ops.floor(place + 0.5), size), int64)
        for place, size in zip((y, x), planes.shape[2:], strict=True)
    )
    return _read(planes, row, column)


def _kept(places: Value, size: Size) -> Value:
    return ops.clamp(places, 0.0, float(size - 1))  # type: ignore[arg-type]


def _between(planes: Value, y: Value, x: Value) -> Value:
    (top, bottom, down), (left, right, across) = (
        _around(place, size) for place, size in zip((y, x), planes.shape[2:], strict=True)
    )
    down, across = ops.cast(down, planes.dtype), ops.cast(across, planes.dtype)
    corners = [[_read(planes, row, column) for column in (left, right)] for row in (top, bottom)]
    upper, lower = (first + across * (second - first) for first, second in corners)
    return upper + down * (lower - upper)


def _around(places: Value, size: Size) -> tuple[Value, Value, Value]:
    """Return the pixels before and after each place, and how far it is from the first."""
    kept = _kept(places, size)
    before = ops.floor(kept)
    first = ops.cast(before, int64)
    last: Any = size - 1
    return first, ops.minimum(first + 1, last), kept - before


def _mixed(planes: Value, colours: Value) -> Value:
    """Return planes [C, N, H, W] whose colours are a matrix and an offset of each image."""
    channels, rows, height, width = planes.shape
    pixels = ops.reshape(ops.transpose(planes, (1, 0, 2, 3)), (rows, channels, height * width))
    matrix = ops.slice(colours, (0, 0, 0), (rows, channels, channels))
    offset = ops.slice(colours, (0, 0, channels), (rows, channels, channels + 1))
    mixed = ops.matmul(matrix, pixels) + offset
    return ops.transpose(ops.reshape(mixed, (rows, channels, height, width)), (1, 0, 2, 3))


# --- the record -----------------------------------------------------------------------------------


def _samples() -> Iterable[Sample]:
    # Coordinates are multiples of 1/16, exact in every dtype, and no pixel is at a jump.
    turned = ((0.5, -0.75, 2.0625), (0.75, 0.5, -0.9375))
    moved = ((1.0, 0.0, 1.0), (0.0, -1.0, 3.0))
    zoomed = ((0.25, 0.0, 0.3125), (0.0, 0.5, 0.6875))
    two = (turned, zoomed)
    colours = smooth((2, 3, 4), seed=4).astype(np.float32)
    for layout, shape in (("NCHW", (2, 3, 4, 5)), ("NHWC", (2, 4, 5, 3))):
        yield _sample(f"between_{layout}", shape, two, layout=layout, fill=0.75)
        yield _sample(f"colours_{layout}", shape, two, colours, layout=layout)
    yield _sample("copies", (2, 2, 3, 5), (moved, zoomed), interpolation="nearest", fill=-1.0)
    yield _sample("copied_colours", (2, 3, 3, 5), (moved, zoomed), colours, interpolation="nearest")
    yield _sample("channels", (2, 6, 3, 4), two)
    yield _sample("pixel", (2, 1, 1, 1), two)
    yield _sample("no_images", (0, 3, 4, 5), np.zeros((0, 2, 3)))
    yield _sample("no_pixels", (2, 3, 0, 5), two)
    for layout, shape in (("NCHW", (2, 3, 4, 5)), ("NHWC", (2, 4, 5, 3))):
        yield _sample(f"smaller_{layout}", shape, two, colours, layout=layout, size=(3, 2))
    yield _sample("larger", (2, 2, 3, 5), two, size=(5, 7), fill=0.5)
    yield _sample("larger_copies", (2, 2, 3, 2), two, size=(4, 3), interpolation="nearest")
    yield _sample("none_larger", (0, 3, 4, 5), np.zeros((0, 2, 3)), size=(5, 6))
    lost = np.array([two[0], two[1], two[0]])
    lost[0, 0, 2], lost[1, 1, 0], lost[2, 0, 1], lost[2, 1, 2] = np.nan, np.inf, 1e30, -np.inf
    yield _sample("no_place", (3, 2, 3, 4), lost)


def _sample(
    name: str, shape: tuple[int, ...], places: object, *more: np.ndarray, **attributes: object
) -> Sample:
    colours = more[0] if more else None
    operands = (smooth(shape), np.asarray(places, np.float32), colours)
    return Sample(name, operands, attributes, (1, 2), gradient=name != "no_place")  # type: ignore[arg-type]


composite(
    "affine_sample",
    "Images read along an affine map each, and their colours mixed, in one pass over them.\n\n"
    "The result has the height and width `size`, those of the images if it is empty. The pixel "
    "(i, j) of it is that at the row `places[n, 0] . (i, j, 1)` and the column `places[n, 1] . (i, "
    "j, 1)` of image n. Centres of pixels are whole numbers; beyond the outer "
    "edges of the border pixels, and at NaN, there is `fill`. Then, with colours, the channels c "
    "of the pixel become `colours[n, :, :C] @ c + colours[n, :, C]`.",
    (
        Operand("images", ("float",), doc="images in the layout,"),
        Operand("places", ("float",), "P", doc="the maps [N, 2, 3],"),
        Operand("colours", ("float",), "P", optional=True, doc="[N, C, C + 1], at most 4 channels"),
    ),
    infer=_infer,
    reference=_reference,
    build=in_float32(_build),
    samples=_samples,
    attributes=(
        AttributeSpec("layout", "str", "NCHW", "the axes of the images", LAYOUTS),
        AttributeSpec(
            "interpolation",
            "str",
            "bilinear",
            "`bilinear` between the four pixels around a place, or the `nearest` one",
            ("bilinear", "nearest"),
        ),
        AttributeSpec("fill", "float", 0.0, "what is beyond the edges, before colours are mixed"),
        AttributeSpec("size", "ints", (), "height and width of the result; () for the images'"),
    ),
)
