"""Convolutions with a symbolic batch: the schedule and the numbers of a fixed one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.backends.cpu.target import host_target
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, make_plans
from frame.core.dtypes import float32
from frame.core.shapes import Dim, Size
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType
from tests.support.compile import make_piece

BATCH = 6
# (size of the image, size of the window, attributes)
FILTER_GRADIENTS = {
    "pixels": (9, 7, {}),
    "window": (8, 8, {"padding": (1, 1, 1, 1)}),
    "strided": (9, 4, {"padding": (1, 1, 1, 1), "dilation": (2, 2)}),
    "point": (3, 1, {}),
    "groups": (9, 7, {"groups": 2}),
}


def filter_gradient(name: str, batch: Size) -> Graph:
    """The gradient by the weights: the batch stands in the place of the channels."""
    size, window, attributes = FILTER_GRADIENTS[name]
    groups = attributes.get("groups", 1)
    with GraphBuilder(name) as builder:
        x = builder.input(TensorType(float32, (5, batch * groups, size, size)))
        dy = builder.input(TensorType(float32, (14, batch, window, window)))
        builder.output(ops.conv2d(x, dy, **attributes))
    return builder.finish()


def plan_of(graph: Graph) -> ConvPlan:
    (group,) = make_piece(graph).piece.graph.nodes
    (plan,) = make_plans(group.attributes["body"], host_target())
    return plan


@pytest.mark.parametrize("name", FILTER_GRADIENTS)
def test_a_filter_gradient_runs_the_same_with_a_symbolic_batch(name: str) -> None:
    graphs = [filter_gradient(name, batch) for batch in (Dim.symbol("batch"), BATCH)]
    generator = np.random.default_rng(3)
    shapes = [entry.value.shape for entry in graphs[1].inputs]
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    symbolic, fixed = (make_piece(graph).executable().run(inputs)[0] for graph in graphs)
    assert symbolic.tobytes() == fixed.tobytes()
    first, second = (plan_of(graph) for graph in graphs)
    assert replace(first, node=second.node, panels=second.panels, tiles=second.tiles) == second


def test_no_image_at_all_gives_zeros() -> None:
    graph = filter_gradient("pixels", Dim.symbol("batch"))
    inputs = [np.ones((5, 0, 9, 9), np.float32), np.ones((14, 0, 7, 7), np.float32)]
    (result,) = make_piece(graph).executable().run(inputs)
    assert result.shape == (5, 14, 3, 3)
    assert not result.any()
