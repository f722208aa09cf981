"""Chains that are deeper than Python's stack pass through every stage."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from frame import ops
from frame.codegen.emit import c99, llvm
from frame.codegen.loops.printer import print_module
from frame.codegen.loops.verifier import verify_module
from frame.compiler.autodiff import build_backward_graph
from frame.compiler.passes.fusion_groups import MOST_WEIGHT, weight_of
from frame.compiler.passes.operator_fusion import fuse
from frame.ir.graph import Graph
from frame.ir.hashing import structural_hash
from frame.ir.parser import parse_graph
from frame.ir.printer import print_graph
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from tests.compiler.support import CAPABILITIES, build, tensor
from tests.compiler.test_linear import chain
from tests.support.compile import make_piece

DEPTH, STACK = 600, 300


def loss_of_chain() -> Graph:
    def body(x):
        y = x
        for _ in range(DEPTH // 2):
            y = ops.sin(y) + x
        return ops.sum(y)

    return build(body, tensor(16))


@pytest.fixture
def shallow() -> Iterator[None]:
    """Leave room for STACK frames: whoever calls itself once a node does not get through."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + STACK)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("shallow")
def test_no_stage_recurses_over_the_nodes_of_a_chain():
    graph = build_backward_graph(loss_of_chain())
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text)
    assert print_graph(again) == text
    assert structural_hash(again) == structural_hash(graph)
    interpret(graph, [np.ones(16, np.float32)])
    piece = make_piece(graph)
    module = piece.lowered.module
    verify_module(module)
    assert print_module(module)
    assert llvm.emit_module(module, piece.target)
    assert c99.emit_module(module)


def test_expensive_nodes_fill_a_group_sooner():
    graph = fuse(loss_of_chain(), CAPABILITIES.anchors)
    bodies = [node.attributes["body"].nodes for node in graph.nodes if node.op == "group"]
    assert len(bodies) > 10
    assert max(sum(map(weight_of, nodes)) for nodes in bodies) <= MOST_WEIGHT
    sines = sorted(sum(node.op == "sin" for node in nodes) for nodes in bodies)
    assert sines[len(sines) // 2] == 10


def test_cheap_nodes_still_fill_a_group():
    graph = fuse(build(lambda x: scaled(x), tensor(16)), CAPABILITIES.anchors)
    assert len(graph.nodes) == 1


def scaled(x):
    for _ in range(90):
        x = x + x
    return x


def test_what_was_checked_of_a_node_holds_on_other_operands_of_the_same_types_alone():
    graph = chain(1)
    node = graph.nodes[-1]
    verify(graph)
    x = graph.inputs[0].value
    assert node.on(node.operands) is node
    assert node.on(node.operands, always=True).sound is node.sound
    other = build(lambda y: y, tensor(8)).inputs[0].value
    assert node.on((x, x)).facts is node.facts is not None
    assert node.on((x, other)).sound is None
