"""Fallback statistics: which ops a backend did not take, how often, and where they run instead."""

from __future__ import annotations

from collections import Counter

from frame.core import forks
from frame.core.dataclass import dataclass
from frame.core.logs import Logger

_LOG = Logger("frame.fallback")
_lock = forks.lock()
_counts: Counter[tuple[str, str]] = Counter()


@dataclass(frozen=True, slots=True)
class FallbackCount:
    """How many nodes of an op went to another device than the one asked for."""

    op: str
    backend: str
    count: int


def record(op: str, backend: str, reason: str, device: str, count: int = 1) -> None:
    """Note the hop of `count` nodes of an op and log one warning."""
    with _lock:
        _counts[op, backend] += count
    nodes = f", {count} nodes" if count > 1 else ""
    _LOG.warning("op %s can't run on %s (%s): it runs on %s%s", op, backend, reason, device, nodes)


def fallback_stats() -> tuple[FallbackCount, ...]:
    """Return the hops of this process, by op and backend."""
    with _lock:
        return tuple(FallbackCount(o, b, n) for (o, b), n in sorted(_counts.items()))


def reset_fallback_stats() -> None:
    """Forget all hops."""
    with _lock:
        _counts.clear()
