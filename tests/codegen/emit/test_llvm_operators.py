"""Every operator on every dtype, as native code, against the numpy semantics of the loop IR.

It runs for this machine and for its baseline, which lacks fma, rounding and half conversion on x86:
the code that stands in for missing instructions must give the same bits.
"""

import numpy as np
import pytest

from frame.backends.cpu.target import host_architecture, host_target, named_target
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir, semantics
from frame.core import dtypes as dt
from tests.codegen.native import Native, module_of

COMPUTED = [row for row in dt.DTYPES.values() if not row.storage_only]
FLOATS = [row for row in COMPUTED if row.is_float]
BASELINE = {"x86_64": "x86-64", "aarch64": "armv8-a"}[host_architecture()]
COUNT = 1024


@pytest.fixture(params=["host", "baseline"])
def target(request):
    return host_target() if request.param == "host" else named_target(BASELINE)


def kernel(name, sources, result, function, lanes):
    """result[i] = function(x0[i], x1[i], ...) in vectors of `lanes`."""
    inputs = [b.buffer(f"x{i}", dtype, [COUNT]) for i, dtype in enumerate(sources)]
    output, body = b.buffer("y", result, [COUNT]), b.Body()
    with body.loop(COUNT // lanes) as i:
        at = b.ramp(b.mul(i, lanes), lanes)
        body.store(output, [at], function(*(b.load(x, [at]) for x in inputs)))
    return ir.Kernel(name, (*inputs, output), (), body.block())


def values(dtype, seed=0):
    """Random bit patterns, small numbers and edges."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, COUNT).astype(bool)
    bits = rng.integers(0, 256, COUNT * dtype.itemsize, np.uint8).view(dtype.numpy)
    with np.errstate(all="ignore"):
        small = (rng.standard_normal(COUNT) * 100).astype(np.int64 if dtype.is_integer else float)
        small = small.astype(dtype.numpy)
        edges = rng.choice(edges_of(dtype), COUNT)
    return np.where(rng.random(COUNT) < 0.4, small, np.where(rng.random(COUNT) < 0.3, edges, bits))


def edges_of(dtype):
    if dtype.is_integer:
        low, high = semantics.integer_range(dtype)
        return np.array([low, high, 0, 1, high // 2, high - 1], object).astype(dtype.numpy)
    numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0**31, 2.0**63]
    numbers += [-(2.0**31), -(2.0**63), 2.0**64, 65504, 65520, 6e-8, 2.0**-149, 2.0**-1074, 127.5]
    numbers += [2.0**23 - 0.5, 2.0**52 - 0.5, 1 + 2.0**-11, 1 + 3 * 2.0**-11 + 2.0**-40]
    numbers += [1 + 2.0**-8 + 2.0**-40, 3.4028236e38, 2.0**-25, -(2.0**-25), 2.0**-25 + 2.0**-60]
    with np.errstate(all="ignore"):
        return np.array(numbers).astype(dtype.numpy)


def run(rows, target):
    """Compile (function, source dtypes, result dtype, expected) rows as one module, and compare."""
    kernels = []
    for index, (function, sources, result, _, _) in enumerate(rows):
        for lanes in (1, 8):
            kernels.append(kernel(f"k{index}x{lanes}", sources, result, function, lanes))
    native = Native(module_of(*kernels), target)
    for index, (_, _, result, arrays, expected) in enumerate(rows):
        for lanes in (1, 8):
            got = np.zeros(COUNT, result.numpy)
            native.kernel(f"k{index}x{lanes}", [*arrays, got])
            assert_same(got, expected, f"row {index} lanes {lanes} {rows[index][1]}", arrays)


def assert_same(got, expected, what, arrays):
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, what
    nan = (got != got) & (expected != expected)
    with np.errstate(invalid="ignore"):
        same = (got == expected) & (
            np.signbit(got) == np.signbit(expected) if got.dtype.kind not in "iub" else True
        )
    wrong = np.flatnonzero(~(same | nan))
    assert len(wrong) == 0, (
        what,
        [array[wrong[:4]] for array in arrays],
        got[wrong[:4]],
        expected[wrong[:4]],
    )


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_unary(target, dtype):
    rows, x = [], values(dtype)
    for op in ir.UnaryOp:
        if b.unary_allowed(op, dtype):
            with np.errstate(all="ignore"):
                expected = semantics.UNARY[op](x)
            rows.append((lambda v, op=op: ir.Unary(op, v), (dtype,), dtype, (x,), expected))
    run(rows, target)


def operands_of(op, dtype):
    x, y = values(dtype, 1), values(dtype, 2)
    if op in (ir.BinaryOp.SHL, ir.BinaryOp.SHR):
        y = (np.arange(COUNT) % dtype.bits).astype(dtype.numpy)
    if op in (ir.BinaryOp.DIV, ir.BinaryOp.REM) and dtype.is_integer:
        y = np.where((y == 0) | (y == dtype.numpy.type(-1 if dtype.kind == "int" else 0)), 3, y)
        y = y.astype(dtype.numpy)
    return x, y


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_binary(target, dtype):
    rows = []
    for op in ir.BinaryOp:
        if b.binary_allowed(op, dtype):
            x, y = operands_of(op, dtype)
            with np.errstate(all="ignore"):
                expected = semantics.BINARY[op](x, y)
            function = lambda u, v, op=op: ir.Binary(op, u, v)  # noqa: E731
            rows.append((function, (dtype, dtype), dtype, (x, y), expected))
    run(rows, target)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_compare_and_select(target, dtype):
    x, y = values(dtype, 1), values(dtype, 1)
    y[::3] = values(dtype, 2)[::3]
    rows = []
    for op in ir.CompareOp:
        with np.errstate(all="ignore"):
            expected = np.asarray(semantics.COMPARE[op](x, y), bool)
        compared = lambda u, v, op=op: ir.Compare(op, u, v)  # noqa: E731
        chosen = lambda u, v, op=op: ir.Select(ir.Compare(op, u, v), v, u)  # noqa: E731
        rows.append((compared, (dtype, dtype), dt.bool_, (x, y), expected))
        rows.append((chosen, (dtype, dtype), dtype, (x, y), np.where(expected, y, x)))
    run(rows, target)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_cast(target, dtype):
    x, rows = values(dtype, 3), []
    for result in COMPUTED:
        with np.errstate(all="ignore"):
            expected = semantics.cast(x, dtype, result) if result != dtype else x
        rows.append((lambda v, r=result: ir.Cast(v, r), (dtype,), result, (x,), expected))
    run(rows, target)


def test_every_16_bit_float_and_the_ties_between_them(target):
    rows = []
    for dtype in (dt.float16, dt.bfloat16):
        everything = np.arange(0, 1 << 16, (1 << 16) // COUNT, dtype=np.uint16)
        for offset in (0, 21, 42):
            x = (everything + offset).view(dtype.numpy)
            with np.errstate(invalid="ignore"):
                wide = x.astype(np.float32)
            rows.append((lambda v: ir.Cast(v, dt.float32), (dtype,), dt.float32, (x,), wide))
            with np.errstate(invalid="ignore"):
                bits = wide.astype(np.float64).view(np.int64)
            for half in (0, 1, -1):  # halfway to the next 16-bit float, and next to that
                shift = 41 if dtype == dt.float16 else 44
                tie = (bits + (1 << shift) + half).view(np.float64)
                tie = np.where(np.isfinite(wide), tie, 1.0)
                expected = semantics.cast(tie, dt.float64, dtype)
                cast = lambda v, r=dtype: ir.Cast(v, r)  # noqa: E731
                rows.append((cast, (dt.float64,), dtype, (tie,), expected))
    run(rows, target)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_fma_rounds_once(target, dtype):
    a, c, d = (values(dtype, seed) for seed in (1, 2, 3))
    with np.errstate(all="ignore"):
        d[::2] = -(a[::2] * c[::2])  # cancels to the error of the product
        tiny = dtype.numpy.type(np.finfo(dtype.numpy).tiny)
        c[1::8] = tiny / np.where(a[1::8] == 0, 1, a[1::8])  # products around the denormals
        expected = semantics.fma(a, c, d)
    function = lambda u, v, w: ir.Fma(u, v, w)  # noqa: E731
    run([(function, (dtype,) * 3, dtype, (a, c, d), expected)], target)


def test_bits_and_lanes(target):
    x, y = values(dt.uint32, 1), values(dt.uint32, 2)
    high = semantics.mul_high(x, y)
    floats = values(dt.float32, 5)
    rows = [
        (lambda u, v: ir.MulHigh(u, v), (dt.uint32,) * 2, dt.uint32, (x, y), high),
        (lambda u: ir.Bitcast(u, dt.float32), (dt.uint32,), dt.float32, (x,), x.view(np.float32)),
        (
            lambda u: ir.Bitcast(u, dt.int32),
            (dt.float32,),
            dt.int32,
            (floats,),
            floats.view(np.int32),
        ),
    ]
    run(rows, target)


REDUCTIONS = (ir.BinaryOp.ADD, ir.BinaryOp.MUL, ir.BinaryOp.MIN, ir.BinaryOp.MAXIMUM)


@pytest.mark.parametrize("dtype", [*FLOATS, dt.int32, dt.uint8], ids=str)
def test_reduce_goes_by_halves(target, dtype):
    x, rows = values(dtype, 4), []
    for op in REDUCTIONS:

        def function(v, op=op):
            return ir.Broadcast(ir.Reduce(op, v), v.type.lanes)

        with np.errstate(all="ignore"):
            parts = [np.repeat(semantics.reduce(op, part), 8) for part in x.reshape(-1, 8)]
        rows.append((function, (dtype,), dtype, (x,), np.concatenate(parts)))
    kernels = [kernel(f"k{i}", row[1], row[2], row[0], 8) for i, row in enumerate(rows)]
    native = Native(module_of(*kernels), target)
    for i, row in enumerate(rows):
        got = np.zeros(COUNT, dtype.numpy)
        native.kernel(f"k{i}", [x, got])
        assert_same(got, row[4], str(REDUCTIONS[i]), (x,))
