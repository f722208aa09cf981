"""Products of bfloat16 in dot products of pairs, where the target has an instruction for them.

A step of the inner axis takes two of its elements, which stand side by side wherever micro-kernels
read: in rows of the left operand as they are, and in panels of both operands, where the two of each
column (or row) follow each other.

    panel of the right operand       b[0, 0] b[1, 0] b[0, 1] b[1, 1] ...    step 0, columns 0 and 1
                                     b[2, 0] b[3, 0] b[2, 1] b[3, 1] ...    step 1

One such word is as wide as a float32, so that panels, passes and chunks are those of a product of
float32 with half the depth. The last word of an odd depth ends in a zero.
"""

from __future__ import annotations

from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Cast, Expr, Ramp
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.codegen.schedules.cpu.gemm_operand import Product
from frame.codegen.schedules.cpu.gemm_pack import Load
from frame.core.dtypes import DType, bfloat16
from frame.core.targets import TargetDescription

# The instructions of a target -> the most lanes of sums that one takes, and by how many rows a tile
# is lower than one of float32. LLVM copies sums of a BFDOT in each step where 14 x 2 of them, and
# what it loads ahead, need all registers: 89 instructions for 28 dots, with 12 x 2 41 for 24.
_DOTS = {"dot_bf16": (64, 0), "dot_bf16_128": (4, 2)}


def in_pairs(made: Product, target: TargetDescription) -> Product:
    """Return a product with the pairs that the target has an instruction for."""
    narrow = {made.left.value.dtype, made.right.value.dtype} == {bfloat16}
    return replace(made, pairs=True) if narrow and _DOTS.keys() & target.intrinsics else made


def tile_of(made: Product, target: TargetDescription) -> tuple[int, int, int]:
    """Return the rows, the vectors and the lanes of a vector of the register tile of a product."""
    rows, vectors = register_tile(target)
    lanes = target.lanes(made.dtype)
    if not made.pairs:
        return rows, vectors, lanes
    most, fewer = max(_DOTS[name] for name in _DOTS.keys() & target.intrinsics)
    return max(1, rows - fewer), vectors, min(lanes, most)


def stored(value: Expr, dtype: DType) -> Expr:
    """Return an element in the dtype that micro-kernels read; one just widened as it was."""
    if isinstance(value, Cast) and value.x.type.dtype == dtype:
        return value.x
    return b.cast(value, dtype)


def words(load: Load, depth: Expr) -> Load:
    """Return the words of a matrix, at (step, column), from its elements at (row, column).

    A vector of steps has whole words only: see `whole_steps`. A vector of columns may have all.
    """

    def word(step: Expr, column: Expr) -> Expr:
        if isinstance(step, Ramp):
            return load(b.ramp(b.mul(step.base, 2), 2 * step.lanes), column)
        first = b.mul(step, 2)
        return _interleaved(load(first, column), _second(load, depth, first, column))

    return word


def _second(load: Load, depth: Expr, first: Expr, column: Expr) -> Expr:
    """Return what follows an element in its word: zero after the last one."""
    second = b.add(first, 1)
    if b.constant_value(b.rem(depth, 2)) == 0:
        return load(second, column)
    value = load(b.min_(second, b.sub(depth, 1)), column)
    return b.select(b.lt(second, depth), value, b.const(0.0, value.type.dtype))


def _interleaved(first: Expr, second: Expr) -> Expr:
    lanes = first.type.lanes
    return b.shuffle(first, second, [place for i in range(lanes) for place in (i, lanes + i)])


def elements(place: Expr) -> Expr:
    """Return the elements that the word, or the vector of words, at a place takes."""
    if isinstance(place, Ramp):
        return b.ramp(b.mul(place.base, 2), 2 * place.lanes)
    return b.ramp(b.mul(place, 2), 2)


def whole_steps(depth: Expr) -> Expr:
    """Return how many steps have both of their elements."""
    return b.div(depth, 2)
