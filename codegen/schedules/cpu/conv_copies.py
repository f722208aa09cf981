"""Copies of the operands of convolutions that vectors can read without a question.

x        parallel over planes: zeros, then the rows that windows reach, spread and shifted
weights  parallel over output channels: the window in the order of the steps, padded with zeros
"""

from __future__ import annotations

from collections.abc import Collection

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, Extent
from frame.codegen.schedules.cpu.vectors import picked, vectorise_loops
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.core import config
from frame.core.dataclass import dataclass
from frame.ir.graph import Value

_CHUNK = 1 << 12  # elements that one chunk writes
_MOST_PHASES = 4  # of columns that vectors are dealt out to: the shuffles grow with their square


def with_workspaces(group: Group, plan: ConvPlan) -> Group:
    """Give the workspaces the shapes of what they hold."""
    shapes: list[tuple[Expr, ...]] = []
    if plan.copy_x:
        sizes = (plan.batch, plan.channels * plan.groups, *plan.padded)
        shapes.append(group.extents(sizes))
    if plan.copy_w:
        shapes.append(group.extents((plan.groups * plan.outputs, plan.weight_row)))
    memories = tuple(
        Buffer(memory.name, plan.dtype, b.buffer("w", plan.dtype, shape).shape, (), Scope.WORKSPACE)
        for memory, shape in zip(group.workspaces, shapes, strict=True)
    )
    return group.with_buffers(workspaces=memories)


def flattened(group: Group, images: Collection[Value]) -> Group:
    """Give some captures, and all outputs, one dimension for the rows and columns of images."""

    def one_row(memory: Buffer, value: Value) -> Buffer:
        *lead, rows, columns = value.shape
        sizes = [size for size in lead if size != 1]
        shape = b.buffer("shape", memory.dtype, group.extents((*sizes, rows * columns))).shape
        return Buffer(memory.name, memory.dtype, shape, (), memory.scope)

    captures = zip(group.captures, group.body.input_values, strict=True)
    outputs = zip(group.outputs, group.body.outputs, strict=True)
    return group.with_buffers(
        captures=tuple(one_row(m, v) if v in images else m for m, v in captures),
        outputs=tuple(one_row(*pair) for pair in outputs),
    )


def copy_x(group: Group, plan: ConvPlan) -> KernelCall:
    """Write the padded copy of x."""
    body = b.Body()
    target = group.workspaces[0]
    rows, phases, columns = plan.padded
    channels = b.mul(group.extent(plan.channels), plan.groups)
    planes = b.mul(group.extent(plan.batch), channels)
    area = rows * phases * columns
    count = 1 if config.get("FRAME_GRAIN") else max(1, _CHUNK // area)
    chunks = b.ceil_div(planes, count)
    first_row, last_row = reached(plan.height, rows)
    first, last = reached(plan.width, phases * columns)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        start = body.let("start", b.mul(chunk, count))
        with body.loop(remaining(planes, start, b.index(count)), "plane") as position:
            flat = b.add(start, position)
            image, channel = (body.let("at", i) for i in unflatten(flat, [planes, channels]))
            lead = (image, channel)
            with (
                body.loop(b.index(rows), "row") as row,
                body.loop(b.index(phases), "phase") as phase,
                body.loop(b.index(columns), "column", LoopKind.VECTOR) as column,
            ):
                body.store(target, [*lead, row, phase, column], b.const(0.0, plan.dtype))
            # A window of one row meets every `step`-th one alone.
            step = plan.height.stride if _is_sparse(plan.height) else 1
            with body.loop(b.index(-(-(last_row - first_row) // step)), "row") as row:
                source = body.let("source", b.add(b.mul(row, step), first_row))
                line = body.let("line", _moved(plan.height, source))
                _copy_row(body, group, plan, (*lead, line), (*lead, source), (first, last))
    block = vectorise_loops(body.block(), plan.lanes)
    return group.call(f"{plan.name}padded", block, chunks, "the padded copy of x")


def _copy_row(
    body: b.Body,
    group: Group,
    plan: ConvPlan,
    to: Index,
    index: tuple[Expr, Expr, Expr],
    columns: tuple[int, int],
) -> None:
    """Write the copy of some columns of a row of x, each to its phase and its place there."""
    x, target, width, phases = plan.node.operands[0], group.workspaces[0], plan.width, plan.phases
    first, last = columns
    if width.spread == 1 < phases <= _MOST_PHASES:
        rows = DealtRows(group, x, target, phases, width.low, plan.lanes, _is_sparse(width))
        rows.copy(body, to, index, first, last)
        return
    kind = LoopKind.VECTOR if width.spread == phases == 1 else LoopKind.SERIAL
    step = phases if _is_sparse(width) else 1  # as of rows: other columns are not read
    with body.loop(b.index(-(-(last - first) // step)), "column", kind) as column:
        place = b.add(b.mul(column, step), first)
        moved = _moved(width, place)
        value = Reader(group, body).load(x, plan.index(*index, place))
        at = (*to, b.rem(moved, phases), b.div(moved, phases))
        body.store(target, at, b.cast(value, plan.dtype))


def reached(axis: Extent, length: int) -> tuple[int, int]:
    """Return the first element of x that has a place in the copy, and one past the last."""
    first = max(0, -(axis.low // axis.spread)) if axis.low < 0 else 0
    last = min(axis.size, (length - 1 - axis.low) // axis.spread + 1)
    return min(first, axis.size), max(min(first, axis.size), last)


def wide(value: Expr, lanes: int) -> Expr:
    """Return a value that does not depend on the lanes of its index in all of them."""
    return value if value.type.lanes == lanes else b.broadcast(value, lanes)


@dataclass(frozen=True, slots=True)
class DealtRows:
    """Rows of x in local memory [..., phases, columns], dealt out by the phase of their columns.

    Column k of x lies in the phase (k + low) % phases, at (k + low) / phases. Of `sparse` rows
    only the first phase is read, and written.
    """

    group: Group
    x: Value
    memory: Buffer
    phases: int
    low: int
    lanes: int
    sparse: bool = False

    def copy(self, body: b.Body, to: Index, index: Index, first: int, last: int) -> None:
        """Copy columns `first` to `last - 1` by vectors; the last ones lie over others."""
        lanes = self.lanes
        while lanes > 1 and lanes * self.phases > last - first:
            lanes //= 2
        step = lanes * self.phases
        if step > last - first:
            for column in range(first, last):
                self._deal(body, to, index, (b.index(column), column), 1, 1)
            return
        with body.loop((last - first) // step, "v") as v:
            # Steps are a multiple of the phases: a vector stays in its phase.
            at = body.let("column", b.add(b.mul(v, step), first))
            self._deal(body, to, index, (at, first), lanes, self.phases)
        if (last - first) % step:
            rest = last - step
            self._deal(body, to, index, (b.index(rest), rest), lanes, self.phases)

    def _deal(
        self,
        body: b.Body,
        to: Index,
        index: Index,
        at: tuple[Expr, int],
        lanes: int,
        count: int,
    ) -> None:
        """Deal `count` vectors of x out to as many phases; `at` is the first column, and any
        number that is equal to it but for multiples of the phases."""
        (start, known), reader, vectors = at, Reader(self.group, body), []
        for k in range(count):
            place = (*index, b.ramp(b.add(start, k * lanes), lanes))
            value = b.cast(reader.load(self.x, place), self.memory.dtype)
            vectors.append(body.let("x", wide(value, lanes)))
        for q in range(count):
            phase = (known + q + self.low) % self.phases
            if self.sparse and phase:
                continue
            order = [lane * count + q for lane in range(lanes)]
            value = picked(body, vectors, order) if count > 1 else vectors[0]
            column = b.div(b.add(start, q + self.low), self.phases)
            body.store(self.memory, [*to, phase, b.ramp(column, lanes)], value)


def _moved(axis: Extent, place: Expr) -> Expr:
    return b.add(b.mul(place, axis.spread), axis.low)


def _is_sparse(axis: Extent) -> bool:
    """Whether windows of one element, the first at the first one of x, are a stride apart."""
    return axis.window == 1 and axis.low == 0 and axis.spread == 1


def copy_w(group: Group, plan: ConvPlan) -> KernelCall:
    """Write the copy of the weights."""
    w, body = plan.node.operands[1], b.Body()
    target = group.workspaces[-1]
    outputs, height, width = plan.groups * plan.outputs, plan.height.window, plan.width.window
    with (
        body.loop(b.index(outputs), "chunk", LoopKind.PARALLEL) as output,
        body.loop(group.extent(plan.channels), "c") as channel,
        body.loop(b.index(height), "row") as row,
    ):
        line = b.add(b.mul(channel, height), row)
        start = body.let("start", b.mul(line, width))
        with body.loop(b.index(width), "column", LoopKind.VECTOR) as column:
            place = (_tap(plan.height, row), _tap(plan.width, column))
            value = Reader(group, body).load(w, (output, channel, *place))
            body.store(target, [output, b.add(start, column)], b.cast(value, plan.dtype))
    block = vectorise_loops(body.block(), plan.lanes)
    return group.call(f"{plan.name}weights", block, b.index(outputs), "the copy of the weights")


def _tap(axis: Extent, point: Expr) -> Expr:
    return b.add(b.mul(point, axis.tap_step), axis.tap)
