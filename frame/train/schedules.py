"""Learning-rate schedules: functions from the step (0-based) and the number of steps to a rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from frame.core.errors import InvalidArgumentError

Schedule = Callable[[int, int], float]


def _checked(rate: float) -> float:
    if not (isinstance(rate, (int, float, np.number)) and math.isfinite(rate) and rate >= 0):
        raise InvalidArgumentError(
            f"a learning rate must be a finite number of at least 0, received {rate!r}"
        )
    return float(rate)


def constant(rate: float) -> Schedule:
    """Return the schedule of one rate; raise InvalidArgumentError for a rate below 0 or NaN."""
    value = _checked(rate)
    return lambda step, steps: value


def cosine(rate: float, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Return half a cosine from `rate` to `final`, after `warmup` steps that rise linearly.

    Source: Loshchilov and Hutter, SGDR, arXiv 1608.03983, without restarts.

    Raises:
        InvalidArgumentError: a rate is below 0 or not finite, or `warmup` is below 0.
    """
    high, low = _checked(rate), _checked(final)
    if warmup < 0:
        raise InvalidArgumentError(f"warmup must be at least 0 steps, received {warmup}")

    def schedule(step: int, steps: int) -> float:
        if step < warmup:
            return high * (step + 1) / warmup
        progress = (step - warmup) / max(steps - warmup, 1)
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    return schedule


def checked_rate(schedule: Schedule, step: int, steps: int) -> float:
    """Return the rate of a step.

    Raises:
        InvalidArgumentError: the schedule gave something else than a finite number of at least 0.
    """
    rate = schedule(step, steps)
    try:
        return _checked(rate)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the schedule at step {step} of {steps}: {error}") from None
