"""Packing of intervals: the offsets of buffers that live over spans of steps.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
arXiv 2001.03288): take the largest buffer first, and put each one into the smallest gap that it
fits between the buffers placed so far whose spans meet its own. Where that misses the lower bound
(the peak of live bytes), other orders are tried and the best result is kept.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

ALIGNMENT = 64
"""Every offset is a multiple of this many bytes: a cache line, and the widest vector."""


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
    stops at the first order that meets it. The result depends on the arguments alone.
    """
    best: tuple[list[int], int] | None = None
    for order in _orders(sizes, starts, ends):
        offsets, height = _pack_in(order, sizes, starts, ends)
        if best is None or height < best[1]:
            best = offsets, height
        if height == bound:
            break
    return best if best is not None else ([], 0)


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
    offsets, height = [0] * len(sizes), 0
    placed: list[tuple[int, int, int, int]] = []  # sorted by offset
    for index in order:
        offset = _smallest_gap(placed, sizes[index], starts[index], ends[index])
        top = offset + sizes[index]
        insort(placed, (offset, top, starts[index], ends[index]))
        offsets[index] = offset
        height = max(height, top)
    return offsets, height


def _smallest_gap(
    placed: Sequence[tuple[int, int, int, int]], size: int, start: int, end: int
) -> int:
    """Return the offset of the smallest gap of at least `size` bytes that is free over the span."""
    floor, best, offset = 0, -1, -1
    for other, top, other_start, other_end in placed:
        if other_start <= end and other_end >= start:
            gap = other - floor
            if gap >= size and (offset < 0 or gap < best):
                best, offset = gap, floor
            if top > floor:
                floor = top
    return floor if offset < 0 else offset
