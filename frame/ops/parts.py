"""Ops that cut tensors into parts and put parts together: slice, pad, concat, split, stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, Shape, Size, as_shape, exact_divide, normalize_axis, shape_text
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
from frame.ops.registry import apply, python_form, register

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Attribute]
_VIEW = frozenset({Trait.VIEW})


# --- slice ----------------------------------------------------------------------------------------


def steps_between(start: Size, stop: Size, step: int) -> Size:
    """Return how many of start, start + step, ... lie before `stop`: the rounded-up quotient.

    Raises:
        InvalidArgumentError: the sizes are symbolic and the quotient is not a size for all values.
    """
    extent = stop - start
    if isinstance(extent, int):
        return -(-extent // step)
    constant = dict(extent.terms).get((), 0)
    return exact_divide(extent - constant, step) + -(-constant // step)


def _slice_canonical(operands: Types, values: Attributes) -> Attributes:
    shape = operands[0].shape
    starts, stops = as_shape(values["starts"]), as_shape(values["stops"])
    given = values["steps"]
    steps = (1,) * len(shape) if given is None else tuple(given)
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise InvalidArgumentError(
            f"slice of shape {shape_text(shape)} needs one start, stop and step an axis, received "
            f"{shape_text(starts)}, {shape_text(stops)} and {shape_text(steps)}"
        )
    for axis, step in enumerate(steps):
        if isinstance(step, Dim) or step < 1:
            raise InvalidArgumentError(
                f"the step of axis {axis} of slice must be an integer of 1 or more, received "
                f"{step}; frame.ops.flip reverses an axis"
            )
        _check_bounds(shape, axis, starts[axis], stops[axis])
    bounds = zip(starts, stops, steps, strict=True)
    return {"starts": starts, "stops": tuple(_last(*b) for b in bounds), "steps": steps}


def _check_bounds(shape: Shape, axis: int, start: Size, stop: Size) -> None:
    for gap in (stop - start, shape[axis] - stop):
        if isinstance(gap, int) and gap < 0:
            raise InvalidArgumentError(
                f"slice of shape {shape_text(shape)}: expected 0 <= start <= stop <= "
                f"{shape[axis]} on axis {axis}, received {start} and {stop}"
            )


def _slice_constraints(operands: Types, values: Attributes) -> Iterable[tuple[Size, str]]:
    bounds = zip(values["starts"], values["stops"], operands[0].shape, strict=True)
    for axis, (start, stop, size) in enumerate(bounds):
        yield start, f"a start of 0 or more on axis {axis}, where it is {start}"
        yield stop - start, f"start <= stop on axis {axis}, where they are {start} and {stop}"
        yield size - stop, f"stop <= size on axis {axis}, where they are {stop} and {size}"


def _last(start: Size, stop: Size, step: int) -> Size:
    """Return the canonical stop: right behind the last element taken."""
    if step == 1 or isinstance(start, Dim) or isinstance(stop, Dim) or start == stop:
        return stop
    return start + (steps_between(start, stop, step) - 1) * step + 1


def _slice_type(operands: Types, values: Attributes) -> TensorType:
    bounds = zip(values["starts"], values["stops"], values["steps"], strict=True)
    return TensorType(operands[0].dtype, tuple(steps_between(*bound) for bound in bounds))


def _slice(operands: list[np.ndarray], values: Attributes) -> np.ndarray:
    x = operands[0]
    bounds = zip(values["starts"], values["stops"], values["steps"], strict=True)
    return x[tuple(slice(*bound) for bound in bounds)]


def _slice_gradient(context: GradientContext) -> list[Value | None]:
    """Spread the cotangent out by the steps, then pad it with zeros to the shape of the operand."""
    (x,), (g,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None]
    values = context.attributes
    if any(size == 0 for size in g.shape):
        return [ops.zeros_like(x)]
    for axis, step in enumerate(values["steps"]):
        g = _spread(g, axis, step)
    low = values["starts"]
    high = tuple(
        size - start - extent for size, start, extent in zip(x.shape, low, g.shape, strict=True)
    )
    return [ops.pad(g, low, high)]


def _spread(g: Value, axis: int, step: int) -> Value:
    """Put step - 1 zeros between the elements of one axis."""
    if step == 1:
        return g
    size = g.shape[axis]
    apart = ops.unsqueeze(g, axis + 1)
    high = tuple(step - 1 if i == axis + 1 else 0 for i in range(apart.rank))
    wide = (*g.shape[:axis], size * step, *g.shape[axis + 1 :])
    filled = ops.reshape(ops.pad(apart, (0,) * apart.rank, high), wide)
    stops = (*g.shape[:axis], (size - 1) * step + 1, *g.shape[axis + 1 :])
    return ops.slice(filled, (0,) * g.rank, stops)


def _slice_samples() -> Iterable[Sample]:
    forms: tuple[tuple[str, tuple[int, ...], Shape, Shape, Shape], ...] = (
        ("plain", (5, 7), (1, 2), (4, 6), (1, 1)),
        ("steps", (5, 7), (0, 1), (5, 7), (2, 3)),
        ("step_tail", (67,), (3,), (66,), (4,)),
        ("step_over", (7,), (6,), (7,), (9,)),
        ("all", (3, 5), (0, 0), (3, 5), (1, 1)),
        ("none", (3, 5), (1, 5), (1, 5), (1, 2)),
        ("rank0", (), (), (), ()),
        ("rank3", (2, 3, 4), (1, 0, 1), (2, 3, 4), (1, 2, 2)),
        ("empty", (0, 3), (0, 1), (0, 3), (1, 1)),
    )
    for seed, (name, shape, starts, stops, steps) in enumerate(forms):
        values = {"starts": starts, "stops": stops, "steps": steps}
        yield Sample(name, (samples.smooth(shape, seed=seed),), values)
    values = {"starts": (0, 1), "stops": (3, 5)}
    yield from samples.one_of_each_dtype((3, 5), values)


register(
    OpDef(
        name="slice",
        doc="Return the elements start, start + step, ... before stop, on each axis.\n\n"
        "0 <= start <= stop <= size holds on each axis. Indexing (`x[1:, ::2]`) is the friendlier "
        "form, which also counts from the end and walks backwards.",
        operands=(Operand("x", storage=True),),
        attributes=(
            AttributeSpec("starts", "shape", doc="the first index, for each axis"),
            AttributeSpec("stops", "shape", doc="the index to stop before, for each axis"),
            AttributeSpec("steps", "shape", None, "the step, for each axis; None is 1"),
        ),
        infer=_slice_type,
        reference=_slice,
        gradient=_slice_gradient,
        traits=_VIEW,
        samples=_slice_samples,
        canonicalize=_slice_canonical,
        constraints=_slice_constraints,
    )
)


# --- pad ------------------------------------------------------------------------------------------


def _pad_canonical(operands: Types, values: Attributes) -> Attributes:
    (x,) = operands
    low, high = values["low"], values["high"]
    if not len(low) == len(high) == x.rank:
        raise InvalidArgumentError(
            f"pad of shape {shape_text(x.shape)} needs one entry an axis in low and high, "
            f"received {shape_text(low)} and {shape_text(high)}"
        )
    if any(isinstance(size, int) and size < 0 for size in (*low, *high)):
        raise InvalidArgumentError(
            f"pad adds elements: expected sizes of 0 or more, received low {shape_text(low)} and "
            f"high {shape_text(high)}; frame.ops.slice takes elements away"
        )
    _check_fill(x, values["value"])
    return {"low": as_shape(low), "high": as_shape(high)}


def _check_fill(x: TensorType, value: float) -> None:
    if x.dtype.is_float:
        return
    limits = (0, 1) if x.dtype.is_bool else _limits(x)
    if value != value or not limits[0] <= value <= limits[1] or value != int(value):
        raise InvalidArgumentError(f"pad of {x} can't fill with {value}: {x.dtype} can't hold it")


def _limits(x: TensorType) -> tuple[int, int]:
    bits = x.dtype.bits - x.dtype.is_signed
    return (-(2**bits) if x.dtype.is_signed else 0, 2**bits - 1)


def _pad_type(operands: Types, values: Attributes) -> TensorType:
    (x,) = operands
    sizes = zip(values["low"], x.shape, values["high"], strict=True)
    return TensorType(x.dtype, tuple(low + size + high for low, size, high in sizes))


def _pad(operands: list[np.ndarray], values: Attributes) -> np.ndarray:
    (x,) = operands
    fill = np.asarray(values["value"]).astype(x.dtype)
    widths = tuple(zip(values["low"], values["high"], strict=True))
    return np.pad(x, widths, constant_values=fill) if x.ndim else x


def _pad_gradient(context: GradientContext) -> list[Value | None]:
    (x,), (g,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None]
    low = context.attributes["low"]
    stops = tuple(start + size for start, size in zip(low, x.shape, strict=True))
    return [ops.slice(g, low, stops)]


def _pad_samples() -> Iterable[Sample]:
    forms: tuple[tuple[str, tuple[int, ...], Attributes], ...] = (
        ("both", (3, 5), {"low": (1, 2), "high": (0, 1)}),
        ("value", (3, 5), {"low": (0, 1), "high": (2, 0), "value": -1.5}),
        ("infinite", (4,), {"low": (1,), "high": (1,), "value": -np.inf}),
        ("none", (3, 5), {"low": (0, 0), "high": (0, 0)}),
        ("rank0", (), {"low": (), "high": ()}),
        ("empty", (0, 3), {"low": (2, 0), "high": (0, 1), "value": 1.0}),
        ("odd", (2, 67), {"low": (0, 3), "high": (0, 5)}),
    )
    for seed, (name, shape, values) in enumerate(forms):
        yield Sample(name, (samples.smooth(shape, seed=seed),), values, gradient=name != "infinite")
    yield from samples.one_of_each_dtype((2, 3), {"low": (1, 0), "high": (0, 2), "value": 1.0})


register(
    OpDef(
        name="pad",
        doc="Surround the tensor with elements of one value.",
        operands=(Operand("x"),),
        attributes=(
            AttributeSpec("low", "shape", doc="how many elements to put before, for each axis"),
            AttributeSpec("high", "shape", doc="how many elements to put behind, for each axis"),
            AttributeSpec("value", "float", 0.0, "what to fill with; the dtype must hold it"),
        ),
        infer=_pad_type,
        reference=_pad,
        gradient=_pad_gradient,
        traits=_VIEW,
        samples=_pad_samples,
        canonicalize=_pad_canonical,
        constraints=lambda operands, values: (
            (size, f"sizes of 0 or more to add, where one is {size}")
            for size in (*values["low"], *values["high"])
        ),
    )
)


# --- concat, stack --------------------------------------------------------------------------------


def _concat_canonical(operands: Types, values: Attributes) -> Attributes:
    _need_operands("concat", operands)
    return normal_axis(operands, values)


def _need_operands(name: str, operands: Types) -> None:
    if not operands:
        raise InvalidArgumentError(f"{name} needs at least one tensor, received none")


def _concat_type(operands: Types, values: Attributes) -> TensorType:
    axis, first = values["axis"], operands[0]
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    total: Size = 0
    for operand in operands:
        other = (*operand.shape[:axis], *operand.shape[axis + 1 :])
        if other != rest or operand.rank != first.rank or not first.rank:
            shapes = ", ".join(shape_text(other.shape) for other in operands)
            raise InvalidArgumentError(
                f"concat on axis {axis} needs shapes that differ on that axis only, received "
                f"{shapes}"
            )
        total = total + operand.shape[axis]
    return TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat_gradient(context: GradientContext) -> list[Value | None]:
    (g,), axis = context.cotangents, context.attributes["axis"]
    sizes = [operand.shape[axis] for operand in context.operands]
    if not g.dtype.is_float:
        return [None] * len(sizes)
    parts = cut(g, sizes, axis, context.needed)
    return list(parts)


def cut(
    x: Value, sizes: Sequence[Size], axis: int, wanted: Sequence[bool]
) -> Iterable[Value | None]:
    """Yield consecutive parts of the given sizes along an axis; None for those not wanted."""
    start: Size = 0
    for size, want in zip(sizes, wanted, strict=True):
        starts = tuple(start if i == axis else 0 for i in range(x.rank))
        stops = tuple(start + size if i == axis else extent for i, extent in enumerate(x.shape))
        yield ops.slice(x, starts, stops) if want else None
        start = start + size


def _concat_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    yield Sample("rows", (smooth((2, 3)), smooth((4, 3), seed=1)), {"axis": 0})
    yield Sample("columns", (smooth((3, 2)), smooth((3, 5), seed=1)), {"axis": -1})
    parts = tuple(smooth((2, size, 2), seed=size) for size in (1, 3, 2))
    yield Sample("three", parts, {"axis": 1})
    yield Sample("one", (smooth((2, 3)),), {"axis": 0})
    yield Sample("empty_part", (smooth((0, 3)), smooth((2, 3))), {"axis": 0})
    yield Sample("empty", (smooth((0, 3)), smooth((0, 2))), {"axis": 1})
    for single in samples.one_of_each_dtype((2, 3), {"axis": 0}):
        yield Sample(single.name, single.operands * 2, single.attributes, gradient=False)


register(
    OpDef(
        name="concat",
        doc="Join tensors along an axis; their other sizes are equal.",
        operands=(Operand("tensors", variadic=True, storage=True),),
        attributes=(AttributeSpec("axis", "int", 0, "the axis; negative counts from the end"),),
        infer=_concat_type,
        reference=lambda operands, values: np.concatenate(operands, values["axis"]),
        gradient=_concat_gradient,
        traits=_VIEW,
        samples=_concat_samples,
        canonicalize=_concat_canonical,
    )
)


def _stack_canonical(operands: Types, values: Attributes) -> Attributes:
    _need_operands("stack", operands)
    return {"axis": normalize_axis(values["axis"], operands[0].rank + 1)}


def _stack_type(operands: Types, values: Attributes) -> TensorType:
    first, axis = operands[0], values["axis"]
    if any(operand.shape != first.shape for operand in operands):
        shapes = ", ".join(shape_text(operand.shape) for operand in operands)
        raise InvalidArgumentError(f"stack needs tensors of one shape, received {shapes}")
    return TensorType(first.dtype, (*first.shape[:axis], len(operands), *first.shape[axis:]))


def _stack(operands: tuple[Value, ...], values: Attributes) -> Value:
    axis = values["axis"]
    return ops.concat([ops.unsqueeze(operand, axis) for operand in operands], axis=axis)


def _stack_gradient(context: GradientContext) -> list[Value | None]:
    (g,), axis, number = context.cotangents, context.attributes["axis"], len(context.operands)
    if not g.dtype.is_float:
        return [None] * number
    parts = cut(g, [1] * number, axis, context.needed)
    return [part if part is None else ops.squeeze(part, axis) for part in parts]


def _stack_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    pair = (smooth((2, 3)), smooth((2, 3), seed=1))
    yield Sample("front", pair, {"axis": 0})
    yield Sample("back", pair, {"axis": -1})
    yield Sample("middle", (*pair, smooth((2, 3), seed=2)), {"axis": 1})
    yield Sample("rank0", (smooth(()), smooth((), seed=1)), {"axis": 0})
    yield Sample("one", pair[:1], {"axis": 0})
    yield Sample("empty", (smooth((0, 3)), smooth((0, 3))), {"axis": 1})
    for single in samples.one_of_each_dtype((2, 3), {"axis": 1}):
        yield Sample(single.name, single.operands * 2, single.attributes, gradient=False)


register(
    OpDef(
        name="stack",
        doc="Join tensors of one shape along a new axis.",
        operands=(Operand("tensors", variadic=True, storage=True),),
        attributes=(AttributeSpec("axis", "int", 0, "the new axis, as an axis of the result"),),
        infer=_stack_type,
        reference=lambda operands, values: np.stack(operands, values["axis"]),
        gradient=_stack_gradient,
        traits=_VIEW,
        decomposition=_stack,
        samples=_stack_samples,
        canonicalize=_stack_canonical,
    )
)


# --- split ----------------------------------------------------------------------------------------


def _split_canonical(operands: Types, values: Attributes) -> Attributes:
    (x,) = operands
    axis, sizes = normalize_axis(values["axis"], x.rank), as_shape(values["sizes"])
    total: Size = 0
    for size in sizes:
        total = total + size
    if total != x.shape[axis] or not sizes:
        raise InvalidArgumentError(
            f"split of shape {shape_text(x.shape)} on axis {axis}: the sizes {shape_text(sizes)} "
            f"must add up to {x.shape[axis]}"
        )
    return {"axis": axis, "sizes": sizes}


def _split_types(operands: Types, values: Attributes) -> Types:
    (x,), axis = operands, values["axis"]
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    return tuple(TensorType(x.dtype, (*before, size, *behind)) for size in values["sizes"])


def _split(operands: list[np.ndarray], values: Attributes) -> list[np.ndarray]:
    return np.split(operands[0], np.cumsum(values["sizes"])[:-1], values["axis"])


def _split_gradient(context: GradientContext) -> list[Value | None]:
    differentiable = context.operands[0].dtype.is_float
    axis = context.attributes["axis"]
    return [ops.concat(context.cotangents, axis=axis) if differentiable else None]


def _split_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    yield Sample("even", (smooth((6, 2)),), {"sizes": (2, 2, 2), "axis": 0})
    yield Sample("uneven", (smooth((3, 7)),), {"sizes": (1, 4, 2), "axis": -1})
    yield Sample("one", (smooth((3, 2)),), {"sizes": (3,), "axis": 0})
    yield Sample("empty_part", (smooth((3, 2)),), {"sizes": (0, 3), "axis": 0})
    yield Sample("empty", (smooth((0, 4)),), {"sizes": (1, 3), "axis": 1})
    yield from samples.one_of_each_dtype((4, 2), {"sizes": (1, 3), "axis": 0})


register(
    OpDef(
        name="split",
        doc="Cut a tensor along an axis into parts of given sizes.",
        operands=(Operand("x", storage=True),),
        attributes=(
            AttributeSpec("sizes", "shape", doc="the sizes of the parts, which fill the axis"),
            AttributeSpec("axis", "int", 0, "the axis; negative counts from the end"),
        ),
        infer=_split_types,
        reference=_split,
        gradient=_split_gradient,
        results=("part...",),
        traits=_VIEW,
        decomposition=lambda operands, values: tuple(
            part
            for part in cut(
                operands[0], values["sizes"], values["axis"], [True] * len(values["sizes"])
            )
            if part is not None
        ),
        samples=_split_samples,
        canonicalize=_split_canonical,
    )
)


@python_form
def split(x: Value, sizes: int | Sequence[Size], axis: int = 0) -> tuple[Value, ...]:
    """Cut a tensor along an axis into parts.

    Args:
        x: the tensor to cut.
        sizes: the sizes of the parts, which fill the axis, or the number of equal parts.
        axis: the axis; negative counts from the end.

    Raises:
        InvalidArgumentError: the parts do not fill the axis.
    """
    if isinstance(sizes, int):
        if sizes < 1:
            raise InvalidArgumentError(f"split needs one part or more, received {sizes}")
        whole = x.shape[normalize_axis(axis, x.rank)]
        sizes = (exact_divide(whole, sizes),) * sizes
    parts = apply("split", x, sizes=sizes, axis=axis)
    return parts if isinstance(parts, tuple) else (parts,)
