"""The passes do work linear in the nodes: lines of Python that run are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from frame import ops
from frame.compiler.pipeline import compile_graph
from frame.ir.graph import Graph
from tests.compiler.support import CAPABILITIES, TARGET, build, packed_group_info, tensor


def lines_run(function: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def wide(count: int) -> Graph:
    return build(lambda x: tuple(x * float(i + 2) for i in range(count)), tensor(64))


def chain(count: int) -> Graph:
    def body(x):
        y = x
        for _ in range(count):
            y = ops.tanh(y) + x
        return y

    return build(body, tensor(64))


def layers(count: int) -> Graph:
    def body(x, *weights):
        for w in weights:
            x = ops.softmax(ops.relu(x @ w))
        return x

    return build(body, tensor(8, 8), *[tensor(8, 8)] * count)


def diamonds(count: int) -> Graph:
    def body(x):
        for _ in range(count):
            x = ops.sum(x, 1, keepdims=True) + ops.tanh(x) * ops.flip(x, 0)
        return x

    return build(body, tensor(8, 8))


@pytest.mark.parametrize("make", [wide, chain, layers, diamonds])
def test_twice_the_nodes_at_most_a_little_more_than_twice_the_work(make):
    def work(count: int) -> int:
        graph = make(count)
        return lines_run(lambda: compile_graph(graph, TARGET, CAPABILITIES, packed_group_info))

    work(20)  # fills the memories of the op records
    once, twice = work(100), work(200)
    assert twice < 2.2 * once
