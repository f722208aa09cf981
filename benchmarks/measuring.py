"""Timing that the benchmarks share: short windows of each side in interleaved rounds.

Before each window there is a pause, in which the spinning threads of the side before fall asleep,
and one call that is not counted. Ratios are taken round by round, so that a machine that changes
its speed changes both sides of a ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Run = Callable[[], Any]
Times = Mapping[str, Sequence[float]]

WINDOW = 0.02  # seconds that one side runs in a round
PAUSE = 0.25  # seconds for the threads of the side before to stop spinning; then one warm-up call
MOST_REPEATS = 2000


def window(run: Run, repeats: int) -> float:
    """Return the mean seconds of a call over `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def repeats_for(run: Run, seconds: float = WINDOW) -> int:
    """Return how many calls fill a window, after a warm-up call."""
    run()
    single = window(run, 1)
    if single < seconds:
        single = min(single, window(run, 3))
    return max(1, min(MOST_REPEATS, int(seconds / max(single, 1e-7))))


def interleaved(
    runs: Mapping[str, Run], rounds: int, pause: float = PAUSE, seconds: float = WINDOW
) -> dict[str, list[float]]:
    """Return the seconds of a call of each side in each round."""
    repeats = {side: repeats_for(run, seconds) for side, run in runs.items()}
    times: dict[str, list[float]] = {side: [] for side in runs}
    for _ in range(rounds):
        for side, run in runs.items():
            time.sleep(pause)
            run()
            times[side].append(window(run, repeats[side]))
    return times


def ratio(times: Times, side: str, base: str = "frame") -> float:
    """Return the median over rounds of time of `side` / time of `base` in the same round."""
    pairs = zip(times[side], times[base], strict=True)
    return statistics.median(other / own for other, own in pairs)


def best_other(times: Times, base: str = "frame") -> str | None:
    """Return the side with the least median beside `base`, None where there is no other."""
    others = {side: statistics.median(t) for side, t in times.items() if side != base}
    return min(others, key=others.__getitem__, default=None)
