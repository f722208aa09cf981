"""Optimizers: step by step against torch.optim where it is, and always against plain numpy."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.compiler.optimizers import (
    SGD,
    Adam,
    AdamW,
    build_training_graph,
    training_states,
)
from frame.core.dtypes import float32, float64
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role
from frame.ops.interpreter import interpret
from tests.compiler.support import build, compiled, run_compiled, tensor

STEPS = 6
RATES = (0.1, 0.1, 0.03, 0.2, 0.01, 0.1)

OPTIMIZERS = {
    "plain": SGD(),
    "decay": SGD(weight_decay=0.1),
    "momentum": SGD(momentum=0.9),
    "dampening": SGD(momentum=0.9, dampening=0.3),
    "nesterov": SGD(momentum=0.8, nesterov=True, weight_decay=0.05),
    "decoupled": SGD(momentum=0.8, weight_decay=0.05, decoupled=True),
    "adam": Adam(),
    "adam_decay": Adam(beta1=0.8, beta2=0.95, eps=1e-5, weight_decay=0.1),
    "adam_beta_0": Adam(beta1=0.0),
    "amsgrad": Adam(amsgrad=True),
    "adamw": AdamW(),
    "adamw_amsgrad": AdamW(weight_decay=0.2, amsgrad=True),
}


def forward(dtype=float64) -> Graph:
    def body(x, target, w, bias):
        return ops.mean(ops.square(ops.tanh(x @ w + bias) - target))

    def typed(*shape):
        return tensor(*shape, dtype=dtype)

    weights = (typed(3, 2), Role.PARAMETER), (typed(2), Role.PARAMETER)
    return build(body, typed("batch", 3), typed("batch", 2), *weights)


def data(step: int, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(step)
    return random.normal(size=(4, 3)).astype(dtype), random.normal(size=(4, 2)).astype(dtype)


def initial(dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(99)
    return random.normal(size=(3, 2)).astype(dtype), random.normal(size=2).astype(dtype)


def train(optimizer, graph: Graph, dtype=np.float64, run=interpret) -> list[list[np.ndarray]]:
    """Return the parameters after each step."""
    states = [np.zeros(s.type.shape, s.type.dtype.numpy) for s in training_states(graph, optimizer)]
    parameters, history = list(initial(dtype)), []
    step_graph = build_training_graph(graph, optimizer)
    for step, rate in enumerate(RATES):
        inputs = [*data(step, dtype), *parameters, np.float32(rate), *states]
        results = run(step_graph, [np.asarray(array) for array in inputs])
        indices = [update.input_index for update in step_graph.updates]
        new = dict(zip(indices, results[len(graph.outputs) :], strict=True))
        parameters = [new[2], new[3]]
        states = [new[5 + i] for i in range(len(states))]
        history.append(parameters)
    return history


# --- plain numpy ----------------------------------------------------------------------------------


def gradients(x, target, w, bias):
    hidden = np.tanh(x @ w + bias)
    g = 2 * (hidden - target) / hidden.size * (1 - hidden**2)
    return x.T @ g, g.sum(0)


class PlainSGD:
    def __init__(self, options: SGD):
        self.o, self.buffer = options, None

    def step(self, p, g, rate):
        o = self.o
        if o.decoupled:
            p = p * (1 - rate * o.weight_decay)
        else:
            g = g + o.weight_decay * p
        if o.momentum:
            first = self.buffer is None
            self.buffer = g if first else o.momentum * self.buffer + (1 - o.dampening) * g
            g = g + o.momentum * self.buffer if o.nesterov else self.buffer
        return p - rate * g


class PlainAdam:
    def __init__(self, options: Adam):
        self.o, self.t, self.m, self.v, self.largest = options, 0, 0.0, 0.0, 0.0

    def step(self, p, g, rate):
        o = self.o
        self.t += 1
        if o.decoupled:
            p = p * (1 - rate * o.weight_decay)
        else:
            g = g + o.weight_decay * p
        self.m = o.beta1 * self.m + (1 - o.beta1) * g
        self.v = o.beta2 * self.v + (1 - o.beta2) * g * g
        self.largest = np.maximum(self.largest, self.v)
        square = self.largest if o.amsgrad else self.v
        spread = np.sqrt(square / (1 - o.beta2**self.t)) + o.eps
        return p - rate * self.m / (1 - o.beta1**self.t) / spread


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_against_numpy(name):
    optimizer = OPTIMIZERS[name]
    plain = PlainSGD if isinstance(optimizer, SGD) else PlainAdam
    # decay outside of the means is what AdamW is, whatever its record says
    known = replace(optimizer, decoupled=True) if isinstance(optimizer, AdamW) else optimizer
    rules, parameters = [plain(known), plain(known)], list(initial())
    for step, found in enumerate(train(optimizer, forward())):
        found_gradients = gradients(*data(step), *parameters)
        rate = float(np.float32(RATES[step]))
        parameters = [
            rule.step(p, g, rate)
            for rule, p, g in zip(rules, parameters, found_gradients, strict=True)
        ]
        for one, other in zip(found, parameters, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=f"step {step}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_against_torch(name):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; test_against_numpy covers the same steps")
    import torch

    optimizer = OPTIMIZERS[name]
    if getattr(optimizer, "decoupled", False) and isinstance(optimizer, SGD):
        pytest.skip("torch.optim.SGD has no decoupled weight decay")
    parameters = [torch.nn.Parameter(torch.tensor(p)) for p in initial()]
    other = _torch_optimizer(torch, optimizer, parameters)
    for step, found in enumerate(train(optimizer, forward())):
        for group in other.param_groups:
            group["lr"] = float(np.float32(RATES[step]))
        x, target = (torch.tensor(array) for array in data(step))
        other.zero_grad()
        loss = ((torch.tanh(x @ parameters[0] + parameters[1]) - target) ** 2).mean()
        loss.backward()
        other.step()
        for one, parameter in zip(found, parameters, strict=True):
            expected = parameter.detach().numpy()
            np.testing.assert_allclose(one, expected, rtol=1e-9, err_msg=f"step {step}")


def _torch_optimizer(torch, optimizer, parameters):
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(
            parameters,
            lr=0.1,
            momentum=optimizer.momentum,
            dampening=optimizer.dampening,
            weight_decay=optimizer.weight_decay,
            nesterov=optimizer.nesterov,
        )
    make = torch.optim.AdamW if optimizer.decoupled else torch.optim.Adam
    return make(
        parameters,
        lr=0.1,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        amsgrad=optimizer.amsgrad,
    )


@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw_amsgrad"])
def test_float32_stays_near_float64(name):
    """The corrections of adam must not lose digits at the first steps."""

    def native(graph, arrays):
        return interpret(graph, arrays, precision="native")

    exact = train(OPTIMIZERS[name], forward())
    single = train(OPTIMIZERS[name], forward(float32), np.float32, native)
    for one, other in zip(single, exact, strict=True):
        for found, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["momentum", "dampening", "adamw"])
def test_the_passes_keep_the_steps(name):
    def through_passes(graph, arrays):
        return run_compiled(compiled(graph), arrays)

    one = train(OPTIMIZERS[name], forward())
    other = train(OPTIMIZERS[name], forward(), run=through_passes)
    for found, expected in zip(other, one, strict=True):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


# --- the training graph ---------------------------------------------------------------------------


def test_inputs_outputs_and_roles():
    graph = build_training_graph(forward(), Adam())
    added = [(entry.name, str(entry.role)) for entry in graph.inputs[4:]]
    assert added == [
        ("learning_rate", "hyperparameter"),
        ("optimizer.step", "optimizer_state"),
        ("optimizer.mean.x2", "optimizer_state"),
        ("optimizer.square.x2", "optimizer_state"),
        ("optimizer.mean.x3", "optimizer_state"),
        ("optimizer.square.x3", "optimizer_state"),
    ]
    assert graph.output_names == ("output0",)
    assert sorted(update.input_index for update in graph.updates) == [2, 3, 5, 6, 7, 8, 9]
    specs = training_states(forward(), Adam())
    assert [spec.name for spec in specs] == [name for name, _ in added[1:]]
    assert [spec.parameter for spec in specs] == ["", "x2", "x2", "x3", "x3"]


def test_some_parameters_may_be_frozen():
    graph = build_training_graph(forward(), SGD(momentum=0.9), wrt=["x3"])
    assert sorted(update.input_index for update in graph.updates) == [3, 5]


def test_running_statistics_are_updated_beside():
    with GraphBuilder("g") as builder:
        x = builder.input(tensor(4), name="x")
        w = builder.input(tensor(4), Role.PARAMETER, "w")
        seen = builder.input(tensor(4), Role.BUFFER, "seen")
        builder.output(ops.sum(x * w), "loss")
        builder.update(seen, seen * 0.9 + x * 0.1)
    graph = build_training_graph(builder.finish(), SGD(), loss="loss")
    assert sorted(update.input_index for update in graph.updates) == [1, 2]
    result = compiled(graph)
    assert result.load is None, "what depends on weights that change is computed in each step"


def test_errors():
    with pytest.raises(InvalidArgumentError, match="momentum to be a finite number of 0 or more"):
        SGD(momentum=-0.1)
    with pytest.raises(InvalidArgumentError, match="weight_decay to be a finite number"):
        SGD(weight_decay=math.nan)
    with pytest.raises(InvalidArgumentError, match="nesterov to come with a momentum"):
        SGD(nesterov=True)
    with pytest.raises(InvalidArgumentError, match="beta2 to be a number from 0 to below 1"):
        Adam(beta2=1.0)
    with pytest.raises(InvalidArgumentError, match="eps"):
        Adam(eps=-1e-8)
    with pytest.raises(InvalidArgumentError, match="nothing to train.*received x0"):
        build_training_graph(build(ops.sum, tensor(3)), SGD())


def test_a_parameter_that_the_graph_updates_itself_is_refused():
    with GraphBuilder("g") as builder:
        w = builder.input(tensor(4), Role.PARAMETER, "w")
        builder.output(ops.sum(w))
        builder.update(w, w + 1.0)
    with pytest.raises(InvalidArgumentError, match="updates 'w' itself"):
        build_training_graph(builder.finish(), SGD())


def test_text_covers_every_option():
    assert SGD(momentum=0.5).text() == (
        "sgd(momentum=0.5, dampening=0.0, weight_decay=0.0, nesterov=False, decoupled=False)"
    )
    assert AdamW().text().startswith("adamw(beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01")
