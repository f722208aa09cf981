"""Dot products of pairs of bfloat16: one instruction where the target has it.

A register holds bfloat16 as 16-bit integers. LLVM's own type `bfloat` stands only in the operands
of the intrinsics.
"""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.emit.llvm.conversions import fused_multiply_add
from frame.codegen.emit.llvm.writer import FunctionWriter, constant, llvm_type, vector
from frame.codegen.loops.ir import Shuffle, Type
from frame.core.dtypes import float32, uint32

# Feature of LLVM -> (intrinsic, the lanes of sums that it takes).
_INSTRUCTIONS = {
    "avx512bf16": ("llvm.x86.avx512bf16.dpbf16ps.{bits}", (4, 8, 16)),
    "bf16": ("llvm.aarch64.neon.bfdot.v{lanes}f32.v{pairs}bf16", (2, 4)),
}


def pair_dot(writer: FunctionWriter, lanes: int, operands: Sequence[str]) -> str:
    """Emit `PairDot` for so many lanes of sums; the operands are a, b and c."""
    found = _instruction(writer, lanes)
    if found is None:
        return _from_parts(writer, lanes, operands)
    *pairs, total = operands
    stored, wanted = vector("i16", 2 * lanes), vector("bfloat", 2 * lanes)
    a, b = (writer.value(f"bitcast {stored} {x} to {wanted}") for x in pairs)
    sums = vector("float", lanes)
    return writer.call(sums, found, [(sums, total), (wanted, a), (wanted, b)])


def _instruction(writer: FunctionWriter, lanes: int) -> str | None:
    for feature, (name, widths) in _INSTRUCTIONS.items():
        if feature in writer.target.features and lanes in widths:
            return name.format(bits=32 * lanes, lanes=lanes, pairs=2 * lanes)
    return None


def _from_parts(writer: FunctionWriter, lanes: int, operands: Sequence[str]) -> str:
    """Emit two fused multiply-adds: the upper half of a word is a float32, and so is the lower."""
    a, b, total = operands
    stored, words = vector("i16", 2 * lanes), Type(uint32, lanes)
    bits = [writer.value(f"bitcast {stored} {x} to {llvm_type(words)}") for x in (a, b)]
    sums = Type(float32, lanes)
    for part in (
        f"and {llvm_type(words)} {{}}, {constant(words, 0xFFFF0000)}",
        f"shl {llvm_type(words)} {{}}, {constant(words, 16)}",
    ):
        factors = [writer.value(part.format(word)) for word in bits]
        x, y = (
            writer.value(f"bitcast {llvm_type(words)} {factor} to {llvm_type(sums)}")
            for factor in factors
        )
        total = fused_multiply_add(writer, sums, (x, y, total))
    return total


def repeated_pair(writer: FunctionWriter, expr: Shuffle, operand: str) -> str | None:
    """Emit a shuffle that repeats a pair of 16-bit lanes as the broadcast of one word.

    LLVM knows that for x86 only: for AArch64 it broadcasts both parts and blends them.
    """
    lanes, type_ = len(expr.pattern), expr.a.type
    if type_.lanes != 2 or type_.dtype.bits != 16 or expr.pattern != (0, 1) * (lanes // 2):
        return None
    if lanes < 4:
        return None
    word = writer.value(f"bitcast {llvm_type(type_)} {operand} to i32")
    words, result = vector("i32", lanes // 2), vector("i16", lanes)
    single = writer.value(f"insertelement {words} poison, i32 {word}, i32 0")
    zeros = f"<{lanes // 2} x i32> zeroinitializer"
    splat = writer.value(f"shufflevector {words} {single}, {words} poison, {zeros}")
    return writer.value(f"bitcast {words} {splat} to {result}")
