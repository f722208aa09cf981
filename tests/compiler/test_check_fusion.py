"""The verifier of fusions: right fusions pass, and every way to spoil one is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.compiler.check_fusion import check_fusion
from frame.compiler.passes.fusion import OperatorFusion
from frame.core.errors import InternalError
from frame.ir.graph import Graph, Node, Value
from frame.ops.interpreter import interpret
from tests.compiler.support import arrays_for, build, compiled, run_compiled, run_one, tensor


def make() -> tuple[Graph, Graph]:
    def body(x, w):
        y = ops.relu(x @ w)
        return y / ops.sum(y, 1, keepdims=True), ops.exp(x)

    before = build(body, tensor(16, 8), tensor(8, 4))
    return before, run_one(OperatorFusion(), before)


def test_a_right_fusion_passes():
    check_fusion(*make())


def spoiled(change: Callable[[Graph], Graph]) -> None:
    before, after = make()
    check_fusion(before, change(after))


def with_group(graph: Graph, index: int, change: Callable[[Node], Node]) -> Graph:
    """Return the graph with one group changed, and its readers reading the new one."""
    values: dict[Value, Value] = {}
    nodes = []
    for position, node in enumerate(graph.nodes):
        operands = tuple(values.get(v, v) for v in node.operands)
        types = tuple(result.type for result in node.results)
        new = Node(node.op, operands, node.attributes, types)
        new = change(new) if position == index else new
        values.update(zip(node.results, new.results, strict=False))
        nodes.append(new)
    outputs = tuple(values.get(v, v) for v in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def with_body(node: Node, change: Callable[[Graph], Graph]) -> Node:
    attributes = {**node.attributes, "body": change(node.attributes["body"])}
    types = tuple(result.type for result in node.results)
    return Node(node.op, node.operands, attributes, types)


def product_group(graph: Graph) -> int:
    anchors = [node.attributes.get("anchor") for node in graph.nodes]
    return anchors.index("contraction")


def copied(node: Node) -> Node:
    types = tuple(result.type for result in node.results)
    return Node(node.op, node.operands, node.attributes, types)


def test_a_node_computed_twice_is_caught():
    def change(graph: Graph) -> Graph:
        twice = copied(graph.nodes[product_group(graph)])
        outputs = (*graph.outputs, *twice.results)
        return replace(graph, nodes=(*graph.nodes, twice), outputs=outputs, output_names=())

    with pytest.raises(InternalError, match="F4: .*matmul.*was computed 1 times.*is computed 2"):
        spoiled(change)


def test_a_node_left_out_is_caught():
    def without_relu(body: Graph) -> Graph:
        product = body.nodes[0]
        return replace(body, nodes=(product,), outputs=product.results)

    with pytest.raises(InternalError, match="F4: "):
        spoiled(lambda g: with_group(g, product_group(g), lambda n: with_body(n, without_relu)))


def test_a_changed_op_is_caught():
    def tanh_for_relu(body: Graph) -> Graph:
        product, relu = body.nodes
        tanh = Node("tanh", relu.operands, {}, (relu.results[0].type,))
        return replace(body, nodes=(product, tanh), outputs=tanh.results)

    with pytest.raises(InternalError, match="F4: .*(tanh|relu)"):
        spoiled(lambda g: with_group(g, product_group(g), lambda n: with_body(n, tanh_for_relu)))


def test_swapped_captures_are_caught():
    before = build(lambda x, y: ops.exp(x - y), tensor(4), tensor(4))

    def swap(node: Node) -> Node:
        types = tuple(result.type for result in node.results)
        return Node(node.op, node.operands[::-1], node.attributes, types)

    after = with_group(run_one(OperatorFusion(), before), 0, swap)
    with pytest.raises(InternalError, match="F4: "):
        check_fusion(before, after)


def test_a_wrong_order_is_caught():
    with pytest.raises(InternalError, match="F1: "):
        spoiled(lambda graph: replace(graph, nodes=graph.nodes[::-1]))


def test_an_uncaptured_value_is_caught():
    def change(graph: Graph) -> Graph:
        x = graph.inputs[0].value

        def read_outside(body: Graph) -> Graph:
            product, relu = body.nodes
            outside = Node(
                "matmul", (x, product.operands[1]), product.attributes, (product.results[0].type,)
            )
            follow = Node("relu", outside.results, {}, (relu.results[0].type,))
            return replace(body, nodes=(outside, follow), outputs=follow.results)

        index = product_group(graph)
        return with_group(graph, index, lambda n: with_body(n, read_outside))

    with pytest.raises(InternalError, match="F2: .*without capturing it"):
        spoiled(change)


def test_an_unread_capture_is_caught():
    def change(node: Node) -> Node:
        body: Graph = node.attributes["body"]
        extra = replace(body.inputs[0], value=Value(node.operands[0].type), name="more")
        types = tuple(result.type for result in node.results)
        attributes = {**node.attributes, "body": replace(body, inputs=(*body.inputs, extra))}
        return Node("group", (*node.operands, node.operands[0]), attributes, types)

    with pytest.raises(InternalError, match="F2: .*never reads its input more"):
        spoiled(lambda graph: with_group(graph, product_group(graph), change))


def test_a_wrong_type_is_caught():
    def change(node: Node) -> Node:
        return Node("group", node.operands, node.attributes, (tensor(16, 5),))

    with pytest.raises(InternalError, match="F3: "):
        spoiled(lambda graph: with_group(graph, product_group(graph), change))


def test_a_wrong_output_is_caught():
    with pytest.raises(InternalError, match="F5: "):
        spoiled(lambda graph: replace(graph, outputs=graph.outputs[::-1]))


def test_a_result_that_nobody_reads_is_caught():
    def change(node: Node) -> Node:
        body: Graph = node.attributes["body"]
        more = replace(body, outputs=(*body.outputs, body.nodes[0].results[0]), output_names=())
        types = (*(r.type for r in node.results), body.nodes[0].results[0].type)
        return Node("group", node.operands, {**node.attributes, "body": more}, types)

    with pytest.raises(InternalError, match="F7: "):
        spoiled(lambda graph: with_group(graph, product_group(graph), change))


def test_a_spoiled_body_of_a_scan_is_caught():
    def body(x, start):
        return ops.scan(lambda c, row: (ops.tanh(c + row), None), start, x)[0]

    before = build(body, tensor(5, 3), tensor(3))
    after = run_one(OperatorFusion(), before)
    check_fusion(before, after)

    def change(node: Node) -> Node:
        def exp_for_tanh(inner: Graph) -> Graph:
            add, tanh = inner.nodes
            exp = Node("exp", tanh.operands, {}, (tanh.results[0].type,))
            return replace(inner, nodes=(add, exp), outputs=exp.results)

        return with_body(
            node, lambda b: with_group(b, 0, lambda group: with_body(group, exp_for_tanh))
        )

    with pytest.raises(InternalError, match="F4: "):
        check_fusion(before, with_group(after, 0, change))


# --- known bugs of others -------------------------------------------------------------------------


def test_known_31_a_copy_of_flipped_self_then_a_reduction():
    """A flip that is written over its operand must not be fused with what reads it later."""

    def body(x):
        y = ops.flip(x, 0)
        return y + ops.sum(y, 1, keepdims=True) + ops.flip(y, 1), y

    graph = build(body, tensor(16, 4))
    simple = run_one(OperatorFusion(), graph)
    check_fusion(graph, simple)
    arrays = arrays_for(graph)
    for one, other in zip(
        interpret(graph, arrays), run_compiled(compiled(graph), arrays), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_known_36_views_share_the_lifetime_of_what_they_look_at():
    """The inputs of a concat, reshaped and used in place later: the replay proves the plan."""

    def body(x):
        y = ops.exp(x)
        view = ops.reshape(y, (4, 16))
        return ops.concat([view, view * 2.0], axis=0), ops.reshape(y, (8, 8)) + 1.0

    graph = build(body, tensor(64))
    result = compiled(graph, passes=["memory_planning{check=true}"])
    arrays = arrays_for(graph)
    for one, other in zip(interpret(graph, arrays), run_compiled(result, arrays), strict=True):
        np.testing.assert_array_equal(one, other)
