"""Forks while other threads train, call and compile: the child goes on, with whole parameters."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from frame.core import forks
from frame.runtime import turns as turns_module
from frame.runtime.turns import Turns

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import itertools, json, os, sys, threading, time
import numpy as np, frame
from frame import nn
from frame.train import SGD

def trainer():
    net = nn.Sequential("net", [nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)])
    return frame.compile(net, [frame.spec(("n", 32))], loss=nn.CrossEntropyLoss(),
                         targets=[frame.spec(("n",), "int64")], optimizer=SGD(momentum=0.5))

steps = itertools.count()  # of all threads

def step(model):
    model.train_step(x, labels, learning_rate=0.01)
    next(steps)

x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
labels = np.arange(64) % 10
model, twin = trainer(), trainer()
step(model); step(twin); model(x)
stop = threading.Event()

def forever(work):
    while not stop.is_set():
        work(model)

def compile_another(_):
    factor = time.perf_counter()
    frame.compile(lambda a: a * factor, [("n", 3)])(np.ones((5, 3), np.float32))

def mixed(_):
    for rows in range(1, 40):
        model(x[:rows])

works = [step, step, mixed, compile_another]
threads = [threading.Thread(target=forever, args=(work,), daemon=True) for work in works]
for thread in threads:
    thread.start()

def child(path):
    before = {name: array.tobytes().hex() for name, array in model.store.items()}
    assert np.isfinite(model(x[:7])).all()
    step(model)
    compile_another(None)
    with open(path, "w") as file:
        json.dump(before, file)

folder, outcomes = sys.argv[1], []
for number in range(8):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            child(os.path.join(folder, f"{number}.json"))
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    done = 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    if not done:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    outcomes.append(os.waitstatus_to_exitcode(status) if done else "hangs")
stop.set()
for thread in threads:
    thread.join(60)
assert outcomes == [0] * 8, outcomes

# Each child had the parameters after some number of whole steps, as a model trained alone has them.
wanted = []
for number in range(8):
    with open(os.path.join(folder, f"{number}.json")) as file:
        wanted.append(json.load(file))
for _ in range(next(steps)):
    now = {name: array.tobytes().hex() for name, array in twin.store.items()}
    wanted = [state for state in wanted if state != now]
    if not wanted:
        break
    step(twin)
assert not wanted, f"{len(wanted)} children had parameters of no step"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_known_19_a_fork_while_threads_train_call_and_compile(
    tmp_path: Path, cache_folder: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FRAME_NUM_THREADS": "2"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]


def _status_of_child(work) -> int:
    """Return the exit status of a forked child: 0 when `work` is true there."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("make", [forks.lock, forks.recursive_lock])
def test_a_lock_that_another_thread_holds_is_open_in_the_child(make) -> None:
    held, done, lock = threading.Event(), threading.Event(), make()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert _status_of_child(lambda: lock.acquire(timeout=5)) == 0
        assert not lock.acquire(blocking=False), "the parent's lock stays as it was"
    finally:
        done.set()
        thread.join()


def test_a_recursive_lock_of_the_forking_thread_stays_its_own() -> None:
    lock = forks.recursive_lock()
    with lock:

        def child() -> bool:
            lock.release()  # raises where it is not held
            return True

        assert _status_of_child(child) == 0


def test_a_fork_waits_for_the_writer_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_FORK_SECONDS", 60.0)
    turns, begun, again, stuck, end = Turns(), *(threading.Event() for _ in range(4))
    values = [0, 0]

    def write() -> None:
        with turns.writing():
            values[0] = 1
            begun.set()
            time.sleep(0.2)  # so that the fork comes meanwhile
            values[1] = 1
        again.wait(60)
        with turns.writing():
            stuck.set()
            end.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(60)
    assert _status_of_child(lambda: values == [1, 1]) == 0, "half a step"
    again.set()
    stuck.wait(60)
    monkeypatch.setattr(turns_module, "_FORK_SECONDS", 0.1)

    def child() -> bool:
        with turns.writing(), turns.reading():
            return True

    assert _status_of_child(child) == 0
    end.set()
    thread.join()


def test_a_fork_waits_for_an_import_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What frame imports when it first needs it may be under way in any thread."""
    name = "frame_slow_module"
    (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(0.3)\nvalue = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    while name not in sys.modules:
        time.sleep(0.001)

    def child() -> bool:
        signal.alarm(30)  # ends a child that hangs
        return importlib.import_module(name).value == 5

    try:
        assert _status_of_child(child) == 0
    finally:
        thread.join()
        sys.modules.pop(name, None)


class _Slow:
    entered = threading.Event()

    @forks.cached_property
    def value(self) -> int:
        self.entered.set()
        time.sleep(0.3)
        return 5


def test_a_child_reads_a_property_that_another_thread_was_computing() -> None:
    """Those of functools have one lock for all objects, up to Python 3.11."""
    thread = threading.Thread(target=lambda: _Slow().value)
    thread.start()
    _Slow.entered.wait(60)

    def child() -> bool:
        signal.alarm(30)  # ends a child that hangs
        return _Slow().value == 5

    assert _status_of_child(child) == 0
    thread.join()


def test_no_property_has_a_lock_of_its_own() -> None:
    uses = re.compile(r"from functools import .*cached_property|functools\.cached_property")
    found = [
        str(path)
        for folder in ("frame", "codegen", "backends")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if uses.search(path.read_text("utf-8")) and path.name != "forks.py"
    ]
    assert found == []


def test_a_fork_does_not_keep_others_from_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks of other packages, such as logging, run after frame's and may wait for them."""
    name = "frame_empty_module"
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    held = threading.Event()

    def work() -> None:
        with logging._lock:
            held.set()
            time.sleep(0.2)
            importlib.import_module(name)

    thread = threading.Thread(target=work)
    thread.start()
    held.wait(60)
    signal.alarm(60)  # ends a fork that hangs
    try:
        assert _status_of_child(lambda: True) == 0
    finally:
        signal.alarm(0)
        thread.join()
        sys.modules.pop(name, None)
