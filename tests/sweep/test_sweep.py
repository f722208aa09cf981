"""Every op in every dtype on the cpu, against the float64 reference of its record."""

from __future__ import annotations

import pytest

from frame.codegen.schedules.registry import schedules
from frame.core.dtypes import DType, float32
from frame.ops import records
from frame.ops.anchors import ANCHORS
from frame.ops.record import OpDef
from tests.support.sweep import (
    JOINED,
    SHARED,
    boundary_parts,
    check_case,
    join,
    sample_part,
    samples_by_dtype,
)
from tests.support.uses import USES

CASES = [(record, floats) for record in records() for floats in samples_by_dtype(record)]
BOUNDED = [
    pair for pair in CASES
    if pair[0].name in {*ANCHORS, *JOINED, *USES} or set(SHARED) & set(pair[0].traits)
]  # fmt: skip


def _name(value: OpDef | DType) -> str:
    return value.name if isinstance(value, OpDef) else str(value)


@pytest.mark.parametrize(("record", "floats"), CASES, ids=_name)
def test_op(record: OpDef, floats: DType) -> None:
    """Samples; in float32 joined by the boundaries of the schedule, which are slow in the rest."""
    parts = [sample_part(record, samples_by_dtype(record)[floats], floats)]
    if floats == float32:
        parts += boundary_parts(record, floats)
    check_case(join(f"{record.name}_{floats}", parts), record.name)


@pytest.mark.slow
@pytest.mark.parametrize(("record", "floats"), [p for p in BOUNDED if p[1] != float32], ids=_name)
def test_boundaries(record: OpDef, floats: DType) -> None:
    parts = boundary_parts(record, floats)
    if parts:  # some schedules publish none in some dtypes
        check_case(join(f"{record.name}_{floats}", parts), record.name)


# Ops that move and compute no elements: they name constants and sizes, or hold the rest.
NO_LOOP = {"constant", "size", "group"}


def test_every_op_is_used_at_the_boundaries_of_its_schedule() -> None:
    """What decomposes and has no schedule of its own runs by those of the ops it is made of."""
    plain = {r.name for r in records() if r.decomposition is None or r.name in schedules("cpu")}
    assert plain - {pair[0].name for pair in BOUNDED} == NO_LOOP


def test_every_boundary_graph_is_joined_to_an_op() -> None:
    joined = {*ANCHORS.values(), *JOINED.values()}
    assert set(schedules("cpu")) <= joined


@pytest.mark.parametrize("record", [r for r, floats in BOUNDED if floats == float32], ids=_name)
def test_the_schedule_publishes_boundaries(record: OpDef) -> None:
    assert boundary_parts(record, float32)
