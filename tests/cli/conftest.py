"""A folder with a user's models, as the current folder, and a cache of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frame.cli import main
from frame.core import config

SOURCE = """
import frame
from frame import nn


def add_relu(x, y):
    return frame.ops.relu(x + y)


def negate(x):
    return -x


def network():
    return nn.Sequential("network", [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)])


def nothing():
    return None


def leaves():
    raise SystemExit(3)


def fails(x):
    return x + missing


def endless(x):
    return endless(x)


jitted = frame.jit(negate)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a folder with the module `user_models` the current one, and give it its own cache."""
    (tmp_path / "user_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "user_models", raising=False)
    with config.override(FRAME_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path


@pytest.fixture
def saved(folder: Path, capsys) -> Path:
    """Return a saved model and its input, as files in the current folder."""
    words = ["user_models:negate", "--input", "batch,4", "-o", "model.frame"]
    assert main(["compile", *words]) == 0
    capsys.readouterr()
    np.save("x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    return folder
