"""Variants of the plans of a convolution: other chunks and bands.

A result is the sum over the passes of its input channels, and in a pass over channels and points
of the window in order. How the results are cut into chunks, and which of them a tile computes side
by side, leaves that order alone; what one pass takes, or the transforms are of, does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import TypeVar

from frame.codegen.schedules import variants
from frame.codegen.schedules.cpu.conv_direct import DirectPlan, make_direct
from frame.codegen.schedules.cpu.conv_panels import PanelPlan, make_panels
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, make_plans
from frame.codegen.schedules.cpu.conv_winograd import WinogradPlan, make_winograd
from frame.core.errors import InvalidArgumentError
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph

_MOST = 8  # variants of a convolution
_LOCAL = 1 << 18  # bytes of local memory of a chunk

AnyPlan = ConvPlan | DirectPlan | PanelPlan | WinogradPlan
Plan = TypeVar("Plan", bound=AnyPlan)
Changes = dict[str, int]


def group_variants(body: Graph, target: TargetDescription) -> tuple[str, ...]:
    """Return the variants of a convolution group of known sizes; those in phases have none."""
    plans = make_plans(body, target)
    if len(plans) != 1 or plans[0].is_empty or not isinstance(plans[0].batch, int):
        return ()
    if not isinstance(plans[0].channels, int):
        return ()
    plan = (
        make_winograd(plans[0], target)
        or make_direct(plans[0], target)
        or make_panels(plans[0], body, target)
        or plans[0]
    )
    return _variants_of(plan)


def _variants_of(plan: AnyPlan) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for changes in _candidates(plan):
        changes = {name: v for name, v in changes.items() if v != getattr(plan, name)}
        text = variants.text_of(changes)
        if changes and _reason_against(plan, variants.varied(plan, text, _fields(plan))) is None:
            found[text] = None
    return tuple(found)[:_MOST]


def plan_of(plan: Plan, variant: str) -> Plan:
    """Return a plan, or a variant of it.

    Raises:
        InvalidArgumentError: the variant is unknown, or not possible here.
    """
    if not variant:
        return plan
    changed = variants.varied(plan, variant, _fields(plan))
    reason = _reason_against(plan, changed)
    if reason is not None:
        raise InvalidArgumentError(f"expected a variant of a convolution, but {reason}")
    return changed


def _reason_against(plan: AnyPlan, changed: AnyPlan) -> str | None:
    """Return why a plan may not stand for another one; None where it may."""
    if any(getattr(changed, name) < 1 for name in _fields(plan) if name != "tiles_outside"):
        return "a size is 0"
    if _local_bytes(changed) > max(_LOCAL, _local_bytes(plan)):
        return "its local memory is too large for a chunk"
    if isinstance(changed, DirectPlan) and changed.band % changed.rows:
        return "its bands are not whole tiles"
    return None


# --- one row a kind of plan -----------------------------------------------------------------------


@singledispatch
def _fields(plan: object) -> tuple[str, ...]:
    """The fields that a variant may change: chunks, and what is computed side by side."""
    return ("panels", "tiles", "tiles_outside")


@_fields.register
def _(plan: PanelPlan) -> tuple[str, ...]:
    return ("panels", "tiles")


@_fields.register
def _(plan: DirectPlan) -> tuple[str, ...]:
    return ("band", "groups", "rows")


@_fields.register
def _(plan: WinogradPlan) -> tuple[str, ...]:
    return ("tiles",)


@singledispatch
def _local_bytes(plan: object) -> int:
    """The bytes of the local memory of a chunk that grow with what a variant changes."""
    return 0


@_local_bytes.register
def _(plan: PanelPlan) -> int:
    columns = plan.panels * plan.columns
    rows = plan.height * (1 if plan.passes == 1 else plan.tiles)
    return (plan.channels * plan.window + rows) * columns * plan.conv.dtype.itemsize


@_local_bytes.register
def _(plan: DirectPlan) -> int:
    phases = plan.conv.width.stride
    return plan.reach * phases * plan.columns * int(plan.conv.channels) * plan.conv.dtype.itemsize  # type: ignore[arg-type]


@_local_bytes.register
def _(plan: WinogradPlan) -> int:
    rows = plan.channels + plan.tiles * plan.height
    return plan.points * rows * plan.columns * plan.conv.dtype.itemsize


@singledispatch
def _candidates(plan: object) -> Iterator[Changes]:
    """Yield changes, the most promising ones first."""
    raise NotImplementedError


@_candidates.register
def _(plan: ConvPlan) -> Iterator[Changes]:
    tiles = -(-plan.outputs // plan.rows)
    for panels in (max(1, plan.panels // 2), 2 * plan.panels, max(1, plan.panels // 4)):
        yield {"panels": panels}
    yield {"tiles_outside": not plan.tiles_outside}
    yield {"tiles": -(-plan.tiles // 2)}
    yield {"tiles": min(tiles, 2 * plan.tiles)}
    yield {"tiles": min(tiles, 2 * plan.tiles), "panels": max(1, plan.panels // 2)}
    yield {"tiles": tiles}


@_candidates.register
def _(plan: PanelPlan) -> Iterator[Changes]:
    for panels in (plan.panels + 1, plan.panels - 1, 2 * plan.panels, plan.panels // 2, 1):
        yield {"panels": panels}
    yield {"tiles": -(-plan.tiles // 2)}
    yield {"tiles": min(plan.tile_count, 2 * plan.tiles)}
    yield {"tiles": min(plan.tile_count, 2 * plan.tiles), "panels": max(1, plan.panels // 2)}
    yield {"tiles": -(-plan.tiles // 2), "panels": 2 * plan.panels}
    yield {"tiles": plan.tile_count}


@_candidates.register
def _(plan: DirectPlan) -> Iterator[Changes]:
    for band in (2 * plan.band, plan.band // 2):
        yield {"band": max(plan.rows, band // plan.rows * plan.rows)}
    yield {"groups": min(plan.conv.groups, 2 * plan.groups)}
    yield {"groups": max(1, plan.groups // 2)}
    yield {"rows": max(1, plan.rows // 2)}
    yield {"band": 2 * plan.band, "groups": max(1, plan.groups // 2)}


@_candidates.register
def _(plan: WinogradPlan) -> Iterator[Changes]:
    blocks = -(-plan.tile_count // plan.tiles)
    for count in (blocks + 1, blocks - 1, 2 * blocks, blocks // 2, 1):
        if count > 0:
            yield {"tiles": -(-plan.tile_count // count)}
