"""Machines that other systems fail on: no compiler, no PATH, folders with spaces and letters."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.project import checkout

COMPILE = """
import numpy as np
import frame
from frame import nn

mlp = nn.Sequential("mlp", [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)])
model = frame.compile(mlp, inputs=[frame.spec(("batch", 8))])
print(np.asarray(model(np.ones((3, 8), np.float32))).tobytes().hex())
"""
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _compile(folder: Path, **environment: str) -> str:
    result = checkout.run_python("-c", COMPILE, folder=folder, path=checkout.ROOT, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_known_1_compile_needs_no_compiler_on_the_path(tmp_path: Path) -> None:
    # An empty folder is the whole PATH: every attempt to start a program by name fails.
    found = _compile(tmp_path, PATH=str(tmp_path), FRAME_CACHE_DIR=str(tmp_path / "cache"))
    assert len(found.strip()) == 3 * 4 * 4 * 2


def test_known_2_folders_with_spaces_and_letters_of_any_language(tmp_path: Path) -> None:
    place = tmp_path / "ein Ordner mit Leerzeichen" / "目录 é"
    place.mkdir(parents=True)
    for name in checkout.PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout.ROOT / name, place / name, ignore=ignored)
    shutil.copy(checkout.ROOT / "pyproject.toml", place)
    result = checkout.run_python(
        "-c", COMPILE, folder=place, FRAME_CACHE_DIR=str(place / "cache"), TMPDIR=str(place)
    )
    assert result.returncode == 0, result.stderr
    assert any((place / "cache").rglob("*")), "the cache in such a folder stays empty"


def test_known_3_an_empty_path_gives_identical_results(tmp_path: Path) -> None:
    usual = _compile(tmp_path, FRAME_CACHE_DIR=str(tmp_path / "a"))
    without = _compile(tmp_path, PATH="", FRAME_CACHE_DIR=str(tmp_path / "b"))
    assert usual == without


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_models_of_the_readme_run(tmp_path: Path, name: str) -> None:
    checks = "assert y.shape == (32, 10)\nassert trained(data.test_images).shape[1] == 10"
    code = "\n".join(SNIPPET.findall((checkout.ROOT / name).read_text("utf-8")))
    result = checkout.run_python(
        "-c",
        f"{code}\n{checks}",
        folder=tmp_path,
        path=checkout.ROOT,
        FRAME_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert result.returncode == 0, result.stderr
