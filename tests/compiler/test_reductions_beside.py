"""Reductions that a square operand reads along the other axis: shapes alone do not tell."""

import numpy as np
import pytest

import frame
from frame import ops
from frame.core import config
from frame.ops.interpreter import interpret

SIZE = 16


def scores(x, y):
    return ops.matmul(x, y, transpose_b=True)


def weighted(top_of, total_of):
    """Return a softmax over rows, but for what is subtracted and divided by."""

    def function(x, y):
        s = scores(x, y)
        e = ops.exp(s - top_of(s))
        return ops.matmul(e / total_of(e), y)

    return function


def row_max(s):
    return ops.max(s, axes=(-1,), keepdims=True)


def row_sum(e):
    return ops.sum(e, axes=(-1,), keepdims=True)


def alone(top_of, total_of):
    """Return the same without products around it."""

    def function(x, y):
        e = ops.exp(x - top_of(x))
        return e / total_of(e)

    return function


def flat_max(s):
    return ops.max(s, axes=(-1,))


def flat_sum(s):
    return ops.sum(s, axes=(-1,))


MEETINGS = {
    "largest by columns": (flat_max, row_sum),
    "sum by columns": (row_max, flat_sum),
    "both by columns": (flat_max, flat_sum),
    "reshaped to a row": (lambda s: ops.reshape(row_max(s), (1, SIZE)), row_sum),
    "expanded by columns": (lambda s: ops.expand(flat_max(s), s.shape), row_sum),
    "sum over the other axis": (row_max, lambda e: ops.sum(e, axes=(0,), keepdims=True)),
    "sum of what is expanded": (
        row_max,
        lambda e: row_sum(e) + row_sum(ops.expand(flat_sum(e), e.shape)),
    ),
}


@pytest.mark.parametrize("around", [weighted, alone])
@pytest.mark.parametrize("name", MEETINGS)
def test_each_element_reads_the_result_that_broadcasting_gives_it(name, around):
    columns = 8 if around is weighted else SIZE
    given = [
        np.random.default_rng(seed).standard_normal((SIZE, columns)).astype(np.float32)
        for seed in range(2)
    ]
    traced = frame.trace(around(*MEETINGS[name]), *(frame.spec(a.shape) for a in given))
    with config.override(FRAME_CACHE="0"):
        found = frame.compile(traced)(*given)
    (wanted,) = interpret(traced, given)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("around", [weighted, alone])
def test_results_in_their_places_stay_in_one_kernel(around):
    columns = 8 if around is weighted else SIZE
    beside = around(
        lambda s: ops.unsqueeze(flat_max(s), 1), lambda e: ops.unsqueeze(flat_sum(e), 1)
    )
    traced = frame.trace(beside, *(frame.spec((SIZE, columns)) for _ in range(2)))
    with config.override(FRAME_CACHE="0"):
        text = frame.compile(traced).source()["loop"]
    assert text.count("launch ") == 1
