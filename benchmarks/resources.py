"""What networks take beside time: planned memory, threads, an idle pool. One JSON line a case.

    python -m benchmarks.resources [--only TEXT] [--rounds N] [--heavy]

`arena`: the planned memory of a program beside the most bytes that live at once. `scaling`: time
with one thread / time with all of them, in turns. `wake`: a call 10 ms after the last one / the
same call with one thread; 1.1 is the bar. `idle`: seconds of the processor that the process takes
in a second of waiting, with the pool started.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.measuring import repeats_for, window
from benchmarks.suite.case import Case
from benchmarks.suite.cases import CASES
from benchmarks.suite.command import processors
from benchmarks.suite.peers import frame_peer
from frame.backends.cpu.pool import set_num_threads

NETWORKS = ("inference", "training step")
BOUND_BY_COMPUTE = ("matmul_512x512x512", "linear_1024x1024x1024", "mlp_b128", "encoder_b8")
IDLE = 0.01
Figures = Mapping[str, Any]


def arena(case: Case) -> Figures:
    """Return the planned memory of the pieces of a program and its lower bound, in bytes."""
    model = frame_peer.compiled(case.instance())
    entry = model.entry("train_step" if case.group == NETWORKS[1] else "infer")
    fills = [piece.executable.artifact.plan.fill({}) for piece in entry.loaded.run.pieces]
    planned = sum(fill.arena_size for fill in fills)
    bound = sum(fill.lower_bound for fill in fills)
    return {"bytes": planned, "bound": bound, "ratio": round(planned / max(bound, 1), 4)}


def scaling(case: Case, rounds: int) -> Figures:
    """Return how much quicker a case is with all threads than with one."""
    call = frame_peer.prepare(case.instance(), 0).call
    threads = len(processors())
    repeats = repeats_for(call, seconds=0.1)
    pairs = []
    for _ in range(rounds):
        one, every = (_steady(call, count, repeats) for count in (1, threads))
        pairs.append(one / every)
    return {
        "threads": threads,
        "ratio": round(statistics.median(pairs), 3),
        "bar": round(0.9 * threads, 1),
    }


def _steady(call: Callable[[], Any], threads: int, repeats: int) -> float:
    set_num_threads(threads)
    call()
    return window(call, repeats)


def wake(case: Case, rounds: int) -> Figures:
    """Return the time of a call after idleness / that of a call with one thread after the same."""
    call = frame_peer.prepare(case.instance(), 0).call
    pairs = []
    for _ in range(rounds):
        one, every = (_after_idleness(call, count) for count in (1, len(processors())))
        pairs.append(every / one)
    return {"ratio": round(statistics.median(pairs), 3), "bar": 1.1}


def _after_idleness(call: Callable[[], Any], threads: int, repeats: int = 20) -> float:
    set_num_threads(threads)
    call()
    seconds = []
    for _ in range(repeats):
        time.sleep(IDLE)
        seconds.append(window(call, 1))
    return statistics.median(seconds)


def idle(case: Case, seconds: float = 2.0) -> Figures:
    """Return the processor time of a process that waits after a call, for each second."""
    frame_peer.prepare(case.instance(), 0).call()
    time.sleep(0.1)
    start = time.process_time()
    time.sleep(seconds)
    return {"share": round((time.process_time() - start) / seconds, 5)}


def figures(rounds: int, heavy: bool) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Yield the name of each measurement and what makes it."""
    cases = {case.name: case for case in CASES}
    for name in BOUND_BY_COMPUTE:
        yield f"scaling {name}", lambda name=name: scaling(cases[name], rounds)  # type: ignore[misc]
    for name in ("add16", "mlp_b1", "gelu_erf_1M", "matmul_256x256x256"):
        yield f"wake {name}", lambda name=name: wake(cases[name], rounds)  # type: ignore[misc]
    yield "idle", lambda: idle(cases["mlp_b32"])
    for case in CASES:
        if case.group in NETWORKS and (heavy or not case.heavy):
            yield f"arena {case.name}", lambda case=case: arena(case)  # type: ignore[misc]


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="run the cases whose name holds this text")
    parser.add_argument("--heavy", action="store_true", help="heavy networks, too")
    options = parser.parse_args()
    for name, measure in figures(options.rounds, options.heavy):
        if options.only in name:
            print(json.dumps({"benchmark": "resources", "case": name, **measure()}), flush=True)


if __name__ == "__main__":
    main()
