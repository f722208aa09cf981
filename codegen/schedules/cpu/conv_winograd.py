"""Convolutions by 3 x 3 of many channels, by Winograd's transforms (see `winograd`).

    parallel chunk                        (block of output channels, panel of tiles)
      for pass over input channels
        transform of the pixels           of a panel of tiles, every point of every channel
        for point of the transform
          for tile of output channels     micro-kernel: sums (+)= weights of the point @ pixels
      for output channel                  transform of its sums to pixels
        for row of tiles, for line        epilogue: vectors along a row of an image

A tile is 2 x 2 or 4 x 4 pixels of the result, a panel a few vectors of tiles, across the ends of
rows and of images. Pixels are read from a padded copy of x whose columns lie by their place in a
tile. Fixed weights are stored as their transforms; others are transformed by a kernel before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Call, Expr, Kernel, LoopKind, Scope, View
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import copy_x, with_workspaces
from frame.codegen.schedules.cpu.conv_image import Image
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, Extent, make_plans
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import MOST_STEPS, Tile, call_product, product_kernel
from frame.codegen.schedules.cpu.winograd import (
    WINDOW,
    WinogradTile,
    pixels_kernel,
    results_kernel,
)
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Layout

NOTE = __doc__.split("\n\n")[1]
_SYMBOLIC = 32  # what a symbolic batch counts as in a decision
_LOCAL = 1 << 18  # bytes of local memory of a chunk, for pixels and for sums each
_FEW_CHUNKS = 4
_LEAST_TILES = 4  # of output channels in a chunk where others transform the same pixels

# By the results of a tile along an axis: the channels from which on errors lie inside the table,
# and how many are added up in a pass. At the corner of a padded image, where a table that knows
# the terms of a sum allows least, and 128 channels of unit normal numbers, F(4 x 4) reaches 0.97
# of the table in one pass, 0.64 with better points (see `winograd`), and 0.31 in passes of 32.
_CHANNELS = {2: (16, 256), 4: (64, 48)}

# Cycles of a vector of tiles for one channel, by the results of a tile along an axis: transforms
# of its pixels and of its sums. A multiply-add takes half a cycle.
_TRANSFORMS = {2: 120, 4: 300}
_WEIGHTS = {2: 25, 4: 50}  # cycles for the transform of the weights of a pair of channels
_DIRECT = 1.2  # how much dearer a multiply-add of a direct convolution is, which copies pixels
_BYTE = 0.12  # cycles of a byte of weights, which come from memory where the batch is small
_GAIN = 0.85  # of the direct time: at least so much has to be won


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """A convolution by tiles: `conv` has a tile of pixels as window, and tiles as positions.

    A pass takes `channels` input channels; a chunk has one panel, and `tiles` tiles of `height`
    output channels. Rows of tiles are read in pieces of `piece`.
    """

    conv: ConvPlan
    outputs: int
    piece: int
    height: int
    channels: int
    tiles: int

    @property
    def points(self) -> int:
        """The points of a transform, along both axes."""
        return (self.outputs + WINDOW - 1) ** 2

    @property
    def columns(self) -> int:
        """The tiles of a panel."""
        return self.conv.vectors * self.conv.lanes

    @property
    def tile_count(self) -> int:
        """The tiles of output channels."""
        return -(-self.conv.outputs // self.height)

    @property
    def passes(self) -> int:
        """How many passes take all input channels."""
        return -(-static(self.conv.channels, 1) // self.channels)

    @property
    def layout(self) -> Layout:
        """The layout of weights that are stored as their transforms."""
        return Layout((2, 3, 1, 0), ((1, self.channels), (0, self.height)), self.outputs)


def layouts(body: Graph, target: TargetDescription) -> Mapping[int, Layout]:
    """Return the layout of fixed weights whose transforms pay, where they are an input."""
    plans = make_plans(body, target)
    if len(plans) != 1 or not _is_possible(plans[0]):
        return {}
    plan = _cheapest(plans[0], target)
    w = plans[0].node.operands[1]
    if plan is None or w not in body.input_values:
        return {}
    return {body.input_values.index(w): plan.layout}


def repeated(body: Graph, target: TargetDescription) -> frozenset[int]:
    """Return the position of weights whose transforms pay though every run makes them again."""
    wanted = layouts(body, target)
    if not wanted:
        return frozenset()
    (conv,) = make_plans(body, target)
    plan = _cheapest(conv, target)
    pairs = static(conv.channels, 1) * conv.outputs
    pays = plan is not None and _cost(plan) + _again(plan) * pairs <= _GAIN * _direct_cost(conv)
    return frozenset(wanted) if pays else frozenset()


def _again(plan: WinogradPlan) -> float:
    """Return the cycles in which the weights of a pair of channels are transformed and written."""
    size = (WINDOW**2 + plan.points) * plan.conv.dtype.itemsize
    return _WEIGHTS[plan.outputs] + _BYTE * size


def make_winograd(conv: ConvPlan, target: TargetDescription) -> WinogradPlan | None:
    """Return the plan of a convolution whose weights are stored as transforms, None for others."""
    layout = conv.node.operands[1].type.layout
    if not layout.winograd or not _is_possible(conv):
        return None
    plan = _make_plan(conv, target, layout.winograd, dict(layout.blocks).get(1, 0))
    return plan if plan.layout == layout else None


def _is_possible(conv: ConvPlan) -> bool:
    """Whether a convolution has a window of 3 x 3, no stride and one group, in float32."""
    axes = (conv.height, conv.width)
    plain = all(
        (axis.window, axis.stride, axis.dilation, axis.spread) == (WINDOW, 1, 1, 1) for axis in axes
    )
    x, w = conv.node.operands
    if not plain or conv.groups > 1 or conv.is_phase or not isinstance(conv.channels, int):
        return False
    return conv.lanes > 1 and {x.dtype, w.dtype, conv.dtype} == {float32}


def _cheapest(conv: ConvPlan, target: TargetDescription) -> WinogradPlan | None:
    """Return the plan that is expected to take the least time, None where it gains too little."""
    allowed = _CHANNELS if config.get("FRAME_WINOGRAD") == "1" else {}
    plans = [
        _make_plan(conv, target, outputs)
        for outputs, (channels, _) in allowed.items()
        if static(conv.channels, 1) >= channels
    ]
    best = min(plans, key=_cost, default=None)
    return None if best is None or _cost(best) > _GAIN * _direct_cost(conv) else best


def _direct_cost(conv: ConvPlan) -> float:
    """Return the cycles of one core, by one vector for eight, that a direct convolution takes."""
    batch = max(1, static(conv.batch, _SYMBOLIC))
    vectors = -(-batch * conv.height.positions * conv.width.positions // conv.lanes)
    weights = static(conv.channels, 1) * conv.outputs * WINDOW**2
    return weights * max(vectors * _DIRECT / 2, _BYTE * conv.dtype.itemsize)


def _cost(plan: WinogradPlan) -> float:
    conv, channels = plan.conv, static(plan.conv.channels, 1)
    vectors = _panels_of(plan) * conv.vectors
    rows = plan.tile_count * plan.height
    weights = channels * rows * plan.points
    product = weights * max(vectors / 2, _BYTE * conv.dtype.itemsize)
    again = -(-plan.tile_count // plan.tiles)
    return product + _TRANSFORMS[plan.outputs] / 2 * vectors * (channels * again + conv.outputs)


def _panels_of(plan: WinogradPlan) -> int:
    conv = plan.conv
    batch = max(1, static(conv.batch, _SYMBOLIC))
    return -(-batch * conv.height.positions * conv.width.positions // plan.columns)


def _make_plan(
    conv: ConvPlan, target: TargetDescription, outputs: int, channels: int = 0
) -> WinogradPlan:
    """Return the plan for a number of results; of stored weights, the channels of a pass, too."""
    height, width = (_by_tiles(axis, outputs) for axis in (conv.height, conv.width))
    piece = min(conv.lanes, 1 << ((width.positions + 1).bit_length() - 1))
    unit = 1 if width.positions % piece else piece
    conv = replace(conv, height=height, width=width, copy_x=True, copy_w=False, piece=unit)
    rows = min(conv.rows, conv.outputs)
    plan = WinogradPlan(conv, outputs, piece, rows, static(conv.channels, 1), 1)
    line = plan.points * plan.columns * conv.dtype.itemsize
    most = max(1, min(_LOCAL, target.l2 // 2) // line)
    passes = -(-plan.channels // min(most, _CHANNELS[outputs][1]))
    blocks = -(-plan.tile_count * rows // max(rows, most))
    if config.get("FRAME_GRAIN"):
        blocks = plan.tile_count
    else:
        wanted = -(-_FEW_CHUNKS // _panels_of(plan))
        blocks = max(blocks, min(wanted, plan.tile_count // _LEAST_TILES))
    depth = channels or -(-plan.channels // passes)
    return replace(plan, channels=depth, tiles=-(-plan.tile_count // blocks))


def _by_tiles(axis: Extent, outputs: int) -> Extent:
    """Return an axis with tiles as positions, and all pixels that a tile reads as window."""
    tiles = -(-axis.positions // outputs)
    return replace(axis, window=outputs + WINDOW - 1, positions=tiles, stride=outputs)


def lower(group: Group, plan: WinogradPlan) -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution by Winograd's transforms."""
    group = with_workspaces(group, plan.conv)
    return copy_x(group, plan.conv), _Winograd(_with_stored(group, plan), plan).write()


def _with_stored(group: Group, plan: WinogradPlan) -> Group:
    """Give weights that are stored as transforms the shape in which they are read."""
    position = group.body.input_values.index(plan.conv.node.operands[1])
    shape = (plan.points, plan.passes, plan.tile_count, plan.channels, plan.height)
    stored = Buffer(group.captures[position].name, plan.conv.dtype, shape)
    captures = (*group.captures[:position], stored, *group.captures[position + 1 :])
    return group.with_buffers(captures=captures)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a chunk computes: from a panel and a tile on; its local memory, and where tiles end."""

    panel: Expr
    tile: Expr
    tiles: Expr
    pixels: Buffer
    sums: Buffer
    results: Buffer


class _Winograd:
    """Writes the main kernel."""

    def __init__(self, group: Group, plan: WinogradPlan) -> None:
        self.group, self.plan, self.conv = group, plan, plan.conv
        self.image = Image(group, plan.conv)
        self.helpers: dict[str, Kernel] = {}
        self.panels = b.ceil_div(self.image.units, self.conv.pieces_of_panel)
        self.tile = WinogradTile(
            plan.conv.dtype,
            plan.outputs,
            plan.conv.vectors,
            plan.conv.lanes,
            plan.piece,
            plan.conv.piece < plan.piece,
            group.target.fma,
        )

    def write(self) -> KernelCall:
        """Return the call of the main kernel."""
        plan, body = self.plan, b.Body()
        blocks = -(-plan.tile_count // plan.tiles)
        chunks = b.mul(self.panels, blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            block, panel = (body.let("at", i) for i in unflatten(chunk, [chunks, self.panels]))
            tile = body.let("tile", b.mul(block, plan.tiles))
            tiles = remaining(b.index(plan.tile_count), tile, b.index(plan.tiles))
            work = _Chunk(panel, tile, body.let("tiles", tiles), *self.allocate(body))
            self.write_passes(body, work)
            self.write_results(body, work)
        helpers = tuple(self.helpers.values())
        return self.group.call("winograd", body.block(), chunks, NOTE, helpers=helpers)

    def allocate(self, body: b.Body) -> tuple[Buffer, Buffer, Buffer]:
        """Return local memory for the transforms of pixels, for sums, and for results."""
        plan, dtype = self.plan, self.conv.dtype
        rows = plan.tiles * plan.height
        pixels = (plan.points, plan.channels, plan.columns)
        return (
            body.alloc("pixels", dtype, pixels, Scope.LOCAL),
            body.alloc("sums", dtype, (plan.points, rows, plan.columns), Scope.LOCAL),
            body.alloc("results", dtype, (plan.outputs, plan.columns * plan.outputs), Scope.LOCAL),
        )

    def write_passes(self, body: b.Body, work: _Chunk) -> None:
        """Write the passes over the input channels."""
        plan, channels = self.plan, static(self.conv.channels, 0)
        with body.loop(plan.passes, "pass") as number:
            first = body.let("first", b.mul(number, plan.channels))
            extent: Expr = b.index(plan.channels)
            if channels % plan.channels:
                extent = body.let("extent", remaining(b.index(channels), first, extent))
            self.write_pixels(body, work, first, extent)
            with body.loop(plan.points, "point") as point, body.loop(work.tiles, "t") as t:
                place = (point, number, b.add(work.tile, t), b.index(0), b.index(0))
                row = b.mul(t, plan.height)
                body.add(self.product(work, place, row, (extent, number)))

    def write_pixels(self, body: b.Body, work: _Chunk, first: Expr, extent: Expr) -> None:
        """Write the transforms of the pixels of a panel for the channels of a pass."""
        plan, conv, image, tile = self.plan, self.conv, self.image, self.tile
        kernel = pixels_kernel(tile)
        self.helpers.setdefault(kernel.name, kernel)
        unit = body.let("unit", b.mul(work.panel, conv.pieces_of_panel))
        find = image.crossings if tile.crosses else image.places
        places = find(body, first, unit, conv.vectors * tile.pieces)
        count = len(places) // conv.vectors
        steps = b.index(plan.channels * plan.columns), b.index(plan.columns)
        sizes = tuple(b.as_index(n) for n in (image.plane, image.row, image.phase, image.size))
        for v in range(conv.vectors):
            scalars = (extent, *steps, *sizes, *places[v * count : (v + 1) * count])
            to = View(work.pixels, (b.index(0), b.index(0), b.index(v * conv.lanes)))
            body.add(Call(kernel.name, (to, View(image.memory)), scalars))

    def product(
        self, work: _Chunk, place: tuple[Expr, ...], row: Expr, depth: tuple[Expr, Expr]
    ) -> Block:
        """Return the call of the micro-kernel of one point and one tile of output channels."""
        plan, conv = self.plan, self.conv
        memory = self.group.captures[self.group.body.input_values.index(conv.node.operands[1])]
        made = Tile(
            conv.dtype,
            plan.height,
            conv.vectors,
            conv.lanes,
            self.group.target.fma,
            steps=MOST_STEPS,
        )
        self.helpers.setdefault(made.name, product_kernel(made))
        zero, columns = b.index(0), b.index(plan.columns)
        views = (
            View(work.sums, (place[0], row, zero)),
            View(memory, place),
            View(work.pixels, (place[0], zero, zero)),
        )
        scalars = (depth[0], b.index(1), b.index(plan.height), columns, columns, depth[1])
        return (call_product(made, views, scalars),)

    # --- the epilogue ----------------------------------------------------------------------------

    def write_results(self, body: b.Body, work: _Chunk) -> None:
        """Write the results of all output channels of a chunk."""
        plan, zero = self.plan, b.index(0)
        kernel = results_kernel(self.tile)
        self.helpers.setdefault(kernel.name, kernel)
        first = body.let("channel", b.mul(work.tile, plan.height))
        count = remaining(b.index(self.conv.outputs), first, b.mul(work.tiles, plan.height))
        step = b.index(plan.tiles * plan.height * plan.columns)
        with body.loop(count, "row") as row:
            views = View(work.results), View(work.sums, (zero, row, zero))
            body.add(Call(kernel.name, views, (step,)))
            self.write_lines(body, work, body.let("channel", b.add(first, row)))

    def write_lines(self, body: b.Body, work: _Chunk, channel: Expr) -> None:
        """Write the epilogue of one output channel, along the rows of images."""
        outputs, result = self.plan.outputs, self.conv.node.results[0]
        height, width = self.group.extents(result.shape[2:])
        with self.segments(body, work) as (line, tile, local, count):
            image = b.div(line, self.conv.height.positions)
            top = b.mul(b.rem(line, self.conv.height.positions), outputs)
            first = body.let("column", b.mul(tile, outputs))
            left = remaining(width, first, b.mul(count, outputs))
            columns = Columns(first, body.let("count", left), self.conv.lanes)
            start = body.let("start", b.mul(local, outputs))
            image, top = body.let("image", image), body.let("top", top)
            with body.loop(remaining(height, top, b.index(outputs)), "y") as y:
                write_epilogue(
                    self.group,
                    body,
                    result,
                    columns,
                    lambda j: (image, channel, b.add(top, y), j),
                    lambda j: b.load(work.results, [y, b.add(j, b.broadcast(start, j.type.lanes))]),
                )

    @contextmanager
    def segments(self, body: b.Body, work: _Chunk) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Write the loop over the rows of tiles of a panel.

        Yields the row, counted through all images, its first tile, where that is in the panel, and
        how many there are.
        """
        width, columns = self.conv.width.positions, self.plan.columns
        total = b.mul(self.group.extent(self.conv.batch), self.conv.height.positions * width)
        start = body.let("start", b.mul(work.panel, columns))
        stop = body.let("stop", b.min_(b.add(start, columns), total))
        lowest = body.let("lowest", b.div(start, width))
        with body.loop(b.sub(b.ceil_div(stop, width), lowest), "line") as i:
            line = body.let("line", b.add(lowest, i))
            origin = body.let("origin", b.mul(line, width))
            low = body.let("low", b.max_(start, origin))
            high = b.min_(stop, b.add(origin, width))
            yield line, b.sub(low, origin), b.sub(low, start), b.sub(high, low)
