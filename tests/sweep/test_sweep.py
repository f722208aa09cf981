"""Every op in every dtype on the cpu, against the float64 reference of its record."""

from __future__ import annotations

import pytest

from frame.core.dtypes import DType
from frame.ops import records
from frame.ops.record import OpDef
from tests.support.sweep import check_case, make_case, samples_by_dtype

CASES = [
    pytest.param(record, floats, id=f"{record.name}-{floats}")
    for record in records()
    for floats in samples_by_dtype(record)
]


@pytest.mark.parametrize(("record", "floats"), CASES)
def test_op(record: OpDef, floats: DType) -> None:
    samples = samples_by_dtype(record)[floats]
    check_case(make_case(record, samples, floats), record.name)
