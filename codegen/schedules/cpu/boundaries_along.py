"""Boundary graphs of the schedules that go along an axis in order."""

from __future__ import annotations

from collections.abc import Iterator

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import Cases, around, graph
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core.dtypes import bfloat16, float16, float32, float64, int8, int32, int64
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph


def cumsum(target: TargetDescription) -> Iterator[Graph]:
    """Yield sums along rows below, at and above a vector and a block, and along other axes."""

    def fill(cases: Cases) -> None:
        lanes = target.lanes(compute_dtype(cases.dtype))
        for size in around(1, lanes, 2 * lanes):
            cases.outputs(ops.cumsum(cases.input((3, size))))
        for exclusive, reverse in ((True, False), (False, True), (True, True)):
            wanted = {"exclusive": exclusive, "reverse": reverse}
            cases.outputs(ops.cumsum(cases.input((2, 2 * lanes + 3)), **wanted))
            cases.outputs(ops.cumsum(cases.input((3, 5, lanes + 1)), axis=1, **wanted))
        cases.outputs(ops.cumsum(cases.input((5, 4 * lanes + 1)), axis=0))
        cases.outputs(ops.cumsum(ops.expand(cases.input((2, 1)), (2, lanes + 1))))
        batch = Dim.symbol("batch")
        cases.outputs(ops.cumsum(cases.input((2, batch))), ops.cumsum(cases.input((batch, 2)), 0))

    def long(cases: Cases) -> None:
        for size in around(1 << 14)[1:]:
            cases.outputs(ops.cumsum(cases.input((size,))))
        cases.outputs(ops.cumsum(cases.input((2, 1, (1 << 15) + 5)), reverse=True))

    for dtype in (float32, float64, float16, bfloat16, int8, int32, int64):
        yield graph(f"cumsum_{dtype}", dtype, fill)
    yield graph("cumsum_long", float32, long)
