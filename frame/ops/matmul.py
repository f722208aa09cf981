"""Matrix multiplication with numpy's broadcasting of batches and its rules for rank 1.

`transpose_a` and `transpose_b` swap the last two axes of an operand of rank 2 or more as it is
read, so that the gradients of a product are products and need no copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Shape, Size, broadcast_shapes, numel, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.gradients import reshaped, unbroadcast
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import register


def _rows(shape: Shape, transpose: bool) -> Shape:
    """Return the shape that an operand has once its transposition is carried out."""
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def _fail(a: TensorType, b: TensorType, attributes: Mapping[str, Attribute], why: str) -> NoReturn:
    flags = "".join(f", {name}=True" for name in ("transpose_a", "transpose_b") if attributes[name])
    raise InvalidArgumentError(
        f"matmul of shapes {shape_text(a.shape)} and {shape_text(b.shape)}{flags}: {why}"
    )


def _infer(operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]) -> TensorType:
    a, b = operands
    for operand, name in ((a, "transpose_a"), (b, "transpose_b")):
        least = 2 if attributes[name] else 1
        if operand.rank < least:
            _fail(a, b, attributes, f"expected operands of rank {least} or more")
    left, right = (
        _rows(a.shape, attributes["transpose_a"]),
        _rows(b.shape, attributes["transpose_b"]),
    )
    inner_left, inner_right = left[-1], right[-2] if len(right) > 1 else right[0]
    if inner_left != inner_right:
        _fail(a, b, attributes, f"the inner sizes {inner_left} and {inner_right} differ")
    try:
        batch = broadcast_shapes(left[:-2], right[:-2])
    except InvalidArgumentError:
        _fail(a, b, attributes, "the batch axes, all but the last two, do not broadcast")
    columns = right[-1:] if len(right) > 1 else ()
    return TensorType(a.dtype, (*batch, *left[-2:-1], *columns))


def _reference(operands: list[np.ndarray], attributes: Mapping[str, Attribute]) -> np.ndarray:
    a, b = operands
    left = np.swapaxes(a, -1, -2) if attributes["transpose_a"] else a
    right = np.swapaxes(b, -1, -2) if attributes["transpose_b"] else b
    return np.matmul(left, right)


# --- gradient -------------------------------------------------------------------------------------


def _gradient(context: GradientContext) -> list[Value | None]:
    (a, b), (g,) = context.operands, context.cotangents
    if not a.dtype.is_float:
        return [None, None]
    left = reshaped(a, (1, *a.shape)) if a.rank == 1 else a
    right = reshaped(b, (*b.shape, 1)) if b.rank == 1 else b
    flags = (context.attributes["transpose_a"], context.attributes["transpose_b"])
    g = reshaped(g, _full_shape(g.shape, a.rank, b.rank))
    first = _left_gradient(g, left, right, *flags) if context.needed[0] else None
    second = _right_gradient(g, left, right, *flags) if context.needed[1] else None
    return [
        first if first is None else reshaped(unbroadcast(first, left.shape), a.shape),
        second if second is None else reshaped(unbroadcast(second, right.shape), b.shape),
    ]


def _full_shape(shape: Shape, left_rank: int, right_rank: int) -> Shape:
    """Put back the axes of size 1 that a rank 1 operand leaves out of the result."""
    if right_rank == 1:
        shape = (*shape, 1)
    return (*shape[:-1], 1, shape[-1]) if left_rank == 1 else shape


def _left_gradient(g: Value, a: Value, b: Value, flip_a: bool, flip_b: bool) -> Value:
    if flip_a:
        return ops.matmul(b, g, transpose_a=flip_b, transpose_b=True)
    return ops.matmul(g, b, transpose_b=not flip_b)


def _right_gradient(g: Value, a: Value, b: Value, flip_a: bool, flip_b: bool) -> Value:
    if b.rank == 2 and a.rank > 2 and not flip_a:
        # One long product in place of a batch of products that would be summed afterwards.
        a, g = _flat(a), _flat(g)
    if flip_b:
        return ops.matmul(g, a, transpose_a=True, transpose_b=flip_a)
    return ops.matmul(a, g, transpose_a=not flip_a)


def _flat(value: Value) -> Value:
    rows: Size = numel(value.shape[:-1])
    return ops.reshape(value, (rows, value.shape[-1]))


# --- record ---------------------------------------------------------------------------------------

_SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("square", (4, 4), (4, 4)),
    ("odd", (3, 7), (7, 5)),
    ("vector_vector", (7,), (7,)),
    ("matrix_vector", (3, 7), (7,)),
    ("vector_matrix", (7,), (7, 5)),
    ("batch", (2, 3, 4), (2, 4, 5)),
    ("batch_matrix", (2, 3, 4), (4, 5)),
    ("matrix_batch", (3, 4), (2, 4, 5)),
    ("batch_broadcast", (2, 1, 3, 4), (3, 4, 2)),
    ("batch_stretch", (1, 3, 4), (3, 4, 2)),
    ("batch_vector", (2, 3, 4), (4,)),
    ("vector_batch", (4,), (2, 4, 3)),
    ("one", (1, 1), (1, 1)),
    ("inner_one", (3, 1), (1, 5)),
    ("row_in_batches_of_one", (1, 1, 1, 19), (19, 5)),
    ("dot_in_batches_of_one", (1, 1, 19), (1, 19, 1)),
    ("column_in_batches_of_one", (1, 1, 3, 19), (1, 1, 19, 1)),
    ("tails_in_batches_of_one", (1, 1, 17, 33), (1, 1, 33, 19)),
    ("empty_rows", (0, 4), (4, 3)),
    ("empty_inner", (2, 0), (0, 3)),
    ("empty_batch", (0, 2, 3), (3, 2)),
    ("tails", (17, 33), (33, 19)),
)


def _samples() -> Iterable[Sample]:
    for name, left, right in _SHAPES:
        operands = (samples.smooth(left, seed=1), samples.smooth(right, seed=2))
        yield Sample(name, operands)
        if len(left) > 1 and len(right) > 1:
            a, b = (np.swapaxes(operand, -1, -2).copy() for operand in operands)
            yield Sample(f"{name}_ta", (a, operands[1]), {"transpose_a": True})
            yield Sample(f"{name}_tb", (operands[0], b), {"transpose_b": True})
            yield Sample(f"{name}_tt", (a, b), {"transpose_a": True, "transpose_b": True})
    edges = (samples.FLOAT_EDGES.reshape(3, 5), np.eye(5))
    yield Sample("edges", edges, gradient=False)
    for dtype in samples.INTEGER_DTYPES:
        a, b = samples.integers((3, 5), 0, 100, dtype), samples.integers((5, 2), 0, 100, dtype, 1)
        yield Sample(f"{dtype}", (a, b), gradient=False)


register(
    OpDef(
        name="matmul",
        doc="Return the matrix product a @ b with the rules of numpy.matmul.\n\n"
        "Axes before the last two are batches and broadcast. A left operand of rank 1 is a row, a "
        "right one a column, and the added axis leaves the result. An empty inner axis gives "
        "zeros. Integers wrap around.",
        operands=(
            Operand("a", ("float", "int", "uint"), doc="rows, [..., m, k] or [k]"),
            Operand("b", ("float", "int", "uint"), doc="columns, [..., k, n] or [k]"),
        ),
        attributes=(
            AttributeSpec("transpose_a", "bool", False, "whether a is given as [..., k, m]"),
            AttributeSpec("transpose_b", "bool", False, "whether b is given as [..., n, k]"),
        ),
        infer=_infer,
        reference=_reference,
        gradient=_gradient,
        traits=frozenset({Trait.CONTRACTION}),
        autocast=Autocast.LOW,
        samples=_samples,
    )
)
