"""Discrete Fourier transforms of real sequences along the last axis: rfft and irfft.

Complex numbers are pairs (real, imaginary) along a new last axis. A length of up to `DIRECT` is one
product with the matrix of the transform, and so are a few frequencies of a longer one, where that
is less work than a fast transform. Any other is `fourier_rows`, which a target may take whole. It
decomposes where none does: a length splits into two factors (Cooley, Tukey, Math. Comp. 19, 1965),
each a product again, with a twist by roots of unity between them; a prime above `DIRECT` is one
large product. Narrow floats compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from frame import ops
from frame.core.dtypes import float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import known, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite, in_float32
from frame.ops.fourier_tables import plan_of, table_of
from frame.ops.record import AttributeSpec, GradientContext, Operand, Sample
from frame.ops.samples import not_finite, smooth

Operands = tuple[Value, ...]
Pair = tuple[Value, Value | None]  # real and imaginary part; None is zero

DIRECT = 64
"""The longest transform that is one product whatever its factors."""

LARGEST_TABLE = 2**18
"""The most pairs of numbers in the matrix of a longer transform that is one product."""

LONGEST = 2**16
"""The longest transform that is taken whole: what it keeps of each row lies in the caches."""

_PASS = 1.6
"""What a fast transform costs for each element and each halving of the length, in products."""

_CONVOLVED = 8.0
"""How much more it costs where its length has a large prime factor."""


def _angles(rows: int, columns: int, size: int) -> np.ndarray:
    """Return 2 pi * (row * column mod size) / size: exact products keep the angles small."""
    steps = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % size
    return 2 * np.pi * steps / size


def _table(values: np.ndarray, like: Value) -> Value:
    return ops.constant(np.asarray(values, like.dtype.numpy))


def _largest_factor(size: int) -> int:
    """Return the largest factor of `size` up to DIRECT; 1 for a prime above it."""
    return max(f for f in range(1, min(size, DIRECT) + 1) if size % f == 0)


def _times(left: Pair, right: tuple[Value, Value], product: object = ops.mul) -> Pair:
    """Return the complex product, element by element or as matrices."""
    (a, b), (c, d) = left, right
    if b is None:
        return product(a, c), product(a, d)  # type: ignore[operator]
    return (
        product(a, c) - product(b, d),  # type: ignore[operator]
        product(a, d) + product(b, c),  # type: ignore[operator]
    )


def _forward(x: Pair, size: int) -> Pair:
    """Return the transform of x [..., size] along its last axis."""
    factor = _largest_factor(size)
    if size <= DIRECT or factor == 1:
        angles = _angles(size, size, size)
        return _times(x, (_table(np.cos(angles), x[0]), _table(-np.sin(angles), x[0])), ops.matmul)
    rest = size // factor
    batch = x[0].shape[:-1]
    # Element rest * a + b stands at [a, b]: transform the columns over a, twist, then over b.
    columns = [
        None if part is None else _swap(ops.reshape(part, (*batch, factor, rest))) for part in x
    ]
    real, imaginary = _forward((columns[0], columns[1]), factor)  # type: ignore[arg-type]
    angles = _angles(rest, factor, size)
    twist = _table(np.cos(angles), real), _table(-np.sin(angles), real)
    real, imaginary = _times((real, imaginary), twist)
    rows = (_swap(real), None if imaginary is None else _swap(imaginary))
    spectrum = _forward(rows, rest)
    # Frequency k1 + factor * k2 stands at [k1, k2].
    flat = [None if part is None else ops.reshape(_swap(part), (*batch, size)) for part in spectrum]
    return flat[0], flat[1]  # type: ignore[return-value]


def _swap(x: Value) -> Value:
    order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return ops.transpose(x, permutation=order)


def _poison(x: Value, axes: int) -> Value:
    """Return 0 for each sequence over the last axes, NaN where it holds a number not finite."""
    return ops.sum(x * 0.0, axes=tuple(range(x.rank - axes, x.rank)), keepdims=True)


def _part(x: Value, start: int, stop: int) -> Value:
    lead = (0,) * (x.rank - 1)
    return ops.slice(x, (*lead, start), (*x.shape[:-1], stop))


def _is_direct(size: int, count: int) -> bool:
    """Tell whether `count` frequencies of `size` elements are best had as one product.

    An element of a product costs `count` pairs of multiply-adds; one of a fast transform a few for
    each halving of the length.
    """
    if size <= DIRECT or size > LONGEST:
        return size <= DIRECT or (count <= DIRECT and size * count <= LARGEST_TABLE)
    fast = _PASS * math.log2(size) * (_CONVOLVED if plan_of(size).padded else 1.0)
    return count <= fast and size * count <= LARGEST_TABLE


def _whole(size: int) -> bool:
    """Tell whether a transform that is no product is `fourier_rows`."""
    return size <= LONGEST


# --- rfft -----------------------------------------------------------------------------------------


def _size(op: str, x: TensorType) -> int:
    size = x.shape[-1] if x.rank else 0
    if not isinstance(size, int) or size < 1:
        raise InvalidArgumentError(
            f"{op} needs a last axis of known size of 1 or more, received {shape_text(x.shape)}"
        )
    return size


def _count(size: int, attributes: Attributes) -> int:
    """Return how many frequencies rfft keeps."""
    return attributes["count"] or size // 2 + 1  # type: ignore[no-any-return]


def _canonical_rfft(operands: Types, attributes: Attributes) -> Attributes:
    """Write the number of all frequencies as 0."""
    (x,) = operands
    whole = x.shape[-1] // 2 + 1 if x.rank and isinstance(x.shape[-1], int) else None
    return {"count": 0} if attributes["count"] == whole else {}


def _infer_rfft(operands: Types, attributes: Attributes) -> TensorType:
    (x,) = operands
    size = _size("rfft", x)
    count = _count(size, attributes)
    if not 1 <= count <= size // 2 + 1:
        raise InvalidArgumentError(
            f"attribute 'count' of rfft must be 0 or from 1 to {size // 2 + 1}, the frequencies of "
            f"{size} elements, received {count}"
        )
    return TensorType(x.dtype, (*x.shape[:-1], count, 2))


def _reference_rfft(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    finite = np.isfinite(x).all(-1)[..., None, None]
    z = np.fft.rfft(np.where(finite[..., 0], x, 0.0))[..., : _count(x.shape[-1], attributes)]
    return np.where(finite, np.stack([z.real, z.imag], -1), np.nan)


def _build_rfft(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    size = known(x.shape[-1])
    count = _count(size, attributes)
    if _is_direct(size, count):
        angles = _angles(size, count, size)
        table = np.stack([np.cos(angles), -np.sin(angles)], -1).reshape(size, 2 * count)
        z = ops.reshape(ops.matmul(x, _table(table, x)), (*x.shape[:-1], count, 2))
        return z + ops.unsqueeze(_poison(x, 1), x.rank)
    if _whole(size):
        return ops.fourier_rows(x, _table(table_of(size), x), size=size, count=count)
    return _forward_rows(x, size, count)


def _forward_rows(x: Value, size: int, count: int) -> Value:
    """Return the first frequencies of real rows, by products."""
    z = ops.stack([_part(p, 0, count) for p in _forward((x, None), size) if p is not None], -1)
    return z + ops.unsqueeze(_poison(x, 1), x.rank)


def multiplicity(size: int) -> np.ndarray:
    """Return how often each frequency of a real sequence of `size` stands in the whole spectrum."""
    weights = np.full(size // 2 + 1, 2.0)
    weights[0] = 1.0
    if size % 2 == 0:
        weights[-1] = 1.0
    return weights[:, None]


def _gradient_rfft(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    size = known(x.shape[-1])
    weights = multiplicity(size)[: _count(size, context.attributes)]
    scaled = cotangent * _table(size / weights, cotangent)
    return [ops.irfft(scaled, n=size)]


LENGTHS = (1, 2, 3, 8, 15)


def _rfft_samples() -> Iterable[Sample]:
    for size in LENGTHS:
        yield Sample(f"n_{size}", (smooth((2, size), seed=size),))
    yield Sample("vector", (smooth((6,)),))
    yield Sample("rank_3", (smooth((2, 3, 5)),))
    yield Sample("two_factors", (smooth((2, 96)),))
    yield Sample("prime", (smooth((67,)),))
    yield Sample("few", (smooth((2, 8)),), {"count": 3})
    yield Sample("one", (smooth((3, 5)),), {"count": 1})
    yield Sample("few_of_many", (smooth((2, 90)),), {"count": 2})
    yield Sample("half_of_many", (smooth((134,)),), {"count": 66})
    yield not_finite((3, 4))
    yield Sample("empty", (np.zeros((0, 4)),))


composite(
    "rfft",
    "The discrete Fourier transform of real x along the last axis, not scaled: [..., n] -> "
    "[..., n // 2 + 1, 2], real and imaginary parts of the frequencies from 0 on, as in "
    "numpy.fft.rfft; of the first `count` alone where it is given, for the price of those. Any n "
    "of 1 or more; a sequence that is not finite throughout gives NaN.",
    (Operand("x", ("float",), doc="real sequences [..., n]"),),
    infer=_infer_rfft,
    reference=_reference_rfft,
    build=in_float32(_build_rfft),
    samples=_rfft_samples,
    gradient=_gradient_rfft,
    attributes=(AttributeSpec("count", "int", 0, "how many frequencies are kept; 0 keeps all"),),
    results=("z",),
    canonicalize=_canonical_rfft,
)


# --- irfft ----------------------------------------------------------------------------------------


def _infer_irfft(operands: Types, attributes: Attributes) -> TensorType:
    (z,), n = operands, attributes["n"]
    count = z.shape[-2] if z.rank > 1 and z.shape[-1] == 2 else 0
    if n < 1 or not isinstance(count, int) or not 1 <= count <= n // 2 + 1:
        raise InvalidArgumentError(
            f"irfft to n = {n} takes z [..., n // 2 + 1, 2], or fewer frequencies, received "
            f"{shape_text(z.shape)}; n must be 1 or more"
        )
    return TensorType(z.dtype, (*z.shape[:-2], n))


def _reference_irfft(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (z,), n = operands, attributes["n"]
    finite = np.isfinite(z).all((-1, -2))[..., None]
    z = np.where(finite[..., None], z, 0.0)
    return np.where(finite, np.fft.irfft(z[..., 0] + 1j * z[..., 1], n), np.nan)


def _halves(z: Value) -> tuple[Value, Value]:
    flat = [ops.squeeze(_part(z, k, k + 1), z.rank - 1) for k in range(2)]
    return flat[0], flat[1]


def _mirrored(half: Value, size: int) -> Value:
    """Return the frequencies above the middle: those below it, backwards."""
    return ops.flip(_part(half, 1, (size + 1) // 2), axes=(half.rank - 1,))


def _inverse_table(count: int, size: int) -> np.ndarray:
    """Return the matrix [2 * count, size] of the inverse for `count` pairs."""
    angles, weights = _angles(count, size, size), multiplicity(size)[:count] / size
    return np.stack([np.cos(angles) * weights, -np.sin(angles) * weights], 1).reshape(-1, size)


def _with_zeros(z: Value, missing: int) -> Value:
    high = (*(0,) * (z.rank - 2), missing, 0)
    return ops.pad(z, (0,) * z.rank, high)


def _build_irfft(operands: Operands, attributes: Attributes) -> Value:
    (z,), size = operands, attributes["n"]
    count = known(z.shape[-2])
    if _is_direct(size, count):
        rows = ops.reshape(z, (*z.shape[:-2], 2 * count))
        y = ops.matmul(rows, _table(_inverse_table(count, size), z))
        return y + ops.squeeze(_poison(z, 2), z.rank - 1)
    if _whole(size):
        table = _table(table_of(size), z)
        return ops.fourier_rows(z, table, size=size, count=count, inverse=True)
    return _inverse_rows(z, size)


def _inverse_rows(z: Value, size: int) -> Value:
    """Return the real rows of spectra, by products."""
    count = known(z.shape[-2])
    missing = size // 2 + 1 - count
    real, imaginary = _halves(_with_zeros(z, missing) if missing else z)
    # The imaginary parts of frequency 0 and of the middle don't reach a real sequence; negated
    # imaginary parts turn the forward transform into the inverse.
    whole = ops.concat([real, _mirrored(real, size)], axis=real.rank - 1)
    turned = ops.concat([-imaginary, _mirrored(imaginary, size)], axis=real.rank - 1)
    found, _ = _forward((whole, turned), size)
    return found * (1 / size) + ops.squeeze(_poison(z, 2), z.rank - 1)


def _gradient_irfft(context: GradientContext) -> Sequence[Value | None]:
    (cotangent,), n = context.cotangents, context.attributes["n"]
    count = known(context.operands[0].shape[-2])
    z = ops.rfft(cotangent, count=count)
    return [z * _table(multiplicity(n)[:count] / n, z)]


def _irfft_samples() -> Iterable[Sample]:
    def sample(name: str, n: int, *batch: int) -> Sample:
        return Sample(name, (smooth((*batch, n // 2 + 1, 2), seed=n),), {"n": n})

    for size in LENGTHS:
        yield sample(f"n_{size}", size, 2)
    yield sample("vector", 6)
    yield sample("two_factors", 96, 2)
    yield sample("two_odd_factors", 75)
    yield sample("prime", 67)
    yield Sample("few", (smooth((2, 3, 2)),), {"n": 8})
    yield Sample("few_of_many", (smooth((2, 2, 2)),), {"n": 90})
    yield Sample("half_of_many", (smooth((66, 2)),), {"n": 134})
    yield not_finite((2, 3, 2), attributes={"n": 4})
    yield sample("empty", 4, 0)


composite(
    "irfft",
    "The inverse of rfft: [..., n // 2 + 1, 2] -> real [..., n], scaled by 1 / n, as "
    "numpy.fft.irfft gives it; frequencies that z lacks are zero. The imaginary parts of frequency "
    "0, and of n / 2 for an even n, count as zero. A sequence that is not finite throughout gives "
    "NaN.",
    (
        Operand(
            "z",
            ("float",),
            doc="real and imaginary parts [..., n // 2 + 1, 2], or fewer",
        ),
    ),
    infer=_infer_irfft,
    reference=_reference_irfft,
    build=in_float32(_build_irfft),
    samples=_irfft_samples,
    gradient=_gradient_irfft,
    attributes=(AttributeSpec("n", "int", doc="the length of the sequence"),),
    results=("x",),
)


# --- fourier_rows ---------------------------------------------------------------------------------


def _infer_rows(operands: Types, attributes: Attributes) -> TensorType:
    x, table = operands
    size, count, inverse = attributes["size"], attributes["count"], attributes["inverse"]
    if size < 1 or not 1 <= count <= size // 2 + 1:
        raise InvalidArgumentError(
            f"fourier_rows needs a size of 1 or more and a count from 1 to size // 2 + 1, received "
            f"size {size} and count {count}"
        )
    taken, given = ((count, 2), (size,)) if inverse else ((size,), (count, 2))
    if x.rank < len(taken) or x.shape[x.rank - len(taken) :] != taken:
        raise InvalidArgumentError(
            f"fourier_rows of size {size} and count {count} takes [..., {shape_text(taken)[1:]}, "
            f"received {shape_text(x.shape)}"
        )
    rows = plan_of(size).rows
    if table.dtype not in (float32, float64) or table.shape != (rows, 2):
        raise InvalidArgumentError(
            f"fourier_rows of size {size} takes the table [{rows}, 2] of float32 or float64 that "
            f"frame.ops.fourier_tables.table_of gives, received {table.dtype} "
            f"{shape_text(table.shape)}"
        )
    return TensorType(x.dtype, (*x.shape[: x.rank - len(taken)], *given))


def _reference_rows(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, _ = operands
    if attributes["inverse"]:
        return _reference_irfft([x], {"n": attributes["size"]})
    return _reference_rfft([x], {"count": attributes["count"]})


def _build_rows(operands: Operands, attributes: Attributes) -> Value:
    x, size = operands[0], attributes["size"]
    if attributes["inverse"]:
        return _inverse_rows(x, size)
    return _forward_rows(x, size, attributes["count"])


def _gradient_rows(context: GradientContext) -> Sequence[Value | None]:
    """Those of rfft and irfft: the table is a constant."""
    values = context.attributes
    if values["inverse"]:
        inner = replace(context, attributes={"n": values["size"]})
        return [*_gradient_irfft(inner), None]
    return [*_gradient_rfft(replace(context, operands=context.operands[:1])), None]


def _rows_samples() -> Iterable[Sample]:
    def sample(name: str, size: int, *batch: int, count: int = 0, inverse: bool = False) -> Sample:
        count = count or size // 2 + 1
        x = smooth((*batch, count, 2) if inverse else (*batch, size), seed=size)
        values = {"size": size, "count": count, "inverse": inverse}
        return Sample(name, (x, table_of(size)), values, (1,))

    for inverse, way in ((False, "forward"), (True, "inverse")):
        for size in (1, 15):
            yield sample(f"{way}_{size}", size, 2, inverse=inverse)
        yield sample(f"{way}_empty", 4, 0, inverse=inverse)
    yield sample("vector", 6)
    yield sample("few", 12, 3, count=2, inverse=True)
    yield sample("prime", 17, 2, 2)
    yield sample("twice_a_prime", 34, 3, inverse=True)
    spoiled = smooth((4, 4), seed=2)
    spoiled[0, 1], spoiled[2, 3], spoiled[3, 0] = np.inf, np.nan, -np.inf
    values = {"size": 4, "count": 3, "inverse": False}
    yield Sample("not_finite", (spoiled, table_of(4)), values, (1,), gradient=False)


composite(
    "fourier_rows",
    "What rfft and irfft of long rows become: a transform that a target takes whole, with the "
    "table of roots of unity that it multiplies by. [..., size] -> [..., count, 2], or the "
    "inverse. The table is that of frame.ops.fourier_tables.table_of; what another gives is not "
    "defined.",
    (
        Operand("x", ("float",), doc="rows [..., size], or for the inverse [..., count, 2]"),
        Operand("table", ("float",), "P", doc="the roots in float32 or float64"),
    ),
    infer=_infer_rows,
    reference=_reference_rows,
    build=in_float32(_build_rows),
    samples=_rows_samples,
    gradient=_gradient_rows,
    attributes=(
        AttributeSpec("size", "int", doc="the real elements of a row"),
        AttributeSpec("count", "int", doc="the frequencies of a spectrum, from 0 on"),
        AttributeSpec("inverse", "bool", False, "whether rows are made from spectra"),
    ),
    results=("y",),
)
