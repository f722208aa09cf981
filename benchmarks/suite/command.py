"""The command: parse options, run a process for each number of threads, write the tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THREAD_VARIABLES = (
    "FRAME_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUM_CPU_THREADS",  # tinygrad
)
DROPPED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they cripple a current numpy
PEERS = (
    "torch,torch_cl,torch_compile,torch_compile_cl,jax,onnxruntime,openvino,numpy,numba,tinygrad"
)
ROOT = Path(__file__).resolve().parents[2]
EPILOG = """\
A round is one short window of each peer; ratio is best peer / frame, paired round by round, so
above 1 frame is ahead. Rows are JSON lines on the standard output. With --out DIR they are also
appended to DIR/rows.jsonl, and DIR/table.md and DIR/table.html are written from all rows there.

examples:
  python -m benchmarks.suite --group "matrix product" --threads 1
  python -m benchmarks.suite --only resnet50,bert --peers onnxruntime,openvino --rounds 5
  python -m benchmarks.suite --check        prepare and compare outputs, time nothing
  python -m benchmarks.suite --start        import, compile, memory and size of each peer
  python -m benchmarks.suite --list         the cases, and those that are absent with the reason
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(
        "python -m benchmarks.suite",
        description="frame beside its peers on one table of cases.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", default="", help="cases whose name holds one of these texts (a,b)")
    made.add_argument("--group", default="", help="cases of the groups whose name holds this text")
    made.add_argument("--peers", default=PEERS, help=f"peers beside frame, by default {PEERS}")
    made.add_argument("--threads", default="all", help="1, all, a number, or several: 1,all")
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--pause", type=float, default=None, help="seconds before each window")
    made.add_argument("--out", type=Path, help="a folder for rows.jsonl, table.md and table.html")
    made.add_argument("--light", action="store_true", help="leave the heavy cases out")
    made.add_argument("--check", action="store_true", help="compare outputs, time nothing")
    made.add_argument("--start", action="store_true", help="measure import, compile and memory")
    made.add_argument("--list", action="store_true", help="list the cases")
    made.add_argument("--table", type=Path, help="write the tables of a rows.jsonl to the output")
    made.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    made.add_argument("--start-child", nargs=3, help=argparse.SUPPRESS)
    return made


def processors() -> list[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def thread_counts(text: str, available: int) -> list[int]:
    """Return the numbers of threads of `--threads`, each once.

    Raises:
        ValueError: one is not `all` and not from 1 to the number of processors.
    """
    counts = [available if part == "all" else int(part) for part in text.split(",")]
    for count in counts:
        if not 1 <= count <= available:
            raise ValueError(f"--threads must be from 1 to {available} or all, received {count}")
    return list(dict.fromkeys(counts))


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process whose peers use a number of threads."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    counts = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return {**kept, **counts, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


# --- the process of one number of threads ---------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Measure the chosen cases and print their rows; runs in a process of its own."""
    from benchmarks.measuring import PAUSE
    from benchmarks.suite import cases, limits, run

    threads = options.worker
    if hasattr(os, "sched_setaffinity"):  # the one way to tell XLA how many threads to have
        os.sched_setaffinity(0, processors()[:threads])
    peers = tuple(peer for peer in options.peers.split(",") if peer and peer != "frame")
    pause = PAUSE if options.pause is None else options.pause
    settings = run.Settings(peers, threads, options.rounds, pause)
    chosen = cases.select(options.only, options.group)
    chosen = [case for case in chosen if not (options.light and case.heavy)]
    if not options.check:
        print(json.dumps({"limits": limits.limits(threads), "threads": threads}), flush=True)
    for row in run.rows(chosen, settings, not options.check, _progress):
        print(json.dumps(row), flush=True)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the command ----------------------------------------------------------------------------------


def run_workers(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a process for each number of threads; return the worst exit status."""
    worst = 0
    for threads in thread_counts(options.threads, len(processors())):
        command = [sys.executable, "-m", "benchmarks.suite", *arguments, "--worker", str(threads)]
        with subprocess.Popen(
            command, env=environment(threads), stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        ) as process:
            for line in process.stdout or ():
                _take(line, options)
        worst = max(worst, abs(process.returncode))
    return worst


def _take(line: str, options: argparse.Namespace) -> None:
    """Print a row of a worker; keep it where a folder is given."""
    print(line, end="", flush=True)
    if options.out is not None and line.startswith("{"):
        options.out.mkdir(parents=True, exist_ok=True)
        with open(options.out / "rows.jsonl", "a", encoding="utf-8") as file:
            file.write(line)


def read_rows(path: Path) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Return the rows of a file (the last of each case and number of threads) and the limits."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    limits: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "limits" in entry:
            limits[entry["threads"]] = entry["limits"]
        elif "case" in entry:
            rows[entry["case"], entry["threads"]] = entry
    return list(rows.values()), limits


def write_tables(folder: Path) -> None:
    """Write table.md and table.html of the rows in a folder."""
    from benchmarks.suite import report
    from benchmarks.suite.cases import ABSENT

    rows, limits = read_rows(folder / "rows.jsonl")
    (folder / "table.md").write_text(report.markdown(rows, ABSENT, limits), encoding="utf-8")
    (folder / "table.html").write_text(report.page(rows, ABSENT, limits), encoding="utf-8")


def list_cases(options: argparse.Namespace) -> None:
    """Print the cases, and those that are absent."""
    from benchmarks.suite.cases import ABSENT, select

    for case in select(options.only, options.group):
        print(f"{case.group:26} {case.name}{'  (heavy)' * case.heavy}")
    for name, reason in ABSENT.items():
        print(f"{'absent':26} {name}: {reason}")


def start(options: argparse.Namespace) -> None:
    """Print the rows of the start of each peer, then their table."""
    from benchmarks.suite.cases import select
    from benchmarks.suite.start import CASES, start_rows, start_table

    names = [case.name for case in select(options.only)] if options.only else CASES
    threads = thread_counts(options.threads, len(processors()))[0]
    os.environ.update(environment(threads))
    rows = []
    for row in start_rows(["frame", *options.peers.split(",")], threads, names):
        rows.append(row)
        _take(json.dumps(row) + "\n", options)
    print(start_table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    if options.start_child:
        from benchmarks.suite.start import child

        peer, name, threads = options.start_child
        print(json.dumps(child(peer, name, int(threads))))
    elif options.worker:
        work(options)
    elif options.list:
        list_cases(options)
    elif options.table:
        from benchmarks.suite import report
        from benchmarks.suite.cases import ABSENT

        rows, limits = read_rows(options.table)
        print(report.markdown(rows, ABSENT, limits))
    elif options.start:
        start(options)
    else:
        return _measure(options, given)
    return 0


def _measure(options: argparse.Namespace, given: Sequence[str]) -> int:
    try:
        status = run_workers(options, given)
    except ValueError as error:
        parser().error(str(error))
    if options.out is not None:
        write_tables(options.out)
    return status
