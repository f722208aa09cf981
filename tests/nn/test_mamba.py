"""Selective state space blocks against loops over the steps in plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import bfloat16, float64
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from frame.nn.mamba import STEPS
from tests.nn.test_spectral import close, graph_of, run, signal, values_of
from tests.ops.support import check_gradient


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def causal(x, weight, bias):
    """Return the depthwise convolution of x [N, L, C] with weight [C, 1, K]."""
    taps = weight.shape[2]
    padded = np.pad(x, ((0, 0), (taps - 1, 0), (0, 0)))
    windows = [padded[:, k : k + x.shape[1]] * weight[:, 0, k] for k in range(taps)]
    return sum(windows) + bias


def mamba(x, w, rank, state):
    inner, gate = np.split(x @ w["in_proj.weight"], 2, -1)
    u = silu(causal(inner, w["conv.weight"], w["conv.bias"]))
    low, b, c = np.split(u @ w["x_proj.weight"], [rank, rank + state], -1)
    delta = np.log1p(np.exp(low @ w["dt_weight"] + w["dt_bias"]))
    decay = -np.exp(w["A_log"])
    y = np.zeros_like(u)
    for n, e in np.ndindex(u.shape[0], u.shape[2]):
        h = np.zeros(state)
        for t in range(u.shape[1]):
            h = np.exp(delta[n, t, e] * decay[e]) * h + delta[n, t, e] * b[n, t] * u[n, t, e]
            y[n, t, e] = c[n, t] @ h + w["D"][e] * u[n, t, e]
    return (y * silu(gate)) @ w["out_proj.weight"]


def test_mamba_is_the_recurrence_of_the_paper():
    module = nn.Mamba(3, state=4, kernel_size=3, rank=2, dtype=float64)
    x, w = signal(2, 5, 3), values_of(module)
    close(run(module, x, w), mamba(x, w, 2, 4))


def test_mamba_sees_no_later_step():
    module = nn.Mamba(3, state=2, dtype=float64)
    x, w = signal(1, 6, 3), values_of(module)
    changed = x.copy()
    changed[:, 4:] += 1
    before, after = run(module, x, w), run(module, changed, w)
    close(after[:, :4], before[:, :4])
    assert abs(after[:, 4:] - before[:, 4:]).min() > 1e-6


def test_mamba_begins_as_the_paper_says():
    module = nn.Mamba(40)
    shapes = {spec.name: spec.shape for spec in module.parameters()}
    assert shapes == {
        "dt_weight": (3, 80),
        "dt_bias": (80,),
        "A_log": (80, 16),
        "D": (80,),
        "in_proj.weight": (40, 160),
        "conv.weight": (80, 1, 4),
        "conv.bias": (80,),
        "x_proj.weight": (80, 35),
        "out_proj.weight": (80, 40),
    }
    values = {spec.name: np.float64(nn.materialize(spec)) for spec in module.parameters()}
    np.testing.assert_allclose(np.exp(values["A_log"][7]), np.arange(1, 17), rtol=1e-6)
    steps = np.log1p(np.exp(values["dt_bias"]))
    assert STEPS[0] * 0.999 <= steps.min() and steps.max() <= STEPS[1] * 1.001
    middle = math.log(math.sqrt(STEPS[0] * STEPS[1]))
    assert abs(np.log(steps).mean() - middle) < 5 * math.log(100) / math.sqrt(12 * 80)
    assert abs(values["dt_weight"]).max() <= 3**-0.5


def test_narrow_parameters_keep_a_wide_recurrence():
    """A decay of 1 - 1e-4 a step is 1 in bfloat16, in which a state would never fade."""
    module = nn.Mamba(2, state=1, dtype=bfloat16)
    with_values = nn.build_graph(module, [TensorType(bfloat16, (1, 4, 2))])
    (scan,) = [node for node in with_values.nodes if node.op == "scan"]
    assert {v.dtype.name for v in scan.operands} == {"float32"}
    assert with_values.outputs[0].dtype == bfloat16


def simple(x, w, prefix=""):
    def linear(name, v):
        return v @ w[f"{prefix}{name}.weight"] + w[f"{prefix}{name}.bias"]

    mixed = causal(x.swapaxes(1, 2), w[f"{prefix}conv.weight"], w[f"{prefix}conv.bias"])
    a, gate = (sigmoid(linear(name, mixed)) for name in ("a", "gate"))
    u, b, c, d = (np.tanh(linear(name, mixed)) for name in ("input", "b", "c", "d"))
    h, y = np.zeros_like(u[:, 0]), np.zeros_like(u)
    for t in range(u.shape[1]):
        h = a[:, t] * h + b[:, t] * u[:, t]
        y[:, t] = (c[:, t] * h + d[:, t] * u[:, t]) * gate[:, t]
    return linear("out", y).swapaxes(1, 2)


def test_simple_mamba_and_the_fourier_branch():
    module = nn.SimpleMamba(3, 2, dtype=float64)
    x, w = signal(2, 3, 5), values_of(module)
    assert len(w) == 16
    close(run(module, x, w), simple(x, w))
    both = nn.FourierMamba(3, 5, 2, dtype=float64)
    w = values_of(both)
    weight = w["fourier.weight_re"] + 1j * w["fourier.weight_im"]
    filtered = np.fft.irfft(np.fft.rfft(x) * weight, 5)
    close(run(both, x, w), np.tanh(simple(x, w, "mamba.") + filtered))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Mamba(1, state=2, kernel_size=2, dtype=float64), (1, 3, 1)),
        (nn.FourierMamba(1, 3, 2, dtype=float64), (1, 1, 3)),
    ],
    ids=lambda value: value.kind if isinstance(value, nn.Module) else "",
)
def test_gradients(module, shape):
    check_gradient(graph_of(module, shape), [signal(*shape), *values_of(module).values()])


def test_a_long_scan_has_no_more_nodes_than_a_short_one():
    long, short = (graph_of(nn.Mamba(2, dtype=float64), (1, n, 2)) for n in (1000, 10))
    assert len(long.nodes) == len(short.nodes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Mamba(0), "features must be an integer of at least 1, got 0"),
        (lambda: nn.Mamba(4, state=0), "state must be"),
        (lambda: nn.Mamba(4, kernel_size=0), "kernel_size must be"),
        (lambda: nn.Mamba(4, rank=0), "rank must be"),
        (lambda: nn.SimpleMamba(2.0), "channels must be"),
        (lambda: nn.FourierMamba(2, 0), "size must be"),
        (lambda: graph_of(nn.Mamba(4), (2, 4, 3)), r"Mamba takes an input \[N, L, 4\]"),
        (lambda: graph_of(nn.SimpleMamba(4), (2, 3, 4)), r"\[N, 4, L\]"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
