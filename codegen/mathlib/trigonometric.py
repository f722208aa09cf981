"""sin, cos, tan over the full range.

Scheme: x = n pi/2 + r with |r| <= pi/4, then near-minimax polynomials. float32 works in float64 and
takes x * 2/pi modulo 4 from the 28-bit pieces of 2/pi that matter for the exponent of x. float64
uses a three-part pi/2 below 2**20 (Cody and Waite) and exact integers above: 192 bits of 2/pi,
chosen by a tree of selects, times the mantissa of x (Payne and Hanek, "Radian reduction for
trigonometric functions", 1983).
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.common import (
    FLOAT64,
    Pair,
    bits,
    from_bits,
    hexadecimal,
    polynomial,
    quick_two_sum,
    round_to_integer,
    two_product,
    two_sum,
)
from frame.core.dtypes import float32, float64, int64, uint64

# On |r| <= pi/4, in r**2. (sin(r) - r) / r**3: relative error 2**-63.2 and 2**-37.5 of sin;
# (cos(r) - 1 + r**2 / 2) / r**4: 2**-63.9 and 2**-42.9 of cos.
SIN = hexadecimal(
    "-0x1.5555555555555p-3",
    "0x1.1111111111069p-7",
    "-0x1.a01a019ffe533p-13",
    "0x1.71de3a33a859ep-19",
    "-0x1.ae642c576539bp-26",
    "0x1.6109c25c6addep-33",
    "-0x1.a000873a0f4e1p-41",
)
COS = hexadecimal(
    "0x1.555555555554bp-5",
    "-0x1.6c16c16c15008p-10",
    "0x1.a01a019c8ce47p-16",
    "-0x1.27e4f7ef5dc7bp-22",
    "0x1.1ee9d9fcf154fp-29",
    "-0x1.8fa56e977194bp-37",
)
SIN_SHORT = hexadecimal(
    "-0x1.5555554c61003p-3",
    "0x1.1111085e70a74p-7",
    "-0x1.a00f75a466f69p-13",
    "0x1.6ccfaeb05a7afp-19",
)
COS_SHORT = hexadecimal(
    "0x1.5555554ecce52p-5",
    "-0x1.6c16b81c70737p-10",
    "0x1.a010d5c997e40p-16",
    "-0x1.241cbd716b927p-22",
)

HALF_PI = hexadecimal("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")
TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")

# 2/pi in pieces of 28 bits, whose products with a float32 are exact in float64.
PIECES = hexadecimal(
    "0x1.45f306c000000p-1",
    "0x1.c9c882a000000p-29",
    "0x1.4fe13a8000000p-59",
    "0x1.f47d4d0000000p-86",
    "0x1.bb81b6c000000p-113",
    "0x1.4acc9e0000000p-143",
    "0x1.0e4107c000000p-170",
)
# From these magnitudes on, the product with one more leading piece is a multiple of 4.
PIECE_LIMITS = (2.0**53, 2.0**81, 2.0**109)

# The bits of 2/pi after the binary point, behind 64 zero bits.
WORDS = (
    0x0000000000000000,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)
LARGE = 2.0**20

Reduced = tuple[Pair, Expr]
"""r as a sum, and the quadrant n as an integer of which two bits count."""


# Reduction of float32 held in float64


def reduce_single(x: Expr) -> tuple[Expr, Expr]:
    """Return (r, n) for a float64 that holds a float32."""
    a = b.absolute(x)
    beyond = [b.ge(a, limit) for limit in PIECE_LIMITS]
    products = [b.mul(x, _piece(position, beyond, x)) for position in range(4)]
    first = b.sub(products[0], b.mul(b.round_even(b.mul(products[0], 0.25)), 4.0))
    n, k = round_to_integer(b.add(b.add(first, products[1]), products[2]), 1.0)
    fraction = b.add(b.sub(first, n), products[1])
    fraction = b.add(fraction, b.add(products[2], products[3]))
    return b.mul(fraction, HALF_PI[0]), k


def _piece(position: int, beyond: list[Expr], x: Expr) -> Expr:
    """The piece of 2/pi at a position after those that the magnitude of x makes superfluous."""
    piece: Expr = b.like(PIECES[position], x)
    for skipped, condition in enumerate(beyond, 1):
        piece = b.select(condition, b.like(PIECES[position + skipped], x), piece)
    return piece


# Reduction of float64


def reduce_double(x: Expr) -> Reduced:
    """Return r as a sum of two numbers, and n."""
    near, near_n = _reduce_near(x)
    far, far_n = _reduce_far(x)
    is_near = b.lt(b.absolute(x), LARGE)
    pair = b.select(is_near, near[0], far[0]), b.select(is_near, near[1], far[1])
    return pair, b.select(is_near, near_n, far_n)


def _reduce_near(x: Expr) -> Reduced:
    n, k = round_to_integer(x, TWO_OVER_PI)
    product, product_low = two_product(n, HALF_PI[0])
    r, low = two_sum(b.sub(x, product), b.neg(product_low))  # the difference is exact
    second, second_low = two_product(n, HALF_PI[1])
    r, error = two_sum(r, b.neg(second))
    rest = b.fma(n, -HALF_PI[2], b.sub(b.add(low, error), second_low))
    return quick_two_sum(r, rest), k


def _reduce_far(x: Expr) -> Reduced:
    """|x| * 2/pi modulo 4 in integers, with the sign of x put back on r and n."""
    i = bits(x)
    exponent = b.and_(b.shr(i, FLOAT64.fraction), 0x7FF)
    mantissa = b.or_(b.and_(i, (1 << 52) - 1), 1 << 52)
    # x = mantissa 2**(exponent - 1075): bits of 2/pi before place exponent - 1076 give whole turns
    start = b.max_(b.sub(exponent, 1077 - 64), b.like(0, i))
    high, middle, low = _product(b.cast(mantissa, uint64), _window(start))
    fraction = b.or_(b.shl(high, 2), b.shr(middle, 62))
    signed = b.cast(fraction, int64)
    following = b.or_(b.shl(middle, 2), b.shr(low, 62))
    quadrant = b.cast(b.add(b.shr(high, 62), b.shr(fraction, 63)), int64)
    turns = _to_pair(signed, following)
    r, r_low = two_product(turns[0], HALF_PI[0])
    r_low = b.fma(turns[0], HALF_PI[1], b.fma(turns[1], HALF_PI[0], r_low))
    # x - x is 0 for finite numbers and NaN otherwise
    r = b.add(r, b.sub(x, x))
    negative = b.lt(i, 0)
    pair = b.select(negative, b.neg(r), r), b.select(negative, b.neg(r_low), r_low)
    return pair, b.select(negative, b.neg(quadrant), quadrant)


def _window(start: Expr) -> list[Expr]:
    """Return three words of 2/pi, most significant first, from bit `start` of WORDS on."""
    lanes = start.type.lanes
    words: list[Expr] = [b.broadcast(b.const(word, uint64), lanes) for word in WORDS]
    position = b.shr(start, 6)
    for step in (16, 8, 4, 2, 1):
        chosen = b.ne(b.and_(position, step), 0)
        count = min(len(words), step + 3)
        words = [
            b.select(chosen, words[at + step], words[at]) if at + step < len(words) else words[at]
            for at in range(count)
        ]
    shift = b.cast(b.and_(start, 63), uint64)
    back = b.sub(63, shift)
    return [b.or_(b.shl(words[at], shift), b.shr(b.shr(words[at + 1], 1), back)) for at in range(3)]


def _product(mantissa: Expr, window: list[Expr]) -> tuple[Expr, Expr, Expr]:
    """Return the low 192 bits of a 53-bit number times three words, by 32-bit limbs."""
    mask = (1 << 32) - 1
    factors = b.and_(mantissa, mask), b.shr(mantissa, 32)
    limbs = [part for word in reversed(window) for part in (b.and_(word, mask), b.shr(word, 32))]
    digits: list[Expr] = []
    carry: Expr = b.like(0, mantissa)
    for column, limb in enumerate(limbs):
        product = b.mul(factors[0], limb)
        total = b.add(carry, b.and_(product, mask))
        carry = b.shr(product, 32)
        if column > 0:
            cross = b.mul(factors[1], limbs[column - 1])
            total = b.add(total, b.and_(cross, mask))
            carry = b.add(carry, b.shr(cross, 32))
        digits.append(b.and_(total, mask))
        carry = b.add(carry, b.shr(total, 32))
    low, middle, high = (b.or_(digits[at], b.shl(digits[at + 1], 32)) for at in (0, 2, 4))
    return high, middle, low


def _to_pair(signed: Expr, following: Expr) -> Pair:
    """Return signed 2**-64 + following 2**-128 as a sum of two floats."""
    mask = (1 << 32) - 1
    top = _from_signed(b.shr(signed, 32), 2.0**-32)
    second = _from_unsigned(b.cast(b.and_(signed, mask), uint64), 2.0**-64)
    third = _from_unsigned(b.shr(following, 32), 2.0**-96)
    fourth = _from_unsigned(b.and_(following, mask), 2.0**-128)
    high, low = quick_two_sum(top, second)
    return quick_two_sum(high, b.add(low, b.add(third, fourth)))


def _from_signed(i: Expr, unit: float) -> Expr:
    """Convert a 32-bit value in an int64 exactly, without a conversion instruction."""
    value = b.sub(from_bits(b.add(i, FLOAT64.magic_bits), FLOAT64), FLOAT64.magic)
    return b.mul(value, unit)


def _from_unsigned(i: Expr, unit: float) -> Expr:
    """Convert a 32-bit value in a uint64 exactly, as the low bits of a number near 2**52."""
    value = b.bitcast(b.or_(i, 0x433 << 52), float64)
    return b.mul(b.sub(value, 2.0**52), unit)


# Polynomials


def _sin_pair(r: Pair) -> Expr:
    z = b.mul(r[0], r[0])
    cubic = b.mul(b.mul(r[0], z), polynomial(z, SIN))
    return b.add(r[0], b.add(cubic, b.fma(b.mul(z, r[1]), -0.5, r[1])))


def _cos_pair(r: Pair) -> Expr:
    z = b.mul(r[0], r[0])
    half = b.mul(z, 0.5)
    near = b.sub(1.0, half)
    lost = b.sub(b.sub(1.0, near), half)
    return b.add(
        near, b.add(b.fma(b.neg(r[0]), r[1], lost), b.mul(b.mul(z, z), polynomial(z, COS)))
    )


def _sin_short(r: Expr) -> Expr:
    z = b.mul(r, r)
    return b.fma(b.mul(r, z), polynomial(z, SIN_SHORT), r)


def _cos_short(r: Expr) -> Expr:
    z = b.mul(r, r)
    return b.fma(b.mul(z, z), polynomial(z, COS_SHORT), b.fma(z, -0.5, 1.0))


def _pick(sine: Expr, cosine: Expr, n: Expr) -> Expr:
    """The sine in quadrant n: odd quadrants take the cosine, the upper two the other sign."""
    odd = b.ne(b.and_(n, 1), 0)
    sign = b.shl(b.and_(n, 2), 62)
    return from_bits(b.xor(bits(b.select(odd, cosine, sine)), sign), FLOAT64)


def _single(x: Expr) -> tuple[Expr, Expr, Expr]:
    r, n = reduce_single(b.cast(x, float64))
    return _sin_short(r), _cos_short(r), n


def sin_single(x: Expr) -> Expr:
    """The sine of a float32; sin(-0.0) is -0.0."""
    sine, cosine, n = _single(x)
    return _keep_zero(x, b.cast(_pick(sine, cosine, n), float32))


def cos_single(x: Expr) -> Expr:
    """The cosine of a float32."""
    sine, cosine, n = _single(x)
    return b.cast(_pick(sine, cosine, b.add(n, 1)), float32)


def tan_single(x: Expr) -> Expr:
    """The tangent of a float32."""
    sine, cosine, n = _single(x)
    return _keep_zero(x, b.cast(_quotient(sine, cosine, n), float32))


def _keep_zero(x: Expr, result: Expr) -> Expr:
    return b.select(b.eq(x, 0.0), x, result)


def _quotient(sine: Expr, cosine: Expr, n: Expr) -> Expr:
    odd = b.ne(b.and_(n, 1), 0)
    above = b.select(odd, b.neg(cosine), sine)
    return b.div(above, b.select(odd, sine, cosine))


def sin_double(x: Expr) -> Expr:
    """The sine of a float64."""
    r, n = reduce_double(x)
    return _keep_zero(x, _pick(_sin_pair(r), _cos_pair(r), n))


def cos_double(x: Expr) -> Expr:
    """The cosine of a float64."""
    r, n = reduce_double(x)
    return _pick(_sin_pair(r), _cos_pair(r), b.add(n, 1))


def tan_double(x: Expr) -> Expr:
    """The tangent of a float64."""
    r, n = reduce_double(x)
    return _keep_zero(x, _quotient(_sin_pair(r), _cos_pair(r), n))
