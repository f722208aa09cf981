"""Schema version 0: the draws, the trajectory, and every fault with the path of its field."""

from __future__ import annotations

import json

import numpy as np
import pytest

from frame import frontend
from frame.core.errors import InvalidArgumentError
from frame.frontend import version0
from frame.frontend.draws import Draws
from tests.frontend.specs import REMOVED, edited, tiny_mlp

# What the first implementation of the format printed for tiny_mlp.
TRAJECTORY = {
    0: 0.43104,
    50: 0.153648,
    100: 0.0258455,
    150: 0.00294294,
    200: 2.65567e-4,
    250: 2.37954e-5,
    299: 2.4755e-6,
}
PREDICTIONS = (
    *(0.489999, 0.0145673, -0.847606, -0.278452),
    *(0.896275, 0.760229, 0.762946, 0.742857),
)


def planned(spec: dict) -> frontend.Plan:
    return frontend.loads(json.dumps(spec))


def test_the_generator_is_the_mersenne_twister() -> None:
    # The C++ standard names the 10,000th word of std::mt19937 with its default seed.
    words = Draws(5489).words(10_000)
    assert (words[0], words[-1]) == (3499211612, 4123659995)


def test_draws_are_shares_of_the_range_in_one_stream() -> None:
    words = Draws(7).words(6) / 2.0**32
    draws = Draws(7)
    first, second = draws.uniform((2, 2), -1.0, 1.0), draws.uniform((2,), 2.0, 6.0)
    np.testing.assert_array_equal(first.ravel(), (words[:4] * 2 - 1).astype(np.float32))
    np.testing.assert_array_equal(second, (words[4:] * 4 + 2).astype(np.float32))


def test_the_order_of_draws_is_input_target_weight_bias_weight() -> None:
    plan, draws = planned(tiny_mlp()), Draws(20260713)
    x, target = plan.columns()
    np.testing.assert_array_equal(x, draws.uniform((8, 4), -1, 1))
    np.testing.assert_array_equal(target, draws.uniform((8, 1), -1, 1))
    values = plan.values()
    assert list(values) == ["fc1_weight", "fc1_bias", "fc2_weight"]
    ranges = {"fc1_weight": (-0.1, 0.1), "fc1_bias": (0.5, 1.0), "fc2_weight": (-0.1, 0.1)}
    for name, value in values.items():
        np.testing.assert_array_equal(value, draws.uniform(value.shape, *ranges[name]))


def test_inline_data_takes_no_draw() -> None:
    spec = edited(
        tiny_mlp(), "data", "x", value={"kind": "inline", "values": [k / 32 for k in range(32)]}
    )
    x, target = planned(spec).columns()
    np.testing.assert_array_equal(x.ravel(), np.arange(32, dtype=np.float32) / 32)
    np.testing.assert_array_equal(target, Draws(20260713).uniform((8, 1), -1, 1))


def test_tiny_mlp_follows_the_trajectory() -> None:
    lines: dict[int, float] = {}
    result = frontend.train(planned(tiny_mlp()), report=lines.__setitem__)
    assert list(lines) == list(TRAJECTORY)
    # Sums in another order move the last bits of a float32, which 300 steps of descent carry on:
    # relative to the first loss all of them are far below the printed digits.
    for step, loss in TRAJECTORY.items():
        assert lines[step] == pytest.approx(loss, rel=5e-6 if step < 150 else 5e-4, abs=1e-8)
    assert result.losses[0] == pytest.approx(0.43104, abs=5e-7)
    assert len(result.losses) == 300 and result.final_loss == lines[299]
    np.testing.assert_allclose(result.predictions.ravel(), PREDICTIONS, atol=2e-6)
    assert list(result.model.params) == ["fc1_weight", "fc1_bias", "fc2_weight"]


def test_the_inputs_of_the_graph_have_the_names_of_the_format() -> None:
    plan = planned(tiny_mlp())
    from frame.runtime.training import graph_with_loss

    graph = graph_with_loss(plan.module, plan.loss, plan.inputs, [plan.target], "train")
    names = [entry.name for entry in graph.inputs]
    assert sorted(names) == ["fc1_bias", "fc1_weight", "fc2_weight", "target", "x"]


def test_layers_may_share_an_input_and_lead_to_nothing() -> None:
    spec = tiny_mlp()
    side = {"name": "side", "kind": "linear", "input": "fc1", "weight_shape": [8, 3]}
    spec["layers"].insert(1, side)
    spec["training"]["steps"] = 3
    result = frontend.train(planned(spec))
    start = planned(spec).values()
    np.testing.assert_array_equal(result.model.params["side_weight"], start["side_weight"])
    assert not np.array_equal(result.model.params["fc2_weight"], start["fc2_weight"])


def test_any_text_is_a_name() -> None:
    spec = tiny_mlp()
    spec["model"]["name"] = "my model / 1"
    spec["layers"][0]["name"] = spec["layers"][1]["input"] = "fc-1 é"
    spec["training"]["steps"] = 1
    result = frontend.train(planned(spec))
    assert result.losses[0] == pytest.approx(0.43104, abs=5e-7)
    assert result.model.name == "my model / 1"


def added(**extra):
    return lambda spec: {**spec, **extra}


def put(*path, value=REMOVED):
    return lambda spec: edited(spec, *path, value=value)


WRONG = [
    (put("schema_version", value=7), "schema_version: expected a version of the schema"),
    (put("schema_version", value=True), "schema_version: expected"),
    (put("schema_version"), "schema_version: expected a version of the schema (0"),
    (added(extra=1), "extra: expected no such key"),
    (put("layers", 0, "wieght_shape", value=1), 'did you mean "weight_shape"?'),
    (put("model", "dtype", value="float64"), 'model.dtype: expected "float32", received "float64"'),
    (put("model", "batch", value=0), "model.batch: expected an integer from 1"),
    (put("model", "batch", value=4), "inputs[0].shape[0]: expected model.batch, 4, received 8"),
    (put("model", "name", value=3), "model.name: expected a string, received 3"),
    (put("inputs", value=[]), "inputs: expected an array of 1 item, received 0 items"),
    (put("inputs", 0, "shape", value=[8, 4, 1]), "inputs[0].shape: expected two axes"),
    (put("inputs", 0, "shape", value=[8]), "inputs[0].shape: expected two axes"),
    (put("inputs", 0, "shape", 1, value=0), "inputs[0].shape[1]: expected an integer from 1"),
    (put("inputs", 0, "shape", 1, value=4.0), "inputs[0].shape[1]: expected an integer"),
    (put("inputs", 0, "name", value="target"), "inputs[0].name: expected another name than target"),
    (put("inputs", 0, "name", value="params"), "inputs[0].name: expected another name than target"),
    (put("inputs", 0, "name", value=""), "inputs[0].name: expected a string of 1 to 200"),
    (put("layers", value=[]), "layers: expected an array of 1 to 4096 items"),
    (put("layers", 1, "name", value="fc1"), "layers[1].name: expected a name that no input"),
    (put("layers", 1, "name", value="x"), "layers[1].name: expected a name that no input"),
    (put("layers", 1, "name", value="target"), "layers[1].name: expected a name that no input"),
    (put("layers", 0, "input", value="fc2"), "layers[0].input: expected an input or a layer"),
    (put("layers", 0, "kind", value="conv"), 'layers[0].kind: expected "linear"'),
    (put("layers", 1, "weight_shape", value=[4, 1]), "layers[1].weight_shape: expected [in, out]"),
    (
        put("layers", 1, "weight_shape", value=[8, 1, 1]),
        "layers[1].weight_shape: expected an array",
    ),
    (put("layers", 1, "weight_shape", value=[8, 2**31 - 1]), "weight_shape: expected at most"),
    (put("layers", 0, "bias_shape", value=[8]), "layers[0].bias_shape: expected an array of 2"),
    (put("layers", 0, "bias_shape", value=[1, 8]), "layers[0].bias_shape: expected [batch, out]"),
    (put("layers", 0, "activation", value="relo"), 'did you mean "relu"?'),
    (put("loss", "kind", value="l1"), 'loss.kind: expected "mse"'),
    (put("loss", "prediction", value="x"), "loss.prediction: expected a layer (fc1, fc2)"),
    (put("loss", "target_shape", value=[8, 2]), "loss.target_shape: expected [8, 1]"),
    (put("optimizer", "kind", value="adam"), 'optimizer.kind: expected "sgd"'),
    (put("optimizer", "learning_rate", value=0), "optimizer.learning_rate: expected a finite"),
    (put("optimizer", "learning_rate", value=-1), "optimizer.learning_rate: expected a finite"),
    (put("optimizer", "learning_rate", value=1e-60), "optimizer.learning_rate: expected a number"),
    (put("optimizer", "learning_rate", value=True), "optimizer.learning_rate: expected a finite"),
    (put("training", "steps", value=2**32 + 5), "training.steps: expected an integer from 1"),
    (put("training", "steps", value=1.5), "training.steps: expected an integer"),
    (put("training", "steps", value=0), "training.steps: expected an integer from 1"),
    (put("training", "seed", value=-1), "training.seed: expected an integer from 0 to 4294967295"),
    (put("training", "seed", value=2**32), "training.seed: expected an integer from 0"),
    (put("training", "log_every", value=-1), "training.log_every: expected an integer from 0"),
    (put("training"), "training: expected a value (the training), received nothing; add it"),
    (put("data", "params"), "data.params: expected a value, received nothing; add it"),
    (put("data", "target"), "data.target: expected a value, received nothing; add it"),
    (put("data", "x"), "data.x: expected the data of the input, received nothing"),
    (put("data", "y", value={"kind": "inline", "values": []}), "data.y: expected no such key"),
    (put("data", "x", "kind", value="file"), 'data.x.kind: expected one of "inline"'),
    (put("data", "x", "range", value=[1, 1]), "data.x.range: expected [low, high] with low below"),
    (put("data", "x", "range", value=[0, 1, 2]), "data.x.range: expected an array of 2 items"),
    (put("data", "x", value={"kind": "inline", "values": [1.0]}), "data.x.values: expected 32"),
    (put("data", "x", value={"kind": "inline", "values": ["a"]}), "data.x.values[0]: expected a"),
    (put("data", "x", value={"kind": "inline", "values": [1e39]}), "data.x.values[0]: expected a"),
    (put("data", "params", "weight_range", value=[1, 0]), "data.params.weight_range: expected"),
    (put("data", "params", "bias_range"), "data.params.bias_range: expected a value"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_each_fault_is_refused_with_the_path_of_its_field(change, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        planned(change(tiny_mlp()))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.05", "1e999", "optimizer.learning_rate: expected a finite number above 0"),
        ("0.05", "NaN", "optimizer.learning_rate: expected a finite number above 0, received NaN"),
        ("0.05", "9" * 50, "optimizer.learning_rate: expected a finite number"),
        ('"steps": 300', '"steps": 300, "steps": 3', "training.steps: expected each key once"),
    ],
)
def test_faults_of_the_text_are_refused_with_the_path(old: str, new: str, message: str) -> None:
    text = json.dumps(tiny_mlp()).replace(old, new)
    with pytest.raises(InvalidArgumentError) as error:
        frontend.loads(text)
    assert message in str(error.value)


def test_two_layers_whose_parameters_get_one_name_are_refused() -> None:
    spec = tiny_mlp()
    spec["layers"][0]["name"] = spec["layers"][1]["input"] = "a-b"
    spec["layers"][1]["name"] = spec["loss"]["prediction"] = "a.b"
    with pytest.raises(InvalidArgumentError, match="layers.1..name: expected a name that leads"):
        planned(spec)


def test_an_input_with_the_name_of_a_parameter_is_refused() -> None:
    text = json.dumps(tiny_mlp()).replace('"x"', '"fc1_bias"')
    with pytest.raises(InvalidArgumentError, match="layers.0..name: expected a name that leads"):
        frontend.loads(text)


def test_every_section_of_the_example_is_required() -> None:
    for field in version0.ROOT.fields:
        if field.required and field.name != "schema_version":
            with pytest.raises(InvalidArgumentError, match=f"{field.name}: expected a value"):
                planned(edited(tiny_mlp(), field.name))
