"""Modules: models as immutable declarations, with layers and losses.

A Module builds graph nodes and touches no number. `parameters()` declares what it needs;
`materialize` makes initial values from a seed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from frame.core.lazy import attribute
from frame.nn.layers import (
    ELU,
    GELU,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    Hardswish,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    ReLU,
    ReLU6,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from frame.nn.losses import CrossEntropyLoss, MseLoss
from frame.nn.module import (
    Architecture,
    BuildContext,
    Module,
    Scope,
    Shared,
    build_graph,
    current_context,
    module,
    share,
)
from frame.nn.parameters import (
    Initialiser,
    ParamSpec,
    add_parameter_inputs,
    buffer,
    full,
    inline,
    kaiming_normal,
    kaiming_uniform,
    materialize,
    normal,
    ones,
    param,
    uniform,
    xavier_normal,
    xavier_uniform,
    zeros,
)

if TYPE_CHECKING:  # what __getattr__ below loads at the first use
    from frame.nn import models as models
    from frame.nn.activations import CELU as CELU
    from frame.nn.activations import GLU as GLU
    from frame.nn.activations import SELU as SELU
    from frame.nn.activations import Hardsigmoid as Hardsigmoid
    from frame.nn.activations import Hardtanh as Hardtanh
    from frame.nn.activations import Identity as Identity
    from frame.nn.activations import LogSigmoid as LogSigmoid
    from frame.nn.activations import LogSoftmax as LogSoftmax
    from frame.nn.activations import Mish as Mish
    from frame.nn.activations import PReLU as PReLU
    from frame.nn.activations import Softsign as Softsign
    from frame.nn.attention import MultiheadAttention as MultiheadAttention
    from frame.nn.attention import TransformerDecoderBlock as TransformerDecoderBlock
    from frame.nn.attention import TransformerEncoderBlock as TransformerEncoderBlock
    from frame.nn.common import AFF as AFF
    from frame.nn.common import Conv1d as Conv1d
    from frame.nn.common import ConvTranspose1d as ConvTranspose1d
    from frame.nn.common import ConvTranspose2d as ConvTranspose2d
    from frame.nn.common import Embedding as Embedding
    from frame.nn.common import GlobalAvgPool as GlobalAvgPool
    from frame.nn.common import GroupNorm as GroupNorm
    from frame.nn.common import LIFCell as LIFCell
    from frame.nn.common import Residual as Residual
    from frame.nn.common import RMSNorm as RMSNorm
    from frame.nn.common import SnnClassifier as SnnClassifier
    from frame.nn.criteria import BCELoss as BCELoss
    from frame.nn.criteria import BCEWithLogitsLoss as BCEWithLogitsLoss
    from frame.nn.criteria import CosineLoss as CosineLoss
    from frame.nn.criteria import HuberLoss as HuberLoss
    from frame.nn.criteria import KLDivLoss as KLDivLoss
    from frame.nn.criteria import L1Loss as L1Loss
    from frame.nn.criteria import NLLLoss as NLLLoss
    from frame.nn.criteria import PoissonNLLLoss as PoissonNLLLoss
    from frame.nn.criteria import SmoothL1Loss as SmoothL1Loss
    from frame.nn.criteria import SoftMarginLoss as SoftMarginLoss
    from frame.nn.graphs import GATConv as GATConv
    from frame.nn.graphs import GraphConv as GraphConv
    from frame.nn.graphs import HypergraphConv as HypergraphConv
    from frame.nn.mamba import FourierMamba as FourierMamba
    from frame.nn.mamba import Mamba as Mamba
    from frame.nn.mamba import SimpleMamba as SimpleMamba
    from frame.nn.multilevel import Wavedec1d as Wavedec1d
    from frame.nn.multilevel import Wavedec2d as Wavedec2d
    from frame.nn.multilevel import Waverec1d as Waverec1d
    from frame.nn.multilevel import Waverec2d as Waverec2d
    from frame.nn.pooling import AvgPool1d as AvgPool1d
    from frame.nn.pooling import GlobalMaxPool as GlobalMaxPool
    from frame.nn.pooling import MaxPool1d as MaxPool1d
    from frame.nn.recurrent import GRU as GRU
    from frame.nn.recurrent import LSTM as LSTM
    from frame.nn.spectral import Fno1dBlock as Fno1dBlock
    from frame.nn.spectral import Fno2dBlock as Fno2dBlock
    from frame.nn.spectral import FourierFilter1d as FourierFilter1d
    from frame.nn.spectral import SpectralConv1d as SpectralConv1d
    from frame.nn.spectral import SpectralConv2d as SpectralConv2d
    from frame.nn.wavelets import Dwt1d as Dwt1d
    from frame.nn.wavelets import Dwt2d as Dwt2d
    from frame.nn.wavelets import Idwt1d as Idwt1d
    from frame.nn.wavelets import Idwt2d as Idwt2d

# module -> names that __getattr__ below loads from it at their first use
_PLACES = {
    "frame.nn.activations": (
        "CELU",
        "GLU",
        "Hardsigmoid",
        "Hardtanh",
        "Identity",
        "LogSigmoid",
        "LogSoftmax",
        "Mish",
        "PReLU",
        "SELU",
        "Softsign",
    ),
    "frame.nn.attention": (
        "MultiheadAttention",
        "TransformerDecoderBlock",
        "TransformerEncoderBlock",
    ),
    "frame.nn.common": (
        "AFF",
        "Conv1d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "Embedding",
        "GlobalAvgPool",
        "GroupNorm",
        "LIFCell",
        "RMSNorm",
        "Residual",
        "SnnClassifier",
    ),
    "frame.nn.criteria": (
        "BCELoss",
        "BCEWithLogitsLoss",
        "CosineLoss",
        "HuberLoss",
        "KLDivLoss",
        "L1Loss",
        "NLLLoss",
        "PoissonNLLLoss",
        "SmoothL1Loss",
        "SoftMarginLoss",
    ),
    "frame.nn.graphs": ("GATConv", "GraphConv", "HypergraphConv"),
    "frame.nn.mamba": ("FourierMamba", "Mamba", "SimpleMamba"),
    "frame.nn.multilevel": ("Wavedec1d", "Wavedec2d", "Waverec1d", "Waverec2d"),
    "frame.nn.pooling": ("AvgPool1d", "GlobalMaxPool", "MaxPool1d"),
    "frame.nn.recurrent": ("GRU", "LSTM"),
    "frame.nn.spectral": (
        "Fno1dBlock",
        "Fno2dBlock",
        "FourierFilter1d",
        "SpectralConv1d",
        "SpectralConv2d",
    ),
    "frame.nn.wavelets": ("Dwt1d", "Dwt2d", "Idwt1d", "Idwt2d"),
}
_LAZY = {name: place for place, names in _PLACES.items() for name in names}

__all__: tuple[str, ...] = (
    "Architecture",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BuildContext",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Flatten",
    "GELU",
    "GlobalAvgPool2d",
    "Hardswish",
    "Initialiser",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Module",
    "MseLoss",
    "ParamSpec",
    "ReLU",
    "ReLU6",
    "Scope",
    "Sequential",
    "Shared",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "add_parameter_inputs",
    "buffer",
    "build_graph",
    "current_context",
    "full",
    "inline",
    "kaiming_normal",
    "kaiming_uniform",
    "materialize",
    "module",
    "normal",
    "ones",
    "param",
    "share",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
)
__all__ += ("models", *_LAZY)


def __getattr__(name: str) -> Any:
    """Return a layer of a family, or the networks, imported at their first use."""
    if name == "models":
        return importlib.import_module("frame.nn.models")
    return attribute(__name__, _LAZY, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
