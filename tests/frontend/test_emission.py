"""Emitted projects: built with the C compiler of the machine, they give frame's own numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frame import frontend, nn, ops
from frame.cli import main
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.frontend import catalogue
from frame.frontend.emission import texts
from tests.frontend.specs import EXAMPLES, edited, tiny_mlp
from tests.frontend.test_version0 import PREDICTIONS, TRAJECTORY
from tests.frontend.test_version1 import spec
from tests.project import checkout

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler `cc` on PATH")
# What a strict compiler refuses; kernels have names that not every function uses.
FLAGS = ["-std=c99", "-O1", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]
STRICT = [*FLAGS, "-ffp-contract=off"]


class Project:
    """An emitted project, and its programs once they are built."""

    def __init__(self, plan: frontend.Plan, folder: Path, **options) -> None:
        self.folder = folder
        self.files = frontend.emit(plan, folder, **options)
        self.name = texts.target_name(plan.name)

    def build(self, kind: str, *flags: str) -> None:
        """Compile a program without CMake."""
        sources = [
            f"main_{kind}.c",
            *(n for n in self.files if n.startswith("model") and n[-1] == "c"),
        ]
        command = [COMPILER, *STRICT, *flags, "-o", f"{self.name}_{kind}", *sources, "-lm"]
        found = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr[:2000]

    def run(self, kind: str, *words: str) -> subprocess.CompletedProcess:
        """Run a program in its folder."""
        command = [str(self.folder / f"{self.name}_{kind}"), *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def trained(self, *flags: str) -> tuple[dict[int, float], float, list[float]]:
        """Train; return the printed losses by step, the final one, and the predictions."""
        self.build("train", *flags)
        found = self.run("train")
        assert found.returncode == 0, found.stderr
        *steps, final, predictions = found.stdout.splitlines()
        losses = {int(line.split()[1]): float(line.split()[3]) for line in steps}
        values = predictions.removeprefix("predictions = ").removesuffix(" ...").split()
        return losses, float(final.removeprefix("final_loss ")), list(map(float, values))

    def inferred(self, weights: str, *inputs: str) -> np.ndarray:
        """Run inference; return the printed rows."""
        self.build("infer")
        found = self.run("infer", weights, *inputs)
        assert found.returncode == 0, found.stderr
        return np.array([list(map(float, line.split())) for line in found.stdout.splitlines()])


def planned(made: dict) -> frontend.Plan:
    return frontend.loads(json.dumps(made))


@needs_compiler
def test_tiny_mlp_trains_in_c_as_the_format_says(tmp_path) -> None:
    project = Project(frontend.load(EXAMPLES / "tiny_mlp.json"), tmp_path)
    losses, final, predictions = project.trained()
    assert list(losses) == list(TRAJECTORY) and final == losses[299]
    for step, loss in TRAJECTORY.items():
        assert losses[step] == pytest.approx(loss, rel=5e-6 if step < 150 else 5e-4, abs=1e-8)
    np.testing.assert_allclose(predictions, PREDICTIONS, atol=2e-6)
    rows = project.inferred("trained.bin", "input0.bin")
    np.testing.assert_allclose(rows.ravel(), PREDICTIONS, atol=2e-6)
    project.build("train")
    again = project.run("train")
    assert "final_loss" in again.stdout
    assert (tmp_path / "trained.bin").stat().st_size == 4 * (32 + 64 + 8)


def rich() -> dict:
    """A spec with what needs state of its own: adam, dropout, running statistics, labels."""
    made = spec(
        loss={"kind": "CrossEntropyLoss", "target_dtype": "int64"},
        optimizer={"kind": "adamw", "weight_decay": 0.1},
        schedule={"kind": "step", "base_lr": 0.05, "step_size": 1, "gamma": 0.5},
        training={"epochs": 3, "batch_size": 4, "seed": 3, "log_every": 1},
    )
    made["layers"][0]["out_features"] = 2
    made["layers"] += [
        {"name": "even", "kind": "BatchNorm1d", "input": "left", "num_features": 3},
        {"name": "thin", "kind": "Dropout", "input": "even", "rate": 0.25},
    ]
    made["layers"][2]["input"] = "thin"
    # The gradient of a bias before a normalisation is rounding noise, of which adam makes steps.
    made["layers"][1]["bias"] = False
    made["data"]["target"] = {"kind": "integers_seeded", "range": [0, 2], "rows": 8}
    return made


@needs_compiler
def test_optimizer_dropout_and_statistics_give_the_same_numbers(tmp_path) -> None:
    plan = planned(rich())
    result = frontend.train(plan)
    project = Project(plan, tmp_path)
    losses, _, predictions = project.trained()
    np.testing.assert_allclose(list(losses.values()), result.losses, rtol=2e-5)
    np.testing.assert_allclose(predictions, result.predictions.ravel(), rtol=2e-4, atol=1e-5)
    rows = project.inferred("trained.bin", "input0.bin", "input1.bin")
    np.testing.assert_allclose(rows, result.predictions, rtol=2e-4, atol=1e-5)
    names = [line.split(":")[0] for line in (tmp_path / "weights.txt").read_text().splitlines()]
    assert names == list(result.model.params)


@needs_compiler
def test_a_recurrence_is_a_loop_in_c_with_the_same_numbers(tmp_path) -> None:
    @nn.module(w=nn.param((3, 4)), u=nn.param((4, 4)), out=nn.Linear(4, 1))
    def recurrent(self, a, b):
        rows = [ops.reshape(value, (1, *value.shape)) for value in (a, b, a * b)]
        w, u = self.w, self.u

        def step(h, x):
            h = ops.tanh(x @ w + h @ u)
            return h, h

        last, _ = ops.scan(step, a @ w * 0.0, ops.concat(*rows, axis=0))
        return self.out(last)

    plan = replace(planned(spec()), module=recurrent)
    result = frontend.train(plan)
    losses, final, predictions = Project(plan, tmp_path).trained()
    assert list(losses) == [3] and final == pytest.approx(result.final_loss, rel=2e-5)
    np.testing.assert_allclose(predictions, result.predictions.ravel(), rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.slow
def test_a_convolutional_network_gives_the_same_numbers(tmp_path) -> None:
    plan = frontend.load(EXAMPLES / "residual_cnn.json")
    result = frontend.train(plan)
    losses, final, predictions = Project(plan, tmp_path).trained()
    np.testing.assert_allclose(final, result.final_loss, rtol=1e-4)
    np.testing.assert_allclose(
        list(losses.values()), [result.losses[step] for step in losses], rtol=1e-4
    )
    np.testing.assert_allclose(predictions, result.predictions.ravel()[:64], rtol=1e-3, atol=1e-4)


def chain(shape: list[int], *layers: dict) -> dict:
    """A spec whose layers stand one behind the other, with a Flatten and a Linear at the end."""
    named = [{"name": f"l{k}", "input": f"l{k - 1}" if k else "x"} for k in range(len(layers))]
    body = [head | layer for head, layer in zip(named, layers, strict=True)]
    flat = {"name": "flat", "kind": "Flatten", "input": body[-1]["name"]}
    # The width of the head is what the layers leave, 24 numbers in each chain.
    head = {"name": "head", "kind": "Linear", "input": "flat", "in_features": 24}
    made = spec(
        inputs=[{"name": "x", "shape": shape}],
        layers=[*body, flat, {**head, "out_features": 1}],
    )
    made["data"] = {name: made["data"]["a"] for name in ("x", "target")}
    return made


FAMILIES = {
    "sequences": (
        [2, 12],
        {"kind": "Conv1d", "in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": 1},
        {"kind": "Fno1dBlock", "in_channels": 4, "out_channels": 2, "modes": 3},
        {"kind": "Dwt1d", "wavelet": "db2", "mode": "smooth"},
        {"kind": "ConvTranspose1d", "in_channels": 4, "out_channels": 2, "kernel_size": 2,
         "stride": 2, "padding": 1},
        {"kind": "FourierFilter1d", "channels": 2, "size": 12},
    ),
    "recurrent": (
        [6, 4],
        {"kind": "LSTM", "input_size": 4, "hidden_size": 2, "bidirectional": True},
        {"kind": "Mamba", "features": 4, "state": 2},
        {"kind": "GRU", "input_size": 4, "hidden_size": 4},
    ),
    "attention": (
        [6, 4],
        {"kind": "MultiheadAttention", "embed_dim": 4, "num_heads": 2, "causal": True},
        {"kind": "TransformerEncoderBlock", "embed_dim": 4, "num_heads": 2, "ffn_dim": 6},
        {"kind": "RMSNorm", "features": 4},
    ),
    "images": (
        [2, 6, 8],
        {"kind": "Conv2d", "in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": 1},
        {"kind": "GroupNorm", "groups": 2, "channels": 4},
        {"kind": "SpectralConv2d", "in_channels": 4, "out_channels": 2, "modes": 2},
        {"kind": "Dwt2d"},
        {"kind": "MaxPool2d", "kernel_size": [1, 4]},
    ),
    "spikes": (
        [6, 4],
        {"kind": "Linear", "in_features": 4, "out_features": 4},
        {"kind": "LIFCell", "decay": 0.5, "threshold": 0.1},
    ),
}  # fmt: skip


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_each_family_train_in_c_with_the_same_numbers(family: str, tmp_path) -> None:
    plan = planned(chain(*FAMILIES[family]))
    result = frontend.train(plan)
    losses, _, predictions = Project(plan, tmp_path).trained("-O0")  # the compiler's time counts
    assert losses[3] == pytest.approx(result.final_loss, rel=2e-4)
    np.testing.assert_allclose(predictions, result.predictions.ravel(), rtol=1e-3, atol=2e-5)


@needs_compiler
@pytest.mark.slow
def test_no_program_leaves_its_memory_or_the_rules_of_c(tmp_path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    command = [COMPILER, *flags, "-o", str(tmp_path / "probe"), str(probe)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    project = Project(planned(rich()), tmp_path / "p")
    losses, _, _ = project.trained(*flags, "-fno-omit-frame-pointer")
    assert len(losses) == 6


@needs_compiler
def test_inference_alone_takes_any_number_of_rows(tmp_path) -> None:
    plan = planned(spec())
    project = Project(plan, tmp_path, train=False, rows=3)
    assert "main_train.c" not in project.files and "training.bin" not in project.files
    model = frontend.compile_plan(plan, train=False)
    a, b, _ = plan.columns()
    rows = project.inferred("weights.bin", "input0.bin", "input1.bin")
    np.testing.assert_allclose(rows, model(a[:3], b[:3]), rtol=2e-5, atol=1e-6)


@needs_compiler
def test_programs_refuse_files_that_do_not_fit(tmp_path) -> None:
    project = Project(planned(rich()), tmp_path)
    project.build("infer")
    project.build("train")
    assert project.run("infer").returncode == 2
    assert "usage:" in project.run("infer").stderr
    short = tmp_path / "short.bin"
    short.write_bytes((tmp_path / "input0.bin").read_bytes()[:-1])
    found = project.run("infer", "weights.bin", "short.bin", "input1.bin")
    assert found.returncode == 1 and "short.bin: expected 48 bytes" in found.stderr
    short.write_bytes((tmp_path / "weights.bin").read_bytes() + b"more")
    assert "received more" in project.run("train", "short.bin").stderr
    assert "can't be opened" in project.run("train", "none.bin").stderr
    data = bytearray((tmp_path / "training.bin").read_bytes())
    place = data.index(np.int64(1).tobytes() + np.int64(0).tobytes())
    data[place : place + 8] = np.int64(7).tobytes()
    short.write_bytes(data)
    found = project.run("train", "weights.bin", "short.bin")
    assert found.returncode == 1 and "an index from 0 to 2 - 1, received 7" in found.stderr


@needs_compiler
def test_names_of_any_text_are_safe_in_c(tmp_path) -> None:
    text = json.dumps(tiny_mlp()).replace('"x"', json.dumps('*/ "%d" ??/\\ é\n'))
    made = edited(json.loads(text), "model", "name", value="*/ #error \n $(x) é")
    made["training"]["steps"] = 1
    project = Project(planned(made), tmp_path)
    losses, _, _ = project.trained()
    assert losses[0] == pytest.approx(0.43104, abs=5e-7)
    project.build("infer")
    assert 'INPUT... (1 of them: */ "%d" ??/\\ é\n)' in project.run("infer").stderr


@needs_compiler
@pytest.mark.slow
def test_cmake_builds_the_project(tmp_path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on PATH")
    assert main(["emit", str(EXAMPLES / "tiny_mlp.json"), "--out", str(tmp_path / "p")]) == 0
    for words in (["-S", "p", "-B", "p/build"], ["--build", "p/build"]):
        command = ["cmake", *words]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
    command = [str(tmp_path / "p" / "build" / "tiny_mlp_train")]
    found = subprocess.run(command, cwd=tmp_path / "p", capture_output=True, text=True, check=True)
    assert found.stdout.startswith("step 0 loss 0.43104\n")


def test_the_text_is_the_same_each_time(tmp_path) -> None:
    plan = planned(rich())
    files = frontend.emit(plan, tmp_path / "one")
    frontend.emit(planned(rich()), tmp_path / "two")
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), (
            name
        )


@pytest.mark.slow
def test_the_text_is_the_same_in_another_process(tmp_path) -> None:
    (tmp_path / "rich.json").write_text(json.dumps(rich()))
    frontend.emit(frontend.load(tmp_path / "rich.json"), tmp_path / "one")
    code = "import sys; from frame.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["emit", str(tmp_path / "rich.json"), "--out", str(tmp_path / "two")]
    found = checkout.run_python("-c", code, *words, folder=checkout.ROOT)
    assert found.returncode == 0, found.stderr
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_emission_refuses_batches_of_two_sizes(tmp_path) -> None:
    made = edited(spec(), "training", "batch_size", value=3)
    with pytest.raises(InvalidArgumentError, match="training.drop_last: expected true to emit"):
        frontend.emit(planned(made), tmp_path)
    made["training"]["drop_last"] = True
    assert "main_train.c" in frontend.emit(planned(made), tmp_path)


def test_the_command_tells_where_it_wrote(tmp_path, capsys) -> None:
    out = str(tmp_path / "project")
    assert main(["emit", str(EXAMPLES / "xor.json"), "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "xor" and sorted(found["files"]) == sorted(
        path.name for path in Path(out).iterdir()
    )
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    assert main(["emit", str(wrong), "--out", out]) == 1
    assert "schema_version: expected" in capsys.readouterr().err


def test_types_that_c_lacks_are_refused(tmp_path) -> None:
    made = spec()
    for entry in made["inputs"]:
        entry["dtype"] = "bfloat16"
    for layer in made["layers"]:
        layer |= {"dtype": "bfloat16"} if layer["kind"] == "Linear" else {}
    made["loss"]["target_dtype"] = "bfloat16"
    with pytest.raises(UnimplementedError, match="bfloat16 has no type in C"):
        frontend.emit(planned(made), tmp_path)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(catalogue.optimizers()))
def test_every_optimizer_trains_in_c(kind: str, tmp_path) -> None:
    plan = planned(spec(optimizer={"kind": kind, "learning_rate": 0.05}))
    result = frontend.train(plan)
    losses, _, predictions = Project(plan, tmp_path).trained()
    assert losses[3] == pytest.approx(result.final_loss, rel=1e-4)
    np.testing.assert_allclose(predictions, result.predictions.ravel(), rtol=1e-3, atol=1e-5)
