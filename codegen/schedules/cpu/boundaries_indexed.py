"""Boundary graphs of the schedules that read or write where values say: gather, sample, scatter.

They follow the rules of `boundaries`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import HALVES, Cases, around, graph, uneven
from frame.core.dtypes import float16, float32, float64, int8, int32
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value


def gather(target: TargetDescription) -> Iterator[Graph]:
    """Yield gathers along every kind of axis, at the edges of vectors."""

    def fill(cases: Cases) -> None:
        for width in around(1, target.lanes(float32)):
            cases.outputs(ops.gather(cases.input((5, width)), cases.indices((7,), 5)))
            cases.outputs(ops.gather(cases.input((3, 6)), cases.indices((width,), 6, int32), 1))
        line = target.cache_line // cases.dtype.itemsize
        for width in (2 * line, 65 * line):
            cases.outputs(ops.gather(cases.input((5, width)), cases.indices((7,), 5)))
        one = ops.gather(cases.input((5, 2, 3)), cases.indices((1,), 5))
        cases.outputs(ops.add(one, cases.input((2, 1))))
        many = cases.indices((uneven(target.lanes(float32)),), 5)
        cases.outputs(ops.gather(cases.input((5, 1)), many))
        table = cases.input((2, 4, 3))
        rows = ops.gather(table, cases.indices((2, 3), 4), axis=1)
        cases.outputs(ops.relu(rows) + cases.input((2, 2, 3, 3)))
        cases.outputs(ops.gather(table, cases.indices((), 3), axis=2))

    for dtype in (float32, float64, float16, int8):
        yield graph(f"gather_{dtype}", dtype, fill)


def affine_sample(target: TargetDescription) -> Iterator[Graph]:
    """Yield samplings of rows at the edges of vectors, of few and of many channels, in all ways."""
    lanes, batch = target.lanes(float32), Dim.symbol("batch")
    ways = [(layout, way) for layout in ("NCHW", "NHWC") for way in ("bilinear", "nearest")]

    def sample(
        cases: Cases,
        shape: Sequence[int | Dim],
        number: int,
        mixed: bool,
        size: tuple[int, ...] = (),
    ) -> Value:
        """Append the sampling of images [N, C, H, W]."""
        layout, way = ways[number % len(ways)]
        images = cases.input([shape["NCHW".index(axis)] for axis in layout])
        exact = float64 if cases.dtype == float64 else float32
        places = cases.input((shape[0], 2, 3), exact)
        colours = (cases.input((shape[0], shape[1], shape[1] + 1), exact),) if mixed else ()
        return ops.affine_sample(
            images, places, *colours, layout=layout, interpolation=way, fill=0.5, size=size
        )

    def fill(cases: Cases) -> None:
        for number, width in enumerate(around(1, lanes, 4 * lanes)):
            cases.outputs(sample(cases, (2, 3, 3, width), number, number % 3 == 0))
        for number in range(len(ways)):
            cases.outputs(sample(cases, (2, 6, 2, 5), number, False))
            cases.outputs(sample(cases, (batch, 1, 3, 5), number, True))
            cases.outputs(sample(cases, (batch, 2, 3, 2), number, True, (2, lanes + 1)))
            found = sample(cases, (2, 2, 3, 4), number, True)
            cases.outputs(ops.relu(found * cases.input(found.shape[3:])), found)

    for dtype in (float32, float64, *HALVES):
        yield graph(f"affine_sample_{dtype}", dtype, fill)


def scatter(target: TargetDescription) -> Iterator[Graph]:
    """Yield scatters with indices that meet, at the edges of vectors and blocks of columns."""

    def fill(cases: Cases) -> None:
        for width in (*around(1, target.lanes(float32)), 255, 257):
            updates, indices = cases.input((9, width)), cases.indices((9,), 4)
            cases.outputs(ops.scatter_add(updates, indices, shape=(4, width)))
        updates = cases.input((2, 3, 2, 5))
        indices = cases.indices((3, 2), 3, int32)
        cases.outputs(ops.scatter_add(updates, indices, shape=(2, 3, 5), axis=1))
        spread = ops.expand(cases.input((1, 4)), (6, 4))
        cases.outputs(ops.scatter_add(spread, cases.indices((6,), 3), shape=(3, 4)))

    for dtype in (float32, float64, *HALVES, int32):
        yield graph(f"scatter_{dtype}", dtype, fill)
