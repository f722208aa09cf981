"""Recurrent layers: LSTM and GRU, each layer and direction one loop over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from frame import ops
from frame.core.dtypes import DTypeLike, float32
from frame.ir.graph import Value
from frame.nn.checks import layer, number, of_shape
from frame.nn.layers import positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import ParamSpec, param, uniform

MOST_LAYERS = 1024

Step = Callable[["_Weights", Value, tuple[Value, ...]], tuple[Value, ...]]


class _Weights:
    """The recurrent weights of one layer and direction, and its bias of the candidate."""

    def __init__(self, recurrent: Value, bias: Value | None, hidden: int) -> None:
        self.recurrent = recurrent
        self.bias = bias
        self.hidden = hidden


def _gate(x: Value, index: int, hidden: int) -> Value:
    stop = (index + 1) * hidden
    return ops.slice(x, (0, index * hidden), (x.shape[0], stop))


def _lstm_step(weights: _Weights, x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
    h, c = state
    gates = x + ops.matmul(h, weights.recurrent)
    i, f, g, o = (_gate(gates, k, weights.hidden) for k in range(4))
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


def _gru_step(weights: _Weights, x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
    (h,) = state
    own = ops.matmul(h, weights.recurrent)
    if weights.bias is not None:
        own = own + weights.bias
    reset = ops.sigmoid(_gate(x, 0, weights.hidden) + _gate(own, 0, weights.hidden))
    update = ops.sigmoid(_gate(x, 1, weights.hidden) + _gate(own, 1, weights.hidden))
    candidate = ops.tanh(_gate(x, 2, weights.hidden) + reset * _gate(own, 2, weights.hidden))
    return ((1.0 - update) * candidate + update * h,)


# kind -> (gates, states, step, whether the recurrent product has a bias of its own)
_CELLS: dict[str, tuple[int, int, Step, bool]] = {
    "LSTM": (4, 2, _lstm_step, False),
    "GRU": (3, 1, _gru_step, True),
}


def _suffix(number_: int, backward: bool) -> str:
    return f"_{number_}" + ("_reverse" if backward else "")


def _run_direction(self: Scope, x: Value, number_: int, backward: bool) -> Value:
    """Return the hidden states [T, N, H] of one layer in one direction over x [T, N, E]."""
    options, end = self.options, _suffix(number_, backward)
    hidden = options["hidden_size"]
    _, states, step, _ = _CELLS[options["cell"]]
    drive = ops.matmul(x, getattr(self, f"weight_ih{end}"))
    if options["bias"]:
        drive = drive + getattr(self, f"bias_ih{end}")
    separate = options["bias"] and _CELLS[options["cell"]][3]
    bias = getattr(self, f"bias_hh{end}") if separate else None
    weights = _Weights(getattr(self, f"weight_hh{end}"), bias, hidden)

    def body(state: tuple[Value, ...], now: Value) -> tuple[tuple[Value, ...], Value]:
        following = step(weights, now, state)
        return following, following[0]

    zero = ops.zeros((x.shape[1], hidden), x.dtype)
    _, ys = ops.scan(body, (zero,) * states, drive, reverse=backward)
    return ys  # type: ignore[no-any-return]


def _build_recurrent(self: Scope, x: Value) -> Value:
    options = self.options
    of_shape(options["cell"], x, "N", "T", options["input_size"])
    y = ops.transpose(x, permutation=(1, 0, 2))
    directions = (False, True) if options["bidirectional"] else (False,)
    found: list[Value] = []
    for number_ in range(options["num_layers"]):
        if number_ and self.training and options["dropout"]:
            y = ops.dropout(y, self.counter(), options["dropout"])
        found = [_run_direction(self, y, number_, backward) for backward in directions]
        y = found[0] if len(found) == 1 else ops.concat(found, axis=2)
    if options["sequence"]:
        return ops.transpose(y, permutation=(1, 0, 2))
    # The last state of each direction: that of the backward one stands at the first step.
    ends = [ys[0 if backward else -1] for ys, backward in zip(found, directions, strict=True)]
    return ends[0] if len(ends) == 1 else ops.concat(ends, axis=1)


def _recurrent(
    cell: str,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    bidirectional: bool,
    sequence: bool,
    dropout: float,
    name: str,
    dtype: DTypeLike,
) -> Module:
    positive("input_size", input_size)
    gates, _, _, separate = _CELLS[cell]
    width = gates * positive("hidden_size", hidden_size)
    bound = 1 / math.sqrt(hidden_size)
    init = uniform(-bound, bound)
    specs: list[ParamSpec] = []
    directions = (False, True) if bidirectional else (False,)
    for number_ in range(positive("num_layers", num_layers, most=MOST_LAYERS)):
        fan_in = input_size if number_ == 0 else hidden_size * len(directions)
        for backward in directions:
            end = _suffix(number_, backward)
            specs.append(param((fan_in, width), init, dtype=dtype, name=f"weight_ih{end}"))
            specs.append(param((hidden_size, width), init, dtype=dtype, name=f"weight_hh{end}"))
            if bias:
                specs.append(param(width, init, dtype=dtype, name=f"bias_ih{end}"))
            if bias and separate:
                specs.append(param(width, init, dtype=dtype, name=f"bias_hh{end}"))
    options = {
        "cell": cell,
        "input_size": input_size,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "bias": bias,
        "bidirectional": bidirectional,
        "sequence": sequence,
        "dropout": number("dropout", dropout, 0.0, 1.0),
    }
    return layer(cell, _build_recurrent, options, specs, name=name)


def LSTM(
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    bidirectional: bool = False,
    sequence: bool = True,
    dropout: float = 0.0,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return long short-term memory: [N, T, input_size] -> [N, T, hidden_size], or the last state.

    Gates stand in the order input, forget, cell, output; states begin at zero. A layer has one
    bias, weights are [in, 4 * hidden_size], all uniform within 1 / sqrt(hidden_size). Source:
    Hochreiter, Schmidhuber, Neural Computation 9 (1997); the forget gate: Gers et al. (2000).

    Args:
        input_size: features of each step.
        hidden_size: features of the state.
        num_layers: layers on top of each other.
        bias: whether gates have a bias.
        bidirectional: whether a second loop runs backwards; its features stand behind the others.
        sequence: whether the result has all steps, else the last state of each direction.
        dropout: the rate of dropout between layers, in training.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    given = (input_size, hidden_size, num_layers, bias, bidirectional, sequence, dropout)
    return _recurrent("LSTM", *given, name, dtype)


def GRU(
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    bidirectional: bool = False,
    sequence: bool = True,
    dropout: float = 0.0,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return gated recurrent units: [N, T, input_size] -> [N, T, hidden_size], or the last state.

    Gates stand in the order reset, update, candidate; the reset gate multiplies the recurrent
    product, as in torch. Arguments are those of LSTM. Source: Cho et al., arXiv 1406.1078.
    """
    given = (input_size, hidden_size, num_layers, bias, bidirectional, sequence, dropout)
    return _recurrent("GRU", *given, name, dtype)
