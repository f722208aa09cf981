"""Reading and adding up elements at positions that are known only at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import as_shape, normalize_axis, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.record import (
    AttributeSpec,
    GradientContext,
    OpDef,
    Operand,
    Sample,
    Trait,
    normal_axis,
)
from frame.ops.registry import register

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Attribute]
_INDICES = Operand("indices", ("int", "uint"), "I", doc="positions along the axis, any rank,")


def check_indices(op: str, indices: np.ndarray, size: int) -> None:
    """Check that indices lie in [0, size).

    Raises:
        InvalidArgumentError: one does not; the message names the op, the flat position of the first
            such index and its value.
    """
    wrong = np.flatnonzero((indices < 0) | (indices >= size))
    if wrong.size:
        position = int(wrong[0])
        raise InvalidArgumentError(
            f"{op}: index {indices.flat[position]} at position {position} is out of range; "
            f"expected 0 <= index < {size}"
        )


# --- gather ---------------------------------------------------------------------------------------


def _gather_type(operands: Types, values: Attributes) -> TensorType:
    x, indices = operands
    axis = values["axis"]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape)


def _gather(operands: list[np.ndarray], values: Attributes) -> np.ndarray:
    x, indices = operands
    check_indices("gather", indices, x.shape[values["axis"]])
    return np.take(x, indices.astype(np.int64), values["axis"])


def _gather_gradient(context: GradientContext) -> list[Value | None]:
    (x, indices), (g,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None, None]
    axis = context.attributes["axis"]
    return [ops.scatter_add(g, indices, shape=x.shape, axis=axis), None]


def _gather_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    forms: tuple[tuple[str, tuple[int, ...], Any, int], ...] = (
        ("rows", (5, 3), [4, 0, 4], 0),
        ("columns", (3, 5), [[1, 0], [4, 4]], -1),
        ("middle", (2, 4, 3), [3, 1, 0], 1),
        ("scalar_index", (5, 3), 2, 0),
        ("vector", (7,), [6, 5, 0, 0], 0),
        ("empty_indices", (5, 3), np.zeros((0,), np.int64), 0),
        ("empty_rows", (3, 0), [2, 1], 0),
        ("odd", (9, 67), [8, 3, 3, 0, 5], 0),
    )
    for seed, (name, shape, indices, axis) in enumerate(forms):
        yield Sample(name, (smooth(shape, seed=seed), np.asarray(indices)), {"axis": axis})
    for dtype in samples.INTEGER_DTYPES:
        indices = np.array([2, 0, 2], dtype.numpy)
        yield Sample(f"indices_{dtype}", (smooth((3, 2)), indices))
    for single in samples.one_of_each_dtype((4, 3), {"axis": 0}):
        operands = (*single.operands, np.array([3, 1, 1], np.int32))
        yield Sample(single.name, operands, single.attributes, gradient=False)


register(
    OpDef(
        name="gather",
        doc="Return the slices of x at the indices along an axis, as numpy.take does.\n\n"
        "The shape of the indices replaces the axis. A negative index is an error, and so is one "
        "beyond the end: both are found when the graph runs.",
        operands=(Operand("x", storage=True), _INDICES),
        attributes=(AttributeSpec("axis", "int", 0, "the axis; negative counts from the end"),),
        infer=_gather_type,
        reference=_gather,
        gradient=_gather_gradient,
        traits=frozenset({Trait.CHECKED}),
        samples=_gather_samples,
        indices=lambda node: {node.operands[1]: node.operands[0].shape[node.attributes["axis"]]},
        canonicalize=normal_axis,
    )
)


# --- scatter_add ----------------------------------------------------------------------------------


def _scatter_canonical(operands: Types, values: Attributes) -> Attributes:
    updates, indices = operands
    shape = as_shape(values["shape"])
    axis = normalize_axis(values["axis"], len(shape))
    expected = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    if updates.shape != expected:
        raise InvalidArgumentError(
            f"scatter_add of indices {shape_text(indices.shape)} into {shape_text(shape)} on axis "
            f"{axis} needs updates of shape {shape_text(expected)}, received "
            f"{shape_text(updates.shape)}"
        )
    return {"shape": shape, "axis": axis}


def _scatter_add(operands: list[np.ndarray], values: Attributes) -> np.ndarray:
    updates, indices = operands
    shape, axis = values["shape"], values["axis"]
    check_indices("scatter_add", indices, shape[axis])
    result = np.zeros(shape, updates.dtype)
    where = (slice(None),) * axis + (indices.astype(np.int64),)
    np.add.at(result, where, updates)
    return result


def _scatter_gradient(context: GradientContext) -> list[Value | None]:
    (updates, indices), (g,) = context.operands, context.cotangents
    if not updates.dtype.is_float:
        return [None, None]
    return [ops.gather(g, indices, axis=context.attributes["axis"]), None]


def _scatter_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    forms: tuple[tuple[str, tuple[int, ...], Any, Attributes], ...] = (
        ("rows", (3, 2), [4, 0, 4], {"shape": (5, 2)}),
        ("columns", (3, 2, 2), [[1, 0], [4, 4]], {"shape": (3, 5), "axis": -1}),
        ("middle", (2, 3, 4), [2, 2, 0], {"shape": (2, 4, 4), "axis": 1}),
        ("scalar_index", (3,), 1, {"shape": (2, 3)}),
        ("vector", (5,), [0, 0, 0, 6, 1], {"shape": (7,)}),
        ("empty", (0, 3), np.zeros((0,), np.int64), {"shape": (4, 3)}),
        ("odd", (5, 67), [8, 3, 3, 0, 5], {"shape": (9, 67)}),
    )
    for seed, (name, shape, indices, values) in enumerate(forms):
        yield Sample(name, (smooth(shape, seed=seed), np.asarray(indices)), values)
    edges = (samples.FLOAT_EDGES.reshape(5, 3), np.array([0, 3, 3, 1, 0]))
    yield Sample("not_finite", edges, {"shape": (4, 3)}, gradient=False)
    for dtype in samples.INTEGER_DTYPES:
        operands = (samples.integers((4, 3), 0, 100, dtype), np.array([1, 0, 1, 1], np.int32))
        yield Sample(f"{dtype}", operands, {"shape": (2, 3)}, gradient=False)
        places = np.array([2, 0, 2], dtype.numpy)
        yield Sample(f"indices_{dtype}", (smooth((3, 2)), places), {"shape": (3, 2)})


register(
    OpDef(
        name="scatter_add",
        doc="Add slices into zeros at the indices along an axis: the reverse of gather.\n\n"
        "Slices that meet at one index are summed, in the order of the indices. An index out of "
        "range is an error, found when the graph runs.",
        operands=(Operand("updates", ("float", "int", "uint")), _INDICES),
        attributes=(
            AttributeSpec("shape", "shape", doc="the shape of the result"),
            AttributeSpec("axis", "int", 0, "the axis; negative counts from the end"),
        ),
        infer=lambda operands, values: TensorType(operands[0].dtype, values["shape"]),
        reference=_scatter_add,
        gradient=_scatter_gradient,
        traits=frozenset({Trait.CHECKED}),
        samples=_scatter_samples,
        indices=lambda node: {node.operands[1]: node.attributes["shape"][node.attributes["axis"]]},
        canonicalize=_scatter_canonical,
    )
)
