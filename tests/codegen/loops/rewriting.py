"""Kernels that the tests of the rewrites share, and the comparison of two of them."""

from __future__ import annotations

import numpy as np

from frame.codegen.loops import builder as b
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import (
    Kernel,
    fresh,
)
from frame.codegen.loops.verifier import verify_kernel
from frame.core.dtypes import float32, int64

N = fresh("n")
X = b.buffer("x", float32, [N])
Y = b.buffer("y", float32, [N])
P = b.buffer("p", int64, [N])
GRID = b.buffer("grid", float32, [6, 7])
OTHER = b.buffer("other", float32, [7, 6])


def kernel_of(*statements, buffers=(X, Y), scalars=(N,)):
    return Kernel("k", tuple(buffers), tuple(scalars), b.block(statements))


def loop_over(extent, body, name="i"):
    return b.for_(extent, body, name)


def scale(factor=2.0):
    return loop_over(N, lambda i: b.store(Y, [i], b.mul(b.load(X, [i]), factor)))


def run(kernel, n, order="forward"):
    x = np.arange(n, dtype=np.float32) - 3
    y = np.full(n, 99, np.float32)
    result = run_kernel(kernel, [x, y], [n], order=order)
    return y, result


def assert_equivalent(before, after, sizes=(0, 1, 7, 8, 9, 30), order="forward"):
    verify_kernel(after)
    for n in sizes:
        np.testing.assert_array_equal(run(before, n)[0], run(after, n, order)[0], err_msg=str(n))


def nest(body, rows=6, columns=7, extent=None):
    return b.for_(
        rows,
        lambda i: b.for_(columns if extent is None else extent(i), lambda j: body(i, j), "j"),
        "i",
    )
