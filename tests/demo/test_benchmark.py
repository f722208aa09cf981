"""The benchmark of the main job runs and prints what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project import checkout


@pytest.mark.slow
def test_it_prints_a_line_a_seed_and_one_of_medians(tmp_path: Path) -> None:
    script = checkout.ROOT / "benchmarks" / "digits.py"
    done = checkout.run_python(
        *(str(script), "--seeds", "2", "--quick"),
        folder=tmp_path,
        path=checkout.ROOT,
        FRAME_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    names = [f"digits {name}{end}" for name in ("mlp", "cnn") for end in ("", "", ", medians")]
    assert [row["case"] for row in rows] == names
    for row in rows:
        assert 0.5 < row["frame_accuracy"] <= 1 and row["frame_step_us"] > 0
        assert ("torch_accuracy" in row) == ("ratio" in row)
