"""Transposes around movable nodes: which are left, and that the numbers stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.compiler.pass_manager import PassManager
from frame.compiler.passes import canonicalize
from frame.compiler.passes.bodies import subgraphs
from frame.compiler.passes.transposes import MOVABLE, cancel_transposes
from frame.compiler.pipeline import make_pipeline
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from tests.compiler.support import arrays_for, assert_same, build, context, tensor

LAST, SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def last(x):
    return ops.transpose(x, LAST)


def second(x):
    return ops.transpose(x, SECOND)


def transposes(graph: Graph) -> int:
    return sum(node.op == "transpose" for each in subgraphs(graph) for node in each.nodes)


def cancelled(graph: Graph) -> Graph:
    after = cancel_transposes(graph, context())
    verify(after)
    arrays = arrays_for(graph)
    results = (interpret(each, arrays, precision="float64") for each in (graph, after))
    assert_same(*results)
    return after


def left(graph: Graph) -> int:
    """Return how many transposes the simplifying passes leave."""
    cancelled(graph)
    simplify, _ = make_pipeline().split_at_layout()
    return transposes(PassManager(simplify.passes).run(graph, context()))


MOVES = {
    "concat": lambda x: ops.concat([x, x * 2.0], axis=3),
    "flip": lambda x: ops.flip(x, axes=(1, 3)),
    "slice": lambda x: x[:, 1:, ::2, :2],
    "pad": lambda x: ops.pad(x, (0, 1, 0, 2), (1, 0, 3, 0)),
    "expand": lambda x: ops.expand(ops.max(x, axes=(1,), keepdims=True), (2, 9, 4, 5)),
    "elementwise": lambda x: ops.where(x > 0.5, x, -x),
    "broadcast": lambda x: x + ops.max(x, axes=(1, 2), keepdims=True),
}


def test_every_op_that_moves_has_a_case():
    assert MOVES.keys() >= MOVABLE.keys()


@pytest.mark.parametrize("name", MOVES)
def test_a_movable_op_between_transposes(name):
    graph = build(lambda x: second(MOVES[name](last(x))), tensor(2, 5, 3, 4))
    assert transposes(graph) == 2 and left(graph) == 0


@pytest.mark.parametrize("axes", [(1, 2), (3,), (0, 1, 2), (0, 3)])
def test_a_reduction_reads_through_a_transpose(axes):
    graph = build(lambda x: ops.sum(last(x), axes=axes), tensor(2, 5, 3, 4))
    assert left(graph) == 0


def test_a_reduction_that_would_give_another_order_keeps_its_transpose():
    graph = build(lambda x: ops.sum(last(x), axes=(0,)), tensor(2, 5, 3, 4))
    assert left(graph) == 1


def test_a_residual_network_with_channels_last_keeps_the_edges():
    def make(x, first, *weights):
        y = last(ops.conv2d(second(x), first))
        for weight in weights:
            more = last(ops.conv2d(second(ops.relu(y)), weight))
            y = ops.relu(y + more * 0.5)
        return y

    graph = build(make, tensor("n", 6, 5, 3), tensor(4, 3, 1, 1), *[tensor(4, 4, 1, 1)] * 3)
    assert transposes(graph) == 8 and left(graph) == 2


def test_an_operand_of_lower_rank_is_moved_where_that_costs_less():
    vector = build(lambda x, b: second(last(x) * b), tensor(2, 5, 3, 4), tensor(5))
    assert left(vector) == 0
    matrix = build(lambda x, b: second(last(x) * b), tensor(2, 5, 3, 4), tensor(4, 5))
    assert left(matrix) == 1


def test_two_orders_meet_in_the_one_that_moves_less():
    def make(x, y):
        return second(last(x) + ops.transpose(y, (0, 3, 2, 1)))

    assert left(build(make, tensor(2, 5, 3, 4), tensor(2, 5, 4, 3))) == 1


def test_bodies_are_reached():
    def step(carry, x):
        return ops.transpose(ops.relu(ops.transpose(carry + x, (1, 0))), (1, 0)), None

    graph = build(
        lambda start, xs: ops.scan(step, start, xs)[0],
        tensor(3, 4),
        tensor(2, 3, 4),
    )
    assert left(graph) == 0


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_keep_their_numbers(seed):
    random = np.random.default_rng(seed)

    def make(x, y, row):
        pool = [x, y]
        for _ in range(14):
            one, other = (pool[i] for i in random.integers(0, len(pool), 2))
            choice = random.integers(0, 6)
            if choice <= 1:
                pool.append(ops.transpose(one, tuple(int(a) for a in random.permutation(3))))
            elif choice == 2 and one.shape == other.shape:
                pool.append(one - other)
            elif choice == 3:
                pool.append(one * ops.sum(one, axes=(int(random.integers(3)),), keepdims=True))
            elif choice == 4:
                pool.append(ops.concat([one, one], axis=int(random.integers(3)))[:2, :3, :2])
            else:
                pool.append(ops.relu(one) * 0.5)
        return [*pool[-4:], ops.sum(pool[-1], axes=(1,)), pool[-2] + row]

    cancelled(build(make, tensor(2, 3, 4), tensor(2, 3, 4), tensor(1)))


def test_rewrites_that_undo_each_other_end_in_an_error(monkeypatch):
    monkeypatch.setattr(canonicalize, "cancel_transposes", lambda graph, _: replace(graph))
    with pytest.raises(InvalidArgumentError, match="after 50 rounds"):
        canonicalize.Canonicalize().run(build(ops.relu, tensor(4)), context())
