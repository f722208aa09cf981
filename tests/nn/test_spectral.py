"""Spectral convolutions and Fourier operators against numpy.fft in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret
from tests.ops.support import check_gradient


def graph_of(module, *shapes):
    types = [TensorType(float64, shape) for shape in shapes]
    return nn.build_graph(module, types)


def values_of(module, seed=0):
    """Return parameters by name: the declared shapes, numbers of any size and sign."""
    generator = np.random.default_rng(seed)
    return {s.name: generator.standard_normal(s.shape) for s in module.parameters()}


def run(module, x, values):
    (y,) = interpret(graph_of(module, x.shape), [x, *values.values()])
    return y


def signal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def close(received, expected):
    np.testing.assert_allclose(received, expected, rtol=1e-11, atol=1e-12)


def spectral1d(x, w, modes, prefix=""):
    size = x.shape[-1]
    z = np.fft.rfft(x)[..., :modes]
    weight = w[f"{prefix}weight_re"] + 1j * w[f"{prefix}weight_im"]
    y = np.zeros((x.shape[0], weight.shape[2], size // 2 + 1), complex)
    y[..., :modes] = np.einsum("nim,mio->nom", z, weight)
    return np.fft.irfft(y, size)


def spectral2d(x, w, modes, prefix=""):
    rows, columns = modes
    weight = w[f"{prefix}weight_re"] + 1j * w[f"{prefix}weight_im"]
    z = np.fft.rfft2(x)
    y = np.zeros((x.shape[0], weight.shape[3], *z.shape[2:]), complex)
    for place, k in enumerate([*range(rows), *range(-rows, 0)]):
        for m in range(columns):
            y[:, :, k, m] = z[:, :, k, m] @ weight[m, place]
    return np.fft.irfft2(y, x.shape[2:])


@pytest.mark.parametrize(("size", "modes"), [(8, 3), (8, 5), (7, 4), (1, 1), (130, 6)])
def test_spectral_convolution_of_sequences(size, modes):
    module = nn.SpectralConv1d(2, 3, modes, dtype=float64)
    x, w = signal(2, 2, size), values_of(module)
    close(run(module, x, w), spectral1d(x, w, modes))


@pytest.mark.parametrize(
    ("height", "width", "modes"), [(6, 8, (2, 3)), (4, 4, (2, 3)), (7, 5, (3, 3)), (5, 6, (1, 1))]
)
def test_spectral_convolution_of_images(height, width, modes):
    module = nn.SpectralConv2d(2, 3, modes, dtype=float64)
    x, w = signal(2, 2, height, width), values_of(module)
    close(run(module, x, w), spectral2d(x, w, modes))


@pytest.mark.parametrize("size", [8, 7])
def test_fourier_filter_is_a_circular_convolution(size):
    module = nn.FourierFilter1d(2, size, dtype=float64)
    x, kernel = signal(3, 2, size), signal(2, size, seed=2)
    spectrum = np.fft.rfft(kernel)
    y = run(module, x, {"weight_re": spectrum.real, "weight_im": spectrum.imag})
    shifts = np.stack([np.roll(x, shift, -1) for shift in range(size)], -2)
    close(y, np.einsum("ncsl,cs->ncl", shifts, kernel))


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def test_blocks_add_the_bypass_and_activate():
    line, image = nn.Fno1dBlock(2, 3, 3, dtype=float64), nn.Fno2dBlock(2, 3, 2, dtype=float64)
    x, w = signal(2, 2, 8), values_of(line)
    bypass = np.einsum("ncl,oc->nol", x, w["bypass.weight"][..., 0])
    close(
        run(line, x, w),
        gelu(spectral1d(x, w, 3, "spectral.") + bypass + w["bypass.bias"][:, None]),
    )
    x, w = signal(2, 2, 5, 6), values_of(image)
    bypass = np.einsum("nchw,oc->nohw", x, w["bypass.weight"][..., 0, 0])
    expected = spectral2d(x, w, (2, 2), "spectral.") + bypass + w["bypass.bias"][:, None, None]
    close(run(image, x, w), gelu(expected))
    plain = nn.Fno2dBlock(2, 3, 2, activation="none", dtype=float64)
    close(run(plain, x, w), expected)


def test_parameters_do_not_depend_on_the_resolution():
    names = [spec.name for spec in nn.Fno1dBlock(3, 4, 3).parameters()]
    assert names == ["spectral.weight_re", "spectral.weight_im", "bypass.weight", "bypass.bias"]
    module = nn.SpectralConv1d(1, 1, 3, dtype=float64)
    w = values_of(module)
    coarse, fine = (np.cos(2 * np.pi * np.arange(n) / n)[None, None] for n in (8, 16))
    close(run(module, fine, w)[..., ::2], run(module, coarse, w))


def test_initial_weights_are_those_of_the_authors():
    spec = nn.SpectralConv2d(3, 4, (6, 5)).parameters()[0]
    assert spec.shape == (5, 12, 3, 4)
    values = nn.materialize(spec)
    assert 0 <= values.min() and values.max() < 1 / 12 and values.mean() > 1 / 30
    filtered = nn.materialize(nn.FourierFilter1d(64, 64).parameters()[0])
    assert 0.018 < filtered.std() < 0.022


def test_the_batch_may_be_a_symbol():
    batch = Dim.symbol("batch")
    module = nn.Fno2dBlock(2, 3, 2, dtype=float64)
    graph = nn.build_graph(module, [TensorType(float64, (batch, 2, 4, 6))])
    assert graph.outputs[0].shape == (batch, 3, 4, 6)
    x, w = signal(3, 2, 4, 6), values_of(module)
    close(interpret(graph, [x, *w.values()])[0], run(module, x, w))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.SpectralConv1d(1, 2, 3, dtype=float64), (1, 1, 6)),
        (nn.SpectralConv2d(1, 1, (2, 2), dtype=float64), (1, 1, 4, 5)),
        (nn.FourierFilter1d(2, 5, dtype=float64), (1, 2, 5)),
        (nn.Fno1dBlock(1, 1, 2, dtype=float64), (2, 1, 5)),
    ],
    ids=lambda value: value.kind if isinstance(value, nn.Module) else "",
)
def test_gradients(module, shape):
    check_gradient(graph_of(module, shape), [signal(*shape), *values_of(module).values()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SpectralConv1d(2, 2, 0), "modes must be an integer of at least 1, got 0"),
        (lambda: nn.SpectralConv2d(2, 2, (1, 2, 3)), "modes must be a number or"),
        (lambda: nn.SpectralConv1d(0, 2, 1), "in_channels"),
        (lambda: nn.FourierFilter1d(2, 0), "size must be an integer"),
        (lambda: nn.Fno1dBlock(2, 2, 1, "elu"), "activation must be one of gelu, relu"),
        (lambda: graph_of(nn.SpectralConv1d(1, 1, 6), (1, 1, 8)), "keeps 6 modes .* 8 has 5"),
        (lambda: graph_of(nn.SpectralConv2d(1, 1, (3, 2)), (1, 1, 5, 4)), "height, .* 5 has 2"),
        (lambda: graph_of(nn.SpectralConv1d(2, 1, 2), (1, 1, 8)), r"\[N, 2, L\]"),
        (lambda: graph_of(nn.FourierFilter1d(2, 8), (1, 2, 9)), r"\[N, 2, 8\]"),
        (
            lambda: graph_of(nn.SpectralConv1d(1, 1, 2), (1, 1, Dim.symbol("n"))),
            "needs known sizes",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
