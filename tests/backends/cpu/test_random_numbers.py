"""Native random numbers are bit for bit those that numpy makes in `frame.core.philox`."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from frame import nn
from frame.backends.cpu import elf, llvm, random_numbers
from frame.backends.cpu.target import host_architecture, host_features, named_target
from frame.core import philox
from frame.core.dtypes import bfloat16, float16, float32, float64

FIXED = [(0, 0, 0, 0), (0xFFFFFFFF, 0xD1B54A32, 5, 7), (3, 4, 0xFFFFFFFF, 0xFFFFFFF0)]
RANGES = [(-0.037, 0.0741), (0.0, 1.0), (1e30, 1e38), (5.0, 0.0), (-3e-39, 1e-40)]


class Memory(dict):
    """A store in memory."""

    def put(self, key: str, data: bytes) -> None:
        self[key] = data


def _levels() -> list[str]:
    names = {"x86_64": ["x86-64", "x86-64-v3", "x86-64-v4"], "aarch64": ["armv8-a"]}
    found = host_features()
    return [n for n in names[host_architecture()] if found >= {*named_target(n).features}]


@pytest.fixture(scope="module", params=_levels())
def native(request: pytest.FixtureRequest) -> random_numbers.NativeNumbers:
    target = named_target(request.param)
    lanes = target.vector_bits // 64
    data = llvm.compile_ir(random_numbers.module_text(lanes), target, 1)
    return random_numbers.NativeNumbers(elf.load(data), lanes)


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize(
    ("first", "blocks"), [(0, 1), (0, 7), (2**32 - 3, 9), (2**60, 8), (5, 999)]
)
def test_words(
    native: random_numbers.NativeNumbers, fixed: philox.Fixed, first: int, blocks: int
) -> None:
    expected = np.empty((blocks, 4), np.uint32)
    philox._fill(first, fixed, expected)
    room = np.full((blocks + 2, 4), 77, np.uint32)
    native.words(first, fixed, room[1:-1])
    assert (room[1:-1] == expected).all()
    assert (room[[0, -1]] == 77).all(), "written beyond the array"


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize(("low", "width"), RANGES)
def test_numbers_of_a_range(
    native: random_numbers.NativeNumbers, fixed: philox.Fixed, low: float, width: float
) -> None:
    words = np.empty((1003, 4), np.uint32)
    philox._fill(11, fixed, words)
    numbers = (words >> np.uint32(8)).astype(np.float64) * 2.0**-24
    made = np.empty((1003, 4), np.float32)
    native.between(11, fixed, low, width, made)
    assert made.tobytes() == (low + numbers * width).astype(np.float32).tobytes()


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_every_width_compiles(lanes: int) -> None:
    for name in ("x86-64", "x86-64-v3", "x86-64-v4", "armv8-a"):
        code = llvm.compile_ir(random_numbers.module_text(lanes), named_target(name), 1)
        assert code[:4] == b"\x7fELF"


def _draw() -> list[bytes]:
    """Return numbers of all kinds, enough to be worth native code, and odd amounts of them."""
    made = [
        philox.random_bits(2**63 + 1, 7, 3, 70001, 5),
        philox.permutation(1, 2, 40000),
        nn.materialize(nn.param((301, 77), nn.normal(), name="n"), 3),
        nn.materialize(nn.param((301, 77), nn.kaiming_uniform(), name="k"), 2**64 - 1),
        nn.materialize(nn.param((5,), nn.uniform(-1, 1), name="small"), 3),
    ]
    for dtype in (float64, float32, float16, bfloat16):
        made += [philox.uniform(1, 2, 20001, dtype, offset=3), philox.normal(1, 2, 20001, dtype)]
        made += [philox.between(4, 5, 20003, -0.3, 0.1, dtype, iteration=6)]
    return [array.tobytes() for array in made]


def test_installed_code_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "_native", None)
    monkeypatch.setattr(philox, "_load_native", None)
    expected = _draw()
    store = Memory()
    monkeypatch.setattr(philox, "_load_native", random_numbers.load)
    monkeypatch.setattr(philox, "_find_store", lambda: store)
    assert _draw() == expected
    assert philox._native is not None and len(store) == 1


def test_few_numbers_load_nothing_and_many_small_draws_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(philox, "_native", None)
    monkeypatch.setattr(philox, "_asked", 0)
    monkeypatch.setattr(philox, "_load_native", asked.append)
    for _ in range(60):
        philox.uniform(0, 0, 1000)
    assert not asked
    for _ in range(60):
        philox.uniform(0, 0, 1000)
    assert len(asked) == 1, "once, when they are many in all"


def test_code_comes_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    assert random_numbers.load(store) is not None
    monkeypatch.setattr(llvm, "compile_ir", lambda *_: pytest.fail("compiled again"))
    assert random_numbers.load(store) is not None


def test_damaged_code_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    random_numbers.load(store)
    (key,) = store
    sound = store[key]
    store[key] = sound[: len(sound) // 2]
    with caplog.at_level(logging.WARNING, logger="frame"):
        native = random_numbers.load(store)
    assert "damaged" in caplog.text
    assert native is not None and store[key] == sound


def test_without_a_compiler_numpy_makes_the_numbers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bytes:
        raise random_numbers.InternalError("no compiler")

    monkeypatch.setattr(llvm, "compile_ir", refuse)
    with caplog.at_level(logging.WARNING, logger="frame"):
        assert random_numbers.load(None) is None
    assert "no compiler" in caplog.text


def test_an_initialiser_that_returns_a_kept_array_shares_nothing() -> None:
    kept = np.zeros((2, 3), np.float32)

    class Kept:
        def values(self, shape: object, element: object, source: object) -> np.ndarray:
            return kept

    for init in (Kept(), nn.inline(kept)):
        made = nn.materialize(nn.param((2, 3), init, name="w"))
        made += 1
        assert (nn.materialize(nn.param((2, 3), init, name="w")) == 0).all()
