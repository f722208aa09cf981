"""Convolution groups: direct convolution with the epilogue fused.

    parallel chunk                         (group, block of output channels, block of panels)
      table of window offsets
      for panel in chunk, for tile         either may be outside, see ConvPlan
        micro-kernel                       sums of `rows` channels by a panel of pixels
        for piece of panel, for row        epilogue: vectors of pixels of one output row
          every output is computed, then stored

Before it run, where they are needed, kernels that write a padded copy of x and a copy of the
weights. No copy is larger than x with its padding: windows are read in place. `conv_panels` is the
schedule of many output channels, `conv_direct` that of few multiply-adds for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Call, Expr, If, Kernel, LoopKind, Scope, View
from frame.codegen.schedules.cpu import conv_direct, conv_panels, conv_plain, conv_winograd
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import copy_w, copy_x, flattened, with_workspaces
from frame.codegen.schedules.cpu.conv_image import Image
from frame.codegen.schedules.cpu.conv_micro import ConvTile, convolution_kernel
from frame.codegen.schedules.cpu.conv_plan import (
    ConvPlan,
    anchor_of,
    images_in_order,
    make_plans,
    shared_workspaces,
)
from frame.codegen.schedules.cpu.conv_variants import plan_of
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import ROW_MAJOR, Graph, Layout

NOTE = __doc__.split("\n\n")[1]
_MOST_POINTS = 1 << 14  # entries of a table of channels


def lower(group: Group, variant: str = "") -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution group.

    Raises:
        InvalidArgumentError: the weights have a layout that is not read here.
    """
    _check_weights(group)
    plans = make_plans(group.body, group.target)
    if not plans:
        return conv_plain.lower(group)
    winograd = _winograd(plans, group.target)
    if winograd is not None:
        return conv_winograd.lower(group, plan_of(winograd, variant))
    return tuple(call for plan in plans for call in _lowered(group, plan, variant))


def _lowered(group: Group, plan: ConvPlan, variant: str) -> tuple[KernelCall, ...]:
    """Return the kernels of a convolution, or of a phase of it."""
    if plan.is_empty:
        return (conv_plain.write_zeros(group, plan),)
    direct = conv_direct.make_direct(plan, group.target)
    if direct is not None:
        return (conv_direct.lower(group, plan_of(direct, variant)),)
    panels = conv_panels.make_panels(plan, group.body, group.target)
    if panels is not None:
        return conv_panels.lower(group, plan_of(panels, variant))
    plan = plan_of(plan, variant)
    group = with_workspaces(group, plan)
    if plan.flat:
        group = flattened(group, images_in_order(group.body, True) or ())
    calls = []
    if plan.copy_x:
        calls.append(copy_x(group, plan))
    if plan.copy_w:
        calls.append(copy_w(group, plan))
    return (*calls, _Convolution(group, plan).write())


def workspaces(body: Graph, target: TargetDescription, variant: str = "") -> tuple[Size, ...]:
    """Return the bytes of the padded copy of x, and of the copy of the weights: no variant changes
    them."""
    found = []
    plans = make_plans(body, target)
    winograd = _winograd(plans, target)
    if winograd is not None:
        return winograd.conv.workspaces()
    for plan in plans:
        if plan.is_empty or conv_direct.make_direct(plan, target) is None:
            panels = conv_panels.make_panels(plan, body, target)
            found.append(plan if panels is None else panels.conv)
    return shared_workspaces(found)


def layouts(body: Graph, target: TargetDescription) -> Mapping[int, Layout]:
    """Return the layout of weights that are read tile by tile of output channels."""
    wanted = conv_winograd.layouts(body, target)
    if wanted:
        return wanted
    panels = _only_panels(body, target)
    return {} if panels is None else conv_panels.layouts(body, panels)


def _winograd(
    plans: Sequence[ConvPlan], target: TargetDescription
) -> conv_winograd.WinogradPlan | None:
    """Return the plan of a convolution by Winograd's transforms, if its weights are stored so."""
    return conv_winograd.make_winograd(plans[0], target) if len(plans) == 1 else None


def _only_panels(body: Graph, target: TargetDescription) -> conv_panels.PanelPlan | None:
    """Return the plan of a convolution that runs by panels, in one phase."""
    plans = make_plans(body, target)
    if len(plans) != 1 or plans[0].is_empty:
        return None
    if conv_direct.make_direct(plans[0], target) is not None:
        return None
    return conv_panels.make_panels(plans[0], body, target)


def _check_weights(group: Group) -> None:
    """Raise InvalidArgumentError for weights in a layout that the schedule does not read."""
    layout = anchor_of(group.body).operands[1].type.layout
    if layout == ROW_MAJOR:
        return
    if _winograd(make_plans(group.body, group.target), group.target) is not None:
        return
    panels = _only_panels(group.body, group.target)
    wanted = None if panels is None else conv_panels.tiles(panels)
    if layout != wanted:
        raise InvalidArgumentError(
            f"a convolution on {group.target.name} reads weights in row-major order"
            f"{'' if wanted is None else f' or in {wanted}'}, received {layout}"
        )


class _Convolution:
    """Writes the main kernel."""

    def __init__(self, group: Group, plan: ConvPlan) -> None:
        self.group, self.plan = group, plan
        self.image = Image(group, plan)
        self.helpers: dict[str, Kernel] = {}
        self.panel_units = 1 if plan.along_window else plan.pieces_of_panel
        self.panels = b.ceil_div(self.image.units, self.panel_units)
        tiles = -(-plan.outputs // plan.rows)
        self.height = -(-plan.outputs // tiles)
        self.tiles, self.tall = tiles, plan.outputs - tiles * (self.height - 1)

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

            memory = _Memory(table, sums)

            def inner(panel: Expr, tile: Expr) -> None:
                at = _Place(group, b.add(tile_first, tile), b.add(first, panel))
                self.write_tile(body, at, memory)

            if plan.tiles_outside:
                with body.loop(tiles, "tile") as tile, body.loop(panels, "panel") as panel:
                    inner(panel, tile)
            else:
                with body.loop(panels, "panel") as panel, body.loop(tiles, "tile") as tile:
                    inner(panel, tile)
        helpers = tuple(self.helpers.values())
        return self.group.call(self.plan.name, body.block(), chunks, NOTE, helpers=helpers)

    def depth(self) -> tuple[Expr, Expr]:
        """Return the trips of the loops over channels and over the window."""
        plan, channels = self.plan, self.image.channels
        if self.is_pointwise():
            return b.index(1), channels
        window = plan.steps if plan.along_window else plan.height.window * plan.width.window
        return channels, b.index(window)

    def write_table(self, body: b.Body) -> Buffer:
        """Write the offsets in x that the loop over the window reads."""
        if self.is_pointwise():
            return self.image.write_channels(body, static(self.plan.channels, 0))
        return self.image.write_table(body)

    def is_pointwise(self) -> bool:
        """Whether the window is one point: then channels stand in the table, in its place."""
        window, channels = self.plan.height.window * self.plan.width.window, self.plan.channels
        return window == 1 and isinstance(channels, int) and channels <= _MOST_POINTS

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
        input_channel = b.mul(at.group, self.image.channels)
        places = self.image.places(body, input_channel, first, self.tile(1).places)
        self.write_call(body, at, channel, self.direct_call(channel, places, memory))
        if self.plan.along_window:
            self.write_outputs(body, first, b.index(0), rows, channel, sums)
            return
        left = remaining(self.image.units, first, b.index(self.panel_units))
        with body.loop(left, "unit") as unit:
            offset = b.mul(unit, self.plan.piece)
            self.write_outputs(body, b.add(first, unit), offset, rows, channel, sums)

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
            self.image.size,
            *places,
        )
        image, table = View(self.image.memory), View(memory.table)
        views = (View(memory.sums), self.weights(channel), image, table)

        def call(rows: int) -> Block:
            tile = self.tile(rows)
            self.helpers.setdefault(tile.name, convolution_kernel(tile))
            return (Call(tile.name, views, scalars),)

        return call

    def write_outputs(
        self, body: b.Body, unit: Expr, offset: Expr, rows: Expr, channel: Expr, sums: Buffer
    ) -> None:
        """Write the epilogue of one unit: some columns of an output row, in every channel."""
        plan = self.plan
        image, line, column = (body.let("at", i) for i in self.image.unit(unit))
        count = remaining(b.index(plan.width.positions), column, b.index(self.image.step))
        if plan.width.positions % self.image.step == 0:
            count = b.index(self.image.step)
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


@dataclass(frozen=True, slots=True)
class _Place:
    """A tile in the loops of a chunk."""

    group: Expr
    tile: Expr
    panel: Expr
