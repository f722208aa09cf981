"""Adam and AdamW, as torch.optim defines them.

Sources: Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015; Loshchilov, Hutter,
"Decoupled Weight Decay Regularization", ICLR 2019; Reddi, Kale, Kumar, "On the Convergence of Adam
and Beyond", ICLR 2018 (amsgrad).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from frame import ops
from frame.compiler.optimizers.record import (
    Optimizer,
    RunTime,
    require_fraction,
    require_not_negative,
)
from frame.compiler.optimizers.sgd import decayed
from frame.core.arguments import settle
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, float32, float64
from frame.core.errors import InternalError
from frame.ir.graph import TensorType, Value


@dataclass(frozen=True)
class Adam(Optimizer):
    """p -= lr * m' / (sqrt(v') + eps), with moving means of the gradient and of its square.

        g = gradient + weight_decay * p          not if decoupled: then p *= 1 - lr * weight_decay
        m = beta1 * m + (1 - beta1) * g          m' = m / (1 - beta1 ** step)
        v = beta2 * v + (1 - beta2) * g * g      v' = v / (1 - beta2 ** step)

    With amsgrad the largest v so far stands in the place of v in v'.

    Raises:
        InvalidArgumentError: a beta is outside of [0, 1), eps or weight_decay is negative.
    """

    name: ClassVar[str] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    decoupled: bool = False

    def __post_init__(self) -> None:
        require_fraction(self.name, beta1=self.beta1, beta2=self.beta2)
        require_not_negative(self.name, eps=self.eps, weight_decay=self.weight_decay)
        settle(self.name, self)

    @property
    def counts(self) -> bool:
        """The corrections of the means depend on the number of the step."""
        return True

    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the two means, and the largest second one for amsgrad."""
        names = ("mean", "square", "largest") if self.amsgrad else ("mean", "square")
        return dict.fromkeys(names, parameter)

    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build one update; see the class."""
        rate = run.learning_rate
        parameter, gradient = decayed(parameter, gradient, self.weight_decay, self.decoupled, rate)
        mean = states["mean"] + (1.0 - self.beta1) * (gradient - states["mean"])
        square = self.beta2 * states["square"] + (1.0 - self.beta2) * ops.square(gradient)
        new = {"mean": mean, "square": square}
        if self.amsgrad:
            square = new["largest"] = ops.maximum(states["largest"], square)
        spread = ops.sqrt(_correction(self.beta2, run, parameter.dtype))
        deviation = ops.sqrt(square) / spread + self.eps
        step_size = rate / _correction(self.beta1, run, parameter.dtype)
        return parameter - step_size * (mean / deviation), new


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay."""

    name: ClassVar[str] = "adamw"
    weight_decay: float = 0.01
    decoupled: bool = True


def _correction(beta: float, run: RunTime, dtype: DType) -> Value:
    """Return 1 - beta ** step as a scalar of `dtype`.

    Computed as -expm1(step * log(beta)): the difference itself would lose all digits but four of
    float32 at the first steps, where beta ** step is near 1.
    """
    if run.step is None:
        raise InternalError("adam needs the number of the step")
    wide = float64 if dtype == float64 else float32
    if beta == 0.0:
        return ops.constant(1.0, dtype)
    power = ops.cast(run.step, wide) * math.log(beta)
    return ops.cast(-ops.expm1(power), dtype)
