import math

import numpy as np
import pytest

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from tests.ops.checking import gradients, run, value_of

X = np.array([-2.5, -0.7, 0.3, 1.9, 4.0])


def test_known_values():
    (gelu,) = run(ops.gelu, X)
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X]
    np.testing.assert_allclose(gelu, expected, rtol=1e-14)
    (tanh,) = run(lambda x: ops.gelu(x, approximate="tanh"), X)
    inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)
    np.testing.assert_allclose(tanh, 0.5 * X * (1 + np.tanh(inner)), rtol=1e-12)
    (silu,) = run(ops.silu, X)
    np.testing.assert_allclose(silu, X / (1 + np.exp(-X)), rtol=1e-14)
    (hard,) = run(ops.hardswish, np.array([-4.0, -3.0, 0.0, 3.0, 5.0, 1.0]))
    np.testing.assert_allclose(hard, [0, 0, 0, 3, 5, 4 / 6], rtol=1e-15)
    (elu,) = run(lambda x: ops.elu(x, alpha=2.0), np.array([-1.0, 3.0]))
    np.testing.assert_allclose(elu, [2 * math.expm1(-1), 3.0], rtol=1e-15)


def test_gelu_of_large_negative_numbers_keeps_its_relative_precision_in_the_reference():
    (y,) = run(ops.gelu, np.array([-10.0]))
    np.testing.assert_allclose(y, [-10 * 0.5 * math.erfc(10 / math.sqrt(2))], rtol=1e-13)


def test_softplus_and_softmax_do_not_overflow():
    (y,) = run(ops.softplus, np.array([-1e4, 1e4]))
    assert y.tolist() == [0.0, 1e4]
    (p,) = run(ops.softmax, np.array([1e4, 0.0, -1e4]))
    assert p.tolist() == [1.0, 0.0, 0.0]
    (lp,) = run(ops.log_softmax, np.array([1e4, 0.0]))
    assert lp.tolist() == [0.0, -1e4]


@pytest.mark.parametrize(
    ("name", "points", "slopes"),
    [
        ("relu6", [0.0, 6.0], [0.0, 0.0]),
        ("hardswish", [-3.0, 3.0], [0.0, 1.0]),
        ("leaky_relu", [0.0], [0.01]),
        ("elu", [0.0], [1.0]),
    ],
)
def test_derivatives_at_kinks(name, points, slopes):
    (g,) = run(gradients(getattr(ops, name)), np.array(points))
    np.testing.assert_allclose(g, slopes)


@pytest.mark.parametrize("name", ["elu", "softplus", "silu", "relu6", "hardswish", "leaky_relu"])
def test_gradients_of_large_numbers_are_finite(name):
    (g,) = run(gradients(getattr(ops, name)), np.array([-1e3, 1e3]))
    assert np.isfinite(g).all()


def test_the_softmax_gradient_sums_to_zero_along_the_axis():
    x = np.arange(12.0).reshape(3, 4) / 5
    weighted = gradients(lambda v: ops.softmax(v, axis=0) * np.arange(12.0).reshape(3, 4))
    (g,) = run(weighted, x)
    # The terms of the sum are below 11, each rounded to 2**-53 of that.
    np.testing.assert_allclose(g.sum(0), np.zeros(4), atol=11 * 2**-51)
    assert abs(g).max() > 0.1


def test_softmax_normalises_its_axis_and_rejects_others():
    with GraphBuilder():
        x = value_of((2, 3))
        assert ops.softmax(x).node.attributes["axis"] == 1
        with pytest.raises(InvalidArgumentError, match="axis"):
            ops.softmax(x, axis=2)
        with pytest.raises(InvalidArgumentError, match="must be of kind float"):
            ops.softmax(value_of((3,), "int64"))


def test_attributes_must_be_finite():
    with GraphBuilder():
        x = value_of((2,))
        with pytest.raises(InvalidArgumentError, match="finite"):
            ops.leaky_relu(x, slope=float("nan"))
        with pytest.raises(InvalidArgumentError, match="finite"):
            ops.elu(x, alpha=float("inf"))
        with pytest.raises(InvalidArgumentError, match="none, tanh"):
            ops.gelu(x, approximate="erf")


def test_symbolic_sizes_pass_through():
    batch = Dim.symbol("batch")
    with GraphBuilder():
        x = value_of((batch, 3))
        assert ops.softmax(x, axis=0).shape == (batch, 3)
        assert ops.gelu(x).shape == (batch, 3)
