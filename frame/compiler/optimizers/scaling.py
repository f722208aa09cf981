"""Dynamic loss scaling: gradients that are too small for a low-precision float are lifted.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; the rule of growth
is that of torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from frame import ops
from frame.compiler.optimizers.record import require
from frame.core.arguments import is_number, settle, whole
from frame.core.dataclass import dataclass
from frame.core.dtypes import float32
from frame.ir.graph import Value

_LARGEST = 2.0**120  # a scale times a gradient of 1 is still a float32
_OWNER = "loss scale"


@dataclass(frozen=True, slots=True)
class LossScale:
    """The number that the loss is multiplied with before the backward pass.

    Gradients are divided by it in float32. An update whose gradients hold an infinity or NaN is
    left out, with all that it would count, and the scale is halved (never below 1); after
    `interval` updates in a row that were made it is doubled. A scale is a power of two, so that
    scaling changes no digit of a gradient that neither over- nor underflows.

    Attributes:
        start: the first scale.
        interval: after how many good updates the scale grows.

    Raises:
        InvalidArgumentError: the start is no power of two from 1 to 2**120, or the interval is no
            integer of at least 1.
    """

    start: float = 8192.0
    interval: int = 2000

    def __post_init__(self) -> None:
        power = (
            is_number(self.start)
            and 1 <= self.start <= _LARGEST
            and math.frexp(self.start)[0] == 0.5
        )
        require(power, _OWNER, "start to be a power of two from 1 to 2**120", self.start)
        object.__setattr__(self, "start", float(self.start))
        whole(_OWNER, "interval", self.interval)
        settle(_OWNER, self)

    def after(self, scale: Value, good: Value, finite: Value) -> tuple[Value, Value]:
        """Return the scale and the number of good updates since it changed, after an update."""
        counted = ops.add(good, 1)
        grows = ops.greater_equal(counted, self.interval)  # a resumed run may have fewer
        larger = ops.where(grows, ops.minimum(scale * 2.0, _LARGEST), scale)
        smaller = ops.maximum(scale * 0.5, 1.0)
        zero = ops.zeros_like(good)
        left = ops.where(ops.logical_or(grows, ops.logical_not(finite)), zero, counted)
        return ops.where(finite, larger, smaller), left


def all_finite(gradients: Sequence[Value]) -> Value:
    """Return whether no gradient holds an infinity or NaN, a bool scalar."""
    found = None
    for gradient in gradients:
        good = ops.all(ops.isfinite(gradient), axes=tuple(range(gradient.rank)))
        found = good if found is None else ops.logical_and(found, good)
    return ops.constant(True) if found is None else found


def unscaled(gradient: Value, scale: Value) -> Value:
    """Return a gradient divided by the scale, a power of two."""
    return ops.mul(gradient, ops.cast(ops.reciprocal(ops.cast(scale, float32)), gradient.dtype))
