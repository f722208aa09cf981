"""Every operator of the loop IR on every dtype, with its numpy result: cases for the emitters.

A row is (function of expressions, dtypes of the operands, dtype of the result, arrays, expected).
"""

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops import ir, semantics
from frame.core import dtypes as dt

COMPUTED = [row for row in dt.DTYPES.values() if not row.storage_only]
FLOATS = [row for row in COMPUTED if row.is_float]
# The dtypes whose code differs most run always, the others as slow tests.
REPRESENTATIVE = (dt.float32, dt.float64, dt.float16, dt.bfloat16, dt.int32, dt.uint64, dt.bool_)
DTYPE_PARAMETERS = [
    pytest.param(row, marks=() if row in REPRESENTATIVE else pytest.mark.slow, id=str(row))
    for row in COMPUTED
]
COUNT = 512
LANES = (1, 8)


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


def assert_same(got, expected, what, arrays):
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, what
    if got.dtype.kind not in "biuf":  # what ml_dtypes adds
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    with np.errstate(invalid="ignore"):
        nan = (got != got) & (expected != expected)
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


def kernels_of(rows, lanes=LANES):
    """One kernel a row and lane count, named k0x1, k0x8, k1x1, ..."""
    return [
        kernel(f"k{place}x{count}", sources, result, function, count)
        for place, (function, sources, result, _, _) in enumerate(rows)
        for count in lanes
    ]


def unary_rows(dtype):
    rows, x = [], values(dtype)
    for op in ir.UnaryOp:
        if b.unary_allowed(op, dtype):
            with np.errstate(all="ignore"):
                expected = semantics.UNARY[op](x)
            rows.append((lambda v, op=op: ir.Unary(op, v), (dtype,), dtype, (x,), expected))
    return rows


def _operands(op, dtype):
    x, y = values(dtype, 1), values(dtype, 2)
    if op in (ir.BinaryOp.SHL, ir.BinaryOp.SHR):
        y = (np.arange(COUNT) % dtype.bits).astype(dtype.numpy)
    if op in (ir.BinaryOp.DIV, ir.BinaryOp.REM) and dtype.is_integer:
        y = np.where((y == 0) | (y == dtype.numpy.type(-1 if dtype.kind == "int" else 0)), 3, y)
        y = y.astype(dtype.numpy)
    return x, y


def binary_rows(dtype):
    rows = []
    for op in ir.BinaryOp:
        if b.binary_allowed(op, dtype):
            x, y = _operands(op, dtype)
            with np.errstate(all="ignore"):
                expected = semantics.BINARY[op](x, y)
            function = lambda u, v, op=op: ir.Binary(op, u, v)  # noqa: E731
            rows.append((function, (dtype, dtype), dtype, (x, y), expected))
    return rows


def compare_rows(dtype):
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
    return rows


def cast_rows(dtype):
    x, rows = values(dtype, 3), []
    for result in COMPUTED:
        with np.errstate(all="ignore"):
            expected = semantics.cast(x, dtype, result) if result != dtype else x
        rows.append((lambda v, r=result: ir.Cast(v, r), (dtype,), result, (x,), expected))
    return rows


def storage_rows():
    """Casts from and to what is only stored: float8 and int4, every code and every tie."""
    rows = []
    for dtype in (row for row in dt.DTYPES.values() if row.storage_only):
        bits = np.arange(COUNT).astype(np.uint8)
        x = bits.view(dtype.numpy) if dtype.is_float else bits.astype(np.int8).astype(dtype.numpy)
        others = (*FLOATS, dt.int32, dt.uint8, dt.int64, dt.bool_)
        for other in (*others, dt.float8_e5m2, dt.int4, dt.uint4):
            with np.errstate(all="ignore"):
                expected = semantics.cast(x, dtype, other) if other != dtype else x
            rows.append((lambda v, r=other: ir.Cast(v, r), (dtype,), other, (x,), expected))
        for other in others:
            y = values(other, 8)
            if other.is_float:
                with np.errstate(all="ignore"):
                    y[: COUNT // 2] = (x[: COUNT // 2].astype(np.float32) * 1.0625).astype(y.dtype)
            with np.errstate(all="ignore"):
                expected = semantics.cast(y, other, dtype)
            rows.append((lambda v, r=dtype: ir.Cast(v, r), (other,), dtype, (y,), expected))
    return rows


def half_rows():
    """16-bit floats, and the float64 halfway to the next one and next to that."""
    rows = []
    for dtype in (dt.float16, dt.bfloat16):
        for offset in (0, 21, 42):
            bits = np.arange(0, 1 << 16, (1 << 16) // COUNT, dtype=np.uint16) + offset
            x = bits.astype(np.uint16).view(dtype.numpy)
            with np.errstate(invalid="ignore"):
                wide = x.astype(np.float32)
                exact = wide.astype(np.float64).view(np.int64)
            rows.append((lambda v: ir.Cast(v, dt.float32), (dtype,), dt.float32, (x,), wide))
            for beside in (0, 1, -1):
                half = 1 << (41 if dtype == dt.float16 else 44)
                tie = np.where(np.isfinite(wide), (exact + half + beside).view(np.float64), 1.0)
                expected = semantics.cast(tie, dt.float64, dtype)
                cast = lambda v, r=dtype: ir.Cast(v, r)  # noqa: E731
                rows.append((cast, (dt.float64,), dtype, (tie,), expected))
    return rows


def fma_rows(dtype):
    a, c, d = (values(dtype, seed) for seed in (1, 2, 3))
    with np.errstate(all="ignore"):
        d[::2] = -(a[::2] * c[::2])  # cancels to the error of the product
        tiny = dtype.numpy.type(np.finfo(dtype.numpy).tiny)
        c[1::8] = tiny / np.where(a[1::8] == 0, 1, a[1::8])  # products around the denormals
        expected = semantics.fma(a, c, d)
    function = lambda u, v, w: ir.Fma(u, v, w)  # noqa: E731
    return [(function, (dtype,) * 3, dtype, (a, c, d), expected)]


def bit_rows():
    x, y = values(dt.uint32, 1), values(dt.uint32, 2)
    floats, words = values(dt.float32, 5), values(dt.int64, 6)
    pairs = [(x, dt.uint32, dt.float32), (floats, dt.float32, dt.int32)]
    pairs += [(words, dt.int64, dt.float64), (values(dt.int16, 7), dt.int16, dt.float16)]
    rows = [
        (lambda v, r=result: ir.Bitcast(v, r), (source,), result, (bits,), bits.view(result.numpy))
        for bits, source, result in pairs
    ]
    high = semantics.mul_high(x, y)
    rows.append((lambda u, v: ir.MulHigh(u, v), (dt.uint32,) * 2, dt.uint32, (x, y), high))
    return rows


def pair_rows(lanes):
    """Dot products of pairs: the vectors of two loads side by side, taken for sums of one."""
    arrays = [values(dt.bfloat16, seed) for seed in range(4)]
    sums = values(dt.float32, 4)
    with np.errstate(all="ignore"):
        a, c = (
            np.stack([low.reshape(-1, lanes), high.reshape(-1, lanes)], 1).ravel()
            for low, high in (arrays[:2], arrays[2:])
        )
        products = a.astype(np.float32) * c.astype(np.float32)
        sums[::2] = -products[1::2][::2]  # cancels, and leaves the other product of the pair
        expected = semantics.pair_dot(a, c, sums)
    whole = tuple(range(2 * lanes))

    def dot(u, v, x, y, total):
        return ir.PairDot(ir.Shuffle(u, v, whole), ir.Shuffle(x, y, whole), total)

    return [(dot, (dt.bfloat16,) * 4 + (dt.float32,), dt.float32, (*arrays, sums), expected)]


def repeated_rows():
    """One pair of 16-bit lanes in each word of a vector."""
    rows = []
    for dtype in (dt.bfloat16, dt.uint16):
        x = values(dtype, 1)
        repeated = np.repeat(x.reshape(-1, 4, 2)[:, :1], 4, 1).ravel()

        def repeat(v):
            return ir.Shuffle(ir.Shuffle(v, v, (0, 1)), ir.Shuffle(v, v, (0, 1)), (0, 1) * 4)

        rows.append((repeat, (dtype,), dtype, (x,), repeated))
    return rows


REDUCTIONS = (ir.BinaryOp.ADD, ir.BinaryOp.MUL, ir.BinaryOp.MIN, ir.BinaryOp.MAXIMUM)


def lane_rows(dtype):
    """What works across 8 lanes: reductions, shuffles, one lane, a ramp."""
    x, rows = values(dtype, 4), []
    groups = x.reshape(-1, 8)
    for op in REDUCTIONS:

        def reduced(v, op=op):
            return ir.Broadcast(ir.Reduce(op, v), 8)

        with np.errstate(all="ignore"):
            parts = [np.repeat(semantics.reduce(op, part), 8) for part in groups]
        rows.append((reduced, (dtype,), dtype, (x,), np.concatenate(parts)))
    pattern = (3, 9, 15, 0, 0, 12, 7, 8)
    shuffled = np.concatenate([groups, groups[:, ::-1]], 1)[:, pattern].ravel()

    def shuffle(v):
        return ir.Shuffle(v, ir.Shuffle(v, v, tuple(range(7, -1, -1))), pattern)

    rows.append((shuffle, (dtype,), dtype, (x,), shuffled))
    one = lambda v: ir.Broadcast(ir.Extract(v, 5), 8)  # noqa: E731
    rows.append((one, (dtype,), dtype, (x,), np.repeat(groups[:, 5], 8)))
    return rows
