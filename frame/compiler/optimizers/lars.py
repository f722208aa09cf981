"""LARS: momentum whose rate is scaled for each tensor by the ratio of two norms.

Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from frame import ops
from frame.compiler.optimizers.record import (
    Optimizer,
    RunTime,
    require,
    require_fraction,
    require_not_negative,
)
from frame.core.arguments import settle
from frame.core.dataclass import dataclass
from frame.ir.graph import TensorType, Value

_TINY = 1e-12
_MOMENTUM = "momentum"


@dataclass(frozen=True)
class LARS(Optimizer):
    """p -= m, where the learning rate and the local rate stand inside of the momentum.

        local = trust * |p| / (|g| + weight_decay * |p| + eps), at most `cap`; 1 if a norm is 0
        d = lr * local * (g + weight_decay * p)
        m = momentum * m + d
        p -= d + momentum * m if nesterov else m

    `adapts` is off for biases and the parameters of normalisations, see `exempt`.

    Raises:
        InvalidArgumentError: an option is out of its range.
    """

    name: ClassVar[str] = "lars"
    momentum: float = 0.9
    weight_decay: float = 0.0
    trust: float = 1e-3
    eps: float = 1e-8
    nesterov: bool = False
    cap: float = 100.0
    adapts: bool = True

    def __post_init__(self) -> None:
        require_fraction(self.name, momentum=self.momentum)
        require_not_negative(self.name, weight_decay=self.weight_decay, eps=self.eps)
        require_not_negative(self.name, trust=self.trust, cap=self.cap)
        settle(self.name, self)
        plain = self.momentum > 0 or not self.nesterov
        require(plain, self.name, "nesterov to come with a momentum above 0", self.momentum)

    def exempt(self) -> LARS:
        """Return the record for biases and normalisations: plain momentum, no decay."""
        return replace(self, weight_decay=0.0, adapts=False)

    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the momentum, if there is one."""
        return {_MOMENTUM: parameter} if self.momentum else {}

    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build one update; see the class."""
        rate = run.learning_rate
        if self.adapts:
            rate = rate * self._local(parameter, gradient)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        step = rate * gradient
        if not self.momentum:
            return parameter - step, {}
        momentum = self.momentum * states[_MOMENTUM] + step
        moved = step + self.momentum * momentum if self.nesterov else momentum
        return parameter - moved, {_MOMENTUM: momentum}

    def _local(self, parameter: Value, gradient: Value) -> Value:
        weights, slope = norm(parameter), norm(gradient)
        ratio = self.trust * weights / (slope + self.weight_decay * weights + self.eps)
        useful = ops.logical_and(ops.greater(weights, _TINY), ops.greater(slope, _TINY))
        return ops.where(useful, ops.minimum(ratio, self.cap), ops.ones_like(ratio))


def norm(value: Value) -> Value:
    """Return the Euclidean norm of all elements, a scalar."""
    return ops.sqrt(ops.sum(ops.square(value), axes=tuple(range(value.rank))))
