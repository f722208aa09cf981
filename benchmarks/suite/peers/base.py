"""What an adapter is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.suite.case import Instance
from benchmarks.suite.plan import Plan

CHECKED_STEPS = 2
"""How many losses of a training step are compared: the second shows the first update."""


class NotSupportedError(Exception):
    """A peer can't run a case; the text says why."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case made ready in a peer.

    Attributes:
        call: runs the case once and returns when the results are there.
        outputs: runs it and returns the outputs as arrays; for a training step the losses of the
            first `CHECKED_STEPS` steps. Called once, before `call`.
        how: how the peer ran it, for the table.
        kernel_seconds: runs it and returns the seconds inside the kernels, where the peer tells.
    """

    call: Callable[[], Any]
    outputs: Callable[[], list[np.ndarray]]
    how: str
    kernel_seconds: Callable[[], float] | None = None


Prepare = Callable[[Instance, int], Prepared]
"""Makes a case ready for a number of threads, or raises NotSupportedError."""


def losses(step: Callable[[], Any]) -> list[np.ndarray]:
    """Return the first losses of a training step as one array."""
    return [np.array([float(step()) for _ in range(CHECKED_STEPS)])]


def require(plan: Plan, table: Iterable[str], peer: str) -> None:
    """Raise NotSupportedError for an op that a peer's table lacks."""
    missing = sorted(plan.ops() - set(table))
    if missing:
        raise NotSupportedError(f"{peer} has no {', '.join(missing)} in its table")


def how(text: str, plan: Plan, interesting: Mapping[str, str]) -> str:
    """Return how a plan is run: a text, its notes, and the calls that stand for several ops."""
    ops = plan.ops()
    parts = [text, *(name for op, name in interesting.items() if op in ops), *plan.notes]
    return "; ".join(parts)
