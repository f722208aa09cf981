"""asin, acos, atan, atan2 in float64 (float32 goes through it), and rsqrt.

Schemes: asin as in fdlibm (Sun Microsystems, 1993), through pi/2 - 2 asin(sqrt((1 - x) / 2)) from
1/2 on; atan as in Cephes (Moshier, 1989), reduced to |t| <= tan(pi/8) by one division.
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.common import (
    FLOAT64,
    INF,
    bits,
    copy_sign,
    from_bits,
    hexadecimal,
    polynomial,
)

# (asin(x) - x) / x**3 in x**2 for |x| <= 1/2: relative error 2**-59.8 of asin(x).
ASIN = hexadecimal(
    "0x1.5555555555577p-3",
    "0x1.333333332e10fp-4",
    "0x1.6db6db7214f6fp-5",
    "0x1.f1c71a93b91b7p-6",
    "0x1.6e8bdf08c3a77p-6",
    "0x1.1c49ed2b6c835p-6",
    "0x1.ca1fe13e282fep-7",
    "0x1.7582a79381a46p-7",
    "0x1.614dbda42b6c0p-7",
    "0x1.e4e384ad0d655p-9",
    "0x1.63f3cc8a5b5cep-6",
    "-0x1.587e6c240c992p-6",
    "0x1.0b70a0ed0df64p-5",
)

# (atan(x) - x) / x**3 in x**2 for |x| <= tan(pi/8): relative error 2**-62.9 of atan(x).
ATAN = hexadecimal(
    "-0x1.5555555555554p-2",
    "0x1.9999999999584p-3",
    "-0x1.249249246f589p-3",
    "0x1.c71c71b458822p-4",
    "-0x1.745d145036ad6p-4",
    "0x1.3b1364ee2e745p-4",
    "-0x1.110beb549f27fp-4",
    "0x1.e167b88876bf7p-5",
    "-0x1.ab3be07cbbffbp-5",
    "0x1.6fe4a0d65f158p-5",
    "-0x1.0fd49e79950dfp-5",
    "0x1.e849f8e97cef1p-7",
)

HALF_PI = hexadecimal("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54")
TAN_PI_8 = 0.41421356237309503
TAN_3PI_8 = 2.414213562373095


def _upper_half(a: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (head, tail, correction) with asin(sqrt((1 - a) / 2)) = head + (tail + correction)."""
    z = b.mul(b.sub(1.0, a), 0.5)
    root = b.sqrt(z)
    head = from_bits(b.and_(bits(root), -(1 << 32)), FLOAT64)
    lost = b.div(b.fma(b.neg(head), head, z), b.add(root, head))
    lost = b.select(b.eq(z, 0.0), b.like(0.0, z), lost)
    return head, lost, b.mul(b.mul(root, z), polynomial(z, ASIN))


def _lower_half(a: Expr) -> Expr:
    """Return asin(a) - a."""
    z = b.mul(a, a)
    return b.mul(b.mul(a, z), polynomial(z, ASIN))


def asin(x: Expr) -> Expr:
    """The arc sine, NaN outside [-1, 1]."""
    a = b.absolute(x)
    head, lost, cubic = _upper_half(a)
    # pi/2 - 2 (head + lost + cubic), the large parts first
    rest = b.sub(b.mul(b.add(cubic, lost), 2.0), HALF_PI[1])
    upper = b.sub(b.sub(HALF_PI[0] * 0.5, b.mul(head, 2.0)), b.sub(rest, HALF_PI[0] * 0.5))
    lower = b.add(a, _lower_half(a))
    return _with_sign(b.select(b.lt(a, 0.5), lower, upper), x)


def _with_sign(magnitude: Expr, x: Expr) -> Expr:
    """Copy the sign of x onto a result that may be NaN."""
    return copy_sign(b.absolute(magnitude), x)


def acos(x: Expr) -> Expr:
    """The arc cosine, NaN outside [-1, 1]."""
    a = b.absolute(x)
    head, lost, cubic = _upper_half(a)
    rest = b.add(cubic, lost)
    right = b.mul(b.add(head, rest), 2.0)
    left = b.sub(2.0 * HALF_PI[0], b.mul(b.add(head, b.sub(rest, HALF_PI[1])), 2.0))
    lower = _lower_half(a)
    signed = b.select(b.lt(x, 0.0), b.neg(lower), lower)
    middle = b.sub(HALF_PI[0], b.sub(x, b.sub(HALF_PI[1], signed)))
    return b.select(b.lt(a, 0.5), middle, b.select(b.lt(x, 0.0), left, right))


def _arc(above: Expr, below: Expr) -> tuple[Expr, Expr]:
    """Return atan(above / below) of two numbers >= 0 as offset + rest."""
    steep = b.gt(above, b.mul(below, TAN_3PI_8))
    middle = b.gt(above, b.mul(below, TAN_PI_8))
    numerator = b.select(steep, b.neg(below), b.select(middle, b.sub(above, below), above))
    denominator = b.select(steep, above, b.select(middle, b.add(above, below), below))
    t = b.div(numerator, denominator)
    t = b.select(b.and_(b.eq(above, 0.0), b.eq(below, 0.0)), b.like(0.0, t), t)
    z = b.mul(t, t)
    cubic = b.mul(b.mul(t, z), polynomial(z, ATAN))
    zero = b.like(0.0, t)
    offset = b.select(
        steep, b.like(HALF_PI[0], t), b.select(middle, b.like(HALF_PI[0] * 0.5, t), zero)
    )
    low = b.select(
        steep, b.like(HALF_PI[1], t), b.select(middle, b.like(HALF_PI[1] * 0.5, t), zero)
    )
    return offset, b.add(t, b.add(cubic, low))


def atan(x: Expr) -> Expr:
    """The arc tangent."""
    offset, rest = _arc(b.absolute(x), b.like(1.0, x))
    return copy_sign(b.add(offset, rest), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), with the signs of zero and infinity as in C99."""
    above, below = b.absolute(y), b.absolute(x)
    both = b.and_(b.eq(above, INF), b.eq(below, INF))
    one = b.like(1.0, x)
    above, below = b.select(both, one, above), b.select(both, one, below)
    # Far apart from 1 the sum of the two could overflow; a quarter of both has the same quotient.
    large = b.gt(b.max_(above, below), 2.0**1000)
    above = b.select(large, b.mul(above, 0.25), above)
    below = b.select(large, b.mul(below, 0.25), below)
    offset, rest = _arc(above, below)
    right = b.add(offset, rest)
    left = b.sub(2.0 * HALF_PI[0], b.sub(right, 2.0 * HALF_PI[1]))
    return copy_sign(b.select(b.lt(bits(x), 0), left, right), y)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x), two correctly rounded steps."""
    return b.div(1.0, b.sqrt(x))
