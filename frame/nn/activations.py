"""Further activations; the usual ones stand in `frame.nn.layers`."""

from __future__ import annotations

from typing import Any

from frame import ops
from frame.core.arguments import shown
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.checks import above_zero, layer, number
from frame.nn.layers import axis_of, positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import full, param

_LARGE = 3.4e38  # what float32 holds


def _build(self: Scope, x: Value) -> Value:
    options = dict(self.options)
    return getattr(ops, options.pop("op"))(x, **options)  # type: ignore[no-any-return]


def _activation(kind: str, op: str, name: str, **attributes: Any) -> Module:
    return layer(kind, _build, {"op": op, **attributes}, name=name)


def _build_identity(self: Scope, *values: Value) -> Any:
    return values[0] if len(values) == 1 else values


def Identity(*, name: str = "") -> Module:
    """Return the inputs: what stands where a layer is left out. It computes nothing: no source."""
    return layer("Identity", _build_identity, {}, name=name)


def CELU(alpha: float = 1.0, *, name: str = "") -> Module:
    """Return max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0). Source: Barron, arXiv 1704.07483."""
    return _activation("CELU", "celu", name, alpha=above_zero("alpha", alpha))


def SELU(*, name: str = "") -> Module:
    """Return the scaled exponential linear unit, which keeps zero mean and unit variance.

    Source: Klambauer et al., arXiv 1706.02515.
    """
    return _activation("SELU", "selu", name)


def Mish(*, name: str = "") -> Module:
    """Return x * tanh(log(1 + exp(x))). Source: Misra, arXiv 1908.08681."""
    return _activation("Mish", "mish", name)


def Softsign(*, name: str = "") -> Module:
    """Return x / (1 + |x|). Source: Turian, Bergstra, Bengio, NAACL 2009."""
    return _activation("Softsign", "softsign", name)


def Hardsigmoid(*, name: str = "") -> Module:
    """Return min(max(x + 3, 0), 6) / 6. Source: Howard et al., arXiv 1905.02244."""
    return _activation("Hardsigmoid", "hardsigmoid", name)


def Hardtanh(low: float = -1.0, high: float = 1.0, *, name: str = "") -> Module:
    """Return the nearest number from `low` to `high`. Source: Collobert, thesis, 2004."""
    bottom, top = (number(what, v, -_LARGE, _LARGE) for what, v in (("low", low), ("high", high)))
    if not bottom < top:
        raise InvalidArgumentError(
            f"low of Hardtanh must be below high, got {shown(low)} and {shown(high)}"
        )
    return _activation("Hardtanh", "hardtanh", name, low=bottom, high=top)


def LogSigmoid(*, name: str = "") -> Module:
    """Return log(1 / (1 + exp(-x))), without rounding through the sigmoid.

    It is -softplus(-x). Source: Dugas et al., NIPS 13 (2000).
    """
    return _activation("LogSigmoid", "log_sigmoid", name)


def LogSoftmax(axis: int = -1, *, name: str = "") -> Module:
    """Return the logarithm of softmax along an axis, without rounding through softmax.

    Source: Bridle, NATO ASI series F68 (1990).
    """
    return _activation("LogSoftmax", "log_softmax", name, axis=axis_of(axis))


def GLU(axis: int = -1, *, name: str = "") -> Module:
    """Return the first half of x along an axis times the sigmoid of the second half.

    Source: Dauphin et al., arXiv 1612.08083.
    """
    return _activation("GLU", "glu", name, axis=axis_of(axis))


def _build_prelu(self: Scope, x: Value) -> Value:
    single = self.options["channels"] == 1
    return ops.prelu(x, ops.reshape(self.weight, ()) if single else self.weight)


def PReLU(
    channels: int = 1, slope: float = 0.25, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return x where x > 0, else weight * x: one weight, or one a channel of [N, channels, ...].

    Source: He et al., arXiv 1502.01852.

    Args:
        channels: how many weights there are; a single one serves all channels.
        slope: what the weights begin with.
        name: the name in the parent.
        dtype: the dtype of the parameter.
    """
    start = full(number("slope", slope, -_LARGE, _LARGE))
    specs = (param(positive("channels", channels), start, dtype=dtype, name="weight"),)
    return layer("PReLU", _build_prelu, {"channels": channels}, specs, name=name)
