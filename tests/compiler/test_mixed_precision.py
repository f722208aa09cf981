"""Mixed precision: which ops are low, float32 master weights, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn
from frame.compiler.autocast import autocast
from frame.compiler.optimizers import SGD, LossScale, Recipe, build_training_graph, training_states
from frame.core.dtypes import bfloat16, float16, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph, Role
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from frame.ops.record import Autocast
from frame.ops.registry import lookup
from frame.runtime.training import graph_with_loss

LABELS = np.array([0, 1, 2, 1])
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def net() -> nn.Module:
    """Return a network with ops of each kind."""
    norm = nn.LayerNorm(8)
    return nn.Sequential("net", [nn.Linear(6, 8), nn.GELU(), norm, nn.ReLU(), nn.Linear(8, 3)])


def forward(module: nn.Module | None = None, loss: nn.Module | None = None) -> Graph:
    """Return the graph of a network with its loss."""
    types = {"x": frame.spec(X.shape)}, [frame.spec(LABELS.shape, "int64")]
    return graph_with_loss(module or net(), loss or nn.CrossEntropyLoss(), *types, "train")


@pytest.mark.parametrize("low", [bfloat16, float16], ids=str)
def test_each_op_runs_as_its_record_says(low) -> None:
    graph = autocast(forward(), low)
    verify(graph)
    seen = {}
    for node in graph.nodes:
        floats = {v.dtype for v in (*node.operands, *node.results) if v.dtype.is_float}
        rule = lookup(node.op).autocast
        if node.op not in ("cast", "constant"):
            assert len(floats) == 1, node
            seen.setdefault(rule, set()).update(floats)
    assert seen[Autocast.LOW] == {low} and seen[Autocast.FLOAT32] == {float32}
    # relu follows the normalisation, gelu and the sums with biases follow the products
    assert seen[Autocast.FOLLOW] == {low, float32}
    added = [node for node in graph.nodes if node.op == "add"]
    assert [node.results[0].dtype for node in added] == [low, low]
    plain = forward()
    assert [v.type for v in graph.returned] == [v.type for v in plain.returned]
    assert [e.value.type for e in graph.inputs] == [e.value.type for e in plain.inputs]


def test_running_statistics_and_other_floats_keep_their_types() -> None:
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)]
    graph = autocast(forward(nn.Sequential("net", layers)), bfloat16)
    assert {u.value.dtype for u in graph.updates} == {float32}
    wide = nn.Sequential("net", [nn.Linear(6, 3, dtype=float64)])
    types = {"x": frame.spec(X.shape, "float64")}, [frame.spec(LABELS.shape, "int64")]
    graph = graph_with_loss(wide, nn.CrossEntropyLoss(), *types, "train")
    assert bfloat16 not in {v.dtype for n in autocast(graph, bfloat16).nodes for v in n.results}
    with pytest.raises(InvalidArgumentError, match="one of bfloat16, float16, received float64"):
        autocast(graph, float64)


def test_a_weight_is_cast_once() -> None:
    shared = nn.Linear(6, 6)

    @nn.module(layer=shared)
    def twice(self, x):
        return self.layer(self.layer(x))[:, :3]

    graph = autocast(forward(twice), bfloat16)
    casts = [node.operands[0] for node in graph.nodes if node.op == "cast"]
    assert len(casts) == len(set(casts))


# --- steps in the interpreter ---------------------------------------------------------------------


class Steps:
    """Training steps of a recipe, run by the interpreter from state to state."""

    def __init__(self, recipe: Recipe, module: nn.Module | None = None, loss: Any = None) -> None:
        whole = forward(module, loss)
        self.graph = build_training_graph(whole, recipe)
        verify(self.graph)
        random = np.random.default_rng(1)
        starts = {spec.name: spec.init for spec in training_states(whole, recipe)}
        self.values: dict[str, np.ndarray] = {"learning_rate": np.float32(0.1)}
        for entry in self.graph.inputs:
            shape, kind = entry.value.shape, entry.value.dtype.numpy
            if entry.role is Role.PARAMETER:
                self.values[entry.name] = random.normal(0, 0.5, shape).astype(kind)
            elif entry.role is Role.OPTIMIZER_STATE:
                self.values[entry.name] = np.full(shape, starts[entry.name], kind)

    def __call__(self, x: np.ndarray = X) -> float:
        """Run a step and return its loss."""
        given = {**self.values, "x": x, "target": LABELS}
        arrays = [given[entry.name] for entry in self.graph.inputs]
        results = interpret(self.graph, arrays, precision="native")
        for update, value in zip(
            self.graph.updates, results[-len(self.graph.updates) :], strict=True
        ):
            self.values[self.graph.inputs[update.input_index].name] = value
        return float(results[0])

    def weights(self) -> dict[str, np.ndarray]:
        """Return what is trained and the momentum."""
        return {n: v for n, v in self.values.items() if "weight" in n or "bias" in n}


SGD9 = SGD(momentum=0.9)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_master_weights_move_as_in_float32(precision: str) -> None:
    exact, mixed = Steps(Recipe(SGD9)), Steps(Recipe(SGD9, precision=precision))
    start = exact.weights()
    for _ in range(3):
        assert mixed() == pytest.approx(exact(), rel=0.02)
    moved = False
    for name, value in exact.weights().items():
        found = mixed.weights()[name]
        assert found.dtype == np.float32
        largest = np.abs(value - start[name]).max()
        np.testing.assert_allclose(found, value, atol=0.1 * largest + 1e-6)
        moved |= not np.array_equal(found, value)
        # a master weight is no rounded one
        low = found.astype(np.float16 if precision == "float16" else bfloat16.numpy)
        assert "net" not in name or not np.array_equal(found, low.astype(np.float32))
    assert moved


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1, "clip_value": 0.05, "accumulate": 2}])
def test_a_scale_changes_no_digit(clip: dict[str, Any]) -> None:
    plain, scaled = Steps(Recipe(SGD9, **clip)), Steps(Recipe(SGD9, scaling=LossScale(), **clip))
    for _ in range(4):
        assert plain() == scaled()
    for name, value in plain.weights().items():
        np.testing.assert_array_equal(scaled.weights()[name], value)


def test_small_gradients_survive_in_float16() -> None:
    """Without a scale the gradients of a loss of this size are zero in float16."""

    @nn.module
    def tiny(self, output, target):
        return frame.ops.mean(frame.ops.square(output)) * 1e-7

    lost, kept = (
        Steps(Recipe(SGD(), precision="float16", scaling=scaling), nn.Linear(6, 3), tiny)
        for scaling in (None, LossScale(2.0**16))
    )
    exact = Steps(Recipe(SGD()), nn.Linear(6, 3), tiny)
    for steps in (lost, kept, exact):
        steps.values["learning_rate"] = np.float32(1e6)
    start = exact.weights()["weight"]
    for steps in (lost, kept, exact):
        steps()
    np.testing.assert_array_equal(lost.weights()["weight"], start)
    np.testing.assert_allclose(
        kept.weights()["weight"], exact.weights()["weight"], rtol=0.01, atol=1e-3
    )


def overflowing(steps: Steps) -> None:
    """Run a step whose gradients are not finite: the input is so large."""
    steps(np.full(X.shape, 3e38, np.float32))


def test_an_overflow_leaves_the_update_out_and_halves_the_scale() -> None:
    recipe = Recipe(frame.train.AdamW(), scaling=LossScale(4.0, interval=3))
    steps = Steps(recipe, nn.Linear(6, 3))
    steps()
    before = dict(steps.values)
    assert before["optimizer.step"] == 1 and before["optimizer.good_updates"] == 1
    for scale in (2.0, 1.0, 1.0):
        overflowing(steps)
        assert steps.values["optimizer.loss_scale"] == scale
        assert steps.values["optimizer.good_updates"] == 0
        for name in before.keys() - {"optimizer.loss_scale", "optimizer.good_updates"}:
            np.testing.assert_array_equal(steps.values[name], before[name], name)


def test_the_scale_grows_again() -> None:
    steps = Steps(Recipe(SGD(), scaling=LossScale(4.0, interval=2)), nn.Linear(6, 3))
    found = []
    for bad in (False, True, False, False, False, True, False, False, False, False):
        overflowing(steps) if bad else steps()
        found.append(float(steps.values["optimizer.loss_scale"]))
    assert found == [4.0, 2.0, 2.0, 4.0, 4.0, 2.0, 2.0, 4.0, 4.0, 8.0]


def test_an_overflow_in_an_accumulation_costs_one_update() -> None:
    recipe = Recipe(SGD(), accumulate=2, scaling=LossScale(4.0, interval=9))
    steps = Steps(recipe, nn.Linear(6, 3))
    start = steps.weights()["weight"]
    overflowing(steps)
    assert steps.values["optimizer.loss_scale"] == 4.0  # nothing was due yet
    steps()
    np.testing.assert_array_equal(steps.weights()["weight"], start)
    assert steps.values["optimizer.loss_scale"] == 2.0
    steps(), steps()
    assert np.isfinite(steps.weights()["weight"]).all()
    assert not np.array_equal(steps.weights()["weight"], start)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: LossScale(3.0), r"start to be a power of two from 1 to 2\*\*120, received 3.0"),
        (lambda: LossScale(0.5), "start"),
        (lambda: LossScale(True), "start"),
        (lambda: LossScale(interval=0), "interval to be an integer of at least 1"),
        (lambda: Recipe(SGD(), precision="int8"), "precision to be '' or one of bfloat16"),
        (lambda: Recipe(SGD(), scaling=2.0), "scaling to be a LossScale"),
    ],
)
def test_options_are_checked(build: Callable[[], object], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        build()
