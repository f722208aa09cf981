"""Schema version 1: graphs of layers, what it derives from the library, and every fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import frontend, nn
from frame.cli import main
from frame.compiler.optimizers import SGD
from frame.core.errors import InvalidArgumentError
from frame.data import TensorDataset
from frame.frontend import catalogue
from frame.frontend.run import kept_apart
from tests.frontend.specs import EXAMPLES, REMOVED, edited
from tests.support.recorder import names, recorder

DENSE = {"kind": "Linear", "in_features": 3, "out_features": 3}


def spec(**changes) -> dict:
    """Return a small sound spec: two inputs, a merge, a head."""
    return {
        "schema_version": 1,
        "model": {"name": "towers"},
        "inputs": [{"name": "a", "shape": [3]}, {"name": "b", "shape": [3]}],
        "layers": [
            {"name": "head", "kind": "Linear", "input": "sum", "in_features": 3, "out_features": 1},
            {"name": "left", "input": "a", **DENSE},
            {"name": "bent", "kind": "GELU", "input": "left", "approximate": "tanh"},
            {"name": "sum", "kind": "add", "inputs": ["bent", "b"]},
        ],
        "loss": {"kind": "MseLoss"},
        "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        "training": {"steps": 4, "batch_size": 4, "seed": 3, "shuffle": False},
        "data": {
            "a": {"kind": "uniform_seeded", "range": [-1, 1], "rows": 8},
            "b": {"kind": "uniform_seeded", "range": [-1, 1], "rows": 8},
            "target": {"kind": "uniform_seeded", "range": [-1, 1], "rows": 8},
        },
        **changes,
    }


def planned(made: dict, folder=".") -> frontend.Plan:
    return frontend.loads(json.dumps(made), folder)


def test_layers_in_any_order_train_as_the_same_model_in_python() -> None:
    result = frontend.train(planned(spec()))

    @nn.module(left=nn.Linear(3, 3), head=nn.Linear(3, 1))
    def towers(self, a, b):
        return self.head(frame.ops.gelu(self.left(a), approximate="tanh") + b)

    a, b, target = planned(spec()).columns()
    specs = {"a": frame.spec(("batch", 3)), "b": frame.spec(("batch", 3))}
    model = frame.compile(
        towers,
        specs,
        loss=nn.MseLoss(),
        targets=[frame.spec(("batch", 1))],
        optimizer=SGD(),
        sizes={"batch": 4},
        seed=3,
    )
    losses = []
    for step in range(4):
        rows = slice(4 * (step % 2), 4 * (step % 2) + 4)
        loss, _ = model.train_step(a[rows], b[rows], target[rows], learning_rate=np.float32(0.1))
        losses.append(float(loss))
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
    assert set(result.model.params) == set(model.params)


def test_the_example_learns_xor_from_a_table() -> None:
    result = frontend.train(frontend.load(EXAMPLES / "xor.json"))
    assert result.final_loss < 1e-4 < result.losses[0]
    np.testing.assert_allclose(result.predictions.ravel(), [0, 1, 1, 0], atol=0.02)


@pytest.mark.slow
def test_the_example_of_a_network_trains_with_validation() -> None:
    result = frontend.train(frontend.load(EXAMPLES / "residual_cnn.json"))
    assert len(result.losses) == 18
    assert result.validation is not None and result.validation < 2.0


def test_rows_that_are_kept_are_not_trained_on() -> None:
    """Of 8 rows 2 are kept: an epoch has 3 steps of 2, and none of them sees a kept row."""
    made = spec()
    made["training"] = {
        "epochs": 2, "batch_size": 2, "seed": 3, "shuffle": False, "validation_split": 0.25,
    }  # fmt: skip
    plan = planned(made)
    result = frontend.train(plan)
    assert len(result.losses) == 6 and result.validation is not None
    rows = TensorDataset(plan.columns())
    trained, kept = kept_apart(plan, rows)
    seen = {row.tobytes() for row in trained.columns[0]}
    assert kept is not None and len(trained) == 6 and len(kept) == 2
    assert not seen & {row.tobytes() for row in kept.columns[0]}


def test_a_run_is_saved_and_repeats(tmp_path) -> None:
    made = spec()
    made["training"] = {"epochs": 1, "batch_size": 3, "seed": 3, "save": "towers.frame"}
    plan = planned(made, tmp_path)
    first, second = frontend.train(plan), frontend.train(plan)
    assert first.losses == second.losses and len(first.losses) == 3
    a, b, _ = plan.columns()
    np.testing.assert_array_equal(frame.load(tmp_path / "towers.frame")(a, b), first.model(a, b))


def test_a_spec_trains_on_the_backend_that_it_names() -> None:
    expected = frontend.train(planned(spec()))
    with recorder() as backend:
        made = spec(model={"name": "towers", "backend": backend.name})
        found = frontend.train(planned(made))
        assert "matmul" in " ".join(names(backend))
        other = frontend.train(planned(spec()), backend=backend.name)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    assert other.losses == found.losses


def test_files_and_inline_numbers_give_the_columns(tmp_path) -> None:
    rows = np.arange(24, dtype=np.float64).reshape(8, 3) / 7
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", rows=rows.astype(np.float32), other=rows)
    (tmp_path / "t.csv").write_text("id;y\n" + "".join(f"{k};{k}.5\n" for k in range(8)))
    made = spec(
        data={
            "a": {"kind": "npy", "path": "a.npy"},
            "b": {"kind": "npz", "path": "b.npz", "array": "rows"},
            "target": {"kind": "csv", "path": "t.csv", "columns": ["y"], "delimiter": ";"},
        }
    )
    a, b, target = planned(made, tmp_path).columns()
    np.testing.assert_array_equal(a, rows.astype(np.float32))
    np.testing.assert_array_equal(b, a)
    np.testing.assert_array_equal(target, np.arange(8, dtype=np.float32)[:, None] + 0.5)
    made["data"]["target"] = {"kind": "inline", "values": [[k] for k in range(8)]}
    np.testing.assert_array_equal(planned(made, tmp_path).columns()[2].ravel(), range(8))


def test_weights_come_from_a_file(tmp_path) -> None:
    weight = np.eye(3, dtype=np.float32)
    np.savez(tmp_path / "w.npz", **{"left.weight": weight})
    model = frontend.compile_plan(
        planned(spec(model={"name": "t", "weights": "w.npz"}), tmp_path), train=False
    )
    np.testing.assert_array_equal(model.params["left.weight"], weight)


def test_compile_takes_a_spec(tmp_path, capsys) -> None:
    (tmp_path / "towers.json").write_text(json.dumps(spec()))
    assert main(["compile", str(tmp_path / "towers.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "towers" and [port["name"] for port in found["inputs"]] == ["a", "b"]
    assert main(["compile", str(tmp_path / "towers.json"), "--input", "3"]) == 2
    assert "has its own inputs" in capsys.readouterr().err


def test_every_factory_of_the_library_is_a_kind_or_has_a_reason() -> None:
    named = {*catalogue.layers(), *catalogue.losses()}
    assert set(catalogue.factories()) - named == set(catalogue.UNNAMED)
    assert {"Linear", "Conv2d", "Sequential", "LayerNorm"} <= set(catalogue.layers())
    assert {"MseLoss", "CrossEntropyLoss"} <= set(catalogue.losses())


def test_a_factory_that_needs_what_json_lacks_is_left_out(monkeypatch) -> None:
    def Applied(function: Callable[..., Any], width: int, *, name: str = "") -> nn.Module:
        return nn.Linear(width, width, name=name)

    def Wide(width: int, function: Callable[..., Any] | None = None) -> nn.Module:
        return nn.Linear(width, width)

    for factory in (Applied, Wide):
        monkeypatch.setattr(nn, factory.__name__, factory, raising=False)
    monkeypatch.setattr(nn, "__all__", (*nn.__all__, "Applied", "Wide"))
    found = catalogue.layers.__wrapped__()
    assert "Applied" not in found
    assert [field.name for field in found["Wide"].fields] == ["width"]


def put(*path, value=REMOVED):
    return lambda made: edited(made, *path, value=value)


def source(**entry):
    return put("data", "a", value=entry)


def concat(axis: int):
    layer = {"name": "sum", "kind": "concat", "inputs": ["bent", "b"], "axis": axis}
    return put("layers", 3, value=layer)


HEAD = ("layers", 0)
WRONG = [
    (
        put("optimizer", "learning_rate", value=1e39),
        "optimizer.learning_rate: expected a finite number above 0, received 1e+39",
    ),
    (put("extra", value=1), "extra: expected no such key"),
    (put(*HEAD, "kind", value="Linea"), 'did you mean "Linear"?'),
    (put(*HEAD, "in_feature", value=3), 'layers[0].in_feature: expected no such key, received 3; '),
    (put(*HEAD, "in_features"), "layers[0].in_features: expected a value, received nothing"),
    (put(*HEAD, "in_features", value=3.0), "layers[0].in_features: expected an integer"),
    (put(*HEAD, "in_features", value=0), "layers[0].in_features: in_features must be"),
    (put(*HEAD, "in_features", value=4), "layers[0]: in module head (Linear)"),
    (put(*HEAD, "bias", value=1), "layers[0].bias: expected true or false"),
    (put(*HEAD, "dtype", value="float33"), "layers[0].dtype: expected one of"),
    (put(*HEAD, "init", value={"kind": "uniforn"}), 'init.kind: expected one of "zeros"'),
    (put(*HEAD, "init", value={"kind": "uniform", "low": 1, "high": 0}), "layers[0].init.low"),
    (put(*HEAD, "name", value="a"), "layers[0].name: expected a name of its own"),
    (put(*HEAD, "name", value="target"), "layers[0].name: expected a name of its own"),
    (put(*HEAD, "name", value="my head"), "layers[0].name: expected a string that matches"),
    (put("inputs", 1, "name", value="a"), "inputs[1].name: expected a name of its own"),
    (put(*HEAD, "input", value="sun"), "layers[0].input: expected an input or a layer"),
    (put(*HEAD, "input", value="sum.1"), "layers[0].input: expected a result of sum, which has 1"),
    (put(*HEAD, "input"), "layers[0].input: expected one of input and inputs, received neither"),
    (put("layers", 3, "inputs", value=["bent"]), "layers[3].inputs: expected at least 2 values"),
    (put("layers", 3, "inputs", 1, value="bend"), "layers[3].inputs[1]: expected an input or a"),
    (put("layers", 3, "inputs", 1, value="sum"), "layers without a cycle, received sum <- sum"),
    (put("layers", 1, "input", value="sum"), "layers without a cycle, received "),
    (put("layers", 3, "inputs", 1, value="a"), "inputs[1]: expected something that the output"),
    (put("output", value="bent"), "inputs[1]: expected something that the output bent depends on"),
    (put("output", value="sum"), "layers[0]: expected something that the output sum depends on"),
    (put("output", value="a"), "output: expected a layer (head, left"),
    (put("loss", "kind", value="Mse"), 'loss.kind: expected one of "BCELoss"'),
    (put("loss", value={"kind": "CrossEntropyLoss", "label_smoothing": 2}), "loss.label_smoothing"),
    (put("loss", "reduction", value="maximum"), "loss.reduction: reduction must be one of"),
    (put("loss", value={"kind": "CrossEntropyLoss"}), "loss: in module loss (CrossEntropyLoss)"),
    (put("loss", "target_shape", value=[7]), "loss: in module loss (MseLoss)"),
    (put("loss", "reduction", value="none"), "loss: expected a loss of one number"),
    (concat(2), "layers[3]: expected an axis from -2 to 1, received 2"),
    (concat(-9), "layers[3].axis: expected an integer from -8 to 8"),
    (put("optimizer", "kind", value="adan"), 'did you mean "adam"?'),
    (put("optimizer", "momentum", value=-1), "optimizer.momentum: sgd: expected momentum to be"),
    (put("optimizer", "learning_rate"), "optimizer.learning_rate: expected one of it and schedule"),
    (put("schedule", value={"kind": "step", "base_lr": 1}), "received both, it and schedule"),
    (put("training", "epochs", value=1), "training.steps: expected one of steps and epochs"),
    (put("training", "steps", value=2**32 + 5), "training.steps: expected an integer from 1"),
    (put("training", "seed", value=-1), "training.seed: expected an integer from 0"),
    (put("training", "validation_split", value=1), "training.validation_split: expected a finite"),
    (put("training", "save", value="../x.frame"), "training.save: expected a file in the folder"),
    (put("model", "backend", value="gpu9"), "model.backend: there is no backend named 'gpu9'"),
    (put("data", "target"), "data.target: expected a column, received nothing"),
    (put("data", "c", value={"kind": "npy", "path": "c"}), "data.c: expected no such key"),
    (source(kind="npy", path="../a.npy"), "data.a.path: expected a file in the folder of the spec"),
    (source(kind="npy", path="/etc/hostname"), "data.a.path: expected a file in the folder of"),
    (source(kind="inline", values=[[1, 2], [3, 4]]), "data.a: expected rows of the shape [3]"),
    (source(kind="inline", values=[1, 2]), "data.a.values: expected a multiple of 3 numbers"),
    (source(kind="inline", values=[[1, 2, 3], [1]]), "data.a.values: expected arrays of equal"),
    (source(kind="inline", values=[[1, 2, "3"]]), "data.a.values[0][2]: expected a finite number"),
    (source(kind="inline", values=[1, 2, 3]), "expected equal numbers of rows, received data.a 1"),
    (source(kind="uniform_seeded", range=[1, 0], rows=8), "data.a.range: expected [low, high]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_each_fault_is_refused_with_the_path_of_its_field(change, message: str, tmp_path) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        frontend.check_data(planned(change(spec()), tmp_path))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", b"\x93NUMPY", "data.a.path: expected a sound .npy file"),
        ("x.npy", b"cos\nsystem\n(S'true'\ntR.", "data.a.path: expected a sound .npy file"),
        ("x.npz", b"PK", "data.a.path: expected a sound npz file"),
        ("x.csv", b"a,b,c\n\n1,2,x\n", "x.csv, line 3, column 2: expected a number, received"),
        ("x.csv", b"a,b,c\n1,2\n", "x.csv, line 2: expected a column 2, received 2 columns"),
        ("x.csv", b"a,b,d\n1,2,3\n", "data.a.columns[2]: expected a column of the header"),
        ("x.csv", b"a,b,c\n1,2,nan\n", "data.a: expected finite numbers, received nan in row 0"),
        ("x.csv", b"", "expected"),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, message: str, tmp_path) -> None:
    (tmp_path / name).write_bytes(content)
    entry: dict = {"kind": name[2:], "path": name}
    entry |= {"array": "a"} if name.endswith("npz") else {}
    entry |= {"columns": ["a", "b", "c"]} if name.endswith("csv") else {}
    with pytest.raises(InvalidArgumentError) as error:
        planned(source(**entry)(spec()), tmp_path).columns()
    assert message in str(error.value)


def test_values_of_other_ranks_are_not_joined() -> None:
    made = edited(concat(1)(spec()), "inputs", 1, "shape", value=[])
    with pytest.raises(InvalidArgumentError, match="layers.3.: concat on axis 1 needs shapes"):
        planned(made)


def test_objects_in_a_file_are_not_loaded(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object))
    with pytest.raises(InvalidArgumentError, match="data.a.path: expected a sound .npy file"):
        planned(source(kind="npy", path="x.npy")(spec()), tmp_path).columns()


def test_a_link_out_of_the_folder_is_followed_only_when_allowed(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "x.npy", np.zeros((8, 3), np.float32))
    (tmp_path / "in" / "x.npy").symlink_to(tmp_path / "x.npy")
    made = source(kind="npy", path="x.npy")(spec())
    with pytest.raises(InvalidArgumentError, match="in the folder of the spec"):
        planned(made, tmp_path / "in")
    plan = frontend.loads(json.dumps(made), tmp_path / "in", outside=True)
    assert plan.columns()[0].shape == (8, 3)


def test_whole_numbers_must_stay_what_they_are() -> None:
    made = spec(loss={"kind": "CrossEntropyLoss", "target_dtype": "int64"})
    made["data"]["target"] = {"kind": "inline", "values": [0.5] * 8}
    with pytest.raises(InvalidArgumentError, match="data.target: expected whole numbers"):
        planned(made).columns()
    made["data"]["target"] = {"kind": "uniform_seeded", "range": [0, 1], "rows": 8}
    with pytest.raises(InvalidArgumentError, match="data.target.kind: expected integers_seeded"):
        planned(made).columns()
