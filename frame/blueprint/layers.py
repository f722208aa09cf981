"""The layers of a plan: what kinds there are, their options, and one record a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from frame.core.dataclass import dataclass

Shape = tuple[int, int, int, int]
"""[1, height, width, channels]; features are [1, 1, 1, features]."""


class LayerKind(StrEnum):
    """What a layer of a plan is."""

    CONV = "Conv"
    BN1D = "Bn1d"
    BN2D = "Bn2d"
    RELU = "ReLU"
    TANH = "Tanh"
    SILU = "SiLU"
    RELU6 = "ReLU6"
    LEAKY_RELU = "LeakyReLU"
    HARDSWISH = "Hardswish"
    ELU = "ELU"
    SIGMOID = "Sigmoid"
    MAX_POOL = "MaxPool"
    AVG_POOL = "AvgPool"
    GAP = "GAP"
    FC = "FC"
    FLATTEN = "Flatten"
    CHANNEL_PADDING = "ChannelPadding"
    IDENTITY = "Identity"
    SOFTMAX_CE = "SoftmaxCE"
    DROPOUT = "Dropout"
    ADD2_START = "Add2Start"
    ADD2_SHORTCUT_END = "Add2ShortcutEnd"
    ADD2_END = "Add2End"
    # kinds of fused plans, each made of layers of the kinds above
    CBR = "CBR"
    GAP_FC = "GapFC"
    BOTTLENECK_IDENTITY = "BottleneckIdentity"
    BOTTLENECK_PROJECTION = "BottleneckProjection"
    BASIC_IDENTITY = "BasicBlockIdentity"
    BASIC_PROJECTION = "BasicBlockProjection"
    INVERTED_IDENTITY = "InvResidualIdentity"
    INVERTED_NO_SHORTCUT = "InvResidualNoShortcut"


ACTIVATIONS = frozenset(
    {
        LayerKind.RELU,
        LayerKind.TANH,
        LayerKind.SILU,
        LayerKind.RELU6,
        LayerKind.LEAKY_RELU,
        LayerKind.HARDSWISH,
        LayerKind.ELU,
        LayerKind.SIGMOID,
    }
)
ELEMENTWISE = ACTIVATIONS | {LayerKind.DROPOUT, LayerKind.IDENTITY}
NORMS = frozenset({LayerKind.BN1D, LayerKind.BN2D})
MARKERS = frozenset({LayerKind.ADD2_START, LayerKind.ADD2_SHORTCUT_END, LayerKind.ADD2_END})
FUSED = frozenset(
    {
        LayerKind.CBR,
        LayerKind.GAP_FC,
        LayerKind.BOTTLENECK_IDENTITY,
        LayerKind.BOTTLENECK_PROJECTION,
        LayerKind.BASIC_IDENTITY,
        LayerKind.BASIC_PROJECTION,
        LayerKind.INVERTED_IDENTITY,
        LayerKind.INVERTED_NO_SHORTCUT,
    }
)

_WINDOW = {"kernel": int, "stride": int, "padding": int}
_NORM = {"momentum": float, "eps": float}
_CONV = {"out_channels": int, **_WINDOW, "groups": int}

OPTIONS: Mapping[LayerKind, Mapping[str, type]] = MappingProxyType(
    {
        LayerKind.CONV: _CONV,
        LayerKind.BN1D: _NORM,
        LayerKind.BN2D: _NORM,
        LayerKind.MAX_POOL: _WINDOW,
        LayerKind.AVG_POOL: _WINDOW,
        LayerKind.FC: {"out_features": int, "bias": bool},
        LayerKind.FLATTEN: {"start_dim": int},
        LayerKind.SOFTMAX_CE: {"classes": int},
        LayerKind.DROPOUT: {"rate": float},
        LayerKind.CBR: {**_CONV, **_NORM},
        LayerKind.GAP_FC: {"out_features": int, "bias": bool},
        LayerKind.BOTTLENECK_IDENTITY: {"middle": int, "out_channels": int, "stride": int},
        LayerKind.BOTTLENECK_PROJECTION: {"middle": int, "out_channels": int, "stride": int},
        LayerKind.BASIC_IDENTITY: {"out_channels": int, "stride": int},
        LayerKind.BASIC_PROJECTION: {"out_channels": int, "stride": int},
        LayerKind.INVERTED_IDENTITY: {"expanded": int, "out_channels": int, "stride": int},
        LayerKind.INVERTED_NO_SHORTCUT: {"expanded": int, "out_channels": int, "stride": int},
    }
)
"""The options of each kind, in order; a kind without a row has none."""


@dataclass(frozen=True, slots=True)
class ArchLayer:
    """One layer of a plan.

    Attributes:
        kind: what it is.
        name: what the expansion calls it, such as `conv1` or `relu_post`; for people.
        path: where it stands in the blueprint, in dotted parts; the path of its parameters.
        options: (name, value) pairs, see `OPTIONS`.
        in_shape: the shape it reads, [1, height, width, channels].
        out_shape: the shape it gives.
        parts: for a fused kind, the layers that it stands for.
    """

    kind: LayerKind
    name: str
    path: str
    options: tuple[tuple[str, Any], ...] = ()
    in_shape: Shape = (0, 0, 0, 0)
    out_shape: Shape = (0, 0, 0, 0)
    parts: tuple[ArchLayer, ...] = ()

    def __getitem__(self, option: str) -> Any:
        """Return an option by name."""
        return dict(self.options)[option]

    def with_shapes(self, in_shape: Shape, out_shape: Shape) -> ArchLayer:
        """Return the layer with its shapes."""
        return replace(self, in_shape=in_shape, out_shape=out_shape)

    def primitives(self) -> Iterator[ArchLayer]:
        """Iterate over the layers that this one is made of: itself, unless it is fused."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.primitives()

    @property
    def where(self) -> str:
        """The place and kind, for messages."""
        return f"at {self.path or 'the root'} ({self.kind})"


def make_layer(kind: LayerKind, name: str, path: str, *values: Any) -> ArchLayer:
    """Return a layer whose options are given in the order of `OPTIONS`."""
    names = OPTIONS.get(kind, {})
    return ArchLayer(kind, name, path, tuple(zip(names, values, strict=True)))
