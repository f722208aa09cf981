"""Layers whose mathematics is smooth can be differentiated twice: gradients of gradients."""

from __future__ import annotations

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import float64
from tests.nn.test_spectral import graph_of, signal, values_of
from tests.ops.support import backward, check_gradient

SMOOTH = [
    (nn.Dwt1d("db2", "reflect"), (1, 1, 3)),
    (nn.SpectralConv1d(1, 1, 2, dtype=float64), (1, 1, 4)),
    (nn.SpectralConv2d(1, 1, 1, dtype=float64), (1, 1, 2, 3)),
    (nn.Fno1dBlock(1, 1, 2, dtype=float64), (1, 1, 3)),
    (nn.Mamba(1, state=2, kernel_size=2, expand=1, dtype=float64), (1, 2, 1)),
    (nn.FourierMamba(1, 3, 2, dtype=float64), (1, 1, 3)),
    (nn.LSTM(1, 2, dtype=float64), (1, 2, 1)),
    (nn.GRU(1, 2, dtype=float64), (1, 2, 1)),
    (nn.MultiheadAttention(2, 1, dtype=float64), (1, 2, 2)),
    (nn.GroupNorm(1, 2, dtype=float64), (1, 2, 2)),
    (nn.GATConv(3, 2, 2, [0, 1, 2], [2, 2, 0], dtype=float64), (3, 2)),
]


@pytest.mark.parametrize(("module", "shape"), SMOOTH, ids=[module.kind for module, _ in SMOOTH])
def test_gradients_of_gradients(module, shape):
    graph = graph_of(module, shape)
    arrays = [signal(*shape), *values_of(module).values()]
    cotangents = [
        np.random.default_rng(7).standard_normal([int(size) for size in value.shape])
        for value in graph.outputs
    ]
    check_gradient(backward(graph), [*arrays, *cotangents])
