"""Properties that every pass has on every graph, tried on random ones."""

from __future__ import annotations

import numpy as np
import pytest

from frame.compiler.autodiff import build_backward_graph
from frame.compiler.check_fusion import check_fusion
from frame.compiler.passes.canonicalize import Canonicalize
from frame.compiler.passes.common_subexpressions import CommonSubexpressionElimination
from frame.compiler.passes.constant_folding import ConstantFolding
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.shape_inference import ShapeInference
from frame.compiler.pipeline import simplify_graph
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.parser import parse_graph
from frame.ir.printer import constant_pool, print_graph
from frame.ops import sum as total
from frame.ops.interpreter import interpret
from tests.compiler.random_graphs import random_graph
from tests.compiler.support import (
    CAPABILITIES,
    TARGET,
    arrays_for,
    compiled,
    context,
    packed_group_info,
    run_compiled,
    run_one,
)

SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200))]
EVERY_SEED = pytest.mark.parametrize("seed", SEEDS)
SINGLE = (
    Canonicalize(),
    ShapeInference(),
    ConstantFolding(),
    CommonSubexpressionElimination(),
    DeadNodeElimination(),
    OperatorFusion(),
)


def assert_close(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@EVERY_SEED
def test_each_pass_keeps_the_numbers_and_its_own_result(seed):
    graph = random_graph(seed)
    arrays = arrays_for(graph, seed)
    expected = interpret(graph, arrays)
    for pass_ in SINGLE:
        after = run_one(pass_, graph)
        assert_close(expected, interpret(after, arrays))
        assert pass_.run(after, context()) is after, f"{pass_.name} changes its own result"


@EVERY_SEED
def test_the_pipeline_keeps_the_numbers_and_fusion_is_proved(seed):
    graph = random_graph(seed)
    arrays = arrays_for(graph, seed)
    result = compiled(graph, group_info=packed_group_info)
    assert_close(interpret(graph, arrays), run_compiled(result, arrays))
    simple = simplify_graph(graph, TARGET, CAPABILITIES)
    assert simplify_graph(simple, TARGET, CAPABILITIES) is simple
    check_fusion(simple, run_one(OperatorFusion(), simple))


@EVERY_SEED
def test_gradients_through_the_pipeline(seed):
    graph = _with_loss(random_graph(seed, 15))
    backward = build_backward_graph(graph, "loss", ["x0", "x1", "x2", "x3"])
    arrays = arrays_for(graph, seed)
    expected = interpret(backward, arrays)
    assert_close(expected, run_compiled(compiled(backward), arrays))
    simple = simplify_graph(backward, TARGET, CAPABILITIES)
    check_fusion(simple, run_one(OperatorFusion(), simple))
    text = print_graph(backward)
    assert print_graph(parse_graph(text, constant_pool(backward))) == text


def _with_loss(graph):
    """Add the sum of all float outputs as a loss."""
    with Rewriter(graph) as builder:
        for node in graph.nodes:
            builder.copy(node)
        floats = [total(v) for v in graph.outputs if v.dtype.is_float]
        loss = floats[0]
        for value in floats[1:]:
            loss = loss + value
        builder.outputs.extend([*graph.outputs, loss])
        builder.output_names.append("loss")
        return GraphBuilder.finish(builder)
