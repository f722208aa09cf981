"""The TensorBoard writer: an extra."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from frame.core.errors import NotFoundError
from frame.train import TensorBoardLog
from tests.train.tasks import task


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(NotFoundError, match="pip install tensorboardX"):
        TensorBoardLog(tmp_path)


class Writer:
    """What `tensorboardX.SummaryWriter` is asked to do; the test below has the real one."""

    made: ClassVar[list[Writer]] = []

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.first = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.ends: list[str] = []
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, float(value), step))

    def flush(self) -> None:
        self.ends.append("flush")

    def close(self) -> None:
        self.ends.append("close")


def test_each_epoch_is_a_step_and_a_resumed_run_replaces_what_it_repeats(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    base = task().callback(TensorBoardLog(tmp_path / "b")).checkpoints(tmp_path / "c")
    history = base.run()
    base.total_epochs(4).run()
    first, second = Writer.made
    assert first.folder == str(tmp_path / "b") and (first.first, second.first) == (0, 3)
    assert first.ends == ["flush"] * 3 + ["close"]
    rows = {(name, step): value for name, value, step in first.scalars}
    assert {step for _, step in rows} == {0, 1, 2}
    for record in history.epochs:
        assert rows["training/loss", record.epoch] == record.loss
        assert rows["validation/top1", record.epoch] == record.validation["top1"]
        assert rows["learning_rate", record.epoch] == record.learning_rate
        assert rows["samples_per_second", record.epoch] > 0
    assert {step for _, _, step in second.scalars} == {3}


def test_scalars_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    task().callback(TensorBoardLog(tmp_path)).run()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    data = file.read_bytes()
    for name in (b"training/loss", b"validation/top1", b"learning_rate", b"samples_per_second"):
        assert data.count(name) == 3
