"""Measuring cases: every peer prepared, cross-checked, then timed in interleaved rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.measuring import best_other, interleaved, ratio
from benchmarks.suite.case import Case, Instance
from benchmarks.suite.cases import relative_error
from benchmarks.suite.limits import peak_gflops
from benchmarks.suite.peers import adapter
from benchmarks.suite.peers.base import NotSupportedError, Prepared

Row = dict[str, Any]
SHORT = 20e-6  # seconds; below this frame is compared on kernel time too
_PEAK = "multiply-add peak"  # a side of its own in the rounds: it needs quiet cores as others do


@dataclass
class Ready:
    """The peers of a case that are ready, what each took to prepare, and why others are not."""

    runs: dict[str, Prepared] = field(default_factory=dict)
    outputs: dict[str, list[np.ndarray]] = field(default_factory=dict)
    prepare_seconds: dict[str, float] = field(default_factory=dict)
    not_supported: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure: the peers (frame comes first), threads, rounds, seconds of pause."""

    peers: tuple[str, ...]
    threads: int
    rounds: int
    pause: float


def prepare(instance: Instance, settings: Settings) -> Ready:
    """Make a case ready in every peer and run it once; whatever fails is noted, never dropped."""
    ready = Ready()
    for peer in dict.fromkeys(("frame", *settings.peers)):
        start = time.perf_counter()
        try:
            prepared = adapter(peer)(instance, settings.threads)
            ready.outputs[peer] = prepared.outputs()
            ready.runs[peer] = prepared
        except NotSupportedError as error:
            ready.not_supported[peer] = str(error)
        except Exception as error:  # noqa: BLE001 - any failure of a peer is a result
            ready.failed[peer] = f"{type(error).__name__}: {error}"[:300]
        ready.prepare_seconds[peer] = round(time.perf_counter() - start, 3)
    return ready


def cross_check(ready: Ready, tolerance: float) -> None:
    """Move peers whose outputs differ from frame's to the failed ones.

    Where all others agree with one another, it is frame that differs: the text says by how much.
    """
    expected = ready.outputs.get("frame")
    for peer in [peer for peer in ready.runs if peer != "frame" and expected is not None]:
        try:
            pairs = zip(ready.outputs[peer], expected or [], strict=True)
            error = max(relative_error(result, own) for result, own in pairs)
        except ValueError as problem:
            error, text = float("inf"), str(problem)
        else:
            text = f"differs from frame by {error:.2e} of the largest value"
        if not error <= tolerance:
            ready.failed[peer] = text
            del ready.runs[peer]


def measure(case: Case, settings: Settings, timed: bool = True) -> Row:
    """Return the row of a case; without times where `timed` is false."""
    instance = case.instance()
    ready = prepare(instance, settings)
    cross_check(ready, case.tolerance)
    row: Row = {
        "case": case.name,
        "group": case.group,
        "threads": settings.threads,
        "how": {peer: prepared.how for peer, prepared in ready.runs.items()},
        "prepare_seconds": ready.prepare_seconds,
        "not_supported": ready.not_supported,
        "failed": ready.failed,
    }
    ready.outputs.clear()
    if timed and "frame" in ready.runs:
        row.update(_times(instance, ready, settings))
    return row


def _times(instance: Instance, ready: Ready, settings: Settings) -> Row:
    peaks: list[float] = []
    sides = {peer: prepared.call for peer, prepared in ready.runs.items()}
    sides[_PEAK] = lambda: peaks.append(peak_gflops(settings.threads))
    gc.collect()
    gc.disable()
    try:
        times = interleaved(sides, settings.rounds, settings.pause)
    finally:
        gc.enable()
    del times[_PEAK]
    peak = statistics.median(peaks)
    row: Row = {"rounds": settings.rounds, "peak_gflops": round(peak, 1)}
    row["ms"] = {peer: _rounded(1e3 * statistics.median(t)) for peer, t in times.items()}
    row["ratios"] = {peer: round(ratio(times, peer), 3) for peer in times if peer != "frame"}
    best = best_other(times)
    if best is not None:
        row.update(best=best, best_ms=row["ms"][best], ratio=row["ratios"][best])
    return {**row, **_rates(instance, statistics.median(times["frame"]), peak, ready)}


def _rates(instance: Instance, seconds: float, peak: float, ready: Ready) -> Row:
    """Return GFLOP/s and share of the peak, or GB/s, and the kernel time of short cases."""
    row: Row = {}
    if instance.flops:
        row["gflops"] = round(instance.flops / seconds / 1e9, 2)
        row["share_of_peak"] = round(instance.flops / seconds / 1e9 / peak, 3)
    row["gb_per_s"] = round(instance.traffic / seconds / 1e9, 2)
    kernels = ready.runs["frame"].kernel_seconds
    if seconds < SHORT and kernels is not None:
        row["kernel_us"] = _rounded(1e6 * statistics.median(kernels() for _ in range(9)))
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rows(
    cases: Sequence[Case],
    settings: Settings,
    timed: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Measure cases one after another."""
    for case in cases:
        tell(case.name)
        yield measure(case, settings, timed)
        gc.collect()
