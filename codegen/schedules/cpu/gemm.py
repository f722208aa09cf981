"""Contraction groups: blocked matrix products with the epilogue fused.

    parallel chunk                         (batch, block of rows, block of panels)
      for pass over depth
        [pack the panels]                  unless they are packed already, or read in place
        for panel in chunk
          for tile of rows in block        balanced tiles: heights differ by one at most
            micro-kernel                   tile (+)= rows of a @ panel   [or tiles outside panels]
      for row, for panel                   epilogue: vectors over the columns of the panel
        every output is computed, then stored

Before it run, where they are needed, a kernel that copies the left operand into row-major order and
one that packs the right operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.builder import Operand
from frame.codegen.loops.ir import (
    Block,
    Buffer,
    Expr,
    If,
    Kernel,
    LoopKind,
    Scope,
    Type,
    Var,
    View,
)
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu import gemm_integer, gemm_vector
from frame.codegen.schedules.cpu.chunks import flat_extent, remaining, unflatten
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import MOST_STEPS, Tile, call_product, product_kernel
from frame.codegen.schedules.cpu.gemm_operand import Matrix, Product, element, product_of
from frame.codegen.schedules.cpu.gemm_pack import (
    Load,
    PanelShape,
    write_left_panel,
    write_left_rows,
    write_row,
    write_transposed,
)
from frame.codegen.schedules.cpu.gemm_pairs import elements, stored, whole_steps, words
from frame.codegen.schedules.cpu.gemm_plan import (
    GemmPlan,
    Source,
    make_plan,
    packed_layout,
    runs_across_depth,
    runs_along_depth,
    strides_far,
)
from frame.codegen.schedules.cpu.gemm_variants import plan_of
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32
from frame.core.shapes import Dim, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import ROW_MAJOR, Graph, Layout

NOTE = __doc__.split("\n\n")[1]
_COPY_TILES = 4  # tiles of the left operand that one chunk packs
_PACK_DEPTH, _PACK_PANELS = 64, 16  # of the right operand, that one chunk packs


def lower(group: Group, variant: str = "") -> tuple[KernelCall, ...]:
    """Return the kernels of a contraction group."""
    made = product_of(group.body)
    if not made.dtype.is_float:
        return gemm_integer.lower(group, made)
    if gemm_vector.applies(made):
        return gemm_vector.lower(group, made)
    plan = plan_of(made, group.target, variant)
    return _Gemm(_with_workspaces(group, plan), plan).run()


def workspaces(body: Graph, target: TargetDescription, variant: str = "") -> tuple[Size, ...]:
    """Return the bytes of a copied left operand, and of a packed right one."""
    made = product_of(body)
    if not made.dtype.is_float:
        return ()
    if gemm_vector.applies(made):
        return gemm_vector.workspaces(made, target)
    return plan_of(made, target, variant).workspaces()


def layouts(body: Graph, target: TargetDescription) -> Mapping[int, Layout]:
    """Return the packed layout for a right operand that is a matrix with whole panels to fill."""
    made = product_of(body)
    if not made.dtype.is_float or gemm_vector.applies(made):
        return {}
    plan = make_plan(made, target)
    made, right = plan.product, made.right
    is_matrix = right.value.node is None and right.value.rank == 2
    plain = is_matrix and right.value.dtype == made.stored and right.layout == ROW_MAJOR
    if not plain or not isinstance(made.columns, int) or not isinstance(made.depth, int):
        return {}
    if plan.source is Source.PLACE and isinstance(made.rows, int) and not strides_far(made, target):
        return {}
    position = body.input_values.index(right.value)
    return {position: packed_layout(made, plan.columns)}


def _with_workspaces(group: Group, plan: GemmPlan) -> Group:
    """Give the workspaces the shapes of what they hold."""
    made = plan.product
    steps, unit = _steps(group, made), made.unit
    panels = b.ceil_div(group.extent(made.columns), plan.columns)
    shapes: list[tuple[Operand, ...]] = []
    if plan.copy_left:
        batch = product(made.left.batch) if not made.merged else 1
        tiles = made.rows if isinstance(made.rows, Dim) else -(-made.rows // plan.rows)
        panel = b.mul(b.add(b.mul(steps, plan.height), plan.lanes), unit)
        shapes.append((group.extent(batch), group.extent(tiles), panel))
    if plan.source is Source.SHARED:
        batch = product(made.right.batch)
        shapes.append((group.extent(batch), panels, steps, unit * plan.columns))
    memories = tuple(
        Buffer(memory.name, made.stored, _plain(shape), (), Scope.WORKSPACE)
        for memory, shape in zip(group.workspaces, shapes, strict=True)
    )
    captures = group.captures
    if plan.source is Source.LAYOUT and made.right.view is not None:
        position = made.right.view.capture
        shape = _plain((panels, steps, unit * plan.columns))
        stored = Buffer(captures[position].name, made.stored, shape)
        captures = (*captures[:position], stored, *captures[position + 1 :])
    return group.with_buffers(captures=captures, workspaces=memories)


def _steps(group: Group, made: Product) -> Expr:
    """Return the steps of micro-kernels over the inner axis."""
    return b.ceil_div(group.extent(made.depth), made.unit)


def _plain(shape: Sequence[Operand]) -> tuple[int | Expr, ...]:
    return b.buffer("sizes", float32, [b.as_index(size) for size in shape]).shape


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a product cut into tiles: `tall` ones of `height` rows, then lower ones."""

    total: Expr
    count: Expr
    height: Expr
    tall: Expr

    def start(self, tile: Expr) -> Expr:
        """Return the first row of a tile."""
        lower = b.max_(b.sub(tile, self.tall), 0)
        return b.sub(b.mul(tile, self.height), lower)

    def height_of(self, tile: Expr) -> Expr:
        """Return how many rows a tile has."""
        return b.select(b.lt(tile, self.tall), self.height, b.sub(self.height, 1))


def _cut_rows(total: Expr, rows: int) -> _Rows:
    count = b.ceil_div(total, rows)
    height = b.ceil_div(total, b.max_(count, 1))
    tall = b.sub(total, b.mul(count, b.sub(height, 1)))
    return _Rows(total, count, height, tall)


class _Gemm:
    """Writes the kernels of one product."""

    def __init__(self, group: Group, plan: GemmPlan) -> None:
        self.group, self.plan, self.made = group, plan, plan.product
        self.helpers: dict[str, Kernel] = {}
        self.length = group.extent(self.made.depth)
        self.depth = _steps(group, self.made)  # as all loops over the inner axis count it
        self.columns = group.extent(self.made.columns)
        self.panels = b.ceil_div(self.columns, plan.columns)
        self.rows = _cut_rows(group.extent(self.made.rows), plan.rows)
        self.batches = group.extents(self.made.batch)

    def run(self) -> tuple[KernelCall, ...]:
        """Return the calls in order."""
        calls = []
        if self.plan.copy_left:
            calls.append(self.copy_left())
        if self.plan.source is Source.SHARED:
            calls.append(self.pack_right())
        return (*calls, self.multiply())

    # --- operands --------------------------------------------------------------------------------

    def loader(self, body: b.Body, matrix: Matrix, batch: Index) -> Load:
        """Return how elements of an operand are read inside one scope of a kernel."""

        def load(row: Expr, column: Expr) -> Expr:
            reader = Reader(self.group, body)
            found = stored(element(reader, matrix, batch, row, column), self.made.stored)
            lanes = max(row.type.lanes, column.type.lanes)
            # A broadcast operand gives one element for all places.
            return found if found.type.lanes == lanes else b.broadcast(found, lanes)

        return load

    def places(self, place: Expr) -> Expr:
        """Return the elements at a place, or a vector of places, of what is packed."""
        return elements(place) if self.made.pairs else place

    def whole_steps(self) -> Expr:
        """Return how many steps over the inner axis a vector along it may read."""
        return whole_steps(self.length) if self.made.pairs else self.depth

    def in_steps(self, load: Load) -> Load:
        """Return what a micro-kernel takes at (step, column), given the elements."""
        return words(load, self.length) if self.made.pairs else load

    def copy_left(self) -> KernelCall:
        """Pack the left operand into panels, some tiles a chunk."""
        left, body = self.made.left, b.Body()
        target = self.group.workspaces[0]
        own = () if self.made.merged else self.group.extents(left.batch)
        blocks = b.ceil_div(self.rows.count, _COPY_TILES)
        count = b.mul(flat_extent(own), blocks)
        with body.loop(count, "chunk", LoopKind.PARALLEL) as chunk:
            flat, block = _split(body, chunk, [flat_extent(own), blocks])
            first = body.let("first", b.mul(block, _COPY_TILES))
            extent = remaining(self.rows.count, first, b.index(_COPY_TILES))
            batch = tuple(body.let("batch", i) for i in unflatten(flat, own))
            with body.loop(extent, "tile") as position:
                tile = body.let("tile", b.add(first, position))

                def save(place: Expr, value: Expr) -> None:
                    body.store(target, [flat, tile, self.places(place)], value)

                self.write_left(body, batch, body.let("row", self.rows.start(tile)), save)
        return self.group.call("left", body.block(), count, "panels of the left operand")

    def write_left(
        self, body: b.Body, batch: Index, row: Expr, save: Callable[[Expr, Expr], None]
    ) -> None:
        """Pack the tile that starts at `row`."""
        left, lanes = self.made.left, self.plan.lanes
        shape = PanelShape(self.plan.height, self.depth, self.whole_steps(), lanes)
        last = b.sub(self.rows.total, 1)

        def clipped(line: Expr, p: Expr) -> Expr:
            place = b.min_(b.add(row, line), last)
            at, inner = self.made.split_row(self.group, batch, place, body)
            return self.loader(body, left, at)(inner, p)

        if runs_along_depth(left) or not runs_across_depth(left):
            write_left_panel(body, _swapped(self.in_steps(_swapped(clipped))), save, shape)
            return
        memory = self.group.captures[left.view.capture]  # type: ignore[union-attr]

        def masked(lines: Expr, p: Expr) -> Expr:
            rows = b.add(lines, b.broadcast(row, lanes))
            place = left.view.place(len(memory.shape), left.index(batch, rows, p))  # type: ignore[union-attr]
            found = b.load(memory, place, b.lt(rows, self.rows.total))
            return b.cast(found, self.made.stored)

        write_left_rows(body, _swapped(self.in_steps(_swapped(masked))), save, shape)

    def pack_right(self) -> KernelCall:
        """Pack panels of the right operand, some depth of some panels a chunk."""
        body, right = b.Body(), self.made.right
        own = self.group.extents(right.batch)
        slices, groups = b.ceil_div(self.depth, _PACK_DEPTH), b.ceil_div(self.panels, _PACK_PANELS)
        extents = [flat_extent(own), groups, slices]
        count = flat_extent(extents)
        target = self.group.workspaces[-1]
        with body.loop(count, "chunk", LoopKind.PARALLEL) as chunk:
            flat, group, part = _split(body, chunk, extents)
            batch = tuple(body.let("batch", i) for i in unflatten(flat, own))
            first = body.let("first", b.mul(part, _PACK_DEPTH))
            extent = body.let("extent", remaining(self.depth, first, b.index(_PACK_DEPTH)))
            panel = body.let("panel", b.mul(group, _PACK_PANELS))
            panels = body.let("panels", remaining(self.panels, panel, b.index(_PACK_PANELS)))

            def save(position: Expr, row: Expr, column: Expr, value: Expr) -> None:
                place = [flat, b.add(panel, position), b.add(first, row), self.places(column)]
                body.store(target, place, value)

            self.write_panels(body, _Slice(batch, panel, panels, first, extent), save)
        return self.group.call("pack", body.block(), count, "panels of the right operand")

    def write_panels(
        self, body: b.Body, part: _Slice, save: Callable[[Expr, Expr, Expr, Expr], None]
    ) -> None:
        """Pack panels; `save` writes at (panel, row, column), counted from the slice."""
        right, lanes = self.made.right, self.plan.lanes

        def load(panel: Expr) -> Load:
            start = body.let("start", b.mul(b.add(part.panel, panel), self.plan.columns))
            found = self.in_steps(self.loader(body, right, part.batch))
            return _shifted(found, part.first, start)

        if runs_along_depth(right) and not runs_across_depth(right):
            whole = self.whole_part(part)
            with body.loop(part.panels, "panel") as panel:
                width = self.width(body, b.add(part.panel, panel))
                target = functools.partial(save, panel)
                write_transposed(body, load(panel), target, part.extent, width, lanes, whole)
                with body.loop(part.extent, "p") as p:
                    self.write_padding(body, functools.partial(target, p), width)
            return
        with body.loop(part.extent, "p") as p, body.loop(part.panels, "panel") as panel:
            width = self.width(body, b.add(part.panel, panel))
            row = functools.partial(save, panel, p)
            write_row(body, functools.partial(load(panel), p), row, width, lanes)
            self.write_padding(body, row, width)

    def whole_part(self, part: _Slice) -> Expr:
        """Return how many steps of a slice a vector along depth may read."""
        if self.whole_steps() is self.depth or b.constant_value(b.rem(self.length, 2)) == 0:
            return part.extent
        return b.max_(b.min_(part.extent, b.sub(self.whole_steps(), part.first)), 0)

    def write_padding(self, body: b.Body, save: Callable[[Expr, Expr], None], width: Expr) -> None:
        """Fill the columns of a row from `width` on with zeros."""
        if b.constant_value(width) == self.plan.columns:
            return
        with body.loop(b.sub(b.index(self.plan.columns), width), "j") as j:
            save(b.add(width, j), b.const(0.0, Type(self.made.stored, self.made.unit)))

    def width(self, body: b.Body, panel: Expr) -> Expr:
        """Return how many columns a panel has."""
        columns = self.plan.columns
        known = b.constant_value(self.columns)
        if known is not None and known <= columns:
            return self.columns
        whole = b.constant_value(b.rem(self.columns, columns)) == 0
        if whole:
            return b.index(columns)
        return body.let("width", remaining(self.columns, b.mul(panel, columns), b.index(columns)))

    # --- the product -----------------------------------------------------------------------------

    def multiply(self) -> KernelCall:
        """Write the main kernel."""
        plan, body = self.plan, b.Body()
        row_blocks = b.ceil_div(self.rows.count, plan.tiles)
        column_blocks = b.ceil_div(self.panels, plan.panels)
        # Neighbours share panels: each thread mostly reads panels that it packed itself.
        extents = [flat_extent(self.batches), column_blocks, row_blocks]
        chunks = flat_extent(extents)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            flat, column_block, row_block = _split(body, chunk, extents)
            batch = tuple(body.let("batch", i) for i in unflatten(flat, self.batches))
            block = self.row_block(body, row_block)
            first = body.let("panel", b.mul(column_block, plan.panels))
            extent = remaining(self.panels, first, b.index(plan.panels))
            sums = body.alloc("sums", self.made.dtype, plan.sums, Scope.LOCAL)
            work = _Chunk(
                batch, block, first, body.let("panels", extent), sums, self.allocate_panels(body)
            )
            self.write_passes(body, work)
            if plan.holds_sums and not plan.keeps_panels:
                self.write_all_outputs(body, work)
        helpers = tuple(self.helpers.values())
        return self.group.call("", body.block(), chunks, NOTE, helpers=helpers)

    def row_block(self, body: b.Body, position: Expr) -> _RowBlock:
        """Return the tiles of a chunk."""
        first = body.let("tile", b.mul(position, self.plan.tiles))
        count = body.let("tiles", remaining(self.rows.count, first, b.index(self.plan.tiles)))
        start = body.let("row", self.rows.start(first))
        end = self.rows.start(b.add(first, count))
        return _RowBlock(first, count, start, body.let("rows", b.sub(end, start)))

    def allocate_panels(self, body: b.Body) -> Buffer | None:
        """Return local memory for one pass of all panels, where chunks pack for themselves."""
        if self.plan.source is not Source.CHUNK:
            return None
        shape = (self.plan.panels, self.plan.depth, self.made.unit * self.plan.columns)
        return body.alloc("packed", self.made.stored, shape, Scope.LOCAL)

    def write_passes(self, body: b.Body, work: _Chunk) -> None:
        """Write the passes over the inner axis: all tiles by all panels of a chunk."""
        length = self.plan.depth
        passes: Expr = b.index(1)
        if not self.plan.is_single_pass:
            passes = b.max_(b.ceil_div(self.depth, length), 1)
        with body.loop(passes, "pass") as var:
            number: Expr = b.index(0) if self.plan.is_single_pass else var
            first = body.let("first", b.mul(number, length))
            extent = self.depth
            if not self.plan.is_single_pass:
                extent = body.let("extent", remaining(self.depth, first, b.index(length)))
            if work.packed is not None:
                self.pack_panels(body, work, work.packed, first, extent)
            write = self.write_by_tiles if self.plan.keeps_panels else self.write_by_panels
            write(body, work, (number, first, extent))

    def write_by_tiles(self, body: b.Body, work: _Chunk, depth: tuple[Expr, Expr, Expr]) -> None:
        """Write a chunk tile by tile: its panels stay in the second-level cache."""
        with body.loop(work.block.count, "tile") as counter:
            tile = body.let("tile", b.add(work.block.first, counter))
            row = body.let("row", self.rows.start(tile))
            height = body.let("rows", self.rows.height_of(tile))
            inner = replace(work, block=_RowBlock(tile, b.index(1), row, height))
            self.write_by_panels(body, inner, depth)
            if self.plan.holds_sums:
                self.write_all_outputs(body, inner)

    def write_by_panels(self, body: b.Body, work: _Chunk, depth: tuple[Expr, Expr, Expr]) -> None:
        """Write one pass of a chunk, or of one of its tiles, panel by panel."""
        with body.loop(work.panels, "panel") as position:
            self.write_tiles(body, work, position, depth)
            if not self.plan.holds_sums:
                self.write_outputs(body, work, position)

    def pack_panels(
        self, body: b.Body, work: _Chunk, packed: Buffer, first: Expr, extent: Expr
    ) -> None:
        """Pack one pass of the panels of a chunk."""
        own = self.made.right.own_batch(work.batch)

        def save(position: Expr, row: Expr, column: Expr, value: Expr) -> None:
            body.store(packed, [position, row, self.places(column)], value)

        self.write_panels(body, _Slice(own, work.first, work.panels, first, extent), save)

    def write_tiles(
        self, body: b.Body, work: _Chunk, position: Expr, depth: tuple[Expr, Expr, Expr]
    ) -> None:
        """Write one pass of all tiles of a chunk by one panel."""
        block, (number, first, extent) = work.block, depth
        panel = body.let("panel", b.add(work.first, position))
        held = position if self.plan.holds_sums else b.index(0)
        with body.loop(block.count, "tile") as counter:
            tile = body.let("tile", b.add(block.first, counter))
            row = body.let("row", self.rows.start(tile))
            sums = View(work.sums, (held, b.sub(row, block.start), b.index(0)))
            packed = (
                None if work.packed is None else View(work.packed, (position, *[b.index(0)] * 2))
            )
            at = (tile, row, work.batch, panel, position)
            step = _Step(*at, first, extent, number, sums, packed)
            self.write_tile(body, step)

    def write_tile(self, body: b.Body, step: _Step) -> None:
        """Write the calls of one tile: which micro-kernel depends on its height and columns."""
        right, right_row = self.right_view(step)
        width = self.width(body, step.panel)
        known = b.constant_value(width)
        full = self.by_height(step, right, right_row, None, self.stores_sums())
        if known == self.plan.columns:
            body.add(full)
            return
        masked = width if self.plan.source is Source.PLACE else None
        part = self.by_height(step, right, right_row, masked)
        body.add(part if known is not None else If(b.eq(width, self.plan.columns), full, part))

    def stores_sums(self) -> bool:
        """Whether the sums of full panels are the result, with nothing to follow."""
        result, outputs = self.made.node.results[0], self.group.body.outputs
        return outputs == (result,) and result.dtype == self.made.dtype

    def result_view(self, step: _Step) -> View:
        """Return the tile of the result."""
        batch = step.batch
        if self.made.merged:
            batch = tuple(b.index(0) for _ in self.made.merged[:-1])
        column = b.mul(step.panel, self.plan.columns)
        return View(self.group.outputs[0], self.made.result_index(batch, step.row, column))

    def by_height(
        self,
        step: _Step,
        right: View,
        right_row: Expr,
        width: Expr | None,
        direct: bool = False,
    ) -> Block:
        """Return the call of the micro-kernel that has the height of the tile."""
        left, left_row, left_column = self.left_view(step)
        target = step.sums
        target_row: Expr = b.index(self.plan.columns)
        if direct:
            target, target_row = self.result_view(step), self.columns
        scalars: list[Expr] = [
            step.extent,
            left_row,
            left_column,
            right_row,
            target_row,
            step.number,
        ]

        def call(rows: int) -> Block:
            plan, fused = self.plan, self.group.target.fma
            masked = width is not None
            ahead = 0 if masked else plan.ahead
            size = (self.made.dtype, rows, plan.vectors, plan.lanes)
            follows = plan.follows and not masked
            # Fewer instructions a step; lower tiles are few, and not worth their compilation.
            unrolled = rows == plan.height and not (masked or ahead or follows)
            steps = MOST_STEPS if unrolled else 1
            tile = Tile(*size, fused, masked, ahead, steps, self.made.pairs, follows)
            self.helpers.setdefault(tile.name, product_kernel(tile))
            more = [] if width is None else [width]
            views = [target, left, right, *([self.view_ahead(step)] if ahead else [])]
            views += [self.following_view(step)] if follows else []
            return (call_product(tile, views, [*scalars, *more]),)

        return self.dispatch(step.tile, call)

    def dispatch(self, tile: Expr, call: Callable[[int], Block]) -> Block:
        """Choose among micro-kernels by the height of a tile: two at most for known rows."""
        height = b.constant_value(self.rows.height)
        if height is not None:
            known = max(1, int(height))
            tall, low = call(known), b.constant_value(b.sub(self.rows.count, self.rows.tall))
            if low == 0 or known == 1:
                return tall
            return (If(b.lt(tile, self.rows.tall), tall, call(known - 1)),)
        rows = self.rows.height_of(tile)
        chain: Block = call(1)
        for candidate in range(2, self.plan.rows + 1):
            chain = (If(b.eq(rows, candidate), call(candidate), chain),)
        return chain

    def left_view(self, step: _Step) -> tuple[View, Expr, Expr]:
        """Return the rows of a tile in the left operand, with strides of rows and of depth."""
        left, unit = self.made.left, self.made.unit
        if self.plan.copy_left:
            memory = self.group.workspaces[0]
            own: Expr = b.index(0)
            if not self.made.merged:
                own = _flat_batch(self.group, left, step.batch)
            height = b.index(self.plan.height * unit)
            start = b.mul(step.first, height)
            return View(memory, (own, step.tile, start)), b.index(unit), height
        memory = self.group.captures[left.view.capture]  # type: ignore[union-attr]
        batch = step.batch
        if self.made.merged:
            batch = tuple(b.index(0) for _ in left.batch)
        place = left.index(batch, step.row, b.mul(step.first, unit))
        where = left.view.place(len(memory.shape), place)  # type: ignore[union-attr]
        strides = [b.as_index(left.stride(memory, column)) for column in (False, True)]
        return View(memory, where), strides[0], b.mul(strides[1], unit)

    def view_ahead(self, step: _Step) -> View:
        """Return the rows of the left operand that the call for one panel prefetches.

        The panels of a chunk share the rows of the next tile, the last ones may take some again.
        """
        ahead = self.plan.ahead
        following = b.select(b.lt(b.add(step.tile, 1), self.rows.count), b.add(step.tile, 1), 0)
        row = b.add(self.rows.start(following), b.mul(step.position, ahead))
        return self.left_view(replace(step, row=b.min_(row, b.sub(self.rows.total, ahead))))[0]

    def following_view(self, step: _Step) -> View:
        """Return the rows of a panel of the next chunk's columns that the call for a tile takes.

        Tiles take quarters of it in turn; behind the last columns they take the last panel again.
        """
        panel = b.min_(b.add(step.panel, self.plan.panels), b.sub(self.panels, 1))
        quarter = b.rem(step.tile, MOST_STEPS)
        row = b.mul(quarter, b.div(step.extent, MOST_STEPS))
        view = self.right_view(replace(step, panel=panel))[0]
        return View(view.buffer, (panel, row, b.index(0)))

    def right_view(self, step: _Step) -> tuple[View, Expr]:
        """Return the panel in the right operand, with the stride of depth."""
        plan, right = self.plan, self.made.right
        width = b.index(plan.columns * self.made.unit)
        if step.packed is not None:
            return step.packed, width
        if plan.source is Source.SHARED:
            own = _flat_batch(self.group, right, step.batch)
            memory = self.group.workspaces[-1]
            return View(memory, (own, step.panel, step.first, b.index(0))), width
        memory = self.group.captures[right.view.capture]  # type: ignore[union-attr]
        if plan.source is Source.LAYOUT:
            return View(memory, (step.panel, step.first, b.index(0))), width
        start = b.mul(step.panel, plan.columns)
        place = right.index(step.batch, step.first, start)
        where = right.view.place(len(memory.shape), place)  # type: ignore[union-attr]
        return View(memory, where), b.as_index(right.stride(memory, False))

    def write_outputs(self, body: b.Body, work: _Chunk, position: Expr) -> None:
        """Write the epilogue of one panel of a chunk, where the sums are not the result."""
        panel = b.add(work.first, position)
        width = self.width(body, panel)
        known = b.constant_value(width)
        if self.stores_sums() and known == self.plan.columns:
            return
        held = position if self.plan.holds_sums else b.index(0)
        if self.stores_sums() and known is None:
            with body.when(b.lt(width, self.plan.columns)), self.rows_of(body, work) as row:
                self.write_row(body, work, (row, panel, width, held))
            return
        with self.rows_of(body, work) as row:
            self.write_row(body, work, (row, panel, width, held))

    def write_all_outputs(self, body: b.Body, work: _Chunk) -> None:
        """Write the epilogue of all panels of a chunk, row by row: memory is read along rows."""
        if self.stores_sums():
            with body.loop(work.panels, "panel") as position:
                self.write_outputs(body, work, position)
            return
        with self.rows_of(body, work) as row, body.loop(work.panels, "panel") as position:
            panel = body.let("panel", b.add(work.first, position))
            self.write_row(body, work, (row, panel, self.width(body, panel), position))

    def rows_of(self, body: b.Body, work: _Chunk) -> AbstractContextManager[Var]:
        """Return the loop over the rows of a chunk."""
        return body.loop(work.block.rows, "row")

    def write_row(self, body: b.Body, work: _Chunk, at: tuple[Expr, Expr, Expr, Expr]) -> None:
        """Write the epilogue of the columns of a panel in one row.

        `at` is the row, counted in the chunk, the panel, its width and where its sums are.
        """
        row, panel, width, held = at
        start = body.let("start", b.mul(panel, self.plan.columns))
        place, inner = self.made.split_row(
            self.group, work.batch, b.add(work.block.start, row), body
        )
        write_epilogue(
            self.group,
            body,
            self.made.node.results[0],
            Columns(start, width, self.plan.lanes),
            lambda column: self.made.result_index(place, inner, column),
            lambda column: b.load(work.sums, [held, row, column]),
        )


@dataclass(frozen=True, slots=True)
class _RowBlock:
    """The tiles of a chunk, and its rows."""

    first: Expr
    count: Expr
    start: Expr
    rows: Expr


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some depth of some panels of a right operand."""

    batch: Index
    panel: Expr
    panels: Expr
    first: Expr
    extent: Expr


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a chunk computes, and its local memory."""

    batch: Index
    block: _RowBlock
    first: Expr  # of its panels
    panels: Expr
    sums: Buffer
    packed: Buffer | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One tile in one pass: where it is in every axis."""

    tile: Expr
    row: Expr
    batch: Index
    panel: Expr
    position: Expr  # of the panel in its chunk
    first: Expr  # of the inner axis
    extent: Expr
    number: Expr  # of the pass
    sums: View
    packed: View | None


def _split(body: b.Body, position: Expr, extents: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(body.let("at", i) for i in unflatten(position, extents))


def _flat_batch(group: Group, matrix: Matrix, batch: Index) -> Expr:
    """Return the position of an operand's matrix among all that it has."""
    flat: Expr = b.index(0)
    for size, i in zip(matrix.batch, matrix.own_batch(batch), strict=True):
        flat = b.add(b.mul(flat, group.extent(size)), i)
    return flat


def _swapped(load: Load) -> Load:
    return lambda row, column: load(column, row)


def _shifted(load: Load, rows: Expr, columns: Expr) -> Load:
    return lambda row, column: load(b.add(rows, row), b.add(columns, column))
