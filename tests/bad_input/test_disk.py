"""A process that is killed while it writes, and a disk that is full: what was there stays whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import frame
from frame.cli.demo import RECIPES, compiled
from frame.core import config, files
from frame.core.files import TEMPORARY, atomic_write, remove_stale
from frame.runtime.cache import ARTIFACT, Cache
from tests.project import checkout

SAVE = """
import sys, numpy as np, frame
from frame import nn
model = frame.compile(nn.Linear(400, 1000, name="wide"), [frame.spec((1, 400))])
number = 0
while True:
    model.load_params({"wide.weight": np.full((400, 1000), number, np.float32)})
    model.save(sys.argv[1])
    number += 1
    print(number, flush=True)
"""


def _started(code: str, *words: str, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTHONPATH": str(checkout.ROOT),
        "FRAME_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        text=True,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_kill_9_during_save_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "m.frame"
    generator = random.Random(0)
    for _ in range(4):
        process = _started(SAVE, str(path), folder=tmp_path)
        saved = int(process.stdout.readline())
        time.sleep(generator.uniform(0, 0.1))
        _kill(process)
        weight = frame.load(path).params["wide.weight"]
        assert saved >= 1 and np.all(weight == weight[0, 0])


FULL = """
import logging, resource, signal, sys
import numpy as np, frame
from frame import nn
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(name)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = frame.compile(nn.Linear(40, 100, name="net"), [frame.spec(("n", 40))])
model.save("m.frame")
before = open("m.frame", "rb").read()
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))  # no file may be larger
weights = lambda path: frame.interop.save_weights(path, model.params)
for write, path in ((model.save, "m.frame"), (weights, "m.npz")):
    try:
        write(path)
    except OSError as error:
        print("refused", path in str(error) and ".tmp" not in str(error))
x = np.ones((3, 40), np.float32)
for k in range(2):
    other = frame.compile(lambda x: frame.ops.softmax(x * (k + 2.0)), [frame.spec(("n", 40))])
    print("right", bool(np.allclose(other(x), 1 / 40)))
same = np.array_equal(frame.load("m.frame")(x), model(x))
print("kept", open("m.frame", "rb").read() == before, same)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system has no file-size limit")
def test_known_43_a_full_disk_costs_no_file_and_no_result(tmp_path: Path) -> None:
    settings = {"FRAME_CACHE_DIR": str(tmp_path / "cache")}
    done = checkout.run_python("-c", FULL, folder=tmp_path, path=checkout.ROOT, **settings)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        "refused True", "refused True", "WARNING frame.cache", "right True", "right True",
        "kept True True",
    ]  # fmt: skip
    assert [p for p in tmp_path.rglob(f".*{TEMPORARY}")] == []
    assert Cache(tmp_path / "cache" / "v2").verify()[1] == ()


def test_kill_9_during_the_demo_costs_neither_file_nor_cache(tmp_path: Path) -> None:
    code = "import sys; from frame.cli import main; main(sys.argv[1:])"
    kept = tmp_path / "digits.frame"
    kept.write_bytes(b"the network of yesterday")
    process = _started(code, "demo", "--quick", "--out", str(kept), folder=tmp_path)
    while "time per step" not in process.stdout.readline():
        assert process.poll() is None
    _kill(process)
    assert kept.read_bytes() == b"the network of yesterday"
    assert Cache(tmp_path / "cache" / "v2").verify()[1] == ()
    with config.override(FRAME_CACHE_DIR=str(tmp_path / "cache")):
        assert compiled(RECIPES[0], seed=0).entry("train_step").loaded.hit


def test_what_killed_writers_left_is_cleared_from_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    cache.put(ARTIFACT, "ab" * 32, b"kept")
    folder = tmp_path / ARTIFACT / "ab"
    old, young = folder / f".old{TEMPORARY}", folder / f".young{TEMPORARY}"
    for path in (old, young):
        path.write_bytes(bytes(5000))
    os.utime(old, (1, 1))
    cache.put(ARTIFACT, "cd" * 32, bytes(100))  # large enough for the cache to measure itself
    assert not old.exists() and young.exists(), "a writer may be at work on the young one"
    assert cache.get(ARTIFACT, "ab" * 32) == b"kept"
    os.utime(young, (1, 1))
    assert remove_stale(folder) == 1 and remove_stale(tmp_path / "absent") == 0


HALF = """
import os, signal, sys
from frame.core.files import atomic_write
def half(file):
    file.write(bytes(1000))
    file.flush()
    print("writing", flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.readline()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
atomic_write(sys.argv[1], half)
"""


def _leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(TEMPORARY)]


def test_the_next_save_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "m.frame"
    for _ in range(2):
        process = _started(HALF, str(path), "die", folder=tmp_path)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert len(_leftovers(tmp_path)) == 1, "a second killed writer has cleared the first one's"
    strange = tmp_path / f".m.frame.{'0' * 16}{TEMPORARY}"
    strange.symlink_to(path)
    others = tmp_path / f".other.frame.{'0' * 16}{TEMPORARY}"
    others.write_bytes(b"of another name")
    frame.compile(lambda x: x + 1.0, [frame.spec((2,))]).save(path)
    assert sorted(_leftovers(tmp_path)) == [strange, others]
    assert frame.load(path)(np.zeros(2, np.float32)).tolist() == [1, 1]


def test_a_save_leaves_the_file_of_a_writer_that_is_at_work(tmp_path: Path) -> None:
    path = tmp_path / "data"
    writer = subprocess.Popen(
        [sys.executable, "-c", HALF, str(path), "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(checkout.ROOT)},
    )
    with writer:
        writer.stdout.readline()
        (working,) = _leftovers(tmp_path)
        atomic_write(path, lambda file: file.write(b"meanwhile"))
        assert _leftovers(tmp_path) == [working]
        os.utime(working, (1, 1))
        assert remove_stale(tmp_path) == 0, "however old it is"
        writer.communicate(b"\n")
    assert path.read_bytes() == bytes(1000) and _leftovers(tmp_path) == []


def test_a_file_that_was_taken_for_abandoned_is_made_again(tmp_path: Path, monkeypatch) -> None:
    """Between the making of a temporary file and its lock another writer may remove it."""
    path, made = tmp_path / "data", []

    def removed_meanwhile(descriptor: int) -> bool | None:
        made.append(descriptor)
        if len(made) == 1:
            _leftovers(tmp_path)[0].unlink()
        return len(made) != 2

    monkeypatch.setattr(files, "_lock", removed_meanwhile)
    atomic_write(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole" and len(made) == 3 and _leftovers(tmp_path) == []


def test_a_save_waits_for_the_disk_and_the_cache_does_not(tmp_path: Path, monkeypatch) -> None:
    """What is lost with the power is made again, so a compile need not wait for the disk."""
    waits: list[int] = []
    wait = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: waits.append(file) or wait(file))
    cache = Cache(tmp_path / "cache")
    cache.put(ARTIFACT, "ab" * 32, b"kept")
    assert not waits and cache.get(ARTIFACT, "ab" * 32) == b"kept"
    atomic_write(tmp_path / "file", lambda file: file.write(b"saved"))
    assert waits
