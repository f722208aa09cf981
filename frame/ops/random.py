"""Random numbers: uniform, normal and dropout.

They come from the counter-based generator of `frame.core.philox`. The operand `counter` is uint64
(seed, step); with the attribute `stream`, which the builder sets, it fixes every number, whatever
the tiling, the threads and the backend. Equal streams give equal numbers, so common subexpression
elimination may merge nodes that agree in `stream` and must not merge others. Inside a scan or a
while loop the Python forms mix the iteration into the counter, see `frame.ops.control`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core import philox
from frame.core.dtypes import DType, DTypeLike, float32, uint64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, shape_text
from frame.ir.builder import current_builder
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.control import local_counter
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    InferTypes,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import apply, python_form, register
from frame.ops.samples import smooth

Attributes = Mapping[str, Attribute]
Operands = tuple[Value, ...]
Types = tuple[TensorType, ...]

COUNTER_TYPE = TensorType(uint64, (2,))
"""The type of the operand `counter`: seed and step."""

COUNTER = Operand("counter", ("uint",), group="counter", doc="(seed, step), uint64 [2]")
STREAM = AttributeSpec("stream", "int", doc="tells the random tensors of one graph apart")
SHAPE = AttributeSpec("shape", "shape", doc="the shape of the result")
DTYPE = AttributeSpec("dtype", "dtype", float32, "the float dtype of the result")


def _check_source(op: str, counter: TensorType, attributes: Attributes) -> None:
    if (counter.dtype, counter.shape) != (uint64, (2,)):
        raise InvalidArgumentError(
            f"operand 'counter' of {op} must be uint64 of shape (2,), (seed, step), received "
            f"{counter.dtype} {shape_text(counter.shape)}"
        )
    if not 0 <= attributes["stream"] < 2**32:
        raise InvalidArgumentError(
            f"attribute 'stream' of {op} must be from 0 to 2**32 - 1, received "
            f"{attributes['stream']}"
        )


def _check_result(op: str, element: DType) -> None:
    if element not in philox.SIGNIFICANT_BITS:
        raise InvalidArgumentError(
            f"attribute 'dtype' of {op} must be one of "
            f"{', '.join(map(str, philox.SIGNIFICANT_BITS))}, received {element}"
        )


def _numbers(make: Callable[..., np.ndarray], counter: np.ndarray, attributes: Attributes) -> Any:
    """Return the raw numbers of `make` (philox.uniform or philox.normal) in the shape asked."""
    shape = attributes["shape"]
    seed, step = (int(word) for word in counter)
    count = math.prod(shape)
    made = make(seed, attributes["stream"], count, attributes["dtype"], iteration=step)
    return made.astype(np.float64).reshape(shape)


# --- uniform and normal ---------------------------------------------------------------------------


def _infer(name: str) -> InferTypes:
    def infer(operands: Types, attributes: Attributes) -> TensorType:
        _check_source(name, operands[0], attributes)
        _check_result(name, attributes["dtype"])
        return TensorType(attributes["dtype"], attributes["shape"])

    return infer


def _random_samples() -> Iterable[Sample]:
    counter = np.array([7, 3], np.uint64)
    shapes: Mapping[str, tuple[int, ...]] = {
        "matrix": (5, 7),
        "scalar": (),
        "odd": (13,),
        "empty": (0, 3),
        "two": (2,),
    }
    for number, (name, shape) in enumerate(shapes.items()):
        attributes = {"shape": shape, "stream": number}
        yield Sample(name, (counter,), attributes, fixed=(0,), gradient=False)
    for row in philox.SIGNIFICANT_BITS:
        attributes = {"shape": (3, 3), "stream": 7, "dtype": row}
        yield Sample(f"{row}", (counter,), attributes, fixed=(0,), gradient=False)
    large = np.array([2**64 - 1, 2**32 + 5], np.uint64)
    attributes = {"shape": (6,), "stream": 2**32 - 1}
    yield Sample("limits", (large,), attributes, fixed=(0,), gradient=False)


def _register(
    name: str, doc: str, make: Callable[..., np.ndarray], traits: frozenset[Trait]
) -> None:
    register(
        OpDef(
            name,
            doc,
            (COUNTER,),
            _infer(name),
            lambda operands, attributes: _numbers(make, operands[0], attributes),
            NoGradient("random numbers depend on nothing differentiable", zero=True),
            attributes=(SHAPE, DTYPE, STREAM),
            traits=traits,
            samples=_random_samples,
        )
    )


_register(
    "uniform",
    "Uniform random numbers in [0, 1): multiples of 2**-24 for float32, and of 2**-53, 2**-11 and "
    "2**-8 for float64, float16 and bfloat16.",
    philox.uniform,
    frozenset({Trait.RANDOM}),
)
_register(
    "normal",
    "Standard normal random numbers, by the Box-Muller transform of consecutive pairs. "
    "Source: Box, Muller, Annals of Mathematical Statistics 29 (1958).",
    philox.normal,
    frozenset({Trait.RANDOM, Trait.EXPENSIVE}),
)


@python_form
def uniform(
    counter: Value,
    shape: Size | Sequence[Size],
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: DTypeLike = float32,
    stream: int | None = None,
) -> Value:
    """Return random numbers that are uniform between `low` and `high`.

    Args:
        counter: uint64 [2], (seed, step): a graph input.
        shape: the shape of the result.
        low: the lower bound, included.
        high: the upper bound, excluded but for rounding.
        dtype: the float dtype of the result.
        stream: tells the random tensors of one graph apart; None takes a fresh one.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InvalidArgumentError(
            f"uniform takes finite bounds with low <= high, received {low} and {high}"
        )
    raw = _random("uniform", counter, stream, shape, dtype)
    return _scaled(raw, high - low, low)


@python_form
def normal(
    counter: Value,
    shape: Size | Sequence[Size],
    mean: float = 0.0,
    scale: float = 1.0,
    *,
    dtype: DTypeLike = float32,
    stream: int | None = None,
) -> Value:
    """Return normal random numbers.

    Args:
        counter: uint64 [2], (seed, step): a graph input.
        shape: the shape of the result.
        mean: the mean.
        scale: the standard deviation.
        dtype: the float dtype of the result.
        stream: tells the random tensors of one graph apart; None takes a fresh one.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """
    if not (math.isfinite(mean) and math.isfinite(scale) and scale >= 0):
        raise InvalidArgumentError(
            f"normal takes a finite mean and a finite scale >= 0, received {mean} and {scale}"
        )
    return _scaled(_random("normal", counter, stream, shape, dtype), scale, mean)


def _random(
    name: str,
    counter: Value,
    stream: int | None,
    shape: Size | Sequence[Size],
    dtype: DTypeLike,
) -> Value:
    if stream is None:
        stream = current_builder().next_stream()
    return apply(name, local_counter(counter), shape=shape, dtype=dtype, stream=stream)


def _scaled(value: Value, factor: float, shift: float) -> Value:
    value = value if factor == 1.0 else ops.mul(value, factor)
    return value if shift == 0.0 else ops.add(value, shift)


# --- dropout --------------------------------------------------------------------------------------


def _infer_dropout(operands: Types, attributes: Attributes) -> TensorType:
    _check_source("dropout", operands[1], attributes)
    rate = attributes["rate"]
    if not 0 <= rate < 1:
        raise InvalidArgumentError(
            f"attribute 'rate' of dropout must be from 0 up to but not 1, received {rate}"
        )
    return operands[0]


def _reference_dropout(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, counter = operands
    draw = {"shape": x.shape, "dtype": float32, "stream": attributes["stream"]}
    kept = _numbers(philox.uniform, counter, draw) >= np.float32(attributes["rate"])
    return np.where(kept, x * (1.0 / (1.0 - attributes["rate"])), 0.0)


def _build_dropout(operands: Operands, attributes: Attributes) -> Value:
    x, counter = operands
    rate = attributes["rate"]
    if rate == 0:
        return x
    # float32 whatever the dtype of x, so that the same elements are dropped in mixed precision.
    draw = apply("uniform", counter, shape=x.shape, dtype=float32, stream=attributes["stream"])
    kept = ops.greater_equal(draw, rate)
    return ops.where(kept, ops.mul(x, 1.0 / (1.0 - rate)), 0.0)


def _gradient_dropout(context: GradientContext) -> Sequence[Value | None]:
    (_, counter), (cotangent,) = context.operands, context.cotangents
    return [apply("dropout", cotangent, counter, **context.attributes), None]


def _dropout_samples() -> Iterable[Sample]:
    counter = np.array([11, 2], np.uint64)
    for rate in (0.0, 0.3, 0.9):
        attributes = {"rate": rate, "stream": 4}
        yield Sample(f"rate_{rate}", (smooth((6, 7)), counter), attributes, fixed=(1,))
    half = {"rate": 0.5, "stream": 1}
    yield Sample("scalar", (np.asarray(1.5), counter), half, fixed=(1,))
    yield Sample("empty", (np.zeros((0, 3)), counter), half, fixed=(1,))
    special = np.tile([np.nan, np.inf, -np.inf, 1.0], 4)
    yield Sample("not_finite", (special, counter), half, fixed=(1,), gradient=False)


register(
    OpDef(
        "dropout",
        "Sets each element to zero with probability `rate` and divides the others by 1 - rate. "
        "Source: Srivastava et al., JMLR 15 (2014).",
        (Operand("x", ("float",), doc="values"), COUNTER),
        _infer_dropout,
        _reference_dropout,
        _gradient_dropout,
        attributes=(AttributeSpec("rate", "float", doc="the probability of a zero"), STREAM),
        traits=frozenset({Trait.RANDOM}),
        autocast=Autocast.FOLLOW,
        decomposition=_build_dropout,
        samples=_dropout_samples,
    )
)


@python_form
def dropout(x: Value, counter: Value, rate: float, *, stream: int | None = None) -> Value:
    """Set each element of x to zero with probability `rate`, divide the others by 1 - rate.

    Args:
        x: values of any shape.
        counter: uint64 [2], (seed, step): a graph input.
        rate: the probability of a zero, in [0, 1).
        stream: tells the random tensors of one graph apart; None takes a fresh one.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """
    if stream is None:
        stream = current_builder().next_stream()
    return apply("dropout", x, local_counter(counter), rate=rate, stream=stream)
