"""Start, compile, call and memory figures, each in processes of their own. One JSON line a case.

    python -m benchmarks.startup [--rounds N] [--only TEXT]

`import frame`: what it adds to `import numpy`, in pairs of new processes. `cold compile`: the MLP
784-1024-512-256-10 with an empty cache, inference and training step; seconds of `frame.compile` on
the clock and of the processor. `warm start`: the same from a filled cache, from the first import
to the first result, with and without the import of numpy. `call add16`: one call of a compiled sum
of two arrays of sixteen numbers. `arena`: the planned memory of the training step beside the most
bytes that live at once. `rss`: what 500 compiles of different shapes leave behind.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

IMPORT = """
import json, time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import frame
print(json.dumps({"numpy": middle - start, "frame": time.perf_counter() - middle}))
"""

MLP = """
import time
start = time.perf_counter()
import numpy as np
numpy = time.perf_counter() - start
import frame
from frame import nn

def compile(batch="batch", **options):
    widths = (784, 1024, 512, 256, 10)
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return frame.compile(nn.Sequential("mlp", layers[:-1]), [frame.spec((batch, 784))], **options)

def training(batch):
    from frame.train import SGD
    return {
        "loss": nn.CrossEntropyLoss(),
        "targets": [frame.spec((batch,), "int64")],
        "optimizer": SGD(momentum=0.9),
    }

def ready(**facts):
    facts |= {"numpy": numpy, "total": time.perf_counter() - start}
    import json  # here, so that frame's own use of it counts
    print(json.dumps(facts))
"""

INFER = """
middle, busy = time.perf_counter(), time.process_time()
model = compile()
end, spent = time.perf_counter(), time.process_time() - busy
model(np.zeros((32, 784), np.float32))
hit = model.entry("infer").loaded.hit
ready(compile=end - middle, processor=spent, hit=hit)
"""

TRAIN = """
middle, busy = time.perf_counter(), time.process_time()
model = compile(**training("batch"))
end, spent = time.perf_counter(), time.process_time() - busy
model.train_step(np.zeros((32, 784), np.float32), np.zeros(32, np.int64), learning_rate=0.0)
hit = model.entry("train_step").loaded.hit
ready(compile=end - middle, processor=spent, hit=hit)
"""

CALL = """
import json, time
import numpy as np
import frame
x, y = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
model = frame.compile(lambda a, b: a + b, [frame.spec((16,))] * 2)
assert np.array_equal(model(x, y), x + y)

def timed(call, repeats=20000):
    start = time.perf_counter()
    for _ in range(repeats):
        call(x, y)
    return (time.perf_counter() - start) / repeats

rounds = [(timed(model), timed(np.add), timed(lambda a, b: None)) for _ in range(9)]
names = ("frame", "numpy", "lambda")
print(json.dumps(dict(zip(names, (sorted(row)[4] for row in zip(*rounds))))))
"""

ARENA = """
sizes = {"batch": 128}
executable = compile(**training("batch")).entry("train_step").loaded.run.single
plan = executable.artifact.plan
offsets = plan.fill(sizes)
ready(arena=offsets.arena_size, bound=offsets.lower_bound)
"""

RSS = """
import gc, json, sys
import numpy as np
import frame

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def one(size):
    model = frame.compile(lambda x: frame.ops.softmax(x * 2.0) + 1.0, [frame.spec((3, size))])
    model(np.zeros((3, size), np.float32))

for size in range(1, 21):
    one(size)
before = resident()
compiles = int(sys.argv[1])
for size in range(21, 21 + compiles):
    one(size)
print(json.dumps({"bytes": resident() - before, "compiles": compiles}))
"""
"""Takes the number of compiles; tests/runtime/test_known_memory.py runs it, too."""


def run(code: str, cache: Path | str, *words: str, **environment: str) -> dict[str, Any]:
    """Run code in a new process and return what it prints.

    It finds what users have: compiled modules on the disk, and the usual folder of the cache.
    """
    settings = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT), **environment}
    for name in ("PYTHONDONTWRITEBYTECODE", "FRAME_CACHE_DIR"):
        settings.pop(name, None)
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a case failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def medians(rows: list[dict[str, Any]], scale: float = 1e3) -> dict[str, float]:
    """Return the medians of the numbers of rows, in milliseconds."""
    numbers = [name for name, value in rows[0].items() if isinstance(value, float)]
    return {n: round(scale * statistics.median(row[n] for row in rows), 2) for n in numbers}


def importing(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return what importing frame costs after numpy."""
    run(IMPORT, folder)
    found = medians([run(IMPORT, folder) for _ in range(rounds)])
    return {"milliseconds": found["frame"], "numpy": found["numpy"], "bar": 60}


def _cold(code: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    rows = [run(MLP + code, folder / str(index)) for index in range(rounds + 1)][1:]
    if any(row["hit"] for row in rows):
        raise SystemExit("a cold compile found a filled cache")
    found = medians(rows)
    return {"milliseconds": found["compile"], "processor": found["processor"], "bar": 1000}


def cold_inference(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the time of compiling inference with an empty cache."""
    return _cold(INFER, rounds, folder)


def cold_training(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the time of compiling the training step with an empty cache."""
    return _cold(TRAIN, rounds, folder)


def _warm(code: str, rounds: int, folder: Path) -> Mapping[str, Any]:
    run(MLP + code, folder)
    rows = [run(MLP + code, folder) for _ in range(rounds)]
    if not all(row["hit"] for row in rows):
        raise SystemExit("a warm start compiled")
    found = medians(rows)
    return {
        "milliseconds": found["total"],
        "without_numpy": round(found["total"] - found["numpy"], 2),
        "bar": 350,
    }


def warm_inference(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the time from the first import to the first result of inference."""
    return _warm(INFER, rounds, folder)


def warm_training(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the time from the first import to the first result of a training step."""
    return _warm(TRAIN, rounds, folder)


def call(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the time of one small call."""
    found = medians([run(CALL, folder) for _ in range(max(rounds // 3, 1))], 1e6)
    return {"microseconds": found["frame"], **{n: found[n] for n in ("numpy", "lambda")}, "bar": 5}


def arena(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the arena of the training step beside its lower bound."""
    found = run(MLP + ARENA, folder)
    ratio = round(found["arena"] / found["bound"], 4)
    return {"bytes": found["arena"], "bound": found["bound"], "ratio": ratio, "bar": 1.1}


def resident_memory(rounds: int, folder: Path) -> Mapping[str, Any]:
    """Return the growth of the process over 500 compiles."""
    found = run(RSS, folder, "500", FRAME_CACHE="0")
    return {"megabytes": round(found["bytes"] / 1e6, 1), "compiles": found["compiles"], "bar": 100}


CASES: Mapping[str, Callable[[int, Path], Mapping[str, Any]]] = {
    "import frame": importing,
    "cold compile, inference": cold_inference,
    "cold compile, training step": cold_training,
    "warm start, inference": warm_inference,
    "warm start, training step": warm_training,
    "call add16": call,
    "arena, training step": arena,
    "rss after compiles": resident_memory,
}


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="run the cases whose name holds this text")
    arguments = parser.parse_args()
    for name, measure in CASES.items():
        if arguments.only in name:
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(arguments.rounds, Path(folder))
            print(json.dumps({"benchmark": "startup", "case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
