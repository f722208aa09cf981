"""The operators against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from frame.codegen.loops import semantics
from frame.codegen.loops.ir import BinaryOp, UnaryOp
from frame.core.dtypes import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int4,
    int8,
    int32,
    int64,
    uint8,
    uint64,
)
from frame.core.errors import InternalError

RANDOM = np.random.RandomState(7)


def wide_floats(count, dtype_):
    """Floats of every exponent."""
    bits = RANDOM.randint(0, 2**32, (count, 2), dtype=np.uint32).view(np.uint64).ravel()
    x = bits.view(np.float64) if dtype_ == np.float64 else bits.astype(np.uint32).view(np.float32)
    return x[np.isfinite(x)]


def exact(a, b, c):
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


def nearest(x: Fraction, kind) -> float:
    """Round an exact value to nearest even by trying the neighbours."""
    near = kind(float(x)) if kind is np.float64 else kind(x.numerator / x.denominator)
    options = {float(near), float(np.nextafter(near, kind(np.inf)))}
    options.add(float(np.nextafter(near, kind(-np.inf))))
    finite = [o for o in options if np.isfinite(o)]
    best = min(abs(Fraction(o) - x) for o in finite)
    ties = [o for o in finite if abs(Fraction(o) - x) == best]
    if len(ties) == 1:
        return ties[0]
    word = np.uint32 if kind is np.float32 else np.uint64
    return next(o for o in ties if kind(o).view(word) % 2 == 0)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fma_rounds_once(kind):
    """Sums that cancel, and products that fall on ties of a shorter format."""
    a, b = (RANDOM.standard_normal(400).astype(kind) for _ in range(2))
    scale = kind(2.0) ** RANDOM.randint(-60, 60, 400).astype(kind)
    near = -(a * b) * (1 + RANDOM.randint(-2, 3, 400) * np.finfo(kind).eps)
    c = np.where(RANDOM.rand(400) < 0.5, near, RANDOM.standard_normal(400) * scale).astype(kind)
    found = semantics.fma(a, b, c)
    assert found.dtype == kind
    for row in zip(a, b, c, found, strict=True):
        assert row[3] == nearest(exact(*row[:3]), kind), row


def test_fma_is_not_a_product_and_a_sum():
    a = np.array([1 + 2.0**-23], np.float32)
    assert semantics.fma(a, a, -a * a)[0] != 0


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fma_at_the_edges(kind):
    big, tiny = np.finfo(kind).max, np.finfo(kind).smallest_subnormal
    rows = [
        (big, 2, -big),
        (big, 2, 0),
        (tiny, 0.5, 0),
        (tiny, 0.5, tiny),
        (-tiny, 0.25, 0),
        (np.inf, 1, -np.inf),
        (0, np.inf, 1),
        (-0.0, 1, 0.0),
        (-0.0, 1, -0.0),
        (1, 1, -1),
        (np.nan, 1, 1),
    ]
    a, b, c = (np.array(column, kind) for column in zip(*rows, strict=True))
    with np.errstate(all="ignore"):
        found = semantics.fma(a, b, c)
    expected = [big, np.inf, 0, 2 * tiny, -0.0, np.nan, np.nan, 0, -0.0, 0, np.nan]
    np.testing.assert_array_equal(found, np.array(expected, kind))
    signs = [False, False, False, False, True, False, True, False]
    assert np.signbit(found[[0, 1, 2, 3, 4, 7, 8, 9]]).tolist() == signs


def test_narrow_floats_round_once():
    """A float64 just above a tie of bfloat16: through float32 it would round down."""
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, -(1 + 2.0**-8 + 2.0**-40)])
    assert semantics.cast(x, float64, bfloat16).astype(float).tolist() == [
        1 + 2.0**-7,
        1.0,
        -(1 + 2.0**-7),
    ]
    y = wide_floats(4000, np.float64)
    y = np.concatenate([y, RANDOM.standard_normal(4000) * 100])
    with np.errstate(over="ignore"):
        halves = semantics.cast(y, float64, float16)
        np.testing.assert_array_equal(halves, y.astype(np.float16))  # numpy rounds once


def test_integers_become_narrow_floats_with_one_rounding():
    x = np.array([2**24 + 1, 257, 2**53 + 1, -(2**31)], np.int64)
    found = semantics.cast(x, int64, bfloat16).astype(float)
    assert found.tolist() == [2.0**24, 256.0, 2.0**53, -(2.0**31)]
    above = np.array([2**40 + 2**32 + 1], np.int64)  # just above a tie of bfloat16
    assert semantics.cast(above, int64, bfloat16).astype(float)[0] == 2.0**40 + 2.0**33


@pytest.mark.parametrize("target", [int8, uint8, int32, int64, uint64], ids=str)
@pytest.mark.parametrize("source", [float32, float64, float16, bfloat16], ids=str)
def test_floats_saturate_into_integers(source: DType, target: DType):
    low, high = semantics.integer_range(target)
    x = np.array([0.0, -0.9, 2.7, -2.7, 1e30, -1e30, np.inf, -np.inf, np.nan, low, high])
    with np.errstate(all="ignore"):
        lanes = semantics.cast(x, float64, source)
        found = semantics.cast(lanes, source, target)
    for one, other in zip(lanes.astype(np.float64), found, strict=True):
        expected = 0 if np.isnan(one) else int(np.clip(one, -1e300, 1e300))
        assert int(other) == min(max(expected, low), high), (one, other)


def test_integers_wrap_between_widths():
    x = np.array([300, -1, 128, 7], np.int32)
    assert semantics.cast(x, int32, uint8).tolist() == [44, 255, 128, 7]
    assert semantics.cast(x, int32, int8).tolist() == [44, -1, -128, 7]
    assert semantics.cast(x, int32, int4).astype(int).tolist() == [-4, -1, 0, 7]
    assert semantics.cast(x, int32, bool_).tolist() == [True] * 4


@pytest.mark.parametrize("source", [*DTYPES.values()], ids=str)
@pytest.mark.parametrize("target", [*DTYPES.values()], ids=str)
def test_every_cast_keeps_small_numbers(source: DType, target: DType):
    number = 1
    lanes = semantics.cast(np.array([number], np.int64), int64, source)
    found = semantics.cast(lanes, source, target)
    assert found.dtype == target.numpy and float(found[0]) == number


def test_sixteen_bit_floats_compute_in_float32():
    x = np.array([1.0, 3.0], ml_dtypes.bfloat16)
    y = np.array([2.0**-9, 7.0], ml_dtypes.bfloat16)
    total = semantics.BINARY[BinaryOp.ADD](x, y)
    assert total.dtype == ml_dtypes.bfloat16 and total.astype(float).tolist() == [1.0, 10.0]
    root = semantics.UNARY[UnaryOp.SQRT](np.array([2.0], np.float16))
    assert root.dtype == np.float16 and root[0] == np.float16(2**0.5)


def test_reduction_goes_by_halves():
    x = np.array([1e8, 1.0, -1e8, 1.0, 0.5, 2.0, 0.25, 4.0], np.float32)
    expected = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    assert semantics.reduce(BinaryOp.ADD, x)[0] == expected


@pytest.mark.parametrize("op", [BinaryOp.DIV, BinaryOp.REM])
def test_division_is_guarded(op):
    for a, b in ((1, 0), (-(2**31), -1)):
        with pytest.raises(InternalError, match="must guard it"):
            semantics.BINARY[op](np.array([a], np.int32), np.array([b], np.int32))
    a, b = RANDOM.randint(-50, 50, 200), RANDOM.randint(1, 9, 200) * RANDOM.choice([-1, 1], 200)
    quotient = semantics.BINARY[BinaryOp.DIV](a, b)
    np.testing.assert_array_equal(quotient, np.trunc(a / b))
    np.testing.assert_array_equal(semantics.BINARY[BinaryOp.REM](a, b), a - quotient * b)


def test_shifts_are_guarded():
    one = np.array([1], np.int32)
    for amount in (-1, 32):
        with pytest.raises(InternalError, match="0 <= b < bits"):
            semantics.BINARY[BinaryOp.SHL](one, np.array([amount], np.int32))
    minus = np.array([-8], np.int32)
    assert semantics.BINARY[BinaryOp.SHR](minus, one)[0] == -4
    assert semantics.BINARY[BinaryOp.SHR](minus.view(np.uint32), one.view(np.uint32))[0] > 0


def test_rounding_operators():
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    assert semantics.UNARY[UnaryOp.ROUND](x).tolist() == [-2, 0, 0, 2, 2]
    assert semantics.UNARY[UnaryOp.TRUNC](x).tolist() == [-1, 0, 0, 1, 2]
    assert semantics.UNARY[UnaryOp.NOT](np.array([True, False])).tolist() == [False, True]


def test_normalise_knows_every_dtype():
    for name in DTYPES:
        kind = dtype(name)
        value = True if kind.is_bool else 1.0 if kind.is_float else 1
        assert semantics.normalise(value, kind) == value
