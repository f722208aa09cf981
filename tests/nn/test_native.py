"""Layers as native code: results and gradients against the float64 interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest

import frame
from frame import nn
from frame.compiler.autodiff import build_backward_graph
from frame.compiler.optimizers import SGD
from frame.core.dtypes import float32
from frame.ir.graph import Role, TensorType
from frame.ops.interpreter import interpret

LAYERS = {
    "dwt1d": (nn.Dwt1d("db3", "reflect"), (2, 3, 21)),
    "dwt2d_haar": (nn.Dwt2d(), (2, 3, 8, 9)),
    "dwt2d": (nn.Dwt2d("db2", "zero"), (2, 2, 7, 8)),
    "idwt2d": (nn.Idwt2d("db2", "periodization"), (2, 4, 3, 4)),
    "decomposition": (
        nn.Sequential([nn.Wavedec1d("db2", "smooth"), nn.Waverec1d("db2")]),
        (2, 3, 22),
    ),
    "transposed1d": (nn.ConvTranspose1d(3, 4, 3, 2, 1, output_padding=1), (2, 3, 13)),
    "gat": (nn.GATConv(4, 6, 8, [0, 1, 2, 3, 0, 2], [1, 3, 1, 1, 2, 1], heads=2), (4, 6)),
    "spectral1d": (nn.SpectralConv1d(3, 4, 5), (2, 3, 90)),
    "spectral2d": (nn.SpectralConv2d(2, 3, (4, 3)), (2, 2, 8, 9)),
    "filter": (nn.FourierFilter1d(2, 130), (2, 2, 130)),
    "mamba": (nn.Mamba(6, state=3), (2, 9, 6)),
    "simple_mamba": (nn.SimpleMamba(5), (2, 5, 9)),
    "prelu": (nn.PReLU(3), (2, 3, 5)),
    "glu": (nn.GLU(1), (2, 6, 5)),
    "max_pool1d": (nn.MaxPool1d(3, 2, 1), (2, 3, 10)),
    "avg_pool1d": (nn.AvgPool1d(3, 2), (2, 3, 10)),
    "global_max": (nn.GlobalMaxPool(), (2, 3, 5, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_of_native_code(name):
    layer, shape = LAYERS[name]
    generator = np.random.default_rng(0)
    x = generator.standard_normal(shape).astype(np.float32)
    # The parameter `first` brings the gradient of the layer by its input.
    first = nn.param(shape[1:], nn.normal(1.0, 0.1))

    @nn.module(first=first, layer=layer)
    def whole(self, x):
        return self.layer(x * self.first)

    forward = nn.build_graph(whole, [TensorType(float32, shape)])
    target = generator.standard_normal(forward.outputs[0].shape).astype(np.float32)

    @nn.module(whole=whole)
    def objective(self, x, target):
        return nn.MseLoss()(self.whole(x), target)

    types = [TensorType(float32, shape), TensorType(float32, target.shape)]
    graph = build_backward_graph(nn.build_graph(objective, types))
    model = frame.compile(
        whole,
        [frame.spec(shape)],
        loss=nn.MseLoss(),
        targets=[frame.spec(target.shape)],
        optimizer=SGD(),
    )
    before = {key: np.array(value) for key, value in model.params.items()}
    loss, *gradients = interpret(graph, [x, target, *before.values()])
    (expected,) = interpret(forward, [x, *before.values()])
    close(model(x), expected, 2e-6)
    found, _ = model.train_step(x, target, learning_rate=1.0)
    close(found, loss, 2e-6)
    names = [entry.name for entry in graph.inputs if entry.role is Role.PARAMETER]
    assert [name.removeprefix("whole.") for name in names] == list(before)
    for key, gradient in zip(before, gradients, strict=True):
        close(before[key] - model.params[key], gradient, 1e-5)
    assert not model.host_steps


def close(received, expected, tolerance):
    scale = np.abs(expected).max() + 0.1
    np.testing.assert_allclose(received, expected, rtol=0, atol=tolerance * scale)


def launches(steps: int, trained: bool) -> list[str]:
    """Return the kernels that an LSTM over so many steps launches, in order."""
    options = {}
    if trained:
        targets = [frame.spec((4, steps, 5))]
        options = {"loss": nn.MseLoss(), "targets": targets, "optimizer": SGD()}
    model = frame.compile(nn.LSTM(3, 5), [frame.spec((4, steps, 3))], **options)
    text = model.source(entry="train_step" if trained else "infer")["llvm"]
    return re.findall(r"call void %launch\(ptr %pool, ptr @(\w+)", text)


def test_an_lstm_of_any_length_is_one_kernel():
    """1,000 steps are the code of 10: the loop is in the kernel, not in the list of kernels."""
    short, long = launches(10, trained=False), launches(1000, trained=False)
    assert short == long and sum("scan" in name for name in long) == 1


@pytest.mark.slow
def test_the_training_of_an_lstm_of_any_length_is_two_kernels_and_sums():
    """Sums over all steps, the gradients of weights, are split where there are many."""
    short, long = launches(10, trained=True), launches(1000, trained=True)
    assert sum("scan" in name for name in long) == 2 == sum("scan" in name for name in short)
    assert len(long) < len(short) + 6
