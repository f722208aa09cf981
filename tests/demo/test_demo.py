"""The main job: `frame demo` trains, saves, and starts again from the cache."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

import frame
from frame.cli import demo, main
from frame.core import config
from frame.core.errors import DeviceError
from frame.data import digits
from tests.project import checkout

FEWEST_RIGHT = {"mlp": 0.97, "cnn": 0.985}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the current one; processes find frame in the checkout, and a cache there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(checkout.ROOT))
    monkeypatch.setenv("FRAME_CACHE_DIR", str(folder / "cache"))
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict:
    """The report of a quick run in a process of its own, with an empty cache."""
    done = checkout.run_python(
        *("-m", "frame", "demo", "--quick", "--json", "--seed", "3"),
        folder=folder,
        path=checkout.ROOT,
        FRAME_CACHE_DIR=str(folder / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_report_has_every_figure(report: dict) -> None:
    assert report["seed"] == 3 and report["quick"] is True and report["threads"] >= 1
    assert [model["name"] for model in report["models"]] == ["mlp", "cnn"]
    for model in report["models"]:
        assert model["steps"] == 3 * (1437 // model["batch"]) and model["epochs"] == 3
        for name in ("compile_seconds", "training_seconds", "seconds_per_step", "gflops"):
            assert model[name] > 0
        assert model["test_accuracy"] > 0.8 and model["from_cache"] is False
        assert model["host_steps"] == []
    assert report["models"][0]["parameters"] == 65 * 256 + 257 * 128 + 129 * 10


def test_the_new_process_runs_no_pass_and_compiles_nothing(report: dict) -> None:
    reload = report["reload"]
    assert (reload["passes"], reload["compiled"]) == (0, 0)
    assert reload["manifests"] == 1 and reload["artifacts"] >= 1
    assert reload["same_scores"] is True
    assert reload["test_accuracy"] == report["models"][1]["test_accuracy"]


def test_the_file_is_where_the_job_ran_and_loads_here(report: dict, here: Path) -> None:
    assert report["file"] == "digits.frame"
    model, data = frame.load(here / "digits.frame"), digits()
    right = np.mean(model(data.test_images).argmax(1) == data.test_labels)
    assert right == report["models"][1]["test_accuracy"]


def test_a_start_from_the_cache_never_loads_llvm(report: dict, here: Path) -> None:
    np.save("x.npy", digits().test_images[:5])
    words = ["run", "digits.frame", "--input", "x.npy", "--json", "--stats"]
    code = f"""
import sys
from frame.cli import main
assert main({words!r}) == 0
assert "llvmlite" not in sys.modules
"""
    done = checkout.run_python("-c", code, folder=here, path=checkout.ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["statistics"]["passes"] == 0 and found["statistics"]["load_seconds"] > 0
    (output,) = found["outputs"].values()
    assert np.shape(output["values"]) == (5, 10)


def test_the_text_has_every_figure_and_no_bar(report: dict, here: Path, capfd) -> None:
    assert main(["demo", "--quick", "--seed", "3", "--out", "other.frame"]) == 0
    captured = capfd.readouterr()
    assert captured.err == "" and "\x1b" not in captured.out
    for pattern in (
        r"frame \d+\.\d+\.\d+ on cpu: \S+, \d+ threads; seed 3",
        r"1,437 handwritten digits to learn from, 360 to test on, a few epochs only \(--quick\)",
        r"mlp, 50,826 parameters\n  test accuracy  \d+\.\d\d%",
        r"compile time   \d+\.\d\d s \(loaded from the cache\)",
        r"time per step  \d+\.\d\d ms",
        r"speed          \d+\.\d GFLOP/s",
        r"cnn saved as other\.frame \(\d+\.\d [KM]iB\)",
        r"passes run       0\n  compiled         0\n  from the cache   1 program, \d pieces",
        r"360 digits, \d+\.\d\d% right, same scores",
        r"written +\d  \d  \d",
        r"done in \d+\.\d s",
    ):
        assert re.search(pattern, captured.out), (pattern, captured.out)
    accuracy = report["models"][1]["test_accuracy"]
    assert captured.out.count(f"{accuracy:.2%}") >= 2  # the same seed gives the same network


def test_without_a_cache_the_numbers_are_honest(here: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FRAME_CACHE", "0")
    monkeypatch.setattr(demo, "RECIPES", demo.RECIPES[:1])
    assert main(["demo", "--quick", "--json", "--out", "uncached.frame"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"][0]["from_cache"] is False
    assert report["reload"]["compiled"] >= 1 and report["reload"]["passes"] > 0
    assert report["reload"]["manifests"] == 0 and report["reload"]["same_scores"] is True


def test_the_test_rows_have_no_part_in_the_training() -> None:
    data = digits()
    other = data._replace(test_images=data.test_images[::-1] * 0, test_labels=data.test_labels * 0)
    recipe = demo.RECIPES[0]
    one, two = (demo.train(recipe, each, seed=1, quick=True) for each in (data, other))
    assert one.accuracy != two.accuracy
    for name, value in one.model.params.items():
        np.testing.assert_array_equal(value, two.model.params[name])


def test_the_flops_of_a_step_are_about_three_times_those_of_the_forward_pass() -> None:
    """Each product has two gradients of the same work; the first needs that of its weights only."""
    recipe = demo.RECIPES[0]
    forward = [2 * recipe.batch * a * b for a, b in ((64, 256), (256, 128), (128, 10))]
    products = 2 * forward[0] + 3 * sum(forward[1:])
    found = demo.step_flops(demo.compiled(recipe, seed=0))
    assert products < found < 1.2 * products


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--out", "absent/digits.frame"], 1, "there is no folder absent"),
        (["--out", "digits.onnx"], 2, "ends in .frame"),
        (["--out", "/proc"], 1, "can't be written"),
        (["--seed", "-1"], 2, "from 0 to 2**63 - 1"),
        (["--seed", "two"], 2, "two"),
    ],
)
def test_mistakes_are_told_before_the_training(
    here: Path, capsys, monkeypatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.setattr(demo, "train", None)
    assert main(["demo", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and "Traceback" not in captured.err


def test_a_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    assert demo.checked_output(str(tmp_path)) == tmp_path / "digits.frame"


def test_a_process_that_fails_is_an_error_with_its_message(here: Path) -> None:
    (here / "torn.frame").write_bytes(b"FRAMEF1\n")
    with pytest.raises(DeviceError, match="frame run failed with code 1:\n.*torn.frame"):
        demo.reload(Path("torn.frame"), np.zeros((360, 10), np.float32), digits())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", demo.RECIPES, ids=lambda recipe: recipe.name)
def test_the_median_accuracy_of_five_seeds(recipe: demo.Recipe, tmp_path: Path) -> None:
    with config.override(FRAME_CACHE_DIR=str(tmp_path)):
        found = [demo.train(recipe, digits(), seed).accuracy for seed in range(5)]
    assert statistics.median(found) >= FEWEST_RIGHT[recipe.name], found
