"""Reduction groups: sweeps over the reduced axes, one for each reduction that waits for another.

Rows, where the innermost axis is reduced (softmax and layer_norm over the last axis):

    parallel chunk
      for row in chunk                    the kept axes, flattened
        for r, vector for k               sweep 0: reductions, lanes are partial results
        ...                               sweep 1, ...: reductions that use earlier ones
        vector for k                      last sweep: outputs of the size of the domain
        store the kept outputs

Columns, where the innermost axis is kept (sums over the batch):

    parallel chunk
      vector for column in chunk          a lane is a column of its own
        for r                             sweeps as above

Split, where too few elements are kept to share the work: fixed parts of the outermost reduced axis
are reduced into a workspace by one kernel and combined by a second one.

Rows of columns, where the leading axes of much memory are reduced: parts as above, and memory is
read along its rows.

    parallel chunk                        (part of the rows, block of columns)
      for 8 rows
        vector for column in block        partial result = partial result + ((row 0 + row 1) + ...)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope
from frame.codegen.schedules.access import INDEX_RULES, AxisPart, Reader, captures_below
from frame.codegen.schedules.cpu.chunks import grain, is_streamed, lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.softmax import softmax_rules
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.nest import Nest, Run, make_nest
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product, static
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.errors import InternalError
from frame.core.shapes import Size
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

NOTE = __doc__.split("\n\n", 1)[1]
_PARTS = 32  # how many parts a split reduction has
_SPLIT_BELOW = 4  # kept elements (or column blocks) below which a reduction is split
_SPLIT_COLUMNS = 32  # kept elements that are one such block
_SPLIT_ABOVE = 1 << 15  # domain elements above which it is
_COLUMNS = 4  # vectors of columns that are reduced together, to hide the latency of an addition
_SYMBOLIC = 1 << 10
_ROWS = 8  # rows that one sweep over the columns reduces
_LEAST_ROWS, _LEAST_ELEMENTS = 64, 1 << 16  # of a domain that is reduced row by row
_PART_ELEMENTS = 1 << 15  # of the domain, that one part reduces at least
_BLOCK_BYTES = 1 << 14  # of the partial results of one chunk
_COMBINED = 1 << 9  # columns of one chunk that combines parts
_ROW_ELEMENTS = 1 << 12  # the longest row of costly values that is kept on the stack


@dataclass(frozen=True, slots=True)
class Combine:
    """A reduction operator: its neutral element in a dtype and how two results combine."""

    neutral: Callable[[DType], bool | int | float]
    combine: Callable[[Expr, Expr], Expr]


def _lowest(dtype: DType) -> float | int:
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _highest(dtype: DType) -> float | int:
    return np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)


# reduction op -> its operator
COMBINE: dict[str, Combine] = {
    "sum": Combine(lambda dtype: 0, b.add),
    "prod": Combine(lambda dtype: 1, b.mul),
    "max": Combine(_lowest, b.maximum),
    "min": Combine(_highest, b.minimum),
    "any": Combine(lambda dtype: False, b.or_),
    "all": Combine(lambda dtype: True, b.and_),
}


def domain_of(body: Graph) -> tuple[tuple[Size, ...], tuple[int, ...]]:
    """Return the domain and the reduced axes of a reduction group."""
    node = next(n for n in body.nodes if Trait.REDUCTION in lookup(n.op).traits)
    return node.operands[0].shape, tuple(node.attributes["axes"])


def _is_split(body: Graph) -> bool:
    """Whether the work is cut along a reduced axis."""
    domain, axes = domain_of(body)
    kept = [size for axis, size in enumerate(domain) if axis not in axes]
    total = math.prod(static(size, _SYMBOLIC) for size in domain)
    columns = bool(kept) and (len(domain) - 1) not in axes
    share = math.prod(static(size, _SYMBOLIC) for size in kept)
    chunks = share // _SPLIT_COLUMNS if columns else share
    return chunks < _SPLIT_BELOW and total >= _SPLIT_ABOVE and _depth(body) == 1


def _is_row_wise(body: Graph) -> bool:
    """Whether rows of columns are reduced: the leading axes, of known sizes, of much memory."""
    domain, axes = domain_of(body)
    if tuple(sorted(axes)) != tuple(range(len(axes))) or len(axes) == len(domain):
        return False
    sizes = [size for size in domain if isinstance(size, int)]
    if len(sizes) < len(domain) or _depth(body) > 1 or any(o.shape == domain for o in body.outputs):
        return False
    rows, columns = math.prod(sizes[: len(axes)]), math.prod(sizes[len(axes) :])
    return (
        rows >= _LEAST_ROWS and rows * columns >= _LEAST_ELEMENTS and columns >= 2 * _SPLIT_COLUMNS
    )


def _parts(body: Graph) -> int:
    """Return how many parts the rows of a split reduction are cut into."""
    if _is_split(body) or not _is_row_wise(body):
        return _PARTS
    domain, axes = domain_of(body)
    sizes = [static(size, _SYMBOLIC) for size in domain]
    rows = math.prod(sizes[: len(axes)])
    return max(2, min(_PARTS, rows // _ROWS, math.prod(sizes) // _PART_ELEMENTS))


def _depth(body: Graph) -> int:
    """How many sweeps the reductions of a group take, plus one if a full result waits for one."""
    level: dict[Value, int] = {}
    for node in body.nodes:
        below = max((level.get(operand, 0) for operand in node.operands), default=0)
        below += Trait.REDUCTION in lookup(node.op).traits
        level.update(dict.fromkeys(node.results, below))
    domain, _ = domain_of(body)
    waits = any(level[o] > 0 and o.shape == domain for o in body.outputs if o in level)
    return max(level.values(), default=0) + waits


def workspaces(body: Graph) -> tuple[Size, ...]:
    """Return the workspace sizes in bytes: the partial results of a split reduction."""
    if not _is_split(body) and not _is_row_wise(body):
        return ()
    domain, axes = domain_of(body)
    kept = product(size for axis, size in enumerate(domain) if axis not in axes)
    return tuple(
        kept * (_parts(body) * compute_dtype(node.results[0].dtype).itemsize)
        for node in body.nodes
        if Trait.REDUCTION in lookup(node.op).traits
    )


def overwritable(body: Graph) -> tuple[tuple[int, int], ...]:
    """Return the (output, capture) pairs that may share memory.

    The output has the kept axes alone, and the capture, of its type, is read where outputs are
    finished, at the index of the output, and by no sweep.
    """
    domain, _ = domain_of(body)
    swept = _read_in_sweeps(body, domain)
    return tuple(
        (o, c)
        for o, output in enumerate(body.outputs)
        for c, entry in enumerate(body.inputs)
        if output.shape != domain and entry.value.type == output.type and entry.value not in swept
    )


def _read_in_sweeps(body: Graph, domain: tuple[Size, ...]) -> set[Value]:
    """Captures below a reduction, an output of the size of the domain, or a change of index."""
    below = [output for output in body.outputs if output.shape == domain]
    for node in body.nodes:
        if Trait.REDUCTION in lookup(node.op).traits or node.op in INDEX_RULES:
            below += node.operands
    return captures_below(below)


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a reduction group."""
    domain, axes = domain_of(group.body)
    nest = make_nest(group, domain, axes)
    if _is_split(group.body):
        return _lower_split(nest, _split_kernel)
    if _is_row_wise(group.body) and len(nest.kept_runs) == 1:
        return _lower_split(nest, _rows_kernel)
    if nest.runs and not nest.runs[-1].reduced:
        return (_lower_columns(nest),)
    return (_lower_rows(nest),)


def _chunk_rows(nest: Nest, rows: Expr, row_size: Expr) -> tuple[Expr, Expr]:
    """Return how many rows make a chunk, and how many chunks there are."""
    count = b.max_(b.div(b.index(grain(nest.group.body)), b.max_(row_size, 1)), 1)
    return count, b.ceil_div(rows, count)


def _product(nest: Nest, runs: Sequence[Run]) -> Expr:
    return nest.group.extent(product(run.size for run in runs))


def _lower_rows(nest: Nest) -> KernelCall:
    body = b.Body()
    kept = nest.kept_runs
    rows, row_size = _product(nest, kept), _product(nest, nest.reduced_runs)
    count, chunks = _chunk_rows(nest, rows, row_size)
    extents = [nest.group.extent(run.size) for run in kept]
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, count))
        with body.loop(remaining(rows, first, count), "row") as row:
            places = unflatten(b.add(first, row), extents)
            loops = {run: body.let("i", i) for run, i in zip(kept, places, strict=True)}
            _Sweeps(nest, body, loops, vector=True).write()
    block = vectorise_loops(body.block(), lanes_of(nest.group), nest.group.target)
    return nest.group.call("", block, chunks, NOTE)


def _lower_columns(nest: Nest) -> KernelCall:
    body = b.Body()
    *outer, inner = nest.kept_runs
    width = _COLUMNS * lanes_of(nest.group)
    columns = nest.group.extent(inner.size)
    rows, blocks = _product(nest, outer), b.ceil_div(columns, width)
    chunks = b.mul(rows, blocks)
    extents = [nest.group.extent(run.size) for run in outer]
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        row, part = unflatten(chunk, [rows, blocks])
        start = body.let("start", b.mul(part, width))
        places = [body.let("i", i) for i in unflatten(row, extents)]
        with body.loop(remaining(columns, start, width), "j", LoopKind.VECTOR) as j:
            loops: dict[Run, Expr] = dict(zip(outer, places, strict=True))
            _Sweeps(nest, body, {**loops, inner: b.add(start, j)}, vector=False).write()
    block = vectorise_loops(body.block(), width)
    return nest.group.call("", block, chunks, NOTE)


_PartKernel = Callable[[Nest, tuple[Buffer, ...]], KernelCall]


def _lower_split(nest: Nest, part_kernel: _PartKernel) -> tuple[KernelCall, ...]:
    kept = product(run.size for run in nest.kept_runs)
    parts = _parts(nest.group.body)
    partials = tuple(
        Buffer(
            memory.name,
            compute_dtype(node.results[0].dtype),
            (parts, kept if isinstance(kept, int) else nest.group.extent(kept)),
            (),
            Scope.WORKSPACE,
        )
        for memory, node in zip(nest.group.workspaces, nest.reductions, strict=True)
    )
    group = nest.group.with_buffers(workspaces=partials)
    nest = replace(nest, group=group)
    return (part_kernel(nest, partials), _combine_kernel(nest, partials))


def _split_kernel(nest: Nest, partials: tuple[Buffer, ...]) -> KernelCall:
    """Reduce one part of the longest reduced run."""
    group, body = nest.group, b.Body()
    split = max(nest.reduced_runs, key=lambda run: static(run.size, _SYMBOLIC))
    columns = not nest.runs[-1].reduced
    length = group.extent(split.size)
    size = b.ceil_div(length, _PARTS)
    with body.loop(b.index(_PARTS), "part", LoopKind.PARALLEL) as part:
        start = body.let("start", b.min_(b.mul(part, size), length))
        extent = body.let("extent", remaining(length, start, size))
        rows, kind = _product(nest, nest.kept_runs), LoopKind.SERIAL
        with body.loop(rows, "row", LoopKind.VECTOR if columns else kind) as row:
            sweeps = _Sweeps(
                nest, body, _kept_loops(nest, body, row), not columns, (split, start, extent)
            )
            sweeps.reduce()
            for memory, node in zip(partials, nest.reductions, strict=True):
                body.store(memory, [part, row], sweeps.results[node.results[0]])
            sweeps.store_full()
    block = vectorise_loops(body.block(), lanes_of(group), group.target)
    return group.call("part", block, b.index(_PARTS), NOTE)


def _rows_kernel(nest: Nest, partials: tuple[Buffer, ...]) -> KernelCall:
    """Reduce one part of the rows, a block of columns at a time, into its partial results."""
    group, body = nest.group, b.Body()
    rows, columns = _product(nest, nest.reduced_runs), group.extent(nest.kept_runs[0].size)
    parts, blocks, width = _grid_of_rows(nest, partials)
    with body.loop(b.index(parts * blocks), "chunk", LoopKind.PARALLEL) as chunk:
        part, block = unflatten(chunk, [b.index(parts), b.index(blocks)])
        work = _Rows(nest, body, partials, body.let("part", part))
        first = body.let("first", b.div(b.mul(part, rows), parts))
        after = body.let("after", b.div(b.mul(b.add(part, 1), rows), parts))
        start = body.let("start", b.mul(block, width))
        extent = body.let("columns", remaining(columns, start, b.index(width)))
        work.sweep(start, extent, ())
        groups = body.let("groups", b.div(b.sub(after, first), _ROWS))
        with body.loop(groups, "group") as number:
            row = b.add(first, b.mul(number, _ROWS))
            work.sweep(start, extent, [b.add(row, r) for r in range(_ROWS)])
        done = body.let("done", b.add(first, b.mul(groups, _ROWS)))
        with body.loop(b.sub(after, done), "row") as row:
            work.sweep(start, extent, [b.add(done, row)])
    block_ = vectorise_loops(body.block(), lanes_of(group), group.target)
    return group.call("part", block_, b.index(parts * blocks), NOTE)


def _grid_of_rows(nest: Nest, partials: tuple[Buffer, ...]) -> tuple[int, int, int]:
    """Return the parts, the blocks of columns, and the columns of a block."""
    parts, columns = partials[0].shape
    bytes_ = sum(memory.dtype.itemsize for memory in partials)
    if not isinstance(parts, int) or not isinstance(columns, int):
        raise InternalError("expected known sizes of the partial results")
    blocks = -(-columns * bytes_ // _BLOCK_BYTES)
    width = -(-columns // blocks // _SPLIT_COLUMNS) * _SPLIT_COLUMNS
    return parts, -(-columns // width), width


class _Rows:
    """Writes sweeps over a block of columns that reduce some rows into the partial results."""

    def __init__(self, nest: Nest, body: b.Body, partials: tuple[Buffer, ...], part: Expr) -> None:
        self.nest, self.body, self.partials, self.part = nest, body, partials, part

    def sweep(self, start: Expr, extent: Expr, rows: Sequence[Expr]) -> None:
        """Add rows to the partial results of columns; no rows make them neutral."""
        extents = [self.nest.group.extent(run.size) for run in self.nest.reduced_runs]
        places = [[self.body.let("r", i) for i in unflatten(row, extents)] for row in rows]
        with self.body.loop(extent, "j", LoopKind.VECTOR) as j:
            column = b.add(start, j)
            kept = self.nest.index({self.nest.kept_runs[0]: column})
            reader = Reader(self.nest.group, self.body)
            indices = [self._index(place, kept) for place in places]
            for memory, node in zip(self.partials, self.nest.reductions, strict=True):
                found = [reader.load(node.operands[0], index) for index in indices]
                self.body.store(
                    memory, [self.part, column], self._total(memory, column, node, found)
                )

    def _index(self, place: Sequence[Expr], kept: Index) -> Index:
        rows = self.nest.index(dict(zip(self.nest.reduced_runs, place, strict=True)))
        return tuple(
            row if axis in self.nest.reduced else column
            for axis, (row, column) in enumerate(zip(rows, kept, strict=True))
        )

    def _total(self, memory: Buffer, column: Expr, node: Node, found: Sequence[Expr]) -> Expr:
        """Combine elements by pairs, then with what is there already."""
        combine = COMBINE[node.op].combine
        if not found:
            return b.const(COMBINE[node.op].neutral(memory.dtype), memory.dtype)
        terms = [b.cast(term, memory.dtype) for term in found]
        while len(terms) > 1:
            terms = [combine(*terms[i : i + 2]) for i in range(0, len(terms), 2)]
        return combine(b.load(memory, [self.part, column]), terms[0])


def _kept_loops(nest: Nest, body: b.Body, row: Expr) -> dict[Run, Expr]:
    kept = nest.kept_runs
    if len(kept) == 1:
        return {kept[0]: row}
    places = unflatten(row, [nest.group.extent(run.size) for run in kept])
    return {run: body.let("i", i) for run, i in zip(kept, places, strict=True)}


def _combine_kernel(nest: Nest, partials: tuple[Buffer, ...]) -> KernelCall:
    """Combine the parts in order, and compute the kept outputs from the totals."""
    body = b.Body()
    total = _product(nest, nest.kept_runs)
    known = b.constant_value(total)
    kind = LoopKind.SERIAL
    if len(nest.kept_runs) == 1 and known is not None and known >= _SPLIT_COLUMNS:
        kind = LoopKind.VECTOR
    chunks = b.ceil_div(total, _COMBINED)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, _COMBINED))
        with body.loop(remaining(total, first, b.index(_COMBINED)), "row", kind) as position:
            _combine_column(nest, body, partials, b.add(first, position))
    block = vectorise_loops(body.block(), lanes_of(nest.group))
    return nest.group.call("total", block, chunks, NOTE)


def _combine_column(nest: Nest, body: b.Body, partials: tuple[Buffer, ...], row: Expr) -> None:
    sweeps = _Sweeps(nest, body, _kept_loops(nest, body, row), vector=False)
    for memory, node in zip(partials, nest.reductions, strict=True):
        neutral = b.const(COMBINE[node.op].neutral(memory.dtype), memory.dtype)
        with body.fold(b.as_index(memory.shape[0]), [neutral], "part") as folding:
            element = b.load(memory, [folding.index, row])
            folding.next = [COMBINE[node.op].combine(folding.values[0], element)]
        sweeps.bind(node, folding.results[0])
    sweeps.store_kept()


def _levels(nest: Nest) -> int:
    return max(nest.stage[node.results[0]] for node in nest.reductions)


def _costly(nest: Nest) -> dict[Value, list[int]]:
    """For each costly value of the size of the domain, the sweeps that need it, in order."""
    needs: dict[Value, set[int]] = {}
    for node in nest.reductions:
        _mark(node.operands[0], nest.stage[node.results[0]], needs, nest)
    for output in nest.group.body.outputs:
        if nest.is_full(output):
            _mark(output, _levels(nest) + 1, needs, nest)
    return {value: sorted(levels) for value, levels in needs.items()}


def _mark(root: Value, level: int, needs: dict[Value, set[int]], nest: Nest) -> None:
    """Note that sweep `level` needs the costly values nearest to `root`."""
    pending, seen = [root], set()
    while pending:
        value = pending.pop()
        node = value.node
        if node is None or value in seen or node in nest.reductions:
            continue
        seen.add(value)
        if Trait.EXPENSIVE in lookup(node.op).traits and value.shape == nest.domain:
            needs.setdefault(value, set()).add(level)
        else:
            pending.extend(node.operands)


class _Sweeps:
    """Writes the sweeps over the reduced axes for one place on the kept axes."""

    def __init__(
        self,
        nest: Nest,
        body: b.Body,
        loops: dict[Run, Expr],
        vector: bool,
        window: tuple[Run, Expr, Expr] | None = None,
    ) -> None:
        self.nest = nest
        self.body = body
        self.loops = loops
        self.vector = vector
        self.window = window  # a reduced run, and the start and extent of the part to sweep over
        self.reader = Reader(nest.group, body)
        self.reader.rules = softmax_rules(nest.group.body)
        self.kept = nest.index(loops)
        self.results: dict[Value, Expr] = {}
        self.kept_rows: dict[Value, Buffer] = {}

    def write(self) -> None:
        """Write all sweeps and the stores of all outputs."""
        self.reduce()
        self.store_full()
        self.store_kept()

    def reduce(self) -> None:
        """Write the sweeps that compute the reductions."""
        for level in range(1, _levels(self.nest) + 1):
            for value in self._kept_at(level):
                self.kept_rows[value] = self._allocate(value)
            if level == 2:
                self._look_ahead()
            self._reduce(
                [n for n in self.nest.reductions if self.nest.stage[n.results[0]] == level]
            )
            for value, memory in self.kept_rows.items():
                self.reader.bindings[value] = self._from_row(memory)

    def _look_ahead(self) -> None:
        """Prefetch the next row of what is read, where rows come from memory and not from caches.

        Hardware stops following a row at its end: memory would be idle while a row is computed.
        """
        group, runs = self.nest.group, self.nest.runs
        large = any(is_streamed(group, output) for output in group.body.outputs)
        if not large or not self.vector or len(runs) != 2:
            return
        rows, length = (run.size for run in runs)
        for memory in group.captures:
            if memory.shape != (rows, length) or not isinstance(length, int):
                continue
            line = max(1, group.target.cache_line // memory.dtype.itemsize)
            if length > _ROW_ELEMENTS:
                continue
            row = b.min_(b.add(self.loops[runs[0]], 1), b.sub(group.extent(rows), 1))
            place = self.body.let("ahead", row)
            with self.body.loop(b.index(-(-length // line)), "line") as number:
                self.body.prefetch(memory, [place, b.mul(number, line)])

    def _kept_at(self, level: int) -> list[Value]:
        """Costly values that sweep `level` computes and a later one needs: their row is kept."""
        runs = self.nest.reduced_runs
        small = len(runs) == 1 and isinstance(runs[0].size, int) and runs[0].size <= _ROW_ELEMENTS
        if not (self.vector and small and self.window is None):
            return []
        return [
            v for v, levels in _costly(self.nest).items() if len(levels) > 1 and level == levels[0]
        ]

    def _allocate(self, value: Value) -> Buffer:
        size = self.nest.reduced_runs[0].size
        if not isinstance(size, int):
            raise InternalError(f"a row of the run-time size {size} can't be kept on the stack")
        return self.body.alloc("row", compute_dtype(value.dtype), (size,), Scope.LOCAL)

    def _from_row(self, memory: Buffer) -> Callable[[Index], Expr]:
        axes = self.nest.reduced_runs[0].axes

        def load(index: Index) -> Expr:
            place = index[axes[0]]
            run = place.run if isinstance(place, AxisPart) else place
            return b.load(memory, [run])

        return load

    def bind(self, node: Node, result: Expr) -> None:
        """Let `result` be the element of a reduction at the current place."""
        self.results[node.results[0]] = result
        self.reader.bindings[node.results[0]] = lambda index: result

    def _extent(self, run: Run) -> Expr:
        if self.window is not None and self.window[0] is run:
            return self.window[2]
        return self.nest.group.extent(run.size)

    def _place(self, run: Run, var: Expr) -> Expr:
        if self.window is not None and self.window[0] is run:
            return b.add(self.window[1], var)
        return var

    def _reduce(self, nodes: list[Node]) -> None:
        """Write one sweep that computes `nodes` together."""
        dtypes = [compute_dtype(node.results[0].dtype) for node in nodes]
        inits: list[Expr] = [
            b.const(COMBINE[node.op].neutral(dtype), dtype)
            for node, dtype in zip(nodes, dtypes, strict=True)
        ]
        results = self._fold(list(self.nest.reduced_runs), {}, inits, nodes)
        for node, result in zip(nodes, results, strict=True):
            self.bind(node, result)

    def _fold(
        self, runs: list[Run], inner: dict[Run, Expr], inits: list[Expr], nodes: list[Node]
    ) -> list[Expr]:
        if not runs:
            return self._step(inner, inits, nodes)
        kind = LoopKind.VECTOR if self.vector and len(runs) == 1 else LoopKind.SERIAL
        with self.body.fold(self._extent(runs[0]), inits, "k", kind) as folding:
            nested = {**inner, runs[0]: self._place(runs[0], folding.index)}
            folding.next = self._fold(runs[1:], nested, list(folding.values), nodes)
        return list(folding.results)

    def _step(self, inner: dict[Run, Expr], values: list[Expr], nodes: list[Node]) -> list[Expr]:
        index = self._full_index(inner)
        reader = self.reader.inside()
        following = []
        for node, value in zip(nodes, values, strict=True):
            element = reader.load(node.operands[0], index)
            element = b.cast(element, value.type.dtype)
            following.append(self.body.let("acc", COMBINE[node.op].combine(value, element)))
        self._keep_rows(reader, index, inner)
        return following

    def _keep_rows(self, reader: Reader, index: Index, inner: dict[Run, Expr]) -> None:
        """Store the values that are kept and that this sweep has computed."""
        for value, memory in self.kept_rows.items():
            if value not in self.reader.bindings:
                self.body.store(memory, list(inner.values()), reader.load(value, index))

    def _full_index(self, inner: dict[Run, Expr]) -> Index:
        full = self.nest.index({**self.loops, **inner})
        return tuple(
            place if axis in self.nest.reduced else kept
            for axis, (place, kept) in enumerate(zip(full, self.kept, strict=True))
        )

    def store_full(self) -> None:
        """Write one more sweep for the outputs of the size of the domain, if there are any."""
        outputs = self.nest.group.body.outputs
        full = [k for k, output in enumerate(outputs) if self.nest.is_full(output)]
        if full:
            self._store_sweep(list(self.nest.reduced_runs), {}, full)

    def _store_sweep(self, runs: list[Run], inner: dict[Run, Expr], outputs: list[int]) -> None:
        if runs:
            kind = LoopKind.VECTOR if self.vector and len(runs) == 1 else LoopKind.SERIAL
            with self.body.loop(self._extent(runs[0]), "k", kind) as k:
                nested = {**inner, runs[0]: self._place(runs[0], k)}
                self._store_sweep(runs[1:], nested, outputs)
            return
        index = self._full_index(inner)
        reader = self.reader.inside()
        values = self.nest.group.body.outputs
        ready = [self.body.let("y", reader.load(values[k], index)) for k in outputs]
        for output, value in zip(outputs, ready, strict=True):
            streamed = is_streamed(self.nest.group, values[output])
            reader.store(output, index, value, streamed=streamed)

    def store_kept(self) -> None:
        """Write the stores of the outputs that have only the kept axes.

        All are computed before any is stored: an output may overwrite a capture.
        """
        outputs = self.nest.group.body.outputs
        kept = [k for k, output in enumerate(outputs) if not self.nest.is_full(output)]
        places = [self.nest.index_of(outputs[k], self.kept) for k in kept]
        ready = [
            self.body.let("y", self.reader.load(outputs[k], index))
            for k, index in zip(kept, places, strict=True)
        ]
        for position, index, value in zip(kept, places, ready, strict=True):
            self.reader.store(position, index, value)
