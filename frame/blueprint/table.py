"""Plans as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frame.blueprint.layers import ArchLayer
from frame.blueprint.shapes import multiply_adds, operations, parameter_count
from frame.core import views

if TYPE_CHECKING:
    from frame.blueprint.plan import ArchPlan

SHORT = {
    "out_channels": "out",
    "out_features": "out",
    "kernel": "k",
    "stride": "s",
    "padding": "p",
    "momentum": "mom",
    "rate": "p",
}


def plan_text(plan: ArchPlan) -> str:
    """Return a heading, the input, and one line a layer: index, kind, shapes, options."""
    spec = plan.input_spec
    heading = f"ArchPlan: {len(plan.layers)} layers, {'fused' if plan.fused else 'unfused'}"
    lines = [heading, f"Input: [1, {spec.h}, {spec.w}, {spec.c}]", "-" * 72]
    for index, layer in enumerate(plan.layers):
        first = " [FIRST]" if index == 0 else ""
        shapes = f"{list(layer.in_shape)} -> {list(layer.out_shape)}"
        lines.append(f"{index:3} {layer.kind:<22} {shapes}{first} {_options(layer)}".rstrip())
    return "\n".join(lines)


def _options(layer: ArchLayer) -> str:
    return " ".join(f"{SHORT.get(name, name)}={value}" for name, value in layer.options)


_HEADS = ("#", "path", "kind", "input", "output", "parameters", "MACs", "FLOPs")


def layer_table(plan: ArchPlan) -> str:
    """Return the columns path, kind, shapes, parameters, multiply-adds (MACs) and operations."""
    return "\n".join(_aligned([_HEADS, *_rows(plan)]))


def layer_html(plan: ArchPlan) -> str:
    """Return the columns of `layer_table` as HTML."""
    form = "fused" if plan.fused else "unfused"
    return views.table(_HEADS, _rows(plan), "rllllrrr", f"{len(plan.layers)} layers, {form}")


def _rows(plan: ArchPlan) -> list[tuple[str, ...]]:
    """Return a row a layer, and the sums."""
    rows = [_row(str(index), layer) for index, layer in enumerate(plan.layers)]
    totals = (plan.parameters, plan.multiply_adds, plan.operations)
    sums = ("", "", "total", "", str(list(plan.output_shape)), *(f"{n:,}" for n in totals))
    return [*rows, sums]


def _row(index: str, layer: ArchLayer) -> tuple[str, ...]:
    counts = (parameter_count(layer), multiply_adds(layer), operations(layer))
    shapes = (str(list(layer.in_shape)), str(list(layer.out_shape)))
    return (index, layer.path, str(layer.kind), *shapes, *(f"{n:,}" for n in counts))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = len(_HEADS) - 3
    return [
        "  ".join(
            cell.rjust(width) if column >= numbers or column == 0 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
