"""Equal groups of one piece share one kernel; groups that differ in anything have their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from frame import ops
from frame.codegen.loops.ir import Launch
from frame.codegen.loops.traverse import walk
from frame.codegen.schedules.cpu.boundary_cases import Cases, graph
from frame.core.dtypes import DType, float32, float64
from frame.ir.graph import Value
from tests.compiler.test_linear import lines_run
from tests.support.boundaries import check, data_of
from tests.support.compile import make_piece


def _chain(cases: Cases, size: int = 40) -> Value:
    return ops.relu(cases.input((3, size)) + cases.input((size,)))


def _product(cases: Cases) -> Value:
    return ops.relu(ops.matmul(cases.input((20, 9)), cases.input((9, 33))) + cases.input((33,)))


def _rows(cases: Cases) -> Value:
    x = cases.input((5, 40))
    return x * ops.sum(x, 1, True)


@pytest.mark.parametrize("make", [_chain, _product, _rows])
def test_equal_groups_share_their_kernels(make: Callable[[Cases], Value]) -> None:
    counts = []
    for uses in (1, 4):
        built = graph("uses", float32, lambda c, n=uses: c.outputs(*(make(c) for _ in range(n))))
        piece = make_piece(built)
        module = piece.lowered.module
        launches = [s for s in walk(module.entry.body) if isinstance(s, Launch)]
        assert len(piece.piece.graph.nodes) == uses
        counts.append((len(module.kernels), len(launches)))
        data = data_of(built)
        check(built, data, piece.executable().run(data.inputs), "shared")
    (alone, launches_of_one), (shared, launches_of_four) = counts
    assert shared == alone
    assert launches_of_four == 4 * launches_of_one


@pytest.mark.parametrize(
    "other",
    [
        lambda c: _chain(c, 41),
        lambda c: ops.relu(c.input((3, 40), float64) + c.input((40,), float64)),
        lambda c: ops.relu(c.input((3, 40)) - c.input((40,))),
        lambda c: ops.relu(c.input((3, 40)) + c.input((3, 1))),
    ],
    ids=["size", "dtype", "op", "broadcast"],
)
def test_groups_that_differ_have_kernels_of_their_own(other: Callable[[Cases], Value]) -> None:
    built = graph("pair", float32, lambda c: c.outputs(_chain(c), other(c)))
    assert len(make_piece(built).lowered.module.kernels) == 2


def _scaled(c: Cases, factor: float, offset: float, dtype: DType = float32) -> Value:
    return ops.maximum(c.input((3, 40), dtype) * factor - offset, -factor)


@pytest.mark.parametrize("dtype", [float32, float64])
def test_groups_that_differ_in_constants_alone_share_a_kernel(dtype: DType) -> None:
    numbers = [(0.5, -3.0), (-0.0, 2.5), (1e-30, 1e30), (0.0, 1.0), (np.inf, 0.1), (7.0, 7.0)]

    def many(c: Cases) -> Value:
        return c.outputs(*(_scaled(c, *pair, dtype) for pair in numbers))

    built = graph("many", dtype, many)
    piece = make_piece(built)
    module = piece.lowered.module
    launches = [s for s in walk(module.entry.body) if isinstance(s, Launch)]
    assert (len(module.kernels), len(launches)) == (1, len(numbers))
    data = data_of(built)
    check(built, data, piece.executable().run(data.inputs), "many")


def test_few_groups_and_constants_that_rules_look_at_stay_in_the_code() -> None:
    few = graph("few", float32, lambda c: c.outputs(*(_scaled(c, k, 0.1) for k in (1.0, 2.0, 3.0))))
    powers = graph(
        "powers",
        float32,
        lambda c: c.outputs(*(ops.pow(c.input((3, 40)), k) for k in (2.0, 3.0, 0.5, 1.5, -1.0))),
    )
    assert len(make_piece(few).lowered.module.kernels) == 3
    assert len(make_piece(powers).lowered.module.kernels) == 5


def test_operands_of_a_concatenation_share_kernels_by_type() -> None:
    def joined(c: Cases) -> Value:
        rows = [c.input((3, size)) for size in (5, 40, 5, 40, 5)]
        return ops.concat(*rows, ops.flip(c.input((3, 5)), 1), axis=1)

    built = graph("joined", float32, lambda c: c.outputs(joined(c)))
    piece = make_piece(built)
    module = piece.lowered.module
    launches = [s for s in walk(module.entry.body) if isinstance(s, Launch)]
    assert (len(module.kernels), len(launches)) == (3, 7)  # the flip runs first
    data = data_of(built)
    check(built, data, piece.executable().run(data.inputs), "joined")


def test_equal_groups_are_scheduled_once() -> None:
    """To lower many equal groups takes little more than to lower one: lines that run."""

    def work(uses: int) -> int:
        built = graph("uses", float32, lambda c: c.outputs(*(_product(c) for _ in range(uses))))
        piece = make_piece(built)
        return lines_run(lambda: piece.lowered)

    work(1)  # fills memories
    once, often = work(1), work(20)
    assert often < 2 * once
