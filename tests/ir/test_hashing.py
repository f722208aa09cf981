"""The structural hash: what it covers, and that it is stable."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from frame.ir.graph import Constant, Graph, GraphInput, Layout, Node, Role, StateUpdate, Value
from frame.ir.hashing import structural_hash
from frame.ir.parser import parse_graph
from frame.ir.printer import print_graph
from tests.ir.graphs import mlp, tensor


def small(
    role=Role.INPUT,
    type_=None,
    constant=1.0,
    layout=None,
    update=False,
    body_op="t_relu",
    name="x",
    origin=None,
    title="graph",
) -> Graph:
    type_ = type_ or tensor(2)
    value = Value(type_)
    inner = Value(type_)
    body_node = Node(body_op, (inner,), {}, (type_,))
    body = Graph((GraphInput(inner, name="y"),), (body_node,), body_node.results, name=title)
    loop = Node("t_loop", (value,), {"body": body}, (type_,), origin)
    number = Constant(np.full(40, constant, np.float32))
    fixed = Node("t_constant", (), {"value": number}, (tensor(40, layout=layout or Layout()),))
    updates = (StateUpdate(0, loop.results[0]),) if update else ()
    outputs = (*loop.results, *fixed.results)
    return Graph((GraphInput(value, role, name),), (loop, fixed), outputs, updates, title)


def test_what_does_not_enter():
    same = structural_hash(small())
    assert structural_hash(small(name="other", title="g", origin=3)) == same
    assert len(same) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"role": Role.BUFFER},
        {"type_": tensor(3)},
        {"type_": tensor(2, dtype="float64")},
        {"constant": 2.0},
        {"layout": Layout((0,))},
        {"update": True},
        {"body_op": "t_sink2"},
    ],
    ids=str,
)
def test_what_enters(change):
    assert structural_hash(small(**change)) != structural_hash(small())


def test_the_hash_survives_print_and_parse():
    assert structural_hash(parse_graph(print_graph(mlp()))) == structural_hash(mlp())
    nameless = parse_graph(print_graph(mlp(), names=False))
    assert structural_hash(nameless) == structural_hash(mlp())


def test_the_hash_is_the_same_in_every_process():
    script = (
        "from tests.ir.ops import registered\n"
        "from tests.ir.graphs import mlp\n"
        "from frame.ir.hashing import structural_hash\n"
        "with registered(): print(structural_hash(mlp()))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert found == [structural_hash(mlp())] * 2


def test_shared_bodies_are_hashed_once():
    # Each level holds the one below twice: 2**60 bodies if they were walked as a tree.
    value = Value(tensor(2))
    body = Graph((GraphInput(value, name="x"),), (), (value,))
    for _ in range(60):
        value = Value(tensor(2))
        first = Node("t_loop", (value,), {"body": body}, (tensor(2),))
        second = Node("t_loop", first.results, {"body": body}, (tensor(2),))
        body = Graph((GraphInput(value, name="x"),), (first, second), second.results)
    assert len(structural_hash(body)) == 64
