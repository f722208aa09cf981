"""Layers: factory functions that return Modules.

Every layer takes an optional `name`, and `dtype` where it has parameters. Images are NCHW.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frame import ops
from frame.core.arguments import LARGEST, is_finite_number, is_flag, is_number, shown
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import MAX_RANK, is_count, numel, shape_text
from frame.ir.graph import Value
from frame.nn.module import Builder, Module, Scope, Shared
from frame.nn.parameters import (
    Initialiser,
    ParamSpec,
    buffer,
    kaiming_uniform,
    ones,
    param,
    uniform,
    zeros,
)
from frame.ops.gradients import count, narrowed, widened

Pair = int | Sequence[int]

TORCH_GAIN = 1 / math.sqrt(3.0)
"""The gain of torch's default: bounds of 1 / sqrt(fan_in)."""


def positive(what: str, value: int, least: int = 1, most: int = LARGEST) -> int:
    """Return an integer from `least` to `most`, or raise InvalidArgumentError that names `what`."""
    if not is_count(value, least):
        raise InvalidArgumentError(
            f"{what} must be an integer of at least {least}, got {shown(value)}"
        )
    if value > most:
        raise InvalidArgumentError(f"{what} must be at most {most}, got {shown(value, 60)}")
    return int(value)


def axis_of(axis: int) -> int:
    """Return an axis, counted from either end, or raise InvalidArgumentError that names it."""
    if not isinstance(axis, numbers.Integral) or isinstance(axis, bool):
        raise InvalidArgumentError(f"axis must be an integer, got {shown(axis)}")
    if not -MAX_RANK <= axis < MAX_RANK:
        raise InvalidArgumentError(
            f"axis must be from {-MAX_RANK} to {MAX_RANK - 1}, got {shown(axis, 60)}"
        )
    return int(axis)


def finite(what: str, value: float, low: float = -math.inf) -> float:
    """Return a finite number of at least `low`, or raise InvalidArgumentError that names `what`."""
    if not is_finite_number(value) or value < low:
        least = "" if low == -math.inf else f" of at least {low}"
        raise InvalidArgumentError(f"{what} must be a finite number{least}, got {shown(value)}")
    return float(value)


FLAGS = frozenset(
    {"bias", "bidirectional", "causal", "keepdims", "local_only", "sequence", "small"}
)
"""The options of layers that are true or false."""


def check_flags(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError where an option of FLAGS is something else."""
    for key in FLAGS.intersection(options):
        if not is_flag(options[key]):
            raise InvalidArgumentError(f"{key} must be True or False, got {shown(options[key])}")


def items_of(what: str, value: int | Sequence[int], forms: Mapping[int, str]) -> tuple[int, ...]:
    """Return the items of a sequence of one of the lengths of `forms`, and a number as two.

    Raises:
        InvalidArgumentError: it is neither; with the forms there are.
    """
    items = (value, value) if isinstance(value, numbers.Integral) else value
    if not isinstance(items, (tuple, list)) or len(items) not in forms:
        raise InvalidArgumentError(
            f"{what} must be a number or {' or '.join(forms.values())}, got {shown(value)}"
        )
    return tuple(items)


def pair(what: str, value: Pair, least: int = 1) -> tuple[int, int]:
    """Return (height, width) of a number or a pair of at least `least`."""
    height, width = items_of(what, value, {2: "(height, width)"})
    return positive(what, height, least), positive(what, width, least)


def _padding(what: str, value: Pair) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) of a number, a pair (height, width), or all four."""
    forms = {2: "(height, width)", 4: "(top, bottom, left, right)"}
    items = tuple(positive(what, item, 0) for item in items_of(what, value, forms))
    if len(items) == 2:
        return items[0], items[0], items[1], items[1]
    return items[0], items[1], items[2], items[3]


def check_window(padding: Sequence[int], window: Sequence[int]) -> None:
    """Raise InvalidArgumentError where a pool has windows that lie in the padding alone."""
    if any(size >= most for size, most in zip(padding, window, strict=True)):
        raise InvalidArgumentError(
            f"padding must be below the window {tuple(dict.fromkeys(window))}, so that no window "
            f"lies in the padding alone, got {tuple(padding)}"
        )


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, int, int, int]:
    total = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    top, left = total[0] // 2, total[1] // 2
    return top, total[0] - top, left, total[1] - left


def _around(
    padding: Pair | str, kernel: Sequence[int], stride: tuple[int, int], dilation: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) of the numbers, or of "same", which keeps the size."""
    if not isinstance(padding, str):
        return _padding("padding", padding)
    if padding != "same" or stride != (1, 1):
        raise InvalidArgumentError(
            f"padding must be numbers, or 'same' with a stride of 1; got {shown(padding)} with a "
            f"stride of {stride}"
        )
    return _same_padding(kernel, dilation)


def _layer(
    kind: str,
    builder: Builder,
    options: Mapping[str, Any],
    specs: Sequence[ParamSpec] = (),
    name: str = "",
) -> Module:
    check_flags(options)
    return Module(name, tuple(specs), (), builder, kind, tuple(options.items()))


# --- linear and convolution -----------------------------------------------------------------------


def _build_linear(self: Scope, x: Value) -> Value:
    shared = self.options["weight"]
    y = ops.matmul(x, self.weight if shared is None else self.shared(shared))
    return ops.add(y, self.bias) if self.options["bias"] else y


def Linear(
    in_features: int,
    out_features: int,
    bias: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    weight: Shared | None = None,
    init: Initialiser | None = None,
) -> Module:
    """Return x @ weight + bias over the last axis: [..., in_features] -> [..., out_features].

    The weight is stored [in_features, out_features]. Weight and bias begin as in torch: uniform
    within 1 / sqrt(in_features); `init` replaces the weight's initialiser. Source: Rumelhart,
    Hinton, Williams, Nature 323 (1986).

    Args:
        in_features: size of the last axis of x.
        out_features: size of the last axis of the result.
        bias: whether there is a bias.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        weight: a shared weight [in_features, out_features] that an ancestor declares.
        init: the initialiser of the weight.
    """
    shape = (positive("in_features", in_features), positive("out_features", out_features))
    if weight is not None and not isinstance(weight, Shared):
        raise InvalidArgumentError(f"weight must be a nn.share(...) or None, got {shown(weight)}")
    if weight is not None and weight.spec.shape != shape:
        raise InvalidArgumentError(
            f"the shared weight of Linear must have the shape {shape_text(shape)}, received "
            f"{shape_text(weight.spec.shape)}"
        )
    specs = []
    if weight is None:
        specs.append(param(shape, init or kaiming_uniform(TORCH_GAIN), dtype=dtype, name="weight"))
    if bias:
        specs.append(_bias(out_features, in_features, dtype))
    options = {"in_features": in_features, "out_features": out_features, "bias": bias}
    return _layer("Linear", _build_linear, {**options, "weight": weight}, specs, name)


def _bias(size: int, fan_in: int, dtype: DTypeLike) -> ParamSpec:
    bound = 1 / math.sqrt(fan_in)
    return param(size, uniform(-bound, bound), dtype=dtype, name="bias")


def _build_conv2d(self: Scope, x: Value) -> Value:
    options = self.options
    y = ops.conv2d(
        x,
        self.weight,
        strides=options["stride"],
        padding=options["padding"],
        dilation=options["dilation"],
        groups=options["groups"],
    )
    if not options["bias"]:
        return y
    return ops.add(y, ops.reshape(self.bias, (options["out_channels"], 1, 1)))


def Conv2d(
    in_channels: int,
    out_channels: int,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the convolution [N, in_channels, H, W] -> [N, out_channels, H', W'].

    The weight is [out_channels, in_channels / groups, height, width]; it and the bias begin as in
    torch, uniform within 1 / sqrt(fan_in). Source: LeCun et al., Proceedings of the IEEE 86 (1998);
    groups: Krizhevsky et al., NIPS 2012; dilation: Yu, Koltun, arXiv 1511.07122.

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        kernel_size: the window, a number or (height, width).
        stride: steps of the window.
        padding: zeros around x: a number, (height, width), (top, bottom, left, right), or "same",
            which keeps H and W at stride 1.
        dilation: distance of neighbours in the window.
        groups: independent slices of the channels.
        bias: whether there is a bias.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of the weight.
    """
    for what, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if positive(what, channels) % positive("groups", groups):
            raise InvalidArgumentError(f"{what}, {channels}, must divide into {groups} groups")
    kernel, steps = pair("kernel_size", kernel_size), pair("stride", stride)
    spread = pair("dilation", dilation)
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": kernel,
        "stride": steps,
        "padding": _around(padding, kernel, steps, spread),
        "dilation": spread,
        "groups": groups,
        "bias": bias,
    }
    shape = (out_channels, in_channels // groups, *kernel)
    specs = [param(shape, init or kaiming_uniform(TORCH_GAIN), dtype=dtype, name="weight")]
    specs += [_bias(out_channels, math.prod(shape[1:]), dtype)] if bias else []
    return _layer("Conv2d", _build_conv2d, options, specs, name)


# --- pooling --------------------------------------------------------------------------------------


def _pooling(
    kind: str, builder: Builder, kernel: Pair, stride: Pair | None, padding: Pair, name: str
) -> Module:
    window = pair("kernel_size", kernel)
    around = _padding("padding", padding)
    check_window(around, (window[0], window[0], window[1], window[1]))
    options = {
        "kernel_size": window,
        "stride": window if stride is None else pair("stride", stride),
        "padding": around,
    }
    return _layer(kind, builder, options, (), name)


def _pool_attributes(self: Scope) -> dict[str, Any]:
    options = self.options
    return {
        "kernel": options["kernel_size"],
        "strides": options["stride"],
        "padding": options["padding"],
    }


def _build_max_pool2d(self: Scope, x: Value) -> Value:
    y, _ = ops.max_pool2d(x, **_pool_attributes(self))
    return y


def _build_avg_pool2d(self: Scope, x: Value) -> Value:
    return ops.avg_pool2d(x, **_pool_attributes(self))


def MaxPool2d(
    kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, *, name: str = ""
) -> Module:
    """Return the largest element of each window of [N, C, H, W]; the stride is the window's size.

    `padding` is a number, (height, width) or (top, bottom, left, right), and never wins; of equal
    elements the first gets the gradient. Source: Yamaguchi et al., ICSLP 1990; Ranzato et al.,
    CVPR 2007.
    """
    return _pooling("MaxPool2d", _build_max_pool2d, kernel_size, stride, padding, name)


def AvgPool2d(
    kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, *, name: str = ""
) -> Module:
    """Return the mean of each window of [N, C, H, W]; padding counts as zeros.

    Source: LeCun et al., Proceedings of the IEEE 86 (1998).
    """
    return _pooling("AvgPool2d", _build_avg_pool2d, kernel_size, stride, padding, name)


def _build_global_avg_pool2d(self: Scope, x: Value) -> Value:
    return ops.mean(x, axes=(2, 3))


def GlobalAvgPool2d(*, name: str = "") -> Module:
    """Return the mean of each channel: [N, C, H, W] -> [N, C].

    Source: Lin, Chen, Yan, arXiv 1312.4400.
    """
    return _layer("GlobalAvgPool2d", _build_global_avg_pool2d, {}, (), name)


# --- normalisation --------------------------------------------------------------------------------


_NORM_RANKS = {"BatchNorm1d": (2, 3), "BatchNorm2d": (4,)}
_NORM_INPUTS = {"BatchNorm1d": "features [N, C] or [N, C, L]", "BatchNorm2d": "images [N, C, H, W]"}


def _build_batch_norm(self: Scope, x: Value) -> Value:
    options = self.options
    eps, kind = options["eps"], options["op"]
    if x.rank not in _NORM_RANKS[kind]:
        raise InvalidArgumentError(
            f"{kind} takes {_NORM_INPUTS[kind]}, received the shape {shape_text(x.shape)}"
        )
    if not self.training:
        return ops.batch_norm_infer(
            x, self.gamma, self.beta, self.running_mean, self.running_var, eps=eps
        )
    y, mean, variance = ops.batch_norm_train(x, self.gamma, self.beta, eps=eps)
    self.update("running_mean", _moved(self.running_mean, mean, options["momentum"]))
    unbiased = ops.mul(variance, _bessel(x))
    self.update("running_var", _moved(self.running_var, unbiased, options["momentum"]))
    return y


def _moved(running: Value, batch: Value, momentum: float) -> Value:
    batch = ops.stop_gradient(batch)
    return ops.add(ops.mul(running, 1.0 - momentum), ops.mul(batch, momentum))


def _bessel(x: Value) -> Value | float:
    """Return n / (n - 1) for the n elements of a channel, 1 for a single one."""
    known = numel([size for axis, size in enumerate(x.shape) if axis != 1])
    if isinstance(known, int):
        return known / max(known - 1, 1)
    elements = count(x, (0, *range(2, x.rank)), widened(x).dtype)
    ratio = ops.div(elements, ops.maximum(ops.sub(elements, 1.0), 1.0))
    return narrowed(ratio, x.dtype)


def BatchNorm1d(
    num_features: int,
    eps: float = 1e-5,
    momentum: float = 0.1,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return batch normalisation of [N, num_features] or [N, num_features, L], else as BatchNorm2d.

    Source: Ioffe, Szegedy, arXiv 1502.03167.
    """
    return _batch_norm("BatchNorm1d", num_features, eps, momentum, name, dtype)


def BatchNorm2d(
    num_features: int,
    eps: float = 1e-5,
    momentum: float = 0.1,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return batch normalisation of [N, num_features, H, W] over N, H and W.

    Parameters gamma and beta, buffers running_mean and running_var. Training normalises with the
    statistics of the batch and moves the buffers: running = (1 - momentum) * running + momentum *
    batch, with the unbiased variance, as torch does; inference normalises with the buffers.
    Source: Ioffe, Szegedy, arXiv 1502.03167.
    """
    return _batch_norm("BatchNorm2d", num_features, eps, momentum, name, dtype)


def _batch_norm(
    kind: str, features: int, eps: float, momentum: float, name: str, dtype: DTypeLike
) -> Module:
    positive("num_features", features)
    if not 0 <= finite("momentum", momentum) <= 1:
        raise InvalidArgumentError(f"momentum must be from 0 to 1, got {shown(momentum)}")
    specs = (
        param(features, ones(), dtype=dtype, name="gamma"),
        param(features, zeros(), dtype=dtype, name="beta"),
        buffer(features, zeros(), dtype=dtype, name="running_mean"),
        buffer(features, ones(), dtype=dtype, name="running_var"),
    )
    options = {
        "op": kind,  # hidden from people, who see the kind itself
        "num_features": features,
        "eps": finite("eps", eps, 0.0),
        "momentum": float(momentum),
    }
    return _layer(kind, _build_batch_norm, options, specs, name)


def _build_layer_norm(self: Scope, x: Value) -> Value:
    return ops.layer_norm(x, self.gamma, self.beta, eps=self.options["eps"])


def LayerNorm(
    features: int, eps: float = 1e-5, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return layer normalisation over the last axis, with the parameters gamma and beta.

    Source: Ba, Kiros, Hinton, arXiv 1607.06450.
    """
    specs = (
        param(positive("features", features), ones(), dtype=dtype, name="gamma"),
        param(features, zeros(), dtype=dtype, name="beta"),
    )
    options = {"features": features, "eps": finite("eps", eps, 0.0)}
    return _layer("LayerNorm", _build_layer_norm, options, specs, name)


# --- activations ----------------------------------------------------------------------------------


def _build_activation(self: Scope, x: Value) -> Value:
    options = dict(self.options)
    return getattr(ops, options.pop("op"))(x, **options)


def _activation(kind: str, op: str, name: str, **attributes: Any) -> Module:
    return _layer(kind, _build_activation, {"op": op, **attributes}, (), name)


def ReLU(*, name: str = "") -> Module:
    """Return max(x, 0). Source: Nair, Hinton, ICML 2010."""
    return _activation("ReLU", "relu", name)


def Sigmoid(*, name: str = "") -> Module:
    """Return 1 / (1 + exp(-x)). Source: Rumelhart, Hinton, Williams, Nature 323 (1986)."""
    return _activation("Sigmoid", "sigmoid", name)


def Tanh(*, name: str = "") -> Module:
    """Return tanh(x). Source: LeCun et al., "Efficient BackProp", LNCS 1524 (1998)."""
    return _activation("Tanh", "tanh", name)


def GELU(approximate: str = "none", *, name: str = "") -> Module:
    """Return x * Phi(x), Phi the distribution function of the standard normal distribution.

    `approximate` is "none", or "tanh" for the formula of the paper with tanh in the place of erf.
    Source: Hendrycks, Gimpel, arXiv 1606.08415.
    """
    if approximate not in ("none", "tanh"):
        raise InvalidArgumentError(
            f"approximate must be one of none, tanh, got {shown(approximate)}"
        )
    return _activation("GELU", "gelu", name, approximate=approximate)


def SiLU(*, name: str = "") -> Module:
    """Return x * sigmoid(x). Source: Elfwing, Uchibe, Doya, arXiv 1702.03118."""
    return _activation("SiLU", "silu", name)


def LeakyReLU(slope: float = 0.01, *, name: str = "") -> Module:
    """Return x where x > 0, else slope * x. Source: Maas, Hannun, Ng, ICML 2013 (workshop)."""
    return _activation("LeakyReLU", "leaky_relu", name, slope=finite("slope", slope))


def ELU(alpha: float = 1.0, *, name: str = "") -> Module:
    """Return x where x > 0, else alpha * (exp(x) - 1). Source: Clevert et al., arXiv 1511.07289."""
    return _activation("ELU", "elu", name, alpha=finite("alpha", alpha))


def ReLU6(*, name: str = "") -> Module:
    """Return min(max(x, 0), 6). Source: Krizhevsky, CIFAR-10 report, 2010."""
    return _activation("ReLU6", "relu6", name)


def Hardswish(*, name: str = "") -> Module:
    """Return x * relu6(x + 3) / 6. Source: Howard et al., arXiv 1905.02244."""
    return _activation("Hardswish", "hardswish", name)


def Softplus(*, name: str = "") -> Module:
    """Return log(1 + exp(x)). Source: Dugas et al., NIPS 13 (2000)."""
    return _activation("Softplus", "softplus", name)


def Softmax(axis: int = -1, *, name: str = "") -> Module:
    """Return exp(x) divided by its sum along an axis. Source: Bridle, NATO ASI F68 (1990)."""
    return _activation("Softmax", "softmax", name, axis=axis_of(axis))


# --- structure ------------------------------------------------------------------------------------


def _build_flatten(self: Scope, x: Value) -> Value:
    start = self.options["start"]
    if x.rank < start:
        raise InvalidArgumentError(
            f"Flatten joins the axes from {start} on, received the shape {shape_text(x.shape)}"
        )
    return ops.reshape(x, (*x.shape[:start], numel(x.shape[start:])))


def Flatten(start: int = 1, *, name: str = "") -> Module:
    """Join all axes from `start` on: [N, C, H, W] -> [N, C * H * W].

    Source: LeCun et al., Proceedings of the IEEE 86 (1998), where convolutions meet full layers.
    """
    options = {"start": positive("start", start, 0, MAX_RANK)}
    return _layer("Flatten", _build_flatten, options, (), name)


def _build_dropout(self: Scope, x: Value) -> Value:
    rate = self.options["rate"]
    if not self.training or rate == 0:
        return x
    return ops.dropout(x, self.counter(), rate)


def Dropout(rate: float = 0.5, *, name: str = "") -> Module:
    """Set elements to zero with probability `rate` and divide the others by 1 - rate, in training.

    In inference it is the identity. The masks follow from the seed and the step, the counter that
    becomes an input of the graph. Source: Srivastava et al., JMLR 15 (2014).
    """
    if not is_number(rate) or not 0 <= rate < 1:
        raise InvalidArgumentError(f"the rate of Dropout must be in [0, 1), got {shown(rate)}")
    return _layer("Dropout", _build_dropout, {"rate": float(rate)}, (), name)


def _build_sequential(self: Scope, *inputs: Any) -> Any:
    values: Any = inputs
    for position in range(len(self)):
        values = self[position](*values)
        values = values if isinstance(values, (tuple, list)) else (values,)
    return values[0] if len(values) == 1 else tuple(values)


def Sequential(
    name: str | Sequence[Module] = "",
    children: Sequence[Module] = (),
    *,
    shared: Mapping[str, Shared] | None = None,
) -> Module:
    """Apply children one after another; several results of one are the inputs of the next.

    It computes nothing of its own, so there is no source.

    Args:
        name: the name, the first part of the paths of all parameters; may be left out.
        children: the modules, called by their names or by their positions.
        shared: shared parameters that this module owns for the layers below, by name.
    """
    label = name if isinstance(name, str) else ""
    modules = children if isinstance(name, str) else name
    if modules is name and children:
        raise InvalidArgumentError(
            f"name of Sequential must be a text where there are children, got {shown(name)}"
        )
    if not isinstance(modules, Iterable):
        what = "children" if isinstance(name, str) else "name"
        raise InvalidArgumentError(f"{what} of Sequential must be modules, got {shown(modules)}")
    modules = tuple(modules)
    for child in modules:
        if not isinstance(child, Module):
            raise InvalidArgumentError(
                f"Sequential takes modules as its children, received {shown(child)}"
            )
    if shared is not None and not isinstance(shared, Mapping):
        raise InvalidArgumentError(f"shared of Sequential must be a mapping, got {shown(shared)}")
    owned = dict(shared or {})
    specs = tuple(entry.spec.renamed(key) for key, entry in owned.items())
    positions = tuple(enumerate(owned.values()))
    return Module(label, specs, modules, _build_sequential, "Sequential", (), positions)
