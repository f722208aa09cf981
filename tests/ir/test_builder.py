"""Building and rewriting graphs."""

from __future__ import annotations

import numpy as np
import pytest

from frame.core.devices import Device
from frame.core.errors import InternalError, InvalidArgumentError
from frame.ir.builder import GraphBuilder, Rewriter, active_builder, current_builder
from frame.ir.graph import Constant, Role
from frame.ir.printer import print_graph
from frame.ir.verify import verify
from tests.ir.graphs import mlp, op, tensor


def test_locations_name_module_and_user_line():
    with GraphBuilder() as builder:
        x = builder.input(tensor(2))
        builder.push_module("mlp")
        builder.push_module("0")
        builder.output(op("t_relu", x))
        builder.pop_module()
    graph = builder.finish()
    location = graph.location(graph.nodes[0])
    assert location.module == "mlp.0" and "tests" in location.source


def test_names_of_inputs_are_unique():
    with GraphBuilder("g") as builder:
        builder.input(tensor(2), name="x")
        with pytest.raises(InvalidArgumentError, match="already has an input named 'x'"):
            builder.input(tensor(2), name="x")
        builder.input(tensor(2))
    assert [entry.name for entry in builder.inputs] == ["x", "arg1"]


def test_captures_through_two_levels():
    with GraphBuilder() as outer:
        a, b = outer.input(tensor(2), name="a"), outer.input(tensor(2), name="b")
        with GraphBuilder("middle") as middle:
            with GraphBuilder("inner") as inner:
                x = inner.input(tensor(2), Role.CARRY, "capture0")
                inner.output(op("t_add", op("t_add", x, b), op("t_add", a, b)))
            assert inner.inputs[1].name == "capture1"  # capture0 is taken by the carry
            looped = op("t_loop", b, *inner.captures, body=inner.finish())
            middle.output(looped)
        # The middle body captured b and a once each, although b is used at two depths.
        assert list(middle.captures) == [b, a]
        assert [entry.role for entry in middle.inputs] == [Role.CAPTURE, Role.CAPTURE]
        outer.output(op("t_loop", a, *middle.captures, body=middle.finish()))
    verify(outer.finish())
    assert list(inner.captures) == [middle.captures[b], middle.captures[a]]


def test_a_foreign_value_is_refused():
    with GraphBuilder("one") as one:
        x = one.input(tensor(2))
    with GraphBuilder("two"), pytest.raises(InvalidArgumentError, match="another graph than two"):
        op("t_relu", x)
    with pytest.raises(InvalidArgumentError, match="need one to build"):
        current_builder()
    assert active_builder() is None


def test_updates_are_checked():
    with GraphBuilder("g") as builder:
        x = builder.input(tensor(2), name="state")
        with pytest.raises(InvalidArgumentError, match=r"'state' must have the type float32\[2\]"):
            builder.update(x, op("t_matmul", *(builder.input(tensor(2, 2)) for _ in "ab")))
        with pytest.raises(InvalidArgumentError, match="is not an input of the graph g"):
            builder.update(op("t_relu", x), x)


def test_results_are_on_the_device_of_the_operands():
    with GraphBuilder() as builder:
        x = builder.input(tensor(2, device=Device("gpu", 1)))
        builder.output(op("t_relu", op("t_add", x, x)))
    graph = builder.finish()
    assert {value.type.device for value in graph.outputs} == {Device("gpu", 1)}
    verify(graph)


def test_a_rewrite_that_changes_nothing_is_the_same_graph():
    graph = mlp()
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            rewriter.copy(node)
    assert rewriter.finish() is graph


def test_a_rewrite_shares_what_it_leaves_alone():
    graph = mlp()
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            rewriter.at(node)
            if node.op == "t_relu":
                old = node.results[0]
                rewriter.replace(old, op("t_add", *(rewriter[node.operands[0]],) * 2))
            else:
                rewriter.copy(node)
    changed = rewriter.finish()
    verify(changed)
    assert "t_relu" not in print_graph(changed) and "t_relu" in print_graph(graph)
    assert changed.nodes[0] is graph.nodes[0]  # above the change
    assert changed.nodes[2] is not graph.nodes[2]  # reads the change
    assert changed.nodes[4] is graph.nodes[4]  # beside it
    assert changed.location(changed.nodes[1]) == graph.location(graph.nodes[1])


def test_bodies_that_a_pass_builds_keep_the_place_of_the_node():
    graph = mlp()
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            rewriter.at(node)
            results = rewriter.copy(node)
            if node.op == "t_relu":
                with GraphBuilder("body") as body:
                    body.output(op("t_add", *(body.input(tensor("batch", 4), Role.CARRY),) * 2))
                looped = op("t_loop", *results, body=body.finish())
                rewriter.replace(node.results[0], looped)
    finished = body.finish()
    assert finished.location(finished.nodes[0]) == graph.location(graph.nodes[1])


def test_retype_infers_types_again():
    graph = mlp()
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            if node.op == "t_constant":
                rewriter.retype(node, value=Constant(np.ones((4, 4), np.float32)))
            else:
                rewriter.copy(node)
    assert "float32[4, 4](1.0, " in print_graph(rewriter.finish())
    with pytest.raises(InternalError, match="has not met"):
        rewriter[mlp().nodes[0].results[0]]


def test_streams_are_unique_over_the_nest_and_over_rewrites():
    with GraphBuilder() as outer:
        x = outer.input(tensor(2))
        with GraphBuilder() as body:
            y = body.input(tensor(2), Role.CARRY)
            numbers = [body.next_stream(), outer.next_stream(), body.next_stream()]
            body.output(y)
        outer.output(x)
    assert numbers == [1, 2, 3]


def test_values_have_no_truth_value():
    with GraphBuilder() as builder:
        x = builder.input(tensor(2))
    with pytest.raises(InvalidArgumentError, match=r"frame\.ops\.where"):
        bool(x)
