"""Further layers: sequences, norms, tables, residuals, attentional fusion, spiking neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from frame import ops
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.checks import above_zero, divides, layer, number, of_shape
from frame.nn.layers import (
    TORCH_GAIN,
    BatchNorm2d,
    Conv2d,
    Linear,
    items_of,
    pair,
    positive,
)
from frame.nn.module import Module, Scope
from frame.nn.parameters import Initialiser, kaiming_uniform, normal, ones, param, uniform, zeros

# --- convolutions ---------------------------------------------------------------------------------


def _with_bias(y: Value, self: Scope) -> Value:
    if not self.options["bias"]:
        return y
    return y + ops.reshape(self.bias, (*self.bias.shape, *(1,) * (y.rank - 2)))


def _build_conv1d(self: Scope, x: Value) -> Value:
    options = self.options
    names = ("stride", "padding", "dilation", "groups")
    y = ops.conv1d(x, self.weight, **{name: options[name] for name in names})
    return _with_bias(y, self)


def sides(padding: int | Sequence[int]) -> tuple[int, int]:
    """Return (before, behind) of a padding, a number or a pair."""
    before, behind = items_of("padding", padding, {2: "(before, behind)"})
    return positive("padding", before, 0), positive("padding", behind, 0)


def Conv1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int | Sequence[int] = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the convolution [N, in_channels, L] -> [N, out_channels, L'].

    The weight is [out_channels, in_channels / groups, kernel_size]; it and the bias begin as in
    torch, uniform within 1 / sqrt(fan_in). Source: Waibel et al., IEEE ASSP 37 (1989).

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        kernel_size: the window.
        stride: steps of the window.
        padding: zeros at both ends: a number, or (before, behind).
        dilation: distance of neighbours in the window.
        groups: independent slices of the channels.
        bias: whether there is a bias.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of the weight.
    """
    width = divides("in_channels", in_channels, "groups", groups)
    divides("out_channels", out_channels, "groups", groups)
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": positive("kernel_size", kernel_size),
        "stride": positive("stride", stride),
        "padding": sides(padding),
        "dilation": positive("dilation", dilation),
        "groups": groups,
        "bias": bias,
    }
    shape = (out_channels, width, kernel_size)
    start = init or kaiming_uniform(TORCH_GAIN)
    specs = [param(shape, start, dtype=dtype, name="weight")]
    if bias:
        bound = 1 / math.sqrt(width * kernel_size)
        specs.append(param(out_channels, uniform(-bound, bound), dtype=dtype, name="bias"))
    return layer("Conv1d", _build_conv1d, options, specs, name=name)


def _build_transpose(self: Scope, x: Value) -> Value:
    options = self.options
    vertical, horizontal = options["padding"]
    y = ops.conv_transpose2d(
        x,
        self.weight,
        strides=options["stride"],
        padding=(vertical, vertical, horizontal, horizontal),
        output_padding=options["output_padding"],
        dilation=options["dilation"],
        groups=options["groups"],
    )
    return _with_bias(y, self)


def ConvTranspose2d(
    in_channels: int,
    out_channels: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: int | Sequence[int] = 1,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the transposed convolution [N, in_channels, H, W] -> [N, out_channels, H', W'].

    H' = (H - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1. The weight
    is [in_channels, out_channels / groups, height, width], as in torch. Source: Zeiler et al.,
    CVPR 2010; Dumoulin, Visin, arXiv 1603.07285.

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        kernel_size: the window, a number or (height, width).
        stride: steps of the window in the result.
        padding: rows and columns cropped at each side.
        output_padding: rows and columns more at the end.
        groups: independent slices of the channels.
        bias: whether there is a bias.
        dilation: distance of neighbours in the window.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of the weight.
    """
    divides("in_channels", in_channels, "groups", groups)
    width = divides("out_channels", out_channels, "groups", groups)
    kernel = pair("kernel_size", kernel_size)
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": kernel,
        "stride": pair("stride", stride),
        "padding": pair("padding", padding, 0),
        "output_padding": pair("output_padding", output_padding, 0),
        "groups": groups,
        "bias": bias,
        "dilation": pair("dilation", dilation),
    }
    _check_output(options)
    start = init or kaiming_uniform(TORCH_GAIN)
    specs = [param((in_channels, width, *kernel), start, dtype=dtype, name="weight")]
    if bias:
        bound = 1 / math.sqrt(width * math.prod(kernel))
        specs.append(param(out_channels, uniform(-bound, bound), dtype=dtype, name="bias"))
    return layer("ConvTranspose2d", _build_transpose, options, specs, name=name)


def _check_output(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError where output_padding names no size that strides make equal."""
    names = ("output_padding", "stride", "dilation")
    columns = [v if isinstance(v, tuple) else (v,) for v in (options[name] for name in names)]
    for more, step, spread in zip(*columns, strict=True):
        if more >= max(step, spread):
            raise InvalidArgumentError(
                f"output_padding must be below the stride {step} or the dilation {spread}, got "
                f"{more}: it chooses between sizes that a stride makes equal"
            )


def _build_transpose1d(self: Scope, x: Value) -> Value:
    options = self.options
    of_shape("ConvTranspose1d", x, "N", options["in_channels"], "L")
    crop, more = options["padding"], options["output_padding"]
    y = ops.conv_transpose2d(
        ops.unsqueeze(x, 2),
        ops.unsqueeze(self.weight, 2),
        strides=(1, options["stride"]),
        padding=(0, 0, crop, crop),
        output_padding=(0, more),
        dilation=(1, options["dilation"]),
        groups=options["groups"],
    )
    return _with_bias(ops.squeeze(y, 2), self)


def ConvTranspose1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: int = 1,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the transposed convolution [N, in_channels, L] -> [N, out_channels, L'].

    L' = (L - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1. The weight
    is [in_channels, out_channels / groups, kernel_size]. Arguments and sources are those of
    ConvTranspose2d, with numbers in the place of pairs.
    """
    divides("in_channels", in_channels, "groups", groups)
    width = divides("out_channels", out_channels, "groups", groups)
    options = {
        "in_channels": in_channels,
        "out_channels": out_channels,
        "kernel_size": positive("kernel_size", kernel_size),
        "stride": positive("stride", stride),
        "padding": positive("padding", padding, 0),
        "output_padding": positive("output_padding", output_padding, 0),
        "groups": groups,
        "bias": bias,
        "dilation": positive("dilation", dilation),
    }
    _check_output(options)
    start = init or kaiming_uniform(TORCH_GAIN)
    specs = [param((in_channels, width, kernel_size), start, dtype=dtype, name="weight")]
    if bias:
        bound = 1 / math.sqrt(width * kernel_size)
        specs.append(param(out_channels, uniform(-bound, bound), dtype=dtype, name="bias"))
    return layer("ConvTranspose1d", _build_transpose1d, options, specs, name=name)


def _build_global_pool(self: Scope, x: Value) -> Value:
    return ops.global_avg_pool(x, keepdims=self.options["keepdims"])


def GlobalAvgPool(keepdims: bool = False, *, name: str = "") -> Module:
    """Return the mean of each channel over all axes behind it: [N, C, ...] -> [N, C].

    Source: Lin, Chen, Yan, arXiv 1312.4400.
    """
    return layer("GlobalAvgPool", _build_global_pool, {"keepdims": keepdims}, name=name)


# --- norms and tables -----------------------------------------------------------------------------


def _build_group_norm(self: Scope, x: Value) -> Value:
    options = self.options
    return ops.group_norm(x, self.gamma, self.beta, groups=options["groups"], eps=options["eps"])


def GroupNorm(
    groups: int, channels: int, eps: float = 1e-5, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return group normalisation of [N, channels, ...], with the parameters gamma and beta.

    One group a channel is instance normalisation. Source: Wu, He, arXiv 1803.08494.
    """
    divides("channels", channels, "groups", groups)
    specs = (
        param(channels, ones(), dtype=dtype, name="gamma"),
        param(channels, zeros(), dtype=dtype, name="beta"),
    )
    options = {"groups": groups, "channels": channels, "eps": number("eps", eps, 0.0)}
    return layer("GroupNorm", _build_group_norm, options, specs, name=name)


def _build_rms_norm(self: Scope, x: Value) -> Value:
    return ops.rms_norm(x, self.gamma, eps=self.options["eps"])


def RMSNorm(
    features: int, eps: float = 1e-5, *, name: str = "", dtype: DTypeLike = float32
) -> Module:
    """Return root mean square normalisation over the last axis, with the parameter gamma.

    Source: Zhang, Sennrich, arXiv 1910.07467.
    """
    specs = (param(positive("features", features), ones(), dtype=dtype, name="gamma"),)
    options = {"features": features, "eps": number("eps", eps, 0.0)}
    return layer("RMSNorm", _build_rms_norm, options, specs, name=name)


def _build_embedding(self: Scope, indices: Value) -> Value:
    return ops.embedding(self.weight, indices, padding_index=self.options["padding_index"])


def Embedding(
    rows: int,
    features: int,
    padding_index: int = -1,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return rows of a table [rows, features] at integer positions: [...] -> [..., features].

    Positions out of range are an error when the graph runs. Rows begin standard normal; the row
    `padding_index` gets no gradient, -1 names none. Source: Bengio et al., JMLR 3 (2003).
    """
    shape = (positive("rows", rows), positive("features", features))
    if positive("padding_index", padding_index, -1) >= rows:
        raise InvalidArgumentError(
            f"padding_index must be a row of the {rows} or -1, got {padding_index}"
        )
    specs = (param(shape, init or normal(), dtype=dtype, name="weight"),)
    options = {"rows": rows, "features": features, "padding_index": padding_index}
    return layer("Embedding", _build_embedding, options, specs, name=name)


# --- residual and attentional fusion --------------------------------------------------------------


def _build_residual(self: Scope, x: Value) -> Value:
    branch, rest = self[0](x), self[1](x) if len(self) > 1 else x
    return branch + rest  # type: ignore[no-any-return]


def Residual(branch: Module, shortcut: Module | None = None, *, name: str = "") -> Module:
    """Return branch(x) + x, or branch(x) + shortcut(x). Source: He et al., arXiv 1512.03385."""
    for what, module in {"branch": branch, "shortcut": shortcut}.items():
        if not isinstance(module, Module) and not (module is None and what == "shortcut"):
            raise InvalidArgumentError(
                f"Residual takes modules as its branch and shortcut, received {module!r:.80} as "
                f"its {what}"
            )
    children = {"branch": branch} | ({} if shortcut is None else {"shortcut": shortcut})
    return layer("Residual", _build_residual, {}, (), children, name)


def _local_context(self: Scope, x: Value) -> Value:
    if self.options["variant"] == "seed":
        return self.c2(ops.relu(self.c1(x)))  # type: ignore[no-any-return]
    return self.local_bn2(self.local2(ops.relu(self.local_bn1(self.local1(x)))))  # type: ignore[no-any-return]


def _build_aff(self: Scope, x: Value, y: Value) -> Value:
    both = x + y
    context = _local_context(self, both)
    if self.options["variant"] == "full":
        pooled = ops.global_avg_pool(both, keepdims=True)
        inner = ops.relu(self.global_bn1(self.global1(pooled)))
        context = context + self.global_bn2(self.global2(inner))
    weight = ops.sigmoid(context)
    return weight * x + (1.0 - weight) * y


def AFF(
    channels: int,
    reduction: int = 4,
    local_only: bool = False,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return attentional feature fusion of two images: (x, y) -> M * x + (1 - M) * y.

    M = sigmoid(L(x + y) + G(x + y)), the multi-scale channel attention MS-CAM: L is a bottleneck of
    two 1 x 1 convolutions with BatchNorm at each pixel, G the same on the global average.
    `local_only` is the variant M = sigmoid(c2(relu(c1(x + y)))) without G, reduction and norms.
    Source: Dai et al., "Attentional Feature Fusion", WACV 2021, arXiv 2009.14082.
    """
    channels = positive("channels", channels)
    options = {"channels": channels, "reduction": reduction, "local_only": local_only}
    options["variant"] = "seed" if local_only else "full"  # type: ignore[assignment]
    if local_only:
        convs = {part: Conv2d(channels, channels, 1, dtype=dtype) for part in ("c1", "c2")}
        return layer("AFF", _build_aff, options, (), convs, name)
    inner = max(channels // positive("reduction", reduction), 1)
    children: dict[str, Module] = {}
    for place in ("local", "global"):
        children[f"{place}1"] = Conv2d(channels, inner, 1, dtype=dtype)
        children[f"{place}_bn1"] = BatchNorm2d(inner, dtype=dtype)
        children[f"{place}2"] = Conv2d(inner, channels, 1, dtype=dtype)
        children[f"{place}_bn2"] = BatchNorm2d(channels, dtype=dtype)
    return layer("AFF", _build_aff, options, (), children, name)


# --- spiking neurons ------------------------------------------------------------------------------


def _build_lif(self: Scope, x: Value) -> Value:
    options = self.options
    of_shape("LIFCell", x, "N", "T", "F")
    decay, threshold, alpha = (options[n] for n in ("decay", "threshold", "alpha"))

    def step(potential: Value, drive: Value) -> tuple[Value, Value]:
        charged = potential * decay + drive
        spike = ops.heaviside_surrogate(charged - threshold, alpha=alpha)
        return charged * (1.0 - spike), spike

    rest = ops.zeros((x.shape[0], x.shape[2]), x.dtype)
    _, spikes = ops.scan(step, rest, ops.transpose(x, permutation=(1, 0, 2)))
    return ops.transpose(spikes, permutation=(1, 0, 2))


def LIFCell(
    decay: float = 0.9, threshold: float = 1.0, alpha: float = 2.0, *, name: str = ""
) -> Module:
    """Return leaky integrate-and-fire neurons: currents [N, T, F] -> spikes of 0 and 1.

    v = decay * v + x[t]; a neuron fires where v >= threshold, and v is then reset to zero. The
    gradient of firing is that of sigmoid(alpha * (v - threshold)), through the reset too.
    Source: Neftci, Mostafa, Zenke, arXiv 1901.09948.
    """
    options = {
        "decay": number("decay", decay, 0.0, 1.0),
        "threshold": above_zero("threshold", threshold),
        "alpha": above_zero("alpha", alpha),
    }
    return layer("LIFCell", _build_lif, options, name=name)


def _build_snn(self: Scope, x: Value) -> Value:
    return ops.sum(self.output(self.lif(self.input(x))), axes=(1,))


def SnnClassifier(
    in_features: int,
    hidden_features: int,
    classes: int,
    decay: float = 0.9,
    threshold: float = 1.0,
    alpha: float = 2.0,
    bias: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return Linear, LIFCell, Linear, summed over time: [N, T, in_features] -> [N, classes].

    Source: Neftci, Mostafa, Zenke, arXiv 1901.09948.
    """
    hidden_features = positive("hidden_features", hidden_features)
    classes = positive("classes", classes)
    children: dict[str, Any] = {
        "input": Linear(in_features, hidden_features, bias, dtype=dtype),
        "lif": LIFCell(decay, threshold, alpha),
        "output": Linear(hidden_features, classes, bias, dtype=dtype),
    }
    return layer("SnnClassifier", _build_snn, {"classes": classes}, (), children, name)
