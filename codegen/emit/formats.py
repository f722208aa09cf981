"""Floating-point formats narrower than float32, as data from which emitters make conversions."""

from __future__ import annotations

from collections.abc import Mapping

from frame.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SmallFormat:
    """A format of `bits` bits, narrower than float32 in exponent and fraction.

    Magnitudes are compared as integers (the code without its sign): `largest` is the greatest
    finite one, what rounds beyond becomes `overflow`; from `special` on a code is not finite; `nan`
    is the code that a NaN gets.
    """

    bits: int
    fraction: int
    bias: int
    largest: int
    overflow: int
    special: int
    nan: int

    @property
    def shift(self) -> int:
        """How far a fraction moves to become that of a float32."""
        return 23 - self.fraction

    @property
    def rebias(self) -> int:
        """What the exponent field of a float32 has more, in place."""
        return (127 - self.bias) << 23

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def least_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def least_normal_bits(self) -> int:
        """The float32 bits of `least_normal`."""
        return (128 - self.bias) << 23

    @property
    def denormal_magic(self) -> float:
        """Adding it to a float32 rounds to the spacing of the denormals, which is its own then."""
        return self.least_normal * 2.0**self.shift

    @property
    def denormal_magic_bits(self) -> int:
        """The float32 bits of `denormal_magic`."""
        return self.least_normal_bits + (self.shift << 23)


SMALL_FORMATS: Mapping[str, SmallFormat] = {
    "float16": SmallFormat(16, 10, 15, 0x7BFF, 0x7C00, 0x7C00, 0x7E00),
    "float8_e5m2": SmallFormat(8, 2, 15, 0x7B, 0x7C, 0x7C, 0x7E),
    "float8_e4m3fn": SmallFormat(8, 3, 7, 0x7E, 0x7F, 0x7F, 0x7F),
}
"""By dtype name. bfloat16 isn't here: it is the upper half of a float32."""
