"""The factories of the BluePrint DSL. Their arguments are checked when they are called.

Windows are square, padding is the same on all sides, data is NHWC. Convolutions have no bias: the
normalisation that follows them has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frame.blueprint.checks import flag, one_of, part, parts, real, style, whole, window
from frame.blueprint.values import BlockStyle, BluePrint
from frame.core.errors import InvalidArgumentError

BOTTLENECKS = (BlockStyle.RESNET_1_3_1, BlockStyle.RESNET_1_3_1_DS)
PLAIN_BLOCKS = tuple(each for each in BlockStyle if each not in BOTTLENECKS)


def _make(factory: str, *arguments: Any, children: tuple[BluePrint, ...] = ()) -> BluePrint:
    return BluePrint(factory, arguments, children)


# --- layers with parameters -----------------------------------------------------------------------


def conv(out_channels: int, kernel: int, stride: int = 1, padding: int = 0) -> BluePrint:
    """Convolution, [N, H, W, C] -> [N, H', W', out_channels], without bias.

    H' = floor((H + 2 padding - kernel) / stride) + 1, and W' likewise.
    """
    channels = whole("conv", "out_channels", out_channels)
    return _make("conv", channels, *window("conv", kernel, stride, padding))


def conv_dw(kernel: int, stride: int = 1, padding: int = 0) -> BluePrint:
    """Depthwise convolution: each channel has a window of its own. No bias."""
    return _make("conv_dw", *window("conv_dw", kernel, stride, padding))


def group_conv(
    out_channels: int, groups: int, kernel: int, stride: int = 1, padding: int = 0
) -> BluePrint:
    """Convolution in `groups` independent slices of the channels, without bias.

    `groups` must divide `out_channels`, and the channels of the input where it is placed.
    """
    channels = whole("group_conv", "out_channels", out_channels)
    count = whole("group_conv", "groups", groups)
    if channels % count:
        raise InvalidArgumentError(
            f"group_conv: groups must divide out_channels {channels}, received {count}"
        )
    return _make("group_conv", channels, count, *window("group_conv", kernel, stride, padding))


def bn(momentum: float = 0.1, eps: float = 1e-5) -> BluePrint:
    """Batch normalisation with scale and shift: of images by channel, or of features.

    The running statistics move by `momentum` in training. Source: Ioffe, Szegedy, arXiv 1502.03167.
    """
    return _make("bn", *_norm("bn", momentum, eps))


def fc(out_features: int, bias: bool) -> BluePrint:
    """Fully connected layer. It takes images too, whose elements it reads in the order H, W, C."""
    features = whole("fc", "out_features", out_features)
    return _make("fc", features, flag("fc", "bias", bias))


def _norm(factory: str, momentum: Any, eps: Any) -> tuple[float, float]:
    moved = real(factory, "momentum", momentum, 0, 1, "[0, 1]")
    return moved, real(factory, "eps", eps, 0, 1, "(0, 1]")


# --- element by element ---------------------------------------------------------------------------


def relu() -> BluePrint:
    """max(x, 0)."""
    return _make("relu")


def tanh_act() -> BluePrint:
    """tanh(x)."""
    return _make("tanh_act")


def silu() -> BluePrint:
    """X * sigmoid(x)."""
    return _make("silu")


def relu6() -> BluePrint:
    """min(max(x, 0), 6). Source: Howard et al., arXiv 1704.04861."""
    return _make("relu6")


def sigmoid() -> BluePrint:
    """1 / (1 + exp(-x))."""
    return _make("sigmoid")


def leaky_relu() -> BluePrint:
    """X where x > 0, else 0.01 x."""
    return _make("leaky_relu")


def elu() -> BluePrint:
    """X where x > 0, else exp(x) - 1. Source: Clevert et al., arXiv 1511.07289."""
    return _make("elu")


def hardswish() -> BluePrint:
    """X * relu6(x + 3) / 6. Source: Howard et al., arXiv 1905.02244."""
    return _make("hardswish")


def dropout(rate: float) -> BluePrint:
    """In training, set elements to zero with probability `rate`, divide the others by 1 - rate."""
    return _make("dropout", real("dropout", "rate", rate, 0, 1, "[0, 1)"))


def identity() -> BluePrint:
    """Return the input; the empty shortcut of `add2`."""
    return _make("identity")


# --- shape ----------------------------------------------------------------------------------------


def flatten(start_dim: int = 1) -> BluePrint:
    """Join height, width and channels, in this order: [N, H, W, C] -> [N, H * W * C].

    `start_dim` is 1: the batch is never joined. Before `fc` it may be left out.
    """
    return _make("flatten", one_of("flatten", "start_dim", start_dim, (1,)))


def channel_padding() -> BluePrint:
    """Append channels of zeros up to the next multiple of 8."""
    return _make("channel_padding")


def maxpool(kernel: int, stride: int, padding: int) -> BluePrint:
    """Largest element of each window; padding never wins. H' as in `conv`."""
    return _make("maxpool", *window("maxpool", kernel, stride, padding, pool=True))


def avgpool(kernel: int, stride: int, padding: int) -> BluePrint:
    """Mean of each window, padding counted as zeros. H' as in `conv`."""
    return _make("avgpool", *window("avgpool", kernel, stride, padding, pool=True))


def gap() -> BluePrint:
    """Mean of each channel: [N, H, W, C] -> [N, C]."""
    return _make("gap")


# --- composition ----------------------------------------------------------------------------------


def seq(*layers: BluePrint | Sequence[BluePrint]) -> BluePrint:
    """Apply layers one after another; takes layers, or one list of them.

    Raises:
        InvalidArgumentError: there is no layer, or an argument is no layer.
    """
    one_list = len(layers) == 1 and isinstance(layers[0], (list, tuple))
    found = parts("seq", layers[0] if one_list else layers)  # type: ignore[arg-type]
    return _make("seq", children=found)


def add2(shortcut: BluePrint, stem: BluePrint) -> BluePrint:
    """Apply both parts to the input and add their results, which must have one shape."""
    found = (part("add2", "shortcut", shortcut), part("add2", "stem", stem))
    return _make("add2", children=found)


def repeat(body: BluePrint, times: int) -> BluePrint:
    """Apply a part `times` times, each time with parameters of its own."""
    return _make(
        "repeat", whole("repeat", "times", times), children=(part("repeat", "body", body),)
    )


# --- blocks ---------------------------------------------------------------------------------------


def cbr(
    out_channels: int,
    kernel: int,
    stride: int,
    padding: int,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BluePrint:
    """Convolution, batch normalisation, relu."""
    channels = whole("cbr", "out_channels", out_channels)
    sizes = window("cbr", kernel, stride, padding)
    return _make("cbr", channels, *sizes, *_norm("cbr", momentum, eps))


conv_bn_relu = cbr


def cbrp(
    out_channels: int,
    kernel: int,
    stride: int,
    padding: int,
    pool_kernel: int,
    pool_stride: int,
    pool_padding: int,
) -> BluePrint:
    """Convolution, batch normalisation, relu, max-pooling."""
    channels = whole("cbrp", "out_channels", out_channels)
    sizes = window("cbrp", kernel, stride, padding)
    pool = window("cbrp", pool_kernel, pool_stride, pool_padding, pool=True, before="pool_")
    return _make("cbrp", channels, *sizes, *pool)


def gap_fc(out_features: int, bias: bool) -> BluePrint:
    """Mean of each channel, then a fully connected layer."""
    features = whole("gap_fc", "out_features", out_features)
    return _make("gap_fc", features, flag("gap_fc", "bias", bias))


def block(*arguments: Any) -> BluePrint:
    """Residual block: `block(middle, out, style)` for bottlenecks, `block(out, style)` for others.

    The shortcut is the identity where the block keeps the shape, and a 1 x 1 convolution with
    batch normalisation otherwise; MB blocks have a shortcut only where they keep the shape.

    Raises:
        InvalidArgumentError: the number of arguments does not fit the style.
    """
    if len(arguments) == 3:
        middle, out, kind = arguments
        chosen = style(kind, BOTTLENECKS, "block(middle, out, style)")
        middle = whole("block", "middle", middle)
        return _make("block", middle, whole("block", "out", out), chosen)
    if len(arguments) == 2:
        out, kind = arguments
        chosen = style(kind, PLAIN_BLOCKS, "block(out, style)")
        return _make("block", whole("block", "out", out), chosen)
    raise InvalidArgumentError(
        f"block: expected block(middle, out, style) or block(out, style), received "
        f"{len(arguments)} arguments"
    )


def mbconv(expand: int, out_channels: int, stride: int) -> BluePrint:
    """Inverted residual: 1 x 1 expansion, 3 x 3 depthwise, 1 x 1 projection, with ReLU6.

    `expand` is 1 (then there is no expansion) or 6, `stride` 1 or 2; the input is added where it
    has the shape of the result. Source: Sandler et al., arXiv 1801.04381.
    """
    return _make(
        "mbconv",
        one_of("mbconv", "expand", expand, (1, 6)),
        whole("mbconv", "out_channels", out_channels),
        one_of("mbconv", "stride", stride, (1, 2)),
    )
