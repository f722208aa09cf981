"""Sums over the steps of a scan move behind it where rows of the batch meet in them."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.compiler.pass_manager import PassManager
from frame.compiler.passes.canonicalize import Canonicalize
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.core.dtypes import float64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret
from tests.compiler import support

STEPS, ROWS, WIDTH = 4, 3, 2


def collecting(kind, total, h, row, weight):
    """One step: (the total after it, what the step hands on)."""
    return {
        "product": lambda: (total + ops.matmul(h, row, transpose_a=True), h),
        "product of the element": lambda: (total + ops.matmul(row, h, transpose_a=True), h),
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


MOVED = ("product", "product of the element", "sum")
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
