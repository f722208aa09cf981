"""How a long transform is cut into passes, and the numbers that these multiply by.

A transform of an even number of real elements is one of half as many complex ones, with a last (or
first) pass that takes the even and odd elements apart. A complex transform whose length has no
prime factor above `LARGEST` runs in one pass a radix, in the order of Stockham (Cochran et al.,
IEEE Trans. Audio 15, 1967), which needs no other order of its elements. Any other becomes a
circular convolution of a length that has none (Bluestein, IEEE Trans. Audio 18, 1970):

    w[j] = exp(-pi i j^2 / m)      X[k] = w[k] * sum over j of (x[j] w[j]) conj(w[k - j])
"""

from __future__ import annotations

import functools

import numpy as np

from frame.core.dataclass import dataclass

LARGEST = 13
"""The largest prime whose transform is written out."""


@dataclass(frozen=True, slots=True)
class Transform:
    """The plan of real transforms of `size` elements.

    Attributes:
        size: the real elements.
        length: the complex elements: half of `size` for an even one.
        padded: the length of the convolution that the complex transform becomes; 0 for none.
    """

    size: int
    length: int
    padded: int

    @property
    def is_halved(self) -> bool:
        """Whether pairs of real elements are the complex ones."""
        return self.length < self.size

    @property
    def points(self) -> int:
        """The complex elements of each pass."""
        return self.padded or self.length

    @property
    def radices(self) -> tuple[int, ...]:
        """The radix of each pass."""
        return radices(self.points)

    @property
    def step(self) -> int:
        """The roots from one root of the passes to the next in the first `points` roots' table."""
        return 1 if self.padded or not self.is_halved else 2

    @property
    def offset(self) -> int:
        """The row of the table where the roots of the passes begin."""
        return self.size if self.padded else 0

    @property
    def chirp(self) -> int:
        """The row where w begins; the spectrum of its conjugate follows."""
        return self.size + self.padded

    @property
    def rows(self) -> int:
        """The rows of the table."""
        return self.chirp + (self.length + self.padded if self.padded else 0)


def factors(size: int) -> tuple[int, ...]:
    """Return the prime factors of a size in order."""
    found, factor = [], 2
    while factor * factor <= size:
        while size % factor == 0:
            found.append(factor)
            size //= factor
        factor += 1
    return (*found, size) if size > 1 else tuple(found)


def radices(points: int) -> tuple[int, ...]:
    """Return the radices of the passes over a length without large factors: eights and fours first.

    Of a power of two no radix is 2 unless it is alone.
    """
    primes = factors(points)
    twos = primes.count(2)
    eights, rest = divmod(twos, 3)
    small: tuple[int, ...] = ((), (2,), (4,))[rest]
    if rest == 1 and eights:
        eights, small = eights - 1, (4, 4)
    return (*(8,) * eights, *small, *primes[twos:])


@functools.lru_cache(maxsize=256)
def plan_of(size: int) -> Transform:
    """Return how a transform of real sequences of a size is computed."""
    length = size // 2 if size % 2 == 0 else size
    smooth = all(factor <= LARGEST for factor in factors(length))
    return Transform(size, length, 0 if smooth else _padded(2 * length - 1))


def _padded(least: int) -> int:
    """Return the smallest length from `least` on that has no prime factor above 5."""
    found = 1 << (least - 1).bit_length()
    for fives in range(3):
        for threes in range(3):
            odd = 5**fives * 3**threes
            found = min(found, odd << max(0, (-(-least // odd) - 1).bit_length()))
    return found


def _roots(size: int) -> np.ndarray:
    """Return exp(2 pi i k / size) for each k."""
    return np.exp(2j * np.pi * np.arange(size) / size)


def table_of(size: int) -> np.ndarray:
    """Return the table [rows, 2] of a plan, in float64.

    The roots of unity of `size`; and where the transform is a convolution the roots of its length,
    w, and the spectrum of the conjugate of w, wrapped around, over the length.
    """
    plan = plan_of(size)
    parts = [_roots(size)]
    if plan.padded:
        squares = np.arange(plan.length, dtype=np.int64) ** 2 % (2 * plan.length)
        chirp = np.exp(-1j * np.pi * squares / plan.length)
        wrapped = np.zeros(plan.padded, complex)
        wrapped[: plan.length] = chirp.conj()
        wrapped[plan.padded - plan.length + 1 :] = chirp[:0:-1].conj()
        parts += [_roots(plan.padded), chirp, np.fft.fft(wrapped) / plan.padded]
    whole = np.concatenate(parts)
    return np.stack([whole.real, whole.imag], -1)
