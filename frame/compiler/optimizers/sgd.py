"""Stochastic gradient descent with momentum, as torch.optim.SGD defines it.

Source: Sutskever et al., "On the importance of initialization and momentum in deep learning",
ICML 2013, in the form in which the learning rate stands outside of the momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from frame import ops
from frame.compiler.optimizers.record import Optimizer, RunTime, require, require_not_negative
from frame.core.arguments import flag, settle
from frame.core.dataclass import dataclass
from frame.ir.graph import TensorType, Value

_MOMENTUM = "momentum"


@dataclass(frozen=True)
class SGD(Optimizer):
    """p -= lr * d, where d is the gradient or its momentum.

        g = gradient + weight_decay * p          not if decoupled: then p *= 1 - lr * weight_decay
        m = momentum * m + (1 - dampening) * g   the first step sets m = g
        d = g + momentum * m if nesterov else m

    Raises:
        InvalidArgumentError: an option is negative or not finite, or nesterov comes without
            momentum or with dampening.
    """

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    decoupled: bool = False

    def __post_init__(self) -> None:
        flag(self.name, "nesterov", self.nesterov)
        require_not_negative(self.name, momentum=self.momentum, weight_decay=self.weight_decay)
        require_not_negative(self.name, dampening=self.dampening)
        plain = self.momentum > 0 and self.dampening == 0
        require(
            plain or not self.nesterov,
            self.name,
            "nesterov to come with a momentum above 0 and no dampening",
            (self.momentum, self.dampening),
        )
        settle(self.name, self)

    @property
    def counts(self) -> bool:
        """Whether the first step differs: it does where dampening would weaken it."""
        return self.momentum != 0 and self.dampening != 0

    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the momentum, if there is one."""
        return {_MOMENTUM: parameter} if self.momentum else {}

    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build one update; see the class."""
        parameter, gradient = decayed(
            parameter, gradient, self.weight_decay, self.decoupled, run.learning_rate
        )
        if not self.momentum:
            return parameter - run.learning_rate * gradient, {}
        momentum = self._momentum(gradient, states[_MOMENTUM], run)
        direction = gradient + self.momentum * momentum if self.nesterov else momentum
        return parameter - run.learning_rate * direction, {_MOMENTUM: momentum}

    def _momentum(self, gradient: Value, old: Value, run: RunTime) -> Value:
        # Without dampening the first step needs no case: the momentum begins with zeros.
        new = self.momentum * old + (1.0 - self.dampening) * gradient
        return new if run.step is None else ops.where(ops.equal(run.step, 1), gradient, new)


def decayed(
    parameter: Value, gradient: Value, weight_decay: float, decoupled: bool, learning_rate: Value
) -> tuple[Value, Value]:
    """Apply weight decay to the gradient (L2), or, if decoupled, to the parameter itself.

    Source of the second: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """
    if not weight_decay:
        return parameter, gradient
    if decoupled:
        return parameter * (1.0 - learning_rate * weight_decay), gradient
    return parameter, gradient + weight_decay * parameter
