"""The example of a backend plug-in: built as a wheel, unpacked as an install does, and used."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project import checkout
from tests.support.recorder import FOLDER

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and unpack the wheel; nothing is downloaded."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg*"))
    output = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(output)], cwd=source, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    [wheel] = output.glob("*.whl")
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(site: Path, cache: Path, *arguments: str) -> str:
    paths = f"{site}:{checkout.ROOT}"
    settings = {"FRAME_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    result = checkout.run_python(*arguments, folder=cache, **settings)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_demo_runs_on_the_installed_plug_in(site: Path, tmp_path: Path) -> None:
    text = run(site, tmp_path, str(FOLDER / "demo.py"))
    assert "[[0. 0. 0.]\n [0. 0. 0.]]" in text
    assert "operations: upload wait mul tanh wait download" in text
    again = run(site, tmp_path, str(FOLDER / "demo.py"))  # from the cache
    assert again == text


def test_the_command_lists_it(site: Path, tmp_path: Path) -> None:
    text = run(site, tmp_path, "-m", "frame", "backends")
    assert "recorder" in text and "cpu" in text
