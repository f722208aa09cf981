"""LARS, Lion and recipes: the compiled and the interpreted step beside plain float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from frame.compiler.optimizers import (
    LARS,
    SGD,
    AdamW,
    Ema,
    Freeze,
    Lion,
    ParameterGroup,
    Recipe,
    Swa,
    build_training_graph,
    training_states,
)
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.ops.interpreter import interpret
from tests.compiler.support import compiled, run_compiled
from tests.compiler.test_optimizers import RATES, data, forward, gradients, initial, train


def names() -> list[str]:
    return [entry.name for entry in forward().inputs[2:]]


def states_after(recipe, graph, dtype=np.float64):
    """Return the parameters and the states by name after each step."""
    step = build_training_graph(graph, recipe)
    specs = training_states(graph, recipe)
    held = {s.name: np.zeros(s.type.shape, s.type.dtype.numpy) for s in specs}
    held |= dict(zip([e.name for e in graph.inputs[2:]], initial(dtype), strict=True))
    history = []
    for number, rate in enumerate(RATES):
        given = dict(zip([e.name for e in graph.inputs[:2]], data(number, dtype), strict=True))
        given["learning_rate"] = np.float32(rate)
        results = interpret(step, [np.asarray({**given, **held}[e.name]) for e in step.inputs])
        for update, value in zip(step.updates, results[len(graph.outputs) :], strict=True):
            held[step.inputs[update.input_index].name] = value
        history.append(dict(held))
    return history


class PlainLars:
    def __init__(self, options: LARS):
        self.o, self.m = options, 0.0

    def step(self, p, g, rate):
        o = self.o
        weights, slope = np.linalg.norm(p), np.linalg.norm(g)
        local = min(o.trust * weights / (slope + o.weight_decay * weights + o.eps), o.cap)
        moved = rate * (local if o.adapts else 1.0) * (g + o.weight_decay * p)
        self.m = o.momentum * self.m + moved
        return p - (moved + o.momentum * self.m if o.nesterov else self.m)


class PlainLion:
    def __init__(self, options: Lion):
        self.o, self.m = options, 0.0

    def step(self, p, g, rate):
        o = self.o
        direction = np.sign(o.beta1 * self.m + (1 - o.beta1) * g)
        self.m = o.beta2 * self.m + (1 - o.beta2) * g
        return p * (1 - rate * o.weight_decay) - rate * direction


class PlainSgd:
    def __init__(self, momentum: float, decay: float = 0.0):
        self.momentum, self.decay, self.m = momentum, decay, 0.0

    def step(self, p, g, rate):
        self.m = self.momentum * self.m + g + self.decay * p
        return p - rate * self.m


def expected(rules, change=lambda g, step: g):
    """Return the parameters after each step by plain rules, one a parameter."""
    parameters, history = list(initial()), []
    for step, rate in enumerate(RATES):
        found = change(list(gradients(*data(step), *parameters)), step)
        rate = float(np.float32(rate))
        parameters = [r.step(p, g, rate) for r, p, g in zip(rules, parameters, found, strict=True)]
        history.append(parameters)
    return history


NEW = {
    "lars": (LARS(trust=0.02, weight_decay=0.1), PlainLars),
    "lars_nesterov": (LARS(trust=0.05, nesterov=True), PlainLars),
    "lars_capped": (LARS(trust=1e6, cap=0.3), PlainLars),
    "lars_plain": (LARS(adapts=False), PlainLars),
    "lion": (Lion(), PlainLion),
    "lion_decay": (Lion(beta1=0.8, beta2=0.9, weight_decay=0.2), PlainLion),
}


@pytest.mark.parametrize("name", NEW)
def test_new_optimizers_do_what_their_formulas_say(name) -> None:
    options, plain = NEW[name]
    rules = [plain(options), plain(options)]
    np.testing.assert_allclose(
        np.concatenate([np.ravel(p) for s in train(options, forward()) for p in s]),
        np.concatenate([np.ravel(p) for s in expected(rules) for p in s]),
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("name", ["lars", "lion"])
def test_new_optimizers_are_compiled(name) -> None:
    options, _ = NEW[name]
    graph = forward(float32)
    step = compiled(build_training_graph(graph, options))
    found = train(options, graph, np.float32, lambda _, inputs: run_compiled(step, inputs))
    for parameters, wanted in zip(found, train(options, forward()), strict=True):
        for value, exact in zip(parameters, wanted, strict=True):
            np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6)


def test_what_biases_and_normalisations_are_spared() -> None:
    assert LARS().exempt() == LARS(adapts=False, weight_decay=0.0)
    assert AdamW().exempt().weight_decay == 0 and SGD().exempt() == SGD()


# --- recipes --------------------------------------------------------------------------------------


def check(recipe, rules, change=lambda g, step: g) -> None:
    for found, wanted in zip(states_after(recipe, forward()), expected(rules, change), strict=True):
        for name, exact in zip(names(), wanted, strict=True):
            np.testing.assert_allclose(found[name], exact, rtol=1e-6, atol=1e-9)


def test_biases_do_not_decay_unless_asked() -> None:
    decay = SGD(momentum=0.9, weight_decay=0.3)
    check(Recipe(decay), [PlainSgd(0.9, 0.3), PlainSgd(0.9)])
    check(Recipe(decay, decay_all=True), [PlainSgd(0.9, 0.3), PlainSgd(0.9, 0.3)])


def test_groups_have_rates_and_options_of_their_own() -> None:
    matrix, vector = names()

    class Doubled(PlainSgd):
        def step(self, p, g, rate):
            return super().step(p, g, 2 * rate)

    groups = (
        ParameterGroup(matrix, rate=2.0, options={"momentum": 0.5}),
        ParameterGroup(vector, options={"weight_decay": 0.2}),
    )
    check(Recipe(SGD(momentum=0.9), groups), [Doubled(0.5), PlainSgd(0.9, 0.2)])


@pytest.mark.parametrize("limit", [0.01, 0.2, 100.0])
def test_clipping_by_value_and_by_norm(limit) -> None:
    rules = [PlainSgd(0.9), PlainSgd(0.9)]
    check(
        Recipe(SGD(0.9), clip_value=limit), rules, lambda g, _: [x.clip(-limit, limit) for x in g]
    )

    def scaled(found, _):
        norm = np.sqrt(sum(np.sum(g * g) for g in found))
        return [g * min(1.0, limit / (norm + 1e-6)) for g in found]

    check(Recipe(SGD(0.9), clip_norm=limit), [PlainSgd(0.9), PlainSgd(0.9)], scaled)


def test_accumulation_updates_every_third_step_by_the_mean() -> None:
    history = states_after(Recipe(SGD(momentum=0.9), accumulate=3), forward())
    parameters, rules, held = list(initial()), [PlainSgd(0.9), PlainSgd(0.9)], []
    for step, rate in enumerate(RATES):
        held.append(gradients(*data(step), *parameters))
        if len(held) == 3:
            mean = [sum(parts) / 3 for parts in zip(*held, strict=True)]
            rate = float(np.float32(rate))
            parameters = [
                r.step(p, g, rate) for r, p, g in zip(rules, parameters, mean, strict=True)
            ]
            held = []
        for name, exact in zip(names(), parameters, strict=True):
            np.testing.assert_allclose(history[step][name], exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("average", [Ema(0.2), Ema(0.75, warm=False)])
def test_the_moving_average_is_warmed_up(average: Ema) -> None:
    history, mean = states_after(Recipe(SGD(), average=average), forward()), None
    for step, held in enumerate(history, 1):
        weight = held[names()[0]]
        warm = (1 + step) / (10 + step) if average.warm else 1.0
        decay = min(average.decay, warm)
        mean = weight if mean is None else mean + (1 - decay) * (weight - mean)
        np.testing.assert_allclose(held[f"average.{names()[0]}"], mean, rtol=1e-6)


def test_the_stochastic_average_is_the_mean_of_what_it_takes() -> None:
    history, taken = states_after(Recipe(SGD(), average=Swa(start=2, every=2)), forward()), []
    for step, held in enumerate(history, 1):
        weight = held[names()[0]]
        if step >= 2 and step % 2 == 0:
            taken.append(weight)
        wanted = np.mean(taken, 0) if taken else weight
        np.testing.assert_allclose(held[f"average.{names()[0]}"], wanted, rtol=1e-6)


def test_frozen_parameters_and_their_states_stop() -> None:
    matrix, vector = names()
    frozen = Recipe(SGD(momentum=0.9, weight_decay=0.1), freezes=(Freeze(matrix, after=2),))
    history = states_after(frozen, forward())
    for name in (matrix, f"optimizer.momentum.{matrix}"):
        assert not np.array_equal(history[0][name], history[1][name])
        for later in history[2:]:
            np.testing.assert_array_equal(later[name], history[1][name])
    assert not np.array_equal(history[4][vector], history[5][vector])


def test_a_pattern_must_match() -> None:
    with pytest.raises(InvalidArgumentError, match="no parameter matches the pattern 'head"):
        build_training_graph(forward(), Recipe(SGD(), freezes=(Freeze("head.*", 1),)))
