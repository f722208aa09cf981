"""numba: kernels written by hand, one a family of cases; parallel, with fast-math."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np

from benchmarks.suite.case import Instance
from benchmarks.suite.peers.base import NotSupportedError, Prepared

Array = np.ndarray
kernel = numba.njit(parallel=True, fastmath=True)
SQRT_HALF = np.float32(math.sqrt(0.5))
TANH_SCALE = np.float32(math.sqrt(2 / math.pi))


@numba.njit(fastmath=True)
def _add(x: Array, y: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]


@kernel
def _gelu_none(x: Array, a: Array, b: Array, r: Array, out: Array) -> None:
    for i in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            v = x[i, j] * a[i, j] + b[i, j]
            erf = math.erf(v * SQRT_HALF)
            out[i, j] = np.float32(0.5) * v * (np.float32(1) + erf) + r[i, j]


@kernel
def _gelu_tanh(x: Array, a: Array, b: Array, r: Array, out: Array) -> None:
    for i in numba.prange(x.shape[0]):
        for j in range(x.shape[1]):
            v = x[i, j] * a[i, j] + b[i, j]
            inner = TANH_SCALE * (v + np.float32(0.044715) * v * v * v)
            out[i, j] = np.float32(0.5) * v * (np.float32(1) + math.tanh(inner)) + r[i, j]


@kernel
def _softmax(x: Array, out: Array) -> None:
    for i in numba.prange(x.shape[0]):
        most = x[i, 0]
        for j in range(x.shape[1]):
            most = max(most, x[i, j])
        total = np.float32(0)
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - most)
            total += out[i, j]
        share = np.float32(1) / total
        for j in range(x.shape[1]):
            out[i, j] *= share


@kernel
def _layer_norm(x: Array, gamma: Array, beta: Array, out: Array) -> None:
    for i in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        mean = total / np.float32(x.shape[1])
        squares = np.float32(0)
        for j in range(x.shape[1]):
            squares += (x[i, j] - mean) ** 2
        scale = np.float32(1) / math.sqrt(squares / np.float32(x.shape[1]) + np.float32(1e-5))
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean) * scale * gamma[j] + beta[j]


@kernel
def _sum0(x: Array, out: Array) -> None:
    block = 64
    for part in numba.prange((x.shape[1] + block - 1) // block):
        low, high = part * block, min((part + 1) * block, x.shape[1])
        out[low:high] = 0
        for i in range(x.shape[0]):
            for j in range(low, high):
                out[j] += x[i, j]


@kernel
def _sum1(x: Array, out: Array) -> None:
    for i in numba.prange(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total


@kernel
def _gather(x: Array, indices: Array, out: Array) -> None:
    for i in numba.prange(indices.shape[0]):
        out[i] = x[indices[i]]


@kernel
def _scatter(updates: Array, indices: Array, out: Array) -> None:
    block = 16  # columns a task: no two tasks write to one element
    for part in numba.prange((out.shape[1] + block - 1) // block):
        low, high = part * block, min((part + 1) * block, out.shape[1])
        out[:, low:high] = 0
        for i in range(indices.shape[0]):
            for j in range(low, high):
                out[indices[i], j] += updates[i, j]


@kernel
def _selective_scan(x: Array, delta: Array, decay: Array, b: Array, c: Array, out: Array) -> None:
    batch, length, width = x.shape
    for task in numba.prange(batch * width):
        i, d = task // width, task % width
        h = np.zeros(decay.shape[1], np.float32)
        for t in range(length):
            step = delta[i, t, d]
            fresh = step * x[i, t, d]
            total = np.float32(0)
            for n in range(decay.shape[1]):
                h[n] = math.exp(step * decay[d, n]) * h[n] + fresh * b[i, t, n]
                total += h[n] * c[i, t, n]
            out[i, t, d] = total


KERNELS: Mapping[str, Callable[..., Any]] = {
    "add": _add,
    "gelu_none": _gelu_none,
    "gelu_tanh": _gelu_tanh,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "sum0": _sum0,
    "sum1": _sum1,
    "gather": _gather,
    "scatter": _scatter,
    "selective_scan": _selective_scan,
}


def prepare(instance: Instance, threads: int) -> Prepared:
    """Compile the kernel of a case's family; the output is allocated once."""
    function = KERNELS.get(instance.declaration.family)
    if function is None:
        raise NotSupportedError("no kernel written by hand for this case")
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    out = np.zeros(instance.plan.shapes[instance.plan.outputs[0]], np.float32)
    arrays = instance.arrays

    def read() -> list[Array]:
        function(*arrays, out)
        return [out.copy()]

    return Prepared(lambda: function(*arrays, out), read, "a kernel by hand, parallel, fast-math")
