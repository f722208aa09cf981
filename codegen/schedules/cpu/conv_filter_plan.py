"""The sizes of the loops of a gradient of a convolution by its weights; see `conv_filter`."""

from __future__ import annotations

import math
from dataclasses import replace

from frame.codegen.schedules.cpu.conv_plan import Extent
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node

_SYMBOLIC = 32  # what a symbolic batch counts as in a decision
_ROWS = 288  # pairs of a channel and a point of its window in a block, at most about
_CHANNELS = 64  # channels of a block at most: with few points, their pixels fill a cache
_OPERAND, _PLANES = 3 << 16, 1 << 17  # bytes of local memory for an operand, and for pixels
_LEAST_FLOPS, _FEW_CHUNKS = 1 << 18, 16
_PIXELS = 512  # of a part at least: its sums are written once and read once


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """A block of pixels is `images` images by `rows` of their rows; a chunk takes `channels`.

    Tiles are `tile` rows by `vectors` vectors of outputs. `parts` parts of the pixels have sums of
    their own. A row of pixels is copied in pieces of `piece`.
    """

    dtype: DType
    height: Extent
    width: Extent
    all_channels: int
    outputs: int
    lanes: int
    vectors: int
    piece: int
    tile: int
    channels: int
    images: int = 1
    rows: int = 1
    parts: int = 1

    @property
    def points(self) -> int:
        """The points of the window."""
        return self.height.window * self.width.window

    @property
    def columns(self) -> int:
        """Outputs of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of all outputs; the last one may have columns that no output has."""
        return -(-self.outputs // self.columns)

    @property
    def blocks(self) -> int:
        """Blocks of channels."""
        return -(-self.all_channels // self.channels)

    @property
    def row_count(self) -> int:
        """Rows of the left operand of a block of channels."""
        return self.channels * self.points

    @property
    def padded_rows(self) -> int:
        """The same, with those that fill up the last tile."""
        return -(-self.row_count // self.tile) * self.tile

    @property
    def bands(self) -> int:
        """Bands of rows of an image."""
        return -(-self.height.positions // self.rows)

    @property
    def depth(self) -> int:
        """Pixels of a block."""
        return self.images * self.rows * self.width.positions

    @property
    def phases(self) -> int:
        """What the columns of the copy of x are split by, so that pieces are contiguous."""
        return self.width.stride

    @property
    def reach(self) -> int:
        """Rows of the padded x that a band reaches."""
        return (self.rows - 1) * self.height.stride + self._span(self.height)

    @property
    def line(self) -> int:
        """Columns of a phase of the copy of a row of x."""
        shift = (self._span(self.width) - 1) // self.phases
        covered = -(-self.width.positions // self.piece) * self.piece
        return -(-(shift + covered) // self.piece) * self.piece

    @property
    def left(self) -> tuple[int, int]:
        """The shape of the left operand: the last piece of a row reaches beyond its pixels."""
        return self.padded_rows, -(-self.depth // self.lanes) * self.lanes + self.lanes

    @property
    def planes(self) -> tuple[int, ...]:
        """The shape of the copy of x: channel, image, row, phase, column."""
        return self.channels, self.images, self.reach, self.phases, self.line

    @property
    def right(self) -> tuple[int, int]:
        """The shape of the right operand: a row a pixel."""
        return self.depth, self.columns

    @property
    def strip(self) -> tuple[int, int]:
        """The shape of the turned sums: a row an output."""
        return self.columns, self.row_count

    @property
    def sums(self) -> tuple[int, ...]:
        """The shape of the sums: part, block, row, output."""
        return self.parts, self.blocks, self.padded_rows, self.panels * self.columns

    def _span(self, axis: Extent) -> int:
        return (axis.window - 1) * axis.dilation + 1


def anchor_of(body: Graph) -> Node:
    """Return the gradient of a group."""
    return next(node for node in body.nodes if node.op == "conv2d_filter_grad")


def make_plan(body: Graph, target: TargetDescription) -> FilterPlan | None:
    """Decide how a gradient by weights runs; None where a size but the batch is unknown, or 0."""
    node = anchor_of(body)
    x, cotangent = node.operands
    known = (*x.shape[1:], *cotangent.shape[1:])
    if not all(isinstance(size, int) and size > 0 for size in known):
        return None
    dtype = compute_dtype(x.dtype)
    lanes = target.lanes(dtype)
    outputs, all_channels = static(cotangent.shape[1], 0), static(x.shape[1], 0)
    height, width = _extents(node)
    vectors = min(register_tile(target)[1], -(-outputs // lanes))
    plan = FilterPlan(
        dtype,
        height,
        width,
        all_channels,
        outputs,
        lanes,
        vectors,
        piece=min(lanes, 1 << (width.positions - 1).bit_length()),
        tile=1,
        channels=1,
    )
    if not _Room(_OPERAND, _PLANES).holds(_tiled(plan, target)):
        return None
    near = min(_OPERAND, target.l2 * 3 // 8)
    room = _Room(near, near * _PLANES // _OPERAND)
    batch = max(1, static(x.shape[0], _SYMBOLIC))
    plan = _with_channels(plan, target, room)
    return _with_parts(_with_pixels(plan, batch, room), batch)


def _extents(node: Node) -> tuple[Extent, Extent]:
    """Return both axes, as those of the convolution whose gradient it is."""
    x, cotangent = node.operands
    values = node.attributes
    first, second = (
        Extent(
            static(x.shape[2 + i], 0),
            values["window"][i],
            static(cotangent.shape[2 + i], 0),
            values["strides"][i],
            values["padding"][2 * i],
            values["dilation"][i],
            1,
        )
        for i in range(2)
    )
    return first, second


@dataclass(frozen=True, slots=True)
class _Room:
    """Bytes of local memory for an operand, or the turned sums, and for the copy of x."""

    operand: int
    planes: int

    def holds(self, plan: FilterPlan) -> bool:
        """Whether a chunk finds room."""
        operand = max(map(math.prod, (plan.left, plan.right, plan.strip)))
        size = plan.dtype.itemsize
        return operand * size <= self.operand and math.prod(plan.planes) * size <= self.planes


def _with_channels(plan: FilterPlan, target: TargetDescription, room: _Room) -> FilterPlan:
    """Choose the channels of a block: as many as have room with one row of pixels."""
    most = min(_CHANNELS, max(1, _ROWS // plan.points), plan.all_channels)
    counts = [1] if config.get("FRAME_GRAIN") else range(most, 0, -1)
    plans = (_tiled(replace(plan, channels=count), target) for count in counts)
    found = next(filter(room.holds, plans), _tiled(plan, target))
    blocks = -(-plan.all_channels // found.channels)
    return _tiled(replace(plan, channels=-(-plan.all_channels // blocks)), target)


def _tiled(plan: FilterPlan, target: TargetDescription) -> FilterPlan:
    """Choose the rows of a tile: as many as registers hold, all tiles about as high."""
    rows = max(1, (target.vector_registers - 1 - plan.vectors) // plan.vectors)
    return replace(plan, tile=-(-plan.row_count // -(-plan.row_count // rows)))


def _with_pixels(plan: FilterPlan, batch: int, room: _Room) -> FilterPlan:
    """Choose the block of pixels: rows of an image, or several images."""
    if config.get("FRAME_GRAIN"):
        return plan
    positions = plan.height.positions
    heights = sorted({-(-positions // bands) for bands in range(1, positions + 1)}, reverse=True)
    plan = next(filter(room.holds, (replace(plan, rows=rows) for rows in heights)), plan)
    if plan.rows < positions:
        return plan
    most = max(1, min(batch, room.operand // (plan.depth * plan.dtype.itemsize)))
    plans = (replace(plan, images=images) for images in range(most, 0, -1))
    return next(filter(room.holds, plans), plan)


def _with_parts(plan: FilterPlan, batch: int) -> FilterPlan:
    """Cut the pixels into parts where blocks of channels make too few chunks."""
    pixels = batch * plan.height.positions * plan.width.positions
    blocks = -(-batch // plan.images) * plan.bands
    flops = 2 * pixels * plan.all_channels * plan.points * plan.outputs
    wanted = max(1, min(_FEW_CHUNKS, flops // _LEAST_FLOPS))
    most = 3 if config.get("FRAME_GRAIN") else min(-(-wanted // plan.blocks), pixels // _PIXELS)
    parts = max(1, min(blocks, most))
    return replace(plan, parts=-(-blocks // -(-blocks // parts)))
