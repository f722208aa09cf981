"""What each operator of the loop IR computes, in numpy: one row an operator.

The interpreter and the constant folding of the builder share these tables, so that a folded
constant has the bits that the generated code would have computed. Arrays hold one element a lane,
in the numpy dtype of the element type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from frame.codegen.loops.ir import BinaryOp, CompareOp, UnaryOp
from frame.core.dtypes import DType, float16, float32, float64
from frame.core.errors import InternalError

Array = np.ndarray[Any, Any]
Scalar = bool | int | float


def _through_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute 16-bit floats in float32 with one rounding at the end."""

    def wrapped(*arrays: Array) -> Array:
        element = arrays[0].dtype
        if element.itemsize != 2 or element.kind in "iub":
            return function(*arrays)
        return function(*(array.astype(np.float32) for array in arrays)).astype(element)

    return wrapped


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return _through_float32(np.divide)(a, b)
    _check_divisor(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0))
    return (quotient + inexact.astype(a.dtype)).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        _check_divisor(a, b)
    return np.asarray(_through_float32(np.fmod)(a, b))


def _check_divisor(a: Array, b: Array) -> None:
    if np.any(b == 0):
        raise InternalError("integer division by zero: the code that builds a div must guard it")
    if a.dtype.kind == "i" and np.any((b == -1) & (a == np.iinfo(a.dtype).min)):
        raise InternalError("integer division overflows: the code that builds a div must guard it")


def _shift(function: Callable[..., Array]) -> Callable[..., Array]:
    def wrapped(a: Array, b: Array) -> Array:
        if np.any((b < 0) | (b >= a.dtype.itemsize * 8)):
            raise InternalError(f"shift of {a.dtype} by {b}: the amount must be 0 <= b < bits")
        return function(a, b)

    return wrapped


UNARY: Mapping[UnaryOp, Callable[[Array], Array]] = {
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.SQRT: _through_float32(np.sqrt),
    UnaryOp.FLOOR: _through_float32(np.floor),
    UnaryOp.CEIL: _through_float32(np.ceil),
    UnaryOp.ROUND: _through_float32(np.rint),
    UnaryOp.TRUNC: _through_float32(np.trunc),
    UnaryOp.NOT: _not,
}

BINARY: Mapping[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: _through_float32(np.add),
    BinaryOp.SUB: _through_float32(np.subtract),
    BinaryOp.MUL: _through_float32(np.multiply),
    BinaryOp.DIV: _divide,
    BinaryOp.REM: _remainder,
    BinaryOp.MIN: lambda a, b: np.where(a < b, a, b),
    BinaryOp.MAX: lambda a, b: np.where(a > b, a, b),
    BinaryOp.MINIMUM: lambda a, b: np.where((a < b) | (a != a), a, b),
    BinaryOp.MAXIMUM: lambda a, b: np.where((a > b) | (a != a), a, b),
    BinaryOp.AND: np.bitwise_and,
    BinaryOp.OR: np.bitwise_or,
    BinaryOp.XOR: np.bitwise_xor,
    BinaryOp.SHL: _shift(np.left_shift),
    BinaryOp.SHR: _shift(np.right_shift),
}

COMPARE: Mapping[CompareOp, Callable[[Array, Array], Array]] = {
    CompareOp.EQ: np.equal,
    CompareOp.NE: np.not_equal,
    CompareOp.LT: np.less,
    CompareOp.LE: np.less_equal,
    CompareOp.GT: np.greater,
    CompareOp.GE: np.greater_equal,
}


def cast(x: Array, source: DType, target: DType) -> Array:
    """Convert lanes as `ir.Cast` says: floats saturate into integers, integers wrap."""
    if target.is_bool:
        return np.asarray(x.astype(np.float32) != 0 if source.bits < 16 else x != 0)
    if source.is_float and target.is_integer:
        return _saturate(x, target)
    if target.is_float and target.bits <= 16:
        return _narrow(x, source).astype(target.numpy)
    if target.bits == 4:
        return _wrap_four_bits(x, target)
    if source.storage_only:
        x = x.astype(np.float32 if source.is_float else np.int64)
    return x.astype(target.numpy)


def _saturate(x: Array, target: DType) -> Array:
    low, high = integer_range(target)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        inside = np.nan_to_num(np.trunc(wide), nan=0.0, posinf=0.0, neginf=0.0)
        inside = np.where((wide > low) & (wide < high), inside, 0.0)
        middle = inside.astype(np.uint64 if target.bits == 64 and low == 0 else np.int64)
    result = middle.astype(target.numpy)
    result = np.where(wide >= high, np.array(high).astype(target.numpy), result)
    return np.asarray(np.where(wide <= low, np.array(low).astype(target.numpy), result))


def _narrow(x: Array, source: DType) -> Array:
    """Bring any value to float32 so that a second rounding to 16 bits gives the single rounding."""
    if source.bits <= 16:
        return x.astype(np.float32)
    if source == float32:
        return x
    if source == float64:
        return _round_to_odd(x)
    wide = x.astype(np.float64)  # exact below 2**53, and above it the low bits only break ties
    return _round_to_odd(wide)


def _round_to_odd(x: Array) -> Array:
    """Round float64 to float32 toward zero, then set the last bit if anything was lost.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd" (2008).
    """
    near = x.astype(np.float32)
    finite = np.isfinite(x) & np.isfinite(near)
    over = finite & (np.abs(near.astype(np.float64)) > np.abs(x))
    bits = near.view(np.uint32) - over.astype(np.uint32)
    down = bits.view(np.float32)
    inexact = finite & (down.astype(np.float64) != x)
    return np.asarray((bits | inexact.astype(np.uint32)).view(np.float32))


def _wrap_four_bits(x: Array, target: DType) -> Array:
    low = x.astype(np.int64) & 15
    if target.kind == "int":
        low = np.where(low >= 8, low - 16, low)
    return np.asarray(low.astype(target.numpy))


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and greatest value of an integer dtype (0 and 1 for bool)."""
    if dtype.is_bool:
        return 0, 1
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return `a * b + c` with one rounding, for float32 and float64 lanes."""
    if a.dtype == np.float32:
        return _fma32(a, b, c)
    return _fma64(a, b, c)


def pair_dot(a: Array, b: Array, c: Array) -> Array:
    """Return float32 sums `c` plus the products of the pairs of bfloat16 of each lane.

    The second of a pair is added before the first, each with one rounding.
    """
    x, y = (pairs.astype(np.float32).reshape(-1, 2) for pairs in (a, b))
    return _fma32(x[:, 0], y[:, 0], _fma32(x[:, 1], y[:, 1], c))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a: Array, b: Array) -> Array:
    """Add two float64 with rounding to odd."""
    total, error = _two_sum(a, b)
    bits = np.ascontiguousarray(total).view(np.int64)
    even = (bits & 1) == 0
    lost = (error != 0) & np.isfinite(total) & np.isfinite(error) & even
    outward = (error > 0) == (total > 0)
    return np.asarray((bits + np.where(lost, np.where(outward, 1, -1), 0)).view(np.float64))


def _fma32(a: Array, b: Array, c: Array) -> Array:
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    return _odd_sum(product, c.astype(np.float64)).astype(np.float32)


def _fma64(a: Array, b: Array, c: Array) -> Array:
    product = a * b
    small, large = 2.0**-400, 2.0**400
    values = np.abs(np.stack([a, b, c]))
    if not np.all((values > small) & (values < large)):
        return np.array([_exact_fma(*t) for t in zip(a.flat, b.flat, c.flat, strict=True)]).reshape(
            a.shape
        )
    high_a, low_a = _split(a)
    high_b, low_b = _split(b)
    low = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    top, tail = _two_sum(c, low)
    head, rest = _two_sum(product, top)
    return head + _odd_sum(rest, tail)


def _split(x: Array) -> tuple[Array, Array]:
    """Veltkamp's splitting of a float64 into two halves of 26 bits."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _exact_fma(a: float, b: float, c: float) -> float:
    if np.isfinite(a) and np.isfinite(b) and not np.isfinite(c):
        return float(c)  # also where a * b alone would overflow
    if not all(map(np.isfinite, (a, b, c))) or a == 0 or b == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return float(np.float64(0.0) if c != 0 else np.float64(a) * np.float64(b))
    try:
        result = float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
    return result if result != 0 or exact > 0 else -0.0


def mul_high(a: Array, b: Array) -> Array:
    """Return the high 32 bits of the 64-bit products of uint32 lanes."""
    return np.asarray(((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype("u4"))


def reduce(op: BinaryOp, x: Array) -> Array:
    """Reduce lanes by halves: the lower half combined with the upper half until one is left."""
    function = BINARY[op]
    while len(x) > 1:
        half = len(x) // 2
        x = function(x[:half], x[half:])
    return x


def splat(value: Scalar, dtype: DType, lanes: int = 1) -> Array:
    """Return a constant as lanes."""
    if dtype.is_float:
        single = np.array([value], np.float64)
        return np.repeat(cast(single, float64, dtype), lanes)
    return np.full(lanes, value, dtype.numpy)


def to_scalar(x: Array, dtype: DType) -> Scalar:
    """Return the first lane as the Python bool, int or float that a Const holds."""
    if dtype.is_bool:
        return bool(x[0])
    return float(x[0]) if dtype.is_float else int(x[0])


def normalise(value: Scalar, dtype: DType) -> Scalar:
    """Return the value that a constant of `dtype` has: a float rounds, an int must be in range.

    Raises:
        InternalError: the value is not of the kind of the dtype or out of range.
    """
    if dtype.is_float:
        return _normalise_float(value, dtype)
    low, high = integer_range(dtype)
    plain = isinstance(value, (bool, np.bool_)) == dtype.is_bool
    if not plain or isinstance(value, (float, np.floating)) or not low <= value <= high:
        raise InternalError(f"constant {value!r} is not a value of {dtype}")
    return bool(value) if dtype.is_bool else int(value)


def _normalise_float(value: Scalar, dtype: DType) -> float:
    if isinstance(value, (bool, np.bool_)):
        raise InternalError(f"constant {value!r} is not a value of {dtype}")
    if dtype == float64:
        return float(value)
    if dtype in (float32, float16) and np.isfinite(value):
        with np.errstate(over="ignore"):
            return float(np.float64(value).astype(dtype.numpy))
    with np.errstate(all="ignore"):
        return float(splat(float(value), dtype)[0])
