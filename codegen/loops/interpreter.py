"""Run loop IR in numpy: the oracle that rewrites, schedules and emitters are tested against.

Every access is checked against the declared extents of its buffer and against the memory behind it.
Fresh LOCAL, REGISTER and arena memory holds all ones: NaN in every float, -1 in every integer.
`order` runs the iterations of parallel loops forward, reversed or shuffled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from frame.codegen.loops import builder, semantics
from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Bitcast,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareOp,
    Const,
    Copy,
    Expr,
    Extract,
    Fail,
    Fma,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    LoopKind,
    Module,
    MulHigh,
    PairDot,
    Place,
    Placement,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Select,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
    View,
    While,
)
from frame.codegen.loops.semantics import Array
from frame.codegen.loops.traverse import expressions, post_order, trailing_expressions
from frame.core.errors import InternalError

Value: TypeAlias = "int | Array"
"""An index scalar is a Python int, anything else an array of lanes."""

FailRecord = tuple[int, int, int]
"""(site, position, value) of a failed check."""

ORDERS = ("forward", "reversed", "shuffled")


@dataclass(slots=True)
class Memory:
    """Flat memory behind a buffer: element `offset` of `array` is the first of the buffer."""

    array: Array
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True)
class Result:
    """What a run leaves besides the memory that it wrote."""

    fail: FailRecord | None = None
    returned: bool = False
    launches: list[tuple[str, int]] = field(default_factory=list)


class _Left(Exception):
    """The entry left through a Return."""


def run_kernel(
    kernel: Kernel,
    arrays: Mapping[str | int, Array] | Sequence[Array],
    scalars: Mapping[str, int] | Sequence[int] = (),
    *,
    kernels: Mapping[str, Kernel] | None = None,
    order: str = "forward",
    coverage: Coverage | None = None,
) -> Result:
    """Run a kernel on numpy memory, every iteration of its parallel loop included.

    `arrays` gives the memory of each buffer by name or position: an array of the buffer's dtype, of
    any shape, contiguous; writes go into it. `kernels` are the callees of Call.

    Raises:
        InternalError: an access out of bounds, missing memory, or IR that has no meaning.
    """
    runner = _Runner(dict(kernels or {}), order, coverage)
    memory = [_flat(kernel, buffer, i, arrays) for i, buffer in enumerate(kernel.buffers)]
    values = _scalar_values(kernel.scalars, scalars, f"kernel {kernel.name}")
    with np.errstate(all="ignore"):
        runner.kernel(kernel, [(array, 0) for array in memory], values, None)
    return runner.result


def run_module(
    module: Module,
    arguments: Sequence[Array],
    symbols: Mapping[str, int] | Sequence[int] = (),
    table: Sequence[int] = (),
    *,
    arena: Array | None = None,
    order: str = "forward",
    coverage: Coverage | None = None,
) -> Result:
    """Run the entry of a module.

    `arguments` are the input and output arrays in signature order, `symbols` the sizes by name or
    position, `table` the byte offsets of symbol-sized arena buffers. Without `arena` (uint8) a
    fresh poisoned one of the size needed is used.

    Raises:
        InternalError: an access out of bounds, missing memory, or IR that has no meaning.
    """
    runner = _Runner(dict(module.kernel_table), order, coverage)
    values = _scalar_values(module.entry.scalars, symbols, f"entry {module.entry.name}")
    with np.errstate(all="ignore"):
        frame = _Frame(f"entry {module.entry.name}", dict(values), {})
        _place(module, frame, runner, arguments, table, arena)
        if coverage is not None:
            coverage.declare(frame.where, module.entry.body)
        try:
            runner.block(module.entry.body, frame)
        except _Left:
            runner.result.returned = True
    return runner.result


def _flat(
    kernel: Kernel, buffer: Buffer, position: int, arrays: Mapping[Any, Array] | Sequence[Array]
) -> Array:
    where = f"kernel {kernel.name}: buffer {buffer.name}"
    if isinstance(arrays, Mapping):
        found = arrays.get(buffer.name, arrays.get(position))
    else:
        found = arrays[position] if position < len(arrays) else None
    if found is None:
        raise InternalError(f"{where}: no memory was given by name or position {position}")
    return _as_flat(found, buffer, where)


def _as_flat(array: Array, buffer: Buffer, where: str) -> Array:
    array = np.asarray(array)
    if array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
        raise InternalError(
            f"{where}: expected contiguous memory of {buffer.dtype}, received {array.dtype} with "
            f"strides {array.strides}"
        )
    return array.reshape(-1)


def _argument(arguments: Sequence[Array], slot: int, buffer: Buffer, where: str) -> Array:
    """Return the memory of an argument; an entry may see it as bytes."""
    if slot >= len(arguments):
        raise InternalError(f"{where} is argument {slot}, received {len(arguments)} arguments")
    array = np.asarray(arguments[slot])
    if buffer.dtype.numpy == np.uint8 and array.flags.c_contiguous:
        array = array.reshape(-1).view(np.uint8)
    return _as_flat(array, buffer, where)


def _scalar_values(
    variables: Sequence[Var], given: Mapping[str, int] | Sequence[int], where: str
) -> dict[Var, Value]:
    if isinstance(given, Mapping):
        given = [given[v.name] for v in variables if v.name in given]
    if len(given) != len(variables):
        names = ", ".join(v.name for v in variables)
        raise InternalError(f"{where}: expected the scalars ({names}), received {len(given)}")
    return {variable: int(value) for variable, value in zip(variables, given, strict=True)}


def _place(
    module: Module,
    frame: _Frame,
    runner: _Runner,
    arguments: Sequence[Array],
    table: Sequence[int],
    arena: Array | None,
) -> None:
    """Bind every entry buffer to the memory that its placement names."""
    places = module.entry.placements
    if arena is None:
        arena = _poison(np.uint8, _arena_size(places, frame, runner, table))
    constants = [np.frombuffer(constant.data, np.uint8) for constant in module.constants]
    for placement in places:
        buffer, slot = placement.buffer, placement.slot
        where = f"{frame.where}: buffer {buffer.name}"
        if placement.place is Place.ARGUMENT:
            array = _argument(arguments, slot, buffer, where)
        elif placement.place is Place.CONSTANT:
            array = _typed(constants[slot], 0, buffer, frame, runner)
        else:
            offset = slot if placement.place is Place.ARENA else table[slot]
            array = _typed(arena, offset, buffer, frame, runner)
        frame.memory[buffer] = runner.bind(buffer, array, 0, frame)


def _span(memory: Memory) -> int:
    """Return the elements from the first to the last of a strided buffer."""
    if 0 in memory.shape:
        return 0
    steps = zip(memory.shape, memory.strides, strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in steps)


def _arena_size(
    places: Iterable[Placement], frame: _Frame, runner: _Runner, table: Sequence[int]
) -> int:
    size = 0
    for placement in places:
        if placement.place in (Place.ARENA, Place.TABLE):
            offset = placement.slot if placement.place is Place.ARENA else table[placement.slot]
            memory = runner.bind(placement.buffer, np.zeros(0), 0, frame)
            size = max(size, offset + _span(memory) * placement.buffer.dtype.itemsize)
    return size


def _typed(raw: Array, offset: int, buffer: Buffer, frame: _Frame, runner: _Runner) -> Array:
    elements = _span(runner.bind(buffer, np.zeros(0), 0, frame))
    end = offset + elements * buffer.dtype.itemsize
    if offset < 0 or end > raw.size or offset % buffer.dtype.itemsize:
        raise InternalError(
            f"{frame.where}: buffer {buffer.name} takes bytes {offset} to {end}, the memory behind "
            f"it has {raw.size}"
        )
    return raw[offset:end].view(buffer.dtype.numpy)


def _poison(dtype: Any, count: int) -> Array:
    element = np.dtype(dtype)
    raw = np.full(count * element.itemsize, 1 if element == np.bool_ else 0xFF, np.uint8)
    return raw.view(element)


@dataclass(slots=True)
class _Frame:
    """The variables and buffers that a running kernel or entry has bound."""

    where: str
    values: dict[Var, Value]
    memory: dict[Buffer, Memory]
    chunk_order: Callable[[int], Iterable[int]] | None = None


Step: TypeAlias = "Callable[[list[Any], _Frame], Value]"


class _Runner:
    def __init__(self, kernels: dict[str, Kernel], order: str, coverage: Coverage | None) -> None:
        if order not in ORDERS:
            raise InternalError(f"expected an order of {', '.join(ORDERS)}, received {order!r}")
        self.kernels = kernels
        self.order = order
        self.coverage = coverage
        self.result = Result()
        self.programs: dict[tuple[Expr, ...], tuple[list[Step], list[int]]] = {}
        self.of_statement: dict[Stmt, tuple[list[Step], list[int]]] = {}
        self.after_body: dict[Stmt, tuple[list[Step], list[int]]] = {}

    # Expressions: a statement's DAG becomes a list of steps, made once and run many times.

    def evaluate(self, roots: tuple[Expr, ...], frame: _Frame) -> list[Value]:
        program = self.programs.get(roots)
        if program is None:
            program = self.programs[roots] = _compile(roots)
        return _run(program, frame)

    def own(self, statement: Stmt, frame: _Frame) -> list[Value]:
        """Evaluate the expressions of a statement."""
        program = self.of_statement.get(statement)
        if program is None:
            program = self.of_statement[statement] = _compile(expressions(statement))
        return _run(program, frame)

    def trailing(self, statement: For, frame: _Frame) -> list[Value]:
        program = self.after_body.get(statement)
        if program is None:
            program = self.after_body[statement] = _compile(trailing_expressions(statement))
        return _run(program, frame)

    def size(self, size: int | Expr, frame: _Frame) -> int:
        if isinstance(size, int):
            return size
        (value,) = self.evaluate((size,), frame)
        return _scalar(value)

    def bind(self, buffer: Buffer, array: Array, offset: int, frame: _Frame) -> Memory:
        shape = tuple(self.size(extent, frame) for extent in buffer.shape)
        strides = tuple(self.size(stride, frame) for stride in builder.strides_of(buffer))
        return Memory(array, offset, shape, strides)

    # Kernels and statements

    def kernel(
        self,
        kernel: Kernel,
        memory: Sequence[tuple[Array, int]],
        values: dict[Var, Value],
        chunks: int | None,
    ) -> None:
        frame = _Frame(f"kernel {kernel.name}", values, {})
        if len(memory) != len(kernel.buffers):
            raise InternalError(
                f"{frame.where}: expected {len(kernel.buffers)} buffers, received {len(memory)}"
            )
        for buffer, (array, offset) in zip(kernel.buffers, memory, strict=True):
            if array.dtype != buffer.dtype.numpy:
                raise InternalError(
                    f"{frame.where}: buffer {buffer.name} is {buffer.dtype}, received memory of "
                    f"{array.dtype}"
                )
            frame.memory[buffer] = self.bind(buffer, array, offset, frame)
        if self.coverage is not None:
            self.coverage.declare(frame.where, kernel.body)
        self.check_chunks(kernel, frame, chunks)
        self.block(kernel.body, frame)

    def check_chunks(self, kernel: Kernel, frame: _Frame, chunks: int | None) -> None:
        """Check a Launch against the extent of the loop that it runs, or a Call against none."""
        last = kernel.body[-1] if kernel.body else None
        parallel = isinstance(last, For) and last.kind is LoopKind.PARALLEL
        if chunks is None or (parallel and chunks >= 0):
            frame.values[_CHUNKS] = -1 if chunks is None else chunks
            return
        if chunks == 1:
            return
        raise InternalError(
            f"{frame.where}: launched with {chunks} chunks, no parallel loop is last"
        )

    def block(self, statements: Block, frame: _Frame) -> None:
        for statement in statements:
            _STATEMENTS[type(statement)](self, statement, frame)

    def let(self, s: Let, frame: _Frame) -> None:
        (frame.values[s.var],) = self.own(s, frame)

    def for_(self, s: For, frame: _Frame) -> None:
        extent, *values = self.own(s, frame)
        count = max(0, _scalar(extent))
        if self.coverage is not None:
            self.coverage.loop(s, count)
        for trip in self.trips(s, count, frame):
            frame.values[s.var] = trip
            for carried, value in zip(s.carried, values, strict=True):
                frame.values[carried.var] = value
            self.block(s.body, frame)
            values = self.trailing(s, frame)
        for carried, value in zip(s.carried, values, strict=True):
            frame.values[carried.result] = value

    def trips(self, s: For, count: int, frame: _Frame) -> Iterable[int]:
        if s.kind is not LoopKind.PARALLEL:
            return range(count)
        expected = frame.values.get(_CHUNKS, -1)
        if expected not in (-1, count):
            raise InternalError(
                f"{frame.where}: launched with {expected} chunks, its parallel loop has {count}"
            )
        if self.order == "reversed":
            return range(count - 1, -1, -1)
        trips = list(range(count))
        if self.order == "shuffled":
            random.Random(count).shuffle(trips)
        return trips

    def if_(self, s: If, frame: _Frame) -> None:
        (condition,) = self.own(s, frame)
        taken = bool(_scalar(condition))
        if self.coverage is not None:
            self.coverage.branch(s, taken)
        self.block(s.then if taken else s.otherwise, frame)

    def while_(self, s: While, frame: _Frame) -> None:
        trips = 0
        while bool(self.memory(s.condition, frame).array[self.memory(s.condition, frame).offset]):
            self.block(s.body, frame)
            trips += 1
        if self.coverage is not None:
            self.coverage.loop(s, trips)

    def alloc(self, s: Alloc, frame: _Frame) -> None:
        memory = self.bind(s.buffer, np.zeros(0), 0, frame)
        memory.array = _poison(s.buffer.dtype.numpy, _span(memory) * s.buffer.lanes)
        frame.memory[s.buffer] = memory

    def store(self, s: Store, frame: _Frame) -> None:
        values = self.own(s, frame)
        rank = len(s.indices)
        memory = self.memory(s.buffer, frame)
        mask = values[rank + 1] if s.mask is not None else None
        places = _places(s.buffer, memory, values[:rank], mask, frame)
        if not memory.array.flags.writeable:
            raise InternalError(f"{frame.where}: store to the read-only buffer {s.buffer.name}")
        lanes = _lanes(values[rank], s.value)
        if mask is None:
            memory.array[places] = lanes
        else:
            memory.array[places[mask]] = lanes[mask]

    def prefetch(self, s: Prefetch, frame: _Frame) -> None:
        """Read nothing, but check that the element exists."""
        _places(s.buffer, self.memory(s.buffer, frame), self.own(s, frame), None, frame)

    def copy(self, s: Copy, frame: _Frame) -> None:
        values = [_scalar(v) for v in self.own(s, frame)]
        rank, source_rank = len(s.target.indices), len(s.source.indices)
        extents = values[rank + source_rank :]
        target = self.region(s.target, values[:rank], extents, frame)
        source = self.region(s.source, values[rank : rank + source_rank], extents, frame)
        into, out_of = self.memory(s.target.buffer, frame), self.memory(s.source.buffer, frame)
        if into.array is out_of.array and np.intersect1d(target, source).size:
            raise InternalError(f"{frame.where}: the regions of a copy overlap")
        into.array[target] = out_of.array[source]

    def region(
        self, view: View, starts: Sequence[int], extents: Sequence[int], frame: _Frame
    ) -> Array:
        """Return the flat places of a rectangular region, in row-major order."""
        memory = self.memory(view.buffer, frame)
        starts = starts or [0] * len(memory.shape)
        grids = np.meshgrid(
            *(start + np.arange(extent) for start, extent in zip(starts, extents, strict=True)),
            indexing="ij",
        )
        flat = [grid.reshape(-1) for grid in grids]
        lanes = flat[0].size if flat else 1
        return _places(view.buffer, memory, flat, np.ones(lanes, np.bool_), frame)

    def memory(self, buffer: Buffer, frame: _Frame) -> Memory:
        found = frame.memory.get(buffer)
        if found is None:
            raise InternalError(f"{frame.where}: buffer {buffer.name} has no memory here")
        return found

    def fail(self, s: Fail, frame: _Frame) -> None:
        position, value = self.own(s, frame)
        record = (s.site, _scalar(position), _scalar(value))
        if self.result.fail is None or record[:2] < self.result.fail[:2]:
            self.result.fail = record

    def return_(self, s: Return, frame: _Frame) -> None:
        if self.result.fail is not None:
            raise _Left

    def call(self, s: Call, frame: _Frame) -> None:
        self.invoke(s, self.own(s, frame), None, frame)

    def launch(self, s: Launch, frame: _Frame) -> None:
        *values, chunks = self.own(s, frame)
        self.result.launches.append((s.kernel, _scalar(chunks)))
        self.invoke(s, values, _scalar(chunks), frame)

    def invoke(
        self, s: Call | Launch, values: list[Value], chunks: int | None, frame: _Frame
    ) -> None:
        callee = self.kernels.get(s.kernel)
        if callee is None:
            raise InternalError(f"{frame.where}: no kernel is named {s.kernel}")
        memory = []
        for position, view in enumerate(s.buffers):
            starts = [_scalar(v) for v in values[: len(view.indices)]]
            values = values[len(view.indices) :]
            array, offset = self.laid_over(view, starts, frame)
            if position < len(callee.buffers):
                array, offset = _as_bytes(array, offset, callee.buffers[position])
            memory.append((array, offset))
        scalars = _scalar_values(callee.scalars, [_scalar(v) for v in values], f"call {s.kernel}")
        self.kernel(callee, memory, scalars, chunks)

    def laid_over(self, view: View, starts: list[int], frame: _Frame) -> tuple[Array, int]:
        memory = self.memory(view.buffer, frame)
        steps = zip(starts, memory.strides, strict=True) if starts else ()
        return memory.array, memory.offset + sum(start * stride for start, stride in steps)


def _as_bytes(array: Array, offset: int, memory: Buffer) -> tuple[Array, int]:
    """Reinterpret memory where the caller or the callee sees it as bytes."""
    element = memory.dtype.numpy
    if array.dtype == element or np.uint8 not in (array.dtype, element):
        return array, offset
    start = offset * array.itemsize
    raw = array.view(np.uint8)[start:]
    return raw[: raw.size - raw.size % element.itemsize].view(element), 0


_CHUNKS = Var("chunks of the launch")

_STATEMENTS: Mapping[type[Stmt], Callable[[_Runner, Any, _Frame], None]] = {
    Let: _Runner.let,
    For: _Runner.for_,
    If: _Runner.if_,
    While: _Runner.while_,
    Alloc: _Runner.alloc,
    Store: _Runner.store,
    Copy: _Runner.copy,
    Prefetch: _Runner.prefetch,
    Call: _Runner.call,
    Fail: _Runner.fail,
    Launch: _Runner.launch,
    Return: _Runner.return_,
}
"""How each statement runs."""


def _scalar(value: Value) -> int:
    return value if isinstance(value, int) else int(value[0])


def _lanes(value: Value, expression: Expr) -> Array:
    """Return a value as an array with one element a lane."""
    if isinstance(value, int):
        return np.array([value], np.int64)
    return value


def _places(
    buffer: Buffer, memory: Memory, indices: Sequence[Value], mask: Value | None, frame: _Frame
) -> Array:
    """Return the flat places of an access; checked in the lanes where the mask is true."""
    if buffer.lanes > 1:
        return _vector_places(buffer, memory, indices, frame)
    if mask is None and all(type(index) is int for index in indices):
        return _scalar_place(buffer, memory, indices, frame)
    flat: Any = memory.offset
    for axis, index in enumerate(indices):
        _check_index(buffer, memory, axis, index, mask, frame)
        flat = flat + np.asarray(index) * memory.strides[axis]
    places = np.atleast_1d(np.asarray(flat, np.int64))
    used = places if mask is None else np.broadcast_to(places, np.shape(mask))[mask]
    if used.size and (used.min() < 0 or used.max() >= memory.array.size):
        raise InternalError(
            f"{frame.where}: buffer {buffer.name} at indices {_shown(indices)} is element "
            f"{_shown([used])} of memory that has {memory.array.size}"
        )
    return places if mask is None else np.broadcast_to(places, np.shape(mask))


def _scalar_place(buffer: Buffer, memory: Memory, indices: Sequence[Any], frame: _Frame) -> Array:
    flat = memory.offset
    for axis, (index, extent) in enumerate(zip(indices, memory.shape, strict=True)):
        if not 0 <= index < extent:
            _check_index(buffer, memory, axis, index, None, frame)
        flat += index * memory.strides[axis]
    if not 0 <= flat < memory.array.size:
        raise InternalError(
            f"{frame.where}: buffer {buffer.name} at indices {_shown(indices)} is element "
            f"{flat} of memory that has {memory.array.size}"
        )
    return np.array([flat])


def _vector_places(
    buffer: Buffer, memory: Memory, indices: Sequence[Value], frame: _Frame
) -> Array:
    flat = 0
    for axis, index in enumerate(indices):
        _check_index(buffer, memory, axis, index, None, frame)
        flat += _scalar(index) * memory.strides[axis]
    return np.arange(flat * buffer.lanes, (flat + 1) * buffer.lanes)


def _check_index(
    buffer: Buffer, memory: Memory, axis: int, index: Value, mask: Value | None, frame: _Frame
) -> None:
    extent = memory.shape[axis]
    if isinstance(index, int):
        inside = 0 <= index < extent or (mask is not None and not np.any(mask))
    else:
        used = index if mask is None else np.broadcast_to(index, np.shape(mask))[mask]
        inside = bool(np.all((used >= 0) & (used < extent)))
    if not inside:
        raise InternalError(
            f"{frame.where}: buffer {buffer.name}: index {_shown([index])} of axis {axis} is "
            f"outside 0 <= index < {extent}"
        )


def _shown(values: Iterable[Value]) -> str:
    return ", ".join(str(value) for value in values)


# Steps: one a node. `values` holds the results so far, `frame` the variables and the memory.


def _run(program: tuple[list[Step], list[int]], frame: _Frame) -> list[Value]:
    steps, roots = program
    values: list[Any] = []
    for step in steps:
        values.append(step(values, frame))
    return [values[root] for root in roots]


def _compile(roots: tuple[Expr, ...]) -> tuple[list[Step], list[int]]:
    order = post_order(roots)
    slots = {node: slot for slot, node in enumerate(order)}
    steps = [_STEPS[type(node)](node, [slots[arg] for arg in node.args]) for node in order]
    return steps, [slots[root] for root in roots]


def _array(value: Value) -> Array:
    return np.array([value], np.int64) if isinstance(value, int) else value


def _const(e: Const, slots: list[int]) -> Step:
    value = (
        int(e.value) if e.type == INDEX else semantics.splat(e.value, e.type.dtype, e.type.lanes)
    )
    return lambda values, frame: value


def _var(e: Var, slots: list[int]) -> Step:
    def step(values: list[Any], frame: _Frame) -> Value:
        found = frame.values.get(e)
        if found is None:
            raise InternalError(f"{frame.where}: variable {e.name} is not bound here")
        return found

    return step


_WRAP = 1 << 63


def _wrap(value: int) -> int:
    return value if -_WRAP <= value < _WRAP else (value + _WRAP) % (2 * _WRAP) - _WRAP


_INDEX_BINARY: Mapping[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: lambda a, b: _wrap(a + b),
    BinaryOp.SUB: lambda a, b: _wrap(a - b),
    BinaryOp.MUL: lambda a, b: _wrap(a * b),
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
}
_INDEX_COMPARE: Mapping[CompareOp, Callable[[int, int], bool]] = {
    CompareOp.EQ: lambda a, b: a == b,
    CompareOp.NE: lambda a, b: a != b,
    CompareOp.LT: lambda a, b: a < b,
    CompareOp.LE: lambda a, b: a <= b,
    CompareOp.GT: lambda a, b: a > b,
    CompareOp.GE: lambda a, b: a >= b,
}
_BOOLS = (np.zeros(1, np.bool_), np.ones(1, np.bool_))


def _binary(e: Binary, slots: list[int]) -> Step:
    a, b = slots
    quick = _INDEX_BINARY.get(e.op) if e.type == INDEX else None
    if quick is not None:
        return lambda values, frame: quick(values[a], values[b])
    return _apply(e, semantics.BINARY[e.op], slots)


def _compare(e: Compare, slots: list[int]) -> Step:
    if e.a.type == INDEX:
        a, b = slots
        quick = _INDEX_COMPARE[e.op]
        return lambda values, frame: _BOOLS[quick(values[a], values[b])]
    return _apply(e, semantics.COMPARE[e.op], slots)


def _apply(e: Expr, function: Callable[..., Array], slots: list[int]) -> Step:
    """Return the step that applies a numpy function to the operands."""
    scalar = e.type == INDEX  # an index scalar is a Python int

    def step(values: list[Any], frame: _Frame) -> Value:
        try:
            result = function(*[_array(values[slot]) for slot in slots])
            return int(result[0]) if scalar else result
        except InternalError as error:
            raise InternalError(f"{frame.where}: {error}") from None

    return step


def _cast(e: Cast, slots: list[int]) -> Step:
    source = e.x.type.dtype
    return _apply(e, lambda x: semantics.cast(x, source, e.dtype), slots)


def _ramp(e: Ramp, slots: list[int]) -> Step:
    steps = np.arange(e.lanes).astype(e.type.dtype.numpy)
    return _apply(e, lambda base: base + steps, slots)


def _load(e: Load, slots: list[int]) -> Step:
    rank, scalar = len(e.indices), e.type == INDEX

    def step(values: list[Any], frame: _Frame) -> Value:
        memory = frame.memory.get(e.buffer)
        if memory is None:
            raise InternalError(f"{frame.where}: buffer {e.buffer.name} has no memory here")
        indices = [values[slot] for slot in slots[:rank]]
        mask = values[slots[rank]] if e.mask is not None else None
        places = _places(e.buffer, memory, indices, mask, frame)
        if mask is None:
            result = memory.array[places]
        else:
            result = np.zeros(len(mask), memory.array.dtype)
            result[mask] = memory.array[places[mask]]
        return int(result[0]) if scalar else result

    return step


_STEPS: Mapping[type[Expr], Callable[[Any, list[int]], Step]] = {
    Const: _const,
    Var: _var,
    Unary: lambda e, slots: _apply(e, semantics.UNARY[e.op], slots),
    Binary: _binary,
    Compare: _compare,
    Select: lambda e, slots: _apply(e, np.where, slots),
    Fma: lambda e, slots: _apply(e, semantics.fma, slots),
    PairDot: lambda e, slots: _apply(e, semantics.pair_dot, slots),
    Cast: _cast,
    Bitcast: lambda e, slots: _apply(e, lambda x: x.view(e.dtype.numpy), slots),
    MulHigh: lambda e, slots: _apply(e, semantics.mul_high, slots),
    Broadcast: lambda e, slots: _apply(e, lambda x: np.repeat(x, e.lanes), slots),
    Ramp: _ramp,
    Shuffle: lambda e, slots: _apply(
        e, lambda a, b: np.concatenate([a, b])[list(e.pattern)], slots
    ),
    Extract: lambda e, slots: _apply(e, lambda x: x[e.lane : e.lane + 1], slots),
    Reduce: lambda e, slots: _apply(e, lambda x: semantics.reduce(e.op, x), slots),
    Load: _load,
}
"""How each expression is computed."""
