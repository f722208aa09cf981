"""Packing of intervals: the offsets of buffers that live over spans of steps.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
arXiv 2001.03288): take the largest buffer first, and put each one into the smallest gap that it
fits between the buffers placed so far whose spans meet its own. Where that misses the lower bound
(the peak of live bytes), other orders are tried and the best result is kept: first those by other
measures, then each of these repaired: again and again, the buffer that ends highest moves to its
front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

ALIGNMENT = 64
"""Every offset is a multiple of this many bytes: a cache line, and the widest vector."""

NEAR_BITS = 6
"""A height within 1/2**6 of the lower bound is near enough: no other order is tried."""

_MOST_REPAIRS, _REPAIRED_SLOTS = 16, 1 << 12
"""How often an order is repaired, and how many buffers are placed in its repairs at most."""


def align(size: int) -> int:
    """Return `size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> int:
    """Return the peak of live bytes over all steps; spans include both ends."""
    changes: dict[int, int] = {}
    for size, start, end in zip(sizes, starts, ends, strict=True):
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    peak = live = 0
    for step in sorted(changes):
        live += changes[step]
        peak = max(peak, live)
    return peak


def pack(
    sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], bound: int
) -> tuple[list[int], int]:
    """Return the offset of each buffer and the height of the whole.

    Sizes are aligned already; buffers of size 0 are at 0. `bound` is their `lower_bound`: packing
    stops at the first order that comes near it. The result depends on the arguments alone.
    """
    enough = bound + (bound >> NEAR_BITS)
    tried: list[tuple[list[int], list[int], int]] = []
    for order in _orders(sizes, starts, ends):
        offsets, height = _pack_in(order, sizes, starts, ends)
        if height <= enough:
            return offsets, height
        tried.append((order, offsets, height))
    found = [(offsets, height) for _, offsets, height in tried]
    for order, first, highest in tried:
        for offsets, height in _repaired(order, first, highest, sizes, starts, ends):
            if height <= enough:
                return offsets, height
            found.append((offsets, height))
    return min(found, key=lambda packing: packing[1])


def _repaired(
    order: list[int],
    offsets: list[int],
    height: int,
    sizes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
) -> Iterator[tuple[list[int], int]]:
    """Pack again and again, each time with what ended highest before placed first."""
    for _ in range(min(_MOST_REPAIRS, _REPAIRED_SLOTS // len(sizes))):
        highest = [index for index in order if offsets[index] + sizes[index] == height]
        if highest[-1] == order[0]:
            return
        order = [highest[-1], *(index for index in order if index != highest[-1])]
        offsets, height = _pack_in(order, sizes, starts, ends)
        yield offsets, height


def _orders(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[list[int]]:
    kept = [index for index, size in enumerate(sizes) if size]
    span = [end - start for start, end in zip(starts, ends, strict=True)]
    return [
        sorted(kept, key=lambda i: (-sizes[i], starts[i], i)),
        sorted(kept, key=lambda i: (-sizes[i] * (span[i] + 1), starts[i], i)),
        sorted(kept, key=lambda i: (-span[i], -sizes[i], i)),
        sorted(kept, key=lambda i: (starts[i], -sizes[i], i)),
    ]


def _pack_in(
    order: Sequence[int], sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> tuple[list[int], int]:
    offsets = [0] * len(sizes)
    placed = _Placed(len(order))
    for index in order:
        offsets[index] = placed.add(sizes[index], starts[index], ends[index])
    return offsets, placed.height


class _Placed:
    """The buffers placed so far, as rows of one array that are sorted by offset.

    Each new buffer is compared with all of them in a few array operations: exact best fit takes
    quadratic time, but some hundred times less of it than a loop in Python.
    """

    def __init__(self, capacity: int) -> None:
        self._rows = np.empty((4, capacity), np.int64)  # offset, top, start, end
        self._count = 0
        self.height = 0

    def add(self, size: int, start: int, end: int) -> int:
        """Place a buffer into the smallest gap that is free over its span; return its offset."""
        offset = self._smallest_gap(size, start, end)
        count, rows = self._count, self._rows
        at = int(np.searchsorted(rows[0, :count], offset, side="right"))
        rows[:, at + 1 : count + 1] = rows[:, at:count].copy()
        rows[:, at] = offset, offset + size, start, end
        self._count = count + 1
        self.height = max(self.height, offset + size)
        return offset

    def _smallest_gap(self, size: int, start: int, end: int) -> int:
        offsets, tops, starts, ends = self._rows[:, : self._count]
        meets = np.flatnonzero((starts <= end) & (ends >= start))
        if not meets.size:
            return 0
        floors = np.zeros(meets.size + 1, np.int64)
        np.maximum.accumulate(tops[meets], out=floors[1:])
        gaps = offsets[meets] - floors[:-1]
        fits = np.flatnonzero(gaps >= size)
        if not fits.size:
            return int(floors[-1])
        return int(floors[fits[np.argmin(gaps[fits])]])
