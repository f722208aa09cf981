"""Layered drawing of a graph: where boxes stand and how lines run between rows.

Boxes stand in rows, each below what it reads. A line that spans several rows gets a narrow *lane*
in each row that it passes, so that it never runs through a box. The order within a row follows
the mean place of the neighbours (Sugiyama, Tagawa and Toda, 1981), a few sweeps down and up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frame.core.dataclass import dataclass

BOX, LANE, GAP_X = 150, 8, 14
"""Widths of a box and a lane, and the gap between neighbours, in pixels."""

_SWEEPS = 4

Item = tuple[int, int]  # a box or, in rows below it, its lane: (the box, the row)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The left edge of each box, the lines as rows and centres, and the width of the whole."""

    lefts: tuple[int, ...]
    lines: tuple[tuple[tuple[int, int], ...], ...]  # each a list of (row, x)
    width: int


def draw(rows: Sequence[int], reads: Sequence[Sequence[int]]) -> Drawing:
    """Place boxes, given the row of each one and the boxes that it reads, all in rows above it."""
    items, above = _items(rows, reads)
    below: dict[Item, list[Item]] = {item: [] for item in above}
    for item, sources in above.items():
        for source in sources:
            below[source].append(item)
    for sweep in range(_SWEEPS):
        _reorder(items, *((above, 1) if sweep % 2 == 0 else (below, -1)))
    centres = _centres(items, above, rows)
    lines = tuple(
        tuple((row, centres[source, row]) for row in range(rows[source], rows[box]))
        + ((rows[box], centres[box, rows[box]]),)
        for box, sources in enumerate(reads)
        for source in sources
    )
    lefts = tuple(centres[box, row] - BOX // 2 for box, row in enumerate(rows))
    return Drawing(lefts, lines, max(lefts, default=0) + BOX + GAP_X)


def _items(
    rows: Sequence[int], reads: Sequence[Sequence[int]]
) -> tuple[list[list[Item]], dict[Item, list[Item]]]:
    """Return the boxes and lanes of each row, and what stands above each of them."""
    end = list(rows)  # the last row that a box, or a lane of it, stands in
    for box, sources in enumerate(reads):
        for source in sources:
            end[source] = max(end[source], rows[box] - 1)
    items: list[list[Item]] = [[] for _ in range(max(rows, default=0) + 1)]
    above: dict[Item, list[Item]] = {}
    for box, row in enumerate(rows):
        above[box, row] = [(source, row - 1) for source in reads[box]]
        for lane in range(row + 1, end[box] + 1):
            above[box, lane] = [(box, lane - 1)]
        for place in range(row, end[box] + 1):
            items[place].append((box, place))
    return items, above


def _reorder(items: list[list[Item]], neighbours: Mapping[Item, Sequence[Item]], step: int) -> None:
    """Sort each row by the mean place of the neighbours in the row before it, in place."""
    before: dict[Item, int] = {}
    for row in items[::step]:
        means = {item: float(place) for place, item in enumerate(row)}
        for item in row:
            if known := neighbours[item]:
                means[item] = sum(before[each] for each in known) / len(known)
        row.sort(key=means.__getitem__)
        before = {item: place for place, item in enumerate(row)}


def _centres(
    items: list[list[Item]], above: Mapping[Item, Sequence[Item]], rows: Sequence[int]
) -> dict[Item, int]:
    """Place each row from the left, each item below the mean of what stands above it."""
    centres: dict[Item, int] = {}
    for row in items:
        edge = 0
        for item in row:
            width = BOX if rows[item[0]] == item[1] else LANE
            over = [centres[source] for source in above[item]]
            wanted = sum(over) // len(over) - width // 2 if over else 0
            left = max(edge, wanted)
            centres[item] = left + width // 2
            edge = left + width + GAP_X
    return centres
