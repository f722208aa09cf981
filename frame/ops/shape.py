"""Ops that rearrange or repeat the elements of one tensor without computing with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import (
    Shape,
    Size,
    as_shape,
    bind_shape,
    broadcast_shapes,
    exact_divide,
    normalize_axes,
    normalize_axis,
    numel,
    shape_text,
)
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.gradients import unbroadcast
from frame.ops.record import (
    AttributeSpec,
    Decomposition,
    GradientContext,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import register

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Attribute]


def _view(
    name: str,
    doc: str,
    attributes: tuple[AttributeSpec, ...],
    shape_rule: Callable[[Shape, Attributes], Shape],
    canonical: Callable[[Shape, Attributes], Attributes],
    reference: Callable[[np.ndarray, Attributes], np.ndarray],
    gradient: Callable[[Value, Value, Attributes], Value],
    forms: tuple[tuple[str, tuple[int, ...], Attributes], ...],
    decomposition: Decomposition | None = None,
) -> None:
    def cases() -> Iterable[Sample]:
        for seed, (label, shape, values) in enumerate(forms):
            yield Sample(label, (samples.smooth(shape, seed=seed),), values)
        _, shape, values = forms[0]
        yield from samples.one_of_each_dtype(shape, values)

    def rule(context: GradientContext) -> list[Value | None]:
        (x,), (g,) = context.operands, context.cotangents
        return [gradient(g, x, context.attributes) if x.dtype.is_float else None]

    register(
        OpDef(
            name=name,
            doc=doc,
            operands=(Operand("x", storage=True),),
            attributes=attributes,
            infer=lambda types, values: TensorType(
                types[0].dtype, shape_rule(types[0].shape, values)
            ),
            reference=lambda operands, values: reference(operands[0], values),
            gradient=rule,
            traits=frozenset({Trait.VIEW}),
            decomposition=decomposition,
            samples=cases,
            canonicalize=lambda types, values: canonical(types[0].shape, values),
        )
    )


def _back(g: Value, x: Value, attributes: Attributes) -> Value:
    return ops.reshape(g, x.shape)


def _as_reshape(
    shape_rule: Callable[[Shape, Attributes], Shape],
) -> Callable[[tuple[Value, ...], Attributes], Value]:
    return lambda operands, values: ops.reshape(operands[0], shape_rule(operands[0].shape, values))


def _reshaped(
    shape_rule: Callable[[Shape, Attributes], Shape],
) -> Callable[[np.ndarray, Attributes], np.ndarray]:
    return lambda x, values: x.reshape(bind_shape(shape_rule(x.shape, values), {}))


# --- reshape --------------------------------------------------------------------------------------


def resolve_shape(shape: Shape, wanted: Any) -> Shape:
    """Replace the -1 in `wanted`, if there is one, by the size that keeps the element count.

    Raises:
        InvalidArgumentError: the counts differ, there are several -1, or the count that is left
            is not divisible.
    """
    sizes = tuple(wanted)
    holes = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(holes) > 1:
        raise InvalidArgumentError(
            f"expected at most one -1 in the shape of reshape, received {shape_text(sizes)}"
        )
    if holes:
        sizes = (*sizes[: holes[0]], _rest(shape, sizes, holes[0]), *sizes[holes[0] + 1 :])
    result = as_shape(sizes)
    if numel(result) != numel(shape):
        raise InvalidArgumentError(
            f"can't reshape {shape_text(shape)}, which has {numel(shape)} elements, to "
            f"{shape_text(result)}, which has {numel(result)}"
        )
    return result


def _rest(shape: Shape, sizes: Shape, hole: int) -> Size:
    others = as_shape((*sizes[:hole], *sizes[hole + 1 :]))
    message = f"can't reshape {shape_text(shape)} to {shape_text(sizes)}: "
    if numel(others) == 0:
        raise InvalidArgumentError(message + "-1 is ambiguous beside a size of 0")
    try:
        return exact_divide(numel(shape), numel(others))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(message + str(error)) from None


def _target(shape: Shape, values: Attributes) -> Shape:
    return values["shape"]


_view(
    "reshape",
    "Return the elements in row-major order under another shape; one size may be -1.",
    (AttributeSpec("shape", "shape", doc="the shape of the result; -1 is worked out"),),
    _target,
    lambda shape, values: {"shape": resolve_shape(shape, values["shape"])},
    lambda x, values: x.reshape(values["shape"]),
    _back,
    (
        ("merge", (3, 4), {"shape": (12,)}),
        ("split", (15,), {"shape": (3, 5)}),
        ("minus_one", (2, 3, 4), {"shape": (4, -1)}),
        ("to_rank0", (1, 1), {"shape": ()}),
        ("from_rank0", (), {"shape": (1,)}),
        ("empty", (0, 3), {"shape": (3, 0, 2)}),
        ("empty_minus_one", (0, 3), {"shape": (-1, 3)}),
    ),
)


# --- transpose, flip ------------------------------------------------------------------------------


def _permutation(shape: Shape, values: Attributes) -> Attributes:
    rank, given = len(shape), values["permutation"]
    if given is None:
        return {"permutation": tuple(reversed(range(rank)))}
    permutation = normalize_axes(given, rank)
    if len(permutation) != rank:
        raise InvalidArgumentError(
            f"transpose of shape {shape_text(shape)} needs a permutation of its {rank} axes, "
            f"received {given}"
        )
    return {"permutation": permutation}


def inverse(permutation: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation that undoes `permutation`."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


_view(
    "transpose",
    "Permute the axes: axis i of the result is axis permutation[i] of x.",
    (AttributeSpec("permutation", "ints", None, "the order of axes; None reverses them"),),
    lambda shape, values: tuple(shape[axis] for axis in values["permutation"]),
    _permutation,
    lambda x, values: np.transpose(x, values["permutation"]),
    lambda g, x, values: ops.transpose(g, inverse(values["permutation"])),
    (
        ("matrix", (3, 5), {}),
        ("rank3", (2, 3, 4), {"permutation": (1, 2, 0)}),
        ("negative", (2, 3, 4), {"permutation": (0, -1, -2)}),
        ("identity", (2, 3), {"permutation": (0, 1)}),
        ("rank0", (), {}),
        ("empty", (0, 3), {}),
        ("rank4", (2, 3, 4, 5), {"permutation": (0, 2, 3, 1)}),
        ("odd", (17, 35), {}),
    ),
)
_view(
    "flip",
    "Reverse the order of the elements along axes.",
    (AttributeSpec("axes", "ints", None, "the axes, negative from the end; None is all"),),
    lambda shape, values: shape,
    lambda shape, values: {"axes": tuple(sorted(normalize_axes(values["axes"], len(shape))))},
    lambda x, values: np.flip(x, values["axes"]),
    lambda g, x, values: ops.flip(g, values["axes"]),
    (
        ("all", (3, 5), {}),
        ("last", (3, 5), {"axes": (-1,)}),
        ("none", (3, 5), {"axes": ()}),
        ("outer", (2, 3, 4), {"axes": (2, 0)}),
        ("rank0", (), {}),
        ("empty", (0, 3), {"axes": (1,)}),
        ("odd", (67,), {}),
    ),
)


# --- squeeze, unsqueeze, flatten ------------------------------------------------------------------


def _squeeze_axes(shape: Shape, values: Attributes) -> Attributes:
    if values["axes"] is None:
        return {"axes": tuple(axis for axis, size in enumerate(shape) if size == 1)}
    axes = tuple(sorted(normalize_axes(values["axes"], len(shape))))
    for axis in axes:
        if shape[axis] != 1:
            raise InvalidArgumentError(
                f"squeeze removes axes of size 1; axis {axis} of {shape_text(shape)} has size "
                f"{shape[axis]}"
            )
    return {"axes": axes}


def _squeezed(shape: Shape, values: Attributes) -> Shape:
    return tuple(size for axis, size in enumerate(shape) if axis not in values["axes"])


def _unsqueeze_axes(shape: Shape, values: Attributes) -> Attributes:
    given = values["axes"]
    return {"axes": tuple(sorted(normalize_axes(given, len(shape) + len(given))))}


def _unsqueezed(shape: Shape, values: Attributes) -> Shape:
    sizes, axes = iter(shape), values["axes"]
    return tuple(1 if axis in axes else next(sizes) for axis in range(len(shape) + len(axes)))


def _flatten_axes(shape: Shape, values: Attributes) -> Attributes:
    rank = max(len(shape), 1)
    first = normalize_axis(values["start_axis"], rank)
    last = normalize_axis(values["end_axis"], rank)
    if first > last:
        raise InvalidArgumentError(
            f"flatten of shape {shape_text(shape)} needs start_axis <= end_axis, received "
            f"{values['start_axis']} and {values['end_axis']}"
        )
    return {"start_axis": first, "end_axis": last}


def _flattened(shape: Shape, values: Attributes) -> Shape:
    first, last = values["start_axis"], values["end_axis"]
    return (*shape[:first], numel(shape[first : last + 1]), *shape[last + 1 :])


_view(
    "squeeze",
    "Remove axes of size 1.",
    (
        AttributeSpec(
            "axes", "ints", None, "the axes, negative from the end; None is all of size 1"
        ),
    ),
    _squeezed,
    _squeeze_axes,
    _reshaped(_squeezed),
    _back,
    (
        ("all", (1, 3, 1), {}),
        ("first", (1, 3, 1), {"axes": (0,)}),
        ("negative", (1, 3, 1), {"axes": (-1,)}),
        ("to_rank0", (1,), {}),
        ("rank0", (), {}),
        ("empty", (0, 1), {"axes": (1,)}),
    ),
    _as_reshape(_squeezed),
)
_view(
    "unsqueeze",
    "Insert axes of size 1 at positions of the result.",
    (AttributeSpec("axes", "ints", doc="positions in the result, negative from its end"),),
    _unsqueezed,
    _unsqueeze_axes,
    _reshaped(_unsqueezed),
    _back,
    (
        ("front", (3, 5), {"axes": (0,)}),
        ("back", (3, 5), {"axes": (-1,)}),
        ("several", (3, 5), {"axes": (0, 2, 4)}),
        ("none", (3,), {"axes": ()}),
        ("rank0", (), {"axes": (0,)}),
        ("empty", (0,), {"axes": (1,)}),
    ),
    _as_reshape(_unsqueezed),
)
_view(
    "flatten",
    "Merge the axes from start_axis to end_axis into one; a scalar becomes shape (1,).",
    (
        AttributeSpec("start_axis", "int", 0, "the first axis to merge"),
        AttributeSpec("end_axis", "int", -1, "the last axis to merge, itself included"),
    ),
    _flattened,
    _flatten_axes,
    _reshaped(_flattened),
    _back,
    (
        ("all", (2, 3, 4), {}),
        ("batch", (2, 3, 4), {"start_axis": 1}),
        ("middle", (2, 3, 4, 5), {"start_axis": 1, "end_axis": -2}),
        ("one", (3, 5), {"start_axis": 1, "end_axis": 1}),
        ("rank0", (), {}),
        ("empty", (2, 0, 3), {"start_axis": 1}),
    ),
    _as_reshape(_flattened),
)


# --- expand, tile ---------------------------------------------------------------------------------


def _expanded(shape: Shape, values: Attributes) -> Attributes:
    wanted, extra = values["shape"], len(values["shape"]) - len(shape)
    filled = tuple(
        shape[axis - extra] if isinstance(size, int) and size == -1 and axis >= extra else size
        for axis, size in enumerate(wanted)
    )
    target = as_shape(filled)
    try:
        fits = broadcast_shapes(shape, target) == target
    except InvalidArgumentError:
        fits = False
    if not fits:
        raise InvalidArgumentError(
            f"can't expand {shape_text(shape)} to {shape_text(target)}: only new axes and axes of "
            "size 1 take another size"
        )
    return {"shape": target}


_view(
    "expand",
    "Broadcast to a shape, as numpy.broadcast_to does; -1 keeps the size of an axis.",
    (AttributeSpec("shape", "shape", doc="the shape of the result"),),
    _target,
    _expanded,
    lambda x, values: np.broadcast_to(x, values["shape"]),
    lambda g, x, values: unbroadcast(g, x.shape),
    (
        ("row", (5,), {"shape": (3, 5)}),
        ("column", (3, 1), {"shape": (3, 5)}),
        ("keep", (3, 1), {"shape": (2, -1, 4)}),
        ("rank0", (), {"shape": (2, 3)}),
        ("same", (2, 3), {"shape": (2, 3)}),
        ("to_empty", (1, 3), {"shape": (0, 3)}),
        ("empty", (0, 1), {"shape": (2, 0, 3)}),
        ("odd", (1, 7), {"shape": (9, 7)}),
    ),
)


def _repeats(shape: Shape, values: Attributes) -> Attributes:
    given = as_shape(values["repeats"])
    return {"repeats": (1,) * (len(shape) - len(given)) + given}


def _tile_parts(shape: Shape, values: Attributes) -> tuple[Shape, Shape, Shape]:
    """Return shapes with an axis of repeats before each axis: of size 1, expanded, and merged."""
    repeats = values["repeats"]
    sizes = (1,) * (len(repeats) - len(shape)) + shape
    single = tuple(part for size in sizes for part in (1, size))
    pairs = tuple(part for pair in zip(repeats, sizes, strict=True) for part in pair)
    return single, pairs, tuple(r * s for r, s in zip(repeats, sizes, strict=True))


def _tile(operands: tuple[Value, ...], values: Attributes) -> Value:
    single, pairs, merged = _tile_parts(operands[0].shape, values)
    return ops.reshape(ops.expand(ops.reshape(operands[0], single), pairs), merged)


def _tile_gradient(g: Value, x: Value, values: Attributes) -> Value:
    _, pairs, _ = _tile_parts(x.shape, values)
    summed = ops.sum(ops.reshape(g, pairs), range(0, len(pairs), 2))
    return ops.reshape(summed, x.shape)


_view(
    "tile",
    "Repeat the tensor along its axes, as numpy.tile does.",
    (AttributeSpec("repeats", "shape", doc="how often, for each axis; more entries add axes"),),
    lambda shape, values: _tile_parts(shape, values)[2],
    _repeats,
    lambda x, values: np.tile(x, values["repeats"]),
    _tile_gradient,
    (
        ("matrix", (2, 3), {"repeats": (2, 3)}),
        ("short", (2, 3), {"repeats": (2,)}),
        ("long", (3,), {"repeats": (2, 1, 2)}),
        ("zero", (2, 3), {"repeats": (0, 1)}),
        ("rank0", (), {"repeats": (3,)}),
        ("empty", (0, 3), {"repeats": (2, 2)}),
    ),
    _tile,
)
