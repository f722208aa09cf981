"""Start: import, cold compile, warm start, peak memory and installed size of each peer.

Every figure comes from a process of its own, which runs one case once. The cold process has empty
caches, the warm one those that the cold one left. The case is declared through frame in every
process, so times and memory of a peer are counted from after the declaration; frame's own imports
that the declaration needs are counted for frame alone, from the start of the process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CASES = ("mlp_b32", "train_mlp_b128")
MODULES = {"torch_cl": "torch", "torch_compile": "torch", "torch_compile_cl": "torch"}
"""Peer -> what is imported; the peer's own name by default."""
CACHES = {
    "FRAME_CACHE_DIR": "frame",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "NUMBA_CACHE_DIR": "numba",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "XDG_CACHE_HOME": "xdg",
}


def _resident_mb() -> float:
    """Return the peak resident memory of this process in MB (ru_maxrss is KiB on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(peer: str, name: str, threads: int) -> dict[str, Any]:
    """Run one case once in this process and return what it took."""
    began = time.perf_counter()
    if peer == "frame":
        importlib.import_module("frame")
    own_import = time.perf_counter() - began
    from benchmarks.suite.cases import CASES as TABLE
    from benchmarks.suite.peers import adapter
    from benchmarks.suite.peers.base import NotSupportedError

    instance = next(case for case in TABLE if case.name == name).instance()
    len(instance.plan.steps)
    before, start = _resident_mb(), time.perf_counter()
    if peer != "frame":
        importlib.import_module(MODULES.get(peer, peer))
        own_import = time.perf_counter() - start
    imported = time.perf_counter()
    try:
        prepared = adapter(peer)(instance, threads)
        prepared.call()
    except NotSupportedError as error:
        return {"not_supported": str(error)}
    return {
        "import_seconds": round(own_import, 3),
        "first_result_seconds": round(time.perf_counter() - imported, 3),
        "peak_mb_above_declaration": round(_resident_mb() - before, 1),
    }


def _spawn(peer: str, name: str, threads: int, caches: str) -> dict[str, Any]:
    places = {variable: os.path.join(caches, folder) for variable, folder in CACHES.items()}
    command = [sys.executable, "-m", "benchmarks.suite", "--start-child", peer, name, str(threads)]
    result = subprocess.run(
        command, env={**os.environ, **places}, capture_output=True, text=True, check=False
    )
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        return {"failed": result.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def start_rows(
    peers: Sequence[str], threads: int, names: Sequence[str] = CASES
) -> Iterator[dict[str, Any]]:
    """Yield a row for each peer and case."""
    for name in names:
        for peer in peers:
            with tempfile.TemporaryDirectory() as caches:
                cold = _spawn(peer, name, threads, caches)
                warm = _spawn(peer, name, threads, caches) if "import_seconds" in cold else {}
            row = {"start": name, "peer": peer, "threads": threads, "cold": cold, "warm": warm}
            yield {**row, "installed_mb": installed_mb(peer)}


# --- installed size -------------------------------------------------------------------------------


def installed_mb(peer: str) -> float | None:
    """Return the MB of a peer's distribution with all that it requires; None: not installed."""
    from benchmarks.suite.peers import ADAPTERS

    sizes = {name: _size(name) for name in _requirements(ADAPTERS[peer][2])}
    known = [size for size in sizes.values() if size is not None]
    return round(sum(known) / 1e6, 1) if known else None


def _requirements(distribution: str) -> set[str]:
    """Return a distribution and what it requires, extras left out."""
    found: set[str] = set()
    pending = [distribution]
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        pending += [_name(text) for text in required if "extra ==" not in text]
    return found


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group(0) if match else requirement


def _size(distribution: str) -> int | None:
    """Return the bytes of the installed files of one distribution."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files)
    return sum(path.stat().st_size for path in paths if path.is_file())


def start_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of `start_rows` as a Markdown table."""
    header = ("case", "peer", "import s", "cold first result s", "warm first result s")
    header += ("peak MB", "installed MB")
    lines = [header, ("---",) * len(header)]
    for row in rows:
        cold, warm = row["cold"], row["warm"]
        reason = cold.get("not_supported") or cold.get("failed")
        figures = (
            cold.get("import_seconds"),
            reason or cold.get("first_result_seconds"),
            warm.get("first_result_seconds"),
            cold.get("peak_mb_above_declaration"),
            row["installed_mb"],
        )
        lines.append((row["start"], row["peer"], *("" if x is None else str(x) for x in figures)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
