"""Transforms of a few complex numbers, written out, and the arithmetic of complex vectors.

Two, four and eight are halved; the products by (1 - i) / sqrt(2) of eight are sums. An odd radix
adds up what is even and what is odd in its input (Rader's symmetry):

    y[k], y[r - k] = x[0] + sum cos(2 pi j k / r) (x[j] + x[r - j])
                     -+ i   sum sin(2 pi j k / r) (x[j] - x[r - j])        j = 1 ... (r - 1) / 2
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType

Complex = tuple[Expr, Expr]
"""Vectors of real and of imaginary parts."""


@dataclass(frozen=True, slots=True)
class Codelets:
    """Writes arithmetic on complex vectors of `lanes` lanes; `fused`: the target has one for
    products that are added."""

    fused: bool
    dtype: DType
    lanes: int

    def number(self, value: float) -> Expr:
        """Return a number in every lane."""
        return b.broadcast(b.const(value, self.dtype), self.lanes)

    def plus(self, body: b.Body, x: Complex, y: Complex) -> Complex:
        """Return x + y."""
        return body.let("re", b.add(x[0], y[0])), body.let("im", b.add(x[1], y[1]))

    def minus(self, body: b.Body, x: Complex, y: Complex) -> Complex:
        """Return x - y."""
        return body.let("re", b.sub(x[0], y[0])), body.let("im", b.sub(x[1], y[1]))

    def scaled(self, body: b.Body, x: Complex, factor: Expr) -> Complex:
        """Return x times real numbers."""
        return body.let("re", b.mul(x[0], factor)), body.let("im", b.mul(x[1], factor))

    def times(self, body: b.Body, x: Complex, y: Complex) -> Complex:
        """Return x * y."""
        cross, other = b.neg(b.mul(x[1], y[1])), b.mul(x[1], y[0])
        real = multiply_add(self.fused, x[0], y[0], cross)
        imaginary = multiply_add(self.fused, x[0], y[1], other)
        return body.let("re", real), body.let("im", imaginary)

    def transformed(self, body: b.Body, x: Sequence[Complex]) -> list[Complex]:
        """Return the transform of a few numbers, in order."""
        if len(x) == 1:
            return list(x)
        if len(x) % 2:
            return self._odd(body, x)
        even, odd = (self.transformed(body, x[start::2]) for start in (0, 1))
        turned = [self._turned(body, value, k, len(x)) for k, value in enumerate(odd)]
        pairs = list(zip(even, turned, strict=True))
        sums = [self.plus(body, *pair) for pair in pairs]
        return [*sums, *(self.minus(body, *pair) for pair in pairs)]

    def _turned(self, body: b.Body, x: Complex, k: int, size: int) -> Complex:
        """Return x * exp(-2 pi i k / size) for a size of 2, 4 or 8."""
        eighth = k * 8 // size
        if eighth == 0:
            return x
        if eighth == 2:
            return x[1], body.let("im", b.neg(x[0]))
        root = self.number(math.sqrt(0.5))
        total, difference = b.add(x[0], x[1]), b.sub(x[1], x[0])
        if eighth == 1:
            return self.scaled(body, (total, difference), root)
        return self.scaled(body, (difference, b.neg(total)), root)

    def _odd(self, body: b.Body, x: Sequence[Complex]) -> list[Complex]:
        size = len(x)
        half = range(1, (size + 1) // 2)
        even = [self.plus(body, x[j], x[size - j]) for j in half]
        odd = [self.minus(body, x[j], x[size - j]) for j in half]
        first = x[0]
        for term in even:
            first = self.plus(body, first, term)
        found = [first] * size
        for k in half:
            angles = [2 * math.pi * (j * k % size) / size for j in half]
            base = self._weighted(body, x[0], even, [math.cos(angle) for angle in angles])
            cross = self._weighted(body, None, odd, [math.sin(angle) for angle in angles])
            turned = cross[1], body.let("im", b.neg(cross[0]))  # times -i
            found[k] = self.plus(body, base, turned)
            found[size - k] = self.minus(body, base, turned)
        return found

    def _weighted(
        self,
        body: b.Body,
        start: Complex | None,
        terms: Sequence[Complex],
        weights: Sequence[float],
    ) -> Complex:
        """Return start + the sum of real weights times terms."""
        total = start
        for term, weight in zip(terms, weights, strict=True):
            factor = self.number(weight)
            if total is None:
                total = self.scaled(body, term, factor)
                continue
            real, imaginary = (
                body.let("sum", multiply_add(self.fused, part, factor, before))
                for part, before in zip(term, total, strict=True)
            )
            total = real, imaginary
        return total  # type: ignore[return-value]
