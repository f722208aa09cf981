"""Means over more elements than float16 can count, and their gradients."""

import numpy as np

import frame
from frame import ops
from frame.compiler.autodiff import grad

MANY = (2, 1, 256, 256)  # 131,072 elements; the largest float16 is 65,504


def half(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def summed(x):
    return ops.sum(ops.cast(x, "float32"))


def test_a_mean_of_many_halves():
    mean = frame.jit(ops.mean)
    assert np.asarray(mean(np.ones(MANY, np.float16))) == 1.0


def test_the_gradient_of_a_mean_of_many_halves():
    gradient = frame.jit(lambda x: grad(lambda v: summed(ops.mean(v)))(x))
    got = np.asarray(gradient(half(*MANY)), np.float64)
    assert np.all(got == np.float16(1 / 131072))


def test_the_gradient_of_the_largest_of_many_equal_halves():
    gradient = frame.jit(lambda x: grad(lambda v: summed(ops.max(v) * 1024.0))(x))
    got = np.asarray(gradient(np.zeros(MANY, np.float16)), np.float64)
    assert np.all(got == 1024 / 131072)


def test_the_gradient_of_a_squared_error_of_many_halves():
    gradient = frame.jit(lambda x, y: grad(lambda v: summed(ops.mse_loss(v, y) * 64.0))(x))
    got = np.asarray(gradient(np.full(MANY, 32.0, np.float16), np.zeros(MANY, np.float16)))
    np.testing.assert_allclose(got.astype(np.float64), 64 * 2 * 32 / 131072, rtol=2e-3)


def test_the_gradient_of_batch_norm_over_many_halves():
    def gradients(x, gamma, beta, weight):
        def loss(x, gamma, beta):
            return summed(ops.batch_norm_train(x, gamma, beta)[0] * weight)

        return grad(loss, argnums=(0, 1, 2))(x, gamma, beta)

    # cotangents whose sum is beyond float16
    x, weight = half(*MANY), half(*MANY, seed=1) + np.float16(2.0)
    got = frame.jit(gradients)(x, np.ones(1, np.float16), np.zeros(1, np.float16), weight)
    wide, g = x.astype(np.float64), weight.astype(np.float64)
    deviation = np.sqrt(wide.var() + 1e-5)
    normal = (wide - wide.mean()) / deviation
    expected = (g - g.mean() - normal * (g * normal).mean()) / deviation
    np.testing.assert_allclose(np.asarray(got[0]).astype(np.float64), expected, atol=0.02)
    assert np.isinf(np.asarray(got[2])).all()
