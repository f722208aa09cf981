"""What the functions of the library share: formats, polynomials, exact sums, bit tricks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, bfloat16, float16, float32, float64, int32, int64
from frame.core.errors import InternalError

INF = float("inf")
NAN = float("nan")

Pair = tuple[Expr, Expr]
"""An unevaluated sum high + low, the low part at most half an ulp of the high one (about)."""


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format and its range reduction constants.

    `magic` is 1.5 * 2**fraction: adding it rounds to an integer, which then stands in the low bits.
    `ln2_high` has so few bits that its product with an exponent is exact.
    """

    dtype: DType
    integer: DType
    fraction: int
    bias: int
    ln2_high: float
    ln2_low: float

    @property
    def magic(self) -> float:
        """1.5 * 2**fraction."""
        return 1.5 * 2.0**self.fraction

    @property
    def magic_bits(self) -> int:
        """The bits of `magic`."""
        return ((self.fraction + self.bias) << self.fraction) | (1 << (self.fraction - 1))

    @property
    def sign_bit(self) -> int:
        """The integer with the sign bit alone."""
        return -(1 << (self.integer.bits - 1))

    @property
    def least_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0 ** (1 - self.bias)


FLOAT32 = Format(float32, int32, 23, 127, 0.693145751953125, 1.4286068203094173e-06)
FLOAT64 = Format(
    float64,
    int64,
    52,
    1023,
    float.fromhex("0x1.62e42fefa3800p-1"),
    float.fromhex("0x1.ef35793c76730p-45"),
)

LOG2E = float.fromhex("0x1.71547652b82fep+0")
LOG2E_LOW = float.fromhex("0x1.777d0ffda0d24p-56")


def format_of(x: Expr) -> Format:
    """Return the format of a float32 or float64 expression."""
    return FLOAT32 if x.type.dtype == float32 else FLOAT64


def hexadecimal(*texts: str) -> tuple[float, ...]:
    """Return coefficients written as C99 hexadecimal floats."""
    return tuple(float.fromhex(text) for text in texts)


def dispatch(
    name: str, single: Callable[..., Expr], double: Callable[..., Expr]
) -> Callable[..., Expr]:
    """Return the function that picks the version of a dtype; 16-bit floats go through float32."""

    def choose(*operands: Expr) -> Expr:
        dtype = operands[0].type.dtype
        if dtype in (float16, bfloat16):
            return b.cast(single(*(b.cast(x, float32) for x in operands)), dtype)
        if dtype not in (float32, float64):
            raise InternalError(f"{name}: expected a float operand, received {operands[0].type}")
        return (single if dtype == float32 else double)(*operands)

    return choose


def through_float64(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return a float32 function that computes in float64."""

    def wrapped(*operands: Expr) -> Expr:
        return b.cast(function(*(b.cast(x, float64) for x in operands)), float32)

    return wrapped


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return c[0] + c[1] x + ... by Horner's rule with fma."""
    result: Expr = b.like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, coefficient)
    return result


def bits(x: Expr) -> Expr:
    """Return the bits of a float as a signed integer."""
    return b.bitcast(x, format_of(x).integer)


def from_bits(i: Expr, form: Format) -> Expr:
    """Return the float that has these bits."""
    return b.bitcast(i, form.dtype)


def power_of_two(k: Expr, form: Format) -> Expr:
    """Return 2**k for an integer k in the range of normal exponents."""
    return from_bits(b.shl(b.add(k, form.bias), form.fraction), form)


def copy_sign(magnitude: Expr, sign: Expr) -> Expr:
    """Return `magnitude` (not negative) with the sign of `sign`."""
    mask = b.and_(bits(sign), format_of(sign).sign_bit)
    return from_bits(b.or_(bits(magnitude), mask), format_of(sign))


def clamp(x: Expr, low: float, high: float) -> Expr:
    """Limit x; a NaN stays, because min and max return their second operand then."""
    return b.max_(b.like(low, x), b.min_(b.like(high, x), x))


def round_to_integer(x: Expr, factor: float | Expr) -> Pair:
    """Return x * factor rounded to an integer, as a float and as an integer of the same width."""
    form = format_of(x)
    raised = b.fma(x, factor, form.magic)
    return b.sub(raised, form.magic), b.sub(bits(raised), form.magic_bits)


def to_float(k: Expr, form: Format) -> Expr:
    """Convert an integer of less than fraction - 1 bits, without a conversion instruction."""
    return b.sub(from_bits(b.add(k, form.magic_bits), form), form.magic)


def quick_two_sum(x: Expr, y: Expr) -> Pair:
    """Return the exact sum of two numbers, the first of them the larger (Dekker)."""
    total = b.add(x, y)
    return total, b.sub(y, b.sub(total, x))


def two_sum(x: Expr, y: Expr) -> Pair:
    """Return the exact sum of two numbers (Knuth)."""
    total = b.add(x, y)
    part = b.sub(total, x)
    return total, b.add(b.sub(x, b.sub(total, part)), b.sub(y, part))


def two_product(x: Expr, y: Expr | float) -> Pair:
    """Return the exact product of two numbers."""
    product = b.mul(x, y)
    return product, b.fma(x, y, b.neg(product))


def pair_product(x: Pair, y: Pair) -> Pair:
    """Return the product of two sums."""
    high, low = two_product(x[0], y[0])
    low = b.fma(x[0], y[1], b.fma(x[1], y[0], low))
    return quick_two_sum(high, low)


def is_finite(x: Expr) -> Expr:
    """Tell where x is neither infinite nor NaN."""
    return b.lt(b.absolute(x), INF)
