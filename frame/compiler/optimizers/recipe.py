"""A recipe: an optimizer, and what stands around its update in the compiled step.

Parameter groups, frozen parameters, gradient accumulation, clipping and averaged weights are parts
of the one graph of a training step. Parameters are chosen by patterns of their paths, as a shell
matches file names (`head.*`, `*.bias`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar

from frame.compiler.autocast import LOW
from frame.compiler.optimizers.record import (
    Optimizer,
    RunTime,
    require,
    require_fraction,
    require_not_negative,
)
from frame.compiler.optimizers.scaling import LossScale
from frame.core.arguments import is_finite_number, plain, settle
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count
from frame.ir.graph import TensorType, Value


def checked_patterns(owner: str, patterns: Any, name: str = "patterns") -> tuple[str, ...]:
    """Return patterns, given as one or several texts, as a tuple.

    Raises:
        InvalidArgumentError: there is none, or one is no text.
    """
    found = (patterns,) if isinstance(patterns, str) else patterns
    good = isinstance(found, (tuple, list)) and len(found) > 0
    good = good and all(isinstance(each, str) and each for each in found)
    require(good, owner, f"{name} to be patterns of parameter paths, such as 'head.*'", patterns)
    return tuple(found)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a path matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with a rate or options of their own.

    Attributes:
        patterns: which parameters; where several groups match, the first counts.
        rate: what their learning rate is multiplied with.
        options: options of the optimizer that differ, such as {"weight_decay": 0.0}.

    Raises:
        InvalidArgumentError: a pattern is no text, or the rate is negative.
    """

    patterns: tuple[str, ...]
    rate: float = 1.0
    options: Mapping[str, float | bool] | tuple[tuple[str, float | bool], ...] = ()

    def __post_init__(self) -> None:
        owner = "parameter group"
        object.__setattr__(self, "patterns", checked_patterns(owner, self.patterns))
        require_not_negative(owner, rate=self.rate)
        settle(owner, self)
        try:
            options = tuple(sorted((k, plain(v)) for k, v in dict(self.options).items()))
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{owner}: expected options as a mapping from names to numbers, received "
                f"{self.options!r:.80}"
            ) from None
        object.__setattr__(self, "options", options)


@dataclass(frozen=True, slots=True)
class Freeze:
    """Parameters that keep their values: from the start, or after so many updates.

    Neither gradients, momentum nor weight decay move them. Running statistics are no parameters and
    go on.

    Raises:
        InvalidArgumentError: a pattern is no text, or `after` is negative.
    """

    patterns: tuple[str, ...]
    after: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", checked_patterns("freeze", self.patterns))
        require_count("freeze", 0, after=self.after)
        settle("freeze", self)


@dataclass(frozen=True, slots=True)
class Ema:
    """The exponential moving average of the weights: avg += (1 - d) * (weight - avg).

    `d` is `decay`, or at the update t the smaller (1 + t) / (10 + t) if `warm`, so that short runs
    are not dominated by the first weights. Source: Polyak, Juditsky, SIAM J. Control Optim. 1992;
    the warm-up as tf.train.ExponentialMovingAverage has it.

    Raises:
        InvalidArgumentError: the decay is outside of [0, 1).
    """

    decay: float = 0.999
    warm: bool = True

    def __post_init__(self) -> None:
        require_fraction("ema", decay=self.decay)
        settle("ema", self)


@dataclass(frozen=True, slots=True)
class Swa:
    """The equal-weight mean of the weights after every `every`-th update from `start` on.

    Before that it is the weights themselves. Source: Izmailov et al., arXiv 1803.05407.

    Raises:
        InvalidArgumentError: a number is below 1.
    """

    start: int
    every: int = 1

    def __post_init__(self) -> None:
        require_count("swa", 1, start=self.start, every=self.every)
        settle("swa", self)


Average = Ema | Swa
AVERAGES: Mapping[str, type[Ema] | type[Swa]] = MappingProxyType({"ema": Ema, "swa": Swa})


def require_count(owner: str, least: int, **options: object) -> None:
    """Check that options are integers of at least `least`."""
    for name, value in options.items():
        require(
            is_count(value, least),
            owner,
            f"{name} to be an integer of at least {least}",
            value,
        )


@dataclass(frozen=True)
class Recipe(Optimizer):
    """An optimizer and what stands around its update, in this order.

    1. The mean of the gradients of `accumulate` steps; the other steps change no parameter.
    2. Gradients clamped to [-clip_value, clip_value], then scaled so that the norm of all of them
       together is at most `clip_norm` (torch.nn.utils.clip_grad_norm_).
    3. The update, without weight decay on parameters of rank 0 and 1 (biases, normalisations)
       unless `decay_all` or a group says so, with the options and rates of the groups.
    4. The average of the weights, and of the running statistics.

    With `precision` the forward and the backward part run in mixed precision, see
    `frame.compiler.autocast`; parameters, their gradients and all states stay as they are. With
    `scaling` the loss is scaled for the backward part, and gradients are scaled back before
    anything else is done with them.

    Raises:
        InvalidArgumentError: an option is out of its range, or a group has an option that the
            optimizer doesn't.
    """

    name: ClassVar[str] = "recipe"
    optimizer: Optimizer
    groups: tuple[ParameterGroup, ...] = ()
    decay_all: bool = False
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    average: Average | None = None
    freezes: tuple[Freeze, ...] = ()
    precision: str = ""
    scaling: LossScale | None = None

    def __post_init__(self) -> None:
        good = isinstance(self.optimizer, Optimizer) and not isinstance(self.optimizer, Recipe)
        require(good, self.name, "an optimizer such as SGD(momentum=0.9)", self.optimizer)
        require_count(self.name, 1, accumulate=self.accumulate)
        for limit in ("clip_value", "clip_norm"):
            value = getattr(self, limit)
            fits = value is None or (is_finite_number(value) and value > 0)
            require(fits, self.name, f"{limit} to be a finite number above 0", value)
        low = self.precision == "" or self.precision in LOW
        require(low, self.name, f"precision to be '' or one of {', '.join(LOW)}", self.precision)
        scaling = self.scaling is None or isinstance(self.scaling, LossScale)
        require(scaling, self.name, "scaling to be a LossScale", self.scaling)
        settle(self.name, self)
        for group in self.groups:
            self._with_options(group)

    @property
    def counts(self) -> bool:
        """Whether the step needs the number of the update."""
        late = any(freeze.after for freeze in self.freezes)
        return self.optimizer.counts or self.average is not None or late

    def states(self, parameter: TensorType) -> Mapping[str, TensorType]:
        """Return the states of the optimizer for a parameter that no group matches."""
        return self.optimizer.states(parameter)

    def update(
        self, parameter: Value, gradient: Value, states: Mapping[str, Value], run: RunTime
    ) -> tuple[Value, Mapping[str, Value]]:
        """Build the update of a parameter that no group matches."""
        return self.optimizer.update(parameter, gradient, states, run)

    def for_parameter(self, name: str, type_: TensorType) -> tuple[Optimizer, float]:
        """Return the optimizer of a parameter and what its rate is multiplied with."""
        group = next((each for each in self.groups if matches(name, each.patterns)), None)
        chosen = self.optimizer if group is None else self._with_options(group)
        decides = group is not None and "weight_decay" in dict(group.options)
        if len(type_.shape) <= 1 and not self.decay_all and not decides:
            chosen = chosen.exempt()
        return chosen, 1.0 if group is None else group.rate

    def frozen_after(self, name: str) -> int | None:
        """Return after how many updates a parameter is frozen; None for never."""
        found = [each.after for each in self.freezes if matches(name, each.patterns)]
        return min(found, default=None)

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raise InvalidArgumentError for a pattern that no name matches."""
        patterns = [each.patterns for each in self.groups]
        patterns += [each.patterns for each in self.freezes]
        for pattern in itertools.chain.from_iterable(patterns):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InvalidArgumentError(
                    f"no parameter matches the pattern {pattern!r}; there are "
                    f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
                )

    def _with_options(self, group: ParameterGroup) -> Optimizer:
        options = dict(group.options)
        known = [field.name for field in fields(self.optimizer)]
        unknown = next((name for name in options if name not in known), None)
        require(
            unknown is None,
            self.optimizer.name,
            f"the options of a group to be among {', '.join(known)}",
            unknown,
        )
        return replace(self.optimizer, **options)


def as_recipe(optimizer: Optimizer) -> Recipe:
    """Return the recipe that an optimizer alone stands for: decay on every parameter."""
    return optimizer if isinstance(optimizer, Recipe) else Recipe(optimizer, decay_all=True)


def recipe_to_data(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe has beside its optimizer as plain data."""
    average, scaling = recipe.average, recipe.scaling
    return {
        "scaling": None if scaling is None else [scaling.start, scaling.interval],
        "groups": [[list(g.patterns), g.rate, dict(g.options)] for g in recipe.groups],
        "freezes": [[list(each.patterns), each.after] for each in recipe.freezes],
        "average": None if average is None else _average_to_data(average),
        **{name: getattr(recipe, name) for name in _PLAIN},
    }


_PLAIN = ("decay_all", "clip_value", "clip_norm", "accumulate", "precision")


def _average_to_data(average: Average) -> list[Any]:
    kind = next(name for name, cls in AVERAGES.items() if isinstance(average, cls))
    return [kind, {field.name: getattr(average, field.name) for field in fields(average)}]


def recipe_from_data(optimizer: Optimizer, data: Mapping[str, Any]) -> Recipe:
    """Return the recipe of `recipe_to_data`; options that older data lacks have their defaults.

    Raises:
        InvalidArgumentError, KeyError, TypeError, ValueError: the data is none of a recipe.
    """
    average = data["average"]
    return Recipe(
        optimizer,
        tuple(ParameterGroup(tuple(p), rate, dict(options)) for p, rate, options in data["groups"]),
        average=None if average is None else AVERAGES[average[0]](**average[1]),
        freezes=tuple(Freeze(tuple(p), after) for p, after in data["freezes"]),
        scaling=LossScale(*data["scaling"]) if data.get("scaling") else None,
        **{name: data[name] for name in _PLAIN if name in data},
    )
