"""The orthogonal filters of Daubechies, computed to the last bit of float64.

Source: Daubechies, "Orthonormal bases of compactly supported wavelets", Communications on Pure and
Applied Mathematics 41 (1988), section 4: the filter of N vanishing moments has N zeros at -1, and
those N - 1 zeros of its half-band polynomial that lie in the unit circle (minimum phase).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import cache

import numpy as np

from frame.core.errors import InvalidArgumentError

MOST_MOMENTS = 38
"""The largest N of the names dbN; PyWavelets has the same."""

_DIGITS = 120  # of the decimals; the polynomials of N = 38 lose 50 of them
_STEPS = 12  # of Newton's method, which doubles the digits of each zero: from 1e-2 to 1e-120

Polynomial = list[Decimal]
Complex = tuple[Decimal, Decimal]


def moments(wavelet: str) -> int:
    """Return N of the name "dbN"; 1 of "haar".

    Raises:
        InvalidArgumentError: there is no such wavelet.
    """
    if wavelet == "haar":
        return 1
    number = wavelet[2:] if isinstance(wavelet, str) and wavelet.startswith("db") else ""
    # isdecimal takes digits of other scripts too, which int would read.
    if not (number.isascii() and number.isdecimal()) or number.startswith("0"):
        _fail(wavelet)
    if int(number) > MOST_MOMENTS:
        _fail(wavelet)
    return int(number)


def _fail(wavelet: object) -> None:
    raise InvalidArgumentError(
        f"wavelet must be haar or db1 to db{MOST_MOMENTS}, got {wavelet!r}; dbN has N vanishing "
        "moments and 2 * N taps, as in PyWavelets"
    )


def filters(wavelet: str) -> np.ndarray:
    """Return the scaling and the wavelet filter [2, taps] in the order of the samples they weigh.

    These are rec_lo and rec_hi of PyWavelets, which its decomposition runs over a signal.
    """
    low = np.array(_scaling_filter(moments(wavelet)))
    signs = np.where(np.arange(low.size) % 2, -1.0, 1.0)
    return np.stack([low, low[::-1] * signs])


@cache
def _scaling_filter(number: int) -> tuple[float, ...]:
    with localcontext() as context:
        context.prec = _DIGITS
        product = [Decimal(1)]
        for factor in [[Decimal(1), Decimal(1)]] * number + _inner_factors(number):
            product = _multiplied(product, factor)
        scale = Decimal(2).sqrt() / sum(product)
        return tuple(float(tap * scale) for tap in product)


def _multiplied(left: Polynomial, right: Polynomial) -> Polynomial:
    product = [Decimal(0)] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] += a * b
    return product


def _inner_factors(number: int) -> list[Polynomial]:
    """Return the real factors of the zeros in the unit circle, of degree 1 and 2."""
    polynomial, factors = _half_band(number), []
    for start in _starts(number):
        real, imaginary = _refined(polynomial, (Decimal(start.real), Decimal(start.imag)))
        if imaginary == 0:
            factors.append([Decimal(1), -real])
        else:
            factors.append([Decimal(1), -2 * real, real * real + imaginary * imaginary])
    return factors


def _half_band(number: int) -> list[int]:
    """Return the polynomial of z, of degree 2 * N - 2, whose zeros come in pairs z and 1 / z.

    It is sum of binomial(N - 1 + k, k) * y**k at y = (2 - z - 1 / z) / 4, times (4 * z)**(N - 1).
    """
    found = [0] * (2 * number - 1)
    for k in range(number):
        scale = math.comb(number - 1 + k, k) * 4 ** (number - 1 - k) * (-1) ** k
        for j in range(2 * k + 1):
            found[number - 1 - k + j] += scale * math.comb(2 * k, j) * (-1) ** j
    return found


def _starts(number: int) -> list[complex]:
    """Return the zeros in the unit circle and the upper half plane, to a few digits."""
    # The polynomial of 1 / y: that of y loses zeros from N = 38 on.
    y = 1 / np.roots([math.comb(number - 1 + k, k) for k in range(number)])
    middle = 1 - 2 * y
    root = np.sqrt(middle * middle - 1 + 0j)
    inner = np.where(abs(middle + root) < 1, middle + root, middle - root)
    real = abs(inner.imag) < 1e-9
    inner = np.where(real, inner.real + 0j, inner)
    return [complex(z) for z in inner if z.imag >= 0]


def _refined(polynomial: Sequence[int], zero: Complex) -> Complex:
    for _ in range(_STEPS):
        (a, b), (c, d) = _value_and_slope(polynomial, zero)
        size = c * c + d * d
        zero = zero[0] - (a * c + b * d) / size, zero[1] - (b * c - a * d) / size
    return zero


def _value_and_slope(polynomial: Sequence[int], z: Complex) -> tuple[Complex, Complex]:
    """Return the polynomial and its derivative at z, by Horner's rule."""
    x, y = z
    a = b = c = d = Decimal(0)
    for coefficient in polynomial:
        c, d = c * x - d * y + a, c * y + d * x + b
        a, b = a * x - b * y + coefficient, a * y + b * x
    return (a, b), (c, d)
