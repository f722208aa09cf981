"""Lion: the sign of an interpolated momentum.

Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, program 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from frame import ops
from frame.compiler.optimizers.record import (
    Optimizer,
    RunTime,
    require_fraction,
    require_not_negative,
)
from frame.core.arguments import settle
from frame.core.dataclass import dataclass
from frame.ir.graph import TensorType, Value

_MEAN = "mean"


@dataclass(frozen=True)
class Lion(Optimizer):
    """p = p * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * gradient).

    Then m = beta2 * m + (1 - beta2) * gradient. The weight decay is decoupled.

    Raises:
        InvalidArgumentError: a beta is outside of [0, 1), or weight_decay is negative.
    """

    name: ClassVar[str] = "lion"
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require_fraction(self.name, beta1=self.beta1, beta2=self.beta2)
        require_not_negative(self.name, weight_decay=self.weight_decay)
        settle(self.name, self)

    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the momentum."""
        return {_MEAN: parameter}

    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build one update; see the class."""
        rate, mean = run.learning_rate, states[_MEAN]
        direction = ops.sign(self.beta1 * mean + (1.0 - self.beta1) * gradient)
        if self.weight_decay:
            parameter = parameter * (1.0 - rate * self.weight_decay)
        new = self.beta2 * mean + (1.0 - self.beta2) * gradient
        return parameter - rate * direction, {_MEAN: new}
