"""What compiles leave behind in a process: counted in resident bytes, after collection."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.startup import RSS
from tests.project import checkout


def _growth(count: int, folder) -> int:
    settings = {"FRAME_CACHE_DIR": str(folder)}
    words = ("-c", RSS, str(count))
    result = checkout.run_python(*words, folder=folder, path=checkout.ROOT, **settings)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["compiles"] == count
    return int(found["bytes"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_known_26_compiles_of_many_shapes_leave_little_behind(tmp_path) -> None:
    # 100 MB for 500 compiles; a fifth of them may grow by a fifth of it.
    assert _growth(100, tmp_path) <= 20_000_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_known_26_five_hundred_compiles_grow_by_less_than_a_hundred_megabytes(tmp_path) -> None:
    assert _growth(500, tmp_path) <= 100_000_000
