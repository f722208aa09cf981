"""The expressions of the builder: one typed function a kind of expression.

Every helper checks the types of its operands and raises InternalError. Python numbers take the type
of the other operand; a scalar meets a vector by a Broadcast. Helpers fold lightly: constants, the
neutral elements, and constants in sums and products of indices. A fold never changes a bit of the
result (so `x + 0.0` stays: it turns -0.0 into 0.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from typing import cast as _typed

import numpy as np

from frame.codegen.loops import semantics
from frame.codegen.loops.ir import (
    INDEX,
    Binary,
    BinaryOp,
    Bitcast,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Extract,
    Fma,
    MulHigh,
    PairDot,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Type,
    Unary,
    UnaryOp,
)
from frame.core.dtypes import DType, bfloat16, bool_, float32, float64, uint32
from frame.core.errors import InternalError

Number: TypeAlias = bool | int | float
Operand: TypeAlias = "Expr | bool | int | float"
"""What the helpers accept for an expression: a Python number takes the other operand's type."""

BOOL = Type(bool_)
TRUE = Const(True, BOOL)
FALSE = Const(False, BOOL)

_CACHED = tuple(Const(value) for value in range(-16, 257))


# Constants and types


def index(value: int) -> Const:
    """Return an int64 constant."""
    if -16 <= value <= 256:
        return _CACHED[value + 16]
    return Const(int(value), INDEX)


def const(value: Number, type_: Type | DType = INDEX) -> Const:
    """Return a constant of a type; a float is rounded to the dtype, an integer must be in range."""
    if isinstance(type_, DType):
        type_ = Type(type_)
    return Const(semantics.normalise(value, type_.dtype), type_)


def boolean(value: bool) -> Const:
    """Return a scalar bool constant."""
    return TRUE if value else FALSE


def like(value: Number, other: Expr) -> Const:
    """Return a constant of the type of `other`. A Python int may become a float."""
    if other.type is INDEX and type(value) is int:
        return index(value)
    return const(value, other.type)


def constant_value(x: Operand) -> Number | None:
    """Return the number that a constant (or a broadcast constant) holds, None for the rest."""
    if isinstance(x, Const):
        return x.value
    if isinstance(x, Broadcast):
        return constant_value(x.x)
    return None if isinstance(x, Expr) else x


def as_index(x: Operand) -> Expr:
    """Return an index expression: an expression stays, a Python int becomes a constant."""
    return x if isinstance(x, Expr) else index(int(x))


def _same(expected: Type, *others: Expr, what: str) -> None:
    for other in others:
        if other.type != expected:
            types = ", ".join(str(o.type) for o in others)
            raise InternalError(f"{what}: expected operands of type {expected}, received {types}")


def require(condition: bool, what: str, *operands: Expr) -> None:
    """Raise InternalError with the types of the operands unless the condition holds."""
    if not condition:
        received = ", ".join(f"{type(o).__name__} {o.type}" for o in operands)
        raise InternalError(f"{what}, received {received}")


def unify(*operands: Operand) -> tuple[Expr, ...]:
    """Bring operands to one number of lanes and turn Python numbers into constants.

    Raises:
        InternalError: no operand is an expression, or vectors have different lanes.
    """
    expressions = [x for x in operands if isinstance(x, Expr)]
    if not expressions:
        raise InternalError(f"expected an expression among the operands, received {operands!r}")
    lanes = max(x.type.lanes for x in expressions)
    sample = expressions[0]
    return tuple(
        broadcast(x if isinstance(x, Expr) else const(x, sample.type.dtype), lanes)
        for x in operands
    )


def _pair(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    if isinstance(a, Expr) and isinstance(b, Expr):
        if a.type.lanes != b.type.lanes:
            lanes = max(a.type.lanes, b.type.lanes)
            return broadcast(a, lanes), broadcast(b, lanes)
        return a, b
    if isinstance(a, Expr):
        return a, like(_typed(Number, b), a)
    if isinstance(b, Expr):
        return like(a, b), b
    raise InternalError(f"expected an expression among the operands, received {a!r}, {b!r}")


# Vectors


def broadcast(x: Expr, lanes: int) -> Expr:
    """Return a scalar in every lane; an expression that has `lanes` lanes already stays."""
    if x.type.lanes == lanes:
        return x
    require(x.type.lanes == 1, f"broadcast to {lanes} lanes: expected a scalar", x)
    if isinstance(x, Const):
        return Const(x.value, Type(x.type.dtype, lanes))
    return Broadcast(x, lanes)


def ramp(base: Operand, lanes: int) -> Expr:
    """Return `base, base + 1, ...` (the base itself for one lane)."""
    base = as_index(base)
    require(base.type.lanes == 1 and base.type.dtype.is_integer, "ramp: expected an integer", base)
    return base if lanes == 1 else Ramp(base, lanes)


def extract(x: Expr, lane: int) -> Expr:
    """Return one lane of a vector."""
    require(0 <= lane < x.type.lanes, f"extract of lane {lane}: no such lane", x)
    if isinstance(x, Const):
        return Const(x.value, Type(x.type.dtype))
    if isinstance(x, Broadcast):
        return x.x
    if isinstance(x, Ramp):
        return add(x.base, like(lane, x.base))
    return x if x.type.lanes == 1 else Extract(x, lane)


def shuffle(a: Expr, b: Expr, pattern: Sequence[int]) -> Expr:
    """Return lanes chosen from the concatenation of two equal vectors by constant positions."""
    _same(a.type, b, what="shuffle")
    total = 2 * a.type.lanes
    require(all(0 <= p < total for p in pattern), f"shuffle {pattern}: position too large", a, b)
    return Shuffle(a, b, tuple(pattern))


def reduce(op: BinaryOp, x: Expr) -> Expr:
    """Reduce the lanes of a vector to a scalar, by halves; a scalar stays."""
    if x.type.lanes == 1:
        return x
    if op in _IDEMPOTENT and isinstance(x, (Broadcast, Const)):
        return extract(x, 0)
    return Reduce(op, x)


_IDEMPOTENT = frozenset(
    {
        *(BinaryOp.MIN, BinaryOp.MAX, BinaryOp.MINIMUM, BinaryOp.MAXIMUM),
        *(BinaryOp.AND, BinaryOp.OR),
    }
)


def sum_lanes(x: Expr) -> Expr:
    """Return the sum of the lanes, by halves."""
    return reduce(BinaryOp.ADD, x)


# Unary


def unary(op: UnaryOp, x: Expr) -> Expr:
    """Return `op x`, folded for a constant."""
    dtype = x.type.dtype
    require(unary_allowed(op, dtype), f"{op}: no such operation on {dtype}", x)
    if isinstance(x, Const):
        return _fold(semantics.UNARY[op], x)
    if isinstance(x, Broadcast):
        return broadcast(unary(op, x.x), x.lanes)
    if op in _INVOLUTIONS and isinstance(x, Unary) and x.op is op:
        return x.x
    return Unary(op, x)


_INVOLUTIONS = frozenset({UnaryOp.NEG, UnaryOp.NOT})
_FLOAT_ONLY = frozenset({UnaryOp.SQRT, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})


def unary_allowed(op: UnaryOp, dtype: DType) -> bool:
    """Tell whether a dtype has a unary operator."""
    if dtype.storage_only:
        return False
    if op in _FLOAT_ONLY:
        return dtype.is_float
    if op is UnaryOp.NOT:
        return not dtype.is_float
    return not dtype.is_bool


def _fold(function: Callable[..., semantics.Array], *operands: Const) -> Const:
    """Apply the semantics of an operator to constants."""
    first = operands[0].type
    with np.errstate(all="ignore"):
        result = function(*(semantics.splat(x.value, x.type.dtype) for x in operands))
    dtype = bool_ if result.dtype == np.bool_ else first.dtype
    return Const(semantics.to_scalar(result, dtype), Type(dtype, first.lanes))


def neg(x: Expr) -> Expr:
    """Return `-x`."""
    return unary(UnaryOp.NEG, x)


def absolute(x: Expr) -> Expr:
    """Return the absolute value."""
    return unary(UnaryOp.ABS, x)


def sqrt(x: Expr) -> Expr:
    """Return the square root."""
    return unary(UnaryOp.SQRT, x)


def floor(x: Expr) -> Expr:
    """Round a float toward minus infinity."""
    return unary(UnaryOp.FLOOR, x)


def ceil(x: Expr) -> Expr:
    """Round a float toward plus infinity."""
    return unary(UnaryOp.CEIL, x)


def round_even(x: Expr) -> Expr:
    """Round a float to the nearest integer, ties to even."""
    return unary(UnaryOp.ROUND, x)


def trunc(x: Expr) -> Expr:
    """Round a float toward zero."""
    return unary(UnaryOp.TRUNC, x)


def not_(x: Expr) -> Expr:
    """Return the bitwise complement; logical on bool."""
    if isinstance(x, Compare) and not x.a.type.dtype.is_float:
        return compare(_NEGATED[x.op], x.a, x.b)
    return unary(UnaryOp.NOT, x)


# Binary


def binary(op: BinaryOp, a: Operand, b: Operand) -> Expr:
    """Return `a op b` on equal element types, folded where the bits of the result allow it."""
    a, b = _pair(a, b)
    if a.type != b.type or not binary_allowed(op, a.type.dtype):
        raise InternalError(
            f"{op}: expected two operands of one dtype that has it, received {a.type}, {b.type}"
        )
    if isinstance(a, Const) and isinstance(b, Const):
        return _fold_binary(op, a, b)
    folder = _FOLDERS.get(op)
    folded = folder(a, b) if folder is not None else None
    if folded is not None:
        return folded
    if isinstance(a, Broadcast) and (isinstance(b, (Broadcast, Const))):
        return _scalar_binary(op, a, b)
    if isinstance(b, Broadcast) and isinstance(a, Const):
        return _scalar_binary(op, a, b)
    return Binary(op, a, b)


def _scalar_binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """Operate on scalars before the broadcast instead of on equal lanes after it."""
    return broadcast(binary(op, extract(a, 0), extract(b, 0)), a.type.lanes)


def _fold_binary(op: BinaryOp, a: Const, b: Const) -> Const:
    if a.type is INDEX and op in _QUICK:
        value = _QUICK[op](_typed(int, a.value), _typed(int, b.value))
        if -(2**62) < value < 2**62:
            return index(value)
    return _fold(semantics.BINARY[op], a, b)


_QUICK: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
}
_BITWISE = frozenset({BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})
_SHIFTS = frozenset({BinaryOp.SHL, BinaryOp.SHR})


def binary_allowed(op: BinaryOp, dtype: DType) -> bool:
    """Tell whether a dtype has a binary operator."""
    if dtype.storage_only:
        return False
    if op in _BITWISE:
        return not dtype.is_float
    if op in _SHIFTS:
        return dtype.is_integer
    return not dtype.is_bool


def _is(x: Expr, value: Number) -> bool:
    """Tell whether x is this constant; -0.0 is not 0.0."""
    if not isinstance(x, Const) or x.value != value:
        return False
    return bool(np.signbit(x.value) == np.signbit(value)) if x.type.dtype.is_float else True


def _wrapped(value: int, sample: Expr) -> Const:
    low, high = semantics.integer_range(sample.type.dtype)
    span = high - low + 1
    return like((value - low) % span + low, sample)


def _fold_add(a: Expr, b: Expr) -> Expr | None:
    if a.type.dtype.is_float:
        return a if _is(b, -0.0) else b if _is(a, -0.0) else None
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        return a if b.value == 0 else _add_constant(a, _typed(int, b.value))
    if isinstance(a, Ramp) and isinstance(b, Broadcast):
        return Ramp(add(a.base, b.x), a.lanes)
    if isinstance(b, Ramp) and isinstance(a, Broadcast):
        return Ramp(add(a.x, b.base), b.lanes)
    return _gather_constants(a, b)


def _gather_constants(a: Expr, b: Expr) -> Expr | None:
    """Move the constant of a sum of integers to its right end."""
    left, right = _offset(a), _offset(b)
    if left == 0 and right == 0:
        return None
    inner = add(a.a if left else a, b.a if right else b)  # type: ignore[attr-defined]
    return add(inner, _wrapped(left + right, a))


def _offset(x: Expr) -> int:
    """Return the constant c of `x = y + c`, 0 where there is none."""
    if isinstance(x, Binary) and x.op is BinaryOp.ADD and isinstance(x.b, Const):
        return _typed(int, x.b.value)
    return 0


def _add_constant(a: Expr, value: int) -> Expr:
    if isinstance(a, Ramp):
        return Ramp(add(a.base, _wrapped(value, a.base)), a.lanes)
    if isinstance(a, Broadcast):
        return broadcast(add(a.x, _wrapped(value, a.x)), a.lanes)
    offset = _offset(a)
    if offset:
        return add(a.a, _wrapped(offset + value, a))  # type: ignore[attr-defined]
    return Binary(BinaryOp.ADD, a, _wrapped(value, a))


def _fold_sub(a: Expr, b: Expr) -> Expr | None:
    if a.type.dtype.is_float:
        return a if _is(b, 0.0) else None
    if a is b:
        return like(0, a)
    if isinstance(b, Const):
        return add(a, _wrapped(-_typed(int, b.value), b))
    if isinstance(a, Ramp) and isinstance(b, Broadcast):
        return Ramp(sub(a.base, b.x), a.lanes)
    left, right = _offset(a), _offset(b)
    if left == 0 and right == 0:
        return None
    inner = sub(a.a if left else a, b.a if right else b)  # type: ignore[attr-defined]
    return add(inner, _wrapped(left - right, a))


def _fold_mul(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const):
        a, b = b, a
    if not isinstance(b, Const):
        return None
    if b.value == 1:
        return a
    if a.type.dtype.is_float:
        return None
    if b.value == 0:
        return b
    if isinstance(a, Broadcast):
        return None
    return _scale(a, b)


def _scale(a: Expr, factor: Const) -> Expr:
    if isinstance(a, Binary) and a.op is BinaryOp.MUL and isinstance(a.b, Const):
        return mul(a.a, _wrapped(_typed(int, a.b.value) * _typed(int, factor.value), a))
    return Binary(BinaryOp.MUL, a, factor)


def _fold_div(a: Expr, b: Expr) -> Expr | None:
    if _is(b, 1):
        return a
    if b.type.dtype.is_integer and _is(b, 0):
        raise InternalError("div by the constant 0")
    return None


def _fold_rem(a: Expr, b: Expr) -> Expr | None:
    if not b.type.dtype.is_integer:
        return None
    if _is(b, 0):
        raise InternalError("rem by the constant 0")
    return like(0, a) if _is(b, 1) else None


def _fold_same(a: Expr, b: Expr) -> Expr | None:
    return a if a is b else None


def _fold_and(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const) and b.type.dtype.is_bool:
        return a if b.value else b
    return b if _is(b, 0) else _fold_same(a, b)


def _fold_or(a: Expr, b: Expr) -> Expr | None:
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const) and b.type.dtype.is_bool:
        return b if b.value else a
    return a if _is(b, 0) else _fold_same(a, b)


def _fold_zero_right(a: Expr, b: Expr) -> Expr | None:
    return a if _is(b, 0) and not b.type.dtype.is_bool else None


_FOLDERS: dict[BinaryOp, Callable[[Expr, Expr], Expr | None]] = {
    BinaryOp.ADD: _fold_add,
    BinaryOp.SUB: _fold_sub,
    BinaryOp.MUL: _fold_mul,
    BinaryOp.DIV: _fold_div,
    BinaryOp.REM: _fold_rem,
    BinaryOp.MIN: _fold_same,
    BinaryOp.MAX: _fold_same,
    BinaryOp.MINIMUM: _fold_same,
    BinaryOp.MAXIMUM: _fold_same,
    BinaryOp.AND: _fold_and,
    BinaryOp.OR: _fold_or,
    BinaryOp.XOR: _fold_zero_right,
    BinaryOp.SHL: _fold_zero_right,
    BinaryOp.SHR: _fold_zero_right,
}


def add(a: Operand, b: Operand) -> Expr:
    """Return `a + b`; integers wrap."""
    return binary(BinaryOp.ADD, a, b)


def sub(a: Operand, b: Operand) -> Expr:
    """Return `a - b`; integers wrap."""
    return binary(BinaryOp.SUB, a, b)


def mul(a: Operand, b: Operand) -> Expr:
    """Return `a * b`; integers wrap."""
    return binary(BinaryOp.MUL, a, b)


def div(a: Operand, b: Operand) -> Expr:
    """Return `a / b`; integers truncate toward zero and the caller guards a zero divisor."""
    return binary(BinaryOp.DIV, a, b)


def rem(a: Operand, b: Operand) -> Expr:
    """Return the remainder of the truncated quotient, with the sign of `a`."""
    return binary(BinaryOp.REM, a, b)


def min_(a: Operand, b: Operand) -> Expr:
    """Return `a < b ? a : b` (b where either is NaN)."""
    return binary(BinaryOp.MIN, a, b)


def max_(a: Operand, b: Operand) -> Expr:
    """Return `a > b ? a : b` (b where either is NaN)."""
    return binary(BinaryOp.MAX, a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """Return the lesser operand, NaN where either is NaN."""
    return binary(BinaryOp.MINIMUM, a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """Return the greater operand, NaN where either is NaN."""
    return binary(BinaryOp.MAXIMUM, a, b)


def and_(a: Operand, b: Operand) -> Expr:
    """Return the bitwise and; logical on bool."""
    return binary(BinaryOp.AND, a, b)


def or_(a: Operand, b: Operand) -> Expr:
    """Return the bitwise or; logical on bool."""
    return binary(BinaryOp.OR, a, b)


def xor(a: Operand, b: Operand) -> Expr:
    """Return the bitwise exclusive or; logical on bool."""
    return binary(BinaryOp.XOR, a, b)


def shl(a: Operand, b: Operand) -> Expr:
    """Return `a << b` for 0 <= b < bits."""
    return binary(BinaryOp.SHL, a, b)


def shr(a: Operand, b: Operand) -> Expr:
    """Return `a >> b` for 0 <= b < bits: arithmetic for int, logical for uint."""
    return binary(BinaryOp.SHR, a, b)


def ceil_div(a: Operand, b: Operand) -> Expr:
    """Return the quotient rounded up, for a >= 0 and b > 0."""
    a, b = _pair(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else (as_index(a), as_index(b))
    return div(add(a, sub(b, like(1, b))), b)


def add_all(terms: Iterable[Operand]) -> Expr:
    """Return the sum of index terms (0 for none)."""
    total: Expr = index(0)
    for term in terms:
        total = add(total, term)
    return total


# Comparisons and the rest


def compare(op: CompareOp, a: Operand, b: Operand) -> Expr:
    """Return `a op b` as bool lanes, folded for constants and for an integer against itself."""
    a, b = _pair(a, b)
    allowed = not a.type.dtype.storage_only
    require(allowed and a.type == b.type, f"{op}: expected two operands of one type", a, b)
    if isinstance(a, Const) and isinstance(b, Const):
        return _fold(semantics.COMPARE[op], a, b)
    if a is b and not a.type.dtype.is_float:
        return Const(op in _REFLEXIVE, Type(bool_, a.type.lanes))
    if isinstance(a, (Broadcast, Const)) and isinstance(b, (Broadcast, Const)):
        return broadcast(compare(op, extract(a, 0), extract(b, 0)), a.type.lanes)
    return Compare(op, a, b)


_REFLEXIVE = frozenset({CompareOp.EQ, CompareOp.LE, CompareOp.GE})
_NEGATED = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
}


def eq(a: Operand, b: Operand) -> Expr:
    """Return `a == b`."""
    return compare(CompareOp.EQ, a, b)


def ne(a: Operand, b: Operand) -> Expr:
    """Return `a != b` (true for NaN)."""
    return compare(CompareOp.NE, a, b)


def lt(a: Operand, b: Operand) -> Expr:
    """Return `a < b`."""
    return compare(CompareOp.LT, a, b)


def le(a: Operand, b: Operand) -> Expr:
    """Return `a <= b`."""
    return compare(CompareOp.LE, a, b)


def gt(a: Operand, b: Operand) -> Expr:
    """Return `a > b`."""
    return compare(CompareOp.GT, a, b)


def ge(a: Operand, b: Operand) -> Expr:
    """Return `a >= b`."""
    return compare(CompareOp.GE, a, b)


def select(condition: Expr, a: Operand, b: Operand) -> Expr:
    """Return `condition ? a : b`, lane by lane; scalars meet vectors by broadcasts."""
    a, b = _pair(a, b)
    lanes = max(condition.type.lanes, a.type.lanes)
    condition, a, b = broadcast(condition, lanes), broadcast(a, lanes), broadcast(b, lanes)
    require(condition.type.dtype.is_bool, "select: expected a bool condition", condition)
    _same(a.type, b, what="select")
    if isinstance(condition, Const):
        return a if condition.value else b
    return a if a is b else Select(condition, a, b)


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """Return `a * b + c` with one rounding, for float32 and float64."""
    x, y, z = unify(a, b, c)
    require(x.type.dtype in (float32, float64), "fma: expected float32 or float64", x)
    _same(x.type, y, z, what="fma")
    if isinstance(x, Const) and isinstance(y, Const) and isinstance(z, Const):
        return _fold(semantics.fma, x, y, z)
    return Fma(x, y, z)


def pair_dot(a: Expr, b: Expr, c: Expr) -> Expr:
    """Return c plus the dot product of the pair of each lane: see `PairDot`."""
    lanes = Type(bfloat16, 2 * c.type.lanes)
    require(c.type.dtype == float32, "pair_dot: expected sums in float32", c)
    require(a.type == lanes and b.type == lanes, f"pair_dot: expected operands {lanes}", a, b)
    return PairDot(a, b, c)


def cast(x: Expr, dtype: DType) -> Expr:
    """Convert to another dtype; the same dtype stays."""
    if x.type.dtype == dtype:
        return x
    if isinstance(x, Const):
        source = x.type.dtype
        with np.errstate(all="ignore"):
            lanes = semantics.cast(semantics.splat(x.value, source), source, dtype)
        return Const(semantics.to_scalar(lanes, dtype), Type(dtype, x.type.lanes))
    if isinstance(x, Broadcast):
        return broadcast(cast(x.x, dtype), x.lanes)
    return Cast(x, dtype)


def bitcast(x: Expr, dtype: DType) -> Expr:
    """Reinterpret the bits as another dtype of the same width."""
    require(x.type.dtype.bits == dtype.bits, f"bitcast to {dtype}: width differs", x)
    require(not (x.type.dtype.is_bool or dtype.is_bool), "bitcast: bool has no bits", x)
    if x.type.dtype == dtype:
        return x
    if isinstance(x, Const) and not (isinstance(x.value, float) and x.value != x.value):
        bits = semantics.splat(x.value, x.type.dtype).view(dtype.numpy)
        value = semantics.to_scalar(bits, dtype)
        if value == value:  # a NaN keeps its payload only outside a Const
            return Const(value, Type(dtype, x.type.lanes))
    return Bitcast(x, dtype)


def mul_high(a: Operand, b: Operand) -> Expr:
    """Return the high half of the product of two uint32."""
    a, b = _pair(a, b)
    require(a.type.dtype == uint32, "mul_high: expected uint32", a)
    _same(a.type, b, what="mul_high")
    if isinstance(a, Const) and isinstance(b, Const):
        return _fold(semantics.mul_high, a, b)
    return MulHigh(a, b)
