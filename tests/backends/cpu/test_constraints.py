"""The executable checks what a graph asks of its symbols, once for each set of values."""

from __future__ import annotations

import numpy as np
import pytest

from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from tests.support.compile import make_piece


def test_sizes_that_do_not_hold_are_refused():
    with GraphBuilder("model") as builder:
        x = builder.input(TensorType(float32, (Dim.symbol("batch"), 3)), name="x")
        builder.output(x[2:4] + 1.0)
    executable = make_piece(builder.finish()).executable()
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(executable.run([x])[0], x[2:4] + 1)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="slice .*needs stop <= size.*batch=3"):
            executable.run([x[:3]])
    np.testing.assert_array_equal(executable.run([x[:4]])[0], x[2:4] + 1)
