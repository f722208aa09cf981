"""Products with a vector: one row, or one column. They are bound by reading the matrix once.

Across, where the matrix is contiguous along the result:

    parallel chunk                       a block of the result
      for p in depth, by 8
        vector for j in block            sum[j] += x[p] * matrix[p, j] + ... + x[p + 7] * ...

A large matrix is cut along the inner axis instead, so that each chunk reads one run of memory:

    parallel chunk                       a part of the inner axis, and a wide block of the result
      the same, into a workspace
    parallel chunk                       a block of the result: the sums of all parts, in order

Along, where the matrix is contiguous along the inner axis:

    parallel chunk                       some elements of the result
      for j in chunk, by 4
        vector for p in depth            lanes are partial sums
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope, Type
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.codegen.schedules.cpu.gemm_operand import Product, element
from frame.codegen.schedules.cpu.gemm_plan import runs_across_depth, runs_along_depth
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import ROW_MAJOR

NOTE = __doc__.split("\n\n", 1)[1]
_NARROWEST, _WIDEST = 512, 2048  # elements of the result that one chunk computes
_CHUNKS = 4  # how many chunks are enough to read at the speed of memory
_CHUNK = 1 << 15  # elements of the matrix that a chunk should read at least
_ROWS = 8  # rows of the matrix that one sweep over a block adds
_MOST_PARTS, _PART_ROWS = 8, 4  # of the inner axis, and rows that one sweep of a part adds
_TOGETHER, _PARTIAL = 4, 2  # dot products at a time, and vectors of partial sums of each


def applies(made: Product) -> bool:
    """Whether a product is one with a vector, whose matrix can be read as it is."""
    if not made.dtype.is_float or made.right.layout != ROW_MAJOR:
        return False
    if made.rows != 1 and made.columns != 1:
        return False
    matrix = made.right if made.rows == 1 else made.left
    return runs_along_depth(matrix) or runs_across_depth(matrix)


def lower(group: Group, made: Product) -> tuple[KernelCall, ...]:
    """Return the kernels of a product with a vector."""
    parts = _parts(made, group.target)
    if parts < 2:
        return (_VectorProduct(group, made).write(),)
    (memory,) = group.workspaces
    shape = (parts, group.extent(_length(made)))
    group = group.with_buffers(
        workspaces=(Buffer(memory.name, made.dtype, shape, (), Scope.WORKSPACE),)
    )
    return (
        _VectorProduct(group, made).write_parts(parts),
        _VectorProduct(group, made).add_parts(parts),
    )


def workspaces(made: Product, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the sums of all parts of a large matrix."""
    parts = _parts(made, target)
    return (parts * _length(made) * made.dtype.itemsize,) if parts > 1 else ()


def _length(made: Product) -> Size:
    return made.columns if made.rows == 1 else made.rows


def _parts(made: Product, target: TargetDescription) -> int:
    """Return into how many parts of the inner axis a product is cut.

    It is where the matrix takes more than a quarter of the second-level cache: to read less takes
    no longer than to share it out and to add what the parts make. Where no cache is known, in one.
    """
    matrix, length, depth = made.right if made.rows == 1 else made.left, _length(made), made.depth
    is_one = product(made.batch) == 1 and runs_across_depth(matrix)
    if not is_one or not isinstance(length, int) or not isinstance(depth, int):
        return 1
    if config.get("FRAME_GRAIN"):
        return 2 if depth > _ROWS else 1
    size, second = length * depth * made.dtype.itemsize, target.l2 or target.l1
    if not second or 4 * size <= second:
        return 1
    return max(1, min(_MOST_PARTS, depth // _ROWS, max(_CHUNKS, size // (8 * second))))


@dataclass(frozen=True, slots=True)
class _Block:
    """The part of the result that a chunk computes; the sum at j is `sums[*prefix, origin + j]`."""

    batch: Index
    start: Expr
    count: Expr
    sums: Buffer
    prefix: Index = ()
    origin: Expr | None = None

    def place(self, j: Expr) -> list[Expr]:
        """Return the index of the sum at j, or at a vector of them."""
        if self.origin is None:
            return [*self.prefix, j]
        return [*self.prefix, b.add(j, b.broadcast(self.origin, j.type.lanes))]


def _sum_of(block: _Block, j: Expr) -> Expr:
    return b.load(block.sums, block.place(j))


class _VectorProduct:
    """Writes the kernel. The result is indexed by j, the inner axis by p."""

    def __init__(self, group: Group, made: Product) -> None:
        self.group, self.made = group, made
        self.is_row = made.rows == 1
        self.matrix = made.right if self.is_row else made.left
        self.is_across = runs_across_depth(self.matrix)
        self.length = group.extent(_length(made))
        self.depth = group.extent(made.depth)
        self.lanes = group.target.lanes(made.dtype)
        self.body = b.Body()

    def write(self) -> KernelCall:
        """Return the call of the kernel."""
        group, body, made = self.group, self.body, self.made
        size = self.block_size()
        blocks = b.ceil_div(self.length, size)
        batches = group.extents(made.batch)
        chunks = blocks
        for extent in batches:
            chunks = b.mul(chunks, extent)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            *batch, position = (body.let("at", i) for i in unflatten(chunk, [*batches, blocks]))
            start = body.let("start", b.mul(position, size))
            count = self.length if b.constant_value(blocks) == 1 else b.index(size)
            if b.constant_value(b.rem(self.length, size)) != 0:
                count = body.let("count", remaining(self.length, start, b.index(size)))
            sums = body.alloc("sums", made.dtype, (size,), Scope.LOCAL)
            block = _Block(tuple(batch), start, count, sums)
            if self.is_across:
                self.write_across(block, b.index(0), self.depth, _ROWS)
            else:
                self.write_along(block)
            self.write_outputs(block, functools.partial(_sum_of, block))
        return group.call("", body.block(), chunks, NOTE)

    def write_parts(self, parts: int) -> KernelCall:
        """Return the call of the kernel that adds up each part of the inner axis for itself."""
        body, (memory,), size = self.body, self.group.workspaces, self.broad()
        rows = -(-static(self.made.depth, parts) // parts // _ROWS) * _ROWS
        blocks = b.ceil_div(self.length, size)
        chunks = b.mul(blocks, parts)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            position, part = (body.let("at", i) for i in unflatten(chunk, [blocks, b.index(parts)]))
            start = body.let("start", b.mul(position, size))
            count = body.let("count", remaining(self.length, start, b.index(size)))
            first = body.let("first", b.min_(b.mul(part, rows), self.depth))
            extent = body.let("extent", remaining(self.depth, first, b.index(rows)))
            batch = tuple(b.index(0) for _ in self.made.batch)
            block = _Block(batch, start, count, memory, (part,), start)
            self.write_across(block, first, extent, _PART_ROWS)
        return self.group.call("parts", body.block(), chunks, NOTE)

    def add_parts(self, parts: int) -> KernelCall:
        """Return the call of the kernel that adds the sums of all parts."""
        body, (memory,), size = self.body, self.group.workspaces, self.block_size()
        chunks = b.ceil_div(self.length, size)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            start = body.let("start", b.mul(chunk, size))
            count = body.let("count", remaining(self.length, start, b.index(size)))
            block = _Block(tuple(b.index(0) for _ in self.made.batch), start, count, memory)
            every = [replace(block, prefix=(b.index(part),), origin=start) for part in range(parts)]

            def total(j: Expr, every: Sequence[_Block] = every) -> Expr:
                return functools.reduce(b.add, [_sum_of(part, j) for part in every])

            self.write_outputs(block, total)
        return self.group.call("", body.block(), chunks, "sums of all parts")

    def broad(self) -> int:
        """Return how many elements of the result a chunk of a part sums up."""
        if config.get("FRAME_GRAIN"):
            return 4 * self.lanes
        most = self.group.target.l1 // 2 // self.made.dtype.itemsize
        return max(1, min(most, static(_length(self.made), most)))

    def block_size(self) -> int:
        """Return how many elements of the result a chunk computes."""
        length = static(_length(self.made), 1 << 10)
        if config.get("FRAME_GRAIN"):
            size = 4 * self.lanes
        elif self.is_across:
            # Long runs of each row of the matrix, for the sake of prefetching.
            size = min(_WIDEST, max(_NARROWEST, -(-length // _CHUNKS // 64) * 64))
        else:
            depth = max(1, static(self.made.depth, 1 << 10))
            size = min(_WIDEST, -(-_CHUNK // depth // 8) * 8)
        return max(1, min(size, length))

    # --- elements --------------------------------------------------------------------------------

    def factor(self, block: _Block, p: Expr) -> Expr:
        """Return the element, or a vector, of the vector operand."""
        made, reader = self.made, Reader(self.group, self.body)
        zero = b.index(0)
        if self.is_row:
            return element(reader, made.left, block.batch, zero, p)
        batch = block.batch if not made.merged else ()
        return element(reader, made.right, batch, p, zero)

    def entry(self, block: _Block, p: Expr, j: Expr) -> Expr:
        """Return the element, or a vector, of the matrix."""
        made, reader = self.made, Reader(self.group, self.body)
        place = b.add(j, b.broadcast(block.start, j.type.lanes))
        if self.is_row:
            return element(reader, made.right, block.batch, p, place)
        batch, row = made.split_row(self.group, block.batch, place, self.body)
        return element(reader, made.left, batch, row, p)

    # --- across ----------------------------------------------------------------------------------

    def write_across(self, block: _Block, start: Expr, extent: Expr, rows: int) -> None:
        """Add `extent` rows of the matrix to the sums, `rows` of them in one sweep."""
        zero = b.const(0.0, self.made.dtype)
        self.for_columns(block, lambda j: b.broadcast(zero, j.type.lanes))
        groups = b.div(extent, rows)
        with self.body.loop(groups, "p") as p:
            self.add_rows(block, b.add(start, b.mul(p, rows)), rows)
        done = b.mul(groups, rows)
        with self.body.loop(b.sub(extent, done), "p") as p:
            self.add_rows(block, b.add(start, b.add(done, p)), 1)

    def add_rows(self, block: _Block, first: Expr, count: int) -> None:
        rows = [self.body.let("p", b.add(first, r)) for r in range(count)]
        factors = [self.body.let("x", self.factor(block, row)) for row in rows]

        def following(j: Expr) -> Expr:
            total = _sum_of(block, j)
            for row, factor in zip(rows, factors, strict=True):
                entry = self.entry(block, row, j)
                total = self.plus(b.broadcast(factor, j.type.lanes), entry, total)
            return total

        self.for_columns(block, following)

    def plus(self, x: Expr, y: Expr, total: Expr) -> Expr:
        return multiply_add(self.group.target.fma, x, y, total)

    def for_columns(self, block: _Block, value: Callable[[Expr], Expr]) -> None:
        """Store a value into every sum, vectors first."""
        lanes, body = self.lanes, self.body
        full = b.div(block.count, lanes)
        with body.loop(full, "j") as j:
            place = b.ramp(b.mul(j, lanes), lanes)
            body.store(block.sums, block.place(place), value(place))
        done = b.mul(full, lanes)
        if b.constant_value(b.sub(block.count, done)) != 0:
            with body.loop(b.sub(block.count, done), "j") as j:
                place = b.add(done, j)
                body.store(block.sums, block.place(place), value(place))

    # --- along -----------------------------------------------------------------------------------

    def write_along(self, block: _Block) -> None:
        """Take dot products, some at a time."""
        groups = b.div(block.count, _TOGETHER)
        with self.body.loop(groups, "j") as j:
            first = self.body.let("j", b.mul(j, _TOGETHER))
            self.write_dots(block, [b.add(first, r) for r in range(_TOGETHER)])
        done = b.mul(groups, _TOGETHER)
        if b.constant_value(b.sub(block.count, done)) != 0:
            with self.body.loop(b.sub(block.count, done), "j") as j:
                self.write_dots(block, [b.add(done, j)])

    def write_dots(self, block: _Block, columns: Sequence[Expr]) -> None:
        body, lanes = self.body, self.lanes
        columns = [body.let("j", j) for j in columns]
        step = lanes * _PARTIAL
        zero = b.const(0.0, Type(self.made.dtype, lanes))
        count = b.div(self.depth, step)
        with body.fold(count, [zero] * (len(columns) * _PARTIAL), "p") as folding:
            first = body.let("p", b.mul(folding.index, step))
            places = [b.ramp(b.add(first, part * lanes), lanes) for part in range(_PARTIAL)]
            folding.next = self.add_dots(block, columns, places, folding.values)
        totals = [
            self.lane_sum(folding.results[k * _PARTIAL : (k + 1) * _PARTIAL])
            for k in range(len(columns))
        ]
        done = b.mul(count, step)
        rest = b.sub(self.depth, done)
        if b.constant_value(rest) != 0:
            with body.fold(rest, totals, "p") as folding:
                place = body.let("p", b.add(done, folding.index))
                folding.next = self.add_dots(block, columns, [place], folding.values)
            totals = list(folding.results)
        for j, total in zip(columns, totals, strict=True):
            body.store(block.sums, [j], total)

    def add_dots(
        self, block: _Block, columns: Sequence[Expr], places: Sequence[Expr], totals: Sequence[Expr]
    ) -> list[Expr]:
        factors = [self.body.let("x", self.factor(block, place)) for place in places]
        following = []
        for k, j in enumerate(columns):
            for part, (place, factor) in enumerate(zip(places, factors, strict=True)):
                total = totals[k * len(places) + part]
                entry = self.entry(block, place, j)
                following.append(self.body.let("sum", self.plus(factor, entry, total)))
        return following

    def lane_sum(self, parts: Sequence[Expr]) -> Expr:
        total = parts[0]
        for part in parts[1:]:
            total = b.add(total, part)
        return b.sum_lanes(total)

    # --- outputs ---------------------------------------------------------------------------------

    def write_outputs(self, block: _Block, sums: Callable[[Expr], Expr]) -> None:
        """Write the epilogue of a block, whose sums `sums` gives."""
        made = self.made

        def index(j: Expr) -> Index:
            if self.is_row:
                return made.result_index(block.batch, b.index(0), j)
            batch, row = made.split_row(self.group, block.batch, j, self.body)
            return made.result_index(batch, row, b.index(0))

        # The rows of several matrices are not next to each other in the index.
        lanes = 1 if made.merged else self.lanes
        write_epilogue(
            self.group,
            self.body,
            made.node.results[0],
            Columns(block.start, block.count, lanes),
            index,
            sums,
        )
