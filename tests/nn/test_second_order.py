"""Every layer can be differentiated twice: the gradient of its gradient is that of differences."""

from __future__ import annotations

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import float64, int64
from frame.frontend import catalogue
from frame.ir.graph import TensorType
from tests.nn.test_spectral import signal, values_of
from tests.ops.support import backward, check_gradient

WIDE = {"dtype": float64}
RING = ([0, 1, 2], [2, 2, 0])

# factory -> (arguments, options, shapes of the inputs); "labels" are integers below 2.
LAYERS = {
    "AFF": ((2, 2), WIDE, [(1, 2, 1, 2)] * 2),
    "AvgPool1d": ((2,), {}, [(1, 1, 4)]),
    "AvgPool2d": ((2, 1), {}, [(1, 1, 3, 2)]),
    "BCELoss": ((), {}, ["shares", (2, 2)]),
    "BCEWithLogitsLoss": ((), {}, [(2, 2)] * 2),
    "BatchNorm1d": ((2,), WIDE, [(3, 2)]),
    "BatchNorm2d": ((1,), WIDE, [(2, 1, 1, 2)]),
    "CELU": ((), {}, [(3,)]),
    "Conv1d": ((1, 2, 2), WIDE, [(1, 1, 3)]),
    "Conv2d": ((2, 2, 2), {"groups": 2, **WIDE}, [(1, 2, 2, 2)]),
    "ConvTranspose1d": ((2, 2, 2), {"stride": 2, "groups": 2, **WIDE}, [(1, 2, 2)]),
    "ConvTranspose2d": ((1, 1, 2), {"stride": 2, **WIDE}, [(1, 1, 1, 2)]),
    "CosineLoss": ((), {}, [(2, 2)] * 2),
    "CrossEntropyLoss": ((0.1, "mean", (1.0, 2.0)), {}, [(3, 2), "labels"]),
    "Dropout": ((), {}, [(3,)]),
    "Dwt1d": (("db2", "reflect"), {}, [(1, 1, 3)]),
    "Dwt2d": (("db2",), {}, [(1, 1, 2, 3)]),
    "ELU": ((), {}, [(3,)]),
    "Embedding": ((2, 2), WIDE, ["labels"]),
    "Flatten": ((), {}, [(1, 2, 2)]),
    "Fno1dBlock": ((1, 1, 2), WIDE, [(1, 1, 3)]),
    "Fno2dBlock": ((1, 1, 1), WIDE, [(1, 1, 2, 3)]),
    "FourierFilter1d": ((1, 3), WIDE, [(1, 1, 3)]),
    "FourierMamba": ((1, 3, 2), WIDE, [(1, 1, 3)]),
    "GATConv": ((3, 2, 2, *RING), WIDE, [(3, 2)]),
    "GELU": ((), {}, [(3,)]),
    "GLU": ((), {}, [(4,)]),
    "GRU": ((1, 2), {"bidirectional": True, **WIDE}, [(1, 2, 1)]),
    "GlobalAvgPool": ((), {}, [(1, 2, 2)]),
    "GlobalAvgPool2d": ((), {}, [(1, 2, 2, 1)]),
    "GlobalMaxPool": ((), {}, [(1, 2, 2)]),
    "GraphConv": ((3, 2, 2, *RING), WIDE, [(3, 2)]),
    "GroupNorm": ((1, 2), WIDE, [(1, 2, 2)]),
    "Hardsigmoid": ((), {}, [(3,)]),
    "Hardswish": ((), {}, [(3,)]),
    "Hardtanh": ((), {}, [(3,)]),
    "HuberLoss": ((), {}, [(2, 2)] * 2),
    "HypergraphConv": ((3, 2, 2, 1, [0, 1, 1], [0, 0, 1]), WIDE, [(3, 2)]),
    "Identity": ((), {}, [(3,)]),
    "Idwt1d": (("db2", "periodization"), {}, [(1, 2, 2)]),
    "Idwt2d": ((), {}, [(1, 4, 1, 2)]),
    "KLDivLoss": ((), {}, [(2, 2), "shares"]),
    "L1Loss": ((), {}, [(2, 2)] * 2),
    "LSTM": ((1, 2, 2), WIDE, [(1, 2, 1)]),
    "LayerNorm": ((3,), WIDE, [(2, 3)]),
    "LeakyReLU": ((), {}, [(3,)]),
    "Linear": ((2, 2), WIDE, [(2, 2)]),
    "LogSigmoid": ((), {}, [(3,)]),
    "LogSoftmax": ((), {}, [(2, 3)]),
    "Mamba": ((1,), {"state": 2, "kernel_size": 2, "expand": 1, **WIDE}, [(1, 2, 1)]),
    "MaxPool1d": ((2,), {}, [(1, 1, 4)]),
    "MaxPool2d": ((2, 1), {}, [(1, 1, 3, 2)]),
    "Mish": ((), {}, [(3,)]),
    "MseLoss": ((), {}, [(2, 2)] * 2),
    "MultiheadAttention": ((2, 1), {"causal": True, **WIDE}, [(1, 2, 2)]),
    "NLLLoss": ((), {}, [(3, 2), "labels"]),
    "PReLU": ((), WIDE, [(3,)]),
    "PoissonNLLLoss": ((), {}, [(2, 2)] * 2),
    "RMSNorm": ((3,), WIDE, [(2, 3)]),
    "ReLU": ((), {}, [(3,)]),
    "ReLU6": ((), {}, [(3,)]),
    "Residual": ((nn.Tanh(),), {}, [(3,)]),
    "SELU": ((), {}, [(3,)]),
    "Sequential": (([nn.Tanh(), nn.Softmax()],), {}, [(3,)]),
    "SiLU": ((), {}, [(3,)]),
    "Sigmoid": ((), {}, [(3,)]),
    "SimpleMamba": ((1, 2), WIDE, [(1, 1, 3)]),
    "SmoothL1Loss": ((), {}, [(2, 2)] * 2),
    "SoftMarginLoss": ((), {}, [(2, 2)] * 2),
    "Softmax": ((), {}, [(2, 3)]),
    "Softplus": ((), {}, [(3,)]),
    "Softsign": ((), {}, [(3,)]),
    "SpectralConv1d": ((1, 1, 2), WIDE, [(1, 1, 4)]),
    "SpectralConv2d": ((1, 1, 1), WIDE, [(1, 1, 2, 3)]),
    "Tanh": ((), {}, [(3,)]),
    "TransformerDecoderBlock": ((2, 1, 2), {"activation": "gelu", **WIDE}, [(1, 2, 2)] * 2),
    "TransformerEncoderBlock": ((2, 1, 2), {"norm": "pre", **WIDE}, [(1, 2, 2)]),
    "Wavedec1d": (("db2", "smooth", 2), {}, [(1, 1, 4)]),
    "Wavedec2d": ((), {"levels": 1}, [(1, 1, 2, 3)]),
    "Waverec1d": ((), {}, [(1, 1, 1), (1, 1, 1), (1, 1, 2)]),
    "Waverec2d": ((), {}, [(1, 1, 1, 1), (1, 3, 1, 1)]),
}

SURROGATES = {"LIFCell", "SnnClassifier"}
"""Their gradient is by intention not that of what they compute: differences say nothing."""

TRAINED = {"AFF", "BatchNorm1d", "BatchNorm2d"}
"""What computes something else in training, and is differentiated there."""


def test_every_factory_is_differentiated_twice():
    assert set(catalogue.factories()) == {*LAYERS, *SURROGATES}


def array_of(form, seed):
    if form == "labels":
        return np.array([0, 1, 1])
    if form == "shares":
        return 1 / (1 + np.exp(-signal(2, 2, seed=seed)))
    return signal(*form, seed=seed)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_gradients(name):
    arguments, options, forms = LAYERS[name]
    module = getattr(nn, name)(*arguments, **options)
    inputs = [array_of(form, seed + 1) for seed, form in enumerate(forms)]
    types = [TensorType(float64 if x.dtype.kind == "f" else int64, x.shape) for x in inputs]
    graph = nn.build_graph(module, types, "train" if name in TRAINED else "infer")
    arrays = [*inputs, *values_of(module).values()]
    cotangents = [
        np.random.default_rng(7).standard_normal([int(size) for size in value.shape])
        for value in graph.outputs
    ]
    check_gradient(backward(graph), [*arrays, *cotangents])
