"""The operations that profiles report, against counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from frame import ops
from frame.codegen.schedules.work import node_flops
from frame.core.dtypes import float32
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.fourier_tables import table_of


def flops(function, *shapes):
    with GraphBuilder("work") as builder:
        function(*(builder.input(TensorType(float32, shape)) for shape in shapes))
        return sum(node_flops(node) for node in builder.finish().nodes)


def rows(x):
    table = ops.constant(table_of(96).astype(np.float32))
    return ops.fourier_rows(x, table, size=96, count=49)


def total(x):
    return ops.scan(lambda h, now: (h + now * now, h), ops.sum(x, axes=0), x)


CASES = {
    "product": (lambda a, b: a @ b, [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
    "transposed": (
        lambda a, b: ops.matmul(a, b, transpose_a=True),
        [(5, 3), (5, 7)],
        2 * 3 * 5 * 7,
    ),
    "products": (lambda a, b: a @ b, [(4, 1, 3, 5), (2, 5, 7)], 4 * 2 * 2 * 3 * 5 * 7),
    "conv2d": (
        lambda x, w: ops.conv2d(x, w, strides=(2, 2), padding=(1, 1, 1, 1)),
        [(2, 4, 8, 8), (6, 4, 3, 3)],
        2 * (2 * 6 * 4 * 4) * (4 * 9),
    ),
    "groups": (
        lambda x, w: ops.conv2d(x, w, groups=4),
        [(1, 4, 5, 5), (8, 1, 3, 3)],
        2 * (8 * 3 * 3) * 9,
    ),
    "conv1d": (lambda x, w: ops.conv1d(x, w), [(2, 3, 9), (5, 3, 4)], 2 * (2 * 5 * 6) * (3 * 4)),
    "conv_transpose2d": (
        lambda x, w: ops.conv_transpose2d(x, w, strides=(2, 2)),
        [(2, 3, 4, 4), (3, 5, 2, 2)],
        2 * (2 * 3 * 4 * 4) * (5 * 4),
    ),
    "dilated_input": (
        lambda x, w: ops.conv2d(x, w, input_dilation=(2, 2), padding=(1, 1, 1, 1)),
        [(2, 3, 4, 4), (5, 3, 2, 2)],
        2 * (2 * 3 * 4 * 4) * (5 * 4),
    ),
    "rfft": (ops.rfft, [(4, 96)], 4 * round(2.5 * 96 * math.log2(96))),
    "irfft": (lambda z: ops.irfft(z, n=96), [(4, 49, 2)], 4 * round(2.5 * 96 * math.log2(96))),
    "fourier_rows": (rows, [(4, 96)], 4 * round(2.5 * 96 * math.log2(96))),
    "broadcast": (lambda a, b: a * b, [(3, 1), (1, 5)], 15),
    "reduction": (lambda x: ops.sum(x, axes=1), [(3, 100)], 300),
    "moves": (
        lambda x: ops.concat([ops.transpose(x, (1, 0)), ops.flip(ops.reshape(x, (3, 2)), (0,))], 0),
        [(2, 3)],
        0,
    ),
    "scan": (total, [(6, 4)], 6 * 4 + 6 * (4 + 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_count(name):
    function, shapes, expected = CASES[name]
    assert flops(function, *shapes) == expected


def test_the_gradients_of_a_convolution_cost_as_much_as_it_does():
    def gradient(x, cotangent):
        return ops.conv2d_filter_grad(x, cotangent, window=(3, 3))

    assert flops(gradient, (2, 4, 8, 8), (2, 6, 6, 6)) == 2 * (2 * 6 * 6 * 6) * (4 * 9)


def test_symbols_stay_symbols():
    batch = Dim.symbol("batch")
    assert flops(lambda a, b: ops.relu(a @ b), (batch, 5), (5, 7)) == batch * (2 * 5 * 7 + 7)
