"""The examples run and print what their text promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(name: str, cache: Path) -> str:
    environment = {**os.environ, "FRAME_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_custom_op(tmp_path: Path) -> None:
    text = _run("custom_op.py", tmp_path)
    assert "[[ 1.  1.  5.]\n [ 9.  1. 13.]]" in text
    assert "kernels: ['scaled_relu_add']" in text


def test_custom_pass(tmp_path: Path) -> None:
    text = _run("custom_pass.py", tmp_path)
    assert "same results: True" in text
    assert "kernels: mul add" in text


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the test extra has it")
    nbclient = pytest.importorskip("nbclient", reason="the test extra has it")
    monkeypatch.setenv("FRAME_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "store it without outputs"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [cell.get("outputs", ()) for cell in notebook.cells if cell.cell_type == "code"]
    assert all(output for output in outputs[1:])
