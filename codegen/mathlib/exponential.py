"""exp and its relatives: exp, expm1, sigmoid, tanh, sinh, cosh.

Scheme: x = n ln2 + r with |r| <= ln2 / 2 in two steps (Cody and Waite, "Software Manual for the
Elementary Functions", 1980), exp(r) = 1 + r + r**2 q(r) with q near-minimax (Remez exchange on the
relative error), then scaling by 2**n in two halves, so that denormal results round once.
"""

from __future__ import annotations

from collections.abc import Mapping

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.common import (
    LOG2E,
    Format,
    bits,
    clamp,
    copy_sign,
    format_of,
    from_bits,
    hexadecimal,
    polynomial,
    power_of_two,
    quick_two_sum,
    round_to_integer,
)
from frame.core.dtypes import DType, float32, float64

# (exp(r) - 1 - r) / r**2 on |r| <= ln2 / 2: relative error 2**-31.9 and 2**-62.7 of exp(r).
EXP: Mapping[DType, tuple[float, ...]] = {
    float32: (
        0.5,
        0.1666666716337204,
        0.041666459292173386,
        0.008333276025950909,
        0.0013935447204858065,
        0.00019913002324756235,
    ),
    float64: hexadecimal(
        "0x1.0000000000000p-1",
        "0x1.5555555555555p-3",
        "0x1.5555555555558p-5",
        "0x1.1111111110477p-7",
        "0x1.6c16c16c14b49p-10",
        "0x1.a01a01abb05b5p-13",
        "0x1.a01a01af6ed5dp-16",
        "0x1.71de00f1bbd64p-19",
        "0x1.27e4c7518eb30p-22",
        "0x1.af52135aa749fp-26",
        "0x1.1f93c38c24457p-29",
    ),
}

# The same, minimal in the relative error of expm1(r): 2**-30.9 and 2**-60.7.
EXPM1: Mapping[DType, tuple[float, ...]] = {
    float32: (
        0.5,
        0.1666666716337204,
        0.04166649281978607,
        0.008333222009241581,
        0.0013932510046288371,
        0.00019932520808652043,
    ),
    float64: hexadecimal(
        "0x1.0000000000000p-1",
        "0x1.5555555555559p-3",
        "0x1.555555555555ap-5",
        "0x1.111111110f699p-7",
        "0x1.6c16c16c143d1p-10",
        "0x1.a01a01afeed5ep-13",
        "0x1.a01a01b0dad65p-16",
        "0x1.71ddf8385df2bp-19",
        "0x1.27e4c55993405p-22",
        "0x1.af5ef30a3c015p-26",
        "0x1.1f95cb9bb3d89p-29",
    ),
}

# (tanh(x) - x) / x**3 in x**2 for |x| < 0.626: relative error 2**-32.3 and 2**-63.7 of tanh(x).
TANH: Mapping[DType, tuple[float, ...]] = {
    float32: (
        -0.3333333134651184,
        0.13333220779895782,
        -0.053948186337947845,
        0.021706949919462204,
        -0.008190164342522621,
        0.002152827801182866,
    ),
    float64: hexadecimal(
        "-0x1.5555555555555p-2",
        "0x1.1111111111091p-3",
        "-0x1.ba1ba1ba133f1p-5",
        "0x1.664f48808a757p-6",
        "-0x1.226e350617460p-7",
        "0x1.d6d3bf2514c39p-9",
        "-0x1.7da22f76cd474p-10",
        "0x1.35497a0db4705p-11",
        "-0x1.f480f23812c6cp-13",
        "0x1.9077c13c7b520p-14",
        "-0x1.2fabd26309037p-15",
        "0x1.7ed033b737b1cp-17",
        "-0x1.1c27c19fa3965p-19",
    ),
}

# (sinh(x) - x) / x**3 in x**2 for |x| <= 1: relative error 2**-62.9 of sinh(x).
SINH = hexadecimal(
    "0x1.5555555555555p-3",
    "0x1.111111111119bp-7",
    "0x1.a01a01a007356p-13",
    "0x1.71de3a68d1317p-19",
    "0x1.ae644120770d8p-26",
    "0x1.61314f55ecd93p-33",
    "0x1.a663935d6329ap-41",
    "0x1.d2e653c9ae889p-48",
)

# Arguments beyond which exp is 0 or infinite whatever is added to them.
EXP_RANGE: Mapping[DType, tuple[float, float]] = {float32: (-104.0, 89.0), float64: (-746.0, 710.0)}
# Below it expm1 rounds to -1; beyond the second tanh(x / 2) rounds to 1.
EXPM1_LOW: Mapping[DType, float] = {float32: -18.0, float64: -38.0}
TANH_HIGH: Mapping[DType, float] = {float32: 20.0, float64: 40.0}


def reduced_exp(x: Expr, low: Expr | None = None) -> tuple[Expr, Expr]:
    """Return (exp(r), n) with exp(x + low) = exp(r) 2**n, for x in the range of exp."""
    form = format_of(x)
    n, k = round_to_integer(x, LOG2E)
    near = b.fma(n, -form.ln2_high, x)  # exact
    if low is not None:
        r = b.fma(n, -form.ln2_low, b.add(near, low))
        tail = b.add(b.fma(n, -form.ln2_low, b.sub(near, r)), low)
        q = b.fma(b.mul(r, r), polynomial(r, EXP[form.dtype]), tail)
        return b.add(b.add(r, q), 1.0), k
    r = b.fma(n, -form.ln2_low, near)
    return b.add(b.fma(b.mul(r, r), polynomial(r, EXP[form.dtype]), r), 1.0), k


def scale(y: Expr, k: Expr, form: Format) -> Expr:
    """Return y * 2**k for any k that exp meets: overflow gives inf, a denormal rounds once."""
    half = b.shr(k, 1)
    return b.mul(b.mul(y, power_of_two(half, form)), power_of_two(b.sub(k, half), form))


def exp(x: Expr) -> Expr:
    """e**x."""
    form = format_of(x)
    y, k = reduced_exp(clamp(x, *EXP_RANGE[form.dtype]))
    return scale(y, k, form)


def exp_below(x: Expr) -> Expr:
    """e**x for x <= 0 (or NaN), with the bits of `exp` in two thirds of its operations.

    Rounding to n adds 1.5 * 2**fraction + c: the low bits of that sum are n + c, the exponent field
    of 2**(n + c - bias). That number is normal for every n, and its product with e**r exact; the
    product with 2**(bias - c), a constant, rounds denormal results once.
    """
    form = format_of(x)
    inside = b.max_(b.like(EXP_RANGE[form.dtype][0], x), x)
    raised = (form.bias + 1) * 3 // 2
    moved = b.fma(inside, LOG2E, form.magic + raised)
    n = b.sub(moved, form.magic + raised)
    near = b.fma(n, -form.ln2_high, inside)  # exact
    r = b.fma(n, -form.ln2_low, near)
    y = b.add(b.fma(b.mul(r, r), polynomial(r, EXP[form.dtype]), r), 1.0)
    factor = from_bits(b.shl(bits(moved), form.fraction), form)
    return b.mul(b.mul(y, factor), 2.0 ** (form.bias - raised))


def exp_in_range(x: Expr) -> Expr:
    """e**x where the result is known to be a normal number: one scaling less."""
    form = format_of(x)
    y, k = reduced_exp(x)
    return b.mul(y, power_of_two(k, form))


def expm1(x: Expr) -> Expr:
    """One less than e**x, as twice h p + h - 1/2 with h = 2**(n - 1) and p = e**r - 1."""
    form = format_of(x)
    inside = clamp(x, EXPM1_LOW[form.dtype], EXP_RANGE[form.dtype][1])
    n, k = round_to_integer(inside, LOG2E)
    near = b.fma(n, -form.ln2_high, inside)
    r = b.fma(n, -form.ln2_low, near)
    tail = b.fma(n, -form.ln2_low, b.sub(near, r))
    p = b.add(b.fma(b.mul(r, r), polynomial(r, EXPM1[form.dtype]), tail), r)
    half = power_of_two(b.sub(k, 1), form)
    result = b.mul(b.fma(p, half, b.sub(half, 0.5)), 2.0)
    return b.select(b.lt(b.absolute(x), 2.0 ** -(form.fraction + 2)), x, result)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x) from e = e**-|x|, so that nothing overflows and small results keep all bits.

    One Newton step gives back what the sum 1 + e and the division lose; there 1 - e / 2 is close
    enough to 1 / (1 + e).
    """
    e = exp_below(b.neg(b.absolute(x)))
    above = b.select(b.lt(x, 0.0), e, b.like(1.0, x))
    below, lost = quick_two_sum(b.like(1.0, x), e)
    quotient = b.div(above, below)
    rest = b.fma(b.neg(quotient), lost, b.fma(b.neg(quotient), below, above))
    return b.fma(rest, b.fma(e, -0.5, 1.0), quotient)


def tanh(x: Expr) -> Expr:
    """An odd polynomial below 0.625 (Cephes), 1 - 2 / (e**2x + 1) above."""
    dtype = x.type.dtype
    a = b.absolute(x)
    z = b.mul(a, a)
    small = b.fma(b.mul(a, z), polynomial(z, TANH[dtype]), a)
    e = exp_in_range(b.min_(b.like(TANH_HIGH[dtype], x), b.add(a, a)))
    large = b.sub(1.0, b.div(2.0, b.add(e, 1.0)))
    return copy_sign(b.select(b.lt(a, 0.625), small, large), x)


def _half_exp(a: Expr) -> Expr:
    """e**a / 2 for a >= 0, which is finite as far as cosh is."""
    form = format_of(a)
    y, k = reduced_exp(b.min_(b.like(EXP_RANGE[form.dtype][1] + 1.0, a), a))
    return scale(y, b.sub(k, 1), form)


def sinh(x: Expr) -> Expr:
    """An odd polynomial up to 1, e**x / 2 - e**-x / 2 above; float64."""
    a = b.absolute(x)
    z = b.mul(a, a)
    small = b.fma(b.mul(a, z), polynomial(z, SINH), a)
    e = _half_exp(a)
    large = b.sub(e, b.div(0.25, e))
    return copy_sign(b.select(b.le(a, 1.0), small, large), x)


def cosh(x: Expr) -> Expr:
    """e**x / 2 + e**-x / 2; float64."""
    e = _half_exp(b.absolute(x))
    return b.add(e, b.div(0.25, e))
