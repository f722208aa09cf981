"""Sample operands that the records share. Values are fixed: no sample depends on a global seed.

Float arrays are float64 here; whoever uses a sample casts them to the dtype under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from frame.core.dtypes import DTYPES, DType
from frame.ir.graph import Attribute
from frame.ops.record import Sample

INTEGER_DTYPES: tuple[DType, ...] = tuple(
    row for row in DTYPES.values() if row.is_integer and not row.storage_only
)
"""The dtypes that integer samples come in."""

FLOAT_EDGES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-3, 300.0, -300.0]
)
"""Non-finite values, zeros of both signs, ties of rounding, and values that overflow exp."""


def smooth(shape: Sequence[int], low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Return distinct values spread over (low, high) in a fixed random order, float64.

    Distinct by at least (high - low) / (2 size), so that max, sort and the like are smooth at them.
    """
    generator = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    grid = (np.arange(count) + 0.25 + 0.5 * generator.random(count)) / max(count, 1)
    return (low + (high - low) * generator.permutation(grid)).reshape(tuple(shape))


def integers(shape: Sequence[int], low: int, high: int, dtype: DType, seed: int = 0) -> np.ndarray:
    """Return fixed random integers from [low, high)."""
    values = np.random.default_rng(seed).integers(low, high, tuple(shape))
    return np.asarray(values, dtype.numpy)


def integer_edges(dtype: DType) -> np.ndarray:
    """Return the smallest and largest values of an integer dtype and those around zero."""
    limits = np.iinfo(dtype.numpy)
    values = [limits.min, limits.min + 1, *(-3, -2, -1) * dtype.is_signed]
    values += [0, 1, 2, 3, 7, limits.max - 1, limits.max]
    return np.array(sorted(set(values)), dtype.numpy)


UNARY_SHAPES: Mapping[str, tuple[int, ...]] = {
    "rank0": (),
    "vector": (7,),
    "matrix": (3, 5),
    "rank4": (2, 1, 3, 2),
    "empty": (0, 3),
    "long": (67,),
}

BINARY_SHAPES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rank0": ((), ()),
    "same": ((3, 5), (3, 5)),
    "scalar_right": ((7,), ()),
    "scalar_left": ((), (2, 3)),
    "row": ((3, 5), (5,)),
    "column": ((3, 5), (3, 1)),
    "outer": ((4, 1), (1, 3)),
    "ranks": ((2, 1, 3), (4, 1)),
    "empty": ((0, 3), (1, 3)),
    "long": ((67,), (67,)),
}


def unary(
    low: float = -2.0, high: float = 2.0, edges: np.ndarray = FLOAT_EDGES, gradient: bool = True
) -> Iterator[Sample]:
    """Yield float samples of a unary op: smooth ones within (low, high), then the edges."""
    for seed, (name, shape) in enumerate(UNARY_SHAPES.items()):
        yield Sample(name, (smooth(shape, low, high, seed),), gradient=gradient)
    yield Sample("edges", (edges,), gradient=False)


def unary_integers() -> Iterator[Sample]:
    """Yield one sample for each integer dtype, and an empty one."""
    for dtype in INTEGER_DTYPES:
        yield Sample(f"edges_{dtype}", (integer_edges(dtype),), gradient=False)
    yield Sample("rank0_int32", (np.array(-7, np.int32),), gradient=False)
    yield Sample("empty_int32", (np.zeros((2, 0), np.int32),), gradient=False)


def binary(
    left: tuple[float, float] = (-2.0, 2.0),
    right: tuple[float, float] = (-2.0, 2.0),
    gradient: bool = True,
) -> Iterator[Sample]:
    """Yield float samples of a binary op over all ways to broadcast, then all pairs of edges."""
    for seed, (name, (first, second)) in enumerate(BINARY_SHAPES.items()):
        operands = (smooth(first, *left, 2 * seed), smooth(second, *right, 2 * seed + 1))
        yield Sample(name, operands, gradient=gradient)
    finite_pairs = (FLOAT_EDGES[:, None], FLOAT_EDGES[None, :])
    yield Sample("edges", finite_pairs, gradient=False)


def binary_integers(right: Iterable[int] | None = None) -> Iterator[Sample]:
    """Yield all pairs of edges for each integer dtype; `right` replaces the right operands."""
    for dtype in INTEGER_DTYPES:
        edges = integer_edges(dtype)
        second = edges if right is None else np.array(list(right), dtype.numpy)
        yield Sample(f"edges_{dtype}", (edges[:, None], second[None, :]), gradient=False)
    grid = np.arange(15, dtype=np.int32).reshape(3, 5)
    yield Sample("row_int32", (grid, np.full(5, 3, np.int32)), gradient=False)
    yield Sample("rank0_int32", (np.array(7, np.int32), np.array(2, np.int32)), gradient=False)
    yield Sample("empty_int32", (grid[:0], grid[:1]), gradient=False)


BOOLS = np.array([False, True])


def unary_bools() -> Iterator[Sample]:
    """Yield bool samples of a unary op."""
    yield Sample("bool", (BOOLS,), gradient=False)
    yield Sample("bool_rank0", (np.array(True),), gradient=False)
    yield Sample("bool_empty", (np.zeros((2, 0), np.bool_),), gradient=False)
    yield Sample("bool_odd", (_flags((3, 5)),), gradient=False)


def binary_bools() -> Iterator[Sample]:
    """Yield bool samples of a binary op: the truth table, and an empty one."""
    yield Sample("bool", (BOOLS[:, None], BOOLS[None, :]), gradient=False)
    yield Sample("bool_rank0", (np.array(True), np.array(False)), gradient=False)
    yield Sample("bool_empty", (np.zeros((0,), np.bool_), np.array(True)), gradient=False)
    yield Sample("bool_odd", (_flags((3, 5)), _flags((5,))), gradient=False)


def _flags(shape: Sequence[int]) -> np.ndarray:
    return integers(shape, 0, 2, INTEGER_DTYPES[0]).astype(np.bool_)


def one_of_each_dtype(
    shape: Sequence[int], attributes: Mapping[str, Attribute], name: str = "dtype"
) -> Iterator[Sample]:
    """Yield a sample for each integer dtype, bool, and floats that are not finite, for ops that
    move elements of any kind."""
    special = np.resize(FLOAT_EDGES, tuple(shape))
    yield Sample(f"{name}_not_finite", (special,), attributes, gradient=False)
    for dtype in INTEGER_DTYPES:
        operand = integers(shape, 0, 100, dtype)
        yield Sample(f"{name}_{dtype}", (operand,), attributes, gradient=False)
    yield Sample(f"{name}_bool", (_flags(shape),), attributes, gradient=False)


def not_finite(
    *shapes: Sequence[int],
    attributes: Mapping[str, Attribute] | None = None,
    fixed: tuple[int, ...] = (),
) -> Sample:
    """Return a sample whose first operand holds NaN and both infinities, the others are smooth."""
    first = smooth(shapes[0])
    first.reshape(-1)[[0, first.size // 2, -1]] = np.nan, np.inf, -np.inf
    rest = [smooth(shape, seed=seed) for seed, shape in enumerate(shapes[1:], start=1)]
    return Sample("not_finite", (first, *rest), attributes or {}, fixed, gradient=False)
