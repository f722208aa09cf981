"""Ops without tensor operands, the size of an axis, and helpers that fill tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DTYPES, DTypeLike, float32, int32, int64
from frame.core.dtypes import dtype as as_dtype
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, as_shape, normalize_axis
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.record import (
    AttributeSpec,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    normal_axis,
)
from frame.ops.registry import apply, python_form, register
from frame.ops.weak import constant_array


def _no_operands(context: GradientContext) -> Sequence[Value | None]:
    return ()


# --- constant -------------------------------------------------------------------------------------


def _constant_type(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> TensorType:
    array = attributes["value"].array
    return TensorType(as_dtype(array.dtype), array.shape)


def _constant_samples() -> Iterable[Sample]:
    from frame.ir.graph import Constant

    for row in DTYPES.values():
        if not row.storage_only:
            value = Constant(np.arange(6).reshape(2, 3).astype(row.numpy))
            yield Sample(f"{row}", (), {"value": value})
    yield Sample("rank0", (), {"value": Constant(np.array(2.5, np.float32))})
    yield Sample("empty", (), {"value": Constant(np.zeros((0, 3)))})
    yield Sample("edges", (), {"value": Constant(samples.FLOAT_EDGES)})


register(
    OpDef(
        name="constant",
        doc="Return a constant tensor with the elements, dtype and shape of an array.",
        operands=(),
        attributes=(AttributeSpec("value", "constant", doc="the elements, a numpy array"),),
        infer=_constant_type,
        reference=lambda operands, attributes: attributes["value"].array,
        gradient=_no_operands,
        samples=_constant_samples,
    )
)


@python_form
def constant(value: Any, dtype: DTypeLike | None = None) -> Value:
    """Return a constant tensor of a number, a nested list of numbers or an array.

    Args:
        value: the elements. Python floats are float32 and Python ints int64 unless `dtype` says
            otherwise; an array keeps its dtype.
        dtype: the dtype to convert to, which must be able to hold the values.

    Raises:
        InvalidArgumentError: the value is not numeric, or the dtype can't hold it.
    """
    return apply("constant", value=constant_array(value, dtype))


# --- iota -----------------------------------------------------------------------------------------


def _iota(operands: list[np.ndarray], attributes: Mapping[str, Attribute]) -> np.ndarray:
    shape, axis = attributes["shape"], attributes["axis"]
    column = [1] * len(shape)
    column[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(column), shape)


def _iota_canonical(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    shape = as_shape(attributes["shape"])
    return {"shape": shape, "axis": normalize_axis(attributes["axis"], len(shape))}


def _iota_samples() -> Iterable[Sample]:
    for row in DTYPES.values():
        if not row.storage_only and not row.is_bool:
            yield Sample(f"{row}", (), {"shape": (3, 5), "axis": 1, "dtype": row})
    yield Sample("axis0", (), {"shape": (7, 2), "axis": 0, "dtype": int64})
    yield Sample("negative_axis", (), {"shape": (2, 3, 4), "axis": -2, "dtype": float32})
    yield Sample("wraps", (), {"shape": (300,), "axis": 0, "dtype": DTYPES["uint8"]})
    yield Sample("empty", (), {"shape": (3, 0), "axis": 1, "dtype": int32})


register(
    OpDef(
        name="iota",
        doc="Return a tensor whose elements are their own index along an axis: 0, 1, 2, ...\n\n"
        "A narrow integer dtype wraps around; a narrow float dtype rounds.",
        operands=(),
        attributes=(
            AttributeSpec("shape", "shape", doc="the shape, which may hold symbols"),
            AttributeSpec("axis", "int", 0, "the axis that counts; negative from the end"),
            AttributeSpec("dtype", "dtype", int64, "the dtype of the result, not bool"),
        ),
        infer=lambda operands, attributes: _iota_type(attributes),
        reference=_iota,
        gradient=_no_operands,
        samples=_iota_samples,
        canonicalize=_iota_canonical,
    )
)


def _iota_type(attributes: Mapping[str, Attribute]) -> TensorType:
    row = attributes["dtype"]
    if row.is_bool or row.storage_only:
        raise InvalidArgumentError(f"iota counts in an integer or float dtype, received {row}")
    return TensorType(row, attributes["shape"])


# --- size -----------------------------------------------------------------------------------------


def _size_samples() -> Iterable[Sample]:
    yield Sample("matrix", (samples.smooth((3, 5)),), {"axis": 1}, gradient=False)
    yield Sample("negative_axis", (samples.smooth((3, 5)),), {"axis": -2}, gradient=False)
    yield Sample("empty", (samples.smooth((0, 3)),), {"axis": 0}, gradient=False)
    yield from samples.one_of_each_dtype((2, 3), {"axis": 0})


register(
    OpDef(
        name="size",
        doc="Return the size of one axis as an int64 scalar of the graph, known or symbolic.",
        operands=(Operand("x", storage=True),),
        attributes=(AttributeSpec("axis", "int", doc="the axis; negative counts from the end"),),
        infer=lambda operands, attributes: TensorType(int64, ()),
        reference=lambda operands, attributes: np.int64(operands[0].shape[attributes["axis"]]),
        gradient=NoGradient("a size does not depend on the elements", zero=True),
        samples=_size_samples,
        canonicalize=normal_axis,
    )
)


# --- helpers that fill ----------------------------------------------------------------------------


@python_form
def full(shape: Size | Sequence[Size], value: float, dtype: DTypeLike = float32) -> Value:
    """Return a tensor of a shape, which may hold symbols, with all elements equal to `value`.

    Raises:
        InvalidArgumentError: the dtype can't hold the value, or the shape is not acceptable.
    """
    scalar = constant(value, dtype)
    return scalar if shape == () else ops.expand(scalar, shape)


@python_form
def zeros(shape: Size | Sequence[Size], dtype: DTypeLike = float32) -> Value:
    """Return a tensor of zeros of a shape that may hold symbols."""
    return full(shape, 0, dtype)


@python_form
def ones(shape: Size | Sequence[Size], dtype: DTypeLike = float32) -> Value:
    """Return a tensor of ones of a shape that may hold symbols."""
    return full(shape, 1, dtype)


@python_form
def zeros_like(x: Value) -> Value:
    """Return zeros of the dtype and shape of `x`."""
    return full(x.shape, 0, x.dtype)


@python_form
def ones_like(x: Value) -> Value:
    """Return ones of the dtype and shape of `x`."""
    return full(x.shape, 1, x.dtype)
