import math

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.registry import lookup
from tests.ops.checking import check_gradient, check_sample, gradients, run, sample_id, samples_of

ACTIVATIONS = ("gelu", "silu", "softplus", "leaky_relu", "elu", "relu6", "hardswish")


@pytest.mark.parametrize(
    ("name", "sample"), samples_of(*ACTIVATIONS, "softmax", "log_softmax"), ids=sample_id
)
def test_sample(name, sample):
    check_sample(lookup(name), sample)


X = np.array([-2.5, -0.7, 0.3, 1.9, 4.0])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_order(name):
    function = getattr(ops, name)
    check_gradient(gradients(function, [X], [0]), [X], [0])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_second_order_of_softmax(name):
    x = np.array([[0.3, -1.0, 0.8], [2.0, 0.1, -0.4]])
    check_gradient(gradients(getattr(ops, name), [x], [0]), [x], [0])


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


def test_derivatives_at_kinks():
    cases = {
        "relu6": ([0.0, 6.0], [0.0, 0.0]),
        "hardswish": ([-3.0, 3.0], [0.0, 1.0]),
        "leaky_relu": ([0.0], [0.01]),
        "elu": ([0.0], [1.0]),
    }
    for name, (points, slopes) in cases.items():
        x = np.array(points)
        (g,) = run(gradients(lambda v, f=getattr(ops, name): ops.sum(f(v)), [x], [0]), x)
        np.testing.assert_allclose(g / (1 + 0.5 * math.sin(1)), slopes, err_msg=name)


def test_softmax_normalises_its_axis_and_rejects_others():
    with GraphBuilder() as builder:
        x = builder.input(TensorType(float32, (2, 3)))
        assert ops.softmax(x).node.attributes["axis"] == 1
        with pytest.raises(InvalidArgumentError, match="axis"):
            ops.softmax(x, axis=2)
        with pytest.raises(InvalidArgumentError, match="must be of kind float"):
            ops.softmax(builder.input(TensorType(int64, (3,))))


def test_attributes_must_be_finite():
    with GraphBuilder() as builder:
        x = builder.input(TensorType(float32, (2,)))
        with pytest.raises(InvalidArgumentError, match="finite"):
            ops.leaky_relu(x, slope=float("nan"))
        with pytest.raises(InvalidArgumentError, match="finite"):
            ops.elu(x, alpha=float("inf"))
        with pytest.raises(InvalidArgumentError, match="none, tanh"):
            ops.gelu(x, approximate="erf")
