"""The TensorBoard writer: an extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frame.core.errors import NotFoundError
from frame.train import TensorBoardLog
from tests.train.tasks import task


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(NotFoundError, match="pip install tensorboardX"):
        TensorBoardLog(tmp_path)


def test_scalars_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    task().callback(TensorBoardLog(tmp_path)).run()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    data = file.read_bytes()
    for name in (b"training/loss", b"validation/top1", b"learning_rate", b"samples_per_second"):
        assert data.count(name) == 3
