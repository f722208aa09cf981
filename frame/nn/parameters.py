"""Parameters and their initialisers as declarations: no number is made until `materialize`.

Initial values depend on the seed and on the parameter's path alone: not on the order of
parameters, the platform or the number of threads.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

import numpy as np

from frame.core import philox
from frame.core.arguments import flag, is_finite_number, is_number, real, refuse, shown, text, whole
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, DTypeLike, dtype, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, as_shape, shape_text
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Constant, Role, TensorType, Value

NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
"""What a part of a path consists of; parts are joined with dots."""

_STREAM_OF_INITIALISERS = 0xFFFFFFFF
# The word of the counter that a graph fills with its step: steps never reach this number, so that
# no dropout mask repeats the bits of an initial value.


class Initialiser(Protocol):
    """Declares initial values."""

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values of a parameter of this shape and dtype."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the random numbers of one parameter come from."""

    seed: int
    stream: int

    def uniform(self, count: int, element: DType) -> np.ndarray:
        """Return `count` numbers in [0, 1) as float64."""
        return self._numbers(philox.uniform, count, element)

    def between(self, low: float, high: float, count: int, element: DType) -> np.ndarray:
        """Return `count` numbers from `low` to `high`, rounded once to the element type."""
        random = (self.seed, self.stream, count, low, high, element)
        return philox.between(*random, iteration=_STREAM_OF_INITIALISERS)

    def normal(self, count: int, element: DType) -> np.ndarray:
        """Return `count` standard normal numbers as float64."""
        return self._numbers(philox.normal, count, element)

    def _numbers(self, make: Any, count: int, element: DType) -> np.ndarray:
        # Narrow floats are rounded from float32: eight random bits make a poor weight.
        wide = float64 if element == float64 else float32
        made = make(self.seed, self.stream, count, wide, iteration=_STREAM_OF_INITIALISERS)
        return np.asarray(made, np.float64)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return how many inputs and outputs one element connects, by frame's storage orders.

    A matrix is [in, out]; a convolution weight is [out, in, height, width].

    Raises:
        InvalidArgumentError: the shape has fewer than two axes.
    """
    if len(shape) < 2:
        raise InvalidArgumentError(
            f"fan-based initialisers need a weight of two axes or more, received the shape "
            f"{shape_text(shape)}; nn.uniform, nn.normal, nn.zeros and nn.ones take any shape"
        )
    if len(shape) == 2:
        return shape[0], shape[1]
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise InvalidArgumentError(
                f"nn.uniform takes finite bounds with low <= high, received {self.low} and "
                f"{self.high}"
            )

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        return source.between(self.low, self.high, math.prod(shape), element).reshape(shape)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with a mean and a standard deviation."""

    mean: float = 0.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 <= self.deviation < math.inf):
            raise InvalidArgumentError(
                f"nn.normal takes a finite mean and a deviation >= 0, received {self.mean} and "
                f"{self.deviation}"
            )

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        draws = source.normal(math.prod(shape), element)
        return (self.mean + draws * self.deviation).reshape(shape)


@dataclass(frozen=True, slots=True)
class Full:
    """The same number everywhere."""

    value: float

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        return np.full(shape, self.value, element.numpy)


@dataclass(frozen=True, slots=True)
class Inline:
    """Given values."""

    value: Constant

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        return self.value.array


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("uniform", "normal")


@dataclass(frozen=True, slots=True)
class Scaled:
    """Zero mean, and the deviation gain / sqrt(fan): the Kaiming and Xavier families."""

    gain: float
    mode: str
    distribution: str
    fan: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES or self.distribution not in _DISTRIBUTIONS:
            raise InvalidArgumentError(
                f"expected a mode of {', '.join(_MODES)} and a distribution of "
                f"{', '.join(_DISTRIBUTIONS)}, received {self.mode!r} and {self.distribution!r}"
            )
        if not is_finite_number(self.gain) or self.gain < 0:
            raise InvalidArgumentError(
                f"expected a finite gain >= 0, received {shown(self.gain, 60)}"
            )
        object.__setattr__(self, "gain", float(self.gain))
        if self.fan is not None:
            fan = whole("initialiser", "fan", self.fan, most=2**62)
            object.__setattr__(self, "fan", fan)

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        deviation = self.gain / math.sqrt(max(self._fan(shape), 1))
        if self.distribution == "normal":
            return Normal(0.0, deviation).values(shape, element, source)
        bound = math.sqrt(3.0) * deviation
        return Uniform(-bound, bound).values(shape, element, source)

    def _fan(self, shape: tuple[int, ...]) -> float:
        if self.fan is not None:
            return self.fan
        fan_in, fan_out = fans(shape)
        return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]


def uniform(low: float = 0.0, high: float = 1.0) -> Initialiser:
    """Declare uniform values between `low` and `high`."""
    return Uniform(real("nn.uniform", "low", low), real("nn.uniform", "high", high))


def normal(mean: float = 0.0, deviation: float = 1.0) -> Initialiser:
    """Declare normal values."""
    return Normal(real("nn.normal", "mean", mean), real("nn.normal", "deviation", deviation))


def zeros() -> Initialiser:
    """Declare zeros."""
    return Full(0.0)


def ones() -> Initialiser:
    """Declare ones."""
    return Full(1.0)


def full(value: float) -> Initialiser:
    """Declare the same number everywhere; infinities too, but not NaN."""
    infinite = is_number(value) and value in (math.inf, -math.inf)
    if not infinite and not is_finite_number(value):
        refuse("nn.full", "value", "a number that a float can hold", value)
    return Full(float(value))


def inline(values: Any) -> Initialiser:
    """Declare given values, copied now; their shape must be the parameter's."""
    try:
        return Inline(Constant(np.asarray(values)))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"nn.inline takes an array of numbers as its values, received {shown(values, 60)}: "
            f"{error}"
        ) from error


def kaiming_uniform(
    gain: float = math.sqrt(2.0), mode: str = "fan_in", fan: int | None = None
) -> Initialiser:
    """Declare uniform values of deviation gain / sqrt(fan). Source: He et al., arXiv 1502.01852.

    The gain sqrt(2) suits relu, 1 / sqrt(3) is the default of torch's Linear and Conv2d. `fan`
    replaces the number that follows from the shape.
    """
    return Scaled(gain, mode, "uniform", fan)


def kaiming_normal(
    gain: float = math.sqrt(2.0), mode: str = "fan_in", fan: int | None = None
) -> Initialiser:
    """Declare normal values of deviation gain / sqrt(fan). Source: He et al., arXiv 1502.01852."""
    return Scaled(gain, mode, "normal", fan)


def xavier_uniform(gain: float = 1.0) -> Initialiser:
    """Declare uniform values of variance gain**2 * 2 / (fan_in + fan_out).

    Source: Glorot, Bengio, AISTATS 2010.
    """
    return Scaled(gain, "fan_avg", "uniform")


def xavier_normal(gain: float = 1.0) -> Initialiser:
    """Declare normal values of variance gain**2 * 2 / (fan_in + fan_out).

    Source: Glorot, Bengio, AISTATS 2010.
    """
    return Scaled(gain, "fan_avg", "normal")


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """The declaration of a parameter or buffer: its name, type, initial values and role.

    `trainable` says whether an optimizer updates it. In `Module.parameters()` the name is the path.
    """

    name: str
    type: TensorType
    init: Initialiser = field(default_factory=lambda: Full(0.0))
    role: Role = Role.PARAMETER
    trainable: bool = True

    def __post_init__(self) -> None:
        symbolic = [size for size in self.type.shape if not isinstance(size, int)]
        if symbolic:
            raise InvalidArgumentError(
                f"parameter {self.name!r} must have a shape of known sizes, received "
                f"{shape_text(self.type.shape)}"
            )
        if self.role not in (Role.PARAMETER, Role.BUFFER):
            raise InvalidArgumentError(
                f"parameter {self.name!r} must have the role parameter or buffer, received "
                f"{self.role}"
            )
        if not hasattr(self.init, "values"):
            raise InvalidArgumentError(
                f"init of parameter {self.name!r} must be an initialiser such as nn.zeros(), "
                f"received {self.init!r:.80}"
            )
        if isinstance(self.init, Inline) and self.init.value.array.shape != self.type.shape:
            raise InvalidArgumentError(
                f"the inline values of parameter {self.name!r} must have its shape "
                f"{shape_text(self.type.shape)}, received {self.init.value.array.shape}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of known sizes."""
        return tuple(int(size) for size in self.type.shape)  # type: ignore[arg-type]

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def renamed(self, name: str) -> ParamSpec:
        """Return the same declaration under another name."""
        return replace(self, name=name)


def param(
    shape: Size | Sequence[Size],
    init: Initialiser | None = None,
    *,
    dtype: DTypeLike = float32,
    trainable: bool = True,
    name: str = "",
) -> ParamSpec:
    """Declare a trainable parameter; `nn.module` gives it its name.

    `init` defaults to Kaiming's uniform values with the gain of torch's Linear where there are two
    axes or more, and to zeros otherwise.

    Raises:
        InvalidArgumentError: the dtype is none that gradients are computed in, and it is trainable;
            a size is no number; or the initialiser does not fit.
    """
    sizes, element = _shape("nn.param", shape), _dtype(dtype)
    trainable = flag("nn.param", "trainable", trainable)
    text("nn.param", "name", name)
    if trainable and (not element.is_float or element.storage_only):
        raise InvalidArgumentError(
            "dtype of a trainable parameter must be a float that is computed with, such as "
            f"float32 or bfloat16, got {element}; trainable=False declares others"
        )
    if init is None:
        init = kaiming_uniform(1 / math.sqrt(3.0)) if len(sizes) > 1 else zeros()
    return ParamSpec(name, TensorType(element, sizes), init, Role.PARAMETER, trainable)


def buffer(
    shape: Size | Sequence[Size],
    init: Initialiser | None = None,
    *,
    dtype: DTypeLike = float32,
    name: str = "",
) -> ParamSpec:
    """Declare a buffer: state that no optimizer updates, such as running statistics."""
    type_ = TensorType(_dtype(dtype), _shape("nn.buffer", shape))
    start = zeros() if init is None else init
    return ParamSpec(text("nn.buffer", "name", name), type_, start, Role.BUFFER, trainable=False)


def _shape(owner: str, shape: Any) -> tuple[Size, ...]:
    try:
        return as_shape(shape)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{owner}: shape: {error}") from error


def _dtype(value: DTypeLike) -> DType:
    return dtype(value)


def materialize(spec: ParamSpec, seed: int = 0) -> np.ndarray:
    """Return the initial values that `spec` declares, in its shape and dtype: a new array.

    Args:
        spec: the declaration. Its name (the path, from `Module.parameters()`) chooses the random
            stream, so that equal declarations at two paths get different numbers.
        seed: 64 bits.

    Raises:
        InvalidArgumentError: random values for a dtype that isn't a float, or a bad seed.
    """
    if not isinstance(spec, ParamSpec):
        refuse("nn.materialize", "spec", "a declaration such as nn.param((2, 3))", spec)
    whole("initial values", "seed", seed, 0, 2**64 - 1)
    random = isinstance(spec.init, (Uniform, Normal, Scaled))
    if random and not spec.dtype.is_float:
        raise InvalidArgumentError(
            f"parameter {spec.name!r} is {spec.dtype}, and random initial values are floats; use "
            "nn.zeros, nn.ones, nn.full or nn.inline"
        )
    digest = hashlib.sha256(spec.name.encode()).digest()
    source = Source(seed, int.from_bytes(digest[:4], "little"))
    values = spec.init.values(spec.shape, spec.dtype, source)
    if random or isinstance(spec.init, Full):
        return np.ascontiguousarray(values, spec.dtype.numpy).reshape(spec.shape)
    return np.array(values, spec.dtype.numpy, order="C").reshape(spec.shape)


def add_parameter_inputs(builder: GraphBuilder, specs: Iterable[ParamSpec]) -> tuple[Value, ...]:
    """Declare one graph input for each specification, in order, and return their values.

    Raises:
        InvalidArgumentError: two specifications have one name, or an input has it already.
    """
    return tuple(builder.input(spec.type, spec.role, spec.name) for spec in specs)
