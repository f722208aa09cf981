"""Reading tables at integer positions: embedding, one_hot, take_along_axis.

Positions are checked when the graph runs: one out of range is an InvalidArgumentError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import bfloat16, bool_, float32, float64, int32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, numel, shape_text
from frame.ir.graph import TensorType, Value
from frame.ops import samples
from frame.ops.composite import Attributes, Types, composite
from frame.ops.gather import check_indices
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    Trait,
    normal_axis,
)
from frame.ops.registry import register
from frame.ops.samples import smooth

Operands = tuple[Value, ...]
INDICES = Operand("indices", ("int", "uint"), "I", doc="positions, any rank,")
CHECKED = frozenset({Trait.CHECKED})


def positions(size: Size) -> Value:
    """Return 0, 1, ..., size - 1 in an integer dtype that holds them."""
    narrow = isinstance(size, int) and size < 2**31
    return ops.iota(shape=(size,), axis=0, dtype=int32 if narrow else int64)


def checked(indices: Value, size: Size) -> Value:
    """Return the indices unchanged, in a dtype that holds `size`; check that they are below it."""
    return ops.gather(positions(size), indices, axis=0)


# --- embedding ------------------------------------------------------------------------------------


def _infer_embedding(operands: Types, attributes: Attributes) -> TensorType:
    table, indices = operands
    if table.rank != 2:
        raise InvalidArgumentError(
            f"embedding takes a table [rows, features], received {shape_text(table.shape)}"
        )
    padding, rows = attributes["padding_index"], table.shape[0]
    if padding < -1 or (isinstance(rows, int) and padding >= rows):
        raise InvalidArgumentError(
            f"attribute 'padding_index' of embedding must be a row of the table, 0 to {rows} - 1, "
            f"or -1 for none, received {padding}"
        )
    return TensorType(table.dtype, (*indices.shape, table.shape[1]))


def _reference_embedding(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    table, indices = operands
    check_indices("embedding", indices, table.shape[0])
    return table[indices.astype(np.int64)]


def _gradient_embedding(context: GradientContext) -> Sequence[Value | None]:
    (table, indices), (cotangent,) = context.operands, context.cotangents
    padding = context.attributes["padding_index"]
    if padding >= 0:
        row = ops.reshape(checked(indices, table.shape[0]), (*indices.shape, 1))
        cotangent = ops.where(ops.equal(row, padding), 0.0, cotangent)
    return [ops.scatter_add(cotangent, indices, shape=table.shape, axis=0), None]


def _embedding_samples() -> Iterable[Sample]:
    table = smooth((5, 3))
    yield Sample("sequence", (table, np.array([[4, 0, 4], [1, 2, 2]])), fixed=(1,))
    yield Sample("vector", (table, np.array([3, 3])), fixed=(1,))
    yield Sample("scalar", (table, np.asarray(2)), fixed=(1,))
    yield Sample("empty", (table, np.zeros((0, 2), np.int64)), fixed=(1,))
    special = np.array([[np.nan, 1.0], [np.inf, 2.0], [-np.inf, 3.0]])
    yield Sample("not_finite", (special, np.array([2, 0, 1])), fixed=(1,), gradient=False)
    for row in samples.INTEGER_DTYPES:
        yield Sample(f"{row}", (table, np.array([2, 0, 2], row.numpy)), fixed=(1,))


register(
    OpDef(
        "embedding",
        "The rows of a table at the indices: table[indices]. The row `padding_index` gets no "
        "gradient; -1 names none. Indices are checked when the graph runs.",
        (Operand("table", ("float",), doc="rows [rows, features]"), INDICES),
        _infer_embedding,
        _reference_embedding,
        _gradient_embedding,
        attributes=(AttributeSpec("padding_index", "int", -1, "the row that never learns"),),
        traits=CHECKED,
        decomposition=lambda operands, attributes: ops.gather(operands[0], operands[1], axis=0),
        samples=_embedding_samples,
    )
)


# --- one_hot --------------------------------------------------------------------------------------


def _infer_one_hot(operands: Types, attributes: Attributes) -> TensorType:
    if attributes["dtype"].storage_only:
        raise InvalidArgumentError(f"one_hot can't make the dtype {attributes['dtype']}")
    return TensorType(attributes["dtype"], (*operands[0].shape, attributes["depth"]))


def _reference_one_hot(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (indices,), depth = operands, attributes["depth"]
    check_indices("one_hot", indices, depth)
    return indices.astype(np.int64)[..., None] == np.arange(depth)


def _build_one_hot(operands: Operands, attributes: Attributes) -> Value:
    (indices,), depth = operands, attributes["depth"]
    chosen = ops.reshape(checked(indices, depth), (*indices.shape, 1))
    return ops.cast(ops.equal(chosen, positions(depth)), attributes["dtype"])


def _one_hot_samples() -> Iterable[Sample]:
    def sample(name: str, indices: object, depth: int, **attributes: object) -> Sample:
        values = {"depth": depth, **attributes}
        return Sample(name, (np.asarray(indices),), values, gradient=False)

    yield sample("rows", [0, 3, 1], 4)
    yield sample("matrix", [[0, 2], [2, 1]], 3, dtype=int32)
    yield sample("scalar", 1, 2)
    yield sample("empty", np.zeros((0,), np.int64), 3)
    yield sample("beyond_uint8", np.array([255], np.uint8), 300)
    for row in samples.INTEGER_DTYPES:
        yield sample(f"{row}", np.array([2, 0], row.numpy), 3)
    for row in (float64, bool_, bfloat16):
        yield sample(f"to_{row}", [1, 0], 2, dtype=row)


register(
    OpDef(
        "one_hot",
        "One at the position that each index names along a new last axis, zero elsewhere. Indices "
        "are checked when the graph runs.",
        (INDICES,),
        _infer_one_hot,
        _reference_one_hot,
        NoGradient("indices are integers and the result is constant between them", zero=True),
        attributes=(
            AttributeSpec("depth", "size", doc="the size of the new axis"),
            AttributeSpec("dtype", "dtype", float32, "the dtype of the result"),
        ),
        traits=CHECKED,
        decomposition=_build_one_hot,
        samples=_one_hot_samples,
    )
)


# --- take_along_axis ------------------------------------------------------------------------------


def _infer_take(operands: Types, attributes: Attributes) -> TensorType:
    (x, indices), axis = operands, attributes["axis"]
    others = [(*t.shape[:axis], *t.shape[axis + 1 :]) for t in operands]
    if x.rank != indices.rank or others[0] != others[1]:
        raise InvalidArgumentError(
            f"take_along_axis takes indices of the shape of x but on axis {axis}, received x "
            f"{shape_text(x.shape)} and indices {shape_text(indices.shape)}"
        )
    return TensorType(x.dtype, indices.shape)


def _reference_take(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x, indices), axis = operands, attributes["axis"]
    check_indices("take_along_axis", indices, x.shape[axis])
    return np.take_along_axis(x, indices.astype(np.int64), axis)


def flat_positions(indices: Value, axis: int, size: Size) -> Value:
    """Return where the elements that `indices` name along `axis` stand in row-major order.

    The tensor that they index has the shape of `indices`, but for `size` elements on `axis`.
    """
    shape = (*indices.shape[:axis], size, *indices.shape[axis + 1 :])
    flat = ops.cast(checked(indices, size), int64) * _stride(indices, shape, axis)
    for other in range(indices.rank):
        if other != axis:
            line = tuple(n if i == other else 1 for i, n in enumerate(indices.shape))
            steps = ops.iota(shape=line, axis=other, dtype=int64)
            flat = flat + steps * _stride(indices, shape, other)
    return flat


def _stride(indices: Value, shape: Sequence[Size], axis: int) -> Value | int:
    """Return how far neighbours on `axis` are apart in a row-major tensor of `shape`."""
    known = numel(shape[axis + 1 :])
    if isinstance(known, int):
        return known
    total: Value | int = 1
    for i, size in enumerate(shape[axis + 1 :], start=axis + 1):
        total = total * (size if isinstance(size, int) else ops.size(indices, i))
    return total


def _build_take(operands: Operands, attributes: Attributes) -> Value:
    (x, indices), axis = operands, attributes["axis"]
    flat = flat_positions(indices, axis, x.shape[axis])
    return ops.gather(ops.reshape(x, (numel(x.shape),)), flat, axis=0)


def _take_samples() -> Iterable[Sample]:
    columns = np.array([[2, 0], [1, 1], [0, 2]])
    yield Sample("last", (smooth((3, 4)), columns), {"axis": -1}, fixed=(1,))
    yield Sample("first", (smooth((4, 2)), columns), {"axis": 0}, fixed=(1,))
    middle = np.array([[[1, 0, 2]], [[3, 3, 0]]])
    yield Sample("middle", (smooth((2, 4, 3)), middle), {"axis": 1}, fixed=(1,))
    yield Sample("vector", (smooth((5,)), np.array([4, 0, 0, 2])), fixed=(1,))
    yield Sample("empty", (smooth((2, 3)), np.zeros((2, 0), np.int64)), fixed=(1,))
    for row in samples.INTEGER_DTYPES:
        yield Sample(f"indices_{row}", (smooth((2, 3)), columns[:2].astype(row.numpy)), fixed=(1,))
    for single in samples.one_of_each_dtype((3, 4), {"axis": 1}):
        operands = (*single.operands, columns)
        yield Sample(single.name, operands, single.attributes, gradient=False)


def _gradient_take(context: GradientContext) -> Sequence[Value | None]:
    (x, indices), (cotangent,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None, None]
    axis = context.attributes["axis"]
    flat = flat_positions(indices, axis, x.shape[axis])
    total = ops.scatter_add(cotangent, flat, shape=(numel(x.shape),))
    return [ops.reshape(total, x.shape), None]


composite(
    "take_along_axis",
    "The elements of x at the indices along an axis, as numpy.take_along_axis does: x and the "
    "indices agree on the other axes. Indices are checked when the graph runs.",
    (Operand("x"), INDICES),
    infer=_infer_take,
    reference=_reference_take,
    build=_build_take,
    samples=_take_samples,
    gradient=_gradient_take,
    attributes=(AttributeSpec("axis", "int", -1, "the axis; negative counts from the end"),),
    traits=CHECKED,
    autocast=Autocast.FOLLOW,
    canonicalize=normal_axis,
)
