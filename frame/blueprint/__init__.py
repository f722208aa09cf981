"""The BluePrint DSL: networks as short programs of immutable values.

```python
from frame.blueprint import bn, conv, fc, gap, maxpool, relu, seq

net = seq(conv(32, 3, 1, 1), bn(), relu(), maxpool(2, 2, 0), conv(64, 3, 1, 1), bn(), relu(),
          gap(), fc(10, True))
print(net.plan((28, 28, 1), num_classes=10).table())
model = frame.compile(net, inputs=[frame.spec(("batch", 28, 28, 1))])
```
"""

from __future__ import annotations

from frame.blueprint.factories import (
    add2,
    avgpool,
    block,
    bn,
    cbr,
    cbrp,
    channel_padding,
    conv,
    conv_bn_relu,
    conv_dw,
    dropout,
    elu,
    fc,
    flatten,
    gap,
    gap_fc,
    group_conv,
    hardswish,
    identity,
    leaky_relu,
    maxpool,
    mbconv,
    relu,
    relu6,
    repeat,
    seq,
    sigmoid,
    silu,
    tanh_act,
)
from frame.blueprint.layers import ArchLayer, LayerKind
from frame.blueprint.plan import ArchPlan, InputSpec
from frame.blueprint.text import parse
from frame.blueprint.values import BlockStyle, BluePrint

__all__ = [
    "ArchLayer",
    "ArchPlan",
    "BlockStyle",
    "BluePrint",
    "InputSpec",
    "LayerKind",
    "add2",
    "avgpool",
    "block",
    "bn",
    "cbr",
    "cbrp",
    "channel_padding",
    "conv",
    "conv_bn_relu",
    "conv_dw",
    "dropout",
    "elu",
    "fc",
    "flatten",
    "gap",
    "gap_fc",
    "group_conv",
    "hardswish",
    "identity",
    "leaky_relu",
    "maxpool",
    "mbconv",
    "parse",
    "relu",
    "relu6",
    "repeat",
    "seq",
    "sigmoid",
    "silu",
    "tanh_act",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
