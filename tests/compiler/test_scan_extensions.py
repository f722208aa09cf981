"""A scan and the rerun that its gradient makes become one."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.compiler.pass_manager import PassManager
from frame.compiler.passes.common_subexpressions import CommonSubexpressionElimination
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.core.dtypes import float64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType
from frame.ops.interpreter import interpret
from frame.ops.vjp import filled, pullback
from tests.compiler import support

X, STATE, WEIGHT = (
    np.random.default_rng(seed).standard_normal(shape)
    for seed, shape in enumerate(((4, 2, 3), (2, 3), (3, 3)))
)


def recurrence(twist: str = "") -> Graph:
    """Return the loss of a small recurrent network and its gradients."""
    with GraphBuilder("rnn") as builder:
        x, state, weight = (
            builder.input(TensorType(float64, array.shape)) for array in (X, STATE, WEIGHT)
        )

        def step(carry, row):
            following = ops.tanh(carry @ weight + row)
            return following, following * following

        final, ys = ops.scan(step, state, x)
        if twist == "reverse":
            ys = ops.scan(step, state, x, reverse=True)[1]
        if twist == "other body":
            ys = ops.scan(lambda c, row: (ops.sin(c @ weight + row), c), state, x)[1]
        loss = ops.sum(final) + ops.sum(ys)
        builder.output(loss)
        nodes = list(builder.nodes)
        for gradient in pullback(nodes, [(loss, filled(loss.type, 1))], [x, state, weight]):
            builder.output(gradient)
    return builder.finish()


def merged(graph: Graph) -> Graph:
    passes = (CommonSubexpressionElimination(), DeadNodeElimination())
    return PassManager(passes).run(graph, support.context())


def scans(graph: Graph) -> int:
    return sum(node.op == "scan" for node in graph.nodes)


@pytest.mark.parametrize(
    ("twist", "before", "after"), [("", 3, 2), ("reverse", 6, 4), ("other body", 6, 4)]
)
def test_the_rerun_stands_in_for_the_scan(twist, before, after):
    graph = recurrence(twist)
    result = merged(graph)
    assert (scans(graph), scans(result)) == (before, after)
    for one, other in zip(
        interpret(graph, [X, STATE, WEIGHT]), interpret(result, [X, STATE, WEIGHT]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert merged(result) is result


def test_scans_of_other_operands_stay():
    with GraphBuilder() as builder:
        x, state, weight = (
            builder.input(TensorType(float64, array.shape)) for array in (X, STATE, WEIGHT)
        )
        first = ops.scan(lambda c, row: (c @ weight + row, None), state, x)[0]
        second, ys = ops.scan(lambda c, row: (c @ weight + row, c), state * 2.0, x)
        for value in (first, second, ys):
            builder.output(value)
    graph = builder.finish()
    assert scans(merged(graph)) == 2
