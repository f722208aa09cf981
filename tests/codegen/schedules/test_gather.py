"""Bad indices are reported with op, position and value, and are never read with."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import DType, float32, int32, int64, uint8
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType
from tests.support.compile import run


def gather_graph(dtype: DType) -> Graph:
    with GraphBuilder("gather") as builder:
        table = builder.input(TensorType(float32, (5, 3)))
        indices = builder.input(TensorType(dtype, (2, 4)))
        builder.output(ops.gather(table, indices) * 2.0)
    return builder.finish()


TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize("dtype", [int32, int64, uint8])
@pytest.mark.parametrize("value", [5, 6, 255])
def test_the_first_bad_index_is_named(dtype: DType, value: int) -> None:
    indices = np.zeros((2, 4), dtype.numpy)
    indices[1, 1], indices[1, 3] = value, 7
    with pytest.raises(
        InvalidArgumentError, match="gather.*position 5|position 5.*gather"
    ) as caught:
        run(gather_graph(dtype), [TABLE, indices])
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("value", [-1, -(2**31)])
def test_a_negative_index_is_bad(value: int) -> None:
    indices = np.zeros((2, 4), np.int32)
    indices[0, 2] = value
    with pytest.raises(InvalidArgumentError, match=f"{value}"):
        run(gather_graph(int32), [TABLE, indices])


def test_an_index_beyond_64_bits_of_sign_is_bad() -> None:
    with GraphBuilder("gather") as builder:
        from frame.core.dtypes import uint64

        table = builder.input(TensorType(float32, (5, 3)))
        indices = builder.input(TensorType(uint64, (2,)))
        builder.output(ops.gather(table, indices))
    with pytest.raises(InvalidArgumentError, match="position 1"):
        run(builder.finish(), [TABLE, np.array([1, 2**63], np.uint64)])


def test_scatter_reports_a_bad_index() -> None:
    with GraphBuilder("scatter") as builder:
        updates = builder.input(TensorType(float32, (3, 2)))
        indices = builder.input(TensorType(int64, (3,)))
        builder.output(ops.scatter_add(updates, indices, shape=(4, 2)))
    arrays = [np.ones((3, 2), np.float32), np.array([0, 4, 1])]
    with pytest.raises(InvalidArgumentError, match="position 1"):
        run(builder.finish(), arrays)


def test_pool_gradient_reports_a_bad_position() -> None:
    with GraphBuilder("pool") as builder:
        cotangent = builder.input(TensorType(float32, (1, 1, 1, 2)))
        index = builder.input(TensorType(int64, (1, 1, 1, 2)))
        builder.output(ops.max_pool2d_grad(cotangent, index, input_shape=(1, 1, 2, 2)))
    arrays = [np.ones((1, 1, 1, 2), np.float32), np.array([[[[3, 4]]]])]
    with pytest.raises(InvalidArgumentError, match="position 1"):
        run(builder.finish(), arrays)


def test_sums_of_a_scatter_keep_the_order_of_the_indices() -> None:
    """1e8 + 1 - 1e8 is 0 in float32 and 1 in any other order."""
    with GraphBuilder("scatter") as builder:
        updates = builder.input(TensorType(float32, (3,)))
        indices = builder.input(TensorType(int64, (3,)))
        builder.output(ops.scatter_add(updates, indices, shape=(2,)))
    arrays = [np.array([1e8, 1.0, -1e8], np.float32), np.array([1, 1, 1])]
    (result,) = run(builder.finish(), arrays)
    assert result.tolist() == [0.0, 0.0]
