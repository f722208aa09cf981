"""What users of such systems hit, as whole models: another CPU, fork, threads, long graphs, jit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu.target import code_features, host_features, known_targets, named_target
from frame.core import config
from frame.core.dtypes import dtype
from frame.core.tolerances import GRADIENTS, compare
from frame.ops.interpreter import interpret
from tests.runtime.support import at_once, numbers

ROOT = Path(__file__).resolve().parents[2]


# --- another CPU ----------------------------------------------------------------------------------


def _mlp(x, w, v):
    return ops.softmax(ops.gelu(x @ w) @ v)


def _rows(x, w, v):
    return ops.layer_norm(x, w[:, 0], w[:, 1]) + ops.mean(ops.tanh(x), 1, True)


def _images(x, w, v):
    images = ops.reshape(x, (-1, 1, 5, 8))
    return ops.max_pool2d(
        ops.relu(ops.conv2d(images, ops.reshape(v[:3], (3, 1, 3, 7)))), (2, 2), (2, 2)
    )[0]


FUNCTIONS: dict[str, Callable] = {"mlp": _mlp, "rows": _rows, "images": _images}
SHAPES = ((9, 40), (40, 33), (33, 21))


def _runnable() -> list[str]:
    """The CPUs by name that this machine can run, and itself."""
    names = [name for name in known_targets() if name != "native"]
    machine = code_features(named_target("native"))[0]
    return ["native"] + [
        name
        for name in names
        if code_features(named_target(name))[0] == machine
        and set(named_target(name).features) <= host_features()
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_known_15_every_cpu_gives_the_result_within_the_tolerance(function: str, kind: str) -> None:
    floats = dtype(kind)
    arrays = [(numbers(*s, seed=k) / 4).astype(floats.numpy) for k, s in enumerate(SHAPES)]
    specs = [frame.spec(shape, kind) for shape in SHAPES]
    graph = frame.trace(FUNCTIONS[function], *specs)
    (want,) = interpret(graph, arrays)
    codes: dict[int, set[tuple[bytes, ...]]] = {}
    for name in _runnable():
        with config.override(FRAME_CPU=name):
            made = frame.compile(graph)
        # Several ops follow each other, as in a gradient: the table for those holds.
        scale = np.max(np.abs(want))
        compare(made(*arrays), want, floats, scale, f"{function} on {name}", table=GRADIENTS)
        code = made.entry("infer").loaded.run.pieces[0].executable.artifact
        features = set(named_target(name).features)
        assert set(code.cpu[1:]) == features, "the artefact records its CPU"
        codes.setdefault(named_target(name).vector_bits, set()).add(code.objects)
    distinct = set().union(*codes.values())
    assert len(distinct) == sum(map(len, codes.values())), "wider vectors make other code"


F16C = {"vcvtph2ps", "vcvtps2ph"}


@pytest.mark.skipif("f16c" not in host_features(), reason="the machine has no F16C to leave out")
def test_known_4_float16_without_f16c_gives_the_same_bits() -> None:
    """Every one of the 65,536 halves, through a rounding of a sum and of a product."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.roll(halves, 12345)
    found = {}
    for name in ("native", "native,-f16c"):
        with config.override(FRAME_CPU=name):
            made = frame.compile(
                lambda x, y: (x + y, x * y, ops.cast(x, "float32"), ops.cast(y, "float64")),
                [frame.spec((1 << 16,), "float16")] * 2,
            )
        lines = made.source()["assembly"].splitlines()
        instructions = {line.split()[0] for line in lines if line.startswith("\t")}
        assert bool(instructions & F16C) == (name == "native")
        found[name] = [_bits(result) for result in made(halves, other)]
    for one, two in zip(*found.values(), strict=True):
        np.testing.assert_array_equal(one, two)
    with np.errstate(all="ignore"):
        wanted = (halves.astype(np.float32) + other.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(found["native"][0], _bits(wanted))


def _bits(array: np.ndarray) -> np.ndarray:
    """The bits; one NaN for all of them, as the payload of a sum of two is not defined."""
    plain = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return plain.view(f"u{array.itemsize}")


# --- threads and fork -----------------------------------------------------------------------------

_FORK = """
import os, sys, time
import numpy as np, frame
model = frame.compile(lambda x, w: frame.ops.relu(x @ w), [("n", 256), (256, 300)])
step = np.random.default_rng(0)
x, w = (step.standard_normal(s).astype(np.float32) for s in ((500, 256), (256, 300)))
want = model(x, w).tobytes()
from frame.backends.cpu.pool import get_pool
def right(pool):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if model(x, w).tobytes() != want:
            return False
        if pool is None or sum(pool.worker_chunks()):
            return True
    return False
assert right(get_pool()), "no worker helped before the fork"
child = os.fork()
if child == 0:
    # The workers of the parent are not here: new ones are made, and help again.
    os._exit(0 if right(None) and right(get_pool()) and get_pool().threads == 2 else 1)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status) or (0 if right(None) else 3))
    time.sleep(0.01)
os.kill(child, 9)
sys.exit(4)
"""


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("wait", ["futex", "portable"])
def test_known_19_a_compiled_model_runs_in_a_forked_child(wait: str, cache_folder: Path) -> None:
    result = _python(
        _FORK, FRAME_NUM_THREADS="2", FRAME_POOL_WAIT=wait, FRAME_CACHE_DIR=str(cache_folder)
    )
    assert result.returncode == 0, result.stderr


def test_known_21_threads_call_the_same_and_other_models() -> None:
    """Large enough that every call is parallel; each thread has data of its own."""
    models = [
        frame.compile(lambda x, w: ops.softmax(x @ w), [("n", 96), (96, 200)]),
        frame.compile(lambda x, w: ops.sum(ops.exp(x), 1) + w[0, 0], [("n", 96), (96, 200)]),
        frame.compile(
            lambda x, w: (x * x + 1.0, w @ ops.transpose(w, (1, 0))), [(300, 96), (96, 200)]
        ),
    ]
    w = numbers(96, 200, seed=1) / 8
    data = [numbers(300, 96, seed=10 + k) for k in range(8)]

    def outcome(position: int, k: int) -> bytes:
        results = models[k](data[position], w)
        parts = results if isinstance(results, tuple) else (results,)
        return b"".join(part.tobytes() for part in parts)

    wanted = [[outcome(position, k) for k in range(3)] for position in range(8)]

    def work(position: int) -> bool:
        return all(
            outcome(position, (position + turn) % 3) == wanted[position][(position + turn) % 3]
            for turn in range(12)
        )

    with config.override(FRAME_NUM_THREADS="2"):
        assert at_once(8, work) == [True] * 8


# --- long graphs ----------------------------------------------------------------------------------


def _chain(length: int) -> Callable:
    """Build a straight line of `length` ops or more, none of which is like another."""

    def build(x):
        for k in range(length):
            x = ops.maximum(x * (1.0 + k / 8192), -x) if k % 2 else x + float(k)
        return x

    return build


def _work_of(length: int) -> tuple[int, ...]:
    """Count what a straight line of ops becomes: calls of Python functions, lines of each text."""
    calls = 0

    def count(*event: object) -> None:
        nonlocal calls
        calls += event[1] == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        made = frame.compile(_chain(length), [frame.spec((64,))])
    finally:
        sys.setprofile(before)
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    (want,) = interpret(made.graph, [x])
    compare(made(x), want, dtype("float32"), np.max(np.abs(want)))
    texts = made.source()
    return calls, texts["loop"].count("\n"), texts["llvm"].count("\n")


def test_known_27_the_work_of_a_straight_line_grows_with_its_length() -> None:
    """The whole pipeline: no part of it takes work that grows faster than the graph."""
    _work_of(10)  # imports, and the pool
    small, large = _work_of(150), _work_of(600)
    for one, four in zip(small, large, strict=True):
        assert four < 4.4 * one
    assert large[2] < 20 * 600  # lines of LLVM IR: what a vector and a scalar tail of an op take


# --- strides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 5, 16])
def test_known_34_any_stride_gives_the_bits_of_a_dense_copy(step: int) -> None:
    """Slices, through erf and softplus, stacked on the last axis: with vectors and without."""
    x = numbers(7, 161) * 2

    def stacked(part):
        return ops.stack([ops.erf(part), ops.softplus(part)], axis=2)

    for start in (0, 1, 4):
        dense = np.ascontiguousarray(x[:, start::step])
        sliced = frame.trace(lambda x, s=start: stacked(x[:, s::step]), frame.spec(x.shape))
        (want,) = interpret(sliced, [x])
        found = {frame.compile(stacked, [frame.spec(dense.shape)])(dense).tobytes()}
        made = frame.compile(sliced)(x)
        found.add(made.tobytes())
        narrow = [frame.compile(stacked, [(1, 1)])(dense[:1, k : k + 1]) for k in range(9)]
        assert len(found) == 1, "the strided path computes something else"
        assert np.concatenate(narrow, 1).tobytes() == made[:1, :9].tobytes(), "the scalar path"
        compare(made, want, dtype("float32"), np.max(np.abs(want)))


# --- recompiles -----------------------------------------------------------------------------------


def test_known_29_each_recompile_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @frame.jit
    def scaled(x, y, power=1):
        return x * y**power

    def reason(*arguments, **static) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, "frame.jit"):
            scaled(*arguments, **static)
        return " | ".join(record.getMessage() for record in caplog.records)

    one = np.float32(2)
    assert reason(numbers(3, 4), one) == ""  # the first compile has no reason to give
    assert "argument 0 is float32[5, 4], not float32[3, 4]" in reason(numbers(5, 4), one)
    for rows in range(1, 33):
        assert reason(numbers(rows, 4), one) == ""
    assert "argument 0 is float64[3, 4], not float32[n, 4]" in reason(np.ones((3, 4)), np.ones(()))
    assert "argument 0 is float32[3, 7], not float" in reason(numbers(3, 7), one)
    assert "keyword arguments other values" in reason(numbers(3, 4), one, power=2)
    assert scaled.compiles == 5
