"""Ops along one axis in a fixed order: cumsum, sort, argsort, topk.

Sorting is a bitonic network of compare-and-exchange stages, run by one loop whose body is the
same for each stage, so that a long axis compiles as fast as a short one. Each element carries its
position, which breaks ties: the sort is stable, and every result is the same for any number of
threads. Source: Batcher, AFIPS Spring Joint Computer Conference 1968.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DType, int32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import known, numel, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops import samples
from frame.ops.composite import Attributes, Types, composite, in_float32
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    normal_axis,
)
from frame.ops.registry import register
from frame.ops.samples import smooth
from frame.ops.tables import flat_positions

Operands = tuple[Value, ...]
AXIS = AttributeSpec("axis", "int", -1, "the axis; negative counts from the end")
DESCENDING = AttributeSpec("descending", "bool", False, "whether the largest comes first")


def moved(x: Value, source: int, target: int) -> Value:
    """Return x with one axis moved to another place."""
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return x if source == target else ops.transpose(x, permutation=tuple(order))


# --- cumsum ---------------------------------------------------------------------------------------


def _reference_cumsum(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,), axis = operands, attributes["axis"]
    x = np.flip(x, axis) if attributes["reverse"] else x
    with np.errstate(all="ignore"):
        total = np.cumsum(x, axis, dtype=x.dtype)
    if attributes["exclusive"] and x.shape[axis]:
        zero = np.zeros_like(np.take(x, [0], axis))
        total = np.concatenate([zero, np.delete(total, -1, axis)], axis)
    return np.flip(total, axis) if attributes["reverse"] else total


def _build_cumsum(operands: Operands, attributes: Attributes) -> Value:
    (x,), axis, exclusive = operands, attributes["axis"], attributes["exclusive"]
    steps = moved(x, axis, 0)

    def step(total: Value, element: Value) -> tuple[Value, Value]:
        following = total + element
        return following, total if exclusive else following

    zero = ops.zeros(steps.shape[1:], x.dtype)
    _, sums = ops.scan(step, zero, steps, reverse=attributes["reverse"])
    return moved(sums, 0, axis)


def _gradient_cumsum(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None]
    attributes = {**context.attributes, "reverse": not context.attributes["reverse"]}
    return [ops.cumsum(cotangent, **attributes)]


def _cumsum_samples() -> Iterable[Sample]:
    yield Sample("last", (smooth((3, 7)),), {"axis": -1})
    yield Sample("first", (smooth((5, 2)),), {"axis": 0})
    yield Sample("middle", (smooth((2, 4, 3)),), {"axis": 1, "reverse": True})
    yield Sample("vector", (smooth((9,)),), {"exclusive": True})
    yield Sample("both", (smooth((2, 5)),), {"exclusive": True, "reverse": True})
    yield Sample("single", (smooth((3, 1)),), {"exclusive": True})
    yield Sample("empty", (np.zeros((3, 0)),))
    yield Sample("long", (smooth((131,)),))
    yield Sample(
        "not_finite",
        (np.array([[1.0, np.inf, 2.0, np.nan, 1.0], [0.0, -np.inf, 1.0, 2.0, 3.0]]),),
        gradient=False,
    )
    for row in samples.INTEGER_DTYPES:
        operand = samples.integers((2, 6), 0, 100, row)
        yield Sample(f"{row}", (operand,), gradient=False)


composite(
    "cumsum",
    "The sums of the elements up to each one along an axis, added in order. Integers keep their "
    "dtype and wrap around.",
    (Operand("x", ("float", "int", "uint")),),
    infer=lambda operands, attributes: operands[0],
    reference=_reference_cumsum,
    build=in_float32(_build_cumsum),
    samples=_cumsum_samples,
    gradient=_gradient_cumsum,
    attributes=(
        AXIS,
        AttributeSpec("exclusive", "bool", False, "whether an element's own value is left out"),
        AttributeSpec("reverse", "bool", False, "whether sums begin at the end"),
    ),
    canonicalize=normal_axis,
)


# --- the sorting network --------------------------------------------------------------------------


def _known(op: str, type_: TensorType, axis: int) -> int:
    size = type_.shape[axis]
    if not isinstance(size, int):
        raise InvalidArgumentError(
            f"{op} needs a known size on axis {axis} of {shape_text(type_.shape)}: the number of "
            "its stages follows from it"
        )
    return size


def _stages(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (block, distance) of each stage of the network over `size` elements, a power of 2."""
    pairs = [
        (2 << block, 1 << distance)
        for block in range(size.bit_length() - 1)
        for distance in range(block, -1, -1)
    ]
    blocks, distances = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    return blocks, distances


def _last(dtype: DType, descending: bool) -> np.ndarray:
    """Return the number that comes last in the order, for padding."""
    if dtype.is_float:
        return np.array(-math.inf if descending else math.nan, dtype.numpy)
    if dtype.is_bool:
        return np.array(not descending)
    limits = np.iinfo(dtype.numpy)
    return np.array(limits.min if descending else limits.max, dtype.numpy)


def _less(a: Value, b: Value) -> Value:
    """Return a < b where NaN is above all numbers and False below True."""
    if a.dtype.is_bool:
        return ops.logical_and(ops.logical_not(a), b)
    if not a.dtype.is_float:
        return ops.less(a, b)
    number = ops.logical_not(ops.isnan(a))
    return ops.logical_or(ops.less(a, b), ops.logical_and(number, ops.isnan(b)))


def _before(a: Value, b: Value, place_a: Value, place_b: Value, descending: bool) -> Value:
    """Return whether element a stands before element b in the order; their places break ties."""
    first, second = (_less(b, a), _less(a, b)) if descending else (_less(a, b), _less(b, a))
    tied = ops.logical_and(ops.logical_not(second), ops.less(place_a, place_b))
    return ops.logical_or(first, tied)


def _padded(x: Value, size: int, descending: bool) -> Value:
    """Return x [size', ...] with elements that come last behind it: their places are later too."""
    missing = size - known(x.shape[0])
    if not missing:
        return x
    last = ops.constant(_last(x.dtype, descending))
    return ops.concat([x, ops.expand(last, (missing, *x.shape[1:]))], axis=0)


def _sorted(x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """Return the elements of x in order along an axis, and where each came from (int64)."""
    count = _known("sort", x.type, axis)
    if count < 2:
        return x, ops.zeros(x.shape, int64)
    size = 1 << (count - 1).bit_length()
    keys = _padded(moved(x, axis, 0), size, descending)
    line = ops.iota(shape=(size,), axis=0, dtype=int32)
    column = ops.reshape(line, (size, *(1,) * (x.rank - 1)))
    places = ops.expand(column, keys.shape)

    def stage(carry: tuple[Value, Value], step: tuple[Value, Value]) -> tuple[Any, None]:
        key, place = carry
        block, distance = step
        partner = ops.bitwise_xor(line, distance)
        other_key, other_place = (ops.gather(v, partner, axis=0) for v in carry)
        rising = ops.equal(ops.bitwise_and(column, block), 0)
        lower = ops.equal(ops.bitwise_and(column, distance), 0)
        keep = ops.equal(
            _before(key, other_key, place, other_place, descending), ops.equal(rising, lower)
        )
        chosen = ops.where(keep, key, other_key), ops.where(keep, place, other_place)
        return chosen, None

    blocks, distances = (ops.constant(numbers) for numbers in _stages(size))
    (keys, places), _ = ops.scan(stage, (keys, places), (blocks, distances))
    return tuple(moved(_front(v, count), 0, axis) for v in (keys, ops.cast(places, int64)))  # type: ignore[return-value]


def _front(x: Value, count: int) -> Value:
    return ops.slice(x, (0,) * x.rank, (count, *x.shape[1:]))


# --- sort and argsort -----------------------------------------------------------------------------


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # The order of the reversed array, reversed, keeps equal elements in their order.
    reverse = np.argsort(np.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(reverse, axis)


def _reference_sort(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> tuple[np.ndarray, np.ndarray]:
    (x,), axis = operands, attributes["axis"]
    order = _order(x, axis, attributes["descending"])
    return np.take_along_axis(x, order, axis), order


def _scattered(cotangent: Value, order: Value, x: Value, axis: int) -> Value:
    """Send each cotangent to the place that its element came from."""
    flat = flat_positions(order, axis, x.shape[axis])
    total = ops.scatter_add(cotangent, flat, shape=(numel(x.shape),))
    return ops.reshape(total, x.shape)


def _gradient_sort(context: GradientContext) -> Sequence[Value | None]:
    (x,), axis = context.operands, context.attributes["axis"]
    if not x.dtype.is_float:
        return [None]
    return [_scattered(context.cotangents[0], context.results[1], x, axis)]


def _sort_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((3, 7)),), {"axis": -1})
    yield Sample("columns", (smooth((6, 2)),), {"axis": 0, "descending": True})
    yield Sample("middle", (smooth((2, 4, 3)),), {"axis": 1})
    yield Sample("vector", (smooth((9,)),), {"descending": True})
    yield Sample("single", (smooth((3, 1)),))
    yield Sample("empty", (np.zeros((0, 3)),))
    yield Sample("no_element", (np.zeros((2, 0)),))
    yield Sample("long", (smooth((67,)),))
    special = np.array([1.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, 1.0, -2.0, 0.0, np.inf])
    for descending in (False, True):
        values = {"descending": descending}
        yield Sample(f"special_{descending}", (special,), values, gradient=False)
        for row in samples.INTEGER_DTYPES:
            edges = np.tile(samples.integer_edges(row), 2)[::-1].copy()
            yield Sample(f"{row}_{descending}", (edges,), values, gradient=False)
        flags = np.array([[True, False, True], [False, False, True]])
        yield Sample(f"bool_{descending}", (flags,), values, gradient=False)


X = Operand("x", doc="values")


def _two(operands: Types, attributes: Attributes) -> tuple[TensorType, TensorType]:
    (x,) = operands
    _known("sort", x, attributes["axis"])
    return x, TensorType(int64, x.shape)


composite(
    "sort",
    "The elements in order along an axis, and the positions that they came from. Equal elements "
    "keep their order; NaN counts as larger than every number, as in numpy.",
    (X,),
    infer=_two,
    reference=_reference_sort,
    build=lambda operands, values: _sorted(operands[0], values["axis"], values["descending"]),
    samples=_sort_samples,
    gradient=_gradient_sort,
    attributes=(AXIS, DESCENDING),
    results=("values", "indices"),
    autocast=Autocast.FOLLOW,
    canonicalize=normal_axis,
)


def _without_gradient(made: Iterable[Sample]) -> Iterable[Sample]:
    for sample in made:
        yield Sample(sample.name, sample.operands, sample.attributes, gradient=False)


register(
    OpDef(
        "argsort",
        "The positions of the elements in order along an axis: x[argsort(x)] is sorted. Equal "
        "elements keep their order; NaN counts as larger than every number, as in numpy.",
        (X,),
        lambda operands, attributes: _two(operands, attributes)[1],
        lambda operands, attributes: _reference_sort(operands, attributes)[1],
        NoGradient("positions are integers and constant between ties", zero=True),
        attributes=(AXIS, DESCENDING),
        decomposition=lambda operands, values: _sorted(
            operands[0], values["axis"], values["descending"]
        )[1],
        samples=lambda: _without_gradient(_sort_samples()),
        canonicalize=normal_axis,
    )
)


# --- topk -----------------------------------------------------------------------------------------


def _infer_topk(operands: Types, attributes: Attributes) -> tuple[TensorType, TensorType]:
    (x,), axis, k = operands, attributes["axis"], attributes["k"]
    size = _known("topk", x, axis)
    if not 0 <= k <= size:
        raise InvalidArgumentError(
            f"topk of axis {axis} of {shape_text(x.shape)} takes k from 0 to {size}, received {k}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(int64, shape)


def _reference_topk(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> tuple[np.ndarray, np.ndarray]:
    (x,), axis = operands, attributes["axis"]
    order = _order(x, axis, attributes["largest"])
    chosen = np.take(order, np.arange(attributes["k"]), axis)
    return np.take_along_axis(x, chosen, axis), chosen


def _build_topk(operands: Operands, attributes: Attributes) -> tuple[Value, ...]:
    (x,), axis = operands, attributes["axis"]
    pair = _sorted(x, axis, attributes["largest"])
    stops = (*x.shape[:axis], attributes["k"], *x.shape[axis + 1 :])
    return tuple(ops.slice(v, (0,) * x.rank, stops) for v in pair)


def _topk_samples() -> Iterable[Sample]:
    yield Sample("rows", (smooth((3, 7)),), {"k": 3, "axis": -1})
    yield Sample("columns", (smooth((6, 2)),), {"k": 2, "axis": 0, "largest": False})
    yield Sample("all", (smooth((5,)),), {"k": 5})
    yield Sample("none", (smooth((2, 3)),), {"k": 0})
    yield Sample("empty", (np.zeros((0, 3)),), {"k": 1})
    special = np.array([1.0, np.nan, -np.inf, np.inf, 1.0, np.nan])
    yield Sample("special", (special,), {"k": 4}, gradient=False)
    yield from samples.one_of_each_dtype((2, 5), {"k": 3})


composite(
    "topk",
    "The k largest elements (or smallest) along an axis in order, and their positions. The first "
    "of equal elements comes first; NaN counts as larger than every number.",
    (X,),
    infer=_infer_topk,
    reference=_reference_topk,
    build=_build_topk,
    samples=_topk_samples,
    gradient=_gradient_sort,
    attributes=(
        AttributeSpec("k", "int", doc="how many elements"),
        AXIS,
        AttributeSpec("largest", "bool", True, "whether the largest are taken, else the smallest"),
    ),
    results=("values", "indices"),
    autocast=Autocast.FOLLOW,
    canonicalize=normal_axis,
)
