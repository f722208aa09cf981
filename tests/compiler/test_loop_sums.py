"""Sums over the steps of a scan move behind it where rows of the batch meet in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.compiler.pass_manager import PassManager
from frame.compiler.passes.canonicalize import Canonicalize
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.compiler.passes.loop_sums import move_sums
from frame.core.dtypes import float64
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret
from tests.compiler import support

STEPS, ROWS, WIDTH = 4, 3, 2


def collecting(kind, total, h, row, weight):
    """One step: (the total after it, what the step hands on)."""
    return {
        "product": lambda: (total + ops.matmul(h, row, transpose_a=True), h),
        "product of the element": lambda: (total + ops.matmul(row, h, transpose_a=True), h),
        "product of what is made": lambda: (
            total + ops.matmul(h * row, row, transpose_a=True),
            h,
        ),
        "sum": lambda: (total + ops.sum(ops.unsqueeze(h, 2) * ops.unsqueeze(row, 1), axes=(0,)), h),
        "read by the step": lambda: (
            total + ops.matmul(h, row, transpose_a=True),
            h + ops.sum(total),
        ),
        "handed on": lambda: (total + ops.matmul(h, row, transpose_a=True), ops.matmul(h, total)),
        "with a capture": lambda: (total + ops.matmul(weight, weight, transpose_a=True), h),
        "scaled": lambda: (total * 0.5 + ops.matmul(h, row, transpose_a=True), h),
        "elementwise": lambda: (total + weight, h),
    }[kind]()


MOVED = ("product", "product of the element", "product of what is made", "sum")
KEPT = ("read by the step", "handed on", "with a capture", "scaled", "elementwise")


def graph_of(kind: str, reverse: bool):
    random = np.random.default_rng(0)
    shapes = ((STEPS, ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, WIDTH))
    arrays = [random.standard_normal(shape) for shape in shapes]
    with GraphBuilder("sums") as builder:
        x, state, weight = (builder.input(TensorType(float64, a.shape)) for a in arrays)

        def step(carry, row):
            h, total = carry
            total, y = collecting(kind, total, h, row, weight)
            return (ops.tanh(h + row), total), y

        (h, total), ys = ops.scan(step, (state, weight), x, reverse=reverse)
        for value in (h, total, ys):
            builder.output(value)
    return builder.finish(), arrays


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("kind", [*MOVED, *KEPT])
def test_moves(kind, reverse):
    graph, arrays = graph_of(kind, reverse)
    passes = (Canonicalize(), DeadNodeElimination())
    after = PassManager(passes).run(graph, support.context())
    (scan,) = (node for node in after.nodes if node.op == "scan")
    inside = [node.op for node in scan.attributes["body"].nodes]
    if kind.startswith("product"):
        assert scan.attributes["carries"] == 1
        assert "matmul" not in inside
    elif kind in MOVED:
        assert scan.results[1].shape == (ROWS, WIDTH, WIDTH)
        assert "sum" not in inside
    else:
        assert [v.shape for v in scan.results[:2]] == [(ROWS, WIDTH), (WIDTH, WIDTH)]
    for got, wanted in zip(interpret(after, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_operands_far_larger_than_what_steps_read_stay_in_the_body():
    """Four elements a step would become a stack of 4,096 rows a step."""
    moved = [_scan_after(rows, STEPS * 64).attributes["carries"] for rows in (4, 1 << 12)]
    assert moved == [1, 2]


def _scan_after(rows: int, steps: int):
    with GraphBuilder("large") as builder:
        x = builder.input(TensorType(float64, (steps, 1, WIDTH)))
        state, weight = (
            builder.input(TensorType(float64, shape)) for shape in ((rows, WIDTH), (WIDTH, WIDTH))
        )

        def step(carry, row):
            h, total = carry
            made = ops.tanh(h + row)
            return (made, total + ops.matmul(h, made, transpose_a=True)), None

        carries, _ = ops.scan(step, (state, weight), x)
        for value in carries:
            builder.output(value)
    after = move_sums(builder.finish(), support.context())
    (scan,) = (node for node in after.nodes if node.op == "scan")
    return scan


@pytest.mark.parametrize("name", ["summand1", "summand2"])
def test_stacked_outputs_have_names_of_their_own(name):
    """A body may hand on something of that name already, from a run of the pass before."""
    graph, arrays = graph_of("product of what is made", False)
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            if node.op != "scan":
                rewriter.copy(node)
                continue
            body = node.attributes["body"]
            names = (*body.output_names[:-1], name)
            rewriter.retype(node, body=replace(body, output_names=names))
        named = rewriter.finish()
    after = move_sums(named, support.context())
    (scan,) = (node for node in after.nodes if node.op == "scan")
    names = scan.attributes["body"].output_names
    assert len(set(names)) == len(names)
    for got, wanted in zip(interpret(after, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
