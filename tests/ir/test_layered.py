"""The layout of drawings: boxes don't overlap, and no line runs through a box."""

from __future__ import annotations

import random

import pytest

from frame.ir.layered import BOX, draw


def random_rows(seed: int) -> tuple[list[int], list[list[int]]]:
    source = random.Random(seed)
    reads: list[list[int]] = []
    rows: list[int] = []
    for box in range(source.randrange(1, 40)):
        chosen = source.sample(range(box), min(box, source.randrange(4)))
        reads.append(chosen)
        rows.append(max((rows[i] for i in chosen), default=-1) + 1)
    return rows, reads


@pytest.mark.parametrize("seed", range(30))
def test_boxes_apart_and_lines_beside_them(seed):
    rows, reads = random_rows(seed)
    drawing = draw(rows, reads)
    spans = [(row, left, left + BOX) for row, left in zip(rows, drawing.lefts, strict=True)]
    for i, (row, left, right) in enumerate(spans):
        assert 0 <= left and right <= drawing.width
        assert all(r != row or b <= left or a >= right for r, a, b in spans[:i])
        for line in drawing.lines:
            assert all(r != row or not left < x < right for r, x in line[1:-1])


def test_a_line_joins_the_middles_of_its_boxes():
    drawing = draw([0, 1, 2], [[], [0], [1, 0]])
    ends = {(line[0], line[-1]) for line in drawing.lines}
    middles = [(row, left + BOX // 2) for row, left in enumerate(drawing.lefts)]
    assert ends == {(middles[0], middles[1]), (middles[1], middles[2]), (middles[0], middles[2])}


def test_nothing_to_draw():
    assert draw([], []).lefts == ()
