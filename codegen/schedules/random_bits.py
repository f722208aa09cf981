"""Philox4x32-10 as loop IR: the random number of an element, from its position alone.

Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The numbers are
those of `frame.core.philox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from frame.codegen import mathlib
from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core.dtypes import DType, bfloat16, float16, float32, float64, int64, uint32, uint64
from frame.ir.graph import Node

if TYPE_CHECKING:
    from frame.codegen.schedules.access import Reader

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_BITS = {float32: 24, float16: 11, bfloat16: 8}
Words = tuple[Expr, Expr, Expr, Expr]


def _word(value: int) -> Expr:
    return b.const(value, uint32)


def philox(counter: Words, key: tuple[Expr, Expr]) -> Words:
    """Return the four random words of a block: uint32 expressions of any lanes."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = b.mul_high(x0, _word(_MULTIPLIERS[0])), b.mul(x0, _word(_MULTIPLIERS[0]))
        high1, low1 = b.mul_high(x2, _word(_MULTIPLIERS[1])), b.mul(x2, _word(_MULTIPLIERS[1]))
        x0, x1, x2, x3 = b.xor(b.xor(high1, x1), k0), low1, b.xor(b.xor(high0, x3), k1), low0
        k0, k1 = b.add(k0, _word(_WEYL[0])), b.add(k1, _word(_WEYL[1]))
    return x0, x1, x2, x3


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """The low and the high 32 bits of a 64-bit integer."""
    wide = b.cast(x, uint64)
    return b.cast(wide, uint32), b.cast(b.shr(wide, b.const(32, uint64)), uint32)


def _block(reader: Reader, node: Node, block: Expr) -> Words:
    """The words of random block `block` (int64) of a random node."""
    (counter,) = node.operands
    seed, step = (reader.load(counter, (b.index(k),)) for k in (0, 1))
    low, high = _halves(block)
    iteration, _ = _halves(step)
    return philox((low, high, iteration, _word(node.attributes["stream"])), _halves(seed))


def _pick(words: Words, which: Expr) -> Expr:
    """Word `which` (0 to 3, int64) of a block."""
    zero, one, two, three = words
    low = b.select(b.eq(which, 0), zero, one)
    high = b.select(b.eq(which, 2), two, three)
    return b.select(b.lt(which, 2), low, high)


def _float(bits: Expr, dtype: DType) -> Expr:
    """An integer below 2**31, exactly representable, as a float."""
    return b.cast(b.cast(bits, int64), dtype)


def _fraction(word: Expr, bits: int, dtype: DType) -> Expr:
    """The top bits of a word as a multiple of 2**-bits in [0, 1)."""
    top = b.shr(word, _word(32 - bits))
    return b.mul(_float(top, dtype), b.const(2.0**-bits, dtype))


def _double(high: Expr, low: Expr) -> Expr:
    """53 bits of two words as a multiple of 2**-53 in [0, 1)."""
    upper = b.mul(_float(b.shr(high, _word(5)), float64), b.const(2.0**26, float64))
    return b.mul(b.add(upper, _float(b.shr(low, _word(6)), float64)), b.const(2.0**-53, float64))


def _uniform(reader: Reader, node: Node, place: Expr) -> Expr:
    dtype = node.results[0].dtype
    if dtype == float64:
        words = _block(reader, node, b.shr(place, b.index(1)))
        even = b.eq(b.and_(place, 1), 0)
        return b.select(even, _double(words[0], words[1]), _double(words[2], words[3]))
    words = _block(reader, node, b.shr(place, b.index(2)))
    return _fraction(_pick(words, b.and_(place, 3)), _BITS[dtype], compute_dtype(dtype))


def _normal(reader: Reader, node: Node, place: Expr) -> Expr:
    """Box and Muller on pairs of elements."""
    dtype = node.results[0].dtype
    if dtype == float64:
        words = _block(reader, node, b.shr(place, b.index(1)))
        u1 = b.add(_double(words[0], words[1]), b.const(2.0**-53, float64))
        u2 = _double(words[2], words[3])
    else:
        words = _block(reader, node, b.shr(place, b.index(2)))
        upper = b.ne(b.and_(place, 2), 0)
        first = b.select(upper, words[2], words[0])
        second = b.select(upper, words[3], words[1])
        u1 = b.add(_fraction(first, 24, float32), b.const(2.0**-24, float32))
        u2 = _fraction(second, 24, float32)
    radius = b.sqrt(b.mul(mathlib.log(u1), b.like(-2.0, u1)))
    angle = b.mul(u2, b.like(2.0 * np.pi, u2))
    odd = b.ne(b.and_(place, 1), 0)
    return b.mul(radius, b.select(odd, mathlib.sin(angle), mathlib.cos(angle)))


_MAKERS = {"uniform": _uniform, "normal": _normal}


def element(reader: Reader, node: Node, place: Expr) -> Expr:
    """Return element `place` (a flat position, int64) of a `uniform` or `normal` node."""
    return _MAKERS[node.op](reader, node, place)
