"""Small random kernels, their inputs, and random sequences of rewrites."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from frame.codegen.loops import builder as b
from frame.codegen.loops import rewrites
from frame.codegen.loops.ir import (
    INDEX,
    Expr,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Scope,
    fresh,
)
from frame.codegen.loops.rewrites import ScheduleError
from frame.codegen.loops.traverse import loads, walk
from frame.core.dtypes import DType, float32, int32, int64

COLUMNS = (1, 3, 8, 13, 20)


@dataclass
class Case:
    """A kernel over a symbolic number of rows and a constant number of columns."""

    kernel: Kernel
    columns: int

    def run_arrays(self, rows: int) -> list[np.ndarray]:
        """Return memory: inputs of small whole numbers (so that sums are exact), then outputs."""
        state = np.random.RandomState(rows)
        shape = (rows, self.columns)
        return [
            state.randint(-4, 5, shape).astype(np.float32),
            state.randint(-9, 10, shape).astype(np.int32),
            state.randint(0, self.columns, rows).astype(np.int64),
            np.full(shape, 77, np.float32),
            np.full(shape, 77, np.int32),
            np.full(rows, 77, np.float32),
            np.full(rows, 77, np.int64),
        ]


class Generator:
    """Makes one random kernel from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows = fresh("n")
        self.columns = self.random.choice(COLUMNS)
        shape = (self.rows, self.columns)
        self.floats = b.buffer("floats", float32, shape)
        self.ints = b.buffer("ints", int32, shape)
        self.places = b.buffer("places", int64, [self.rows])
        self.out_floats = b.buffer("out_floats", float32, shape)
        self.out_ints = b.buffer("out_ints", int32, shape)
        self.out_row = b.buffer("out_row", float32, [self.rows])
        self.out_count = b.buffer("out_count", int64, [self.rows])
        self.body = b.Body()
        self.known: dict[DType, list[Expr]] = {float32: [], int32: [], int64: []}

    def case(self) -> Case:
        with self.body.loop(self.rows, "i") as i:
            self.row(i)
        buffers = (self.floats, self.ints, self.places)
        outputs = (self.out_floats, self.out_ints, self.out_row, self.out_count)
        kernel = Kernel("random", (*buffers, *outputs), (self.rows,), self.body.block())
        return Case(kernel, self.columns)

    def row(self, i: Expr) -> None:
        self.known[int64].append(i)
        if self.random.random() < 0.5:
            self.bind(int64, b.load(self.places, [i]))
        with self.kept(), self.body.loop(self.columns, "j") as j:
            self.cell(i, j)
        with self.kept():
            self.reduce(i)

    def kept(self) -> Kept:
        return Kept(self)

    def bind(self, dtype: DType, value: Expr) -> None:
        self.known[dtype].append(self.body.let("t", value))

    def cell(self, i: Expr, j: Expr) -> None:
        self.known[int64].append(j)
        self.read(i, j)
        for _ in range(self.random.randint(0, 3)):
            dtype = self.random.choice([float32, int32, int64])
            self.bind(dtype, self.value(dtype, 2))
        if self.random.random() < 0.3:
            self.private(j)
        self.guarded_stores(i, j)

    def read(self, i: Expr, j: Expr) -> None:
        column = j
        if self.random.random() < 0.4:
            column = self.random.choice(
                [
                    b.sub(self.columns - 1, j),
                    b.rem(b.mul(j, 3), self.columns),
                    b.div(j, 2),
                    b.load(self.places, [i]),
                    b.index(self.columns // 2),
                ]
            )
        self.bind(float32, b.load(self.floats, [i, column]))
        self.bind(int32, b.load(self.ints, [i, j]))

    def private(self, j: Expr) -> None:
        """A scratch array of each iteration, written and read."""
        scope = self.random.choice([Scope.LOCAL, Scope.REGISTER])
        scratch = self.body.alloc("scratch", float32, [2], scope)
        self.body.store(scratch, [0], self.value(float32, 1))
        self.body.store(scratch, [1], self.value(float32, 1))
        self.bind(float32, b.add(b.load(scratch, [1]), b.load(scratch, [0])))

    def guarded_stores(self, i: Expr, j: Expr) -> None:
        with self.kept():
            if self.random.random() < 0.5:
                with self.kept(), self.body.when(self.condition()):
                    self.inner_stores(i, j)
                if self.random.random() < 0.5:
                    with self.kept(), self.body.otherwise():
                        self.inner_stores(i, j)
            else:
                self.inner_stores(i, j)

    def inner_stores(self, i: Expr, j: Expr) -> None:
        if self.random.random() < 0.5:
            self.bind(int32, self.value(int32, 2))
        self.body.store(self.out_floats, [i, j], self.value(float32, 2))
        if self.random.random() < 0.7:
            self.body.store(self.out_ints, [i, j], self.value(int32, 2))

    def reduce(self, i: Expr) -> None:
        op = self.random.choice([b.add, b.max_, b.minimum, b.maximum])
        start = b.const(self.random.choice([0.0, -3.0]), float32)
        with self.body.fold(self.columns, [start, b.index(0)], "k") as fold:
            with self.kept():
                x = self.body.let("x", b.load(self.floats, [i, fold.index]))
                self.known[int64].append(fold.index)
                self.known[float32].append(x)
                counted = b.cast(self.condition(), int64)
            total, count = fold.values
            fold.next = [op(total, x), b.add(count, counted)]
        self.body.store(self.out_row, [i], fold.results[0])
        self.body.store(self.out_count, [i], fold.results[1])

    # Expressions

    def value(self, dtype: DType, depth: int) -> Expr:
        known = self.known[dtype]
        if depth == 0 or self.random.random() < 0.2:
            if known and self.random.random() < 0.8:
                return self.random.choice(known)
            number = self.random.randint(-3, 3)
            return b.const(float(number) if dtype.is_float else number, dtype)
        rules = [self.arithmetic, self.select, self.convert]
        if dtype.is_integer:
            rules.append(self.divide)
        return self.random.choice(rules)(dtype, depth - 1)

    def arithmetic(self, dtype: DType, depth: int) -> Expr:
        ops = [b.add, b.sub, b.min_, b.max_, b.minimum, b.maximum]
        if dtype.is_integer:
            ops += [b.mul, b.and_, b.xor]
        op = self.random.choice(ops)
        return op(self.value(dtype, depth), self.value(dtype, depth))

    def divide(self, dtype: DType, depth: int) -> Expr:
        op = self.random.choice([b.div, b.rem])
        divisor = self.value(dtype, depth)
        divisor = b.max_(divisor, 1) if self.random.random() < 0.5 else b.const(3, dtype)
        return op(self.value(dtype, depth), divisor)

    def select(self, dtype: DType, depth: int) -> Expr:
        return b.select(self.condition(), self.value(dtype, depth), self.value(dtype, depth))

    def convert(self, dtype: DType, depth: int) -> Expr:
        source = self.random.choice([d for d in self.known if d != dtype])
        value = self.value(source, depth)
        if not dtype.is_float:
            return b.cast(value, dtype)
        small = b.const(15.0 if source.is_float else 15, source)
        return b.cast(b.min_(value, small) if source.is_float else b.and_(value, small), dtype)

    def condition(self) -> Expr:
        dtype = self.random.choice(list(self.known))
        op = self.random.choice([b.lt, b.ge, b.eq, b.ne])
        return op(self.value(dtype, 1), self.value(dtype, 0))


class Kept:
    """Values bound inside are not known after it: they belong to an inner block."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def __enter__(self) -> None:
        self.saved = {dtype: list(known) for dtype, known in self.generator.known.items()}

    def __exit__(self, *error: object) -> None:
        self.generator.known = self.saved


def rewrite_somehow(kernel: Kernel, choose: random.Random) -> tuple[str, Kernel]:
    """Return the name of a random rewrite that is legal, and what it makes of a kernel."""
    rule = choose.choice([*_RULES])
    try:
        return rule.__name__, rule(kernel, choose)
    except ScheduleError:
        return f"{rule.__name__} (refused)", kernel


def _some_loop(kernel: Kernel, choose: random.Random) -> For:
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is not LoopKind.PARALLEL]
    if not loops:
        raise ScheduleError("no loop is left")
    return choose.choice(loops)


def _vectorise(kernel: Kernel, choose: random.Random) -> Kernel:
    lanes, tail = choose.choice([2, 4, 8, 16]), choose.choice(["mask", "scalar"])
    loop = _some_loop(kernel, choose)
    return rewrites.at(kernel, loop, lambda loop: rewrites.vectorise(loop, lanes, tail))


def _tile(kernel: Kernel, choose: random.Random) -> Kernel:
    factor, tail = choose.choice([1, 2, 3, 4, 8]), choose.choice(["mask", "scalar"])
    loop = _some_loop(kernel, choose)
    return rewrites.at(kernel, loop, lambda loop: rewrites.tile(loop, factor, tail))


def _unroll(kernel: Kernel, choose: random.Random) -> Kernel:
    factor = choose.choice([None, 2, 3])
    loop = _some_loop(kernel, choose)
    return rewrites.at(kernel, loop, lambda loop: rewrites.unroll(loop, factor))


def _reorder(kernel: Kernel, choose: random.Random) -> Kernel:
    return rewrites.at(kernel, _some_loop(kernel, choose), rewrites.reorder)


def _parallelise(kernel: Kernel, choose: random.Random) -> Kernel:
    return rewrites.parallelise(kernel, choose.choice([1, 2, 5]))


def _simplify(kernel: Kernel, choose: random.Random) -> Kernel:
    return rewrites.simplify(kernel)


def _predicate(kernel: Kernel, choose: random.Random) -> Kernel:
    branches = [s for s in walk(kernel.body) if isinstance(s, If)]
    if not branches:
        raise ScheduleError("no branch is left")
    branch = choose.choice(branches)
    body = rewrites.replace(kernel.body, branch, rewrites.predicate(branch))
    return rewrites.with_body(kernel, body)


def _stage(kernel: Kernel, choose: random.Random) -> Kernel:
    loop = _some_loop(kernel, choose)
    found = [load for load in loads((loop,)) if load.buffer in kernel.buffers]
    if not found:
        raise ScheduleError("nothing to stage")
    memory = choose.choice(found).buffer
    starts = _first_indices(loop, memory, found)
    extents = [s if isinstance(s, int) else 1 for s in memory.shape]
    scope = choose.choice([Scope.LOCAL, Scope.REGISTER])
    return rewrites.at(
        kernel, loop, lambda loop: rewrites.stage(loop, memory, starts, extents, scope)
    )


def _first_indices(loop: For, memory: object, found: list[Load]) -> list[Expr]:
    """A window that starts at the row of some read and covers all columns."""
    load = next(load for load in found if load.buffer is memory)
    bound = {s.var for s in walk((loop,)) if isinstance(s, For)}
    if len(load.indices) != 2 or load.indices[0] in bound or load.indices[0].type != INDEX:
        raise ScheduleError("no row that is fixed in the loop")
    return [load.indices[0], b.index(0)]


_RULES = (
    *(_vectorise, _tile, _unroll, _reorder, _parallelise, _simplify, _predicate, _stage),
    *(_vectorise, _simplify),
)
