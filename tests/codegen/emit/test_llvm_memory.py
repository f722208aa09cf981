"""Loads, stores and copies of every shape: masked, strided, gathered; and no call to a library."""

import numpy as np
import pytest

from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.target import host_target, named_target
from frame.codegen.emit import llvm
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.core import dtypes as dt
from frame.core.errors import InternalError
from tests.codegen import operators
from tests.codegen.native import Native, module_of

ELEMENTS = [dt.float64, dt.float32, dt.float16, dt.bfloat16, dt.int8, dt.uint16, dt.int64, dt.bool_]


def run(kernel, arrays, scalars=()):
    native = Native(module_of(kernel))
    native.kernel(kernel.name, arrays, scalars)
    return arrays[-1]


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_masked_accesses_touch_nothing_else(dtype, lanes):
    """y[i] = x[i] for i in [3, 13): the other lanes neither read beyond x nor write into y."""
    x, y = b.buffer("x", dtype, [10]), b.buffer("y", dtype, [16])
    body = b.Body()
    with body.loop(16 // lanes) as i:
        at = b.ramp(b.mul(i, lanes), lanes)
        mask = b.and_(b.ge(at, 3), b.lt(at, 13))
        body.store(y, [at], b.load(x, [b.sub(at, 3)], mask), mask)
    values = operators.values(dtype)[:10]
    result = operators.values(dtype, 9)[:16].copy()
    before = result.copy()
    run(ir.Kernel("k", (x, y), (), body.block()), [values, result])
    before[3:13] = values
    np.testing.assert_array_equal(result.view(np.uint8), before.view(np.uint8))


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_gather_and_scatter(dtype):
    """y[p[i], 2] = x[p[i], 1] where i is even, on strided buffers."""
    rows = 16
    p = b.buffer("p", dt.int64, [rows])
    x = b.buffer("x", dtype, [rows, 3])
    y = b.buffer("y", dtype, [rows, 4], [1, rows])
    body = b.Body()
    with body.loop(rows // 8) as i:
        at = b.ramp(b.mul(i, 8), 8)
        place = body.let("place", b.load(p, [at]))
        mask = b.eq(b.and_(at, 1), 0)
        body.store(y, [place, 2], b.load(x, [place, 1], mask), mask)
    order = np.random.default_rng(0).permutation(rows)
    values, result = operators.values(dtype)[:48].reshape(16, 3), np.zeros((4, rows), dtype.numpy)
    run(ir.Kernel("k", (p, x, y), (), body.block()), [order, values, result])
    expected = np.zeros_like(result)
    expected[2, order[::2]] = values[order[::2], 1]
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))


def test_a_masked_gather_ignores_wild_indices():
    p, x = b.buffer("p", dt.int64, [8]), b.buffer("x", dt.float32, [4, 5])
    y = b.buffer("y", dt.float32, [8])
    at = b.ramp(0, 8)
    place = b.load(p, [at])
    mask = b.and_(b.ge(place, 0), b.lt(place, 4))
    kernel = ir.Kernel("k", (p, x, y), (), (b.store(y, [at], b.load(x, [place, 3], mask)),))
    places = np.array([2**62, -1, 0, 3, 4, -(2**63), 1, 2])
    values, result = np.arange(20, dtype=np.float32), np.full(8, -1, np.float32)
    run(kernel, [places, values, result])
    np.testing.assert_array_equal(result, [0, 0, 3, 18, 0, 0, 8, 13])


@pytest.mark.parametrize("dtype", [dt.float32, dt.int8, dt.bool_], ids=str)
@pytest.mark.parametrize("columns", [0, 1, 31, 70])
def test_copy_of_a_region(dtype, columns):
    n = b.fresh("n")
    x, y = b.buffer("x", dtype, [5, 80]), b.buffer("y", dtype, [4, 90])
    copy = ir.Copy(ir.View(y, (b.index(1), b.index(7))), ir.View(x, (b.index(2), b.index(3))), ())
    copy = ir.Copy(copy.target, copy.source, (b.index(3), n))
    values = operators.values(dtype)[:400].reshape(5, 80)
    result, expected = (operators.values(dtype, 9)[:360].reshape(4, 90).copy() for _ in range(2))
    run(ir.Kernel("k", (x, y), (n,), (copy,)), [values, result], [columns])
    expected[1:4, 7 : 7 + columns] = values[2:5, 3 : 3 + columns]
    np.testing.assert_array_equal(result, expected)


def test_registers_hold_vectors_across_a_loop():
    """A tile of 2 x 3 vectors in registers sums the rows of x with weights."""
    x, y = b.buffer("x", dt.float64, [7, 24]), b.buffer("y", dt.float64, [2, 24])
    body = b.Body()
    tile = body.alloc("tile", dt.float64, [2, 3], lanes=8)
    cells = [(i, j) for i in range(2) for j in range(3)]
    for i, j in cells:
        body.store(tile, [i, j], b.const(float(i), ir.Type(dt.float64, 8)))
    with body.loop(7) as k:
        for i, j in cells:
            row = b.load(x, [k, b.ramp(b.index(8 * j), 8)])
            body.store(tile, [i, j], b.fma(row, float(i + 1), b.load(tile, [i, j])))
    for i, j in cells:
        body.store(y, [i, b.ramp(b.index(8 * j), 8)], b.load(tile, [i, j]))
    values = np.arange(168, dtype=np.float64).reshape(7, 24)
    result = run(ir.Kernel("k", (x, y), (), body.block()), [values, np.zeros((2, 24))])
    np.testing.assert_array_equal(result, [values.sum(0), 1 + 2 * values.sum(0)])


def fill_and_move():
    """Loops that LLVM would like to turn into memset and memcpy."""
    n = b.fresh("n")
    x, y = b.buffer("x", dt.float32, [n]), b.buffer("y", dt.float32, [n])
    body = b.Body()
    with body.loop(n) as i:
        body.store(y, [i], 0.0)
    with body.loop(n) as i:
        body.store(y, [i], b.load(x, [i]))
    local = body.alloc("local", dt.int8, [4096], ir.Scope.LOCAL)
    with body.loop(4096) as i:
        body.store(local, [i], 0)
    with body.loop(n) as i:
        body.store(y, [i], b.cast(b.load(local, [b.rem(i, 4096)]), dt.float32))
    return ir.Kernel("fill", (x, y), (n,), body.block())


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "x86-64-v4", "armv8-a"])
def test_no_object_calls_a_library(name):
    rows = []
    for dtype in (dt.float32, dt.float64, dt.float16, dt.int64):
        rows += operators.unary_rows(dtype) + operators.binary_rows(dtype)
        rows += operators.cast_rows(dtype)
    rows += operators.fma_rows(dt.float64) + operators.fma_rows(dt.float32)
    kernels = operators.kernels_of(rows, lanes=(8,))
    target = named_target(name)
    text = llvm.emit_module(module_of(fill_and_move(), *kernels), target)
    assert compile_ir(text, target, level=1)  # raises for an undefined symbol
    assert compile_ir(llvm.emit_module(module_of(fill_and_move()), target), target, level=3)


def test_names_are_bounded_and_distinct():
    odd = ["a" * 300, "a" * 299 + "b", "0 @%\n", "x.body", "x", "entry"]
    kernels = [ir.Kernel(name, (), (), ()) for name in odd]
    module = module_of(*kernels)
    symbols = list(llvm.kernel_symbols(module).values())
    assert len(set(symbols)) == len(odd) and max(map(len, symbols)) <= 64
    assert llvm.entry_symbol(module) not in symbols
    assert set(symbols) <= set(Native(module).object.symbols)


def test_deep_expressions_need_no_recursion():
    x, y = b.buffer("x", dt.float32, [1]), b.buffer("y", dt.float32, [1])
    value = b.load(x, [0])
    for _ in range(20_000):
        value = ir.Binary(ir.BinaryOp.ADD, value, b.const(1.0, dt.float32))
    kernel = ir.Kernel("k", (x, y), (), (b.store(y, [0], value),))
    text = llvm.emit_module(module_of(kernel), host_target())
    assert text.count("fadd") == 20_000


def test_what_the_emitter_refuses():
    y = b.buffer("y", dt.float32, [1])
    loop = ir.For(ir.LoopKind.VECTOR, b.fresh("i"), b.index(4), ())
    with pytest.raises(InternalError, match="vectorise"):
        llvm.emit_module(module_of(ir.Kernel("k", (), (), (loop,))), host_target())
    loose = ir.Kernel("k", (y,), (), (b.store(y, [0], b.fresh("v", ir.Type(dt.float32))),))
    with pytest.raises(InternalError, match="bound before its use"):
        llvm.emit_module(module_of(loose), host_target())


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.float64], ids=str)
def test_streamed_stores_write_the_same_at_every_alignment(dtype, offset):
    """y[i] = x[i] past the caches, at addresses that allow it and at others; then a fence."""
    x, y = b.buffer("x", dtype, [64]), b.buffer("y", dtype, [64])
    body = b.Body()
    with body.loop(8) as i:
        at = b.ramp(b.mul(i, 8), 8)
        body.store(y, [at], b.load(x, [at]), streamed=True)
    native = Native(module_of(ir.Kernel("k", (x, y), (), body.block())))
    assert "!nontemporal" in native.text
    assert ("sfence" in native.text) == native_x86()
    values = np.resize(operators.values(dtype), 64)
    memory = np.zeros(80, dtype.numpy)
    result = memory[offset : offset + 64]
    native.kernel("k", [values, result])
    np.testing.assert_array_equal(result.view(np.uint8), values.view(np.uint8))
    assert not memory[:offset].any()
    assert not memory[offset + 64 :].any()


def native_x86():
    return host_target().triple.startswith("x86_64")
