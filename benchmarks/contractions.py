"""Matrix products and convolutions of many shapes beside numpy: one JSON line a case.

    python benchmarks/contractions.py [--rounds N] [--only TEXT]

A round is one short window of each side, after a pause in which the threads of the other side fall
asleep (OpenBLAS keeps a core busy for a while after a product). Times are microseconds, medians of
the windows; `ratio` is the median over rounds of numpy time / frame time in the same round.
Convolutions have no peer here: they are timed alone.
"""

# ruff: noqa: E402 - the environment is set before numpy is loaded

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)  # they cripple a current numpy

import numpy as np

import frame
from frame import ops

Run = Callable[[], Any]
WINDOW, PAUSE = 0.02, 0.05  # seconds


@dataclass(frozen=True)
class Case:
    """One case: what frame runs, what numpy runs (None: nothing comparable), and its work."""

    name: str
    frame: Run
    numpy: Run | None
    flops: int


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return normal float32 arrays of shapes."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


SIZES = (
    *((n, n, n) for n in (64, 128, 256, 512, 1024)),
    *((1000, 1000, 1000), (128, 784, 1024), (128, 768, 3072), (32, 784, 1024)),
    *((33, 65, 129), (1000, 17, 3), (128, 256, 10), (4, 784, 1024), (1, 784, 1024)),
    (1, 4096, 4096),
)
TRANSPOSED = ((784, 128, 1024), (128, 1024, 784), (256, 128, 10), (128, 10, 256))
SAME = (1, 1, 1, 1)
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((64, 1, 8, 8), (16, 1, 3, 3), {"padding": SAME}),
    ((64, 16, 8, 8), (32, 16, 3, 3), {"padding": SAME}),
    ((64, 16, 4, 4), (32, 16, 3, 3), {"padding": SAME}),
    ((16, 64, 8, 8), (32, 64, 8, 8), {"padding": SAME}),
    ((64, 32, 8, 8), (16, 32, 3, 3), {"padding": SAME}),
    ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": SAME}),
    ((8, 128, 28, 28), (128, 128, 1, 1), {}),
    ((1, 256, 14, 14), (256, 256, 3, 3), {"padding": SAME}),
    ((2, 3, 224, 224), (64, 3, 7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
    ((8, 96, 56, 56), (96, 1, 3, 3), {"padding": SAME, "groups": 96}),
)


def cases() -> Iterator[Case]:
    """Yield every case, compiled when it is asked for."""
    for m, k, n in SIZES:
        yield product_case(m, k, n, False, False)
    for position, (m, k, n) in enumerate(TRANSPOSED):
        yield product_case(m, k, n, position % 2 == 0, position % 2 == 1)
    for x, w, values in CONVOLUTIONS:
        yield convolution_case(x, w, values)


def product_case(m: int, k: int, n: int, flip_a: bool, flip_b: bool) -> Case:
    """Return a product of float32 matrices, operands transposed as asked."""
    a, b = arrays((k, m) if flip_a else (m, k), (n, k) if flip_b else (k, n))
    left, right = a.T if flip_a else a, b.T if flip_b else b
    compiled = frame.compile(
        lambda x, y: ops.matmul(x, y, transpose_a=flip_a, transpose_b=flip_b),
        [frame.spec(a.shape), frame.spec(b.shape)],
    )
    np.testing.assert_allclose(compiled(a, b), left @ right, rtol=1e-3, atol=1e-3)
    name = f"matmul {m}x{k}x{n}{' a.T' * flip_a}{' b.T' * flip_b}"
    return Case(name, lambda: compiled(a, b), lambda: left @ right, 2 * m * k * n)


def convolution_case(x: tuple[int, ...], w: tuple[int, ...], values: dict[str, Any]) -> Case:
    """Return a convolution of float32 images."""
    images, weights = arrays(x, w)
    compiled = frame.compile(
        lambda a, b: ops.conv2d(a, b, **values), [frame.spec(x), frame.spec(w)]
    )
    result = np.asarray(compiled(images, weights))
    name = f"conv2d {'x'.join(map(str, x))} by {'x'.join(map(str, w))}"
    flops = 2 * result.size * int(np.prod(w[1:]))
    return Case(name, lambda: compiled(images, weights), None, flops)


def window(run: Run) -> float:
    """Return the median time of calls in one window, in microseconds, the first call left out."""
    time.sleep(PAUSE)
    run()
    times, end = [], time.perf_counter() + WINDOW
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(case: Case, rounds: int) -> dict[str, object]:
    """Return the row of a case."""
    own: list[float] = []
    peer: list[float] = []
    for _ in range(rounds):
        own.append(window(case.frame))
        if case.numpy is not None:
            peer.append(window(case.numpy))
    row: dict[str, object] = {"case": case.name, "frame_us": round(statistics.median(own), 1)}
    row["gflops"] = round(case.flops / statistics.median(own) / 1e3, 1)
    if peer:
        ratios = [b / a for a, b in zip(own, peer, strict=True)]
        row["numpy_us"] = round(statistics.median(peer), 1)
        row["ratio"] = round(statistics.median(ratios), 2)
    return row


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    for case in cases():
        if arguments.only in case.name:
            print(json.dumps(measure(case, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
