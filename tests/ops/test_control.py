from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role
from frame.ops.interpreter import interpret
from frame.ops.registry import create_node
from tests.ops.checking import (
    check_gradient,
    check_second_order,
    gradients,
    run,
    trace,
    value_of,
)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


STATE, XS, WEIGHT, SHIFT = random(2, 3), random(4, 2, 3, seed=1), random(3, 3, seed=2), random(3)


def step(carry, x, weight, shift):
    following = ops.tanh(carry @ weight + x * shift)
    return following, following * carry


def scanned(state, xs, weight, shift, reverse=False):
    final, ys = ops.scan(lambda c, x: step(c, x, weight, shift), state, xs, reverse=reverse)
    return final, ys


def unrolled(state, xs, weight, shift, reverse=False):
    ys = [None] * 4
    for i in reversed(range(4)) if reverse else range(4):
        state, ys[i] = step(state, xs[i], weight, shift)
    return state, ops.stack(ys, axis=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_equals_the_unrolled_loop_to_second_order(reverse):
    arrays = (STATE, XS, WEIGHT, SHIFT)

    def loop(*v):
        return scanned(*v, reverse=reverse)

    def straight(*v):
        return unrolled(*v, reverse=reverse)

    def twice(function):
        return gradients(lambda *v: [ops.square(g) for g in gradients(function)(*v)])

    for one, other in ((loop, straight), (gradients(loop), gradients(straight))):
        for a, b in zip(run(one, *arrays), run(other, *arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
    for a, b in zip(run(twice(loop), *arrays), run(twice(straight), *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_scan_gradients_are_scans():
    graph = trace(gradients(scanned), STATE, XS, WEIGHT, SHIFT)
    scans = [node for node in graph.nodes if node.op == "scan"]
    assert [s.attributes["reverse"] for s in scans] == [False, False, True]
    forward, rerun, _ = scans
    assert forward.operands == rerun.operands
    # The rerun returns what the scan returns, then its residuals.
    own = [r.type for r in forward.results]
    assert [r.type for r in rerun.results][: len(own)] == own


def test_values_that_depend_on_captures_alone_are_not_stacked():
    """The doubled weight is computed once, outside of the backward scan, not kept per step."""

    def function(state, xs, weight):
        def body(c, x):
            return ops.tanh(c @ (weight * 2.0) + x), None

        return ops.scan(body, state, xs)[0]

    graph = trace(gradients(function), STATE, XS, WEIGHT)
    rerun = [node for node in graph.nodes if node.op == "scan"][1]
    stacked = [r.shape for r in rerun.results[1:]]
    assert stacked and (4, 3, 3) not in stacked
    check_gradient(function, STATE, XS, WEIGHT)


def test_only_wanted_gradients_are_built():
    graph = trace(gradients(scanned, 3), STATE, XS, WEIGHT, SHIFT)
    backward = [node for node in graph.nodes if node.op == "scan"][-1]
    # d state and the sum of d shift; neither d xs nor d weight.
    assert [r.shape for r in backward.results] == [(2, 3), (3,)]


def test_a_zero_length_scan_returns_init_and_passes_its_cotangent():
    xs = np.zeros((0, 2, 3))
    final, ys = run(scanned, STATE, xs, WEIGHT, SHIFT)
    np.testing.assert_array_equal(final, STATE)
    assert ys.shape == (0, 2, 3)
    d_state, d_xs, d_weight, d_shift = run(gradients(scanned), STATE, xs, WEIGHT, SHIFT)
    np.testing.assert_array_equal(d_state, np.ones((2, 3)))
    assert d_xs.shape == (0, 2, 3) and not d_weight.any() and not d_shift.any()


def test_a_symbolic_length_runs_at_any_length():
    length = Dim.symbol("steps")
    with GraphBuilder() as builder:
        operands = [value_of(shape, "float64") for shape in ((2, 3), (length, 2, 3), (3, 3), (3,))]
        for value in (*scanned(*operands), *gradients(scanned)(*operands)):
            builder.output(value)
    graph = builder.finish()
    assert graph.outputs[1].shape == (length, 2, 3)
    for steps in (0, 1, 4):
        arrays = (STATE, XS[:steps], WEIGHT, SHIFT)
        found = interpret(graph, arrays)
        expected = [*run(scanned, *arrays), *run(gradients(scanned), *arrays)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_carries_may_be_nested_and_integers_get_no_gradient():
    def function(x):
        def body(carry, v):
            count, (total, largest) = carry
            total = total + v * ops.cast(count, v.dtype)
            return (count + 1, (total, ops.maximum(largest, v))), (count, [v * v])

        start = (ops.constant(1), (ops.zeros_like(x[0]), x[0]))
        (count, (total, largest)), (counts, [squares]) = ops.scan(body, start, x)
        return count, total, largest, counts, squares

    x = random(5, 2)
    count, total, largest, counts, squares = run(function, x)
    assert int(count) == 6 and counts.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(total, (x * np.arange(1, 6)[:, None]).sum(0))
    np.testing.assert_array_equal(largest, x.max(0))
    np.testing.assert_array_equal(squares, x**2)
    check_gradient(function, x)


def test_no_carry_is_a_map_and_no_xs_a_loop():
    x = random(3, 2)
    (mapped,) = run(lambda x: ops.scan(lambda c, v: (None, ops.sin(v)), None, x)[1], x)
    np.testing.assert_allclose(mapped, np.sin(x))
    (power,) = run(lambda x: ops.scan(lambda c, _: (c * x, None), x, length=3)[0], x)
    np.testing.assert_allclose(power, x**4, rtol=1e-14)


def test_a_python_number_starts_and_steps_a_carry():
    (y,) = run(lambda x: ops.scan(lambda c, v: (1.5, c + v), 0.0, x)[1], np.zeros(3, np.float32))
    assert y.tolist() == [0.0, 1.5, 1.5]


def test_nested_scans_differentiate_to_second_order():
    def function(x, k):
        def outer(total, row):
            inner, _ = ops.scan(lambda c, v: (ops.sin(c * k) + v * total, None), total, row)
            return inner, inner * k

        return ops.scan(outer, ops.sum(x) * 0.1, x)

    x, k = random(2, 3), np.asarray(0.7)
    check_gradient(function, x, k)
    check_second_order(function, x, k)


def test_a_scan_in_a_branch_and_a_branch_in_a_scan():
    def function(flag, x, k):
        def looped():
            return ops.scan(lambda c, v: (c * k + v, None), k, x)[0]

        first = ops.cond(flag, looped, lambda: k * k)

        def body(c, v):
            return ops.cond(ops.greater(v, 0.0), lambda: ops.sin(c) * v, lambda: c * k), None

        return first + ops.scan(body, k, x)[0]

    for flag in (True, False):
        check_gradient(function, np.array(flag), random(4), np.asarray(0.6))
        check_second_order(function, np.array(flag), random(4), np.asarray(0.6))


def test_captures_of_captures():
    """An inner body reads a value of the outermost graph: each body between captures it once."""

    def function(x, k):
        twice = k * 2.0

        def outer(c, row):
            return ops.scan(lambda d, v: (d * twice + v * k, None), c, row)[0] + twice, None

        return ops.scan(outer, k, x)[0]

    graph = trace(function, random(2, 3), np.asarray(0.5))
    (node,) = [n for n in graph.nodes if n.op == "scan"]
    captured = [e for e in node.attributes["body"].inputs if e.role is Role.CAPTURE]
    assert len(captured) == 2
    check_gradient(function, random(2, 3), np.asarray(0.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.scan(lambda c, v: (c, None), x, length=None), "needs `length`"),
        (lambda x: ops.scan(lambda c, v: c, x, length=2), "must return the pair"),
        (lambda x: ops.scan(lambda c, v: (ops.cast(c, "float16"), None), x, length=2), "carries"),
        (lambda x: ops.scan(lambda c, v: (ops.sum(c), None), x, length=2), "carries that the body"),
        (lambda x: ops.scan(lambda c, v: ((c, c), None), x, length=2), "as many carries"),
        (lambda x: ops.scan(lambda c, v: (c, None), x, x, length=7), "over 7 elements"),
        (lambda x: ops.scan(lambda c, v: (c, None), x, (x, x[:2])), "leading axis of xs 1"),
        (lambda x: ops.scan(lambda c, v: (c, None), x, ops.sum(x)), "xs 0 is a scalar"),
        (lambda x: ops.scan(lambda c, v: (c, None), x, length=-1), "'length'"),
        (lambda x: ops.cond(x, lambda: x, lambda: x), "of kind bool"),
        (lambda x: ops.cond(x > 0.0, lambda: x, lambda: x), "bool scalar"),
        (lambda x: ops.cond(TRUE(), lambda: x, lambda: ops.sum(x)), "results of the branches"),
        (lambda x: ops.cond(TRUE(), lambda: x, lambda: (x, x)), "results of the branches"),
        (lambda x: ops.while_loop(lambda c: c, lambda c: c, x), "bool scalar"),
        (lambda x: ops.while_loop(lambda c: TRUE(), lambda c: ops.sum(c), x), "carries"),
        (lambda x: ops.while_loop(lambda c: TRUE(), lambda c: (c, c), x), "as many carries"),
    ],
)
def test_bad_calls(call, message):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match=message):
        call(value_of((3, 3)))


def TRUE():
    return ops.constant(np.array(True))


def test_bodies_that_do_not_fit_are_rejected():
    with GraphBuilder("body") as body:
        body.output(body.input(value_type(3), Role.CARRY))
    with GraphBuilder():
        x = value_of((4,))
        attributes = {"body": body.finish(), "carries": 1, "elements": 0, "length": 2}
        with pytest.raises(InvalidArgumentError, match="inputs of the body of scan"):
            create_node("scan", (x,), attributes)
        with pytest.raises(InvalidArgumentError, match="expected 2 values"):
            create_node("scan", (x, x), attributes)
        with pytest.raises(InvalidArgumentError, match="'carries' of scan"):
            create_node("scan", (x,), {**attributes, "carries": 5})


def value_type(size):
    with GraphBuilder():
        return value_of((size,)).type


# --- cond -----------------------------------------------------------------------------------------


def branches(flag, x, k):
    return ops.cond(flag, lambda: (ops.sin(x) * k, x), lambda: (x * x, k * 3.0))


@pytest.mark.parametrize("flag", [True, False])
def test_both_branches_and_their_gradients(flag):
    x, k = random(3), random(3, seed=1)
    first, second = run(branches, np.array(flag), x, k)
    np.testing.assert_allclose(first, np.sin(x) * k if flag else x * x)
    np.testing.assert_allclose(second, x if flag else k * 3.0)
    check_gradient(branches, np.array(flag), x, k)
    check_second_order(branches, np.array(flag), x, k)


def test_the_gradient_of_cond_is_a_cond():
    graph = trace(gradients(branches, 1, 2), np.array(True), random(3), random(3))
    assert [node.op for node in graph.nodes].count("cond") == 2


def test_branches_share_one_list_of_captures():
    graph = trace(branches, np.array(True), random(3), random(3))
    (node,) = [n for n in graph.nodes if n.op == "cond"]
    assert len(node.operands) == 3
    lists = [[e.value.type for e in body.inputs] for _, body in node.bodies]
    assert lists[0] == lists[1]


def test_a_branch_may_hold_constants_and_numbers_alone():
    (y,) = run(lambda f: ops.cond(f, lambda: 1.0, lambda: ops.constant(2.0)), np.array(False))
    assert float(y) == 2.0


def test_only_the_chosen_branch_runs():
    def function(flag, i):
        table = ops.constant(np.arange(3.0))
        return ops.cond(flag, lambda: ops.gather(table, i, 0), lambda: ops.constant(np.array(-1.0)))

    assert float(run(function, np.array(False), np.array(99))[0]) == -1.0
    with pytest.raises(InvalidArgumentError, match="99"):
        run(function, np.array(True), np.array(99))


# --- while ----------------------------------------------------------------------------------------


def collatz(n):
    def body(carry):
        value, count = carry
        even = ops.equal(value % 2, 0)
        return ops.where(even, value // 2, value * 3 + 1), count + 1

    return ops.while_loop(lambda c: c[0] > 1, body, (n, ops.constant(0)))[1]


def test_while_runs_until_its_condition_fails():
    for start, steps in ((1, 0), (6, 8), (27, 111)):
        assert int(run(collatz, np.array(start))[0]) == steps


def test_while_reads_captures():
    def function(x, limit):
        return ops.while_loop(lambda c: ops.sum(c) < limit, lambda c: c + x, ops.zeros_like(x))

    (y,) = run(function, np.array([1.0, 2.0]), np.asarray(10.0))
    assert y.tolist() == [4.0, 8.0]


def test_while_has_no_gradient_and_names_scan():
    def function(x):
        return ops.while_loop(lambda c: ops.sum(c) < 9.0, lambda c: c * 2.0, x)

    with pytest.raises(
        UnimplementedError, match=r"while has no gradient.*frame\.ops\.scan"
    ) as error:
        trace(gradients(function), np.ones(2))
    assert error.value.nodes[0].op == "while"
    (zero,) = run(gradients(lambda x: function(ops.stop_gradient(x)) + x * 0.0), np.ones(2))
    assert zero.tolist() == [0.0, 0.0]


def test_a_while_that_carries_integers_alone_stops_no_gradient():
    def function(x):
        count = ops.while_loop(lambda i: i < 3, lambda i: i + 1, ops.constant(0))
        return x * ops.cast(count, x.dtype)

    assert run(gradients(function), np.ones(2))[0].tolist() == [3.0, 3.0]
