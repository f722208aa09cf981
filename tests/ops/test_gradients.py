"""Gradients of all records against central differences in float64, to second order."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import bfloat16, float16, float32
from frame.ops.interpreter import interpret
from tests.ops import support

RECORDS = {
    record.name: record
    for record in ops.records()
    if support.differentiable(record) and any(s.gradient for s in record.samples())
}
SMALL = 20


def _smooth(name):
    for sample in RECORDS[name].samples():
        arrays = support.operands_of(sample)
        if sample.gradient and any(support.is_float(array) for array in arrays):
            yield sample, arrays


@pytest.mark.parametrize("name", RECORDS)
def test_first_order(name):
    for sample, arrays in _smooth(name):
        try:
            support.check_gradient(support.sample_graph(RECORDS[name], sample), arrays)
        except AssertionError as error:
            raise AssertionError(f"{name}, sample {sample.name}: {error}") from None


@pytest.mark.parametrize("name", RECORDS)
def test_second_order(name):
    """The gradient of the gradient, on the small samples."""
    for sample, arrays in _smooth(name):
        graph = support.sample_graph(RECORDS[name], sample)
        if sum(array.size for array in arrays) > SMALL:
            continue
        first = support.backward(graph)
        weights = [
            np.random.default_rng(7).standard_normal(value.shape)
            for value in graph.outputs
            if value.dtype.is_float
        ]
        try:
            support.check_gradient(first, [*arrays, *weights])
        except AssertionError as error:
            raise AssertionError(f"{name}, sample {sample.name}: {error}") from None


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("floats", [float32, float16, bfloat16], ids=str)
def test_gradients_have_the_dtype_of_their_operands(name, floats):
    """The walk refuses a gradient of another dtype or shape; the result is finite."""
    for sample, _ in _smooth(name):
        arrays = support.operands_of(sample, floats)
        graph = support.sample_graph(RECORDS[name], sample, floats)
        weights = [np.ones(v.shape, v.dtype.numpy) for v in graph.outputs if v.dtype.is_float]
        gradients = interpret(support.backward(graph), [*arrays, *weights], precision="native")
        expected = [array.dtype for array in arrays if support.is_float(array)]
        assert [gradient.dtype for gradient in gradients] == expected
        assert all(np.isfinite(g.astype(np.float64)).all() for g in gradients), sample.name
