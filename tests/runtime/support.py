"""Small graphs, and what was compiled for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

import frame
from frame.runtime import loading
from frame.runtime.statistics import CompileStats, compile_stats


def add_relu(x, y):
    return frame.ops.relu(x * 2.0 + y)


def model(function: Callable = add_relu, shape: tuple = ("batch", 4), count: int = 2, **options):
    return frame.compile(function, [frame.spec(shape)] * count, **options)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def forget_programs() -> None:
    """Make the next load look at the disk, as a new process would."""
    loading._in_use.clear()


class Watched:
    stats: CompileStats


@contextmanager
def watched() -> Iterator[Watched]:
    """Tell what compilation did inside of the block."""
    before, found = compile_stats(), Watched()
    yield found
    found.stats = compile_stats() - before


def at_once(count: int, work: Callable[[int], object], seconds: float = 120) -> list[object]:
    """Return `work(k)` for each k, run by threads that begin together; raise what one raised."""
    barrier = threading.Barrier(count)

    def begin(position: int) -> object:
        barrier.wait(seconds)
        return work(position)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count), timeout=seconds))
