"""Learning-rate schedules: functions from the step (0-based) and the number of steps to a rate.

A `Scheduler` is a record of options that makes such a function; `SCHEDULERS` has them by name.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

from frame.core.arguments import is_finite_number, plain, settle, shown, whole
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count

Schedule = Callable[[int, int], float]


def _checked(rate: float, what: str = "a learning rate") -> float:
    if not (is_finite_number(rate) and rate >= 0):
        raise InvalidArgumentError(
            f"{what} must be a finite number of at least 0, received {shown(rate)}"
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
    high, low = _checked(rate), _checked(final, "the final learning rate")
    warmup = whole("cosine", "warmup", warmup, 0)

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


# --- scheduler records ----------------------------------------------------------------------------

UNITS = ("epoch", "step")
"""What a scheduler counts in; see `Scheduler`."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """The base of scheduler records: a base rate, a linear warm-up, and what follows it.

    Positions are epochs (the rate changes between epochs) or steps, see `unit`. In the first
    `warmup` positions the rate rises on a line that reaches `base_lr` exactly at the position
    `warmup`. It begins at `warmup_start_lr` or at `warmup_start_factor` * base_lr; without either
    at base_lr / (warmup + 1), so that no position is spent on a rate of 0. The counts of a
    scheduler (step_size, T_0, ...) begin after the warm-up.

    Attributes:
        base_lr: the rate after the warm-up, above 0.
        warmup: the number of positions of the warm-up.
        warmup_start_lr: the rate of position 0.
        warmup_start_factor: the same as a part of `base_lr`, in [0, 1].
        unit: what a position is, `epoch` or `step`.

    Raises:
        InvalidArgumentError: an option is out of its range.
    """

    name: ClassVar[str]
    base_lr: float = 0.1
    warmup: int = 0
    warmup_start_lr: float | None = None
    warmup_start_factor: float | None = None
    unit: str = "epoch"

    def __post_init__(self) -> None:
        self._number("base_lr", self.base_lr, above=0.0)
        self._count("warmup", self.warmup, 0)
        if self.warmup_start_lr is not None:
            self._number("warmup_start_lr", self.warmup_start_lr)
        if self.warmup_start_factor is not None:
            self._number("warmup_start_factor", self.warmup_start_factor, most=1.0)
        both = self.warmup_start_lr is not None and self.warmup_start_factor is not None
        self._require(not both, "warmup_start_lr or warmup_start_factor, not both", "both")
        self._require(self.unit in UNITS, f"unit to be one of {', '.join(UNITS)}", self.unit)
        self._check()
        settle(type(self).__name__, self)

    def _check(self) -> None:
        """Check the options of a kind of scheduler."""

    def rate(self, position: int, positions: int) -> float:
        """Return the rate of a position (0-based) of so many.

        Raises:
            InvalidArgumentError: there is no such position.
        """
        self._require(0 <= position < positions, f"a position from 0 to {positions - 1}", position)
        if position < self.warmup:
            start = self._start()
            return start + (self.base_lr - start) * position / self.warmup
        return self._after_warmup(position - self.warmup, positions - self.warmup)

    def rates(self, positions: int) -> list[float]:
        """Return the rates of all positions."""
        return [self.rate(position, positions) for position in range(positions)]

    def schedule(self, steps_per_epoch: int) -> Schedule:
        """Return the schedule of (step, steps) for epochs of so many steps, as `fit` takes it.

        Raises:
            InvalidArgumentError: the number of steps is below 1.
        """
        self._count("steps_per_epoch", steps_per_epoch, 1)
        length = 1 if self.unit == "step" else steps_per_epoch
        return lambda step, steps: self.rate(step // length, -(-steps // length))

    def text(self) -> str:
        """Return the record with every option."""
        options = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{self.name}({options})"

    def _start(self) -> float:
        if self.warmup_start_lr is not None:
            return self.warmup_start_lr
        if self.warmup_start_factor is not None:
            return self.warmup_start_factor * self.base_lr
        return self.base_lr / (self.warmup + 1)

    @abstractmethod
    def _after_warmup(self, position: int, positions: int) -> float:
        """Return the rate of a position after the warm-up, counted from its end."""

    def _require(self, condition: bool, expected: str, received: object) -> None:
        if not condition:
            raise InvalidArgumentError(
                f"{type(self).__name__}: expected {expected}, received {shown(received)}"
            )

    def _number(
        self, name: str, value: Any, above: float | None = None, most: float = math.inf
    ) -> None:
        """Check a finite number of at least 0, above `above`, of at most `most`."""
        low = "of at least 0" if above is None else f"above {above:g}"
        high = "" if most == math.inf else f" and of at most {most:g}"
        good = is_finite_number(value) and value >= 0 and value <= most
        good = good and (above is None or value > above)
        self._require(good, f"{name} to be a finite number {low}{high}", value)

    def _count(self, name: str, value: Any, least: int) -> None:
        expected = f"{name} to be an integer of at least {least}"
        self._require(is_count(value, least), expected, value)


@dataclass(frozen=True, kw_only=True)
class ConstantLR(Scheduler):
    """The base rate throughout."""

    name: ClassVar[str] = "constant"

    def _after_warmup(self, position: int, positions: int) -> float:
        return self.base_lr


@dataclass(frozen=True, kw_only=True)
class StepLR(Scheduler):
    """base_lr * gamma ** (position // step_size), as torch.optim.lr_scheduler.StepLR."""

    name: ClassVar[str] = "step"
    step_size: int = 10
    gamma: float = 0.1

    def _check(self) -> None:
        self._count("step_size", self.step_size, 1)
        self._number("gamma", self.gamma, above=0.0)

    def _after_warmup(self, position: int, positions: int) -> float:
        return float(self.base_lr * self.gamma ** (position // self.step_size))


@dataclass(frozen=True, kw_only=True)
class MultiStepLR(Scheduler):
    """base_lr * gamma ** (number of milestones reached), as torch's MultiStepLR.

    Milestones are positions of the whole training: they count the warm-up, too.
    """

    name: ClassVar[str] = "multi_step"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def _check(self) -> None:
        self._number("gamma", self.gamma, above=0.0)
        try:
            found = tuple(self.milestones)
        except TypeError:
            found = ()
        for milestone in found:
            self._count("each of its milestones", milestone, 1)
        rising = all(a < b for a, b in itertools.pairwise(found))
        self._require(bool(found) and rising, "milestones to be rising positions", self.milestones)
        object.__setattr__(self, "milestones", plain(found))

    def _after_warmup(self, position: int, positions: int) -> float:
        reached = bisect_right(self.milestones, position + self.warmup)
        return float(self.base_lr * self.gamma**reached)


@dataclass(frozen=True, kw_only=True)
class ExponentialLR(Scheduler):
    """base_lr * gamma ** position, as torch.optim.lr_scheduler.ExponentialLR."""

    name: ClassVar[str] = "exponential"
    gamma: float = 0.95

    def _check(self) -> None:
        self._number("gamma", self.gamma, above=0.0)

    def _after_warmup(self, position: int, positions: int) -> float:
        return float(self.base_lr * self.gamma**position)


@dataclass(frozen=True, kw_only=True)
class PolynomialLR(Scheduler):
    """end_lr + (base_lr - end_lr) * (1 - position / total) ** power, then end_lr.

    With end_lr=0 that is torch.optim.lr_scheduler.PolynomialLR. Without `total` the last position
    has the rate `end_lr`.
    """

    name: ClassVar[str] = "polynomial"
    power: float = 2.0
    end_lr: float = 1e-4
    total: int | None = None

    def _check(self) -> None:
        self._number("power", self.power, above=0.0)
        self._number("end_lr", self.end_lr)
        if self.total is not None:
            self._count("total", self.total, 1)

    def _after_warmup(self, position: int, positions: int) -> float:
        left = 1.0 - _progress(position, self.total or positions - 1)
        return float(self.end_lr + (self.base_lr - self.end_lr) * left**self.power)


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingLR(Scheduler):
    """Half a cosine from `base_lr` to `eta_min`, which the last position has exactly.

    torch.optim.lr_scheduler.CosineAnnealingLR with T_max = positions - warmup - 1.
    Source: Loshchilov and Hutter, SGDR, arXiv 1608.03983, without restarts.
    """

    name: ClassVar[str] = "cosine"
    eta_min: float = 1e-6

    def _check(self) -> None:
        self._number("eta_min", self.eta_min)

    def _after_warmup(self, position: int, positions: int) -> float:
        return _half_cosine(self.base_lr, self.eta_min, _progress(position, positions - 1))


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingWithWarmRestartsLR(Scheduler):
    """Half a cosine over T_0 positions, then again over T_mult times as many, and so on.

    torch.optim.lr_scheduler.CosineAnnealingWarmRestarts. Source: arXiv 1608.03983.
    """

    name: ClassVar[str] = "cosine_warm_restarts"
    T_0: int = 10
    T_mult: int = 1
    eta_min: float = 0.0

    def _check(self) -> None:
        self._count("T_0", self.T_0, 1)
        self._count("T_mult", self.T_mult, 1)
        self._number("eta_min", self.eta_min)

    def _after_warmup(self, position: int, positions: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            position %= length
        while position >= length:
            position -= length
            length *= self.T_mult
        return _half_cosine(self.base_lr, self.eta_min, position / length)


@dataclass(frozen=True, kw_only=True)
class WSDLR(Scheduler):
    """Warm-up, stable, decay: `base_lr`, and from a part of the positions on down to `end_lr`.

    The position after the last would have `end_lr`, so that no position is spent on a rate of 0.
    Source: Hu et al., MiniCPM, arXiv 2404.06395; `sqrt`: Haegele et al., arXiv 2405.18392.

    Attributes:
        decay_start: where the decay begins, as a part of all positions, in [0, 1].
        end_lr: where it ends.
        shape: `linear`, or `sqrt` for a factor of 1 - sqrt(progress).
    """

    name: ClassVar[str] = "wsd"
    decay_start: float = 0.8
    end_lr: float = 0.0
    shape: str = "linear"

    def _check(self) -> None:
        self._number("decay_start", self.decay_start, most=1.0)
        self._number("end_lr", self.end_lr)
        self._require(self.shape in ("linear", "sqrt"), "shape to be linear or sqrt", self.shape)

    def _after_warmup(self, position: int, positions: int) -> float:
        whole = positions + self.warmup
        start = max(round(self.decay_start * whole), self.warmup)
        progress = max(position + self.warmup - start, 0) / max(whole - start, 1)
        left = 1.0 - (math.sqrt(progress) if self.shape == "sqrt" else progress)
        return self.end_lr + (self.base_lr - self.end_lr) * left


def _progress(position: int, last: int) -> float:
    return min(position / max(last, 1), 1.0)


def _half_cosine(high: float, low: float, progress: float) -> float:
    return low + (high - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULERS: Mapping[str, type[Scheduler]] = MappingProxyType(
    {
        cls.name: cls
        for cls in (
            ConstantLR,
            StepLR,
            MultiStepLR,
            ExponentialLR,
            PolynomialLR,
            CosineAnnealingLR,
            CosineAnnealingWithWarmRestartsLR,
            WSDLR,
        )
    }
)
"""The schedulers by name: a closed table, for files and JSON specs. Options are the fields."""
