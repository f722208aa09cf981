"""What a compiled model is, as a table: modules, parameters, inputs, outputs, entries."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frame.core import views
from frame.core.shapes import shape_text
from frame.ir.graph import Role
from frame.nn.display import HEADS, count_text, html_cells

if TYPE_CHECKING:
    from frame.runtime.model import CompiledModel

Row = tuple[str, str, str, int]


def summary(model: CompiledModel) -> str:
    """Return the table of a model as text, with its totals and signature."""
    return "\n".join([*table_lines(model), *_facts(model)])


def table_lines(model: CompiledModel) -> list[str]:
    """Return the lines of the table alone, between rules."""
    rows = [(path, what, own, f"{n:,}" if n else "") for path, what, own, n in _rows(model)]
    cells = [_heads(model), *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADS))]
    lines = [
        "  ".join(
            cell.rjust(width) if i == 3 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    rule = "-" * max(map(len, lines))
    return [lines[0], rule, *lines[1:], rule]


def summary_html(model: CompiledModel) -> str:
    """Return the table of a model as HTML; every text of the user is escaped."""
    facts = "<br>".join(map(html.escape, _facts(model)))
    is_tree = model.module is not None  # the paths of parameters alone are none
    rows = [html_cells(row, is_tree) for row in _rows(model)]
    table = views.table(_heads(model), rows, "lllr")
    return f"{table}<div>{facts}</div>"


def counts(model: CompiledModel) -> tuple[int, int]:
    """Return the number of elements of a model's parameters, and that of its buffers."""
    entries = model.declaration(model.mode).graph.inputs
    buffers = {entry.name for entry in entries if entry.role is Role.BUFFER}
    sizes = {name: model.store.array(name).size for name in model.params}
    inside = sum(size for name, size in sizes.items() if name in buffers)
    return sum(sizes.values()) - inside, inside


def _heads(model: CompiledModel) -> tuple[str, ...]:
    """What the columns of `_rows` hold."""
    return ("parameter", "dtype", "shape", "elements") if model.module is None else HEADS


def _rows(model: CompiledModel) -> Sequence[Row]:
    """One row a module; one row a parameter where the modules are not known (a loaded file)."""
    if model.module is not None:
        return model.module.summary_rows()
    types = ((name, model.store.type_of(name)) for name in model.params)
    return [
        (name, str(type_.dtype), shape_text(type_.shape), model.store.array(name).size)
        for name, type_ in types
    ]


def _facts(model: CompiledModel) -> list[str]:
    arrays = [model.store.array(name) for name in model.params]
    size = _bytes_text(sum(array.nbytes for array in arrays))
    lines = [f"{model.name}: {count_text(*counts(model))}, {size}"]
    signature = model.entry(model.mode).signature
    inputs = [port for port in signature.inputs if port.role is Role.INPUT]
    for title, ports in (("inputs", inputs), ("outputs", signature.outputs)):
        lines.append(f"{title}: " + (", ".join(f"{p.name}: {p.type}" for p in ports) or "none"))
    return [*lines, *_tuning_lines(model)]


def _tuning_lines(model: CompiledModel) -> list[str]:
    """One line for each kind of group that tuning changed, those of all compiled entries."""
    found = [entry.loaded.manifest for entry in model.entries.values()]
    rows = [row for manifest in found for row in manifest.tuned]
    lines = [
        f"tuned: {row.count} x {row.group}: {100 * (row.gain - 1):.0f} % faster ({row.variant})"
        for row in rows
        if row.variant
    ]
    kept, left = sum(r.count for r in rows if not r.variant), sum(m.untuned for m in found)
    if rows or left:
        lines.append(f"tuned: {kept} groups keep their schedules, {left} were not measured yet")
    return lines


def _bytes_text(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
