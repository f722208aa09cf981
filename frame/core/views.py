"""Tables of the notebook views: one look for all of them, self-contained, every text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_PADDING = "padding:2px 10px"
_CAPTION = "text-align:left;caption-side:top;color:inherit"
_BAR = '<div style="width:{share:.0%};height:.7em;background:#4c78a8;border-radius:2px"></div>'


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than a line of text.

    Attributes:
        text: what it says.
        code: whether it stands in the font of code, where long text may be broken.
        bar: a share from 0 to 1 that is drawn as a bar in place of the text.
        indent: by how many steps it is moved to the right.
    """

    text: str
    code: bool = False
    bar: float | None = None
    indent: int = 0


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], sides: str, caption: str = ""
) -> str:
    """Return a table as HTML.

    Args:
        heads: the texts of the heading, one a column; no row of them when empty.
        rows: the cells.
        sides: a letter a column: `l` stands at the left, `r` at the right.
        caption: a line above the table.
    """
    title = f'<caption style="{_CAPTION}"><b>{html.escape(caption)}</b></caption>'
    head = f"<thead>{_row('th', heads, sides)}</thead>" if heads else ""
    body = "".join(_row("td", row, sides) for row in rows)
    return f"<table>{title if caption else ''}{head}<tbody>{body}</tbody></table>"


def _row(tag: str, cells: Sequence[str | Cell], sides: str) -> str:
    made = (_cell(tag, cell, side) for cell, side in zip(cells, sides, strict=True))
    return f'<tr style="white-space:nowrap">{"".join(made)}</tr>'


def _cell(tag: str, cell: str | Cell, side: str) -> str:
    shown = cell if isinstance(cell, Cell) else Cell(cell)
    style = f"text-align:{'right' if side == 'r' else 'left'};{_PADDING}"
    style += ";white-space:normal" if shown.code else ""
    style += f";padding-left:{shown.indent * 1.2 + 0.8:.1f}em" if shown.indent else ""
    return f'<{tag} style="{style}">{_content(shown)}</{tag}>'


def _content(cell: Cell) -> str:
    if cell.bar is not None:
        share = min(max(cell.bar, 0.0), 1.0)
        return f'<div style="width:6em">{_BAR.format(share=share)}</div>'
    text = html.escape(cell.text)
    return f"<code>{text}</code>" if cell.code and text else text
