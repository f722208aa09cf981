"""What the ways to call a small compiled model cost. One JSON line a case.

    python benchmarks/short_calls.py [--rounds N] [--only TEXT]

Every case has numbers enough to be one call of a kernel and no more, so what is measured is the way
from Python to the code and back. All cases run in turns, a window of some milliseconds each, so
`ratio`, the median over rounds of the time of a case / that of `add16` in the same round, does not
depend on how busy the machine is. `checked` is a call of arrays that need a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script

import numpy as np

import frame
from benchmarks.measuring import Run, interleaved, ratio
from frame import nn
from frame.core.tensors import from_numpy

BASE = "add16"


def _array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _added() -> dict[str, Run]:
    """Ways to call one graph: by position, by name, into an array, with Tensors."""
    specs = {"x": frame.spec((16,)), "y": frame.spec((16,))}
    model = frame.compile(lambda x, y: x + y, specs)
    x, y, out = _array(16), _array(16), [_array(16)]
    tensors = from_numpy(x), from_numpy(y)
    wide = _array(32)[::2]
    entry = model.entry("infer")
    return {
        BASE: lambda: model(x, y),
        "named": lambda: model(x=x, y=y),
        "out given": lambda: model(x, y, out=out),
        "tensors": lambda: model(*tensors),
        "strided": lambda: model(wide, y),
        "entry": lambda: entry(x, y),
    }


def _eight() -> dict[str, Run]:
    specs = {name: frame.spec((16,)) for name in "abcdefgh"}

    def total(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
        return a + b + c + d + e + f + g + h

    model = frame.compile(total, specs)
    arrays = [_array(16) for _ in specs]
    return {"eight operands": lambda: model(*arrays)}


def _two_results() -> dict[str, Run]:
    model = frame.compile(lambda x: (x + 1.0, x * 2.0), [frame.spec((16,))])
    x = _array(16)
    return {"two results": lambda: model(x)}


def _large_result() -> dict[str, Run]:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((1 << 14,))])
    x, out = _array(1 << 14), _array(1 << 14)
    return {
        "64 KiB, recycled": lambda: model(x),
        "64 KiB, numpy": lambda: np.add(x, np.float32(1.0), out=out),
    }


def _symbolic() -> dict[str, Run]:
    """One size again and again, and two that take turns."""
    model = frame.compile(lambda x: x + 1.0, [frame.spec(("batch", 4))])
    same, other = _array(4, 4), _array(3, 4)

    def turns() -> None:
        model(same)
        model(other)

    return {"symbolic batch": lambda: model(same), "symbolic, two calls in turns": turns}


def _mlp() -> dict[str, Run]:
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
    model = frame.compile(nn.Sequential("mlp", layers), [frame.spec(("batch", 16))])
    x = _array(1, 16)
    return {"mlp 16-16-4 batch 1": lambda: model(x)}


def _numpy() -> dict[str, Run]:
    x, y = _array(16), _array(16)
    return {"numpy.add": lambda: np.add(x, y)}


CASES: tuple[Callable[[], dict[str, Run]], ...] = (
    _added,
    _eight,
    _two_results,
    _large_result,
    _symbolic,
    _mlp,
    _numpy,
)


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    runs = {name: run for make in CASES for name, run in make().items()}
    chosen = {name: run for name, run in runs.items() if name == BASE or options.only in name}
    times = interleaved(chosen, options.rounds, pause=0.01, seconds=0.005)
    for name, values in times.items():
        row = {
            "case": name,
            "median_us": round(statistics.median(values) * 1e6, 2),
            "best_us": round(min(values) * 1e6, 2),
            "ratio": round(ratio(times, name, BASE), 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
