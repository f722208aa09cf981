"""Direct convolution for windows of few elements: depthwise ones, and images of few channels.

    parallel chunk                        (image, block of groups, band of output rows)
      zeros                               around what the windows of the band reach
      for group in block
        copy the band of x                local, padded; columns split by the stride
        for tile of outputs, for tile of rows, for vector of columns
          for channel                     accumulators: outputs x rows, one vector each
            for point of window           unrolled
              accumulator[o, y] += weight[o] * vector of row y
          epilogue                        from registers; a row ends in shorter vectors

There are too few multiply-adds in an output to pay for a table of offsets, for sums that wait in
memory, or for a padded copy of the whole of x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope, Type
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_copies import DealtRows, reached
from frame.codegen.schedules.cpu.conv_plan import (
    ConvPlan,
    Extent,
    factor_at_most,
    images_in_order,
)
from frame.codegen.schedules.cpu.gemm_epilogue import finish_outputs, write_outputs
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.targets import TargetDescription

NOTE = __doc__.split("\n\n")[1]
_MOST_POINTS = 25  # of a window: its multiply-adds are unrolled
_MOST_CHANNELS, _MOST_OUTPUTS = 4, 4  # of a group
_LEAST_COLUMNS = 4
_CHUNK = 1 << 18  # operations


Weights = dict[tuple[int, int, int], Expr]
"""The weight at (output of the tile, row, column of the window), in every lane."""


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """A tile is `outputs` x `rows` vectors; a chunk `groups` groups by `band` output rows."""

    conv: ConvPlan
    outputs: int
    rows: int
    band: int
    groups: int

    @property
    def lanes(self) -> int:
        """The lanes of a vector: a whole one, or a power of two that covers a row."""
        return self.conv.piece

    @property
    def columns(self) -> int:
        """Columns of one phase of a local row."""
        return _columns(self.conv)

    @property
    def reach(self) -> int:
        """Rows of x, padding included, that a band reaches."""
        return _reach(self.conv.height, self.band)

    @property
    def bands(self) -> int:
        """Bands of an image."""
        return -(-self.conv.height.positions // self.band)


def _columns(conv: ConvPlan) -> int:
    width = conv.width
    shift = (width.window - 1) * width.dilation // width.stride
    vectors = -(-width.positions // conv.piece)
    return -(-(vectors * conv.piece + shift) // conv.piece) * conv.piece


def _reach(height: Extent, rows: int) -> int:
    return (rows - 1) * height.stride + (height.window - 1) * height.dilation + 1


def make_direct(conv: ConvPlan, target: TargetDescription) -> DirectPlan | None:
    """Return the plan of a direct convolution, None where another schedule is better."""
    if not _is_direct(conv):
        return None
    outputs = factor_at_most(conv.outputs, _MOST_OUTPUTS)
    wanted = 4 if outputs == 1 else max(1, target.fma_latency * target.fma_units // outputs)
    rows = _rows(conv.height.positions, min(wanted, conv.height.positions))
    band = _band(conv, rows, target)
    work = 2 * conv.outputs * band * conv.width.positions * static(conv.weight_row, 0)
    blocks = -(-conv.groups // max(1, _CHUNK // max(1, work)))
    if config.get("FRAME_GRAIN"):
        blocks = conv.groups
    return DirectPlan(conv, outputs, rows, band, -(-conv.groups // blocks))


def _is_direct(conv: ConvPlan) -> bool:
    height, width = conv.height, conv.width
    return (
        not conv.along_window
        and max(height.spread, width.spread) == 1
        and 2 <= height.window * width.window <= _MOST_POINTS
        and width.positions >= _LEAST_COLUMNS
        and isinstance(conv.channels, int)
        and conv.channels <= _MOST_CHANNELS
    )


def _rows(positions: int, most: int) -> int:
    """Return the rows of a tile: a divisor of all rows if one is near."""
    return next((n for n in range(most, most // 2, -1) if positions % n == 0), most)


def _band(conv: ConvPlan, rows: int, target: TargetDescription) -> int:
    """Return how many output rows, a multiple of those of a tile, have their x in half of L1."""
    line = conv.width.stride * _columns(conv) * static(conv.channels, 0) * conv.dtype.itemsize
    most = -(-conv.height.positions // rows) * rows
    band = rows
    while band + rows <= most and _reach(conv.height, band + rows) * line <= target.l1 // 2:
        band += rows
    if config.get("FRAME_GRAIN"):
        return rows
    bands = -(-most // band)
    return -(-most // (bands * rows)) * rows


def lower(group: Group, plan: DirectPlan) -> KernelCall:
    """Return the one kernel of a direct convolution."""
    return _Direct(group, plan).write()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a band lies: its image, its group, and its first output row and the number of them."""

    image: Expr
    group: Expr
    first: Expr
    rows: Expr


class _Direct:
    """Writes the kernel."""

    def __init__(self, group: Group, plan: DirectPlan) -> None:
        self.group, self.plan, self.conv = group, plan, plan.conv
        self.channels = static(plan.conv.channels, 0)
        self.phases = plan.conv.width.stride
        self.reads_images = images_in_order(group.body, False) != set()

    def write(self) -> KernelCall:
        """Return the call of the kernel."""
        plan, conv, body = self.plan, self.conv, b.Body()
        blocks = -(-conv.groups // plan.groups)
        extents = [self.group.extent(conv.batch), b.index(blocks), b.index(plan.bands)]
        chunks = b.mul(extents[0], blocks * plan.bands)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            image, block, band = (body.let("at", i) for i in unflatten(chunk, extents))
            shape = (self.channels, plan.reach, self.phases, plan.columns)
            local = body.alloc("local", conv.dtype, shape, Scope.LOCAL)
            self.clear(body, local)
            start = body.let("group", b.mul(block, plan.groups))
            first = body.let("first", b.mul(band, plan.band))
            rows = remaining(b.index(conv.height.positions), first, b.index(plan.band))
            rows = body.let("rows", rows)
            groups = remaining(b.index(conv.groups), start, b.index(plan.groups))
            with body.loop(groups, "group") as number:
                place = _Place(image, body.let("group", b.add(start, number)), first, rows)
                self.copy(body, local, place)
                self.write_tiles(body, local, place)
        return self.group.call(conv.name, body.block(), chunks, NOTE)

    def clear(self, body: b.Body, local: Buffer) -> None:
        """Write zeros, which stay around all bands of a chunk."""
        lanes = self.plan.lanes
        with (
            body.loop(self.channels, "c") as channel,
            body.loop(self.plan.reach, "row") as row,
            body.loop(self.phases, "phase") as phase,
            body.loop(self.plan.columns // lanes, "v") as v,
        ):
            at = [channel, row, phase, b.ramp(b.mul(v, lanes), lanes)]
            body.store(local, at, b.const(0.0, self.conv.dtype))

    def copy(self, body: b.Body, local: Buffer, place: _Place) -> None:
        """Copy the rows of x that the band reaches."""
        height, width = self.conv.height, self.conv.width
        channels = b.mul(place.group, self.channels)
        top = body.let("top", b.sub(b.mul(place.first, height.stride), height.low))
        with (
            body.loop(self.channels, "c") as c,
            body.loop(self.plan.reach, "row") as row,
        ):
            source = body.let("source", b.add(top, row))
            channel = body.let("channel", b.add(channels, c))
            with body.when(b.and_(b.ge(source, 0), b.lt(source, height.size))):
                first, last = reached(width, self.phases * self.plan.columns)
                x, lanes = self.conv.node.operands[0], self.plan.lanes
                rows = DealtRows(self.group, x, local, self.phases, width.low, lanes)
                rows.copy(body, (c, row), (place.image, channel, source), first, last)

    def write_tiles(self, body: b.Body, local: Buffer, place: _Place) -> None:
        """Write the loops over the tiles of a band."""
        plan, conv = self.plan, self.conv
        with body.loop(conv.outputs // plan.outputs, "tile") as tile:
            first = b.add(b.mul(place.group, conv.outputs), b.mul(tile, plan.outputs))
            channel = body.let("channel", first)
            # Of one channel they stay; of several, each channel loads its own.
            one = self.channels == 1
            weights = self.weights(body, channel, b.index(0)) if one else None
            full = body.let("full", b.div(place.rows, plan.rows))
            with body.loop(full, "rows") as number:
                row = body.let("row", b.mul(number, plan.rows))
                self.write_line(body, local, place, (channel, row), plan.rows, weights)
            rest = conv.height.positions % plan.rows
            if rest:
                # Only the last band has them.
                done = b.mul(full, plan.rows)
                with body.loop(b.div(b.sub(place.rows, done), rest), "rest"):
                    self.write_line(body, local, place, (channel, done), rest, weights)

    def write_line(
        self,
        body: b.Body,
        local: Buffer,
        place: _Place,
        at: tuple[Expr, Expr],
        rows: int,
        weights: Weights | None,
    ) -> None:
        """Write the loop over the vectors of some output rows."""
        lanes, positions = self.plan.lanes, self.conv.width.positions

        def tile(column: Expr, pieces: Sequence[tuple[int, int]]) -> None:
            sums = self.sums(body, local, at, column, rows, weights)
            for (output, y), total in sums.items():
                line = b.add(place.first, b.add(at[1], y))
                index = self.conv.indexer(place.image, b.add(at[0], output), line)
                self.write_pieces(body, index, column, pieces, total)

        with body.loop(positions // lanes, "v") as v:
            tile(body.let("column", b.mul(v, lanes)), [(0, lanes)])
        rest = positions % lanes
        if rest:
            tile(b.index(positions - rest), list(_pieces(rest, lanes)))

    def write_pieces(
        self,
        body: b.Body,
        index: Callable[[Expr], Index],
        column: Expr,
        pieces: Sequence[tuple[int, int]],
        total: Expr,
    ) -> None:
        """Write the epilogue of a vector of sums of which some pieces are stored.

        What reads no image is computed for all lanes at once, also for those past the row.
        """
        result, whole = self.conv.node.results[0], index(b.ramp(column, self.plan.lanes))
        if not self.reads_images:
            reader, values = finish_outputs(self.group, body, result, whole, total)
        for start, count in pieces:
            where = index(b.ramp(b.add(column, start), count))
            if self.reads_images:
                part = _part(body, total, start, count)
                write_outputs(self.group, body, result, where, part)
                continue
            for position, value in enumerate(values):
                reader.store(position, where, _part(body, value, start, count))

    def sums(
        self,
        body: b.Body,
        local: Buffer,
        at: tuple[Expr, Expr],
        column: Expr,
        rows: int,
        weights: Weights | None,
    ) -> dict[tuple[int, int], Expr]:
        """Return the accumulators of a tile by output and row."""
        keys = [(output, y) for output in range(self.plan.outputs) for y in range(rows)]
        zero = b.const(0.0, Type(self.conv.dtype, self.plan.lanes))
        with body.fold(self.channels, [zero] * len(keys), "c") as channel:
            found: dict[tuple[int, int], Expr] = dict(zip(keys, channel.values, strict=True))
            read = self.vectors(body, local, channel.index, at[1], column)
            known = weights or self.weights(body, at[0], channel.index)
            for ky in range(self.conv.height.window):
                for kx in range(self.conv.width.window):
                    self.add_point(body, found, known, (ky, kx), read)
            channel.next = [found[key] for key in keys]
        return dict(zip(keys, channel.results, strict=True))

    def add_point(
        self,
        body: b.Body,
        sums: dict[tuple[int, int], Expr],
        weights: Weights,
        point: tuple[int, int],
        read: Callable[[int, int], Expr],
    ) -> None:
        """Add the products of one point of the window to all sums."""
        height = self.conv.height
        for output, y in sums:
            value = read(y * height.stride + point[0] * height.dilation, point[1])
            weight = weights[output, *point]
            total = multiply_add(self.group.target.fma, weight, value, sums[output, y])
            sums[output, y] = body.let("sum", total)

    def weights(self, body: b.Body, output: Expr, channel: Expr) -> Weights:
        """Return the weights of a tile of outputs in one channel, each in every lane."""
        w, height, width = self.conv.node.operands[1], self.conv.height, self.conv.width
        found = {}
        for number in range(self.plan.outputs):
            for ky in range(height.window):
                for kx in range(width.window):
                    taps = height.tap + ky * height.tap_step, width.tap + kx * width.tap_step
                    index = (b.add(output, number), channel, *map(b.index, taps))
                    weight = b.cast(Reader(self.group, body).load(w, index), self.conv.dtype)
                    wide = b.broadcast(weight, self.plan.lanes)
                    found[number, ky, kx] = body.let("w", wide)
        return found

    def vectors(
        self, body: b.Body, local: Buffer, channel: Expr, row: Expr, column: Expr
    ) -> Callable[[int, int], Expr]:
        """Return what loads the vector of a local row at a point of the window, once."""
        width, stride = self.conv.width, self.conv.height.stride
        top = body.let("top", b.mul(row, stride))
        known: dict[tuple[int, int], Expr] = {}

        def read(line: int, point: int) -> Expr:
            if (line, point) not in known:
                shift, phase = divmod(point * width.dilation, self.phases)
                place = b.ramp(b.add(column, shift), self.plan.lanes)
                value = b.load(local, [channel, b.add(top, line), phase, place])
                known[line, point] = body.let("x", value)
            return known[line, point]

        return read


def _pieces(count: int, lanes: int) -> Sequence[tuple[int, int]]:
    """Cut the first `count` lanes of a vector into powers of two: (first lane, lanes)."""
    found, start, size = [], 0, lanes
    while start < count:
        if start + size <= count:
            found.append((start, size))
            start += size
        size //= 2
    return found


def _part(body: b.Body, vector: Expr, start: int, count: int) -> Expr:
    if count == vector.type.lanes:
        return vector
    if count == 1:
        return body.let("lane", b.extract(vector, start))
    return body.let("part", b.shuffle(vector, vector, range(start, start + count)))
