"""Modules: models as immutable declarations, with layers and losses.

A Module builds graph nodes and touches no number. `parameters()` declares what it needs;
`materialize` makes initial values from a seed.
"""

from __future__ import annotations

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

__all__ = (
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


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
