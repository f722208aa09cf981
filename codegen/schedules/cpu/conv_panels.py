"""Convolutions of many output channels: weights by panels of pixels that a chunk keeps near.

    parallel chunk                        (group, block of panels, block of output channels)
      table of window offsets
      for pass over input channels
        for panel in chunk                the pixels of a panel at every point of the window
        for tile of output channels, for panel
          micro-kernel                    sums (+)= weights of the tile @ panel
        [epilogue of the tile]            where one pass takes all channels
      [epilogue of all tiles]             after several
                                          vectors along an image, or along its rows

Weights pass by once for all panels of a chunk. They are read in place, or from tiles [channels,
window, outputs of a tile] in which a graph with fixed weights stores them. Where all that follows
walks images in order, panels run across the ends of rows, and of images: none is half empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Call, Expr, If, Kernel, LoopKind, Scope, View
from frame.codegen.schedules.access import place_in
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import copy_w, copy_x, flattened, with_workspaces
from frame.codegen.schedules.cpu.conv_image import Image
from frame.codegen.schedules.cpu.conv_pixels import PixelTile, panel_kernel
from frame.codegen.schedules.cpu.conv_plan import (
    ConvPlan,
    copies_x,
    images_in_order,
    in_order,
)
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import (
    MOST_STEPS,
    Tile,
    call_product,
    product_kernel,
)
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.targets import TargetDescription
from frame.ir.graph import ROW_MAJOR, Graph, Layout

NOTE = __doc__.split("\n\n")[1]
_SYMBOLIC = 32  # what a symbolic batch counts as in a decision
_LEAST_TILES, _LEAST_CROWDED = 4, 2  # of output channels, for a copy of their pixels to pay
_KEPT, _KEPT_BYTES = 4, 3 << 16  # panels that a chunk keeps, and bytes of its local memory
_SUMS = 1 << 17  # bytes of local memory for sums
_LEAST_FLOPS, _FEW_CHUNKS = 1 << 18, 16
_CROSSING = 3  # how much dearer a piece is that may cross the end of a row
_LEAST_CHUNKS = 4  # where there are fewer, another copy of pixels costs less than idle threads
_BLOCK = 16  # tiles of a chunk, at least, where another chunk copies the same pixels


@dataclass(frozen=True, slots=True)
class PanelPlan:
    """A pass takes `channels` input channels; a chunk has `panels`, and `tiles` of outputs.

    Pixels are copied in pieces of `piece`. With `joined` rows panels run across the ends of rows,
    and so may pieces: then a unit of the convolution is a pixel. `stored` says that weights are
    stored as tiles.
    """

    conv: ConvPlan
    piece: int
    joined: bool
    stored: bool
    channels: int
    panels: int
    tiles: int

    @property
    def crosses(self) -> bool:
        """Whether pieces may begin in one row and end in the next."""
        return self.conv.piece < self.piece

    @property
    def window(self) -> int:
        """The points of the window."""
        return self.conv.height.window * self.conv.width.window

    @property
    def passes(self) -> int:
        """How many passes take all input channels."""
        return -(-static(self.conv.channels, 1) // self.channels)

    @property
    def columns(self) -> int:
        """Pixels of a panel."""
        return self.conv.vectors * self.conv.lanes

    @property
    def tile_count(self) -> int:
        """Tiles of the output channels of a group."""
        return -(-self.conv.outputs // self.conv.rows)

    @property
    def height(self) -> int:
        """The most output channels of a tile, once all tiles are about as high."""
        return -(-self.conv.outputs // self.tile_count)

    @property
    def tall(self) -> int:
        """How many tiles have that height."""
        if self.stored:
            return self.conv.outputs // self.height
        return self.conv.outputs - self.tile_count * (self.height - 1)

    @property
    def low(self) -> int:
        """The height of the other tiles."""
        return self.conv.outputs % self.height if self.stored else self.height - 1


def make_panels(conv: ConvPlan, body: Graph, target: TargetDescription) -> PanelPlan | None:
    """Return the plan of a convolution by panels, None where another schedule is better."""
    tiles = -(-conv.outputs // conv.rows)
    # Where only crowded planes want a copy of x, one of panels is the cheaper one.
    crowded = conv.copy_x and not copies_x(conv, again=False)
    if conv.along_window or conv.is_empty or tiles < (_LEAST_CROWDED if crowded else _LEAST_TILES):
        return None
    channels = conv.channels
    if not isinstance(channels, int):  # pixels are local memory
        return None
    joined, piece = _pieces(conv, body, tiles)
    conv = replace(conv, piece=1 if joined and conv.width.positions % piece else piece)
    conv = replace(conv, copy_x=copies_x(conv, again=False))
    kept = min(_KEPT, _panels_of(conv, conv.piece))
    channel = conv.height.window * conv.width.window * conv.vectors * target.vector_bits // 8
    room = min(_KEPT_BYTES, target.l2 * 3 // 8)
    kept = max(1, min(kept, room // channel))
    if channel > room:
        return None
    passes = -(-channels * channel * kept // room)
    depth = -(-channels // passes)
    plan = PanelPlan(conv, piece, joined, _is_stored(conv, body), depth, kept, tiles)
    return _with_chunks(plan)


def _pieces(conv: ConvPlan, body: Graph, tiles: int) -> tuple[bool, int]:
    """Whether rows are joined, and the pieces that pixels are copied in.

    Without, the end of each row is a piece that is partly empty. A piece of joined rows must not
    lie in three of them. The multiply-adds of a panel, in vectors, are weighed against its copy.
    """
    width = conv.width.positions
    # A group has few tiles to share the dearer copy: joined rows took a fifth more time.
    if conv.is_phase or conv.groups > 1 or images_in_order(body, conv.flat) is None:
        return False, conv.piece
    joined = min(conv.lanes, 1 << ((width + 1).bit_length() - 1))
    crossing = 1 if width % joined == 0 else _CROSSING

    def cost(piece: int, copy: int, unit: int) -> float:
        copied = copy * conv.vectors * conv.lanes // piece
        return _panels_of(conv, unit) * (copied + tiles * conv.rows * conv.vectors / 2)

    better = cost(joined, crossing, 1) <= cost(conv.piece, 1, conv.piece)
    return (True, joined) if better else (False, conv.piece)


def _panels_of(conv: ConvPlan, piece: int) -> int:
    batch = max(1, static(conv.batch, _SYMBOLIC))
    units = batch * conv.height.positions * -(-conv.width.positions // piece)
    return -(-units * piece // (conv.vectors * conv.lanes))


def _is_stored(conv: ConvPlan, body: Graph) -> bool:
    return not conv.is_phase and conv.node.operands[1].type.layout != ROW_MAJOR


def _with_chunks(plan: PanelPlan) -> PanelPlan:
    """Cut panels, and output channels where panels are too few, into chunks.

    Each chunk copies its own pixels: of the output channels it takes as many as there are, or at
    least so many that the copy costs little.
    """
    conv = plan.conv
    if config.get("FRAME_GRAIN"):
        return replace(plan, panels=1, tiles=1)
    panels = _panels_of(conv, conv.piece)
    depth = static(conv.channels, 1) * plan.window
    flops = 2 * panels * plan.columns * conv.groups * conv.outputs * depth
    wanted = max(1, min(_FEW_CHUNKS, flops // _LEAST_FLOPS))
    kept = plan.panels
    if plan.passes == 1:  # weights are read again at less cost than a thread that waits
        kept = max(1, min(kept, panels * conv.groups // wanted))
    cut = conv.groups * -(-panels // kept)
    most = min(-(-wanted // cut), max(plan.tile_count // _BLOCK, _LEAST_CHUNKS // cut))
    blocks = 1 << max(0, most.bit_length() - 1)
    if plan.passes > 1:
        row = kept * plan.columns * conv.dtype.itemsize
        blocks = max(blocks, -(-plan.tile_count * plan.height * row // _SUMS))
    return replace(plan, panels=kept, tiles=-(-plan.tile_count // blocks))


def layouts(body: Graph, plan: PanelPlan) -> Mapping[int, Layout]:
    """Return the layout of the weights, as tiles, where they are an input of the group."""
    w, stored = plan.conv.node.operands[1], tiles(plan)
    if stored is None or w.type.layout != ROW_MAJOR:
        return {}
    return {body.input_values.index(w): stored}


def tiles(plan: PanelPlan) -> Layout | None:
    """Return the layout of weights as tiles; None where they can't be stored so."""
    conv = plan.conv
    whole = conv.groups == 1 or conv.outputs % plan.height == 0
    return Layout((), ((0, plan.height),)) if whole and not conv.copy_w else None


def lower(group: Group, plan: PanelPlan) -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution by panels."""
    conv = plan.conv
    group = with_workspaces(group, conv)
    merged = group
    if plan.joined or conv.flat:
        merged = flattened(group, images_in_order(group.body, conv.flat) or ())
    calls = []
    if conv.copy_x:
        calls.append(copy_x(merged if conv.flat else group, conv))
    if conv.copy_w:
        calls.append(copy_w(group, conv))
    return (*calls, _Panels(_with_stored(merged, plan), plan).write())


def _with_stored(group: Group, plan: PanelPlan) -> Group:
    """Give weights that are stored as tiles the shape in which they are read."""
    conv = plan.conv
    if not plan.stored:
        return group
    position = group.body.input_values.index(conv.node.operands[1])
    depth = static(conv.weight_row, 0)
    shape = (conv.groups * plan.tile_count, depth, plan.height)
    tiles = Buffer(group.captures[position].name, conv.dtype, shape)
    captures = (*group.captures[:position], tiles, *group.captures[position + 1 :])
    return group.with_buffers(captures=captures)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a chunk computes, and its local memory: pixels [panel, depth, columns], sums."""

    group: Expr
    panel: Expr
    panels: Expr
    tile: Expr
    tiles: Expr
    table: Buffer | None
    pixels: Buffer
    sums: Buffer


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some output channels: the first of them, how many, and where their sums begin."""

    channel: Expr
    count: Expr
    held: Expr


class _Panels:
    """Writes the main kernel."""

    def __init__(self, group: Group, plan: PanelPlan) -> None:
        self.group, self.plan, self.conv = group, plan, plan.conv
        self.image = Image(group, plan.conv)
        self.helpers: dict[str, Kernel] = {}
        self.panels = b.ceil_div(self.image.units, self.conv.pieces_of_panel)

    def write(self) -> KernelCall:
        """Return the call of the main kernel."""
        plan, conv, body = self.plan, self.conv, b.Body()
        panel_blocks = b.ceil_div(self.panels, plan.panels)
        tile_blocks = -(-plan.tile_count // plan.tiles)
        extents = [b.index(conv.groups), panel_blocks, b.index(tile_blocks)]
        chunks = b.mul(panel_blocks, conv.groups * tile_blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            group, panel_block, tile_block = (body.let("at", i) for i in unflatten(chunk, extents))
            panel = body.let("panel", b.mul(panel_block, plan.panels))
            tile = body.let("tile", b.mul(tile_block, plan.tiles))
            work = _Chunk(
                group,
                panel,
                body.let("panels", remaining(self.panels, panel, b.index(plan.panels))),
                tile,
                body.let("tiles", remaining(b.index(plan.tile_count), tile, b.index(plan.tiles))),
                self.image.write_table(body) if plan.window > 1 else None,
                *self.allocate(body),
            )
            self.write_passes(body, work)
            if plan.passes > 1:
                end = self.row(b.add(work.tile, work.tiles))
                first = self.row(work.tile)
                channel = b.add(b.mul(group, conv.outputs), first)
                rows = _Rows(body.let("channel", channel), b.sub(end, first), b.index(0))
                self.write_outputs(body, work, rows)
        helpers = tuple(self.helpers.values())
        return self.group.call(conv.name, body.block(), chunks, NOTE, helpers=helpers)

    def allocate(self, body: b.Body) -> tuple[Buffer, Buffer]:
        """Return local memory for pixels and for sums."""
        plan, dtype = self.plan, self.conv.dtype
        shape = (plan.panels, plan.channels * plan.window, plan.columns)
        rows = plan.height * (1 if plan.passes == 1 else plan.tiles)
        pixels = body.alloc("pixels", dtype, shape, Scope.LOCAL)
        return pixels, body.alloc("sums", dtype, (rows, plan.panels * plan.columns), Scope.LOCAL)

    def row(self, tile: Expr) -> Expr:
        """Return the first output channel of a tile, in its group."""
        plan = self.plan
        if plan.stored:
            return b.min_(b.mul(tile, plan.height), plan.conv.outputs)
        lower = b.max_(b.sub(tile, plan.tall), 0)
        return b.sub(b.mul(tile, plan.height), lower)

    def write_passes(self, body: b.Body, work: _Chunk) -> None:
        """Write the passes over the input channels: all tiles by all panels of a chunk."""
        plan, channels = self.plan, static(self.conv.channels, 0)
        with body.loop(plan.passes, "pass") as number:
            first = body.let("first", b.mul(number, plan.channels))
            extent: Expr = b.index(plan.channels)
            if channels % plan.channels:
                extent = body.let("extent", remaining(b.index(channels), first, extent))
            with body.loop(work.panels, "panel") as position:
                self.pack(body, work, position, (first, extent))
            with body.loop(work.tiles, "tile") as counter:
                self.write_tile(body, work, counter, (number, first, extent))

    def pack(self, body: b.Body, work: _Chunk, position: Expr, channels: tuple[Expr, Expr]) -> None:
        """Write the copy of the pixels of a panel for the channels of a pass."""
        plan, conv, image = self.plan, self.conv, self.image
        tile = PixelTile(
            conv.dtype, conv.vectors, conv.lanes, plan.piece, plan.crosses, plan.window == 1
        )
        kernel = panel_kernel(tile)
        self.helpers.setdefault(kernel.name, kernel)
        unit = b.mul(b.add(work.panel, position), conv.pieces_of_panel)
        channel = b.add(b.mul(work.group, image.channels), channels[0])
        find = image.crossings if plan.crosses else image.places
        places = find(body, body.let("channel", channel), body.let("unit", unit), tile.pieces)
        window = b.index(plan.window)
        scalars = (channels[1], b.index(image.plane), window, image.size, *places)
        views = [View(work.pixels, (position, b.index(0), b.index(0))), View(image.memory)]
        if work.table is not None:
            views.append(View(work.table))
        body.add(Call(kernel.name, tuple(views), scalars))

    def write_tile(
        self, body: b.Body, work: _Chunk, counter: Expr, at: tuple[Expr, Expr, Expr]
    ) -> None:
        """Write one tile of output channels by all panels of a chunk, in one pass."""
        plan, conv = self.plan, self.conv
        tile = body.let("tile", b.add(work.tile, counter))
        row = body.let("row", self.row(tile))
        one_pass = plan.passes == 1
        held = b.index(0) if one_pass else b.sub(row, self.row(work.tile))
        channel = body.let("channel", b.add(b.mul(work.group, conv.outputs), row))
        if one_pass and plan.joined:
            self.prefetch_outputs(body, work, channel)
        with body.loop(work.panels, "panel") as position:
            sums = View(work.sums, (held, b.mul(position, plan.columns)))
            pixels = View(work.pixels, (position, b.index(0), b.index(0)))
            self.write_call(body, (work.group, tile, channel), (sums, pixels), at)
        if one_pass:
            count: Expr = b.index(plan.height)
            if plan.tall < plan.tile_count:
                count = b.select(b.lt(tile, plan.tall), count, plan.low)
            self.write_outputs(body, work, _Rows(channel, body.let("rows", count), held))

    def prefetch_outputs(self, body: b.Body, work: _Chunk, channel: Expr) -> None:
        """Ask for the lines of the results of a tile, which lie in as many pages as it has rows."""
        conv, plan = self.conv, self.plan
        area = conv.height.positions * conv.width.positions
        step = self.group.target.cache_line // conv.dtype.itemsize
        start = body.let("pixel", b.mul(work.panel, plan.columns))
        lines = b.ceil_div(b.mul(work.panels, plan.columns), step)
        last = b.sub(b.mul(self.group.extent(conv.batch), area), 1)
        with body.loop(plan.height, "row") as row, body.loop(lines, "line") as line:
            pixel = body.let("pixel", b.min_(b.add(start, b.mul(line, step)), last))
            place = b.min_(b.add(channel, row), conv.groups * conv.outputs - 1)
            index = in_order(b.div(pixel, area), place, b.rem(pixel, area))
            for memory, value in zip(self.group.outputs, self.group.body.outputs, strict=True):
                body.prefetch(memory, place_in(memory, value.shape, index))

    def write_call(
        self,
        body: b.Body,
        tile: tuple[Expr, Expr, Expr],
        views: tuple[View, View],
        at: tuple[Expr, Expr, Expr],
    ) -> None:
        """Write the call of the micro-kernel of the height of a tile."""
        plan, conv = self.plan, self.conv
        number, first, extent = at
        weights, strides = self.weights(tile, first)
        depth = b.mul(extent, plan.window)
        c_row = b.index(plan.panels * plan.columns)
        scalars = (depth, *strides, b.index(plan.columns), c_row, number)

        def call(rows: int) -> Block:
            fused = self.group.target.fma
            # The instructions of a loop on top of those of one step cost about 10 % in some runs.
            made = Tile(conv.dtype, rows, conv.vectors, conv.lanes, fused, steps=MOST_STEPS)
            self.helpers.setdefault(made.name, product_kernel(made))
            return (call_product(made, (views[0], weights, views[1]), scalars),)

        if plan.tall == plan.tile_count:
            body.add(call(plan.height))
        else:
            body.add(If(b.lt(tile[1], plan.tall), call(plan.height), call(plan.low)))

    def weights(self, tile: tuple[Expr, Expr, Expr], first: Expr) -> tuple[View, tuple[Expr, Expr]]:
        """Return the weights of a tile from an input channel on; strides of outputs and depth."""
        plan, conv, zero = self.plan, self.conv, b.index(0)
        group, number, channel = tile
        start = b.mul(first, plan.window)
        if conv.copy_w:
            strides = self.group.extent(conv.weight_row), b.index(1)
            return View(self.group.workspaces[-1], (channel, start)), strides
        memory = self.group.captures[self.group.body.input_values.index(conv.node.operands[1])]
        if plan.stored:
            place = b.add(b.mul(group, plan.tile_count), number)
            return View(memory, (place, start, zero)), (b.index(1), b.index(plan.height))
        strides = self.group.extent(conv.weight_row), b.index(1)
        return View(memory, (channel, first, zero, zero)), strides

    # --- the epilogue ----------------------------------------------------------------------------

    def write_outputs(self, body: b.Body, work: _Chunk, rows: _Rows) -> None:
        """Write the epilogue of some output channels, along all panels of a chunk."""
        (self.write_joined if self.plan.joined else self.write_pieces)(body, work, rows)

    def write_joined(self, body: b.Body, work: _Chunk, rows: _Rows) -> None:
        """Write the epilogue along images, whose rows follow each other."""
        start = body.let("start", b.mul(work.panel, self.plan.columns))
        with self.parts(body, work, start) as (image, first, column, count):
            columns = Columns(column, count, self.conv.lanes)
            with body.loop(rows.count, "row") as row:
                channel = body.let("channel", b.add(rows.channel, row))
                self.write_row(
                    body,
                    (work.sums, b.add(rows.held, row), first),
                    columns,
                    lambda j: in_order(image, channel, j),
                )

    @contextmanager
    def parts(
        self, body: b.Body, work: _Chunk, start: Expr
    ) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Write the loop over the images that the panels of a chunk have pixels of.

        Yields the image, its first pixel in the chunk and in the image, and how many there are.
        """
        area = self.conv.height.positions * self.conv.width.positions
        width = self.plan.panels * self.plan.columns
        total = b.mul(self.group.extent(self.conv.batch), area)
        if area % width == 0:
            image = body.let("image", b.div(start, area))
            yield image, b.index(0), b.sub(start, b.mul(image, area)), b.index(width)
            return
        pixels = b.mul(work.panels, self.plan.columns)
        stop = body.let("stop", b.min_(b.add(start, pixels), total))
        if self.conv.batch == 1:
            yield b.index(0), b.index(0), start, body.let("count", b.sub(stop, start))
            return
        lowest = body.let("lowest", b.div(start, area))
        count = b.sub(b.ceil_div(stop, area), lowest)
        with body.loop(count, "image") as i:
            image = body.let("image", b.add(lowest, i))
            origin = body.let("origin", b.mul(image, area))
            low = body.let("low", b.max_(start, origin))
            high = b.min_(stop, b.add(origin, area))
            count = body.let("count", b.sub(high, low))
            yield image, b.sub(low, start), b.sub(low, origin), count

    def write_pieces(self, body: b.Body, work: _Chunk, rows: _Rows) -> None:
        """Write the epilogue along the rows of images, piece by piece."""
        conv, piece = self.conv, self.conv.piece
        first = body.let("unit", b.mul(work.panel, conv.pieces_of_panel))
        units = b.mul(work.panels, conv.pieces_of_panel)
        left = remaining(self.image.units, first, units)
        with body.loop(left, "unit") as unit:
            place = b.add(first, unit)
            image, line, column = (body.let("at", i) for i in self.image.unit(place))
            count: Expr = b.index(piece)
            if conv.width.positions % piece:
                count = remaining(b.index(conv.width.positions), column, count)
            columns = Columns(column, body.let("count", count), piece)
            with body.loop(rows.count, "row") as row:
                channel = body.let("channel", b.add(rows.channel, row))
                sums = work.sums, b.add(rows.held, row), b.mul(unit, piece)
                self.write_row(body, sums, columns, conv.indexer(image, channel, line))

    def write_row(
        self,
        body: b.Body,
        sums: tuple[Buffer, Expr, Expr],
        columns: Columns,
        index: Callable[[Expr], Index],
    ) -> None:
        """Write the epilogue of some pixels of one output channel; `sums` says where theirs are."""
        memory, row, first = sums
        write_epilogue(
            self.group,
            body,
            self.conv.node.results[0],
            columns,
            index,
            lambda j: b.load(memory, [row, b.add(j, b.broadcast(first, j.type.lanes))]),
        )
