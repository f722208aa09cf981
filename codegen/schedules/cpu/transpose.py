"""Elementwise groups that read a capture across its rows: squares of vectors turned in registers.

    parallel chunk                  blocks of lines x columns, or several outer positions
      for square in block             where both extents reach a vector
        load a vector along the line of the capture, for each column; turn the square
        for line in square              every output is computed at a vector of columns, then stored
      what is left over               as in an elementwise group

`across` is the axis that is contiguous in the capture, `inner` the one that is contiguous in the
results. Squares are taken by lines of the cache, so that each line is read and written while it is
near. Where one extent is shorter than a vector, and the two axes are neighbours in memory, the
elements of a vector of the other axis lie in one piece, which is dealt out into vectors, or
collected from them, in registers:

    few lines        x[..., inner, 3]   -> y[..., 3, ..., inner]    one vector a line is dealt out
    few columns      x[..., 3, across]  -> y[..., across, 3]        one vector a column is collected
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Const, Expr, LoopKind, Var, fresh
from frame.codegen.schedules.access import AxisPart, Binding, Reader, Trace
from frame.codegen.schedules.cpu.chunks import flat_extent, grain, lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.gemm_pack import transposed
from frame.codegen.schedules.cpu.vectors import picked, vectorise_loops
from frame.codegen.schedules.group import Index, KernelCall
from frame.codegen.schedules.nest import Nest, Run
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core import config
from frame.core.dataclass import dataclass
from frame.ir.graph import Value

NOTE = __doc__.split("\n\n")[1]
_MOST_LANES = 16  # of a square: as many vectors are live at a time
_BLOCK_LINES = 8  # squares of cache lines that a block is high

Place = tuple["Run | Expr", ...]
"""Which loop walks each dimension of a buffer; a constant where none does."""
Loops = Mapping[Run, Expr]


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """A nest whose `captures` are contiguous along `across`, another run than the innermost one.

    `few` says which of the two extents is shorter than a vector: "", "lines" or "columns".
    """

    nest: Nest
    across: Run
    captures: Mapping[Value, Place]
    lanes: int
    few: str = field(default="")

    @property
    def inner(self) -> Run:
        """The innermost run, contiguous in the results."""
        return self.nest.runs[-1]

    @property
    def outer(self) -> tuple[Run, ...]:
        """All other runs."""
        return tuple(run for run in self.nest.runs if run not in (self.across, self.inner))

    def extent(self, run: Run) -> Expr:
        """Return the trips of a run."""
        return self.nest.group.extent(run.size)

    def memory(self, value: Value) -> Buffer:
        """Return the buffer of a capture, with a dimension for each run."""
        group = self.nest.group
        return group.captures[group.body.input_values.index(value)]

    def place(self, value: Value, loops: Loops) -> list[Expr]:
        """Return where a capture is read at the values of the loops."""
        return [loops[i] if isinstance(i, Run) else i for i in self.captures[value]]


def find_crossing(nest: Nest) -> Crossing | None:
    """Return how captures of an elementwise nest are turned; None where none needs it."""
    lanes = min(lanes_of(nest.group), _MOST_LANES)
    if len(nest.runs) < 2 or lanes < 2:
        return None
    inner = nest.runs[-1]
    turned = {
        value: place
        for value, place in _places(nest).items()
        if place and isinstance(place[-1], Run) and place[-1] is not inner and inner in place
    }
    if not turned:
        return None
    last = [place[-1] for place in turned.values()]
    across = max((run for run in last if isinstance(run, Run)), key=_known_size)
    same = {value: place for value, place in turned.items() if place[-1] is across}
    crossing = Crossing(nest, across, same, lanes)
    return _classified(crossing)


def _known_size(run: Run | Expr) -> int:
    size = run.size if isinstance(run, Run) else 1
    return size if isinstance(size, int) else 1 << 30


def _places(nest: Nest) -> dict[Value, Place]:
    """The one way in which each capture is walked; captures walked in several ways are left out."""
    loops = {run: fresh("run") for run in nest.runs}
    runs = {var: run for run, var in loops.items()}
    trace = Trace()
    reader = Reader(nest.group, b.Body(), trace=trace)
    for output in nest.group.body.outputs:
        reader.load(output, nest.index(loops))
    found: dict[Value, set[Place]] = {}
    for value, _, index in trace.accesses:
        if value is not None and value.node is None:
            found.setdefault(value, set()).add(_loops_of(index, runs))
    return {value: next(iter(places)) for value, places in found.items() if len(places) == 1}


def _loops_of(index: Index, runs: Mapping[Var, Run]) -> Place:
    """The loops of the dimensions of a buffer; empty where one is computed."""
    merged = [i for i in index if not (isinstance(i, AxisPart) and i.position > 0)]
    plain = [i.run if isinstance(i, AxisPart) else i for i in merged]
    if not all(isinstance(i, Const) or i in runs for i in plain):
        return ()
    return tuple(i if isinstance(i, Const) else runs[i] for i in plain)  # type: ignore[index]


def _classified(crossing: Crossing) -> Crossing | None:
    """Choose how vectors are turned; None where both extents are too short for it."""
    runs, lanes = crossing.nest.runs, crossing.lanes
    few_lines = _known_size(crossing.across) < lanes
    few_columns = _known_size(crossing.inner) < lanes
    if few_lines and few_columns:
        return None
    if few_lines:
        neighbours = all(p[-2:] == (crossing.inner, crossing.across) for p in _all(crossing))
        return replace(crossing, few="lines") if neighbours else None
    if few_columns:
        return replace(crossing, few="columns") if runs[-2] is crossing.across else None
    return crossing


def _all(crossing: Crossing) -> Sequence[Place]:
    return tuple(crossing.captures.values())


def lower(crossing: Crossing) -> tuple[KernelCall, ...]:
    """Return the one kernel of an elementwise group that turns captures."""
    writer = _WRITERS[crossing.few](crossing)
    body = b.Body()
    chunks = writer.write(body)
    group = writer.nest.group
    block = vectorise_loops(body.block(), lanes_of(group), group.target)
    return (group.call("", block, chunks, NOTE),)


class _Writer:
    """Writes the chunks; a subclass writes what stands in a block."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing, self.lanes = crossing, crossing.lanes
        self.nest = crossing.nest
        self.line = self._line()

    def _line(self) -> int:
        """Elements of a cache line, a multiple of a vector."""
        least = min(value.dtype.itemsize for value in self.crossing.captures)
        return max(self.lanes, self.nest.group.target.cache_line // least)

    def block_sizes(self) -> tuple[int, int]:
        """Return how many positions across and of the innermost run a block covers at most."""
        if config.get("FRAME_GRAIN"):
            return self.line, self.line
        lines = self.line * _BLOCK_LINES
        columns = max(self.line, grain(self.nest.group.body) // lines // self.line * self.line)
        return lines, columns

    def write(self, body: b.Body) -> Expr:
        """Write all chunks and return their number."""
        crossing = self.crossing
        high, wide = self.block_sizes()
        lines, columns = crossing.extent(crossing.across), crossing.extent(crossing.inner)
        outer = [crossing.extent(run) for run in crossing.outer]
        rows = flat_extent(outer)
        area = b.max_(b.mul(b.min_(lines, high), b.min_(columns, wide)), 1)
        count = b.max_(b.div(b.index(high * wide), area), 1)
        extents = [b.ceil_div(rows, count), b.ceil_div(lines, high), b.ceil_div(columns, wide)]
        chunks = b.mul(b.mul(extents[0], extents[1]), extents[2])
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            part, line, column = (body.let("at", i) for i in unflatten(chunk, extents))
            first = body.let("first", b.mul(part, count))
            starts = body.let("line", b.mul(line, high)), body.let("column", b.mul(column, wide))
            sizes = (
                body.let("lines", remaining(lines, starts[0], b.index(high))),
                body.let("columns", remaining(columns, starts[1], b.index(wide))),
            )
            with body.loop(remaining(rows, first, count), "row") as row:
                places = unflatten(b.add(first, row), outer)
                loops = dict(zip(crossing.outer, (body.let("i", i) for i in places), strict=True))
                self.write_block(body, loops, starts, sizes)
        return chunks

    @abstractmethod
    def write_block(
        self, body: b.Body, loops: Loops, starts: tuple[Expr, Expr], sizes: tuple[Expr, Expr]
    ) -> None:
        """Write the loops of a block of lines and columns."""

    def is_whole(self, run: Run) -> bool:
        """Whether vectors fill a run, and with it each of its blocks."""
        return isinstance(run.size, int) and run.size % self.lanes == 0

    def at(self, loops: Loops, line: Expr, column: Expr) -> dict[Run, Expr]:
        """Return the loops with a position across and along the innermost run."""
        return {**loops, self.crossing.across: line, self.crossing.inner: column}

    def compute(
        self, body: b.Body, loops: Loops, vectors: Mapping[Value, Expr]
    ) -> tuple[Index, list[Expr]]:
        """Compute all outputs at one index, with the elements of some captures at hand."""
        index = self.nest.index({run: loops[run] for run in self.nest.runs})
        bindings = {value: _bound(value, vector) for value, vector in vectors.items()}
        reader = Reader(self.nest.group, body, bindings)
        return index, [body.let("y", reader.load(o, index)) for o in self.nest.group.body.outputs]

    def write_elements(self, body: b.Body, loops: Loops, vectors: Mapping[Value, Expr]) -> None:
        """Compute all outputs at an index before storing any: one may overwrite a capture."""
        index, values = self.compute(body, loops, vectors)
        reader = Reader(self.nest.group, body)
        for position, value in enumerate(values):
            reader.store(position, index, value)


def _bound(value: Value, element: Expr) -> Binding:
    return lambda index: b.cast(element, compute_dtype(value.dtype))


class _Squares(_Writer):
    """Both extents reach a vector."""

    def write_block(
        self, body: b.Body, loops: Loops, starts: tuple[Expr, Expr], sizes: tuple[Expr, Expr]
    ) -> None:
        lanes = self.lanes
        full = [body.let("squares", b.div(size, lanes)) for size in sizes]
        near = self.line // lanes
        # By squares of cache lines.
        with (
            body.loop(b.ceil_div(full[0], near), "lines") as i,
            body.loop(b.ceil_div(full[1], near), "columns") as j,
            body.loop(remaining(full[1], b.mul(j, near), b.index(near)), "column") as column,
            body.loop(remaining(full[0], b.mul(i, near), b.index(near)), "line") as line,
        ):
            top = b.mul(b.add(b.mul(i, near), line), lanes)
            left = b.mul(b.add(b.mul(j, near), column), lanes)
            self.write_square(
                body,
                loops,
                body.let("top", b.add(starts[0], top)),
                body.let("left", b.add(starts[1], left)),
            )
        done = [b.mul(count, lanes) for count in full]
        if not self.is_whole(self.crossing.across):
            lines = b.sub(sizes[0], done[0])
            with (
                body.loop(lines, "line") as line,
                body.loop(sizes[1], "column", LoopKind.VECTOR) as column,
            ):
                places = b.add(starts[0], b.add(done[0], line)), b.add(starts[1], column)
                self.write_elements(body, self.at(loops, *places), {})
        if not self.is_whole(self.crossing.inner):
            columns = b.sub(sizes[1], done[1])
            with body.loop(done[0], "line") as line, body.loop(columns, "column") as column:
                places = b.add(starts[0], line), b.add(starts[1], b.add(done[1], column))
                self.write_elements(body, self.at(loops, *places), {})

    def write_square(self, body: b.Body, loops: Loops, top: Expr, left: Expr) -> None:
        """Turn a square of each capture and compute its lines."""
        turned: dict[Value, list[Expr]] = {}
        for value in self.crossing.captures:
            memory = self.crossing.memory(value)
            square = []
            for lane in range(self.lanes):
                at = self.at(loops, b.ramp(top, self.lanes), b.add(left, lane))
                square.append(body.let("s", b.load(memory, self.crossing.place(value, at))))
            turned[value] = transposed(body, square)
        for lane in range(self.lanes):
            at = self.at(loops, b.add(top, lane), b.ramp(left, self.lanes))
            self.write_elements(body, at, {value: turned[value][lane] for value in turned})


class _Few(_Writer):
    """One extent, `count`, is shorter than a vector; chunks cut the other one."""

    def __init__(self, crossing: Crossing) -> None:
        super().__init__(crossing)
        self.long, short = crossing.inner, crossing.across
        if crossing.few == "columns":
            self.long, short = short, self.long
        self.count = _known_size(short)

    def block_sizes(self) -> tuple[int, int]:
        """One block is as high, or as wide, as the short extent."""
        along = self.line
        if not config.get("FRAME_GRAIN"):
            along = max(along, grain(self.nest.group.body) // self.count // along * along)
        return (self.count, along) if self.crossing.few == "lines" else (along, self.count)

    def write_vectors(
        self, body: b.Body, start: Expr, size: Expr, write: Callable[[Expr, int], None]
    ) -> None:
        """Write vectors of the long extent, then what is left over one by one."""
        full = body.let("full", b.div(size, self.lanes))
        with body.loop(full, "v") as v:
            write(body.let("at", b.add(start, b.mul(v, self.lanes))), self.lanes)
        if self.is_whole(self.long):
            return
        done = b.mul(full, self.lanes)
        with body.loop(b.sub(size, done), "j") as j:
            write(body.let("at", b.add(start, b.add(done, j))), 1)


class _FewLines(_Few):
    """The few lines of a capture stand side by side: vectors are dealt out."""

    def write_block(
        self, body: b.Body, loops: Loops, starts: tuple[Expr, Expr], sizes: tuple[Expr, Expr]
    ) -> None:
        flat = {value: _flattened(self.crossing.memory(value)) for value in self.crossing.captures}
        group = self.nest.group
        captures = tuple(
            flat.get(value, memory)
            for value, memory in zip(group.body.input_values, group.captures, strict=True)
        )
        self.nest = replace(self.nest, group=group.with_buffers(captures=captures))

        def write(column: Expr, lanes: int) -> None:
            dealt = {
                value: self.dealt(body, flat[value], value, loops, column, lanes) for value in flat
            }
            for line in range(self.count):
                at = self.at(loops, b.index(line), b.ramp(column, lanes))
                self.write_elements(body, at, {value: dealt[value][line] for value in dealt})

        self.write_vectors(body, starts[1], sizes[1], write)

    def dealt(
        self, body: b.Body, memory: Buffer, value: Value, loops: Loops, column: Expr, lanes: int
    ) -> list[Expr]:
        """Return the vector of each line."""
        at = self.at(loops, b.index(0), b.index(0))
        lead = self.crossing.place(value, at)[:-2]
        first = body.let("first", b.mul(column, self.count))
        vectors = [
            body.let("s", b.load(memory, [*lead, b.ramp(b.add(first, k * lanes), lanes)]))
            for k in range(self.count)
        ]
        return [
            picked(body, vectors, [lane * self.count + line for lane in range(lanes)])
            for line in range(self.count)
        ]


class _FewColumns(_Few):
    """The few columns of a result stand side by side: vectors are collected."""

    def write_block(
        self, body: b.Body, loops: Loops, starts: tuple[Expr, Expr], sizes: tuple[Expr, Expr]
    ) -> None:
        group = self.nest.group
        flat = tuple(_flattened(memory) for memory in group.outputs)

        def write(line: Expr, lanes: int) -> None:
            lead = [loops[run] for run in self.crossing.outer]
            found = [self.column(body, loops, line, lanes, k) for k in range(self.count)]
            first = body.let("first", b.mul(line, self.count))
            for position, memory in enumerate(flat):
                vectors = [
                    body.let("z", b.cast(values[position], memory.dtype)) for values in found
                ]
                for k in range(self.count):
                    order = [
                        (place % self.count) * lanes + place // self.count
                        for place in range(k * lanes, (k + 1) * lanes)
                    ]
                    at = b.ramp(b.add(first, k * lanes), lanes)
                    body.store(memory, [*lead, at], picked(body, vectors, order))

        self.write_vectors(body, starts[0], sizes[0], write)
        self.nest = replace(self.nest, group=group.with_buffers(outputs=flat))

    def column(self, body: b.Body, loops: Loops, line: Expr, lanes: int, k: int) -> list[Expr]:
        """Return all outputs at a vector of lines of one column."""
        at = self.at(loops, b.ramp(line, lanes), b.index(k))
        vectors = {
            value: body.let(
                "s", b.load(self.crossing.memory(value), self.crossing.place(value, at))
            )
            for value in self.crossing.captures
        }
        _, values = self.compute(body, at, vectors)
        return [b.broadcast(value, lanes) for value in values]


def _flattened(memory: Buffer) -> Buffer:
    """Return a row-major buffer with its last two dimensions as one."""
    *lead, rows, columns = memory.shape
    last = b.mul(b.as_index(rows), b.as_index(columns))
    shape = b.buffer("shape", memory.dtype, (*lead, last)).shape
    return Buffer(memory.name, memory.dtype, shape, (), memory.scope)


_WRITERS: dict[str, Callable[[Crossing], _Writer]] = {
    "": _Squares,
    "lines": _FewLines,
    "columns": _FewColumns,
}
