"""A folder with a user's models, as the current folder, and a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

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
