"""Linear recurrences along one axis: linear_scan, and selective_scan on top of it.

Each runs as one loop over the axis whose steps are elementwise over everything else. The gradient
of linear_scan is a linear_scan in the other direction, so both are closed under differentiation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import TensorType, Value
from frame.ops.composite import Attributes, Types, composite, in_float32
from frame.ops.ordering import moved
from frame.ops.record import AttributeSpec, GradientContext, Operand, Sample, axis_or_scalar
from frame.ops.samples import not_finite, smooth

Operands = tuple[Value, ...]
AXIS = AttributeSpec("axis", "int", -1, "the axis of time; negative counts from the end")


def _one_shape(op: str, names: Sequence[str], operands: Types) -> TensorType:
    shapes = {t.shape for t in operands}
    if len(shapes) > 1 or operands[0].rank == 0:
        given = ", ".join(
            f"{n} {shape_text(t.shape)}" for n, t in zip(names, operands, strict=True)
        )
        raise InvalidArgumentError(
            f"{op} takes operands of one shape with an axis or more, received {given}"
        )
    return operands[0]


# --- linear_scan ----------------------------------------------------------------------------------


def _recurrence(a: np.ndarray, u: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    decay, drive = np.moveaxis(a, axis, 0), np.moveaxis(u, axis, 0)
    h = np.zeros(drive.shape)
    state = np.zeros(drive.shape[1:])
    order = range(len(drive))
    with np.errstate(all="ignore"):
        for t in reversed(order) if reverse else order:
            state = decay[t] * state + drive[t]
            h[t] = state
    return np.moveaxis(h, 0, axis)


def _build_linear_scan(operands: Operands, attributes: Attributes) -> Value:
    axis = attributes["axis"]
    a, u = (moved(operand, axis, 0) for operand in operands)

    def step(state: Value, x: tuple[Value, Value]) -> tuple[Value, Value]:
        following = x[0] * state + x[1]
        return following, following

    zero = ops.zeros(u.shape[1:], u.dtype)
    _, states = ops.scan(step, zero, (a, u), reverse=attributes["reverse"])
    return moved(states, 0, axis)


def _delayed(x: Value, axis: int, later: bool) -> Value:
    """Return x one step later (or earlier) along the axis, zero where nothing comes from."""
    size = x.shape[axis]
    if size == 0:
        return x
    one = tuple(int(i == axis) for i in range(x.rank))
    none = (0,) * x.rank
    if later:
        stops = (*x.shape[:axis], size - 1, *x.shape[axis + 1 :])
        return ops.pad(ops.slice(x, none, stops), one, none)
    return ops.pad(ops.slice(x, one, x.shape), none, one)


def _gradient_linear_scan(context: GradientContext) -> Sequence[Value | None]:
    (a, _), (h,), (cotangent,) = context.operands, context.results, context.cotangents
    axis, reverse = context.attributes["axis"], context.attributes["reverse"]
    # What reaches a state comes from its result, and from the next state times that step's decay.
    following = _delayed(a, axis, later=reverse)
    flow = ops.linear_scan(following, cotangent, axis=axis, reverse=not reverse)
    to_decay = flow * _delayed(h, axis, later=not reverse) if context.needed[0] else None
    return [to_decay, flow if context.needed[1] else None]


def _linear_samples() -> Iterable[Sample]:
    def sample(name: str, shape: tuple[int, ...], **attributes: object) -> Sample:
        return Sample(name, (smooth(shape, -0.9, 0.9), smooth(shape, seed=1)), attributes)

    yield sample("last", (3, 6), axis=-1)
    yield sample("first", (5, 2), axis=0, reverse=True)
    yield sample("middle", (2, 4, 3), axis=1)
    yield sample("vector", (9,), reverse=True)
    yield not_finite((3, 4), (3, 4))
    yield sample("one_step", (3, 1))
    yield sample("empty", (3, 0))
    yield sample("empty_batch", (0, 3))


composite(
    "linear_scan",
    "The linear recurrence h[t] = a[t] * h[t - 1] + u[t] along an axis, from h = 0; `reverse` runs "
    "it from the end: h[t] = a[t] * h[t + 1] + u[t]. Source: Blelloch, CMU-CS-90-190 (1990).",
    (
        Operand("a", ("float",), doc="decay of the state in each step"),
        Operand("u", ("float",), doc="what each step adds, of the same shape"),
    ),
    infer=lambda operands, values: _one_shape("linear_scan", ("a", "u"), operands),
    reference=lambda operands, values: _recurrence(
        operands[0], operands[1], values["axis"], values["reverse"]
    ),
    build=in_float32(_build_linear_scan),
    samples=_linear_samples,
    gradient=_gradient_linear_scan,
    attributes=(AXIS, AttributeSpec("reverse", "bool", False, "whether the last step is first")),
    results=("h",),
    canonicalize=axis_or_scalar,
)


# --- selective_scan -------------------------------------------------------------------------------

NAMES = ("x", "a", "b", "c", "d")


def _reference_selective(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, a, b, c, d = operands
    return c * _recurrence(a, b * x, attributes["axis"], False) + d * x


def _build_selective(operands: Operands, attributes: Attributes) -> Value:
    x, a, b, c, d = operands
    return c * ops.linear_scan(a, b * x, axis=attributes["axis"]) + d * x


def _selective_samples() -> Iterable[Sample]:
    def sample(name: str, shape: tuple[int, ...], **attributes: object) -> Sample:
        arrays = [smooth(shape, -0.9, 0.9, seed=seed) for seed in range(len(NAMES))]
        return Sample(name, tuple(arrays), attributes)

    yield sample("sequence", (2, 3, 5), axis=-1)
    yield sample("vector", (3,))
    yield sample("first", (4, 2), axis=0)
    yield not_finite(*((3, 4),) * len(NAMES))
    yield sample("one_step", (2, 1))
    yield sample("empty", (2, 0))
    known = ([1, 2, -1], [0.5, 0.25, -0.5], [2, 1, 3], [1, 2, 0.5], [0.1, -1, 2])
    yield Sample("known", tuple(np.array(row, np.float64) for row in known))


composite(
    "selective_scan",
    "The scan of a selective state space model with one state: h[t] = a[t] * h[t - 1] + "
    "b[t] * x[t] from h = 0, y[t] = c[t] * h[t] + d[t] * x[t]. Source: Gu, Dao, arXiv 2312.00752.",
    tuple(Operand(name, ("float",), doc="values of one shape") for name in NAMES),
    infer=lambda operands, values: _one_shape("selective_scan", NAMES, operands),
    reference=_reference_selective,
    build=in_float32(_build_selective),
    samples=_selective_samples,
    attributes=(AXIS,),
    canonicalize=axis_or_scalar,
)
