"""Selective state space models: the Mamba block of the paper, and small ones with one state."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, DTypeLike, float32
from frame.ir.graph import Value
from frame.nn.checks import layer, of_shape
from frame.nn.common import Conv1d
from frame.nn.layers import Linear, positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import Source, inline, ones, param, uniform
from frame.nn.spectral import FourierFilter1d

# --- the paper's block ----------------------------------------------------------------------------

MOST_STATES = 65536

STEPS = (1e-3, 1e-1)
"""The step sizes that channels begin with, drawn uniformly on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class StepBias:
    """Biases whose softplus is a step size between `low` and `high`, uniform in its logarithm."""

    low: float
    high: float

    def values(self, shape: tuple[int, ...], element: DType, source: Source) -> np.ndarray:
        """Return the initial values."""
        position = source.uniform(math.prod(shape), element)
        step = self.low * (self.high / self.low) ** position
        return (step + np.log(-np.expm1(-step))).reshape(shape)


def _wide(*values: Value) -> tuple[Value, ...]:
    """Return values whose recurrence does not lose its memory to rounding: float32 at least."""
    return tuple(ops.cast(v, float32) if v.dtype.bits < float32.bits else v for v in values)


def _states(x: Value, delta: Value, decay: Value, b: Value, c: Value) -> Value:
    """Return the scan of x [N, L, E]; delta is like x, decay [E, S], b and c [N, L, S].

    h = exp(delta * decay) * h + delta * b * x from h = 0, y = sum over the states of c * h. The
    states [N, E, S] of one step exist at a time.
    """

    def step(h: Value, now: tuple[Value, ...]) -> tuple[Value, Value]:
        size, drive, enter, leave = now
        keep = ops.exp(ops.unsqueeze(size, 2) * decay)
        h = keep * h + ops.unsqueeze(drive, 2) * ops.unsqueeze(enter, 1)
        return h, ops.sum(h * ops.unsqueeze(leave, 1), axes=(2,))

    along = tuple(ops.transpose(v, (1, 0, 2)) for v in (delta, delta * x, b, c))
    zero = ops.zeros((x.shape[0], *decay.shape), x.dtype)
    _, y = ops.scan(step, zero, along)
    return ops.transpose(y, (1, 0, 2))


def _swapped(x: Value) -> Value:
    return ops.transpose(x, (0, 2, 1))


def _build_mamba(self: Scope, x: Value) -> Value:
    options = self.options
    of_shape("Mamba", x, "N", "L", options["features"])
    rank, state = options["rank"], options["state"]
    inner, gate = ops.split(self.in_proj(x), (options["inner"],) * 2, axis=2)
    inner = ops.silu(_swapped(self.conv(_swapped(inner))))
    low, b, c = ops.split(self.x_proj(inner), (rank, state, state), axis=2)
    delta = ops.softplus(ops.matmul(low, self.dt_weight) + self.dt_bias)
    u, delta, b, c, log = _wide(inner, delta, b, c, self.A_log)
    y = ops.cast(_states(u, delta, -ops.exp(log), b, c), x.dtype) + inner * self.D
    return self.out_proj(y * ops.silu(gate))  # type: ignore[no-any-return]


def Mamba(
    features: int,
    state: int = 16,
    kernel_size: int = 4,
    expand: int = 2,
    rank: int | None = None,
    bias: bool = False,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return the Mamba block of sequences: [N, L, features] -> [N, L, features].

    x is projected to `expand * features` channels and a gate; the channels pass a causal depthwise
    convolution and silu, and choose a step size and the vectors B and C of each step. Each channel
    has `state` states: h[t] = exp(delta[t] * A) * h[t - 1] + delta[t] * B[t] * u[t], y[t] = C[t] .
    h[t] + D * u[t]. y * silu(gate) is projected back. The residual sum and the normalisation around
    the block are the caller's: `nn.Residual(nn.Sequential([nn.RMSNorm(64), nn.Mamba(64)]))`.

    Parameters in the authors' names: in_proj, conv, x_proj, dt_weight [rank, inner] and dt_bias,
    A_log [inner, state] (which begins as log 1, log 2, ...: A = -exp(A_log)), D, out_proj. Source:
    Gu, Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752,
    algorithm 2 and figure 3; the initial A: Gu et al., arXiv 2206.11893.

    Args:
        features: features of x.
        state: states of each channel.
        kernel_size: the window of the convolution.
        expand: inner channels for each feature.
        rank: of the step sizes; a sixteenth of `features`, rounded up, if left out.
        bias: whether the projections in and out have a bias.
        name: the name in the parent.
        dtype: the dtype of the parameters; the recurrence runs in float32 or wider.
    """
    inner = positive("features", features) * positive("expand", expand)
    width = math.ceil(features / 16) if rank is None else positive("rank", rank)
    rates = np.arange(1.0, positive("state", state, most=MOST_STATES) + 1)
    log = np.log(np.tile(rates, (inner, 1)))
    bound = width**-0.5
    specs = (
        param((width, inner), uniform(-bound, bound), dtype=dtype, name="dt_weight"),
        param(inner, StepBias(*STEPS), dtype=dtype, name="dt_bias"),
        param((inner, state), inline(log), dtype=dtype, name="A_log"),
        param(inner, ones(), dtype=dtype, name="D"),
    )
    children = {
        "in_proj": Linear(features, 2 * inner, bias, dtype=dtype),
        "conv": _causal(inner, kernel_size, dtype),
        "x_proj": Linear(inner, width + 2 * state, False, dtype=dtype),
        "out_proj": Linear(inner, features, bias, dtype=dtype),
    }
    options = {"features": features, "state": state, "kernel_size": kernel_size}
    options |= {"expand": expand, "inner": inner, "rank": width}
    return layer("Mamba", _build_mamba, options, specs, children, name)


def _causal(channels: int, kernel_size: int, dtype: DTypeLike) -> Module:
    """Return the depthwise convolution whose result at t depends on inputs up to t."""
    before = positive("kernel_size", kernel_size) - 1
    return Conv1d(
        channels, channels, kernel_size, padding=(before, 0), groups=channels, dtype=dtype
    )


# --- one state a channel --------------------------------------------------------------------------

# The values of each step -> the function that bounds them.
_HEADS: dict[str, Callable[[Value], Value]] = {
    "input": lambda v: ops.tanh(v),
    "a": lambda v: ops.sigmoid(v),
    "b": lambda v: ops.tanh(v),
    "c": lambda v: ops.tanh(v),
    "d": lambda v: ops.tanh(v),
    "gate": lambda v: ops.sigmoid(v),
}


def _build_simple(self: Scope, x: Value) -> Value:
    of_shape("SimpleMamba", x, "N", self.options["channels"], "L")
    mixed = _swapped(self.conv(x))
    u, a, b, c, d, gate = (bound(getattr(self, name)(mixed)) for name, bound in _HEADS.items())
    return _swapped(self.out(ops.selective_scan(u, a, b, c, d, axis=1) * gate))


def SimpleMamba(
    channels: int, kernel_size: int = 4, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return a small selective scan of sequences: [N, channels, L] -> [N, channels, L].

    A causal depthwise convolution, then of each step the values input (tanh), a (sigmoid), b, c, d
    (tanh) and gate (sigmoid), each a Linear of all channels: h[t] = a * h[t - 1] + b * input, and
    (c * h[t] + d * input) * gate through the Linear `out`. Against `Mamba` it has one state a
    channel, decays and inputs that share no step size, and no expansion. Source: Gu, Dao, arXiv
    2312.00752, simplified.

    Args:
        channels: channels of x.
        kernel_size: the window of the convolution.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    positive("channels", channels)
    children = {"conv": _causal(channels, kernel_size, dtype)}
    children |= {part: Linear(channels, channels, dtype=dtype) for part in (*_HEADS, "out")}
    options = {"channels": channels, "kernel_size": kernel_size}
    return layer("SimpleMamba", _build_simple, options, (), children, name)


def _build_fourier(self: Scope, x: Value) -> Value:
    return ops.tanh(self.mamba(x) + self.fourier(x))


def FourierMamba(
    channels: int, size: int, kernel_size: int = 4, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return tanh(SimpleMamba(x) + FourierFilter1d(x)) of sequences [N, channels, size].

    The scan sees what was before, the filter all of the sequence at once. Sources: those of
    `SimpleMamba` and `FourierFilter1d`.

    Args:
        channels: channels of x.
        size: the length of the sequences.
        kernel_size: the window of the convolution of SimpleMamba.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    children = {
        "mamba": SimpleMamba(channels, kernel_size, dtype=dtype),
        "fourier": FourierFilter1d(channels, size, dtype=dtype),
    }
    return layer("FourierMamba", _build_fourier, {}, (), children, name)
