from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ops.binding import check_binding
from frame.ops.interpreter import interpret
from tests.ops.checking import check_gradient, gradients, run, value_of

BATCH = Dim.symbol("batch")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_layer_norm_normalises_rows():
    x = random(4, 7) * 3 + 5
    (y,) = run(lambda x, g, b: ops.layer_norm(x, g, b, eps=0.0), x, np.ones(7), np.zeros(7))
    np.testing.assert_allclose(y.mean(-1), np.zeros(4), atol=1e-14)
    np.testing.assert_allclose(y.std(-1), np.ones(4), rtol=1e-14)


def test_large_means_do_not_cancel():
    """The two-pass variance keeps what a one-pass E[x**2] - E[x]**2 would lose."""
    x = 1e8 + np.array([[-1.0, 0.0, 1.0]])
    (y,) = run(lambda x, g, b: ops.layer_norm(x, g, b, eps=0.0), x, np.ones(3), np.zeros(3))
    np.testing.assert_allclose(y[0], np.sqrt(1.5) * np.array([-1, 0, 1]), rtol=1e-14)


def test_a_constant_row_gives_beta():
    beta = random(5)
    (y,) = run(ops.layer_norm, np.full((2, 5), 3.0), np.ones(5), beta)
    np.testing.assert_array_equal(y, np.stack([beta, beta]))


def test_batch_norm_train_returns_its_statistics():
    x = random(6, 3, 4, 2)
    y, mean, variance = run(ops.batch_norm_train, x, np.ones(3), np.zeros(3))
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(variance, x.var((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(y.mean((0, 2, 3)), np.zeros(3), atol=1e-14)
    (again,) = run(ops.batch_norm_infer, x, np.ones(3), np.zeros(3), mean, variance)
    np.testing.assert_allclose(again, y, rtol=1e-12, atol=1e-13)


def test_gradients_flow_through_the_statistics():
    """A loss may read batch_mean and batch_variance, alone or together with y."""

    def statistics(x, gamma, beta):
        _, mean, variance = ops.batch_norm_train(x, gamma, beta)
        return ops.sin(mean) * ops.sqrt(variance)

    def everything(x, gamma, beta):
        y, mean, variance = ops.batch_norm_train(x, gamma, beta)
        return ops.square(y), mean * 2.0, variance

    arrays = (random(3, 2, 2), random(2, seed=1), random(2, seed=2))
    check_gradient(statistics, *arrays)
    check_gradient(everything, *arrays)


def test_an_unused_statistic_costs_nothing():
    with GraphBuilder() as builder:
        operands = value_of((4, 2)), value_of((2,)), value_of((2,))
        gradients(lambda *o: ops.batch_norm_train(*o)[0], 0)(*operands)
    unused = [n for n in builder.nodes if n.op == "expand" and n.results[0].shape == (2,)]
    users = [n for n in builder.nodes if any(o.node in unused for o in n.operands)]
    assert unused and users == []


def test_symbolic_batches_count_at_run_time():
    def function(x, gamma, beta):
        return gradients(lambda *o: [r * r for r in ops.batch_norm_train(*o)], 0)(x, gamma, beta)

    gamma, beta = random(3, seed=1), random(3, seed=2)
    with GraphBuilder() as builder:
        symbolic = (
            value_of((BATCH, 3), "float64"),
            value_of((3,), "float64"),
            value_of((3,), "float64"),
        )
        builder.output(function(*symbolic)[0])
    graph = builder.finish()
    for batch in (2, 5):
        x = random(batch, 3)
        (expected,) = run(function, x, gamma, beta)
        np.testing.assert_allclose(interpret(graph, [x, gamma, beta])[0], expected, rtol=1e-13)


def test_an_empty_batch_has_no_statistics():
    with GraphBuilder() as builder:
        with pytest.raises(InvalidArgumentError, match="at least one element"):
            ops.batch_norm_train(value_of((0, 3)), value_of((3,)), value_of((3,)))
        for value in ops.batch_norm_train(value_of((BATCH, 3)), value_of((3,)), value_of((3,))):
            builder.output(value)
    graph = builder.finish()
    check_binding(graph, {"batch": 1})
    with pytest.raises(InvalidArgumentError, match="batch=0"):
        check_binding(graph, {"batch": 0})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: ops.layer_norm(v(3, 4), v(3), v(4)), r"'gamma' of layer_norm.*\(4,\)"),
        (lambda v: ops.layer_norm(v(3, 4), v(4), v(1)), "'beta' of layer_norm"),
        (lambda v: ops.layer_norm(v(), v(), v()), "at least one axis"),
        (lambda v: ops.layer_norm(v(3), v(3), v(3), eps=-1.0), "'eps' of layer_norm"),
        (lambda v: ops.batch_norm_train(v(4), v(4), v(4)), "a channel axis"),
        (lambda v: ops.batch_norm_infer(v(2, 3), v(3), v(3), v(2), v(3)), "'mean' of batch_norm"),
        (lambda v: ops.batch_norm_train(v(2, 3), v(3), v(3), eps=np.nan), "'eps' of batch_norm"),
    ],
)
def test_bad_operands(call, message):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match=message):
        call(lambda *shape: value_of(shape))
