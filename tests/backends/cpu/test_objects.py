"""Artefacts of several objects: cut, made side by side, linked; and workers that fail."""

from __future__ import annotations

import ctypes
import sys
from functools import partial

import numpy as np
import pytest

import frame
from frame import nn
from frame.backends.cpu import compiling, elf, llvm, objects
from frame.backends.cpu.target import host_target, named_target
from frame.codegen.emit.llvm import ModulePart, emit_parts
from frame.core import config
from frame.core.errors import InternalError

CALLER = """
declare dso_local i64 @callee(i64)
@calls = internal global i64 0
define i64 @caller(i64 %x) nounwind {
  %n = load i64, ptr @calls
  %m = add i64 %n, 1
  store i64 %m, ptr @calls
  %y = call i64 @callee(i64 %x)
  %z = add i64 %y, %m
  ret i64 %z }
"""
CALLEE = """
@table = internal constant [3 x i64] [i64 5, i64 7, i64 11]
define i64 @callee(i64 %x) nounwind {
  %p = getelementptr i64, ptr @table, i64 %x
  %v = load i64, ptr %p
  ret i64 %v }
"""
PARTS = (ModulePart(CALLER, frozenset({"callee"})), ModulePart(CALLEE, frozenset()))


def _call(made: tuple[bytes, ...], x: int) -> int:
    loaded = elf.load(*made)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded.symbol("caller"))(x)


@pytest.fixture
def two_threads():
    with config.override(FRAME_NUM_THREADS="2"):
        yield


def test_what_one_object_lacks_another_defines(two_threads) -> None:
    made = objects.compile_parts(PARTS, host_target())
    assert [_call(made, x) for x in range(3)] == [6, 8, 12]
    assert _call(made[::-1], 1) == 8, "in any order"


def test_objects_that_do_not_fit_are_refused() -> None:
    caller, callee = objects.compile_parts(PARTS, host_target())
    with pytest.raises(InternalError, match="callee"):
        elf.load(caller)
    with pytest.raises(InternalError, match="one definition of each name"):
        elf.load(caller, callee, callee)
    other = "armv8-a" if "x86" in host_target().triple else "x86-64"
    with pytest.raises(InternalError, match="one machine"):
        elf.load(caller, llvm.compile_ir(CALLEE, named_target(other)))
    with pytest.raises(InternalError, match="absent"):
        llvm.compile_ir(CALLER.replace("@callee", "@absent"), host_target())


NONSENSE = "import sys; sys.stdin.buffer.readline(); print('{}', flush=True)"


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("import sys; sys.exit(3)", None),
        (NONSENSE, None),
        (f"{NONSENSE}; import time; time.sleep(300)", None),
        ("import os; os.kill(os.getpid(), 9)", None),
        ("import os; os.abort()", "LLVM ended a process"),
    ],
    ids=["ends", "answers nonsense", "answers nonsense and stays", "is killed", "aborts"],
)
def test_a_worker_that_fails(monkeypatch, two_threads, start: str, says: str | None) -> None:
    """Whatever happens to a worker, this process makes its module, but for one that ends LLVM."""
    monkeypatch.setattr(objects, "START", start)
    monkeypatch.setattr(objects._Work, "compile_here", _late(objects._Work.compile_here))
    if says is None:
        assert _call(objects.compile_parts(PARTS, host_target()), 2) == 12
    else:
        with pytest.raises(InternalError, match=says):
            objects.compile_parts(PARTS, host_target())


def _late(compile_here):
    """Let the worker take its module first."""
    import threading

    def wait(work):
        for thread in threading.enumerate():
            if isinstance(thread, objects._Worker):
                thread.join(30)
        compile_here(work)

    return wait


def test_a_thread_that_the_system_refuses(monkeypatch, two_threads) -> None:
    def refuse(worker: objects._Worker) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(objects._Worker, "start", refuse)
    assert _call(objects.compile_parts(PARTS, host_target()), 2) == 12


def test_no_worker_starts_where_python_is_another_program(monkeypatch, two_threads) -> None:
    monkeypatch.setattr(sys, "executable", "editor")
    assert objects._worker_count(4) == 0
    assert _call(objects.compile_parts(PARTS, host_target()), 0) == 6


def test_an_error_in_a_worker_is_raised_here(monkeypatch, two_threads) -> None:
    monkeypatch.setattr(objects._Work, "compile_here", _late(objects._Work.compile_here))
    bad = ModulePart("define i64 @f() { ret i32 1 }" + " " * 500, frozenset())
    with pytest.raises(InternalError, match="LLVM IR"):
        objects.compile_parts((bad, PARTS[1]), host_target())


def test_a_network_in_pieces_gives_the_same_bits(monkeypatch, two_threads) -> None:
    """Kernels, those that several call and the entry land in different objects."""
    layers = [
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(),
        nn.Linear(8 * 36, 16), nn.Softmax(),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32)

    def run(longest: int | None) -> tuple[np.ndarray, list[int]]:
        monkeypatch.setattr(compiling.emitter, "emit_parts", partial(emit_parts, longest=longest))
        with config.override(FRAME_CACHE="0"):
            model = frame.compile(nn.Sequential("net", layers), [frame.spec((2, 3, 8, 8))], seed=1)
            pieces = model.entry("infer").loaded.run.pieces
            text = str(model.source()["assembly"])
            assert "frame_entry" in text, "the texts are those of all objects"
            return model(x), [len(piece.executable.artifact.objects) for piece in pieces]

    whole, one = run(None)
    cut, several = run(3_000)
    assert one == [1] and several[0] > 3
    assert np.array_equal(whole, cut)


def test_the_cut_depends_on_the_text_alone() -> None:
    """So that machines with more threads make the same artefact."""
    made = []
    for threads in ("1", "3"):
        with config.override(FRAME_NUM_THREADS=threads):
            made.append(objects.compile_parts(PARTS, host_target()))
    assert made[0] == made[1]
