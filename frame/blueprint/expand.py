"""Expansion: a blueprint becomes a list of primitive layers, with paths and running shapes.

A residual part becomes Add2Start, the shortcut's layers, Add2ShortcutEnd, the stem's layers,
Add2End. Both branches begin at the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from frame.blueprint.layers import ArchLayer, LayerKind, make_layer
from frame.blueprint.shapes import Flow, ShapeWalk
from frame.blueprint.values import BlockStyle, BluePrint
from frame.core.errors import InvalidArgumentError

MAX_LAYERS = 100_000
MOMENTUM, EPS = 0.1, 1e-5
"""Batch normalisation in blocks."""


class Expansion:
    """The layers so far, and the shape behind the last of them."""

    def __init__(self, start: Flow) -> None:
        self.layers: list[ArchLayer] = []
        self._walk = ShapeWalk(start)

    @property
    def channels(self) -> int:
        """The running number of channels."""
        return self._walk.now.shape[3]

    def emit(self, kind: LayerKind, name: str, path: str, *values: Any) -> None:
        """Append a layer; its options are given in the order of `OPTIONS`."""
        if len(self.layers) >= MAX_LAYERS:
            raise InvalidArgumentError(
                f"at {path}: a blueprint may have {MAX_LAYERS} layers, received more; look at the "
                "numbers of repeat"
            )
        self.layers.append(self._walk.place(make_layer(kind, name, path, *values)))

    def expand(self, part: BluePrint, path: str) -> None:
        """Append the layers of a part that stands at `path`."""
        simple = _SIMPLE.get(part.factory)
        if simple is not None:
            self.emit(simple[0], simple[1], path, *part.arguments)
        else:
            _RULES[part.factory](self, part, path)


def expand(root: BluePrint, start: Flow) -> tuple[ArchLayer, ...]:
    """Return the layers of a blueprint for an input.

    Raises:
        InvalidArgumentError: a layer does not fit; the message names its path.
    """
    expansion = Expansion(start)
    try:
        if root.factory in ("seq", "repeat"):
            expansion.expand(root, "")
        else:
            expansion.expand(root, "0")
    except RecursionError:
        raise InvalidArgumentError(
            "expected a blueprint of moderate depth, received hundreds of nested parts; put the "
            "layers into one seq"
        ) from None
    return tuple(expansion.layers)


def _join(path: str, part: str | int) -> str:
    return f"{path}.{part}" if path else str(part)


# --- primitive factories whose arguments are the options of one layer -----------------------------

_SIMPLE: Mapping[str, tuple[LayerKind, str]] = MappingProxyType(
    {
        "bn": (LayerKind.BN2D, "bn"),
        "relu": (LayerKind.RELU, "relu"),
        "tanh_act": (LayerKind.TANH, "tanh"),
        "silu": (LayerKind.SILU, "silu"),
        "relu6": (LayerKind.RELU6, "relu6"),
        "sigmoid": (LayerKind.SIGMOID, "sigmoid"),
        "leaky_relu": (LayerKind.LEAKY_RELU, "leaky_relu"),
        "elu": (LayerKind.ELU, "elu"),
        "hardswish": (LayerKind.HARDSWISH, "hardswish"),
        "dropout": (LayerKind.DROPOUT, "dropout"),
        "identity": (LayerKind.IDENTITY, "identity"),
        "flatten": (LayerKind.FLATTEN, "flatten_1"),
        "channel_padding": (LayerKind.CHANNEL_PADDING, "channel_padding"),
        "maxpool": (LayerKind.MAX_POOL, "maxpool"),
        "avgpool": (LayerKind.AVG_POOL, "avgpool"),
        "gap": (LayerKind.GAP, "gap"),
        "fc": (LayerKind.FC, "fc"),
    }
)

# --- the others -----------------------------------------------------------------------------------


def _conv(to: Expansion, part: BluePrint, path: str) -> None:
    to.emit(LayerKind.CONV, "conv", path, *part.arguments, 1)


def _conv_dw(to: Expansion, part: BluePrint, path: str) -> None:
    to.emit(LayerKind.CONV, "conv_dw", path, to.channels, *part.arguments, to.channels)


def _group_conv(to: Expansion, part: BluePrint, path: str) -> None:
    channels, groups, kernel, stride, padding = part.arguments
    to.emit(LayerKind.CONV, "group_conv", path, channels, kernel, stride, padding, groups)


def _seq(to: Expansion, part: BluePrint, path: str) -> None:
    for position, child in enumerate(part.children):
        to.expand(child, _join(path, position))


def _repeat(to: Expansion, part: BluePrint, path: str) -> None:
    for turn in range(part.arguments[0]):
        to.expand(part.children[0], _join(path, turn))


def _add2(to: Expansion, part: BluePrint, path: str) -> None:
    shortcut, stem = part.children
    to.emit(LayerKind.ADD2_START, "add2_start", _join(path, "add2_start"))
    to.expand(shortcut, _join(path, "shortcut"))
    to.emit(LayerKind.ADD2_SHORTCUT_END, "add2_sc_end", _join(path, "add2_sc_end"))
    to.expand(stem, _join(path, "stem"))
    to.emit(LayerKind.ADD2_END, "add2_end", _join(path, "add2_end"))


def _cbr(to: Expansion, part: BluePrint, path: str) -> None:
    *sizes, momentum, eps = part.arguments
    _conv_bn_relu(to, path, "cbr", sizes, momentum, eps)


def _cbrp(to: Expansion, part: BluePrint, path: str) -> None:
    _conv_bn_relu(to, path, "cbrp", part.arguments[:4], MOMENTUM, EPS)
    to.emit(LayerKind.MAX_POOL, "maxpool_cbrp", _join(path, "maxpool"), *part.arguments[4:])


def _conv_bn_relu(
    to: Expansion, path: str, tag: str, sizes: Any, momentum: float, eps: float
) -> None:
    to.emit(LayerKind.CONV, f"conv_{tag}", _join(path, "conv"), *sizes, 1)
    to.emit(LayerKind.BN2D, f"bn_{tag}", _join(path, "bn"), momentum, eps)
    to.emit(LayerKind.RELU, f"relu_{tag}", _join(path, "relu"))


def _gap_fc(to: Expansion, part: BluePrint, path: str) -> None:
    to.emit(LayerKind.GAP, "gap_gapfc", _join(path, "gap"))
    to.emit(LayerKind.FC, "fc_gapfc", _join(path, "fc"), *part.arguments)


# --- blocks ---------------------------------------------------------------------------------------


class _Block:
    """Appends the layers of one block, whose names are the last part of their paths."""

    def __init__(self, to: Expansion, path: str) -> None:
        self._to = to
        self._path = path

    def emit(self, kind: LayerKind, name: str, *values: Any) -> None:
        self._to.emit(kind, name, _join(self._path, name), *values)

    def conv_bn(
        self, conv: str, bn: str, out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        """A convolution that keeps the size at stride 1, and its normalisation."""
        self.emit(LayerKind.CONV, conv, out, kernel, stride, kernel // 2, groups)
        self.emit(LayerKind.BN2D, bn, MOMENTUM, EPS)

    def shortcut(self, out: int, stride: int) -> None:
        """The identity where the block keeps the shape, else a projection; then its end."""
        self.emit(LayerKind.ADD2_START, "add2_start")
        if stride == 1 and self._to.channels == out:
            self.emit(LayerKind.IDENTITY, "identity")
        else:
            self.conv_bn("conv_proj", "bn_proj", out, 1, stride)
        self.emit(LayerKind.ADD2_SHORTCUT_END, "add2_sc_end")


def _bottleneck(to: Expansion, path: str, middle: int, out: int, stride: int) -> None:
    block = _Block(to, path)
    block.shortcut(out, stride)
    block.conv_bn("conv1", "bn1", middle, 1)
    block.emit(LayerKind.RELU, "relu1")
    block.conv_bn("conv2", "bn2", middle, 3, stride)
    block.emit(LayerKind.RELU, "relu2")
    block.conv_bn("conv3", "bn3", out, 1)
    block.emit(LayerKind.ADD2_END, "add2_end")
    block.emit(LayerKind.RELU, "relu_post")


def _basic(to: Expansion, path: str, out: int, stride: int) -> None:
    block = _Block(to, path)
    block.shortcut(out, stride)
    block.conv_bn("conv1", "bn1", out, 3, stride)
    block.emit(LayerKind.RELU, "relu1")
    block.conv_bn("conv2", "bn2", out, 3)
    block.emit(LayerKind.ADD2_END, "add2_end")
    block.emit(LayerKind.RELU, "relu_post")


def _inverted(to: Expansion, path: str, expand_by: int, out: int, stride: int) -> None:
    block, expanded = _Block(to, path), to.channels * expand_by
    added = stride == 1 and to.channels == out
    if added:
        block.shortcut(out, stride)
    if expand_by != 1:
        block.conv_bn("conv_exp", "bn_exp", expanded, 1)
        block.emit(LayerKind.RELU6, "relu_exp")
    block.conv_bn("conv_dw", "bn_dw", expanded, 3, stride, expanded)
    block.emit(LayerKind.RELU6, "relu_dw")
    block.conv_bn("conv_proj", "bn_proj", out, 1)
    if added:
        block.emit(LayerKind.ADD2_END, "add2_end")


def _block(to: Expansion, part: BluePrint, path: str) -> None:
    middle, out, style = part.arguments if len(part.arguments) == 3 else (0, *part.arguments)
    stride = 2 if style.endswith("_DS") else 1
    if style in (BlockStyle.RESNET_1_3_1, BlockStyle.RESNET_1_3_1_DS):
        _bottleneck(to, path, middle, out, stride)
    elif style in (BlockStyle.RESNET_3_3, BlockStyle.RESNET_3_3_DS):
        _basic(to, path, out, stride)
    else:
        _inverted(to, path, 6 if style.startswith("MB_E6") else 1, out, stride)


def _mbconv(to: Expansion, part: BluePrint, path: str) -> None:
    _inverted(to, path, *part.arguments)


_RULES: Mapping[str, Callable[[Expansion, BluePrint, str], None]] = MappingProxyType(
    {
        "conv": _conv,
        "conv_dw": _conv_dw,
        "group_conv": _group_conv,
        "seq": _seq,
        "repeat": _repeat,
        "add2": _add2,
        "cbr": _cbr,
        "cbrp": _cbrp,
        "gap_fc": _gap_fc,
        "block": _block,
        "mbconv": _mbconv,
    }
)
