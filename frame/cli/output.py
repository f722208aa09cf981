"""What commands print: JSON for programs, aligned text for people."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from frame.core import config
from frame.core.errors import FrameError


def colour_wanted() -> bool | None:
    """Return False under NO_COLOR, else None: click then looks whether the output is a terminal."""
    try:
        return False if config.get("NO_COLOR") else None
    except FrameError:
        return None


def print_json(data: Any) -> None:
    """Print one JSON document to the standard output."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def heading(text: str) -> str:
    """Return a heading, bold where the output shows colour."""
    return click.style(text, bold=True)


def facts(rows: Mapping[str, Any], indent: int = 2, columns: int = 0) -> str:
    """Return `name  value` lines with the values in one column.

    Lines of values are broken between words where they pass `columns` characters; 0 breaks none.
    """
    width = max((len(name) for name in rows), default=0)
    lines = []
    for name, value in rows.items():
        first, *rest = wrapped(str(value), columns - indent - width - 2) or [""]
        lines.append(f"{'':{indent}}{name:{width}}  {first}".rstrip())
        lines += [f"{'':{indent + width + 2}}{line}" for line in rest]
    return "\n".join(lines)


def wrapped(text: str, columns: int) -> list[str]:
    """Return the lines of a text, broken between words where they pass `columns` > 0."""
    if columns <= 0:
        return text.splitlines()
    parts = (
        textwrap.wrap(line, max(columns, 30), break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
    return [line for part in parts for line in part or [""]]


def screen_columns() -> int:
    """Return how many characters a line of text for people may have: those of the terminal."""
    return min(shutil.get_terminal_size().columns, 100)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with a bold header, columns aligned to the left, two spaces between them."""
    body = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(header, *body, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = [_line(row, widths) for row in (header, *body)]
    return "\n".join([heading(lines[0]), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def bytes_text(count: int) -> str:
    """Return a count of bytes in the largest binary unit below it: `1.5 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def is_terminal() -> bool:
    """Tell whether people read the standard error as it comes (progress belongs there)."""
    return sys.stderr.isatty()
