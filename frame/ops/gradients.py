"""What gradient rules share: undoing a broadcast, and adapters for unary and binary rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import DType, float32
from frame.core.shapes import Shape, Size, numel
from frame.ir.graph import Value
from frame.ops.record import Gradient, GradientContext

UnaryRule = Callable[[Value, Value, Value], Value]  # (cotangent, x, y) -> cotangent of x
BinaryRule = Callable[[Value, Value, Value, Value], Value]  # (cotangent, a, b, y) -> cotangent


def unbroadcast(value: Value, shape: Shape) -> Value:
    """Sum a cotangent over the axes that broadcasting added or stretched, down to `shape`."""
    if value.shape == shape:
        return value
    extra = value.rank - len(shape)
    stretched = [
        axis
        for axis, size in enumerate(value.shape)
        if axis < extra or (shape[axis - extra] == 1 and size != 1)
    ]
    # Kept axes of size 1 save a reshape where broadcasting added no axis in front.
    return reshaped(ops.sum(value, stretched, keepdims=extra == 0), shape)


def reshaped(value: Value, shape: Shape) -> Value:
    """Return the value under another shape; the value itself when it has that shape."""
    return value if value.shape == shape else ops.reshape(value, shape)


def unary_gradient(rule: UnaryRule) -> Gradient:
    """Return the gradient builder of a unary op from its rule; integers have none."""

    def gradient(context: GradientContext) -> Sequence[Value | None]:
        (x,), (y,), (g,) = context.operands, context.results, context.cotangents
        return (rule(g, x, y) if x.dtype.is_float else None,)

    return gradient


def binary_gradient(left: BinaryRule, right: BinaryRule) -> Gradient:
    """Return the gradient builder of a broadcasting binary op from one rule an operand."""

    def gradient(context: GradientContext) -> Sequence[Value | None]:
        (a, b), (y,), (g,) = context.operands, context.results, context.cotangents
        if not a.dtype.is_float:
            return (None, None)
        rules = zip((left, right), (a, b), context.needed, strict=True)
        return [
            unbroadcast(rule(g, a, b, y), operand.shape) if wanted else None
            for rule, operand, wanted in rules
        ]

    return gradient


def count(x: Value, axes: Sequence[int], dtype: DType) -> Value:
    """Return the number of elements along `axes` as a scalar of `dtype`, symbolic or not."""
    sizes: tuple[Size, ...] = tuple(x.shape[axis] for axis in axes)
    known = numel([size for size in sizes if isinstance(size, int)])
    total = ops.constant(np.asarray(known, dtype.numpy))
    for axis, size in zip(axes, sizes, strict=True):
        if not isinstance(size, int):
            total = total * ops.cast(ops.size(x, axis), dtype)
    return total


def widened(x: Value) -> Value:
    """Return x, narrow floats as float32: counts and sums of many are beyond float16."""
    return ops.cast(x, float32) if x.dtype.is_float and x.dtype.bits < 32 else x


def narrowed(x: Value, dtype: DType) -> Value:
    """Return x in `dtype`, which `widened` left."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def per_element(total: Value, x: Value, axes: Sequence[int], dtype: DType) -> Value:
    """Return `total` / the number of elements of x along `axes`, rounded once to `dtype`."""
    wide = widened(total)
    return narrowed(wide / count(x, axes, wide.dtype), dtype)
