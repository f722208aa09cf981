"""Micro-kernels of convolutions: a tile of the result, held in registers.

    pixels                                window
    for channel                           for channel
      for point in window                   for vector of the window
        load vectors of pixels                load a vector of weights of each row
        for row                               for output
          accumulator += weight * pixels        load a vector of x
                                                accumulator[row, output] += weights * x
                                          add the lanes of each accumulator

Where x is read, a table gives an offset for each point (or piece) of the window, and an argument
one for each piece (or output) of the tile. Kernels are shared by all convolutions of a module.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, Kernel, Type, Var
from frame.codegen.schedules.cpu.conv_pixels import side_by_side
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, int64

NOTE = __doc__.split("\n\n")[1]
_SCALARS = ("channels", "plane", "window", "w_row", "c_row", "size")


@dataclass(frozen=True, slots=True)
class ConvTile:
    """The tile of one micro-kernel; see `ConvPlan` for what the numbers mean."""

    dtype: DType
    rows: int
    vectors: int
    lanes: int
    piece: int
    fused: bool
    along_window: bool

    @property
    def name(self) -> str:
        """The name of the kernel, the same for equal tiles only."""
        kind = "window" if self.along_window else "pixels"
        size = f"{self.rows}x{self.vectors}x{self.lanes}of{self.piece}"
        flag = () if self.fused else ("unfused",)
        return "_".join(("conv", kind, str(self.dtype), size, *flag))

    @property
    def places(self) -> int:
        """How many places in x are arguments: one a piece, or one an output."""
        return self.vectors if self.along_window else self.vectors * (self.lanes // self.piece)

    @property
    def columns(self) -> int:
        """The columns of the tile of sums."""
        return self.vectors if self.along_window else self.vectors * self.lanes


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """The parameters of a kernel that is being written."""

    tile: ConvTile
    c: Buffer
    w: Buffer
    x: Buffer
    table: Buffer
    scalars: tuple[Var, ...]

    def scalar(self, name: str) -> Var:
        return self.scalars[_SCALARS.index(name)]

    @property
    def places(self) -> tuple[Var, ...]:
        return self.scalars[len(_SCALARS) :]


@functools.cache
def convolution_kernel(tile: ConvTile) -> Kernel:
    """Return the micro-kernel of a tile.

    Its buffers are the sums c [rows, columns], the weights w [rows, ...], x (flat) and the table;
    its scalars the channels, the elements of a channel in x, the entries (or vectors) of the
    window, the row strides of w and c, the elements of x, and the places of the tile in x.
    """
    names = (*_SCALARS, *(f"place{i}" for i in range(tile.places)))
    scalars = tuple(Var(name) for name in names)
    channels, _, window, w_row, c_row, size = scalars[: len(_SCALARS)]
    step = tile.lanes if tile.along_window else 1
    entries = b.mul(window, tile.lanes // tile.piece) if tile.along_window else window
    depth = b.mul(b.mul(channels, window), step)
    frame = _Frame(
        tile,
        Buffer("c", tile.dtype, (tile.rows, tile.columns), (c_row, 1)),
        Buffer("w", tile.dtype, (tile.rows, depth), (w_row, 1)),
        Buffer("x", tile.dtype, (size,)),
        Buffer("table", int64, (entries,)),
        scalars,
    )
    body = b.Body()
    sums = _sums(frame, body)
    (_store_window if tile.along_window else _store_pixels)(frame, body, sums)
    return Kernel(tile.name, (frame.c, frame.w, frame.x, frame.table), scalars, body.block(), NOTE)


def _sums(frame: _Frame, body: b.Body) -> Sequence[Expr]:
    """Write the loops over channels and window."""
    tile = frame.tile
    zero = b.const(0.0, Type(tile.dtype, tile.lanes))
    window = frame.scalar("window")
    with body.fold(frame.scalar("channels"), [zero] * (tile.rows * tile.vectors), "c") as outer:
        base = body.let("base", b.mul(outer.index, frame.scalar("plane")))
        first = body.let("first", b.mul(outer.index, window))
        with body.fold(window, outer.values, "k") as inner:
            position = body.let("position", b.add(first, inner.index))
            write = _window_step if tile.along_window else _pixel_step
            inner.next = write(frame, body, base, inner.index, position, inner.values)
        outer.next = inner.results
    return outer.results


def _pixel_step(
    frame: _Frame, body: b.Body, base: Expr, k: Expr, position: Expr, sums: Sequence[Expr]
) -> list[Expr]:
    tile = frame.tile
    start = body.let("start", b.add(base, b.load(frame.table, [k])))
    count = tile.lanes // tile.piece
    vectors = [
        _vector(frame, body, [b.add(start, p) for p in frame.places[v * count : (v + 1) * count]])
        for v in range(tile.vectors)
    ]
    following = []
    for r in range(tile.rows):
        weight = body.let("w", b.broadcast(b.load(frame.w, [r, position]), tile.lanes))
        for v, vector in enumerate(vectors):
            total = sums[r * tile.vectors + v]
            following.append(body.let("sum", multiply_add(tile.fused, weight, vector, total)))
    return following


def _window_step(
    frame: _Frame, body: b.Body, base: Expr, k: Expr, position: Expr, sums: Sequence[Expr]
) -> list[Expr]:
    tile = frame.tile
    count = tile.lanes // tile.piece
    entry = b.mul(k, count)
    starts = [
        body.let("start", b.add(base, b.load(frame.table, [b.add(entry, i)]))) for i in range(count)
    ]
    where = b.ramp(b.mul(position, tile.lanes), tile.lanes)
    weights = [body.let("w", b.load(frame.w, [r, where])) for r in range(tile.rows)]
    following: list[Expr] = [sums[0]] * len(sums)
    for t, place in enumerate(frame.places):
        vector = _vector(frame, body, [b.add(start, place) for start in starts])
        for r, weight in enumerate(weights):
            slot = r * tile.vectors + t
            total = multiply_add(tile.fused, weight, vector, sums[slot])
            following[slot] = body.let("sum", total)
    return following


def _vector(frame: _Frame, body: b.Body, starts: Sequence[Expr]) -> Expr:
    """Return the vector of the pieces that start at these places."""
    parts = [b.load(frame.x, [b.ramp(start, frame.tile.piece)]) for start in starts]
    return side_by_side(body, [body.let("x", part) for part in parts])


def _store_pixels(frame: _Frame, body: b.Body, sums: Sequence[Expr]) -> None:
    tile = frame.tile
    for r in range(tile.rows):
        for v in range(tile.vectors):
            place = b.ramp(v * tile.lanes, tile.lanes)
            body.store(frame.c, [r, place], sums[r * tile.vectors + v])


def _store_window(frame: _Frame, body: b.Body, sums: Sequence[Expr]) -> None:
    tile = frame.tile
    for r in range(tile.rows):
        for t in range(tile.vectors):
            body.store(frame.c, [r, t], b.sum_lanes(sums[r * tile.vectors + t]))
