"""Cumulative sums along one axis.

Along the last axis, rows are cut into blocks:

    parallel chunk                    (row, block): the sum of the block, where rows have several
    parallel chunk                    (row, block), or some short rows
      fold over the blocks before     what the block begins with
      for v in block                  a vector: sums within it by doubling, plus all before it
      the rest, one by one

Along another axis:

    parallel chunk                    (outer position, block of columns)
      vector for column in block
        for k along the axis          carried: the sum so far

Blocks depend on shapes alone, and so does the order in which elements are added.
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope, Type
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.copy_rows import Element, Parts, cut, elements_of, with_views
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core import config
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node

NOTE = __doc__.split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
_BLOCK = 1 << 14  # elements of a row that one chunk sums up
_COLUMNS = 4  # vectors of columns that are summed together, to hide the latency of an addition


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "cumsum")


def _is_last(node: Node) -> bool:
    """Whether no axis behind that of the sums has more than one element."""
    shape, axis = node.results[0].shape, node.attributes["axis"]
    return all(size == 1 for size in shape[axis + 1 :])


def _block() -> int:
    return config.get("FRAME_GRAIN") or _BLOCK


def _blocks(node: Node) -> int:
    """Return into how many blocks a row is cut; one where its size is not known."""
    size: Size = node.results[0].shape[node.attributes["axis"]]
    return max(1, -(-size // _block())) if isinstance(size, int) and _is_last(node) else 1


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the sums of all blocks, where a row has several."""
    node = _anchor(body)
    if _blocks(node) == 1:
        return ()
    rows = product(node.results[0].shape[: node.attributes["axis"]])
    return (rows * (_blocks(node) * compute_dtype(node.results[0].dtype).itemsize),)


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a cumulative sum."""
    node = _anchor(group.body)
    if not _is_last(node):
        return (_columns(group, node),)
    return _Rows(group, node).write()


def _columns(group: Group, node: Node) -> KernelCall:
    """Sum along an axis that has others behind it."""
    (operand,), output = node.operands, node.results[0]
    parts = cut(output.shape, node.attributes["axis"])
    group = with_views(group, operand, parts, parts)
    element, dtype = elements_of(group, operand, parts), compute_dtype(output.dtype)
    rows, steps, columns = group.extents(parts.sizes)
    width = _COLUMNS * group.target.lanes(dtype)
    blocks = b.ceil_div(columns, width)
    chunks, body, target = b.mul(rows, blocks), b.Body(), group.outputs[0]
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        row, part = (body.let("at", i) for i in unflatten(chunk, [rows, blocks]))
        start = body.let("start", b.mul(part, width))
        with body.loop(remaining(columns, start, width), "j", LoopKind.VECTOR) as j:
            column = b.add(start, j)
            with body.fold(steps, [b.const(0, dtype)], "k") as folding:
                at = _place(node, steps, folding.index)
                before = folding.values[0]
                total = body.let("sum", b.add(before, element(body, row, at, column)))
                kept = before if node.attributes["exclusive"] else total
                body.store(target, [row, at, column], b.cast(kept, target.dtype))
                folding.next = [total]
    return group.call("", vectorise_loops(body.block(), width), chunks, NOTE)


def _place(node: Node, steps: Expr, step: Expr) -> Expr:
    """Return the position along the axis of a step."""
    return b.sub(b.sub(steps, 1), step) if node.attributes["reverse"] else step


class _Rows:
    """Writes the kernels of sums along the last axis."""

    def __init__(self, group: Group, node: Node) -> None:
        (operand,), output = node.operands, node.results[0]
        axis = node.attributes["axis"]
        parts = Parts(output.shape[:axis], (), output.shape[axis:])
        self.node, self.blocks = node, _blocks(node)
        self.dtype = compute_dtype(output.dtype)
        self.lanes = group.target.lanes(self.dtype)
        viewed = with_views(group, operand, parts, parts)
        self.element: Element = elements_of(viewed, operand, parts)
        self.rows, _, self.length = viewed.extents(parts.sizes)
        rows = product(output.shape[:axis])
        shape = (rows if isinstance(rows, int) else group.extent(rows), self.blocks)
        self.group = viewed.with_buffers(
            workspaces=tuple(
                Buffer(memory.name, self.dtype, shape, (), Scope.WORKSPACE)
                for memory in group.workspaces
            )
        )

    def write(self) -> tuple[KernelCall, ...]:
        """Return the calls in order."""
        if self.blocks == 1:
            return (self.short_rows(),)
        return (self.totals(), self.sums())

    def _chunks(self, body: b.Body, chunk: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return the row and the block of a chunk, where the block starts, and its length."""
        row, part = (body.let("at", i) for i in unflatten(chunk, [self.rows, b.index(self.blocks)]))
        start = body.let("start", b.mul(part, _block()))
        return row, part, start, body.let("extent", remaining(self.length, start, _block()))

    def totals(self) -> KernelCall:
        """Sum up each block."""
        body, chunks = b.Body(), b.mul(self.rows, self.blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            row, part, start, extent = self._chunks(body, chunk)
            zero = [b.const(0, self.dtype)]
            with body.fold(extent, zero, "k", LoopKind.VECTOR) as folding:
                at = _place(self.node, self.length, b.add(start, folding.index))
                value = self.element(body, row, b.index(0), at)
                folding.next = [body.let("sum", b.add(folding.values[0], value))]
            body.store(self.group.workspaces[0], [row, part], folding.results[0])
        block = vectorise_loops(body.block(), self.lanes, self.group.target)
        return self.group.call("totals", block, chunks, NOTE)

    def sums(self) -> KernelCall:
        """Write the sums of each block, from those of the blocks before it."""
        body, chunks = b.Body(), b.mul(self.rows, self.blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            row, part, start, extent = self._chunks(body, chunk)
            with body.fold(part, [b.const(0, self.dtype)], "before") as folding:
                total = b.load(self.group.workspaces[0], [row, folding.index])
                folding.next = [b.add(folding.values[0], total)]
            self.write_block(body, row, start, extent, folding.results[0])
        return self.group.call("", body.block(), chunks, NOTE)

    def short_rows(self) -> KernelCall:
        """Write whole rows, some a chunk."""
        body = b.Body()
        count = b.max_(b.div(b.index(_block()), b.max_(self.length, 1)), 1)
        chunks = b.ceil_div(self.rows, count)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            first = body.let("first", b.mul(chunk, count))
            with body.loop(remaining(self.rows, first, count), "row") as i:
                row = body.let("row", b.add(first, i))
                begin = b.const(0, self.dtype)
                self.write_block(body, row, b.index(0), self.length, begin)
        return self.group.call("", body.block(), chunks, NOTE)

    def write_block(self, body: b.Body, row: Expr, start: Expr, extent: Expr, begin: Expr) -> None:
        """Write the sums of some elements of a row, the one before which is `begin`."""
        lanes = self.lanes
        whole = body.let("whole", b.div(extent, lanes) if lanes > 1 else b.index(0))
        with body.fold(whole, [begin], "v") as folding:
            step = body.let("step", b.add(start, b.mul(folding.index, lanes)))
            total = self.write_vector(body, row, step, folding.values[0])
            folding.next = [total]
        done = body.let("done", b.mul(whole, lanes))
        with body.fold(b.sub(extent, done), [folding.results[0]], "k") as rest:
            at = _place(self.node, self.length, b.add(b.add(start, done), rest.index))
            value = self.element(body, row, b.index(0), at)
            total = body.let("sum", b.add(rest.values[0], value))
            self.store(body, row, at, rest.values[0] if self.exclusive else total)
            rest.next = [total]

    @property
    def exclusive(self) -> bool:
        """Whether an element's own value is left out."""
        return bool(self.node.attributes["exclusive"])

    def store(self, body: b.Body, row: Expr, at: Expr, value: Expr) -> None:
        """Store sums in the dtype of the result."""
        target = self.group.outputs[0]
        body.store(target, [row, b.index(0), at], b.cast(value, target.dtype))

    def write_vector(self, body: b.Body, row: Expr, step: Expr, before: Expr) -> Expr:
        """Write the sums of a vector of steps and return the sum after them."""
        lanes, reverse = self.lanes, self.node.attributes["reverse"]
        first = b.sub(b.sub(self.length, lanes), step) if reverse else step
        at = b.ramp(body.let("at", first), lanes)
        value = self.element(body, row, b.index(0), at)
        value = value if value.type.lanes == lanes else b.broadcast(value, lanes)
        sums = _prefixes(body, self._ordered(body.let("x", value)), lanes)
        last = b.extract(sums, lanes - 1)
        kept = _shifted(body, sums, 1, lanes) if self.exclusive else sums
        kept = body.let("y", b.add(kept, b.broadcast(before, lanes)))
        self.store(body, row, at, self._ordered(kept))
        return body.let("sum", b.add(before, last))

    def _ordered(self, vector: Expr) -> Expr:
        """Return a vector in the order of steps from that of memory, or the other way round."""
        if not self.node.attributes["reverse"]:
            return vector
        return b.shuffle(vector, vector, range(self.lanes - 1, -1, -1))


def _prefixes(body: b.Body, vector: Expr, lanes: int) -> Expr:
    """Return the sums of the lanes up to each one."""
    step = 1
    while step < lanes:
        vector = body.let("sums", b.add(vector, _shifted(body, vector, step, lanes)))
        step *= 2
    return vector


def _shifted(body: b.Body, vector: Expr, step: int, lanes: int) -> Expr:
    """Return the lanes `step` places later, after zeros."""
    zero = b.const(0, Type(vector.type.dtype, lanes))
    pattern = [lane if lane < step else lanes + lane - step for lane in range(lanes)]
    return body.let("moved", b.shuffle(zero, vector, pattern))
