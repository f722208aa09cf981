"""build_backward_graph, grad, value_and_grad, stop_gradient, custom_vjp."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.compiler.autodiff import (
    build_backward_graph,
    custom_vjp,
    grad,
    stop_gradient,
    value_and_grad,
)
from frame.core.dtypes import float64, int64
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.ir.graph import Graph, Role
from frame.ir.parser import parse_graph
from frame.ir.printer import constant_pool, print_graph
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from tests.compiler.support import arrays_for, assert_same, build, compiled, run_compiled, tensor

STEP = 1e-6


def vector(*shape):
    return tensor(*shape, dtype=float64)


def numeric(graph: Graph, arrays: list[np.ndarray], wrt: int) -> np.ndarray:
    """The gradient of output 0 with respect to one input, by central differences."""
    found = np.zeros_like(arrays[wrt])
    for place in np.ndindex(found.shape):
        values = []
        for sign in (1, -1):
            moved = [array.copy() for array in arrays]
            moved[wrt][place] += sign * STEP
            values.append(float(interpret(graph, moved)[0].reshape(())))
        found[place] = (values[0] - values[1]) / (2 * STEP)
    return found


def check_gradients(graph: Graph, wrt: list[int], seed: int = 0) -> None:
    backward = build_backward_graph(graph, 0, wrt)
    verify(backward)
    arrays = arrays_for(graph, seed)
    results = interpret(backward, arrays)
    assert_same(interpret(graph, arrays), results[: len(graph.outputs)])
    for position, found in zip(wrt, results[len(graph.outputs) :], strict=True):
        np.testing.assert_allclose(found, numeric(graph, arrays, position), rtol=1e-5, atol=1e-7)


def network(x, w, bias, target):
    hidden = ops.tanh(x @ w + bias)
    return ops.mean(ops.square(hidden - target)), hidden


NETWORK = (vector(5, 3), vector(3, 4), vector(4), vector(5, 4))


def test_outputs_are_those_of_the_forward_graph_then_gradients_in_the_order_asked():
    graph = build(network, *NETWORK)
    backward = build_backward_graph(graph, 0, [2, 0])
    assert backward.output_names == ("output0", "output1", "grad.x2", "grad.x0")
    assert [v.shape for v in backward.outputs] == [(), (5, 4), (4,), (5, 3)]
    check_gradients(graph, [2, 0, 1, 3])


def test_inputs_are_named_too_and_parameters_are_the_default():
    graph = build(network, NETWORK[0], (NETWORK[1], Role.PARAMETER), NETWORK[2], NETWORK[3])
    by_default, by_name = (
        build_backward_graph(graph),
        build_backward_graph(graph, "output0", ["x1"]),
    )
    assert print_graph(by_default) == print_graph(by_name)


def test_several_uses_are_summed():
    check_gradients(build(lambda x: ops.sum(x * x * ops.sin(x) + x), vector(4)), [0])


def test_a_disconnected_input_gets_zeros_of_its_type():
    graph = build(lambda x, y: ops.sum(x), vector(3), vector(2, 2))
    backward = build_backward_graph(graph, 0, [1, 0])
    results = interpret(backward, arrays_for(graph))
    assert_same([np.zeros((2, 2)), np.ones(3)], results[1:], exact=True)


def test_zeros_of_a_symbolic_input():
    graph = build(lambda x, y: ops.sum(y), tensor("batch", 2), tensor(2))
    results = interpret(build_backward_graph(graph, 0, [0]), arrays_for(graph, batch=4))
    assert results[1].shape == (4, 2) and not results[1].any()


def test_second_order_by_applying_it_again():
    graph = build(lambda x: ops.sum(ops.exp(x) * ops.sin(x)), vector(4))
    first = build_backward_graph(graph, 0, [0])
    scalar = build(
        lambda x: ops.sum(grad(lambda v: ops.sum(ops.exp(v) * ops.sin(v)))(x) * 1.5), vector(4)
    )
    (x,) = arrays = arrays_for(graph)
    slope = np.exp(x) * (np.sin(x) + np.cos(x))
    np.testing.assert_allclose(interpret(first, arrays)[1], slope)
    second = interpret(build_backward_graph(scalar, 0, [0]), arrays)[1]
    np.testing.assert_allclose(second, 1.5 * 2 * np.exp(x) * np.cos(x))


def test_a_backward_graph_can_be_differentiated_again():
    """The output `grad` of a backward graph is a function like any other."""
    graph = build(lambda x: ops.reshape(x * x * x, ()), vector(1))
    first = build_backward_graph(graph, 0, [0])
    second = build_backward_graph(first, "grad.x0", [0])
    third = build_backward_graph(second, "grad.grad.x0", [0])
    results = interpret(third, [np.array([2.0])])
    assert [float(r.reshape(())) for r in results] == [8.0, 12.0, 12.0, 6.0]


def test_gradients_through_scan_and_cond():
    def function(x, start):
        def step(carry, row):
            grown = ops.cond(
                ops.less(ops.sum(carry), 4.0), lambda: carry * 1.25 + row, lambda: ops.sin(carry)
            )
            return grown, ops.sum(grown * row)

        last, ys = ops.scan(step, start, x)
        return ops.sum(last) + ops.sum(ys * ys)

    check_gradients(build(function, vector(5, 3), vector(3)), [0, 1])


def test_gradients_survive_the_passes():
    def function(x, w, gamma, beta):
        hidden = ops.layer_norm(ops.gelu(x @ w), gamma, beta)
        return ops.mean(ops.softmax_cross_entropy(hidden, ops.argmax(x @ w, axis=1)))

    graph = build(function, vector(5, 3), vector(3, 4), vector(4), vector(4))
    backward = build_backward_graph(graph, 0, [0, 1, 2, 3])
    arrays = arrays_for(graph)
    assert_same(interpret(backward, arrays), run_compiled(compiled(backward), arrays))


def test_state_updates_of_the_forward_graph_stay():
    from frame.ir.builder import GraphBuilder

    with GraphBuilder("g") as builder:
        x = builder.input(vector(3), name="x")
        seen = builder.input(vector(3), Role.BUFFER, "seen")
        builder.output(ops.sum(x * seen))
        builder.update(seen, seen + x)
    graph = builder.finish()
    backward = build_backward_graph(graph, 0, ["x"])
    assert [u.input_index for u in backward.updates] == [1]
    one, two = np.ones(3), np.full(3, 2.0)
    assert_same([np.array(6.0), two, np.full(3, 3.0)], interpret(backward, [one, two]))


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 1), (0,)])
def test_a_loss_of_several_elements_is_refused_with_its_shape(shape):
    graph = build(lambda x: x * 2.0, vector(*shape))
    text = ", ".join(map(str, shape))
    with pytest.raises(InvalidArgumentError, match=f"one element.*{text}.*frame.ops.sum"):
        build_backward_graph(graph, 0, [0])


def test_a_loss_of_one_element_needs_no_rank_0():
    check_gradients(build(lambda x: ops.reshape(ops.sum(x * x), (1, 1)), vector(3)), [0])


def test_a_loss_must_be_a_float():
    graph = build(lambda x: ops.sum(ops.cast(x, int64)), vector(3))
    with pytest.raises(InvalidArgumentError, match="must be a float, received int64"):
        build_backward_graph(graph, 0, [0])


def test_wrong_names_and_positions():
    graph = build(network, *NETWORK)
    with pytest.raises(NotFoundError, match="no output 2; it has 2: output0, output1"):
        build_backward_graph(graph, 2, [0])
    with pytest.raises(NotFoundError, match="no input 'weight'; it has 4: x0, x1, x2, x3"):
        build_backward_graph(graph, 0, ["weight"])
    with pytest.raises(InvalidArgumentError, match="each input of wrt once, received 'x1' twice"):
        build_backward_graph(graph, 0, [1, "x1"])


def test_an_integer_input_has_no_gradient():
    graph = build(lambda x, i: ops.sum(ops.gather(x, i)), vector(3), tensor(2, dtype=int64))
    with pytest.raises(InvalidArgumentError, match="float"):
        build_backward_graph(graph, 0, [1])


def test_while_has_no_gradient_and_says_why():
    def function(x):
        return ops.while_loop(lambda v: ops.less(v, 8.0), lambda v: v * 2.0, x)

    graph = build(function, vector())
    with pytest.raises(UnimplementedError, match="scan") as caught:
        build_backward_graph(graph, 0, [0])
    assert [node.op for node in caught.value.nodes] == ["while"]


# --- functions of values --------------------------------------------------------------------------


def test_value_and_grad_of_nested_arguments():
    def function(parameters, x):
        return ops.sum((x @ parameters["w"] + parameters["layers"][0]) * 0.5)

    def traced(x, w, bias):
        value, found = value_and_grad(function)({"w": w, "layers": [bias]}, x)
        return value, found["w"], found["layers"][0]

    graph = build(traced, vector(4, 3), vector(3, 2), vector(2))
    x, w, bias = arrays = arrays_for(graph)
    expected = [
        np.sum((x @ w + bias) * 0.5),
        np.broadcast_to(0.5 * x.sum(0)[:, None], (3, 2)),
        np.full(2, 2.0),
    ]
    assert_same(expected, interpret(graph, arrays))


def test_several_argnums_and_extra_results():
    def traced(x, y):
        (value, extra), (dx, dy) = value_and_grad(
            lambda a, b: (ops.sum(a * a * b), a + b), argnums=(0, 1), has_aux=True
        )(x, y)
        only, more = grad(lambda a: (ops.sum(a), a * 3.0), has_aux=True)(x)
        return value, extra, dx, dy, only, more

    graph = build(traced, vector(3), vector(3))
    x, y = arrays = arrays_for(graph)
    expected = [np.sum(x * x * y), x + y, 2 * x * y, x * x, np.ones(3), 3 * x]
    assert_same(expected, interpret(graph, arrays))


def test_what_a_function_reads_from_around_it_is_constant():
    graph = build(lambda x: grad(lambda v: ops.sum(v * x))(x), vector(3))
    (x,) = arrays = arrays_for(graph)
    assert_same([x], interpret(graph, arrays), exact=True)


def test_grad_of_grad():
    def cube(v):
        return ops.sum(v * v * v)

    graph = build(lambda x: grad(lambda v: ops.sum(grad(cube)(v)))(x), vector(3))
    (x,) = arrays = arrays_for(graph)
    assert_same([6 * x], interpret(graph, arrays))


def test_grad_inside_a_scan():
    """A descent of three steps, the gradient taken inside of the body."""

    def function(x):
        def step(v, _):
            return v - 0.1 * grad(lambda u: ops.sum(u * u))(v), None

        return ops.scan(step, x, None, length=3)[0]

    graph = build(function, vector(2))
    (x,) = arrays = arrays_for(graph)
    assert_same([x * 0.8**3], interpret(graph, arrays))


def test_stop_gradient():
    graph = build(lambda x: ops.sum(stop_gradient(x * x) * x), vector(3))
    (x,) = arrays = arrays_for(graph)
    assert_same([x * x], interpret(build_backward_graph(graph, 0, [0]), arrays)[1:])


def test_grad_refuses_what_it_can_not_differentiate():
    with pytest.raises(InvalidArgumentError, match="float values only; argument 0 holds int64"):
        build(lambda x: grad(ops.sum)(x), tensor(3, dtype=int64))
    with pytest.raises(InvalidArgumentError, match="must return a value, received None"):
        build(lambda x: grad(lambda v: None)(x), vector(3))
    with pytest.raises(InvalidArgumentError, match="received the shape"):
        build(lambda x: grad(lambda v: v)(x), vector(3))
    with pytest.raises(InvalidArgumentError, match="argument 2, the function got 1"):
        build(lambda x: grad(ops.sum, argnums=2)(x), vector(3))
    with pytest.raises(InvalidArgumentError, match=r"must return \(loss, extra\)"):
        build(lambda x: grad(ops.sum, has_aux=True)(x), vector(3))


# --- custom_vjp -----------------------------------------------------------------------------------

# A straight-through estimator: round forward, the identity backward.
straight_through = custom_vjp(lambda x: (ops.round(x), None), lambda residuals, g: g)

log1p_exp = custom_vjp(lambda x: (ops.log(1.0 + ops.exp(x)), x), lambda x, g: (g * ops.sigmoid(x),))


def test_custom_vjp_brings_its_own_gradient():
    graph = build(lambda x: ops.sum(straight_through(x * 3.0) * x), vector(4))
    backward = build_backward_graph(graph, 0, [0])
    (x,) = arrays = arrays_for(graph)
    assert_same([np.round(3 * x) + 3 * x], interpret(backward, arrays)[1:])
    assert_same(interpret(backward, arrays), run_compiled(compiled(backward), arrays))


def test_custom_vjp_differentiates_residuals_to_second_order():
    def slope(x):
        return ops.sum(grad(lambda v: ops.sum(log1p_exp(v)))(x))

    graph = build(slope, vector(4))
    (x,) = arrays = arrays_for(graph)
    s = 1 / (1 + np.exp(-x))
    found = interpret(build_backward_graph(graph, 0, [0]), arrays)
    assert_same([np.sum(s), s * (1 - s)], found)


def test_custom_vjp_of_nested_arguments_and_integers():
    def forward(pair, scale, index):
        a, b = pair
        assert scale == 2.0, "a number stays one"
        picked = ops.gather(a, index)
        return (picked * b * scale, index + 1), (b, index, a)

    def backward(residuals, cotangents):
        b, index, a = residuals
        g, of_index = cotangents
        assert of_index is None
        spread = ops.scatter_add(g * b * 2.0, index, axis=0, shape=a.shape)
        return (spread, g * ops.gather(a, index) * 2.0), None, None

    function = custom_vjp(forward, backward)

    def traced(a, b, index):
        y, _ = function((a, b), 2.0, index)
        return ops.sum(y)

    graph = build(traced, vector(5), vector(3), tensor(3, dtype=int64))
    a, b, index = arrays = arrays_for(graph)
    found = interpret(build_backward_graph(graph, 0, [0, 1]), arrays)
    expected = np.zeros(5)
    np.add.at(expected, index, b * 2.0)
    assert_same([expected, a[index] * 2.0], found[1:], exact=False)


def test_custom_vjp_prints_and_parses():
    graph = build(lambda x: ops.sum(log1p_exp(x)), vector(4))
    assert "custom_vjp_call" in {node.op for node in graph.nodes}
    text = print_graph(graph)
    again = parse_graph(text, constant_pool(graph))
    assert print_graph(again) == text
    arrays = arrays_for(graph)
    for one in (graph, again):
        found = interpret(build_backward_graph(one, 0, [0]), arrays)[1]
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-arrays[0])))


def test_custom_vjp_refuses_wrong_functions():
    def call(forward, backward=lambda r, g: g):
        return build(lambda x: custom_vjp(forward, backward)(x), vector(3))

    with pytest.raises(InvalidArgumentError, match=r"must return \(result, residuals\)"):
        call(lambda x: x)
    with pytest.raises(InvalidArgumentError, match="one gradient for each of the 1 arguments"):
        call(lambda x: (x, None), lambda r, g: (g, g))
    with pytest.raises(InvalidArgumentError, match="must be nested as the argument"):
        call(lambda x: (x, None), lambda r, g: ((g, g, g),))
    with pytest.raises(InvalidArgumentError, match="outputs of the backward body"):
        call(lambda x: (x, None), lambda r, g: ops.sum(g))


def test_custom_vjp_refuses_what_would_lose_a_gradient():
    with pytest.raises(InvalidArgumentError, match="forward function.*pass it as an argument"):
        build(lambda x: custom_vjp(lambda v: (v * x, None), lambda r, g: g)(x * 2.0), vector(3))
    with pytest.raises(InvalidArgumentError, match="backward function.*among the residuals"):
        build(lambda x: custom_vjp(lambda v: (v, None), lambda r, g: g * x)(x * 2.0), vector(3))
