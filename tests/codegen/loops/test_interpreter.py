"""The oracle itself: bounds, poison, orders, coverage, calls, entries."""

from __future__ import annotations

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.interpreter import run_kernel, run_module
from frame.codegen.loops.ir import (
    Alloc,
    Call,
    Carried,
    ConstantData,
    Copy,
    Entry,
    Fail,
    For,
    If,
    Kernel,
    Launch,
    LoopKind,
    Module,
    Place,
    Placement,
    Prefetch,
    Return,
    Scope,
    Store,
    View,
    While,
    fresh,
)
from frame.codegen.loops.verifier import verify_module
from frame.core.dtypes import bfloat16, bool_, float32, int32, int64, uint8
from frame.core.errors import InternalError

N = fresh("n")
X = b.buffer("x", float32, [N])
Y = b.buffer("y", float32, [N])
P = b.buffer("p", int64, [N])


def kernel_of(*statements, buffers=(X, Y), scalars=(N,), name="k"):
    return Kernel(name, tuple(buffers), tuple(scalars), b.block(statements))


def floats(*values):
    return np.array(values, np.float32)


def run(kernel, *arrays, scalars=(), **options):
    return run_kernel(kernel, arrays, scalars, **options)


# Bounds and memory


@pytest.mark.parametrize(
    "statement",
    [
        b.store(Y, [N], 1.0),
        b.store(Y, [b.sub(0, N)], 1.0),
        b.store(Y, [0], b.load(X, [N])),
        b.store(Y, [b.ramp(b.sub(N, 1), 2)], 1.0),
        b.store(Y, [0], b.extract(b.load(X, [b.ramp(b.index(-1), 2)]), 1)),
        Copy(View(Y, (b.index(0),)), View(X, (b.index(1),)), (N,)),
        Prefetch(X, (N,)),
    ],
)
def test_accesses_out_of_bounds_are_caught(statement):
    with pytest.raises(InternalError, match=r"kernel k: buffer [xy].* is outside 0 <= index < 3"):
        run(kernel_of(statement), floats(1, 2, 3), floats(0, 0, 0), scalars=[3])


def test_memory_shorter_than_its_buffer_is_caught():
    kernel = kernel_of(b.store(Y, [2], 1.0))
    with pytest.raises(InternalError, match="element 2 of memory that has 2"):
        run(kernel, floats(1, 2), floats(1, 2), scalars=[3])


def test_masked_lanes_touch_nothing():
    mask = b.lt(b.ramp(b.index(0), 4), N)
    lanes = b.ramp(b.index(0), 4)
    y = floats(9, 9, 9)
    copy = kernel_of(b.store(Y, [lanes], b.load(X, [lanes], mask), mask))
    run(copy, floats(1, 2, 3), y, scalars=[3])
    assert y.tolist() == [1, 2, 3]
    never = b.store(Y, [b.index(50)], b.load(X, [b.index(50)], b.lt(N, 0)), b.lt(N, 0))
    run(kernel_of(never), floats(1, 2, 3), y, scalars=[3])


def test_masked_loads_give_zero():
    mask = b.lt(b.ramp(b.index(0), 4), N)
    wide = b.load(X, [b.ramp(b.index(0), 4)], mask)
    y = floats(9)
    run(kernel_of(b.store(Y, [0], b.extract(wide, 3))), floats(1), y, scalars=[1])
    assert y[0] == 0


@pytest.mark.parametrize("scope", [Scope.LOCAL, Scope.REGISTER])
def test_fresh_memory_is_poison(scope):
    near, count = (
        b.fresh_buffer("near", float32, [2], scope),
        b.fresh_buffer("c", int64, [1], scope),
    )
    body = [Alloc(near), Alloc(count), b.store(Y, [0], b.load(near, [1]))]
    y, p = floats(0), np.zeros(1, np.int64)
    kernel = kernel_of(*body, b.store(P, [0], b.load(count, [0])), buffers=(Y, P))
    run(kernel, y, p, scalars=[1])
    assert np.isnan(y[0]) and p[0] == -1


def test_wrong_memory_is_refused():
    kernel = kernel_of(b.store(Y, [0], 1.0))
    for arrays, reason in (
        ([np.zeros(3), floats(0)], "expected contiguous memory of float32, received float64"),
        ([np.zeros((4, 4), np.float32)[:, 1], floats(0)], "contiguous"),
        ([floats(0)], "no memory was given"),
    ):
        with pytest.raises(InternalError, match=reason):
            run_kernel(kernel, arrays, [1])
    with pytest.raises(InternalError, match="expected the scalars"):
        run_kernel(kernel, [floats(0), floats(0)], [])
    read_only = floats(0)
    read_only.flags.writeable = False
    with pytest.raises(InternalError, match="read-only buffer y"):
        run_kernel(kernel, [floats(0), read_only], [1])


def test_memory_by_name_and_position():
    kernel = kernel_of(b.store(Y, [0], b.load(X, [0])))
    y = floats(0)
    run_kernel(kernel, {"x": floats(7), 1: y}, {N.name: 1})
    assert y[0] == 7


def test_overlapping_copies_are_refused():
    copy = Copy(View(X, (b.index(1),)), View(X, (b.index(0),)), (b.index(2),))
    with pytest.raises(InternalError, match="overlap"):
        run(kernel_of(copy), floats(1, 2, 3), floats(0), scalars=[3])


def test_strides_and_copies_of_regions():
    columns = b.buffer("columns", float32, [2, 3], [1, 2])
    rows = b.buffer("rows", float32, [4, 5])
    copy = Copy(View(rows, (b.index(1), b.index(2))), View(columns), (b.index(2), b.index(3)))
    target = np.zeros((4, 5), np.float32)
    run(kernel_of(copy, buffers=(columns, rows), scalars=()), floats(0, 1, 2, 3, 4, 5), target)
    assert target[1, 2:].tolist() == [0, 2, 4] and target[2, 2:].tolist() == [1, 3, 5]
    assert target.sum() == 15


# Statements


def test_loops_of_no_trip_give_their_inits():
    acc, result = fresh("a", b.const(0.0, float32).type), fresh("r", b.const(0.0, float32).type)
    carried = Carried(acc, b.const(5.0, float32), b.add(acc, 1.0), result)
    for extent, expected in ((0, 5), (-3, 5), (1, 6), (4, 9)):
        loop = For(LoopKind.SERIAL, fresh("i"), b.index(extent), (), (carried,))
        y = floats(0)
        run(kernel_of(loop, b.store(Y, [0], result), buffers=(Y,)), y, scalars=[1])
        assert y[0] == expected


def test_carried_values_move_together():
    fold, (p, q) = b.fold(3, [b.index(1), b.index(1)], lambda i, p, q: ((), [q, b.add(p, q)]))
    memory = np.zeros(2, np.int64)
    kernel = kernel_of(fold, b.store(P, [0], p), b.store(P, [1], q), buffers=(P,))
    run(kernel, memory, scalars=[2])
    assert memory.tolist() == [3, 5]


def test_the_smallest_report_is_kept():
    def body(i):
        return Fail(2, b.sub(9, i), b.load(P, [i]))

    loop = b.for_(3, body)
    kernel = kernel_of(loop, Fail(3, b.index(0), N), buffers=(P,))
    found = run(kernel, np.array([5, 6, 7]), scalars=[3])
    assert found.fail == (2, 7, 7)


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_orders_of_parallel_loops(order):
    """A loop that depends on its order is told apart: the interpreter does not hide a race."""
    body = b.for_(6, lambda i: b.store(P, [0], i)).body
    loop = For(LoopKind.PARALLEL, fresh("i"), b.index(6), ())
    loop = For(loop.kind, loop.var, loop.extent, (b.store(P, [0], loop.var),))
    memory = np.zeros(1, np.int64)
    run(kernel_of(loop, buffers=(P,)), memory, scalars=[1], order=order)
    assert len(body) == 1
    assert (memory[0] == 5) == (order == "forward")


def test_unknown_orders_are_refused():
    with pytest.raises(InternalError, match="order"):
        run(kernel_of(), floats(0), floats(0), scalars=[1], order="random")


def test_meaningless_programs_are_refused():
    unbound = fresh("unbound")
    for statement, reason in (
        (b.store(P, [0], unbound), "variable unbound"),
        (b.store(P, [0], b.div(N, b.sub(N, 1))), "kernel k: integer division by zero"),
        (b.store(b.buffer("z", int64, [1]), [0], 1), "buffer z has no memory"),
        (b.store(P, [0], b.load(b.buffer("z", int64, [1]), [0])), "buffer z has no memory"),
        (Call("nothing", ()), "no kernel is named nothing"),
    ):
        with pytest.raises(InternalError, match=reason):
            run(kernel_of(statement, buffers=(P,)), np.zeros(1, np.int64), scalars=[1])


def test_index_arithmetic_wraps_as_int64():
    big = b.mul(N, N)
    memory = np.zeros(1, np.int64)
    run(kernel_of(b.store(P, [0], big), buffers=(P,)), memory, scalars=[2**32 + 1])
    assert memory[0] == 2**33 + 1


def test_sixteen_bit_memory():
    h = b.buffer("h", bfloat16, [2])
    doubled = b.cast(b.mul(b.cast(b.load(h, [0]), float32), 2.0), bfloat16)
    memory = np.array([1.5, 0], bfloat16.numpy)
    run(kernel_of(b.store(h, [1], doubled), buffers=(h,), scalars=()), memory)
    assert float(memory[1]) == 3


def test_vector_registers():
    near = b.fresh_buffer("near", float32, [2], Scope.REGISTER, 4)
    lanes = b.ramp(b.index(0), 4)
    body = [
        Alloc(near),
        b.store(near, [1], b.load(X, [lanes])),
        b.store(Y, [lanes], b.mul(b.load(near, [1]), 2.0)),
    ]
    y = floats(0, 0, 0, 0)
    run(kernel_of(*body), floats(1, 2, 3, 4), y, scalars=[4])
    assert y.tolist() == [2, 4, 6, 8]


# Coverage


def test_coverage_counts_branches_and_trips():
    def body(i):
        return b.if_(b.lt(i, 2), [b.store(Y, [i], 1.0)])

    never = b.if_(b.lt(N, 0), [b.for_(N, lambda i: ())])
    kernel = kernel_of(b.for_(N, body), never)
    coverage = Coverage()
    for n in (0, 2):
        run(kernel, floats(*[0] * n), floats(*[0] * n), scalars=[n], coverage=coverage)
    assert coverage.loops["kernel k/0", "zero"] == coverage.loops["kernel k/0", "many"] == 1
    assert coverage.missing_branches() == ["kernel k/0.0: false", "kernel k/1: true"]
    assert coverage.idle_loops() == ["kernel k/1.0"]
    run(kernel, floats(0, 0, 0), floats(0, 0, 0), scalars=[3], coverage=coverage)
    assert coverage.missing_branches() == ["kernel k/1: true"]


# Modules

M = fresh("m")
IN, OUT = b.buffer("in", float32, [M]), b.buffer("out", float32, [M])
TEMP, TABLE = b.buffer("temp", float32, [M]), b.buffer("late", float32, [M])
WEIGHT, FLAG = b.buffer("weight", float32, [2]), b.buffer("flag", bool_, [])
PLACES = (
    Placement(IN, Place.ARGUMENT, 0),
    Placement(OUT, Place.ARGUMENT, 1),
    Placement(TEMP, Place.ARENA, 64),
    Placement(TABLE, Place.TABLE, 0),
    Placement(WEIGHT, Place.CONSTANT, 0),
    Placement(FLAG, Place.ARENA, 0),
)
DATA = (ConstantData("w", np.array([3, 4], np.float32).tobytes()),)


def scale():
    x, w, y = b.buffer("x", float32, [N]), b.buffer("w", float32, [1]), b.buffer("y", float32, [N])
    i = fresh("i")
    body = b.store(y, [i], b.mul(b.load(x, [i]), b.load(w, [0])))
    return Kernel("scale", (x, w, y), (N,), (For(LoopKind.PARALLEL, i, N, (body,)),))


def lower_flag():
    """flag = in[0] < 100, as a kernel without a parallel loop."""
    x, flag = b.buffer("x", float32, [1]), b.buffer("flag", bool_, [])
    return Kernel("compare", (x, flag), (), (b.store(flag, [], b.lt(b.load(x, [0]), 100.0)),))


def check():
    x = b.buffer("x", float32, [1])
    report = b.if_(b.lt(b.load(x, [0]), 0.0), [Fail(7, b.index(0), b.index(-1))])
    return Kernel("check", (x,), (), (report,))


def module_of(*body):
    entry = Entry("run", PLACES, (M,), b.block(body))
    module = Module("m", (scale(), lower_flag(), check()), entry, DATA)
    verify_module(module, lowered=True)
    return module


def launch(source, target, weight=0):
    views = (View(source), View(WEIGHT, (b.index(weight),)), View(target))
    return Launch("scale", views, (M,), M)


def test_module_runs_through_the_arena_and_the_table():
    module = module_of(launch(IN, TEMP), launch(TEMP, TABLE, 1), launch(TABLE, OUT))
    out = np.zeros(3, np.float32)
    found = run_module(module, [floats(1, 2, 3), out], [3], table=[128], order="shuffled")
    assert out.tolist() == [36, 72, 108]
    assert found.launches == [("scale", 3)] * 3 and found.fail is None and not found.returned


def test_module_arena_is_checked():
    module = module_of(launch(IN, TEMP))
    with pytest.raises(InternalError, match="takes bytes 64 to 76, the memory behind it has 70"):
        arena = np.zeros(70, np.uint8)
        run_module(module, [floats(1, 2, 3), floats(0, 0, 0)], [3], [0], arena=arena)
    with pytest.raises(InternalError, match="argument 1, received 1"):
        run_module(module, [floats(1, 2, 3)], [3], [128])


def test_launch_must_give_the_extent():
    views = (View(IN), View(WEIGHT), View(OUT))
    module = module_of(Launch("scale", views, (M,), b.add(M, 1)))
    with pytest.raises(InternalError, match="launched with 4 chunks, its parallel loop has 3"):
        run_module(module, [floats(1, 2, 3), floats(0, 0, 0)], [3], [128])


def test_loops_branches_and_return_of_an_entry():
    compare = Launch("compare", (View(OUT, (b.index(0),)), View(FLAG)), (), b.index(1))
    grow = [launch(IN, OUT), launch(OUT, IN), Call("compare", (View(IN), View(FLAG)))]
    module = module_of(compare, While(FLAG, b.block(grow)), Return())
    x, out = floats(1), floats(0)
    run_module(module, [x, out], [1], [128])
    assert x[0] == 729  # times 9 until it is not below 100
    checked = module_of(Launch("check", (View(IN),), (), b.index(1)), Return(), launch(IN, OUT))
    for value, fail, expected in ((2, None, 6), (-2, (7, 0, -1), 0)):
        out = floats(0)
        found = run_module(checked, [floats(value), out], [1], [128])
        assert (found.fail, found.returned, out[0]) == (fail, fail is not None, expected)


def test_entry_copies_and_branches():
    whole = Copy(View(OUT), View(IN), (M,))
    module = module_of(If(b.gt(M, 2), (whole,), (launch(IN, OUT),)))
    for values, expected in (((5, 6, 7), [5, 6, 7]), ((5, 6), [15, 18])):
        out = np.zeros(len(values), np.float32)
        run_module(module, [floats(*values), out], [len(values)], [128])
        assert out.tolist() == expected


def test_memory_seen_as_bytes():
    """A copy of bytes lies over floats, and an entry's bytes under a kernel's floats."""
    target, source, count = b.buffer("t", uint8, [N]), b.buffer("s", uint8, [N]), N
    move = b.for_(count, lambda i: b.store(target, [i], b.load(source, [i])))
    copy = Kernel("copy", (target, source), (N,), (move,))
    raw = b.buffer("raw", uint8, [64])
    places = (*PLACES[:2], Placement(raw, Place.ARENA, 0))
    views = (View(raw, (b.index(4),)), View(IN, (b.index(1),)))
    first = Launch("copy", views, (b.index(8),), b.index(1))
    back = Launch("copy", (View(OUT), View(raw, (b.index(4),))), (b.index(8),), b.index(1))
    module = Module("m", (copy,), Entry("run", places, (M,), (first, back)))
    verify_module(module, lowered=True)
    out = floats(0, 0, 0)
    run_module(module, [floats(1, 2, 3), out], [3])
    assert out.tolist() == [2, 3, 0]


def test_stores_of_integers_keep_their_width():
    small = b.buffer("small", int32, [1])
    memory = np.zeros(1, np.int32)
    store = Store(small, (b.index(0),), b.const(-7, int32))
    run(kernel_of(store, buffers=(small,), scalars=()), memory)
    assert memory[0] == -7 and memory.dtype == np.int32
