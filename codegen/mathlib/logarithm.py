"""log, log1p, log2 and pow.

Scheme: x = 2**e m with m in [sqrt(1/2), sqrt(2)), f = m - 1. In float32 log(1 + f) is a polynomial
in f (Cephes); in float64 it is a series in s = f / (2 + f), as in fdlibm (Sun Microsystems, 1993).
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.common import (
    FLOAT64,
    INF,
    LOG2E,
    LOG2E_LOW,
    NAN,
    Pair,
    bits,
    clamp,
    format_of,
    from_bits,
    hexadecimal,
    is_finite,
    pair_product,
    polynomial,
    quick_two_sum,
    to_float,
    two_product,
)
from frame.codegen.mathlib.exponential import EXP_RANGE, reduced_exp, scale
from frame.core.dtypes import float32, float64

# (log(1 + f) - f + f**2 / 2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1], relative error 2**-28.5.
LOG_SINGLE = (
    0.3333331346511841,
    -0.24999983608722687,
    0.20001982152462006,
    -0.16669754683971405,
    0.14223206043243408,
    -0.12376369535923004,
    0.11838258802890778,
    -0.1182393953204155,
    0.07017916440963745,
)

# (log((1 + s) / (1 - s)) - 2 s) / s**3 in s**2, |s| <= 0.1716, relative error 2**-66.5.
LOG_DOUBLE = hexadecimal(
    "0x1.5555555555555p-1",
    "0x1.9999999999d15p-2",
    "0x1.2492492438fc4p-2",
    "0x1.c71c724c2a7a9p-3",
    "0x1.745ce1825560fp-3",
    "0x1.3b2031bf5defep-3",
    "0x1.0f6603e22bc8cp-3",
    "0x1.0f19d49ea42e2p-3",
)

# The same after its first term 2/3, divided by s**2: relative error 2**-73.3.
LOG_TAIL = hexadecimal(
    "0x1.9999999999995p-2",
    "0x1.2492492493192p-2",
    "0x1.c71c71c55742bp-3",
    "0x1.745d1845e6306p-3",
    "0x1.3b135d886cc05p-3",
    "0x1.11217b5d60923p-3",
    "0x1.de1451407b4dep-4",
    "0x1.ec125cdbb80d7p-4",
)
TWO_THIRDS = hexadecimal("0x1.5555555555555p-1", "0x1.5555555555555p-55")
LN2 = hexadecimal("0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56")

SQRT_HALF_BITS = {float32: 0x3F3504F3, float64: 0x3FE6A09E667F3BCD}


def split(x: Expr) -> tuple[Expr, Expr]:
    """Return (e as a float, m) of a positive finite x, denormals included."""
    form = format_of(x)
    small = b.lt(x, form.least_normal)
    shift = form.fraction + 1
    i = bits(b.select(small, b.mul(x, 2.0**shift), x))
    e = b.shr(b.sub(i, SQRT_HALF_BITS[form.dtype]), form.fraction)
    m = from_bits(b.sub(i, b.shl(e, form.fraction)), form)
    exponent = to_float(e, form)
    return b.select(small, b.sub(exponent, float(shift)), exponent), m


def with_special_logarithms(x: Expr, result: Expr) -> Expr:
    """Put in log(0) = -inf, log(inf) = inf, and NaN below zero and for NaN."""
    other = b.select(b.eq(x, INF), b.like(INF, x), b.like(NAN, x))
    other = b.select(b.eq(x, 0.0), b.like(-INF, x), other)
    return b.select(b.and_(b.gt(x, 0.0), b.lt(x, INF)), result, other)


def _log_of_parts(e: Expr, f: Expr, tail: Expr | None) -> Expr:
    """Return e ln2 + log(1 + f), plus a small `tail`."""
    form = format_of(f)
    leading = b.mul(e, form.ln2_high)  # exact
    high, low = quick_two_sum(leading, f)
    low = b.fma(e, form.ln2_low, low)
    if tail is not None:
        low = b.add(low, tail)
    square = b.mul(f, f)
    if form.dtype == float32:
        rest = b.fma(square, b.fma(f, polynomial(f, LOG_SINGLE), -0.5), low)
        return b.add(high, rest)
    s, half_square, r = _series(f)
    return b.add(high, b.add(b.fma(s, b.add(half_square, r), b.neg(half_square)), low))


def _series(f: Expr) -> tuple[Expr, Expr, Expr]:
    """Return s, h, r with log(1 + f) = f - (h - s (h + r))."""
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    return s, b.mul(b.mul(f, f), 0.5), b.mul(z, polynomial(z, LOG_DOUBLE))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    e, m = split(x)
    return with_special_logarithms(x, _log_of_parts(e, b.sub(m, 1.0), None))


def log1p(x: Expr) -> Expr:
    """log(1 + x); what the sum 1 + x loses comes back as a correction. float64."""
    u = b.add(x, 1.0)
    lost = b.select(b.ge(x, 1.0), b.sub(1.0, b.sub(u, x)), b.sub(x, b.sub(u, 1.0)))
    e, m = split(u)
    # lost / u = lost 2**-e / m, and d log(1 + f) = df / (1 + f)
    result = _log_of_parts(e, b.sub(m, 1.0), b.div(lost, u))
    result = with_special_logarithms(u, result)
    return b.select(b.lt(b.absolute(x), 2.0**-54), x, result)


def log2(x: Expr) -> Expr:
    """The logarithm to base 2, exact for powers of two; float64."""
    e, m = split(x)
    f = b.sub(m, 1.0)
    s, half_square, r = _series(f)
    high, low = quick_two_sum(f, b.fma(s, b.add(half_square, r), b.neg(half_square)))
    product, rest = two_product(high, LOG2E)
    rest = b.fma(low, LOG2E, b.fma(high, LOG2E_LOW, rest))
    total, error = quick_two_sum(e, product)
    return with_special_logarithms(x, b.add(total, b.add(error, rest)))


def _log_pair(x: Expr) -> Pair:
    """Return log(x) as a sum, to about 2**-68 relative, for pow; x >= 0, float64."""
    e, m = split(x)
    f = b.sub(m, 1.0)
    d, d_low = quick_two_sum(b.like(2.0, f), f)
    s = b.div(f, d)
    s_low = b.div(b.fma(b.neg(s), d_low, b.fma(b.neg(s), d, f)), d)
    z, z_low = two_product(s, s)
    z_low = b.fma(b.add(s, s), s_low, z_low)
    tail = b.fma(z, polynomial(z, LOG_TAIL), TWO_THIRDS[1])
    factor = quick_two_sum(b.like(TWO_THIRDS[0], f), tail)
    cubic = pair_product(pair_product((z, z_low), factor), (s, s_low))
    high, low = quick_two_sum(b.add(s, s), cubic[0])
    low = b.add(low, b.fma(s_low, 2.0, cubic[1]))
    return _plus_exponent(e, quick_two_sum(high, low))


def _plus_exponent(e: Expr, log_m: Pair) -> Pair:
    high, low = two_product(e, LN2[0])
    low = b.fma(e, LN2[1], low)
    total, error = quick_two_sum(high, log_m[0])
    return quick_two_sum(total, b.add(error, b.add(low, log_m[1])))


def pow_double(x: Expr, y: Expr) -> Expr:
    """x**y in float64: y log|x| as a sum of two numbers, then exp."""
    a = b.absolute(x)
    high, low = _log_pair(a)
    high = with_special_logarithms(a, high)
    t, rest = two_product(y, high)
    rest = b.fma(y, low, rest)
    rest = b.select(b.and_(b.lt(b.absolute(t), 1100.0), is_finite(high)), rest, b.like(0.0, t))
    value, k = reduced_exp(clamp(t, *EXP_RANGE[float64]), rest)
    return with_special_powers(x, y, scale(value, k, FLOAT64))


def pow_single(x: Expr, y: Expr) -> Expr:
    """x**y for float32 operands held in float64, whose precision is enough as it is."""
    a = b.absolute(x)
    e, m = split(a)
    logarithm = with_special_logarithms(a, _log_of_parts(e, b.sub(m, 1.0), None))
    value, k = reduced_exp(clamp(b.mul(y, logarithm), -200.0, 200.0))
    return with_special_powers(x, y, scale(value, k, FLOAT64))


def with_special_powers(x: Expr, y: Expr, magnitude: Expr) -> Expr:
    """Give |x|**y its sign, and the exceptional cases of C99 (annex F.9.4.4)."""
    half = b.mul(y, 0.5)
    integral = b.eq(b.trunc(y), y)
    odd = b.and_(integral, b.ne(b.trunc(half), half))
    one = b.like(1.0, x)
    a = b.absolute(x)
    unit = b.or_(b.eq(y, 0.0), b.eq(x, 1.0))
    unit = b.or_(unit, b.and_(b.eq(x, -1.0), b.eq(b.absolute(y), INF)))
    negative = b.lt(bits(x), 0)
    signed = b.select(b.and_(negative, odd), b.neg(magnitude), magnitude)
    undefined = b.and_(b.and_(b.lt(x, 0.0), b.lt(a, INF)), b.not_(integral))
    return b.select(unit, one, b.select(undefined, b.like(NAN, x), signed))
