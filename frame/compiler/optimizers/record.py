"""What an optimizer is: a frozen record of options that builds the update of one parameter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import ClassVar

from frame.core.arguments import is_finite_number, is_number, shown
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType, Value


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A tensor that an optimizer keeps from step to step.

    `name` is its input in the training graph; `parameter` the parameter that it belongs to, empty
    for one that belongs to all; `init` the number that fills it before the first step.
    """

    name: str
    type: TensorType
    parameter: str = ""
    init: float = 0.0


@dataclass(frozen=True, slots=True)
class RunTime:
    """What a step is given beside parameters and gradients.

    `learning_rate` is a scalar of the parameter's dtype. `step` is the number of this step, from 1
    on, as an int64 scalar; it is None for an optimizer that does not count.
    """

    learning_rate: Value
    step: Value | None


@dataclass(frozen=True)
class Optimizer:
    """The base of optimizer records: options that are fixed when the graph is compiled.

    The learning rate is no option: it is an input of every step.
    """

    name: ClassVar[str]

    @property
    def counts(self) -> bool:
        """Whether the update depends on the number of the step."""
        return False

    @abstractmethod
    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the tensors to keep for a parameter of a type, by name."""

    @abstractmethod
    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build one update in the active builder; return the new parameter and the new states."""

    def exempt(self) -> Optimizer:
        """Return the record for biases and normalisations: the same without weight decay."""
        decays = any(field.name == "weight_decay" for field in fields(self))
        return replace(self, weight_decay=0.0) if decays else self  # type: ignore[call-arg]

    def text(self) -> str:
        """Return the record with every option, for cache keys."""
        options = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{self.name}({options})"


def require(condition: bool, optimizer: str, expected: str, received: object) -> None:
    """Check an option of an optimizer.

    Raises:
        InvalidArgumentError: the condition does not hold.
    """
    if not condition:
        raise InvalidArgumentError(f"{optimizer}: expected {expected}, received {shown(received)}")


def require_not_negative(optimizer: str, **options: float) -> None:
    """Check that options are finite numbers of 0 or more."""
    for name, value in options.items():
        good = is_finite_number(value) and value >= 0
        require(good, optimizer, f"{name} to be a finite number of 0 or more", value)


def require_fraction(optimizer: str, **options: float) -> None:
    """Check that options are numbers from 0 to below 1."""
    for name, value in options.items():
        good = is_number(value) and 0 <= value < 1
        require(good, optimizer, f"{name} to be a number from 0 to below 1", value)
