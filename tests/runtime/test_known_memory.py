"""What compiles leave behind in a process: counted in resident bytes, after collection."""

from __future__ import annotations

import sys

import pytest

from tests.project import checkout

COMPILES = """
import gc
import numpy as np
import frame

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def one(size):
    model = frame.compile(lambda x: frame.ops.softmax(x * 2.0) + 1.0, [frame.spec((3, size))])
    model(np.zeros((3, size), np.float32))

for size in range(1, 21):
    one(size)
before = resident()
for size in range(21, 21 + {count}):
    one(size)
print(resident() - before)
"""


def _growth(count: int, folder) -> int:
    settings = {"FRAME_CACHE_DIR": str(folder)}
    code = COMPILES.replace("{count}", str(count))
    result = checkout.run_python("-c", code, folder=folder, path=checkout.ROOT, **settings)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_known_26_compiles_of_many_shapes_leave_little_behind(tmp_path) -> None:
    # 100 MB for 500 compiles; a fifth of them may grow by a fifth of it.
    assert _growth(100, tmp_path) <= 20_000_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_known_26_five_hundred_compiles_grow_by_less_than_a_hundred_megabytes(tmp_path) -> None:
    assert _growth(500, tmp_path) <= 100_000_000
