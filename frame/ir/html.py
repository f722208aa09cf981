"""Graphs as HTML, for notebooks: a picture of the nodes by depth, and the text below it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace

from frame.core.dataclass import dataclass
from frame.ir.graph import Graph, Value
from frame.ir.layered import BOX, draw
from frame.ir.printer import number_values, print_graph

MAX_PICTURED = 120
"""How many nodes are drawn; of a larger graph the first ones are."""

MAX_CHARACTERS = 40_000
"""How many characters of the text are shown."""

_HEIGHT, _GAP_Y = 34, 30
_PITCH = _HEIGHT + _GAP_Y
_STYLE = (
    "font-family:ui-monospace,monospace;font-size:12px;line-height:1.4;"
    "max-height:32em;overflow:auto;scrollbar-color:#8888 transparent;"
    "border:1px solid #8884;border-radius:4px;padding:8px;"
)


@dataclass(frozen=True, slots=True)
class _Box:
    """One node or input of the picture: its text, its row and the boxes that it reads."""

    title: str
    detail: str
    kind: str
    row: int
    reads: tuple[int, ...]


def graph_html(graph: Graph) -> str:
    """Return a self-contained HTML fragment: every text of the user is escaped, size is bounded."""
    text = print_graph(graph)
    shown = text[:MAX_CHARACTERS]
    more = len(text) - len(shown)
    tail = f"\n... {more} more characters; str(graph) gives all of them" if more else ""
    head = f"{graph.name}: {len(graph.inputs)} inputs, {len(graph.nodes)} nodes"
    return (
        f"<div><strong>{html.escape(head)}</strong>"
        f'<div style="{_STYLE}">{_picture(graph)}</div>'
        f'<details><summary>text</summary><pre style="{_STYLE}">'
        f"{html.escape(shown + tail)}</pre></details></div>"
    )


def _picture(graph: Graph) -> str:
    boxes = _boxes(graph)
    rows = [box.row for box in boxes]
    drawing = draw(rows, [box.reads for box in boxes])
    height = max(rows, default=0) * _PITCH + _HEIGHT
    lines = [_line(line) for line in drawing.lines]
    spots = [(left, row * _PITCH) for left, row in zip(drawing.lefts, rows, strict=True)]
    drawn = [_draw(box, spot) for box, spot in zip(boxes, spots, strict=True)]
    left_out = len(graph.nodes) - MAX_PICTURED
    note = f"<div>the first {MAX_PICTURED} nodes are drawn</div>" if left_out > 0 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{height}" '
        'role="img" fill="currentColor" font-size="12">'
        f"{''.join(lines)}{''.join(drawn)}</svg>{note}"
    )


def _boxes(graph: Graph) -> list[_Box]:
    """Return the boxes; a node stands below all that it reads, an input just above a reader."""
    numbers, index = number_values(graph), dict[Value, int]()
    boxes: list[_Box] = []
    nodes = graph.nodes[:MAX_PICTURED]
    read = {operand for node in nodes for operand in node.operands}
    for entry in graph.inputs:
        if entry.value in read:
            index[entry.value] = len(boxes)
            boxes.append(_Box(entry.name, str(entry.value.type), "input", 0, ()))
    returned = set(graph.returned)
    for node in nodes:
        reads = tuple(dict.fromkeys(index[o] for o in node.operands if o in index))
        row = max((boxes[i].row for i in reads), default=-1) + 1
        names = ", ".join(f"%{numbers[value]}" for value in node.results)
        types = ", ".join(str(value.type) for value in node.results)
        kind = "output" if returned.intersection(node.results) else "node"
        index.update(dict.fromkeys(node.results, len(boxes)))
        boxes.append(_Box(f"{names} {node.op}".strip(), types, kind, row, reads))
    return _lowered(boxes)


def _lowered(boxes: Sequence[_Box]) -> list[_Box]:
    """Move each input down to the row above its first reader."""
    rows: dict[int, int] = {}
    for box in boxes:
        for read in box.reads:
            rows[read] = min(rows.get(read, box.row), box.row)
    return [
        replace(box, row=rows[i] - 1) if box.kind == "input" and i in rows else box
        for i, box in enumerate(boxes)
    ]


_COLOURS = {"input": "#4c78a8", "node": "#888888", "output": "#54a24b"}


def _draw(box: _Box, spot: tuple[int, int]) -> str:
    x, y = spot
    tip = html.escape(f"{box.title} : {box.detail}")
    return (
        f"<g><title>{tip}</title>"
        f'<rect x="{x + 1}" y="{y + 1}" width="{BOX - 2}" height="{_HEIGHT - 2}" rx="4" '
        f'fill="{_COLOURS[box.kind]}22" stroke="{_COLOURS[box.kind]}"/>'
        f'<text x="{x + 6}" y="{y + 14}">{html.escape(_short(box.title))}</text>'
        f'<text x="{x + 6}" y="{y + 28}" opacity="0.7" font-size="10">'
        f"{html.escape(_short(box.detail, 23))}</text></g>"
    )


def _line(line: Sequence[tuple[int, int]]) -> str:
    """Draw a line: a curve between rows, straight down through each lane."""
    row, x = line[0]
    path = f"M{x} {row * _PITCH + _HEIGHT}"
    for row, x in line[1:]:
        top = row * _PITCH
        before = line[row - line[0][0] - 1][1]
        path += f" C{before} {top - _GAP_Y // 2} {x} {top - _GAP_Y // 2} {x} {top}"
        path += f" V{top + _HEIGHT}" if row < line[-1][0] else ""
    return f'<path d="{path}" fill="none" stroke="currentColor" opacity="0.4"/>'


def _short(text: str, length: int = 19) -> str:
    return text if len(text) <= length else text[: length - 1] + "\u2026"
