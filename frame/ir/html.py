"""Graphs as HTML, for notebooks: a picture of the nodes by depth, and the text below it."""

from __future__ import annotations

import html
from dataclasses import dataclass

from frame.ir.graph import Graph, Value
from frame.ir.printer import number_values, print_graph

MAX_PICTURED = 120
"""How many nodes are drawn; of a larger graph the first ones are."""

MAX_CHARACTERS = 40_000
"""How many characters of the text are shown."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 150, 34, 18, 30
_STYLE = (
    "font-family:ui-monospace,monospace;font-size:12px;line-height:1.4;"
    "max-height:32em;overflow:auto;border:1px solid #8884;border-radius:4px;padding:8px;"
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
    columns: dict[int, int] = {}
    spots = []
    for box in boxes:
        column = columns.get(box.row, 0)
        columns[box.row] = column + 1
        spots.append((column * (_WIDTH + _GAP_X), box.row * (_HEIGHT + _GAP_Y)))
    width = max(columns.values(), default=1) * (_WIDTH + _GAP_X)
    height = (max(columns, default=0) + 1) * (_HEIGHT + _GAP_Y)
    lines = [_line(spots[r], spots[i]) for i, box in enumerate(boxes) for r in box.reads]
    drawn = [_draw(box, spot) for box, spot in zip(boxes, spots, strict=True)]
    left_out = len(graph.nodes) - MAX_PICTURED
    note = f"<div>the first {MAX_PICTURED} nodes are drawn</div>" if left_out > 0 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'role="img" fill="currentColor" font-size="12">'
        f"{''.join(lines)}{''.join(drawn)}</svg>{note}"
    )


def _boxes(graph: Graph) -> list[_Box]:
    """Return the boxes in drawing order; a node stands one row below the lowest one it reads."""
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
    return boxes


_COLOURS = {"input": "#4c78a8", "node": "#888888", "output": "#54a24b"}


def _draw(box: _Box, spot: tuple[int, int]) -> str:
    x, y = spot
    tip = html.escape(f"{box.title} : {box.detail}")
    return (
        f"<g><title>{tip}</title>"
        f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="4" '
        f'fill="{_COLOURS[box.kind]}22" stroke="{_COLOURS[box.kind]}"/>'
        f'<text x="{x + 6}" y="{y + 14}">{html.escape(_short(box.title))}</text>'
        f'<text x="{x + 6}" y="{y + 28}" opacity="0.7" font-size="10">'
        f"{html.escape(_short(box.detail, 23))}</text></g>"
    )


def _line(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _WIDTH // 2, source[1] + _HEIGHT
    x2, y2 = target[0] + _WIDTH // 2, target[1]
    return (
        f'<path d="M{x1} {y1} C{x1} {y1 + 16} {x2} {y2 - 16} {x2} {y2}" fill="none" '
        'stroke="currentColor" opacity="0.4"/>'
    )


def _short(text: str, length: int = 19) -> str:
    return text if len(text) <= length else text[: length - 1] + "\u2026"
