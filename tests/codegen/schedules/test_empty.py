"""Symbolic axes that have no element at run time: nothing outside of a buffer may be read.

The interpreter refuses to read what is not in a buffer, and an empty one has nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import Cases, graph
from frame.core.dtypes import float16, float32, int32
from frame.core.shapes import Dim
from frame.ir.graph import Graph, Value
from tests.support.boundaries import check, data_of, run_interpreted
from tests.support.compile import make_piece

N = Dim.symbol("batch")
EDGES = (1, 1, 1, 1)


def _chain(c: Cases) -> Value:
    x = c.input((N, 4))
    return ops.relu(x) * c.input((4,)) + x * x


def _of_pad(c: Cases) -> Value:
    return ops.pad(c.input((N, 5)), (1, 0), (2, 0), 4.0)


GRAPHS: Mapping[str, Callable[[Cases], Value]] = {
    "pad": lambda c: ops.pad(c.input((N,)), (2,), (3,), 1.5),
    "pad_low": lambda c: ops.pad(c.input((N, 3)), (1, 0), (0, 0), 2.0),
    "pad_high": lambda c: ops.pad(c.input((N, 3)), (0, 1), (4, 2), 2.0),
    "pad_of_rows": lambda c: ops.pad(c.input((3, N)), (0, 1), (0, 9), 2.0),
    "pad_of_halves": lambda c: ops.pad(c.input((N, 3), float16), (1, 0), (1, 1), 2.0),
    "pad_of_integers": lambda c: ops.pad(c.input((N, 3), int32), (1, 0), (1, 1), 2),
    "pad_of_static": lambda c: ops.pad(c.input((0, 3)), (1, 0), (1, 1), 2.0),
    "pad_of_pad": lambda c: ops.pad(ops.pad(c.input((N,)), (1,), (1,), 2.0), (2,), (1,), 3.0),
    "pad_of_chain": lambda c: ops.pad(_chain(c), (1, 1), (1, 1), 3.0) * 2.0,
    "pad_of_flip": lambda c: ops.pad(
        ops.flip(ops.transpose(c.input((4, N)), (1, 0)), (0, 1)), (1, 1), (1, 1)
    ),
    "pad_of_expand": lambda c: ops.pad(
        ops.expand(c.input((1, 3)), (N, 3)) * c.input((N, 1)), (1, 0), (1, 0), 4.0
    ),
    "pad_of_sum": lambda c: ops.pad(ops.sum(c.input((N, 5)), 1), (1,), (2,), 4.0),
    "pad_of_gather": lambda c: ops.pad(
        ops.gather(c.input((N, 5)), c.indices((0,), 1)), (1, 0), (1, 0), 4.0
    ),
    "sum_of_pad": lambda c: ops.sum(_of_pad(c), 0),
    "product_of_pad": lambda c: ops.matmul(_of_pad(c), c.input((5, 17))),
    "gather_of_pad": lambda c: ops.gather(_of_pad(c), c.indices((4,), 3)),
    "concat_of_pad": lambda c: ops.concat(_of_pad(c), c.input((2, 5)), axis=0),
    "convolution_of_pad": lambda c: ops.conv2d(
        ops.pad(c.input((2, N, 5, 6)), (0, 1, 0, 0), (0, 1, 0, 0), 4.0), c.input((3, N + 2, 3, 3))
    ),
    "gather": lambda c: ops.gather(c.input((5, N)), c.indices((3,), 5)),
    "gather_nothing": lambda c: ops.gather(c.input((N, 5)), c.indices((0,), 1)),
    "concat": lambda c: ops.concat(c.input((N, 3)), c.input((2, 3)), c.input((N, 3)), axis=0),
    "concat_of_rows": lambda c: ops.concat(c.input((3, N)), c.input((3, 2)), axis=1),
    "flip": lambda c: ops.flip(c.input((N, 9)), (0, 1)),
    "scatter": lambda c: ops.scatter_add(c.input((4, N)), c.indices((4,), 3), shape=(3, N)),
    "scatter_nothing": lambda c: ops.scatter_add(c.input((0, 5)), c.indices((0,), 1), shape=(3, 5)),
    "rows": lambda c: c.input((N, 9)) * ops.sum(c.input((N, 9)), 1, True),
    "sum_of_columns": lambda c: ops.sum(c.input((N, 9)), 0),
    "sum_of_nothing": lambda c: ops.sum(c.input((9, N)), 1),
    "sum_of_all": lambda c: ops.sum(c.input((N, 9))),
    "product_depth": lambda c: ops.matmul(c.input((5, N)), c.input((N, 17))) + c.input((17,)),
    "product_rows": lambda c: ops.matmul(c.input((N, 5)), c.input((5, 17))),
    "product_columns": lambda c: ops.matmul(c.input((5, 7)), c.input((N, 7)), False, True),
    "product_vector": lambda c: ops.matmul(c.input((1, N)), c.input((N, 9))),
    "convolution": lambda c: ops.conv2d(
        c.input((N, 2, 5, 6)), c.input((3, 2, 3, 3)), padding=EDGES
    ),
    "convolution_depth": lambda c: ops.conv2d(
        c.input((3, N, 6, 6)), c.input((5, N, 4, 4)), padding=EDGES
    ),
    "pool": lambda c: ops.max_pool2d(c.input((N, 2, 5, 6)), (2, 2), (1, 1), EDGES)[0],
}


def _graph(name: str) -> Graph:
    return graph(name, float32, lambda cases: cases.outputs(GRAPHS[name](cases)))


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_outside_is_read(name: str, size: int) -> None:
    built = _graph(name)
    data = data_of(built, {"batch": size})
    compiled = make_piece(built)
    check(built, data, run_interpreted(compiled, built, data, {"batch": size}), name)
    native = compiled.executable().run([array.copy() for array in data.inputs])
    check(built, data, [np.array(result) for result in native], f"{name}, native")
