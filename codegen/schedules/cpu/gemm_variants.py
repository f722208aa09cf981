"""Variants of the plan of a matrix product: other tiles, chunks, copies and prefetches.

An element of a product is the sum of passes over the inner axis, each of which adds up its steps in
order, one after the other, from zero. So the sums are those of the default plan to the bit where
the passes are equal; how many rows and columns are computed side by side, in which order, and where
their operands are read from changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from frame.codegen.schedules import variants
from frame.codegen.schedules.cpu import gemm_vector
from frame.codegen.schedules.cpu.gemm_operand import Product, product_of
from frame.codegen.schedules.cpu.gemm_plan import (
    GemmPlan,
    Source,
    make_plan,
    runs_across_depth,
    runs_along_depth,
)
from frame.core.errors import InvalidArgumentError
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph

_FIELDS = ("ahead", "copy_left", "keeps_panels", "panels", "rows", "tiles", "vectors")
_SUMS = ("product", "lanes", "depth", "source")  # what decides the sums, or where operands lie
_MOST = 12  # variants of a product
_MOST_AHEAD = 3  # rows that the call for one panel prefetches
_MOST_VECTORS = 3
_LOCAL, _PACKED = 1 << 17, 1 << 18  # bytes of local memory for sums, and for packed panels

Changes = dict[str, int]


def plan_of(made: Product, target: TargetDescription, variant: str) -> GemmPlan:
    """Return the plan of a product: the default one, or a variant of it.

    Raises:
        InvalidArgumentError: the variant is unknown, not possible here, or sums in another order.
    """
    plan = make_plan(made, target)
    if not variant:
        return plan
    changed = variants.varied(plan, variant, _FIELDS)
    require_legal(plan, changed, target)
    return changed


def group_variants(body: Graph, target: TargetDescription) -> tuple[str, ...]:
    """Return the variants of a contraction group; products with a vector have none."""
    made = product_of(body)
    if not made.dtype.is_float or gemm_vector.applies(made):
        return ()
    return plan_variants(make_plan(made, target), target)


def plan_variants(plan: GemmPlan, target: TargetDescription) -> tuple[str, ...]:
    """Return the variants of a plan that are worth a measurement; none where sizes are symbols."""
    made = plan.product
    if not all(isinstance(size, int) and size for size in (made.rows, made.columns, made.steps)):
        return ()
    found: dict[str, None] = {}
    for changes in _candidates(plan, target):
        changes = {name: v for name, v in changes.items() if v != getattr(plan, name)}
        if changes and reason_against(plan, replace(plan, **changes), target) is None:  # type: ignore[arg-type]
            found[variants.text_of(changes)] = None
    return tuple(found)[:_MOST]


# --- what is legal --------------------------------------------------------------------------------


def require_legal(plan: GemmPlan, changed: GemmPlan, target: TargetDescription) -> None:
    """Raise InvalidArgumentError for a plan that is no variant of `plan`."""
    reason = reason_against(plan, changed, target)
    if reason is not None:
        raise InvalidArgumentError(f"expected a variant with the sums of the default, but {reason}")


def reason_against(plan: GemmPlan, changed: GemmPlan, target: TargetDescription) -> str | None:
    """Return why a plan may not stand for another one; None where it may."""
    for name in _SUMS:
        if getattr(plan, name) != getattr(changed, name):
            return f"its {name} is another one"
    if min(changed.rows, changed.vectors, changed.tiles, changed.panels) < 1:
        return "a size is 0"
    if changed.vectors != plan.vectors and (plan.source is Source.LAYOUT or plan.product.pairs):
        return "panels are stored with another width"
    own = (changed.rows, changed.vectors) == (plan.rows, plan.vectors)
    if not own and (changed.rows + 1) * changed.vectors + 1 > target.vector_registers:
        return "its tile does not fit the registers"
    if changed.keeps_panels and not changed.is_single_pass:
        return "chunks that keep panels have one pass"
    if _local_bytes(changed) > max(_LOCAL, _local_bytes(plan)):
        return "its sums do not fit the local memory of a chunk"
    if _packed_bytes(changed) > max(_PACKED, _packed_bytes(plan)):
        return "its panels do not fit the local memory of a chunk"
    return _reason_against_left(plan, changed)


def _reason_against_left(plan: GemmPlan, changed: GemmPlan) -> str | None:
    """Return why a plan may not read the left operand as it does; None where it may."""
    made, left = plan.product, plan.product.left
    if plan.copy_left and not changed.copy_left:
        plain = left.view is not None and left.value.dtype == made.stored and not made.pairs
        if not plain or not (runs_along_depth(left) or runs_across_depth(left)):
            return "the left operand can't be read in place"
    if not changed.ahead:
        return None
    is_near = changed.copy_left or not runs_along_depth(left) or not changed.keeps_panels
    rows = made.rows if isinstance(made.rows, int) else 0
    if is_near or changed.ahead > min(_MOST_AHEAD, changed.height) or rows <= changed.height:
        return "there are no such rows to prefetch"
    return None


def _local_bytes(plan: GemmPlan) -> int:
    return math.prod(plan.sums) * plan.product.dtype.itemsize


def _packed_bytes(plan: GemmPlan) -> int:
    if plan.source is not Source.CHUNK:
        return 0
    return plan.panels * plan.depth * plan.columns * plan.product.dtype.itemsize


# --- what is tried --------------------------------------------------------------------------------


def _candidates(plan: GemmPlan, target: TargetDescription) -> Iterator[Changes]:
    """Yield changes, the most promising ones first: single ones, then those that go together."""
    yield from _tile_shapes(plan, target)
    grids = list(_grids(plan))
    yield from (_with_rows_ahead(plan, changes) for changes in grids[:5])
    yield {"keeps_panels": not plan.keeps_panels, "ahead": 0}
    yield {"ahead": 0 if plan.ahead else _ahead(plan)}
    yield {"copy_left": not plan.copy_left, "ahead": 0}
    yield {"copy_left": not plan.copy_left, "keeps_panels": not plan.keeps_panels, "ahead": 0}
    yield from (_with_rows_ahead(plan, changes) for changes in grids[5:])


def _grids(plan: GemmPlan) -> Iterator[Changes]:
    """Yield the tiles and panels of chunks, nearest to those of the plan first."""
    down, across = _counts(plan)
    halves = (-(-plan.tiles // 2), -(-plan.panels // 2))
    yield {"panels": min(across, 2 * plan.panels)}
    yield {"tiles": halves[0]}
    yield {"tiles": min(down, 2 * plan.tiles)}
    yield {"panels": halves[1]}
    yield {"tiles": halves[0], "panels": min(across, 2 * plan.panels)}
    yield {"tiles": min(down, 2 * plan.tiles), "panels": halves[1]}
    yield {"tiles": halves[0], "panels": halves[1]}
    yield {"tiles": max(1, -(-down // 8)), "panels": across}
    yield {"tiles": down, "panels": max(1, -(-across // 8))}


def _counts(plan: GemmPlan) -> tuple[int, int]:
    """Return the tiles down and the panels across of the whole product."""
    rows, columns = plan.product.rows, plan.product.columns
    return -(-int(rows) // plan.rows), -(-int(columns) // plan.columns)  # type: ignore[arg-type]


def _tile_shapes(plan: GemmPlan, target: TargetDescription) -> Iterator[Changes]:
    """Yield tiles of other widths, as high as the registers allow, in chunks of about one size."""
    for count in range(1, _MOST_VECTORS + 1):
        rows = (target.vector_registers - 1 - count) // count
        if count == plan.vectors or rows < 1:
            continue
        down, across = _counts(replace(plan, rows=rows, vectors=count))
        yield {
            "rows": rows,
            "vectors": count,
            "tiles": min(down, -(-plan.tiles * plan.rows // rows)),
            "panels": min(across, -(-plan.panels * plan.vectors // count)),
            "ahead": 0,
        }


def _with_rows_ahead(plan: GemmPlan, changes: Changes) -> Changes:
    """Return changes of a grid with as many rows prefetched as its chunks want."""
    if not plan.ahead:
        return changes
    return {**changes, "ahead": _ahead(replace(plan, **changes))}  # type: ignore[arg-type]


def _ahead(plan: GemmPlan) -> int:
    """Return how many rows of the next tile the call for each panel should prefetch."""
    return min(_MOST_AHEAD, -(-plan.height // plan.panels))
