"""Groups that read images along affine maps: one pass, whatever colours and epilogue follow.

parallel chunk                    rows of the result, each with the pixels of a few channels
row: the line of its places in the image, the matrix of its colours
vector for column in row
place, distance to the pixels around it      once for all channels
channels: pixels, mixed colours, epilogue, stores
"""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import flat_extent, lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, int32, int64
from frame.ir.graph import Node

NOTE = __doc__.split("\n\n")[1]
_TOGETHER = 4  # channels of a pixel that are written out
_CHUNK = 1 << 12  # pixels of one chunk


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The one sampling of a group: its node, layout and sizes."""

    group: Group
    node: Node

    @property
    def channels(self) -> int:
        """How many channels are computed at one pixel."""
        size = self.node.operands[0].shape[self._axis("C")]
        return size if isinstance(size, int) and 1 < size <= _TOGETHER else 1

    def extent(self, axis: str) -> Expr:
        """Return the size of an axis of the result."""
        return self.group.extent(self.node.results[0].shape[self._axis(axis)])

    def size(self, axis: str) -> int:
        """Return the height or the width of the images."""
        return int(self.node.operands[0].shape[self._axis(axis)])  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        """The width of the result."""
        return int(self.node.results[0].shape[self._axis("W")])  # type: ignore[arg-type]

    def index(self, image: Expr, channel: Expr, row: Expr, column: Expr) -> Index:
        """Return an index in the layout."""
        places = dict(zip("NCHW", (image, channel, row, column), strict=True))
        return tuple(places[axis] for axis in self.node.attributes["layout"])

    def _axis(self, axis: str) -> int:
        return int(self.node.attributes["layout"].index(axis))


@dataclass(frozen=True, slots=True)
class _Row:
    """What the pixels of a row of the result share.

    `lines` gives, for rows and for columns, the place of its first pixel and the step to the next;
    `colours` the matrix with its offsets, row by row, empty for none.
    """

    reader: Reader
    image: Expr
    channel: Expr
    row: Expr
    lines: tuple[tuple[Expr, Expr], ...]
    colours: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """The pixels around a place along one axis; `second` is None where there is no other."""

    first: Expr
    second: Expr | None
    distance: Expr


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the one kernel."""
    node = next(node for node in group.body.nodes if node.op == "affine_sample")
    sweep, body = _Sweep(group, node), b.Body()
    blocks = b.div(sweep.extent("C"), sweep.channels)
    extents = (sweep.extent("N"), blocks, sweep.extent("H"))
    rows = flat_extent(extents)
    count = max(1, (config.get("FRAME_GRAIN") or _CHUNK) // max(1, sweep.width))
    chunks = b.ceil_div(rows, count)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, count))
        with body.loop(remaining(rows, first, b.index(count)), "row") as position:
            place = [body.let("i", i) for i in unflatten(b.add(first, position), extents)]
            row = _row(sweep, body, place)
            with body.loop(sweep.extent("W"), "j", LoopKind.VECTOR) as j:
                _write_pixels(sweep, body, row, j)
    block = vectorise_loops(body.block(), lanes_of(group), group.target)
    return (group.call("", block, chunks, NOTE),)


def _row(sweep: _Sweep, body: b.Body, place: Sequence[Expr]) -> _Row:
    """Read what belongs to the image of a row."""
    image, block, row = place
    reader = Reader(sweep.group, body)
    _, places, *colours = sweep.node.operands
    lines = []
    for axis in (0, 1):
        down, step, start = (
            body.let("p", reader.load(places, (image, b.index(axis), b.index(k)))) for k in range(3)
        )
        down = b.mul(down, _number(row, down.type.dtype))
        lines.append((body.let("start", b.add(down, start)), step))
    count = sweep.channels
    matrix = tuple(
        tuple(
            body.let("m", reader.load(colours[0], (image, b.index(c), b.index(k))))
            for k in range(count + 1)
        )
        for c in (range(count) if colours else ())
    )
    channel = body.let("c", b.mul(block, count))
    return _Row(reader, image, channel, row, tuple(lines), matrix)


def _number(index: Expr, dtype: DType) -> Expr:
    """Return a row or column as a float; images are never so large that 32 bits are too few."""
    return b.cast(b.cast(index, int32), dtype)


def _write_pixels(sweep: _Sweep, body: b.Body, row: _Row, column: Expr) -> None:
    """Compute and store all channels of a pixel."""
    (result,) = sweep.node.results
    dtype = compute_dtype(result.dtype)
    at = [
        body.let("place", b.add(start, b.mul(step, _number(column, step.type.dtype))))
        for start, step in row.lines
    ]
    sizes = (sweep.size("H"), sweep.size("W"))
    inside = body.let("inside", b.and_(*map(_inside, at, sizes)))
    at = [b.select(inside, place, b.like(0.0, place)) for place in at]
    nearest = sweep.node.attributes["interpolation"] == "nearest"
    found = _nearest if nearest else _between
    places = [found(body, place, size, dtype) for place, size in zip(at, sizes, strict=True)]
    pixels = []
    for k in range(sweep.channels):
        pixel = _pixel(sweep, body, row, b.add(row.channel, k), places)
        fill = b.like(sweep.node.attributes["fill"], pixel)
        pixels.append(body.let("pixel", b.select(inside, pixel, fill)))
    for k, value in enumerate(_mixed(body, row, pixels)):
        reader = row.reader.inside({result: lambda _, value=value: value})  # type: ignore[misc]
        index = sweep.index(row.image, b.add(row.channel, k), row.row, column)
        values = [body.let("y", reader.load(output, index)) for output in sweep.group.body.outputs]
        for position, each in enumerate(values):
            reader.store(position, index, each)


def _inside(place: Expr, size: int) -> Expr:
    """Whether a place is on a pixel, which reaches half a step to both sides; not for NaN."""
    return b.and_(b.ge(place, b.like(-0.5, place)), b.le(place, b.like(size - 0.5, place)))


def _nearest(body: b.Body, place: Expr, size: int, dtype: DType) -> _Place:
    half = b.floor(b.add(place, b.like(0.5, place)))
    whole = b.cast(_kept(half, size), int32)
    return _Place(body.let("at", b.cast(whole, int64)), None, b.const(0.0, dtype))


def _between(body: b.Body, place: Expr, size: int, dtype: DType) -> _Place:
    kept = body.let("kept", _kept(place, size))
    whole = body.let("whole", b.floor(kept))
    first = body.let("first", b.cast(whole, int32))
    second = b.min_(b.add(first, b.like(1, first)), b.like(max(size - 1, 0), first))
    return _Place(
        body.let("at", b.cast(first, int64)),
        body.let("next", b.cast(second, int64)),
        body.let("distance", b.cast(b.sub(kept, whole), dtype)),
    )


def _kept(place: Expr, size: int) -> Expr:
    return b.max_(b.min_(place, b.like(float(max(size - 1, 0)), place)), b.like(0.0, place))


def _pixel(sweep: _Sweep, body: b.Body, row: _Row, channel: Expr, places: Sequence[_Place]) -> Expr:
    """Return the pixel of a channel at a place, between its neighbours where there are some."""
    images = sweep.node.operands[0]
    rows, columns = places

    def read(y: Expr, x: Expr) -> Expr:
        element = row.reader.load(images, sweep.index(row.image, channel, y, x))
        return body.let("pixel", element)

    def line(y: Expr) -> Expr:
        return _weighted(body, read(y, columns.first), columns, lambda x: read(y, x))

    return _weighted(body, line(rows.first), rows, line)


def _weighted(body: b.Body, first: Expr, place: _Place, read: object) -> Expr:
    """Return what is between two elements, the second of which is read at `place.second`."""
    if place.second is None:
        return first
    second = read(place.second)  # type: ignore[operator]
    return body.let("line", b.add(first, b.mul(place.distance, b.sub(second, first))))


def _mixed(body: b.Body, row: _Row, pixels: Sequence[Expr]) -> Sequence[Expr]:
    """Return the channels of a pixel in the colours of its image."""
    if not row.colours:
        return pixels
    mixed = []
    for *weights, offset in row.colours:
        total = b.cast(offset, pixels[0].type.dtype)
        for weight, pixel in zip(weights, pixels, strict=True):
            total = b.add(total, b.mul(b.cast(weight, pixel.type.dtype), pixel))
        mixed.append(body.let("mixed", total))
    return mixed
