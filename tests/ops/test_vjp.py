from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.record import NoGradient, OpDef, Operand
from frame.ops.registry import create_node, register, unregister
from frame.ops.vjp import composite_gradient, filled, inline, is_zeros, pullback, vjp, zeros_like
from tests.ops.checking import check_gradient, gradients, run, trace, value_of

X = np.array([0.5, -1.25, 2.0])


def test_several_uses_are_summed():
    (g,) = run(gradients(lambda x: x * x + ops.sin(x) + x), X)
    np.testing.assert_allclose(g, 2 * X + np.cos(X) + 1, rtol=1e-14)


def test_an_input_that_is_an_output_gets_its_cotangent():
    first, second = run(gradients(lambda x, y: (x, x * y)), X, 2 * X)
    np.testing.assert_allclose(first, 1 + 2 * X)
    np.testing.assert_allclose(second, X)


def test_disconnected_inputs_get_zeros():
    _, g = run(gradients(lambda x, y: ops.sin(x)), X, np.ones((2, 3)))
    np.testing.assert_array_equal(g, np.zeros((2, 3)))


def test_zeros_of_symbolic_shape():
    batch = Dim.symbol("batch")
    with GraphBuilder():
        x, y = value_of((batch, 2)), value_of((batch,))
        zero = gradients(lambda x, y: ops.sin(x), 1)(x, y)[0]
        assert zero.shape == (batch,) and is_zeros(zero)


def test_is_zeros():
    with GraphBuilder():
        x = value_of((2,))
        assert is_zeros(zeros_like(x)) and is_zeros(filled(TensorType(float32, ()), 0))
        assert not is_zeros(filled(x.type, 1)) and not is_zeros(x) and not is_zeros(x * 0.0)


def test_stop_gradient_and_ops_of_integers_stop_the_walk():
    (g,) = run(gradients(lambda x: ops.stop_gradient(x) * x), X)
    np.testing.assert_array_equal(g, X)
    (g,) = run(gradients(lambda x: x * ops.cast(ops.argmax(x, 0), x.dtype)), X)
    np.testing.assert_array_equal(g, np.full(3, 2.0))


def test_the_gradient_of_an_inner_value():
    with GraphBuilder() as builder:
        x = value_of((3,), "float64")
        inner = ops.sin(x)
        outer = ops.square(inner) * inner
        nodes = list(builder.nodes)
        for g in pullback(nodes, [(outer, filled(outer.type, 1))], [inner, x]):
            builder.output(g)
    from frame.ops.interpreter import interpret

    by_inner, by_x = interpret(builder.finish(), [X])
    np.testing.assert_allclose(by_inner, 3 * np.sin(X) ** 2, rtol=1e-14)
    np.testing.assert_allclose(by_x, 3 * np.sin(X) ** 2 * np.cos(X), rtol=1e-14)


def test_vjp_of_a_graph_applies_it_to_values_of_the_builder():
    graph = trace(lambda x, y: (x * y, ops.exp(x)), X, X)

    def function(x):
        doubled = x * 2.0
        inputs = [doubled, x]
        return vjp(graph, inputs, [None, filled(x.type, 3.0)], [0, 1])

    by_doubled, by_x = run(function, X)
    np.testing.assert_allclose(by_doubled, 3 * np.exp(2 * X), rtol=1e-14)
    np.testing.assert_array_equal(by_x, np.zeros(3))


def test_inline_copies_a_graph():
    graph = trace(lambda x: ops.sin(x) + 1.0, X)
    (y,) = run(lambda x: inline(graph, [ops.square(x)])[graph.outputs[0]], X)
    np.testing.assert_allclose(y, np.sin(X**2) + 1)


def test_gradient_nodes_have_the_origin_of_the_forward_node():
    with GraphBuilder() as builder:
        x = value_of((3,))
        y = ops.sin(x)
        start = len(builder.nodes)
        pullback(list(builder.nodes), [(y, filled(y.type, 1))], [x])
        cosine = next(n for n in builder.nodes[start:] if n.op == "cos")
        assert cosine.origin == y.node.origin
        assert builder.origin is None


def test_wrong_requests_are_named():
    with GraphBuilder():
        x, i = value_of((3,)), value_of((3,), "int32")
        y = ops.sin(x)
        with pytest.raises(InvalidArgumentError, match="float values only"):
            pullback([y.node], [(y, y)], [i])
        with pytest.raises(InvalidArgumentError, match="cotangent of a float32 value"):
            pullback([y.node], [(y, value_of((2,)))], [x])
        graph = trace(ops.sin, np.zeros(3, np.float32))
        with pytest.raises(InvalidArgumentError, match="1 outputs"):
            vjp(graph, [x], [], [0])
        with pytest.raises(InvalidArgumentError, match=r"takes \(float32\[3\]\)"):
            vjp(graph, [value_of((4,))], [None], [0])


def record(name, gradient):
    return OpDef(
        name,
        "Returns x.",
        (Operand("x", ("float",)),),
        lambda operands, attributes: operands[0],
        lambda operands, attributes: operands[0],
        gradient,
    )


@pytest.fixture
def user_op():
    made = []

    def make(gradient):
        made.append(register(record("user_op", gradient)))
        return lambda x: create_node("user_op", (x,), {})[0]

    yield make
    for entry in made:
        unregister(entry.name)


def test_an_op_without_a_gradient_is_named(user_op):
    apply = user_op(NoGradient("nobody has worked it out"))
    with pytest.raises(UnimplementedError, match="user_op has no gradient: nobody") as error:
        trace(gradients(apply), X)
    assert [node.op for node in error.value.nodes] == ["user_op"]
    assert run(gradients(lambda x: ops.stop_gradient(apply(x)) * x), X)[0].tolist() == X.tolist()


def test_a_wrong_gradient_of_a_users_op_is_named(user_op):
    apply = user_op(lambda context: [ops.sum(context.cotangents[0])])
    with pytest.raises(InvalidArgumentError, match="gradient that user_op sends to"):
        trace(gradients(apply), X)


def test_a_gradient_of_too_few_entries_is_named(user_op):
    apply = user_op(lambda context: [])
    with pytest.raises(InvalidArgumentError, match="one entry for each of its 1 operands"):
        trace(gradients(apply), X)


def test_composite_gradient_of_a_repeated_operand():
    def build(operands, attributes):
        return ops.mul(ops.sin(operands[0]), operands[1])

    entry = OpDef(
        "user_product",
        "Returns sin(a) * b.",
        (Operand("a", ("float",)), Operand("b", ("float",))),
        lambda operands, attributes: operands[0],
        lambda operands, attributes: np.sin(operands[0]) * operands[1],
        composite_gradient(build),
        decomposition=build,
    )
    register(entry)
    try:
        check_gradient(lambda x: create_node("user_product", (x, x), {}), X)
        check_gradient(lambda x, y: create_node("user_product", (x, y), {}), X, X + 1)
    finally:
        unregister("user_product")
