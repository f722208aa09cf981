"""Gradients of convolutions by their weights: products over pixels.

    parallel chunk                        (part of the pixels, block of channels)
      for block of pixels                 some images, or some rows of one
        copy of the rows of x             local, padded; columns split by the stride
        left:  for channel, for point     its pixels, in a row
        for panel of outputs
          right: pixels of the panel      transposed: a row a pixel
          for tile of rows                micro-kernel: sums += left @ right
    parallel chunk                        (block of channels, block of outputs)
      strip: sums of all parts            transposed: a row an output
      for output                          epilogue: vectors along its weights

A row of the left operand is a pair (channel, point of the window). Each pixel of x is copied once
for every point, which is little beside its products with all outputs; pixels of the cotangent are
transposed once for every block of channels. Sums are added up in the order of the pixels within a
part, then part by part. How many parts there are, and where blocks end, follows from shapes and the
target's second cache, never from threads: one artefact gives the same bits on any number of them,
one made for a machine with another cache may not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope, View
from frame.codegen.schedules.access import AxisPart, Reader
from frame.codegen.schedules.cpu import conv_filter_plain
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import DealtRows, reached, wide
from frame.codegen.schedules.cpu.conv_filter_plan import FilterPlan, anchor_of, make_plan
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import MOST_STEPS, Tile, call_product, product_kernel
from frame.codegen.schedules.cpu.gemm_pack import write_transposed
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

_PLAIN = ("constant", "expand")
_FEW_PIECES = 16  # of a row, which are copied without a loop
NOTE = __doc__.split("\n\n")[1]


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a gradient by weights: the sums, and what follows them."""
    plan = make_plan(group.body, group.target)
    if plan is None:
        return (conv_filter_plain.lower(group),)
    memory = group.workspaces[0]
    sums = Buffer(memory.name, plan.dtype, plan.sums, (), Scope.WORKSPACE)
    group = group.with_buffers(workspaces=(sums,))
    return _Sums(group, plan).write(), _Results(group, plan).write()


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the sums."""
    plan = make_plan(body, target)
    return () if plan is None else (math.prod(plan.sums) * plan.dtype.itemsize,)


class _Place:
    """A block of pixels: its first image and how many, its first row and how many."""

    def __init__(self, plan: FilterPlan, body: b.Body, block: Expr, batch: Expr) -> None:
        number, band = unflatten(block, [b.index(1), b.index(plan.bands)])
        self.image = body.let("image", b.mul(number, plan.images))
        self.images = body.let("images", remaining(batch, self.image, b.index(plan.images)))
        self.row = body.let("row", b.mul(band, plan.rows))
        rows = remaining(b.index(plan.height.positions), self.row, b.index(plan.rows))
        self.rows = body.let("rows", rows)
        self.pixels = body.let("pixels", b.mul(self.rows, plan.width.positions))
        self.depth = body.let("depth", b.mul(self.images, self.pixels))


class _Sums:
    """Writes the kernel of the products."""

    def __init__(self, group: Group, plan: FilterPlan) -> None:
        self.plan = plan
        self.x, self.cotangent = anchor_of(group.body).operands
        self.batch = group.extent(self.x.shape[0])
        self.in_planes = _is_read_alone(group.body)
        self.group = self.with_planes(group) if self.in_planes else group
        self.tile = Tile(
            plan.dtype,
            plan.tile,
            plan.vectors,
            plan.lanes,
            group.target.fma,
            steps=MOST_STEPS,
        )

    def with_planes(self, group: Group) -> Group:
        """Give a cotangent in memory one dimension for the rows and columns of its images."""
        position = group.body.input_values.index(self.cotangent)
        memory, plan = group.captures[position], self.plan
        area = plan.height.positions * plan.width.positions
        shape = b.buffer("shape", memory.dtype, (self.batch, plan.outputs, area)).shape
        planes = Buffer(memory.name, memory.dtype, shape)
        captures = (*group.captures[:position], planes, *group.captures[position + 1 :])
        return group.with_buffers(captures=captures)

    def write(self) -> KernelCall:
        """Return the call of the kernel."""
        plan, body = self.plan, b.Body()
        extents = [b.index(plan.parts), b.index(plan.blocks)]
        chunks = b.index(plan.parts * plan.blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            part, block = (body.let("at", i) for i in unflatten(chunk, extents))
            channel = body.let("channel", b.mul(block, plan.channels))
            channels = remaining(b.index(plan.all_channels), channel, b.index(plan.channels))
            channels = body.let("channels", channels)
            local = _Local(plan, body)
            self.clear(body, local, (part, block))
            blocks = b.mul(b.ceil_div(self.batch, plan.images), plan.bands)
            share = b.ceil_div(blocks, plan.parts)
            first = body.let("first", b.mul(part, share))
            with body.loop(b.max_(remaining(blocks, first, share), 0), "pixels") as number:
                place = _Place(plan, body, body.let("block", b.add(first, number)), self.batch)
                self.copy_planes(body, local, place, (channel, channels))
                self.write_left(body, local, place, channels)
                self.write_products(body, local, place, (part, block, channels))
        kernel = product_kernel(self.tile)
        return self.group.call("sums", body.block(), chunks, NOTE, helpers=(kernel,))

    def clear(self, body: b.Body, local: _Local, at: tuple[Expr, Expr]) -> None:
        """Write zeros: the sums, the columns around images, and the rows that fill up a tile."""
        plan, sums = self.plan, self.group.workspaces[0]
        zero = b.const(0.0, plan.dtype)
        with body.loop(plan.padded_rows, "row") as row:
            with body.loop(plan.sums[3] // plan.lanes, "v") as v:
                body.store(sums, [*at, row, b.ramp(b.mul(v, plan.lanes), plan.lanes)], zero)
            with body.loop(plan.left[1] // plan.lanes, "v") as v:
                body.store(local.left, [row, b.ramp(b.mul(v, plan.lanes), plan.lanes)], zero)
        with (
            body.loop(plan.channels, "c") as channel,
            body.loop(plan.images, "n") as image,
            body.loop(plan.reach, "row") as row,
        ):
            self.clear_row(body, local, (channel, image, row))

    def clear_row(self, body: b.Body, local: _Local, at: Index) -> None:
        """Write zeros in the place of a row of x."""
        plan, zero = self.plan, b.const(0.0, self.plan.dtype)
        with (
            body.loop(plan.phases, "phase") as phase,
            body.loop(plan.line // plan.piece, "v") as v,
        ):
            body.store(local.planes, [*at, phase, b.ramp(b.mul(v, plan.piece), plan.piece)], zero)

    def copy_planes(
        self, body: b.Body, local: _Local, place: _Place, channels: tuple[Expr, Expr]
    ) -> None:
        """Copy the rows of x that a block of pixels reaches."""
        plan, height = self.plan, self.plan.height
        top = body.let("top", b.sub(b.mul(place.row, height.stride), height.low))
        with (
            body.loop(channels[1], "c") as c,
            body.loop(place.images, "n") as n,
            body.loop(plan.reach, "row") as row,
        ):
            source = body.let("source", b.add(top, row))
            index = (b.add(place.image, n), b.add(channels[0], c), source)
            if height.is_plain() and height.positions % plan.rows == 0:
                self.copy_row(body, local, (c, n, row), index)
                return
            with body.when(b.and_(b.ge(source, 0), b.lt(source, height.size))):
                self.copy_row(body, local, (c, n, row), index)
            with body.otherwise():
                self.clear_row(body, local, (c, n, row))

    def copy_row(self, body: b.Body, local: _Local, to: Index, index: Index) -> None:
        """Copy a row of x."""
        plan = self.plan
        first, last = reached(plan.width, plan.phases * plan.line)
        low, planes = plan.width.low, local.planes
        rows = DealtRows(self.group, self.x, planes, plan.phases, low, plan.lanes)
        rows.copy(body, to, index, first, last)

    def write_left(self, body: b.Body, local: _Local, place: _Place, channels: Expr) -> None:
        """Copy the pixels of each channel at each point of the window into a row."""
        plan, width, piece = self.plan, self.plan.width, self.plan.piece
        with (
            body.loop(channels, "c") as c,
            body.loop(plan.height.window, "ky") as ky,
            body.loop(width.window, "kx") as kx,
        ):
            row = b.add(b.mul(b.add(b.mul(c, plan.height.window), ky), width.window), kx)
            row = body.let("row", row)
            moved = b.mul(kx, width.dilation)
            phase = body.let("phase", b.rem(moved, plan.phases))
            shift = body.let("shift", b.div(moved, plan.phases))
            with body.loop(place.images, "n") as n, body.loop(place.rows, "y") as y:
                step = b.mul(y, plan.height.stride)
                line = body.let("line", b.add(step, b.mul(ky, plan.height.dilation)))
                start = b.add(b.mul(n, place.pixels), b.mul(y, width.positions))
                start = body.let("start", start)
                for column in self.pieces(body):
                    source = b.ramp(b.add(shift, column), piece)
                    value = b.load(local.planes, [c, n, line, phase, source])
                    body.store(local.left, [row, b.ramp(b.add(start, column), piece)], value)

    def pieces(self, body: b.Body) -> Iterator[Expr]:
        """Yield the first column of each piece of a row: few one by one, many in a loop."""
        piece = self.plan.piece
        count = -(-self.plan.width.positions // piece)
        if count <= _FEW_PIECES:
            yield from (b.index(v * piece) for v in range(count))
            return
        with body.loop(count, "v") as v:
            yield body.let("column", b.mul(v, piece))

    def write_products(
        self, body: b.Body, local: _Local, place: _Place, at: tuple[Expr, Expr, Expr]
    ) -> None:
        """Write the products of a block of pixels with all panels of outputs."""
        plan, sums = self.plan, self.group.workspaces[0]
        part, block, channels = at
        rows = b.mul(channels, plan.points)
        tiles = body.let("tiles", b.ceil_div(rows, plan.tile))
        scalars = (
            place.depth,
            b.index(plan.left[1]),
            b.index(1),
            b.index(plan.columns),
            b.index(plan.sums[3]),
            b.index(1),
        )
        zero = b.index(0)
        with body.loop(plan.panels, "panel") as panel:
            output = body.let("output", b.mul(panel, plan.columns))
            self.write_right(body, local, place, output)
            with body.loop(tiles, "tile") as tile:
                row = body.let("row", b.mul(tile, plan.tile))
                views = (
                    View(sums, (part, block, row, output)),
                    View(local.left, (row, zero)),
                    View(local.right, (zero, zero)),
                )
                body.add(call_product(self.tile, views, scalars))

    def write_right(self, body: b.Body, local: _Local, place: _Place, output: Expr) -> None:
        """Write the pixels of a panel of outputs, a row a pixel; outputs beyond the last repeat."""
        plan = self.plan
        first = body.let("pixel", b.mul(place.row, plan.width.positions))
        with body.loop(place.images, "n") as n:
            image = body.let("image", b.add(place.image, n))
            start = body.let("start", b.mul(n, place.pixels))

            def load(pixel: Expr, column: Expr) -> Expr:
                channel = b.min_(b.add(output, column), plan.outputs - 1)
                at = b.add(pixel, b.broadcast(first, pixel.type.lanes))
                return b.cast(self.pixels(body, image, channel, at), plan.dtype)

            def save(pixel: Expr, column: Expr, value: Expr) -> None:
                body.store(local.right, [b.add(start, pixel), column], value)

            columns = b.index(plan.columns)
            write_transposed(body, load, save, place.pixels, columns, plan.lanes)

    def pixels(self, body: b.Body, image: Expr, channel: Expr, place: Expr) -> Expr:
        """Return elements of the cotangent, which may be spread from fewer, by their places."""
        if self.in_planes:
            position = self.group.body.input_values.index(self.cotangent)
            return b.load(self.group.captures[position], [image, channel, place])
        width = self.plan.width.positions
        index = (image, channel, b.div(place, width), b.rem(place, width))
        return wide(Reader(self.group, body).load(self.cotangent, index), place.type.lanes)


class _Local:
    """The local memory of a chunk: pixels of x, and both operands of a product."""

    def __init__(self, plan: FilterPlan, body: b.Body) -> None:
        self.planes = body.alloc("planes", plan.dtype, plan.planes, Scope.LOCAL)
        self.left = body.alloc("left", plan.dtype, plan.left, Scope.LOCAL)
        self.right = body.alloc("right", plan.dtype, plan.right, Scope.LOCAL)


class _Results:
    """Writes the kernel of what follows the sums."""

    def __init__(self, group: Group, plan: FilterPlan) -> None:
        self.plan, self.node = plan, anchor_of(group.body)
        self.in_order = _reads_in_order(group.body)
        self.group = self.with_rows(group) if self.in_order else group

    def with_rows(self, group: Group) -> Group:
        """Give all captures and outputs one dimension for the weights of an output."""

        def rows(memory: Buffer, value: Value) -> Buffer:
            shape = [static(size, 0) for size in (1,) * (4 - len(value.shape)) + value.shape]
            kept = tuple(size for size in (shape[0], math.prod(shape[1:])) if size != 1)
            return Buffer(memory.name, memory.dtype, kept, (), memory.scope)

        operands = self.node.operands
        captures = zip(group.captures, group.body.input_values, strict=True)
        outputs = zip(group.outputs, group.body.outputs, strict=True)
        return group.with_buffers(
            captures=tuple(m if v in operands else rows(m, v) for m, v in captures),
            outputs=tuple(rows(*pair) for pair in outputs),
        )

    def write(self) -> KernelCall:
        """Return the call of the kernel."""
        plan, body = self.plan, b.Body()
        strips = -(-plan.outputs // plan.columns)
        extents = [b.index(plan.blocks), b.index(strips)]
        chunks = b.index(plan.blocks * strips)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            block, strip = (body.let("at", i) for i in unflatten(chunk, extents))
            output = body.let("output", b.mul(strip, plan.columns))
            channel = body.let("channel", b.mul(block, plan.channels))
            channels = remaining(b.index(plan.all_channels), channel, b.index(plan.channels))
            count = body.let("count", b.mul(channels, plan.points))
            rows = body.alloc("strip", plan.dtype, plan.strip, Scope.LOCAL)
            self.write_strip(body, rows, (block, output), count)
            first = body.let("first", b.mul(channel, plan.points))
            outputs = remaining(b.index(plan.outputs), output, b.index(plan.columns))
            with body.loop(outputs, "o") as o:
                self.write_row(body, (rows, o), b.add(output, o), (first, count))
        return self.group.call("results", body.block(), chunks, "the sums of all parts, turned")

    def write_strip(self, body: b.Body, strip: Buffer, at: tuple[Expr, Expr], count: Expr) -> None:
        """Write the sums of a panel of outputs over all parts, a row an output."""
        plan, sums = self.plan, self.group.workspaces[0]
        block, output = at

        def load(place: Expr, row: Expr) -> Expr:
            where = b.add(place, b.broadcast(output, place.type.lanes))
            total = b.load(sums, [b.index(0), block, row, where])
            if plan.parts == 1:
                return total
            with body.fold(plan.parts - 1, [body.let("s", total)], "part") as parts:
                more = b.load(sums, [b.add(parts.index, 1), block, row, where])
                parts.next = [b.add(parts.values[0], more)]
            return parts.results[0]

        def save(place: Expr, row: Expr, value: Expr) -> None:
            body.store(strip, [place, row], value)

        write_transposed(body, load, save, b.index(plan.columns), count, plan.lanes)

    def write_row(
        self,
        body: b.Body,
        sums: tuple[Buffer, Expr],
        output: Expr,
        run: tuple[Expr, Expr],
    ) -> None:
        """Write the epilogue of the weights of one output, in a block of channels."""
        strip, row = sums
        output = body.let("output", output)
        index = self.in_row if self.in_order else self.apart
        single = self.plan.all_channels * self.plan.points == 1
        write_epilogue(
            self.group,
            body,
            self.node.results[0],
            Columns(run[0], run[1], 1 if single else self.plan.lanes),
            lambda j: index(output, j),
            lambda j: b.load(strip, [row, j]),
        )

    def in_row(self, output: Expr, place: Expr) -> Index:
        """Return the index of a weight, for buffers with one dimension for those of an output."""
        sizes, found = self.node.results[0].shape[1:], list[Expr]()
        count = sum(size != 1 for size in sizes)
        for size in sizes:
            position = sum(isinstance(i, AxisPart) for i in found)
            part = AxisPart("part", run=place, position=position, count=count)
            found.append(b.index(0) if size == 1 else part)
        return (output, *found)

    def apart(self, output: Expr, place: Expr) -> Index:
        """Return the index of a weight by the row-major place among those of an output."""
        return (output, *unflatten(place, self.group.extents(self.node.results[0].shape[1:])))


def _is_read_alone(body: Graph) -> bool:
    """Whether the cotangent is a capture that nothing else reads, such as x, or a view for x."""
    cotangent = anchor_of(body).operands[1]
    uses = [value for node in body.nodes for value in node.operands if value is cotangent]
    return cotangent.node is None and len(uses) == 1


def _reads_in_order(body: Graph) -> bool:
    """Whether all that follows walks the weights of an output in order, or is the same for all."""
    node = anchor_of(body)
    shape = node.results[0].shape
    values = (*body.outputs, *(v for n in body.nodes if n is not node for v in n.operands))
    if any(v in node.operands for v in values):
        return False
    plain = (n.op in _PLAIN or Trait.ELEMENTWISE in lookup(n.op).traits for n in body.nodes)
    fits = (_is_in_order(value.shape, shape) for value in values)
    return all(fits) and sum(plain) == len(body.nodes) - 1


def _is_in_order(shape: Shape, whole: Shape) -> bool:
    padded = (1,) * (len(whole) - len(shape)) + shape
    return padded[1:] == whole[1:] or all(size == 1 for size in padded[1:])
