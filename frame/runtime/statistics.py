"""What compilation did in this process: passes run, code made, and what the cache gave."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from frame.core import forks
from frame.core.dataclass import dataclass

if TYPE_CHECKING:
    from frame.compiler.pass_manager import PassRecord


@dataclass(frozen=True, slots=True)
class CompileStats:
    """Counts since the start of the process; subtract two of them for what happened between.

    Attributes:
        passes: how many passes ran over a graph, repetitions counted.
        compiled: how many pieces of a program were turned into machine code.
        manifests: how many programs came from the cache, without a pass.
        artifacts: how many pieces those programs have, whose machine code came from the cache.
        tuned: for how many groups variants of the schedule were measured.
    """

    passes: int = 0
    compiled: int = 0
    manifests: int = 0
    artifacts: int = 0
    tuned: int = 0

    def __sub__(self, other: CompileStats) -> CompileStats:
        return CompileStats(*(a - b for a, b in zip(self.row(), other.row(), strict=True)))

    def __add__(self, other: CompileStats) -> CompileStats:
        return CompileStats(*(a + b for a, b in zip(self.row(), other.row(), strict=True)))

    def row(self) -> tuple[int, ...]:
        """Return the counts in the order of the fields."""
        return tuple(asdict(self).values())


_lock = forks.lock()
_stats = CompileStats()


def count(
    passes: int = 0, compiled: int = 0, manifests: int = 0, artifacts: int = 0, tuned: int = 0
) -> None:
    """Add to the counts."""
    global _stats
    with _lock:
        _stats = _stats + CompileStats(passes, compiled, manifests, artifacts, tuned)


def compile_stats() -> CompileStats:
    """Return the counts since the start of the process."""
    return _stats


class PassCounter:
    """An instrument that counts passes."""

    def after_pass(self, record: PassRecord) -> None:
        """Count a pass that has run."""
        count(passes=1)
