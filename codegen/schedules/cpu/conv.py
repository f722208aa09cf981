"""Convolution groups: direct convolution with the epilogue fused.

    parallel chunk                         (group, block of output channels, block of panels)
      table of window offsets
      for panel in chunk, for tile         either may be outside, see ConvPlan
        [pack the panel]                   once for all tiles, if they are many and it is small
        micro-kernel                       sums of `rows` channels by a panel of pixels
        for piece of panel, for row        epilogue: vectors of pixels of one output row
          every output is computed, then stored

Before it run, where they are needed, kernels that write a padded copy of x and a copy of the
weights. No copy is larger than x with its padding: windows are read in place.
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Call, Expr, If, Kernel, LoopKind, Scope, View
from frame.codegen.schedules.cpu import conv_direct, conv_plain
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import copy_w, copy_x, flattened, with_workspaces
from frame.codegen.schedules.cpu.conv_micro import ConvTile, convolution_kernel, panel_kernel
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, make_plans, shared_workspaces
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import Tile, call_product, product_kernel
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core.dataclass import dataclass
from frame.core.dtypes import int64
from frame.core.errors import InternalError
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph

NOTE = __doc__.split("\n\n")[1]
_MOST_POINTS = 1 << 14  # entries of a table of channels


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution group."""
    plans = make_plans(group.body, group.target)
    if not plans:
        return conv_plain.lower(group)
    return tuple(call for plan in plans for call in _lowered(group, plan))


def _lowered(group: Group, plan: ConvPlan) -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution, or of a phase of it."""
    if plan.is_empty:
        return (conv_plain.write_zeros(group, plan),)
    direct = conv_direct.make_direct(plan, group.target)
    if direct is not None:
        return (conv_direct.lower(group, direct),)
    group = flattened(with_workspaces(group, plan), plan)
    calls = []
    if plan.copy_x:
        calls.append(copy_x(group, plan))
    if plan.copy_w:
        calls.append(copy_w(group, plan))
    return (*calls, _Convolution(group, plan).write())


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the padded copy of x, and of the copy of the weights."""
    plans = [p for p in make_plans(body, target) if conv_direct.make_direct(p, target) is None]
    return shared_workspaces(plans)


@dataclass(frozen=True, slots=True)
class _Image:
    """x as the micro-kernels read it: a flat buffer and its strides."""

    memory: Buffer
    origin: int
    image: Expr
    plane: int
    row: int
    phase: int


class _Convolution:
    """Writes the main kernel."""

    def __init__(self, group: Group, plan: ConvPlan) -> None:
        self.group, self.plan = group, plan
        self.channels = group.extent(plan.channels)
        self.image = self._image()
        self.helpers: dict[str, Kernel] = {}
        # Units are what a panel is made of: pieces of an output row, or single outputs.
        along = plan.along_window
        step = plan.vectors if along else plan.piece
        self.units_of_row = -(-plan.width.positions // step)
        self.step = step
        units = b.mul(group.extent(plan.batch), plan.height.positions * self.units_of_row)
        self.units = units
        self.panel_units = 1 if along else plan.pieces_of_panel
        self.panels = b.ceil_div(units, self.panel_units)
        tiles = -(-plan.outputs // plan.rows)
        self.height = -(-plan.outputs // tiles)
        self.tiles, self.tall = tiles, plan.outputs - tiles * (self.height - 1)

    def _image(self) -> _Image:
        plan = self.plan
        channels = b.mul(self.channels, plan.groups)
        if plan.copy_x:
            rows, phases, columns = plan.padded
            row = phases * columns
            plane = rows * row
            memory = self.group.workspaces[0]
            return _Image(memory, 0, b.mul(channels, plane), plane, row, columns)
        position = self.group.body.input_values.index(plan.node.operands[0])
        row = plan.width.size
        plane = plan.height.size * row
        origin = -plan.height.low * row - plan.width.low
        memory = self.group.captures[position]
        return _Image(memory, origin, b.mul(channels, plane), plane, row, 0)

    def write(self) -> KernelCall:
        """Return the call of the main kernel."""
        plan, body = self.plan, b.Body()
        tile_blocks = -(-self.tiles // plan.tiles)
        panel_blocks = b.ceil_div(self.panels, plan.panels)
        extents = [b.index(plan.groups), b.index(tile_blocks), panel_blocks]
        chunks = b.mul(panel_blocks, plan.groups * tile_blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            group, tile_block, panel_block = (body.let("at", i) for i in unflatten(chunk, extents))
            table = self.write_table(body)
            sums = body.alloc("sums", plan.dtype, (self.height, self.tile(1).columns), Scope.LOCAL)
            first = body.let("panel", b.mul(panel_block, plan.panels))
            panels = body.let("panels", remaining(self.panels, first, b.index(plan.panels)))
            tile_first = body.let("tile", b.mul(tile_block, plan.tiles))
            tiles = remaining(b.index(self.tiles), tile_first, b.index(plan.tiles))

            memory = _Memory(table, sums, self.allocate_panel(body))

            def inner(panel: Expr, tile: Expr) -> None:
                at = _Place(group, b.add(tile_first, tile), b.add(first, panel))
                self.write_tile(body, at, memory)

            if memory.panel is not None:
                with body.loop(panels, "panel") as panel:
                    self.pack(body, _Place(group, tile_first, b.add(first, panel)), memory)
                    with body.loop(tiles, "tile") as tile:
                        inner(panel, tile)
            elif plan.tiles_outside:
                with body.loop(tiles, "tile") as tile, body.loop(panels, "panel") as panel:
                    inner(panel, tile)
            else:
                with body.loop(panels, "panel") as panel, body.loop(tiles, "tile") as tile:
                    inner(panel, tile)
        helpers = tuple(self.helpers.values())
        return self.group.call(self.plan.name, body.block(), chunks, NOTE, helpers=helpers)

    def allocate_panel(self, body: b.Body) -> Buffer | None:
        """Return local memory for the pixels of a panel at every point of every window."""
        plan = self.plan
        if not plan.packs:
            return None
        shape = (static(plan.weight_row, 0), self.tile(1).columns)
        return body.alloc("pixels", plan.dtype, shape, Scope.LOCAL)

    def pack(self, body: b.Body, at: _Place, memory: _Memory) -> None:
        """Write the copy of the pixels of a panel."""
        kernel = panel_kernel(self.tile(1))
        self.helpers.setdefault(kernel.name, kernel)
        first = body.let("unit", b.mul(at.panel, self.panel_units))
        channels, window = self.depth()
        scalars = (
            channels,
            b.index(self.image.plane),
            window,
            self.size(),
            *(body.let("place", place) for place in self.places(body, at, first)),
        )
        views = (View(_panel(memory)), View(self.image.memory), View(memory.table))
        body.add(Call(kernel.name, views, scalars))

    def depth(self) -> tuple[Expr, Expr]:
        """Return the trips of the loops over channels and over the window."""
        plan = self.plan
        if self.is_pointwise():
            return b.index(1), self.channels
        window = plan.steps if plan.along_window else plan.height.window * plan.width.window
        return self.channels, b.index(window)

    def size(self) -> Expr:
        """Return the elements of x, or of its copy."""
        return b.mul(self.group.extent(self.plan.batch), self.image.image)

    def write_table(self, body: b.Body) -> Buffer:
        """Write the offset in x of each point of the window, or of each piece of it."""
        plan, image = self.plan, self.image
        if self.is_pointwise():
            table = body.alloc("table", int64, (static(plan.channels, 0),), Scope.LOCAL)
            with body.loop(self.channels, "k") as k:
                body.store(table, [k], b.mul(k, image.plane))
            return table
        columns = plan.pieces_of_row if plan.along_window else plan.width.window
        count = plan.height.window * columns
        table = body.alloc("table", int64, (count,), Scope.LOCAL)
        with body.loop(b.index(count), "k") as k:
            row, column = b.div(k, columns), b.rem(k, columns)
            place = b.mul(row, plan.height.dilation * image.row)
            if plan.along_window:
                place = b.add(place, b.mul(column, plan.piece))
            else:
                place = b.add(place, self.column(b.mul(column, plan.width.dilation)))
            body.store(table, [k], place)
        return table

    def is_pointwise(self) -> bool:
        """Whether the window is one point: then channels stand in the table, in its place."""
        window, channels = self.plan.height.window * self.plan.width.window, self.plan.channels
        return window == 1 and isinstance(channels, int) and channels <= _MOST_POINTS

    def column(self, position: Expr) -> Expr:
        """Return the offset of a column of the padded image."""
        phases = self.plan.phases
        if phases == 1:
            return position
        return b.add(b.mul(b.rem(position, phases), self.image.phase), b.div(position, phases))

    def unit(self, position: Expr) -> tuple[Expr, Expr, Expr]:
        """Return image, output row and first output column of a unit."""
        rows = b.index(self.plan.height.positions)
        image, row, part = unflatten(position, [b.index(1), rows, b.index(self.units_of_row)])
        return image, row, b.mul(part, self.step)

    def tile(self, rows: int) -> ConvTile:
        """Return the micro-kernel for a number of rows."""
        plan = self.plan
        fused = self.group.target.fma
        return ConvTile(
            plan.dtype, rows, plan.vectors, plan.lanes, plan.piece, fused, plan.along_window
        )

    def write_tile(self, body: b.Body, at: _Place, memory: _Memory) -> None:
        """Write the call of a micro-kernel and the epilogue of its tile."""
        lower_tiles = b.max_(b.sub(at.tile, self.tall), 0)
        row = body.let("row", b.sub(b.mul(at.tile, self.height), lower_tiles))
        rows: Expr = b.index(self.height)
        if self.tall < self.tiles:
            rows = b.select(b.lt(at.tile, self.tall), rows, self.height - 1)
        rows = body.let("rows", rows)
        first = body.let("unit", b.mul(at.panel, self.panel_units))
        channel = body.let("channel", b.add(b.mul(at.group, self.plan.outputs), row))
        sums = memory.sums
        if memory.panel is None:
            places = [body.let("place", place) for place in self.places(body, at, first)]
            self.write_call(body, at, channel, self.direct_call(channel, places, memory))
        else:
            self.write_call(body, at, channel, self.packed_call(channel, memory))
        if self.plan.along_window:
            self.write_outputs(body, first, b.index(0), rows, channel, sums)
            return
        left = remaining(self.units, first, b.index(self.panel_units))
        with body.loop(left, "unit") as unit:
            offset = b.mul(unit, self.plan.piece)
            self.write_outputs(body, b.add(first, unit), offset, rows, channel, sums)

    def places(self, body: b.Body, at: _Place, first: Expr) -> list[Expr]:
        """Return where in x the pieces (or outputs) of a panel start."""
        plan, image = self.plan, self.image
        last = body.let("last", b.sub(self.units, 1))
        found = []
        for i in range(self.tile(1).places):
            unit = first if plan.along_window else b.min_(b.add(first, i), last)
            number, row, column = self.unit(body.let("unit", unit))
            if plan.along_window:
                column = b.min_(b.add(column, i), plan.width.positions - 1)
                column = self.column(b.mul(column, plan.width.stride))
            place = b.add(b.mul(number, image.image), image.origin)
            place = b.add(place, b.mul(at.group, b.mul(self.channels, image.plane)))
            place = b.add(place, b.mul(row, plan.height.stride * image.row))
            found.append(b.add(place, column))
        return found

    def write_call(
        self, body: b.Body, at: _Place, channel: Expr, call: Callable[[int], Block]
    ) -> None:
        """Write the call of the micro-kernel of the height of a tile."""
        if self.tall == self.tiles:
            body.add(call(self.height))
        else:
            tall = b.lt(at.tile, self.tall)
            body.add(If(tall, call(self.height), call(self.height - 1)))

    def weights(self, channel: Expr) -> View:
        """Return the weights of the output channels from `channel` on."""
        if self.plan.copy_w:
            return View(self.group.workspaces[-1], (channel, b.index(0)))
        position = self.group.body.input_values.index(self.plan.node.operands[1])
        zero = b.index(0)
        return View(self.group.captures[position], (channel, zero, zero, zero))

    def direct_call(
        self, channel: Expr, places: list[Expr], memory: _Memory
    ) -> Callable[[int], Block]:
        """Return what makes the call that reads x itself, for a number of rows."""
        channels, window = self.depth()
        scalars = (
            channels,
            b.index(self.image.plane),
            window,
            self.group.extent(self.plan.weight_row),
            b.index(self.tile(1).columns),
            self.size(),
            *places,
        )
        image, table = View(self.image.memory), View(memory.table)
        views = (View(memory.sums), self.weights(channel), image, table)

        def call(rows: int) -> Block:
            tile = self.tile(rows)
            self.helpers.setdefault(tile.name, convolution_kernel(tile))
            return (Call(tile.name, views, scalars),)

        return call

    def packed_call(self, channel: Expr, memory: _Memory) -> Callable[[int], Block]:
        """Return what makes the call that multiplies weights by a panel, for a number of rows."""
        plan = self.plan
        depth, columns = self.group.extent(plan.weight_row), b.index(self.tile(1).columns)
        scalars = (depth, depth, b.index(1), columns, columns, b.index(0))
        views = View(memory.sums), self.weights(channel), View(_panel(memory))

        def call(rows: int) -> Block:
            fused = self.group.target.fma
            tile = Tile(plan.dtype, rows, plan.vectors, plan.lanes, fused)
            self.helpers.setdefault(tile.name, product_kernel(tile))
            return (call_product(tile, views, scalars),)

        return call

    def write_outputs(
        self, body: b.Body, unit: Expr, offset: Expr, rows: Expr, channel: Expr, sums: Buffer
    ) -> None:
        """Write the epilogue of one unit: some columns of an output row, in every channel."""
        plan = self.plan
        image, line, column = (body.let("at", i) for i in self.unit(unit))
        count = remaining(b.index(plan.width.positions), column, b.index(self.step))
        if plan.width.positions % self.step == 0:
            count = b.index(self.step)
        count = body.let("count", count)
        lanes = 1 if plan.along_window else plan.piece
        with body.loop(rows, "row") as row:
            place = body.let("channel", b.add(channel, row))
            index = plan.indexer(image, place, line)
            write_epilogue(
                self.group,
                body,
                plan.node.results[0],
                Columns(column, count, lanes),
                index,
                lambda j: b.load(sums, [row, b.add(j, b.broadcast(offset, j.type.lanes))]),
            )


@dataclass(frozen=True, slots=True)
class _Memory:
    """The local memory of a chunk."""

    table: Buffer
    sums: Buffer
    panel: Buffer | None


def _panel(memory: _Memory) -> Buffer:
    if memory.panel is None:
        raise InternalError("the plan of a convolution packs no panel")
    return memory.panel


@dataclass(frozen=True, slots=True)
class _Place:
    """A tile in the loops of a chunk."""

    group: Expr
    tile: Expr
    panel: Expr
