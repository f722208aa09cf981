"""Checkpoints: a run that stops anywhere goes on as if it had not, and never loses the last one."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import frame
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.interop.weights import load_weights
from frame.train import SGD, Callback, ConstantLR, CsvLog, Ema, JsonLinesLog, MultiStepLR
from tests.project import checkout
from tests.train.tasks import task, weights


class Interrupt(Callback):
    """Ends the run as an interrupt would, after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, run) -> None:
        """Raise."""
        if run.step == self.at:
            raise KeyboardInterrupt


class Start(Callback):
    """Notes from which step a run goes on."""

    step: int | None = None

    def on_start(self, run) -> None:
        """Note it."""
        self.step = run.step


def _values(history) -> list[dict]:
    times = ("seconds",)
    return [{k: v for k, v in row.items() if k not in times} for row in history.to_data()]


@pytest.mark.parametrize("at", [1, 4, 5, 9, 10, 14])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, at: int) -> None:
    """Weights, optimizer state, averages, counters, random streams, order of rows, and history."""
    full = task().average(Ema()).accumulate(2).early_stop("val_loss", 9, restore=True)
    whole = full.run()
    saved = full.checkpoints(tmp_path / "c", every_steps=2)
    with pytest.raises(KeyboardInterrupt):
        saved.callback(Interrupt(at)).run()
    start = Start()
    resumed = saved.callback(start).run()
    # a run from the beginning would end alike: this one goes on from what the other one left
    assert start.step == max((k for k in (2, 4, 5, 6, 8, 10, 12, 14) if k < at), default=0)
    assert weights(resumed) == weights(whole) and _values(resumed) == _values(whole)
    assert resumed.model.counter.words.tolist() == whole.model.counter.words.tolist()
    assert (resumed.best, resumed.stopped) == (whole.best, whole.stopped)


def test_the_best_epoch_before_an_interrupt_is_given_back_after_it(tmp_path: Path) -> None:
    """The rate ruins the weights after the first epochs: the best ones are in the checkpoint."""
    ruins = MultiStepLR(base_lr=0.05, milestones=(3,), gamma=100.0)
    base = task(dropout=0.0, epochs=8).scheduler(ruins)
    watched = base.early_stop("val_loss", patience=8, restore=True)
    whole = watched.run()
    assert whole.best is not None and whole.best < 6
    saved = watched.checkpoints(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        saved.callback(Interrupt(38)).run()
    resumed = saved.run()
    assert resumed.best == whole.best and weights(resumed) == weights(whole)


def test_training_can_be_extended(tmp_path: Path) -> None:
    base = task().scheduler(ConstantLR(base_lr=0.01)).checkpoints(tmp_path)
    base.run()
    assert weights(base.total_epochs(5).run()) == weights(
        task().scheduler(ConstantLR(base_lr=0.01)).total_epochs(5).run()
    )


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    history = task(epochs=8, dropout=0.0).checkpoints(tmp_path, keep=2).run()
    steps = {int(path.stem[5:]) for path in tmp_path.glob("step-*.json")}
    assert steps == {35, 40, (history.best + 1) * 5}
    assert {p.stem for p in tmp_path.glob("*.safetensors")} == {
        p.stem for p in tmp_path.glob("*.json")
    }
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize("damage", ["cut", "header", "bit", "missing", "json"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str, caplog) -> None:
    saved = task().checkpoints(tmp_path, keep=9)
    whole = saved.run()
    file = tmp_path / (
        "step-0000000015.json" if damage == "json" else "step-0000000015.safetensors"
    )
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        # within a number near the end nothing but the digest can see it
        data[-6 if damage == "bit" else len(data) // 2] ^= 1
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    assert weights(saved.run()) == weights(whole)
    assert "passing over a checkpoint" in caplog.text


def test_checkpoints_of_another_task_are_refused(tmp_path: Path) -> None:
    saved = task().checkpoints(tmp_path)
    saved.run()
    with pytest.raises(InvalidArgumentError, match="of another task: their seed is 3, expected 4"):
        saved.manual_seed(4).run()
    with pytest.raises(InvalidArgumentError, match="their optimizer is"):
        saved.grad_clip(norm=1.0).run()
    assert len(saved.manual_seed(4).run(resume=False).epochs) == 3


RUN = """
import os, signal, sys
from frame.train import Callback
from tests.train.tasks import task, weights
import hashlib

class Kill(Callback):
    def on_start(self, run):
        print(run.step, flush=True)

    def on_step(self, run):
        if run.step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

history = task().checkpoints(sys.argv[1], every_steps=3).callback(Kill()).run()
print(hashlib.sha256(repr(sorted(weights(history).items())).encode()).hexdigest())
"""


def _process(code: str, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program on a folder; those of one test compile its model once."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, (folder, *words))],
        env=os.environ
        | {"PYTHONPATH": str(checkout.ROOT), "FRAME_CACHE_DIR": f"{folder.parent}/cache"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    for step, start in ((4, "0"), (11, "3")):
        done = _process(RUN, tmp_path / "a", step)
        assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, [start])
    killed, whole = _process(RUN, tmp_path / "a", -1), _process(RUN, tmp_path / "b", -1)
    assert killed.returncode == 0, killed.stderr
    (late, own), (early, other) = killed.stdout.split(), whole.stdout.split()
    assert own == other and (late, early) == ("10", "0")


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.train.tasks import task
from frame.train import Callback

class Fill(Callback):
    def on_step(self, run):
        if run.step == 7:  # no file may be larger: the checkpoint of step 10 does not fit
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

try:
    task().checkpoints(sys.argv[1]).callback(Fill()).run()
except OSError as error:
    print(type(error).__name__, "step-0000000010" in str(error), ".tmp" in str(error))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    done = _process(FULL, tmp_path)
    assert done.stdout == "OSError True False\n", done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-0000000005.json",
        "step-0000000005.safetensors",
    ]
    assert weights(task().checkpoints(tmp_path).run()) == weights(task().run())


@pytest.mark.parametrize("kept", [False, True])
def test_a_failure_names_the_checkpoint_to_go_on_from(tmp_path, kept: bool) -> None:
    wild = task().scheduler(ConstantLR(base_lr=1e30)).optimizer(SGD())
    wild = wild.checkpoints(tmp_path, every_steps=1) if kept else wild
    end = "; the newest checkpoint before it is that of step 1$" if kept else "in the data$"
    with pytest.raises(InvalidArgumentError, match=f"the loss is .* at step 2 .*{end}"):
        wild.run()


# --- the best model and the logs ------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "frame"])
def test_the_best_model_is_saved(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"best.{suffix}"
    history = task().early_stop("val_loss", 9, restore=True).save_best_model(path).run()
    saved = frame.load(path).params if suffix == "frame" else load_weights(path)
    assert set(saved) == set(history.model.params)
    for name, value in history.model.params.items():
        np.testing.assert_array_equal(saved[name], value)


def test_the_models_of_wanted_epochs_are_saved(tmp_path: Path) -> None:
    first, last = tmp_path / "first.npz", tmp_path / "last.safetensors"
    base = task().scheduler(ConstantLR(base_lr=0.01))
    saving = base.save_model_at_epoch(1, first).save_model_at_epoch(3, last)
    whole, short = saving.run().model, base.total_epochs(1).run().model
    for path, model in ((last, whole), (first, short)):
        found = load_weights(path)
        assert found.keys() == model.params.keys()
        assert all(np.array_equal(found[name], model.params[name]) for name in found)
    with pytest.raises(InvalidArgumentError, match="expected an epoch from 1 to 3.*received 4"):
        saving.save_model_at_epoch(4, last).run()


def test_logs_hold_every_epoch_once_after_a_resume(tmp_path: Path) -> None:
    def logged():
        logs = CsvLog(tmp_path / "log.csv"), JsonLinesLog(tmp_path / "log.jsonl")
        return task().validate_every(2).checkpoints(tmp_path / "c").callback(*logs)

    with pytest.raises(KeyboardInterrupt):
        logged().callback(Interrupt(12)).run()
    history = logged().run()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == history.to_data()
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == history.column("loss")
    assert rows[0]["val_loss"] == "" and float(rows[1]["val_loss"]) > 0


def test_a_log_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="its folder does not exist"):
        CsvLog(tmp_path / "no" / "log.csv")
