"""Contraction groups: blocked matrix products with the epilogue fused.

    parallel chunk                         (batch, block of rows, block of panels)
      for panel in chunk
        [pack the panel]                   unless it is packed already, or read in place
        for pass over depth
          for tile of rows in block        balanced tiles: heights differ by one at most
            micro-kernel                   tile (+)= rows of a @ panel
        for row in block                   epilogue: vectors over the columns of the panel
          every output is computed, then stored

Before it run, where they are needed, a kernel that copies the left operand into row-major order and
one that packs the right operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Expr, If, Kernel, LoopKind, Scope, View
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu import gemm_integer, gemm_vector
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import Tile, call_product, product_kernel
from frame.codegen.schedules.cpu.gemm_operand import Matrix, element, product_of
from frame.codegen.schedules.cpu.gemm_pack import (
    Load,
    write_padding,
    write_row,
    write_transposed,
)
from frame.codegen.schedules.cpu.gemm_plan import (
    GemmPlan,
    Source,
    make_plan,
    runs_across_depth,
    runs_along_depth,
)
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import product
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph

NOTE = __doc__.split("\n\n")[1]
_COPY_ROWS = 32  # rows of the left operand, or elements of depth, that one chunk copies
_PACK_DEPTH = 256


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a contraction group."""
    made = product_of(group.body)
    if not made.dtype.is_float:
        return gemm_integer.lower(group, made)
    if gemm_vector.applies(made):
        return gemm_vector.lower(group, made)
    plan = make_plan(made, group.target)
    return _Gemm(_with_workspaces(group, plan), plan).run()


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of a copied left operand, and of a packed right one."""
    made = product_of(body)
    if not made.dtype.is_float or gemm_vector.applies(made):
        return ()
    return make_plan(made, target).workspaces()


def _with_workspaces(group: Group, plan: GemmPlan) -> Group:
    """Give the workspaces the shapes of what they hold."""
    made, shapes = plan.product, []
    if plan.copy_left:
        batch = product(made.left.batch) if not made.merged else 1
        shapes.append((batch, made.rows, plan.left_stride))
    if plan.source is Source.SHARED:
        shapes.append((product(made.right.batch), None, made.depth, plan.columns))
    memories = tuple(
        Buffer(memory.name, made.dtype, _extents(group, plan, shape), (), Scope.WORKSPACE)
        for memory, shape in zip(group.workspaces, shapes, strict=True)
    )
    captures = group.captures
    if plan.source is Source.LAYOUT and made.right.view is not None:
        position = made.right.view.capture
        shape = _extents(group, plan, (None, made.depth, plan.columns))
        panels = Buffer(captures[position].name, made.dtype, shape)
        captures = (*captures[:position], panels, *captures[position + 1 :])
    return group.with_buffers(captures=captures, workspaces=memories)


def _extents(group: Group, plan: GemmPlan, shape: Sequence[Size | None]) -> tuple[int | Expr, ...]:
    panels = b.ceil_div(group.extent(plan.product.columns), plan.columns)
    sizes = [panels if size is None else group.extent(size) for size in shape]
    return b.buffer("sizes", plan.product.dtype, sizes).shape


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
        self.depth = group.extent(self.made.depth)
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
            return b.cast(element(reader, matrix, batch, row, column), self.made.dtype)

        return load

    def copy_left(self) -> KernelCall:
        """Copy the left operand into row-major order: `for row, vector for column`."""
        left, body = self.made.left, b.Body()
        target = self.group.workspaces[0]
        own = () if self.made.merged else self.group.extents(left.batch)
        total, depth, lanes = self.rows.total, self.depth, self.plan.lanes
        blocks = b.ceil_div(total, _COPY_ROWS)
        count = b.mul(_product(own), blocks)
        with body.loop(count, "chunk", LoopKind.PARALLEL) as chunk:
            flat, block = _split(body, chunk, [_product(own), blocks])
            first = body.let("first", b.mul(block, _COPY_ROWS))
            extent = body.let("extent", remaining(total, first, b.index(_COPY_ROWS)))
            batch = tuple(body.let("batch", i) for i in unflatten(flat, own))

            def save(row: Expr, column: Expr, value: Expr) -> None:
                body.store(target, [flat, b.add(first, row), column], value)

            if runs_across_depth(left) and not runs_along_depth(left):
                load = self.loader(body, left, batch)
                shifted = _shifted(load, first, b.index(0))
                write_transposed(body, shifted, save, extent, depth, lanes)
            else:
                with body.loop(extent, "row") as row:
                    place, inner = self.made.split_row(self.group, batch, b.add(first, row), body)
                    load = self.loader(body, left, place)
                    write_row(body, _fixed_row(load, inner), save, row, depth, lanes)
        return self.group.call("left", body.block(), count, "rows of the left operand, in order")

    def pack_right(self) -> KernelCall:
        """Pack panels of the right operand, some depth of some panels a chunk."""
        body, right = b.Body(), self.made.right
        own = self.group.extents(right.batch)
        slices = b.ceil_div(self.depth, _PACK_DEPTH)
        extents = [_product(own), self.panels, slices]
        count = _product(extents)
        target = self.group.workspaces[-1]
        with body.loop(count, "chunk", LoopKind.PARALLEL) as chunk:
            flat, panel, part = _split(body, chunk, extents)
            batch = tuple(body.let("batch", i) for i in unflatten(flat, own))
            first = body.let("first", b.mul(part, _PACK_DEPTH))
            extent = body.let("extent", remaining(self.depth, first, b.index(_PACK_DEPTH)))
            self.write_panel(body, target, (flat, panel), batch, panel, first, extent, first)
        return self.group.call("pack", body.block(), count, "panels of the right operand")

    def write_panel(
        self,
        body: b.Body,
        target: Buffer,
        prefix: Index,
        batch: Index,
        panel: Expr,
        first: Expr,
        extent: Expr,
        offset: Expr,
    ) -> None:
        """Pack rows `first` .. of a panel into rows `offset` .. of `target`."""
        start = body.let("start", b.mul(panel, self.plan.columns))
        width = self.width(body, panel)
        load = _shifted(self.loader(body, self.made.right, batch), first, start)
        right, lanes = self.made.right, self.plan.lanes

        def save(row: Expr, column: Expr, value: Expr) -> None:
            body.store(target, [*prefix, b.add(offset, row), column], value)

        if runs_along_depth(right) and not runs_across_depth(right):
            write_transposed(body, load, save, extent, width, lanes)
            with body.loop(extent, "p") as p:
                write_padding(body, target, (*prefix, b.add(offset, p)), width)
            return
        with body.loop(extent, "p") as p:
            write_row(body, _fixed_row(load, p), lambda r, c, v: save(p, c, v), p, width, lanes)
            write_padding(body, target, (*prefix, b.add(offset, p)), width)

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
        extents = [_product(self.batches), row_blocks, column_blocks]
        chunks = _product(extents)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            flat, row_block, column_block = _split(body, chunk, extents)
            batch = tuple(body.let("batch", i) for i in unflatten(flat, self.batches))
            block = self.row_block(body, row_block)
            first = body.let("panel", b.mul(column_block, plan.panels))
            extent = remaining(self.panels, first, b.index(plan.panels))
            sums = body.alloc(
                "sums", self.made.dtype, (plan.tiles * plan.rows, plan.columns), Scope.LOCAL
            )
            packed = self.allocate_panel(body)
            with body.loop(extent, "panel") as position:
                panel = body.let("panel", b.add(first, position))
                self.write_passes(body, block, batch, panel, sums, packed)
                self.write_outputs(body, block, batch, panel, sums)
        helpers = tuple(self.helpers.values())
        return self.group.call("", body.block(), chunks, NOTE, helpers=helpers)

    def row_block(self, body: b.Body, position: Expr) -> _RowBlock:
        """Return the tiles of a chunk."""
        first = body.let("tile", b.mul(position, self.plan.tiles))
        count = body.let("tiles", remaining(self.rows.count, first, b.index(self.plan.tiles)))
        start = body.let("row", self.rows.start(first))
        end = self.rows.start(b.add(first, count))
        return _RowBlock(first, count, start, body.let("rows", b.sub(end, start)))

    def allocate_panel(self, body: b.Body) -> Buffer | None:
        """Return local memory for one pass of a panel, where chunks pack for themselves."""
        if self.plan.source is not Source.CHUNK:
            return None
        shape = (self.plan.depth, self.plan.columns)
        return body.alloc("packed", self.made.dtype, shape, Scope.LOCAL)

    def write_passes(
        self,
        body: b.Body,
        block: _RowBlock,
        batch: Index,
        panel: Expr,
        sums: Buffer,
        packed: Buffer | None,
    ) -> None:
        """Write the passes over the inner axis: all tiles of a block by one panel."""
        length = self.plan.depth
        passes = b.max_(b.ceil_div(self.depth, length), 1)
        single = b.constant_value(passes) == 1
        with body.loop(passes, "pass") as number:
            number = b.index(0) if single else number
            first = body.let("first", b.mul(number, length))
            extent = body.let("extent", remaining(self.depth, first, b.index(length)))
            if packed is not None:
                own = _aligned_batch(self.made.right, batch)
                self.write_panel(body, packed, (), own, panel, first, extent, b.index(0))
            with body.loop(block.count, "tile") as tile:
                position = body.let("tile", b.add(block.first, tile))
                row = body.let("row", self.rows.start(position))
                self.write_tile(
                    body,
                    _Step(
                        position, row, b.sub(row, block.start), batch, panel, first, extent, number
                    ),
                    sums,
                    packed,
                )

    def write_tile(self, body: b.Body, step: _Step, sums: Buffer, packed: Buffer | None) -> None:
        """Write the calls of one tile: which micro-kernel depends on its height and columns."""
        right, right_row = self.right_view(step, packed)
        edge = self.plan.source is Source.PLACE and not self.is_whole()
        if not edge:
            body.add(self.by_height(step, sums, right, right_row, None))
            return
        width = self.width(body, step.panel)
        full = self.by_height(step, sums, right, right_row, None)
        part = self.by_height(step, sums, right, right_row, width)
        whole = b.eq(width, self.plan.columns)
        constant = b.constant_value(b.lt(self.columns, self.plan.columns))
        body.add(part if constant else If(whole, full, part))

    def is_whole(self) -> bool:
        """Whether every panel has all its columns."""
        return b.constant_value(b.rem(self.columns, self.plan.columns)) == 0

    def by_height(
        self, step: _Step, sums: Buffer, right: View, right_row: Expr, width: Expr | None
    ) -> Block:
        """Return the call of the micro-kernel that has the height of the tile."""
        left, left_row, left_column = self.left_view(step)
        target = View(sums, (step.offset, b.index(0)))
        scalars: list[Expr] = [
            step.extent,
            left_row,
            left_column,
            right_row,
            b.index(self.plan.columns),
            step.number,
        ]

        def call(rows: int) -> Block:
            plan, fused = self.plan, self.group.target.fma
            tile = Tile(self.made.dtype, rows, plan.vectors, plan.lanes, fused, width is not None)
            self.helpers.setdefault(tile.name, product_kernel(tile))
            more = [] if width is None else [width]
            return (call_product(tile, target, left, right, [*scalars, *more]),)

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
        left = self.made.left
        if self.plan.copy_left:
            memory = self.group.workspaces[0]
            own = b.index(0)
            if not self.made.merged:
                own = _flat_batch(self.group, left, step.batch)
            stride = b.as_index(b.strides_of(memory)[1])
            return View(memory, (own, step.row, step.first)), stride, b.index(1)
        memory = self.group.captures[left.view.capture]  # type: ignore[union-attr]
        batch = step.batch
        if self.made.merged:
            batch = tuple(b.index(0) for _ in left.batch)
        place = left.index(batch, step.row, step.first)
        where = left.view.place(len(memory.shape), place)  # type: ignore[union-attr]
        strides = [b.as_index(left.stride(memory, column)) for column in (False, True)]
        return View(memory, where), strides[0], strides[1]

    def right_view(self, step: _Step, packed: Buffer | None) -> tuple[View, Expr]:
        """Return the panel in the right operand, with the stride of depth."""
        plan, right = self.plan, self.made.right
        width = b.index(plan.columns)
        if packed is not None:
            return View(packed), width
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

    def write_outputs(
        self, body: b.Body, block: _RowBlock, batch: Index, panel: Expr, sums: Buffer
    ) -> None:
        """Write the epilogue of a block of rows and a panel."""
        start = b.mul(panel, self.plan.columns)
        width = self.width(body, panel)
        with body.loop(block.rows, "row") as row:
            place, inner = self.made.split_row(self.group, batch, b.add(block.start, row), body)
            write_epilogue(
                self.group,
                body,
                self.made.node.results[0],
                Columns(start, width, self.plan.lanes),
                lambda column: self.made.result_index(place, inner, column),
                lambda column: b.load(sums, [row, column]),
            )


@dataclass(frozen=True, slots=True)
class _RowBlock:
    """The tiles of a chunk, and its rows."""

    first: Expr
    count: Expr
    start: Expr
    rows: Expr


@dataclass(frozen=True, slots=True)
class _Step:
    """One tile in one pass: where it is in every axis."""

    tile: Expr
    row: Expr
    offset: Expr  # of the row in the block
    batch: Index
    panel: Expr
    first: Expr  # of the inner axis
    extent: Expr
    number: Expr  # of the pass


def _split(body: b.Body, position: Expr, extents: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(body.let("at", i) for i in unflatten(position, extents))


def _product(extents: Sequence[Expr]) -> Expr:
    total: Expr = b.index(1)
    for extent in extents:
        total = b.mul(total, extent)
    return total


def _aligned_batch(matrix: Matrix, batch: Index) -> Index:
    """Return the batch index of an operand for one of the result."""
    tail = batch[len(batch) - len(matrix.batch) :]
    return tuple(b.index(0) if size == 1 else i for size, i in zip(matrix.batch, tail, strict=True))


def _flat_batch(group: Group, matrix: Matrix, batch: Index) -> Expr:
    """Return the position of an operand's matrix among all that it has."""
    flat: Expr = b.index(0)
    for size, i in zip(matrix.batch, _aligned_batch(matrix, batch), strict=True):
        flat = b.add(b.mul(flat, group.extent(size)), i)
    return flat


def _shifted(load: Load, rows: Expr, columns: Expr) -> Load:
    return lambda row, column: load(b.add(rows, row), b.add(columns, column))


def _fixed_row(load: Load, row: Expr) -> Load:
    return lambda _, column: load(row, column)
