"""What the machine can do, as profiles know it."""

from __future__ import annotations

import numpy as np
import pytest

from frame.backends.cpu import peaks
from frame.backends.cpu.llvm import assembly
from frame.backends.cpu.target import named_target
from frame.hal.interfaces import Peaks


class Store(dict):
    def put(self, key: str, data: bytes) -> None:
        self[key] = data


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """Measurements that take no time, counted."""
    made: list[int] = []
    monkeypatch.setattr(peaks, "peak_gflops", lambda threads: made.append(threads) or 50.0)
    monkeypatch.setattr(peaks, "bandwidth", lambda kernel, size, threads: 1e9 / size)
    monkeypatch.setattr(peaks, "_known", {})
    return made


def test_the_peak_and_bandwidths_of_this_machine_are_measured() -> None:
    assert peaks.peak_gflops(1, tries=1) > 1.0
    assert peaks.bandwidth("read", 24 * 1024, 1, tries=1) > 0.1
    assert peaks.bandwidth("triad", 24 * 1024, 1, tries=1) > 0.1


def test_the_triad_computes_what_it_says() -> None:
    a, b, c = np.zeros(512, np.float32), np.arange(512.0, dtype="f"), np.ones(512, np.float32)
    lanes, _, kernels = peaks._kernels()
    count = 512 // (4 * lanes)
    kernels["triad"](a.ctypes.data, b.ctypes.data, c.ctypes.data, count, 1)
    np.testing.assert_array_equal(a[lanes:], (b + 0.5)[lanes:])  # sums are stored at the start


def test_a_machine_is_measured_once(counted: list[int]) -> None:
    store = Store()
    first = peaks.machine_peaks(store)
    assert first.flops == 50e9 and first.bandwidths[-1][0] == 0
    sizes = [size for size, _ in first.bandwidths[:-1]]
    assert sizes == sorted(sizes) and len(counted) == 1 and len(store) == 1
    peaks._known.clear()  # as another process
    assert peaks.machine_peaks(store) == first and len(counted) == 1
    for damaged in (b"", b"{}", b"[1, [[2]]]", b"\xff"):
        peaks._known.clear()
        store[next(iter(store))] = damaged
        assert peaks.machine_peaks(store) == first
    assert len(counted) == 5


def test_threads_and_instructions_have_peaks_of_their_own(counted: list[int]) -> None:
    target = named_target("x86-64-v2")
    made = [
        peaks._machine_peaks(target, threads, machine, None)
        for threads, machine in ((1, "a"), (2, "a"), (2, "b"), (1, "a"))
    ]
    assert len(counted) == 3 and made[0] is made[3] and isinstance(made[0], Peaks)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("x86-64-v4", "vfmadd"),
        ("x86-64-v3", "vfmadd"),
        ("x86-64-v2", "mulps"),
        ("armv8-a", "fmla"),
    ],
)
def test_the_loop_holds_multiply_adds_of_the_target(name: str, instruction: str) -> None:
    target = named_target(name)
    lanes = max(4, target.vector_bits // 32)
    text = assembly(peaks._module(lanes, 12, target.fma), target)
    peak = text.partition("peak:")[2].partition(".Lfunc_end")[0]
    assert peak.count(instruction) == 12  # one an accumulator, none spilled into calls
