"""Memory by region: every byte of a plan belongs to one region."""

from __future__ import annotations

import pytest

from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role
from frame.ir.plan import plan_memory
from frame.ir.regions import Region, memory_regions
from tests.ir.graphs import op, tensor

N = 1024  # float32 elements: 4096 bytes


def training() -> Graph:
    """Two values forward, two backward that update a weight, and one that moves a statistic."""
    with GraphBuilder("step") as builder:
        x = builder.input(tensor(N), name="x")
        w = builder.input(tensor(N), Role.PARAMETER, "w")
        s = builder.input(tensor(N), Role.BUFFER, "s")
        m = builder.input(tensor(N), Role.OPTIMIZER_STATE, "m")
        hidden = op("t_relu", op("t_add", x, w))
        builder.update(s, op("t_add", s, hidden))
        builder.output(op("t_relu", hidden))
        back = op("t_add", op("t_relu", op("t_add", hidden, x)), m)
        builder.update(m, back)
        builder.update(w, op("t_add", w, back))
    return builder.finish()


def test_regions_of_a_training_step() -> None:
    graph = training()
    plan = plan_memory(graph, workspaces={graph.nodes[0]: (100,)})
    found = memory_regions(graph, plan)
    outside = {row.region: (row.buffers, row.nbytes) for row in found.rows}
    for region in (Region.WEIGHTS, Region.STATISTICS, Region.OPTIMIZER_STATE, Region.INPUTS):
        assert outside[region] == (1, 4096)
    assert found["outputs"].nbytes == 4096 and found["constants"].buffers == 0
    # nothing may be written over: the new statistic beside two values, and four on the way back
    assert found["activations"].buffers == 3 and found["gradients"].buffers == 4
    assert (found["workspace"].buffers, found["workspace"].nbytes) == (1, 128)
    assert found.arena_size == plan.arena_size and found.total == 5 * 4096 + plan.arena_size


def test_what_lives_at_the_peak_is_the_lower_bound() -> None:
    graph = training()
    plan = plan_memory(graph, workspaces={graph.nodes[0]: (10_000,)})
    found = memory_regions(graph, plan)
    arena = (Region.ACTIVATIONS, Region.GRADIENTS, Region.WORKSPACE)
    assert sum(found[region].at_peak for region in arena) == plan.lower_bound
    assert found["workspace"].at_peak > 0  # the first step is the fullest
    assert found["gradients"].at_peak == 0


def test_symbols_need_numbers() -> None:
    with GraphBuilder("f") as builder:
        x = builder.input(tensor(Dim.symbol("n")), name="x")
        builder.output(op("t_relu", op("t_relu", x)))
    graph = builder.finish()
    plan = plan_memory(graph)
    assert memory_regions(graph, plan, {"n": 10})["inputs"].nbytes == 40
    with pytest.raises(InvalidArgumentError, match="n"):
        memory_regions(graph, plan)


def test_the_table_and_sums() -> None:
    graph = training()
    found = memory_regions(graph, plan_memory(graph))
    lines = repr(found).splitlines()
    assert lines[0].split() == ["region", "buffers", "bytes", "at", "peak"]
    assert lines[1].split() == ["weights", "1", "4,096", "4,096"]
    assert lines[-1].split() == ["total", f"{found.total:,}"]
    double = found + found
    assert double.total == 2 * found.total and double["weights"].buffers == 2
