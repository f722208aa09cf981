"""Attention groups: two products with a softmax between them; no score is ever in memory.

    parallel chunk                          (batch and head, block of queries)
      [pack k and v]                        panels of keys, and of the columns of v
      for tile of queries in block
        copy the tile of q
        for panel of keys                   micro-kernel: scores = q @ k^T
        for row of the tile
          vector for key                    scale, mask ...; the largest
          vector for key                    weight = exp(score - largest); the sum of the weights
          vector for key                    weight *= 1 / sum
        for panel of v                      micro-kernel: sums = weights @ v
        for row of the tile, vector         y = sums

Long k and v are packed by a kernel before, into a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Block, Buffer, Expr, If, Kernel, LoopKind, Scope, View
from frame.codegen.mathlib.exponential import exp_below
from frame.codegen.schedules.access import Reader, aligned
from frame.codegen.schedules.cpu.chunks import flat_extent, lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.gemm_micro import Tile, call_product, product_kernel, register_tile
from frame.codegen.schedules.cpu.gemm_pack import Load, write_row, write_transposed
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.errors import InternalError
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node, Value
from frame.ops.softmax_pattern import Softmax, softmax_of

NOTE = __doc__.split("\n\n")[1]
_LOCAL = 3 << 16  # bytes of packed k and v that a chunk packs for itself, at most
_CHUNKS, _BLOCK = 8, 48  # chunks that are enough, and queries of one at least

Save = Callable[[Expr, Expr, Expr, Expr], None]
"""Writes a value at (panel, row, column, value)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of an attention and its tiles. Sizes are elements; all but the batch are known."""

    first: Node
    second: Node
    softmax: Softmax
    batch: Shape
    queries: int
    keys: int
    features: int
    values: int
    rows: int
    vectors: int
    lanes: int
    blocks: int
    local: int

    @property
    def dtype(self) -> DType:
        """The element type of the sums."""
        return self.first.results[0].dtype

    @property
    def width(self) -> int:
        """The columns of a panel."""
        return self.vectors * self.lanes

    @property
    def key_panels(self) -> int:
        """The panels of k."""
        return -(-self.keys // self.width)

    @property
    def value_panels(self) -> int:
        """The panels of v."""
        return -(-self.values // self.width)

    @property
    def tiles(self) -> int:
        """The tiles of queries: of `height` rows, the last ones of one row less."""
        return -(-self.queries // self.rows)

    @property
    def height(self) -> int:
        """The rows of a tile."""
        return -(-self.queries // self.tiles)

    @property
    def tall(self) -> int:
        """How many tiles have `height` rows."""
        return self.queries - self.tiles * (self.height - 1)

    @property
    def packed(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The shapes of packed k and v."""
        return (
            (self.key_panels, self.features, self.width),
            (self.value_panels, self.keys, self.width),
        )

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """The bytes of packed k and v of one head."""
        k, v = self.packed
        size = self.dtype.itemsize
        return k[0] * k[1] * k[2] * size, v[0] * v[1] * v[2] * size

    @property
    def packs_locally(self) -> bool:
        """Whether each chunk packs k and v for itself, on its stack."""
        return sum(self.packed_bytes) <= self.local


def make_plan(body: Graph, target: TargetDescription) -> Plan:
    """Return the plan of an attention group."""
    first, second = (node for node in body.nodes if node.op == "matmul")
    division = second.operands[0].node
    soft = softmax_of(division) if division is not None else None
    if soft is None:
        raise InternalError("expected a softmax between the products of an attention group")
    (q, k), v = first.operands, second.operands[1]
    batch = second.results[0].shape[:-2]
    queries, features, keys, values = map(
        _known, (q.shape[-2], q.shape[-1], k.shape[-2], v.shape[-1])
    )
    rows, vectors = register_tile(target)
    lanes = target.lanes(first.results[0].dtype)
    heads = max(1, static(product(batch), _CHUNKS))
    blocks = min(-(-_CHUNKS // heads), max(1, queries // _BLOCK))
    local = min(_LOCAL, (target.l2 or target.l1) * 3 // 8)
    if config.get("FRAME_GRAIN"):
        blocks = -(-queries // rows)
    sizes = (queries, keys, features, values)
    return Plan(first, second, soft, batch, *sizes, rows, vectors, lanes, blocks, local)


def _known(size: Size) -> int:
    if not isinstance(size, int):
        raise InternalError(f"expected a known size in an attention group, received {size}")
    return size


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of packed k and v of all heads, where a kernel packs them before."""
    plan = make_plan(body, target)
    if plan.packs_locally:
        return ()
    heads = product(plan.batch)
    return tuple(heads * size for size in plan.packed_bytes)


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of an attention group."""
    plan = make_plan(group.body, group.target)
    if plan.packs_locally:
        return (_Attention(group, plan).attend(),)
    heads = product(plan.batch)
    extent = heads if isinstance(heads, int) else group.extent(heads)
    memories = tuple(
        Buffer(memory.name, plan.dtype, (extent, *shape), (), Scope.WORKSPACE)
        for memory, shape in zip(group.workspaces, plan.packed, strict=True)
    )
    work = _Attention(group.with_buffers(workspaces=memories), plan)
    return (work.pack_all(), work.attend())


@dataclass(frozen=True, slots=True)
class _Panels:
    """Packed k and v: their memory, and what comes before the index of a panel in it."""

    k: Buffer
    v: Buffer
    prefix: tuple[Expr, ...]


class _Attention:
    """Writes the kernels of one attention."""

    def __init__(self, group: Group, plan: Plan) -> None:
        self.group, self.plan = group, plan
        self.batches = group.extents(plan.batch)
        self.heads = flat_extent(self.batches)
        self.helpers: dict[str, Kernel] = {}

    # --- packing ---------------------------------------------------------------------------------

    def pack_all(self) -> KernelCall:
        """Write the kernel that packs k and v, one head a chunk."""
        body = b.Body()
        with body.loop(self.heads, "chunk", LoopKind.PARALLEL) as head:
            batch = tuple(body.let("batch", i) for i in unflatten(head, self.batches))
            k, v = self.group.workspaces
            self.pack(body, batch, _Panels(k, v, (head,)))
        return self.group.call("pack", body.block(), self.heads, "panels of k and v")

    def pack(self, body: b.Body, batch: Index, panels: _Panels) -> None:
        """Write panels of k, transposed, and of v."""
        plan, (_, k), v = self.plan, self.plan.first.operands, self.plan.second.operands[1]

        def save_in(memory: Buffer) -> Save:
            def save(panel: Expr, row: Expr, column: Expr, value: Expr) -> None:
                body.store(memory, [*panels.prefix, panel, row, column], value)

            return save

        key, value = self.loader(body, k, batch), self.loader(body, v, batch)
        self.pack_panels(body, lambda p, j: key(j, p), save_in(panels.k), plan.features, plan.keys)
        self.pack_panels(body, value, save_in(panels.v), plan.keys, plan.values, True)

    def loader(self, body: b.Body, value: Value, batch: Index) -> Load:
        """Return how elements of an operand are read at (row, column)."""
        own = aligned(value.shape[:-2], batch)
        return lambda row, column: Reader(self.group, body).load(value, (*own, row, column))

    def pack_panels(
        self, body: b.Body, load: Load, save: Save, rows: int, columns: int, along: bool = False
    ) -> None:
        """Write panels of a matrix [rows, columns]; memory runs `along` its rows or across."""
        width = self.plan.width
        full, rest = divmod(columns, width)
        for first, count, used in ((0, full, width), (full, 1, rest)):
            if not count * used:
                continue
            with body.loop(b.index(count), "panel") as position:
                panel = body.let("panel", b.add(position, first))
                start = body.let("start", b.mul(panel, width))
                self.pack_panel(body, load, save, (panel, start), (rows, used), along)

    def pack_panel(
        self,
        body: b.Body,
        load: Load,
        save: Save,
        place: tuple[Expr, Expr],
        sizes: tuple[int, int],
        along: bool,
    ) -> None:
        """Write one panel, zeros in the columns that it has too much."""
        (panel, start), (rows, used), lanes = place, sizes, self.plan.lanes

        def read(row: Expr, column: Expr) -> Expr:
            return load(row, b.add(column, b.broadcast(start, column.type.lanes)))

        def write(row: Expr, column: Expr, value: Expr) -> None:
            save(panel, row, column, value)

        if along:
            with body.loop(b.index(rows), "p") as p:
                write_row(
                    body,
                    lambda column: read(p, column),
                    lambda column, value: write(p, column, value),
                    b.index(used),
                    lanes,
                )
        else:
            write_transposed(body, read, write, b.index(rows), b.index(used), lanes)
        spare = self.plan.width - used
        if spare:
            zero = b.const(0.0, self.plan.dtype)
            with body.loop(b.index(rows), "p") as p, body.loop(b.index(spare), "j") as j:
                write(p, b.add(j, used), zero)

    # --- the products ----------------------------------------------------------------------------

    def attend(self) -> KernelCall:
        """Write the main kernel."""
        plan, body = self.plan, b.Body()
        size = -(-plan.tiles // plan.blocks)
        blocks = -(-plan.tiles // size)
        chunks = b.mul(self.heads, blocks)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            head, block = (
                body.let("at", i) for i in unflatten(chunk, [self.heads, b.index(blocks)])
            )
            batch = tuple(body.let("batch", i) for i in unflatten(head, self.batches))
            panels = self.panels(body, batch, head)
            first = body.let("first", b.mul(block, size))
            count = remaining(b.index(plan.tiles), first, b.index(size))
            memory = self.allocate(body)
            with body.loop(count, "tile") as position:
                self.write_tile(
                    body, batch, body.let("tile", b.add(first, position)), panels, memory
                )
        done = vectorise_loops(body.block(), lanes_of(self.group), self.group.target)
        return self.group.call("", done, chunks, NOTE, helpers=tuple(self.helpers.values()))

    def panels(self, body: b.Body, batch: Index, head: Expr) -> _Panels:
        """Return packed k and v, which the chunk packs where they are small."""
        if not self.plan.packs_locally:
            k, v = self.group.workspaces
            return _Panels(k, v, (head,))
        k, v = (
            body.alloc(name, self.plan.dtype, shape, Scope.LOCAL)
            for name, shape in zip("kv", self.plan.packed, strict=True)
        )
        panels = _Panels(k, v, ())
        self.pack(body, batch, panels)
        return panels

    def allocate(self, body: b.Body) -> _Memory:
        """Return the local memory of a tile."""
        plan = self.plan
        sizes = (plan.features, plan.key_panels * plan.width, plan.value_panels * plan.width)
        return _Memory(
            *(
                body.alloc(name, plan.dtype, (plan.height, size), Scope.LOCAL)
                for name, size in zip(("q", "scores", "sums"), sizes, strict=True)
            )
        )

    def write_tile(
        self, body: b.Body, batch: Index, tile: Expr, panels: _Panels, memory: _Memory
    ) -> None:
        """Write all of a tile of queries."""
        plan = self.plan
        lower = b.max_(b.sub(tile, plan.tall), 0)
        start = body.let("row", b.sub(b.mul(tile, plan.height), lower))
        height = b.select(b.lt(tile, plan.tall), b.index(plan.height), b.index(plan.height - 1))
        height = body.let("rows", height)
        self.copy_queries(body, batch, (start, height), memory.q)
        self.write_product(body, tile, (memory.scores, memory.q, panels.k), panels.prefix)
        with body.loop(height, "row") as row:
            self.write_softmax(body, batch, (b.add(start, row), row), memory)
        self.write_product(body, tile, (memory.sums, memory.scores, panels.v), panels.prefix)
        with body.loop(height, "row") as row:
            self.write_row(body, batch, (b.add(start, row), row), memory)

    def copy_queries(
        self, body: b.Body, batch: Index, rows: tuple[Expr, Expr], target: Buffer
    ) -> None:
        """Copy the rows of q of a tile."""
        q, (start, height) = self.plan.first.operands[0], rows
        load = self.loader(body, q, batch)
        with body.loop(height, "row") as row:
            place = body.let("place", b.add(start, row))
            with body.loop(b.index(self.plan.features), "p", LoopKind.VECTOR) as p:
                body.store(target, [row, p], load(place, p))

    def write_product(
        self, body: b.Body, tile: Expr, memories: tuple[Buffer, Buffer, Buffer], prefix: Index
    ) -> None:
        """Write the product of a tile by all panels: c = a @ panels."""
        c, a, right = memories
        panels, depth, width = right.shape[-3:]
        zero = b.index(0)
        with body.loop(b.as_index(panels), "panel") as panel:
            views = (
                View(c, (zero, b.mul(panel, b.as_index(width)))),
                View(a, (zero, zero)),
                View(right, (*prefix, panel, zero, zero)),
            )
            scalars = (depth, a.shape[1], 1, width, c.shape[1], 0)
            body.add(self.by_height(tile, views, [b.as_index(x) for x in scalars]))

    def by_height(self, tile: Expr, views: Sequence[View], scalars: Sequence[Expr]) -> Block:
        """Return the call of the micro-kernel that has the height of a tile."""
        plan = self.plan

        def call(rows: int) -> Block:
            fused = self.group.target.fma
            kernel = Tile(plan.dtype, rows, plan.vectors, plan.lanes, fused)
            self.helpers.setdefault(kernel.name, product_kernel(kernel))
            return (call_product(kernel, views, scalars),)

        if plan.tall == plan.tiles:
            return call(plan.height)
        return (If(b.lt(tile, plan.tall), call(plan.height), call(plan.height - 1)),)

    # --- rows ------------------------------------------------------------------------------------

    def write_softmax(
        self, body: b.Body, batch: Index, row: tuple[Expr, Expr], memory: _Memory
    ) -> None:
        """Turn a row of scores into weights; `row` counts in q, in the tile.

        They are divided by their sum here, not the result: sums of v can't leave the range of v.
        """
        soft, (query, line), scores = self.plan.softmax, row, memory.scores
        keys = b.index(self.plan.keys)
        lowest = b.const(-float("inf"), self.plan.dtype)
        score = self.plan.first.results[0]
        reader = Reader(self.group, body, {score: lambda at: b.load(scores, [line, at[-1]])})
        with body.fold(keys, [lowest], "k", LoopKind.VECTOR) as folding:
            index = (*batch, query, folding.index)
            x = body.let("x", reader.inside().load(soft.x, index))
            if soft.x is not score:
                body.store(scores, [line, folding.index], x)
            folding.next = [b.maximum(folding.values[0], x)]
        top = self.guarded(body, batch, query, (soft.top, soft.difference), folding.results[0])
        with body.fold(keys, [b.const(0.0, self.plan.dtype)], "k", LoopKind.VECTOR) as folding:
            weight = exp_below(b.sub(b.load(scores, [line, folding.index]), top))
            weight = body.let("weight", weight)
            body.store(scores, [line, folding.index], weight)
            folding.next = [b.add(folding.values[0], weight)]
        pair = (soft.total, soft.division)
        total = self.guarded(body, batch, query, pair, folding.results[0])
        share = body.let("share", b.div(b.const(1.0, self.plan.dtype), total))
        with body.loop(keys, "k", LoopKind.VECTOR) as k:
            weight = b.load(scores, [line, k])
            body.store(scores, [line, k], b.mul(weight, b.broadcast(share, weight.type.lanes)))

    def guarded(
        self, body: b.Body, batch: Index, query: Expr, nodes: tuple[Node, Node], result: Expr
    ) -> Expr:
        """Return what a node reads of a reduction, whose result may stand behind a `where`."""
        reduction, reader_node = nodes
        reader = Reader(self.group, body, {reduction.results[0]: lambda _: result})
        value = reader.load_broadcast(reader_node.operands[1], (*batch, query, b.index(0)))
        return body.let("of_row", value)

    def write_row(
        self, body: b.Body, batch: Index, row: tuple[Expr, Expr], memory: _Memory
    ) -> None:
        """Write a row of the result, across the transpose that follows it if there is one."""
        query, line = row
        (output,) = self.group.body.outputs
        with body.loop(b.index(self.plan.values), "j", LoopKind.VECTOR) as j:
            index: Index = (*batch, query, j)
            if output.node is not None and output.node.op == "transpose":
                index = tuple(index[axis] for axis in output.node.attributes["permutation"])
            Reader(self.group, body).store(0, index, b.load(memory.sums, [line, j]))


@dataclass(frozen=True, slots=True)
class _Memory:
    """The local memory of a tile: [rows, elements] each."""

    q: Buffer
    scores: Buffer
    sums: Buffer
