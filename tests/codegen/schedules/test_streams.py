"""Results larger than the caches go past them; rows that come from memory are asked for ahead."""

from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.backends.cpu.target import host_target
from frame.codegen.loops.printer import print_module
from frame.core.dtypes import float32
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from tests.support.compile import make_piece

ROWS, LENGTH = 2101, 1000


def softmax(x):
    weights = ops.exp(x - ops.max(x, (1,), True))
    return weights / ops.sum(weights, (1,), True)


def softmax_of_numpy(x):
    weights = np.exp(x - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


CASES = {
    "elementwise": (lambda x: x * 2.0 + 1.0, lambda x: x * 2.0 + 1.0, False),
    "rows": (softmax, softmax_of_numpy, True),
}


@pytest.mark.parametrize("name", CASES)
def test_large_results_are_streamed_and_right(name):
    function, expected, ahead = CASES[name]
    with GraphBuilder("large") as builder:
        builder.output(function(builder.input(TensorType(float32, (ROWS, LENGTH)), name="x")))
    compiled = make_piece(builder.finish(), replace(host_target(), l3=0))
    text = print_module(compiled.lowered.module)
    assert "stream out0" in text
    assert ("prefetch in0" in text) == ahead
    x = np.random.default_rng(1).standard_normal((ROWS, LENGTH)).astype(np.float32)
    (found,) = compiled.executable().run([x])
    np.testing.assert_allclose(found, expected(x.astype(np.float64)), rtol=3e-6, atol=1e-9)


def test_results_that_a_cache_holds_are_not_streamed():
    with GraphBuilder("small") as builder:
        builder.output(builder.input(TensorType(float32, (100, LENGTH)), name="x") * 2.0)
    compiled = make_piece(builder.finish(), replace(host_target(), l3=0))
    assert "stream" not in print_module(compiled.lowered.module)
