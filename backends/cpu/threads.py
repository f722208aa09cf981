"""How many threads the pool gets: settings, else what this process may use of the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from frame.core import config


def default_threads() -> int:
    """Return FRAME_NUM_THREADS, else OMP_NUM_THREADS, else `available_cpus`."""
    asked = config.get("FRAME_NUM_THREADS") or config.get("OMP_NUM_THREADS")
    return int(asked) if asked else available_cpus()


def available_cpus() -> int:
    """Return the smaller of this process's CPU affinity and its cgroup quota, at least 1."""
    count = affinity()
    quota = cgroup_quota()
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def affinity() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Return the CPUs' worth of time that control groups grant, None without a limit.

    The limits of all ancestors count, in version 2 (`cpu.max`) and in version 1 (`cpu.cfs_*`).
    In a container the paths of /proc/self/cgroup may be those of the host; then the mounted root
    is what holds. `root` is the file system's root.
    """
    limits = [_limit(folder) for folder in _cgroup_folders(os.fspath(root))]
    return min((limit for limit in limits if limit is not None), default=None)


def _cgroup_folders(root: str) -> Iterator[str]:
    """Yield this process's CPU control groups with all their ancestors."""
    for line in _text(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        for folder in _mounts(root, controllers):
            yield folder
            for part in filter(None, path.split("/")):
                folder = os.path.join(folder, part)
                yield folder


def _mounts(root: str, controllers: str) -> tuple[str, ...]:
    """Return where a hierarchy may be mounted; no controllers means version 2."""
    base = os.path.join(root, "sys/fs/cgroup")
    names = (controllers, "cpu") if controllers else ("", "unified")
    return tuple(os.path.join(base, name) for name in names)


def _limit(folder: str) -> float | None:
    """Return the limit of one control group in CPUs."""
    words = _text(folder, "cpu.max").split()
    if not words:
        words = [_text(folder, f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
