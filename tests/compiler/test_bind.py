"""bind_symbols: a symbolic graph for one set of sizes."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.compiler.autodiff import build_backward_graph
from frame.compiler.bind import bind_symbols
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.graph import Graph
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from tests.compiler.support import arrays_for, assert_same, build, compiled, run_compiled, tensor


def symbolic() -> Graph:
    def body(x, w):
        scores = ops.softmax(x @ w)
        mean = ops.mean(scores, 0)

        def step(carry, row):
            return carry + row * ops.cast(ops.size(x, 0), float32), ops.sum(row)

        last, sums = ops.scan(step, mean, scores)
        return ops.sum(last), ops.concat([sums, sums], axis=0)

    return build(body, tensor("batch", 4), tensor(4, 3))


def test_bound_graphs_compute_the_same():
    graph = build_backward_graph(symbolic(), 0, [0, 1])
    arrays = arrays_for(graph, batch=5)
    bound = bind_symbols(graph, {"batch": 5, "unused": 3})
    verify(bound)
    assert bound.symbols == () and "batch" not in str(bound)
    assert_same(interpret(graph, arrays), interpret(bound, arrays), exact=True)
    assert_same(interpret(graph, arrays), run_compiled(compiled(bound), arrays))


def test_names_roles_and_updates_stay():
    graph = symbolic()
    bound = bind_symbols(graph, {"batch": 2})
    assert [e.name for e in bound.inputs] == [e.name for e in graph.inputs]
    assert bound.output_names == graph.output_names
    assert bound.outputs[1].shape == (4,)
    assert bind_symbols(bound, {"batch": 9}) is bound


def test_values_that_do_not_fit_are_refused():
    def body(x):
        return ops.slice(x, (0,), (Dim.symbol("batch") - 3,), (1,))

    graph = build(body, tensor("batch"))
    assert bind_symbols(graph, {"batch": 3}).outputs[0].shape == (0,)
    with pytest.raises(InvalidArgumentError, match="slice"):
        bind_symbols(graph, {"batch": 2})
    with pytest.raises(InvalidArgumentError, match="batch has no value"):
        bind_symbols(graph, {})


def test_zero_rows():
    graph = build(lambda x: x * 2.0, tensor("batch", 4))
    bound = bind_symbols(graph, {"batch": 0})
    (result,) = interpret(bound, [np.zeros((0, 4), np.float32)])
    assert result.shape == (0, 4)
