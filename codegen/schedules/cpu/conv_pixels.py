"""Micro-kernels that copy the pixels of a panel, for every point of every window.

    for channel, for point of window      a row of the panel
      for vector                          one piece, or some side by side

Pieces are contiguous. Where they `cross`, a piece may begin in one row of an image and end in the
next: it is made of two vectors, as if both rows were longer, by a mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, Kernel, Var
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, int64

NOTE = __doc__.split("\n\n")[1]
_AHEAD = 8  # channels that are asked for ahead: their planes are far from each other
_SCALARS = ("channels", "plane", "window", "size")


@dataclass(frozen=True, slots=True)
class PixelTile:
    """A panel of `vectors` vectors in pieces of a power of two; windows may have `one_point`."""

    dtype: DType
    vectors: int
    lanes: int
    piece: int
    crosses: bool
    one_point: bool

    @property
    def name(self) -> str:
        """The name of the kernel, the same for equal tiles only."""
        size = f"{self.vectors}x{self.lanes}of{self.piece}"
        flags = ("crossing" if self.crosses else "", "point" if self.one_point else "")
        return "_".join(part for part in ("panel", str(self.dtype), size, *flags) if part)

    @property
    def pieces(self) -> int:
        """The pieces of a panel."""
        return self.vectors * (self.lanes // self.piece)


@functools.cache
def panel_kernel(tile: PixelTile) -> Kernel:
    """Return the kernel of a tile.

    Its buffers are the panel [channels * window, columns], x (flat) and the table, which a window
    of one point has no need of; its scalars the channels, the elements of a channel in x, the
    entries of the window, the elements of x, and for each piece its place in x. A piece that may
    cross the end of a row has three: where it begins, where it would begin if it was all in the
    next row, and how many elements are in the first.
    """
    names = ("low", "high", "split") if tile.crosses else ("place",)
    each = [Var(f"{name}{i}") for i in range(tile.pieces) for name in names]
    scalars = (*(Var(name) for name in _SCALARS), *each)
    channels, plane, window, size = scalars[: len(_SCALARS)]
    columns = tile.vectors * tile.lanes
    panel = Buffer("panel", tile.dtype, (b.mul(channels, window), columns))
    x, table = Buffer("x", tile.dtype, (size,)), Buffer("table", int64, (window,))
    body = b.Body()
    read = _crossing(body, tile, x, each) if tile.crosses else _plain(body, tile, x, each)
    with body.loop(channels, "c") as channel:
        base = body.let("base", b.mul(channel, plane))
        if tile.one_point:
            following = b.min_(b.add(channel, _AHEAD), b.sub(channels, 1))
            body.prefetch(x, [b.add(b.mul(following, plane), each[0])])
            _copy_row(body, tile, panel, channel, functools.partial(read, base))
        else:
            with body.loop(window, "k") as k:
                start = body.let("start", b.add(base, b.load(table, [k])))
                row = body.let("row", b.add(b.mul(channel, window), k))
                _copy_row(body, tile, panel, row, functools.partial(read, start))
    buffers = (panel, x) if tile.one_point else (panel, x, table)
    return Kernel(tile.name, buffers, scalars, body.block(), NOTE)


Read = Callable[[Expr, int], Expr]
"""The piece of a number, from an element of x on."""


def _plain(body: b.Body, tile: PixelTile, x: Buffer, places: Sequence[Var]) -> Read:
    def read(start: Expr, piece: int) -> Expr:
        return b.load(x, [b.ramp(b.add(start, places[piece]), tile.piece)])

    return read


def _crossing(body: b.Body, tile: PixelTile, x: Buffer, places: Sequence[Var]) -> Read:
    lanes, masks = b.ramp(0, tile.piece), []
    for piece in range(tile.pieces):
        split = places[3 * piece + 2]
        masks.append((body.let("first", b.lt(lanes, split)), body.let("rest", b.ge(lanes, split))))

    def read(start: Expr, piece: int) -> Expr:
        low, high = places[3 * piece : 3 * piece + 2]
        first, rest = masks[piece]
        begun = b.load(x, [b.ramp(b.add(start, low), tile.piece)], first)
        return b.select(first, begun, b.load(x, [b.ramp(b.add(start, high), tile.piece)], rest))

    return read


def _copy_row(
    body: b.Body, tile: PixelTile, panel: Buffer, row: Expr, read: Callable[[int], Expr]
) -> None:
    """Copy one row of a panel; the pieces of a vector are stored together."""
    count = tile.lanes // tile.piece
    for v in range(tile.vectors):
        parts = [body.let("x", read(v * count + i)) for i in range(count)]
        body.store(panel, [row, b.ramp(v * tile.lanes, tile.lanes)], side_by_side(body, parts))


def side_by_side(body: b.Body, parts: Sequence[Expr]) -> Expr:
    """Return one vector of a power of two of equal vectors."""
    while len(parts) > 1:
        lanes = 2 * parts[0].type.lanes
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [body.let("x", b.shuffle(low, high, range(lanes))) for low, high in pairs]
    return parts[0]
