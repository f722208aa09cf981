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
from frame.ops.fourier_tables import table_of


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


def fourier_rows(target: TargetDescription) -> Iterator[Graph]:
    """Yield transforms both ways: every codelet, convolutions, few frequencies, spare rows."""

    def transform(
        cases: Cases,
        batch: tuple[int | Dim, ...],
        size: int,
        count: int = 0,
        ways: tuple[bool, ...] = (False, True),
    ) -> None:
        count, table = count or size // 2 + 1, table_of(size).astype(cases.dtype.numpy)
        for inverse in ways:
            x = cases.input((*batch, *((count, 2) if inverse else (size,))))
            rows = ops.fourier_rows(x, ops.constant(table), size=size, count=count, inverse=inverse)
            cases.outputs(rows)

    def fill(cases: Cases) -> None:
        lanes = target.lanes(cases.dtype)
        for size in (1, 2, 3, 4, 6, 128):
            transform(cases, (lanes + 1,), size)
        # Rows, codelets and both transforms of a convolution are treated the same both ways.
        for size, inverse in ((8, False), (7 * 11, False), (2 * 13, True)):
            transform(cases, (lanes + 1,), size, ways=(inverse,))
        for rows in around(lanes, 2 * lanes):
            if rows != lanes + 1:
                transform(cases, (rows,), 6, ways=(rows > lanes,))
        for size, inverse in ((17, False), (2 * 19, True)):  # convolutions
            transform(cases, (lanes + 1,), size, ways=(inverse,))
        transform(cases, (2, lanes - 1), 16, 5)
        transform(cases, (lanes + 1,), 15, 1)
        transform(cases, (Dim.symbol("batch"),), 12, ways=(False,))
        table = ops.constant(table_of(10).astype(cases.dtype.numpy))
        spread = ops.expand(cases.input((1, 10)), (lanes + 1, 10))
        cases.outputs(ops.fourier_rows(spread, table, size=10, count=6))

    def long(cases: Cases) -> None:
        """Memories in a workspace: of one group of rows, and of more groups than chunks."""
        transform(cases, (2,), 3**9, ways=(False,))
        transform(cases, (16 * target.lanes(cases.dtype) + 3,), 4093, ways=(True,))

    for dtype in (float32, float64):
        yield graph(f"mixed_fourier_{dtype}", dtype, fill)
    yield graph("mixed_fourier_long", float32, long)
