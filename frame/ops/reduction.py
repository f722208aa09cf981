"""Reductions over any axes. Integers keep their dtype and wrap around; NaN propagates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DType, bool_, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Shape, Size, normalize_axes, numel, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.gradients import narrowed, per_element, reshaped, widened
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    Decomposition,
    Gradient,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    Trait,
    normal_axis,
    unconstrained,
)
from frame.ops.registry import apply, register

_NUMBERS = ("float", "int", "uint")
_AXES = (
    AttributeSpec("axes", "ints", None, "the axes to reduce, negative from the end; None is all"),
    AttributeSpec("keepdims", "bool", False, "whether reduced axes stay, with size 1"),
)
_DISCRETE = NoGradient("its operand and result are truth values", zero=True)


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape that is left after reducing `axes` (non-negative)."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def restore(value: Value, shape: Shape, attributes: Mapping[str, Attribute]) -> Value:
    """Reshape a result of a reduction of `shape` so that it broadcasts against the operand."""
    return reshaped(value, reduced_shape(shape, _axes_of(attributes), True))


def _axes_of(attributes: Mapping[str, Attribute]) -> tuple[int, ...]:
    return attributes["axes"] if "axes" in attributes else (attributes["axis"],)


def _canonical_axes(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    return {"axes": tuple(sorted(normalize_axes(attributes["axes"], operands[0].rank)))}


def _infer(
    name: str, result: DType | None, needs_elements: bool
) -> Callable[[tuple[TensorType, ...], Mapping[str, Attribute]], TensorType]:
    def infer(operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]) -> TensorType:
        (x,), axes = operands, _axes_of(attributes)
        shape = reduced_shape(x.shape, axes, attributes["keepdims"])
        if needs_elements and numel([x.shape[axis] for axis in axes]) == 0 != numel(shape):
            raise InvalidArgumentError(
                f"{name} over the axes {shape_text(axes)} of a tensor of shape "
                f"{shape_text(x.shape)} has no element to choose from"
            )
        return TensorType(result or x.dtype, shape)

    return infer


def _some_elements(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> Iterable[tuple[Size, str]]:
    """Ask for one element or more to choose from, wherever the result has elements."""
    (x,), axes = operands, _axes_of(attributes)
    if 0 not in x.shape:
        for axis in axes:
            yield x.shape[axis] - 1, f"an element or more on axis {axis} of {shape_text(x.shape)}"


def _reference(function: Callable[..., Any]) -> Callable[..., Any]:
    def reference(operands: list[np.ndarray], attributes: Mapping[str, Attribute]) -> Any:
        (x,), keepdims = operands, attributes["keepdims"]
        shape = reduced_shape(x.shape, attributes["axes"], keepdims)
        if 0 in shape:
            return np.zeros(shape, x.dtype)
        return function(x, axis=attributes["axes"], keepdims=keepdims)

    return reference


# --- samples --------------------------------------------------------------------------------------

_FORMS: tuple[tuple[str, tuple[int, ...], Mapping[str, Attribute]], ...] = (
    ("all", (3, 5), {}),
    ("rank0", (), {}),
    ("no_axes", (3, 5), {"axes": ()}),
    ("last", (3, 5), {"axes": (-1,)}),
    ("first", (3, 5), {"axes": (0,)}),
    ("keepdims", (3, 5), {"axes": (1,), "keepdims": True}),
    ("middle", (2, 3, 4), {"axes": (1,)}),
    ("outer", (2, 3, 4), {"axes": (2, 0)}),
    ("odd", (2, 67), {"axes": (1,)}),
    ("long", (131,), {}),
    ("empty_result", (0, 3), {"axes": (1,)}),
)


def _cases(
    name: str, low: float, high: float, kinds: tuple[str, ...], empty: bool, smooth: bool
) -> Callable[[], Iterable[Sample]]:
    def cases() -> Iterable[Sample]:
        if "float" in kinds:
            for seed, (form, shape, attributes) in enumerate(_FORMS):
                x = samples.smooth(shape, low, high, seed)
                yield Sample(form, (x,), attributes, gradient=smooth)
            edges = samples.FLOAT_EDGES.reshape(3, 5)
            yield Sample("edges", (edges,), {"axes": (0,)}, gradient=False)
            yield Sample("finite_edges", (edges[1:] * 1.0,), {"axes": (1,)}, gradient=False)
        if "int" in kinds:
            for dtype in samples.INTEGER_DTYPES:
                x = samples.integer_edges(dtype)
                yield Sample(f"edges_{dtype}", (x,), gradient=False)
                grid = samples.integers((3, 5), 0, 100, dtype)
                yield Sample(f"grid_{dtype}", (grid,), {"axes": (1,)}, gradient=False)
        if "bool" in kinds:
            flags = np.array([[True, False, True], [True, True, True], [False, False, False]])
            yield Sample("bool", (flags,), {"axes": (1,)}, gradient=False)
            yield Sample("bool_keepdims", (flags,), {"keepdims": True}, gradient=False)
            yield Sample("bool_negative", (flags,), {"axes": (-1,)}, gradient=False)
            yield Sample("bool_rank0", (np.array(True),), gradient=False)
            yield Sample("bool_empty", (np.zeros((2, 0), bool),), {"axes": (1,)}, gradient=False)
            zeros = np.array([[0.5, 0.0, 2.0], [0.0, 1.5, 0.0], [1.0, 2.0, 3.0]])
            if name == "prod":
                yield Sample("zeros", (zeros,), {"axes": (1,)}, gradient=smooth)
                yield Sample("all_zeros", (zeros,), {"axes": (0, 1)}, gradient=smooth)
        if empty:
            x = np.zeros((3, 0))
            yield Sample("empty", (x,), {"axes": (1,)}, gradient=False)

    return cases


def _reduction(
    name: str,
    doc: str,
    function: Callable[..., Any],
    gradient: Gradient | NoGradient,
    kinds: tuple[str, ...] = _NUMBERS,
    low: float = -2.0,
    needs_elements: bool = False,
    autocast: Autocast = Autocast.FOLLOW,
    decomposition: Decomposition | None = None,
) -> None:
    smooth, empty = not isinstance(gradient, NoGradient), not needs_elements and "float" in kinds
    register(
        OpDef(
            name=name,
            doc=doc,
            operands=(Operand("x", kinds),),
            attributes=_AXES,
            infer=_infer(name, bool_ if kinds == ("bool",) else None, needs_elements),
            reference=_reference(function),
            gradient=gradient,
            traits=frozenset({Trait.REDUCTION}),
            autocast=autocast,
            decomposition=decomposition,
            samples=_cases(name, low, 2.0, kinds, empty, smooth),
            canonicalize=_canonical_axes,
            constraints=_some_elements if needs_elements else unconstrained,
        )
    )


# --- sum, mean ------------------------------------------------------------------------------------


def _sum(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean_of(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    number = np.prod([x.shape[i] for i in axis], dtype=np.float64)
    return np.divide(np.sum(x, axis=axis, keepdims=keepdims), number)


def _sum_gradient(context: GradientContext) -> list[Value | None]:
    (x,), (g,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None]
    return [ops.expand(restore(g, x.shape, context.attributes), x.shape)]


def _mean_gradient(context: GradientContext) -> list[Value | None]:
    (x,), (g,) = context.operands, context.cotangents
    scaled = per_element(g, x, context.attributes["axes"], x.dtype)
    return [ops.expand(restore(scaled, x.shape, context.attributes), x.shape)]


def _mean(operands: tuple[Value, ...], attributes: Mapping[str, Attribute]) -> Value:
    (x,) = operands
    return per_element(ops.sum(widened(x), **attributes), x, attributes["axes"], x.dtype)


_reduction(
    "sum",
    "Return the sum over axes; 0 of no elements. Integers keep their dtype and wrap around.",
    _sum,
    _sum_gradient,
    autocast=Autocast.FLOAT32,
)
_reduction(
    "mean",
    "Return the mean over axes; NaN of no elements. Integers must be cast first.",
    _mean_of,
    _mean_gradient,
    kinds=("float",),
    autocast=Autocast.FLOAT32,
    decomposition=_mean,
)

# --- max, min -------------------------------------------------------------------------------------


def _extreme_gradient(context: GradientContext) -> list[Value | None]:
    """Share the cotangent evenly among the elements that equal the result."""
    (x,), (y,), (g,) = context.operands, context.results, context.cotangents
    if not x.dtype.is_float:
        return [None]
    chosen = ops.equal(x, restore(y, x.shape, context.attributes))
    weight = ops.where(chosen, ops.ones((), x.dtype), 0)
    ties = ops.sum(widened(weight), context.attributes["axes"], keepdims=True)
    share = widened(restore(g, x.shape, context.attributes)) / ties
    return [narrowed(share, x.dtype) * weight]


for _name, _word, _function in (("max", "largest", np.max), ("min", "smallest", np.min)):
    _reduction(
        _name,
        f"Return the {_word} element over axes; NaN if there is one. No elements are an error.\n\n"
        "Of zeros of different sign either may be the result. The gradient shares ties evenly.",
        _function,
        _extreme_gradient,
        needs_elements=True,
    )

# --- prod -----------------------------------------------------------------------------------------


def _prod(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod_gradient(context: GradientContext) -> list[Value | None]:
    """Multiply the cotangent by the product of all other elements, which no zero can spoil.

    A division of the product by the element would fail at zeros, and so would its own gradient.
    """
    (x,), (g,) = context.operands, context.cotangents
    if not x.dtype.is_float:
        return [None]
    axes = context.attributes["axes"]
    kept = [axis for axis in range(x.rank) if axis not in axes]
    order = (*kept, *axes)
    length = numel([x.shape[axis] for axis in axes])
    moved = ops.transpose(x, order)
    rows = reshaped(moved, (*(x.shape[axis] for axis in kept), length))
    others = reshaped(_products_of_others(rows, length), moved.shape)
    back = ops.transpose(others, tuple(int(i) for i in np.argsort(order)))
    return [restore(g, x.shape, context.attributes) * back]


def _products_of_others(rows: Value, length: Size) -> Value:
    """For each element of the last axis, return the product of the others on that axis."""
    if isinstance(length, int):
        before = _shifted(_running_product(rows, length), 1, length)
        backwards = _shifted(_running_product(ops.flip(rows, -1), length), 1, length)
        return before * ops.flip(backwards, -1)
    own = ops.equal(ops.iota((length, length), 0), ops.iota((length, length), 1))
    square = ops.where(own, 1, ops.unsqueeze(rows, -2))
    return ops.prod(square, -1)


def _running_product(rows: Value, length: int) -> Value:
    step = 1
    while step < length:
        rows, step = rows * _shifted(rows, step, length), 2 * step
    return rows


def _shifted(rows: Value, step: int, length: int) -> Value:
    """Move the last axis towards its end by `step`; ones come in at the front."""
    step = min(step, length)
    kept = rows[..., : length - step]
    front = (*(0,) * (rows.rank - 1), step)
    return ops.pad(kept, front, (0,) * rows.rank, 1.0)


_reduction(
    "prod",
    "Return the product over axes; 1 of no elements. Integers keep their dtype and wrap around.\n\n"
    "The gradient is exact where elements are zero.",
    _prod,
    _prod_gradient,
    low=0.3,
    autocast=Autocast.FLOAT32,
)

# --- any, all -------------------------------------------------------------------------------------

_reduction(
    "any",
    "Return whether any element over axes is true; false of no elements.",
    np.any,
    _DISCRETE,
    kinds=("bool",),
)
_reduction(
    "all",
    "Return whether all elements over axes are true; true of no elements.",
    np.all,
    _DISCRETE,
    kinds=("bool",),
)

# --- argmax, argmin -------------------------------------------------------------------------------


def _position_cases() -> Iterable[Sample]:
    for seed, (name, shape, attributes) in enumerate(_FORMS):
        axes = attributes.get("axes", ())
        if len(axes) == 1:
            keepdims = attributes.get("keepdims", False)
            form = {"axis": axes[0], "keepdims": keepdims}
            yield Sample(name, (samples.smooth(shape, seed=seed),), form, gradient=False)
    tied = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -0.0, -1.0]])
    yield Sample("ties", (tied,), {"axis": 1}, gradient=False)
    edges = samples.FLOAT_EDGES.reshape(5, 3)
    yield Sample("edges", (edges,), {"axis": 1}, gradient=False)
    yield Sample(
        "two_nans", (np.array([1.0, np.nan, np.inf, np.nan]),), {"axis": 0}, gradient=False
    )
    for dtype in samples.INTEGER_DTYPES:
        operand = samples.integer_edges(dtype)[::-1].copy()
        yield Sample(f"edges_{dtype}", (operand,), {"axis": 0}, gradient=False)


# A position that no axis has: that of an element that is not the extreme.
_NOWHERE = np.iinfo(np.int64).max


def _as_reductions(reduce: str) -> Decomposition:
    """Return argmax or argmin as two reductions, which fuse with what is around them.

    The extreme first, then the lowest position that holds it. NaN is an extreme of both kinds:
    where there is one, every NaN and nothing else is a candidate.
    """

    def decomposition(operands: tuple[Value, ...], attributes: Mapping[str, Attribute]) -> Value:
        (x,), axis = operands, attributes["axis"]
        hit = ops.equal(x, apply(reduce, x, axes=(axis,), keepdims=True))
        if x.dtype.is_float:
            hit = ops.logical_or(hit, ops.isnan(x))
        positions = ops.iota(x.shape, axis, int64)
        candidates = ops.where(hit, positions, _NOWHERE)
        return ops.min(candidates, axis, attributes["keepdims"])

    return decomposition


def _position(name: str, word: str, reduce: str, function: Callable[..., Any]) -> None:
    def reference(operands: list[np.ndarray], attributes: Mapping[str, Attribute]) -> Any:
        (x,), keepdims = operands, attributes["keepdims"]
        shape = reduced_shape(x.shape, (attributes["axis"],), keepdims)
        if 0 in shape:
            return np.zeros(shape, np.int64)
        return function(x, axis=attributes["axis"], keepdims=keepdims)

    register(
        OpDef(
            name=name,
            doc=f"Return the position of the {word} element along an axis, as int64: the lowest "
            "of equal ones; the first NaN if there is one. No elements are an error.",
            operands=(Operand("x", _NUMBERS),),
            attributes=(
                AttributeSpec("axis", "int", doc="the axis; negative counts from the end"),
                AttributeSpec("keepdims", "bool", False, "whether the axis stays, with size 1"),
            ),
            infer=_infer(name, int64, True),
            reference=reference,
            gradient=NoGradient("its result is a position", zero=True),
            decomposition=_as_reductions(reduce),
            samples=_position_cases,
            canonicalize=normal_axis,
            constraints=_some_elements,
        )
    )


_position("argmax", "largest", "max", np.argmax)
_position("argmin", "smallest", "min", np.argmin)
