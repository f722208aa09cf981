"""Where the time of a run goes: one row a kernel launch, as text, HTML or plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from frame.core import views
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.hal.interfaces import KernelTime, Peaks
from frame.ir.graph import Graph
from frame.runtime.backends import backend as find_backend
from frame.runtime.cache import default_cache

_NAMED = 3  # how many modules of one launch are named
_RATES = ("gflops", "gigabytes", "roofline")
_HEADS = ("kernel", "module", "time", "share", "GFLOP/s", "GB/s", "roofline")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One launch: its kernel, the module path that it stems from, seconds, and its work.

    `gflops` and `gigabytes` are rates per second; NaN where the clock saw no time. `roofline` is
    the share of the machine's limit that the kernel reaches: the least time in which its operations
    can be done at the multiply-add peak, or its bytes moved from the level of memory that holds
    them, over the time that it took; NaN where the work or the limit is not known.
    """

    kernel: str
    module: str
    seconds: float
    share: float
    flops: int
    bytes: int
    roofline: float = math.nan

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second."""
        return self.flops / self.seconds * 1e-9 if self.seconds else math.nan

    @property
    def gigabytes(self) -> float:
        """Billions of bytes a second, read and written."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else math.nan

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        share = f"{self.roofline:.0%}" if math.isfinite(self.roofline) else "-"
        rates = (_rate(self.flops, self.gflops), _rate(self.bytes, self.gigabytes), share)
        return (self.kernel, self.module, time_text(self.seconds), f"{self.share:.1%}", *rates)


@dataclass(frozen=True, slots=True)
class Profile:
    """The launches of one run in order. `print(profile)` shows a table, notebooks an HTML one.

    `runs` tells of how many runs this is the one of median time.
    """

    name: str
    rows: tuple[ProfileRow, ...]
    runs: int = 1

    @property
    def seconds(self) -> float:
        """The time of all launches together."""
        return sum(row.seconds for row in self.rows)

    @property
    def flops(self) -> int:
        """The floating-point operations of all launches."""
        return sum(row.flops for row in self.rows)

    def __iter__(self) -> Iterator[ProfileRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def by_module(self) -> dict[str, float]:
        """Return the seconds of each module path, the largest first."""
        total: dict[str, float] = {}
        for row in self.rows:
            total[row.module] = total.get(row.module, 0.0) + row.seconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def to_data(self) -> dict[str, Any]:
        """Return the profile as plain data; rates that are not known are None."""
        rows = [
            {**asdict(row), **{rate: _known(getattr(row, rate)) for rate in _RATES}}
            for row in self.rows
        ]
        return {"name": self.name, "seconds": self.seconds, "runs": self.runs, "rows": rows}

    def to_json(self) -> str:
        """Return the profile as a JSON text."""
        return json.dumps(self.to_data())

    def __str__(self) -> str:
        rows = [row.cells() for row in self.rows]
        widths = [max(len(row[i]) for row in (_HEADS, *rows)) for i in range(len(_HEADS))]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (_HEADS, *rows)]
        return "\n".join([*lines, self._total()])

    def _total(self) -> str:
        rate = f", {self.flops / self.seconds * 1e-9:.1f} GFLOP/s" if self.seconds else ""
        median = f", the median of {self.runs} runs" if self.runs > 1 else ""
        return f"{self.name}: {len(self.rows)} launches, {time_text(self.seconds)}{rate}{median}"

    def _repr_html_(self) -> str:
        heads = (*_HEADS[:4], "", *_HEADS[4:])
        rows = [_html_cells(row) for row in self.rows]
        return views.table(heads, rows, "llrrlrrr", self._total())


def machine_peaks(backend: str) -> Peaks | None:
    """Return the limits of a backend's device, from the cache if there; None if it tells none."""
    measure = getattr(find_backend(backend), "peaks", None)
    return None if measure is None else measure(default_cache().artifacts())


def median_profile(
    run: Callable[[], Sequence[KernelTime]], graph: Graph, runs: int, peaks: Peaks | None = None
) -> Profile:
    """Run a number of times and return the profile of the run of median time.

    Raises:
        InvalidArgumentError: `runs` is no integer of at least 1.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise InvalidArgumentError(
            f"expected runs to be an integer of at least 1, received {runs!r:.80}"
        )
    measured = [run() for _ in range(runs)]
    measured.sort(key=lambda times: sum(time.seconds for time in times))
    return make_profile(measured[runs // 2], graph, runs, peaks)


def make_profile(
    times: Sequence[KernelTime], graph: Graph, runs: int = 1, peaks: Peaks | None = None
) -> Profile:
    """Return the profile of a run from its launch times, the graph and the machine's limits.

    A launch that a few modules share names them; for more it shows what their paths have in common:
    `net.block.*`.
    """
    total = sum(time.seconds for time in times) or 1.0
    rows = (
        ProfileRow(
            time.kernel,
            _module_of(time.origins, graph),
            time.seconds,
            time.seconds / total,
            time.flops,
            time.bytes,
            _roofline(time, peaks),
        )
        for time in times
    )
    return Profile(graph.name, tuple(rows), runs)


def _roofline(time: KernelTime, peaks: Peaks | None) -> float:
    if peaks is None or not time.seconds or not (time.flops or time.bytes):
        return math.nan
    return peaks.seconds(time.flops, time.bytes, time.width) / time.seconds


def _module_of(origins: Sequence[int], graph: Graph) -> str:
    known = [graph.locations[o].module for o in origins if 0 <= o < len(graph.locations)]
    paths = [path for path in dict.fromkeys(known) if path]
    if len(paths) <= _NAMED:
        return ", ".join(paths)
    common = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join([*common, "*"])


def time_text(seconds: float) -> str:
    """Return a time with three digits and a unit: `12.3 us`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _rate(work: int, rate: float) -> str:
    return f"{rate:.1f}" if work and math.isfinite(rate) else "-"


def _known(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The two names stand at the left of their columns, the numbers at the right."""
    return [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _html_cells(row: ProfileRow) -> list[str | views.Cell]:
    """Return the cells of a row, the share also as a bar beside its number."""
    cells = row.cells()
    return [*cells[:4], views.Cell("", bar=row.share), *cells[4:]]
