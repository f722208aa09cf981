"""How modules are shown: one line, rows for a summary, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from frame.core import views
from frame.core.shapes import shape_text
from frame.ir.graph import Role

if TYPE_CHECKING:
    from frame.nn.module import Module

_SHOWN = 4
_LINE = 300


def text(module: Module) -> str:
    """Return one line such as `Linear(784, 10)`; long lists of children are cut."""
    name = [repr(module.name)] if module.name else []
    options = [f"{key}={_short(value)!r}" for key, value in _visible(module)]
    children = [text(child) for child in module.children[:_SHOWN]]
    if len(module.children) > _SHOWN:
        children.append(f"... {len(module.children) - _SHOWN} more")
    nested = [f"[{', '.join(children)}]"] if module.children else []
    line = f"{module.kind}({', '.join([*name, *options, *nested])})"
    return line if len(line) <= _LINE else line[: _LINE - 4] + "...)"


# What the factories assume is not shown, nor what repeats the kind.
_USUAL: Mapping[str, Any] = MappingProxyType(
    {
        "bias": True,
        "dilation": (1, 1),
        "eps": 1e-5,
        "groups": 1,
        "ignore_index": None,
        "momentum": 0.1,
        "padding": (0, 0, 0, 0),
        "size": None,
        "start": 1,
        "weight": None,
    }
)


def _short(value: Any) -> Any:
    """Return one number for a pair or four equal ones, as a user writes the size of a window."""
    equal = isinstance(value, tuple) and len(value) in (2, 4) and len(set(value)) == 1
    return value[0] if equal and isinstance(value[0], int) else value


def _visible(module: Module) -> list[tuple[str, Any]]:
    shown = [(key, value) for key, value in module.options if key != "op"]
    return [(k, v) for k, v in shown if k not in _USUAL or _USUAL[k] != v]


def summary_rows(module: Module) -> list[tuple[str, str, str, int]]:
    """Return a row (path, module, own parameters, number of their elements) for each module."""
    rows = []
    for path, part in module.modules():
        own = ", ".join(f"{spec.name}{shape_text(spec.shape)}" for spec in part.specs)
        label = text(part) if not part.children else part.kind
        rows.append((path or part.kind, label, own, sum(spec.size for spec in part.specs)))
    return rows


HEADS = ("path", "module", "own parameters", "elements")


def html(module: Module) -> str:
    """Return a table with a row for each module, and the totals."""
    specs = module.parameters()
    buffers = sum(spec.size for spec in specs if spec.role is Role.BUFFER)
    total = sum(spec.size for spec in specs) - buffers
    caption = f"{module.name or module.kind}: {count_text(total, buffers)}"
    return views.table(HEADS, map(html_cells, summary_rows(module)), "lllr", caption)


def html_cells(row: tuple[str, str, str, int], is_tree: bool = True) -> list[str | views.Cell]:
    """Return the cells of a row of `summary_rows`; in a tree a path is moved in by its depth."""
    path, label, own, size = row
    indented = views.Cell(path, indent=path.count(".") if is_tree else 0)
    code = (views.Cell(label, code=True), views.Cell(own, code=True))
    return [indented, *code, f"{size:,}" if size else ""]


def count_text(parameters: int, buffers: int) -> str:
    """Return `2,762 parameters, 32 elements of buffers`: what is trained, and what is not."""
    more = f", {buffers:,} elements of buffers" if buffers else ""
    return f"{parameters:,} parameters{more}"
