"""The part of a training step behind the gradients: accumulate, clip, update, average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frame import ops
from frame.compiler.optimizers.recipe import Average, Ema, Recipe
from frame.compiler.optimizers.record import RunTime
from frame.compiler.optimizers.scaling import all_finite, unscaled
from frame.core.dtypes import float32
from frame.ir.builder import GraphBuilder
from frame.ir.graph import GraphInput, Value

OPTIMIZER = "optimizer"
"""The module path of the parts of an update that are of no module of the model."""

STEP = f"{OPTIMIZER}.step"
"""The name of the state that counts the updates done so far, an int64 scalar."""

AVERAGE = "average"
"""What the names of averaged weights begin with."""

MICRO_STEP = f"{OPTIMIZER}.micro_step"
"""The name of the state that counts the steps since the last update, an int64 scalar."""

ACCUMULATED = "accumulated"
"""The name of the state of a parameter that sums the gradients since the last update."""

SCALE = f"{OPTIMIZER}.loss_scale"
"""The name of the state that holds the scale of the loss, a float32 scalar."""

GOOD = f"{OPTIMIZER}.good_updates"
"""The name of the state that counts the updates since the scale has changed, an int64 scalar."""

_CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


class Step:
    """Appends the update of all parameters to a graph that has their gradients."""

    def __init__(
        self, builder: GraphBuilder, recipe: Recipe, states: Mapping[str, Value], rate: Value
    ) -> None:
        self._builder, self._recipe, self._states, self._rate = builder, recipe, states, rate
        builder.push_module(OPTIMIZER)
        self._due = self._count_micro_steps(states.get(MICRO_STEP))
        self._finite: Value | None = None
        self._number: Value | None = None
        builder.pop_module()

    def update(self, gradients: Sequence[Value], trained: Sequence[GraphInput]) -> None:
        """Add the updates of the trained parameters and of the optimizer's states."""
        lifted = [self._unscaled(gradient) for gradient in gradients]
        wanted = [self._mean(g, e) for g, e in zip(lifted, trained, strict=True)]
        self._builder.push_module(OPTIMIZER)
        self._follow_scale(wanted)
        self._number = self._count(self._states.get(STEP))
        self._builder.pop_module()
        for gradient, entry in zip(self._clipped(wanted), trained, strict=True):
            self._builder.push_module(entry.name.rpartition(".")[0] or OPTIMIZER)
            self._update(entry, gradient)
            self._builder.pop_module()

    def average(self, entries: Sequence[GraphInput]) -> None:
        """Add the updates of the averages of parameters and running statistics."""
        if self._recipe.average is None or self._number is None:
            return
        later = {self._builder.inputs[u.input_index].name: u.value for u in self._builder.updates}
        self._builder.push_module(AVERAGE)
        for entry in entries:
            old = self._states[f"{AVERAGE}.{entry.name}"]
            new = averaged(self._recipe.average, old, later[entry.name], self._number)
            self._set(old, new)
        self._builder.pop_module()

    def _count_micro_steps(self, done: Value | None) -> Value | None:
        """Return whether this step makes an update; None where each does."""
        if done is None:
            return None
        due = ops.equal(done, self._recipe.accumulate - 1)
        self._builder.update(done, ops.where(due, ops.zeros_like(done), ops.add(done, 1)))
        return due

    def _count(self, done: Value | None) -> Value | None:
        """Return the number of the update, from 1 on."""
        if done is None:
            return None
        number = ops.add(done, 1)
        self._set(done, number)
        return number

    def _set(self, old: Value, new: Value, more: Value | None = None) -> None:
        """Let a state hold `new` after this step, if the step makes an update (and if `more`)."""
        for condition in (self._finite, self._due, more):
            if condition is not None:
                new = ops.where(condition, new, old)
        self._builder.update(old, new)

    def _unscaled(self, gradient: Value) -> Value:
        scale = self._states.get(SCALE)
        return gradient if scale is None else unscaled(gradient, scale)

    def _follow_scale(self, gradients: Sequence[Value]) -> None:
        """Look whether the gradients of this update are finite, and let the scale follow."""
        if self._recipe.scaling is None:
            return
        scale, good = self._states[SCALE], self._states[GOOD]
        finite = all_finite(gradients)
        for old, new in zip(
            (scale, good), self._recipe.scaling.after(scale, good, finite), strict=True
        ):
            self._set(old, new)
        self._finite = finite

    def _mean(self, gradient: Value, entry: GraphInput) -> Value:
        """Return the mean gradient of the steps since the last update."""
        if self._due is None:
            return gradient
        old = self._states[f"{OPTIMIZER}.{ACCUMULATED}.{entry.name}"]
        total = ops.add(old, gradient)
        self._builder.update(old, ops.where(self._due, ops.zeros_like(total), total))
        return ops.mul(total, 1.0 / self._recipe.accumulate)

    def _clipped(self, gradients: Sequence[Value]) -> Sequence[Value]:
        limit, largest = self._recipe.clip_value, self._recipe.clip_norm
        self._builder.push_module(OPTIMIZER)
        if limit is not None:
            gradients = [ops.clamp(gradient, -limit, limit) for gradient in gradients]
        if largest is not None:
            gradients = clipped_by_norm(gradients, largest)
        self._builder.pop_module()
        return gradients

    def _update(self, entry: GraphInput, gradient: Value) -> None:
        parameter = entry.value
        optimizer, factor = self._recipe.for_parameter(entry.name, parameter.type)
        names = optimizer.states(parameter.type)
        own = {name: self._states[f"{OPTIMIZER}.{name}.{entry.name}"] for name in names}
        rate = self._rate if factor == 1.0 else self._rate * factor
        run = RunTime(ops.cast(rate, parameter.dtype), self._number)
        new, changed = optimizer.update(parameter, gradient, own, run)
        after = self._recipe.frozen_after(entry.name)
        live = None
        if after and self._number is not None:
            live = ops.less_equal(self._number, after)
        self._set(parameter, new, live)
        for name in names:
            self._set(own[name], changed[name], live)


def clipped_by_norm(gradients: Sequence[Value], largest: float) -> list[Value]:
    """Return gradients scaled so that the norm of all of them together is at most `largest`."""
    total = None
    for gradient in gradients:
        squares = ops.square(ops.cast(gradient, float32))
        part = ops.sum(squares, axes=tuple(range(squares.rank)))
        total = part if total is None else ops.add(total, part)
    if total is None:
        return []
    scale = ops.minimum(largest / (ops.sqrt(total) + _CLIP_EPS), 1.0)
    return [ops.mul(gradient, ops.cast(scale, gradient.dtype)) for gradient in gradients]


def averaged(average: Average, old: Value, new: Value, number: Value) -> Value:
    """Return an average after the update of this number (from 1 on), which gave `new`."""
    if isinstance(average, Ema):
        weight = _weight(average, ops.cast(number, new.dtype))
        return ops.where(ops.equal(number, 1), new, old + weight * (new - old))
    past = ops.sub(number, average.start)
    taken = ops.equal(ops.mod(past, average.every), 0)
    samples = ops.cast(ops.add(ops.floor_div(past, average.every), 1), new.dtype)
    mean = ops.where(taken, old + (new - old) / samples, old)
    return ops.where(ops.less_equal(number, average.start), new, mean)


def _weight(average: Ema, count: Value) -> Value | float:
    """Return 1 - decay; while warm, 1 - (1 + t) / (10 + t) = 9 / (10 + t) where it is larger."""
    least = 1.0 - average.decay
    return ops.maximum(9.0 / (count + 10.0), least) if average.warm else least
