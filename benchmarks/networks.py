"""The networks of the benchmarks: the model layer's, and those that it has no layer for.

Images are NCHW, sequences are [batch, length, width].
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from frame import nn, ops
from frame.ir.graph import Value
from frame.nn import Module
from frame.nn.models import bert, lenet5, mlp, mobilenet_v2, resnet, vgg16_bn, vit

__all__ = (
    "bert",
    "encoder_block",
    "gcn",
    "lenet5",
    "mlp",
    "mobilenet_v2",
    "resnet",
    "selective_scan",
    "trained_scan",
    "vgg16_bn",
    "vit",
)


def encoder_block(width: int = 256, heads: int = 8, hidden: int = 1024) -> Module:
    """Return a transformer encoder block that normalises before each half."""
    return nn.TransformerEncoderBlock(width, heads, hidden, norm="pre", activation="gelu")


def selective_scan(x: Value, delta: Value, decay: Value, b: Value, c: Value) -> Value:
    """Return the selective state-space scan of x [batch, length, width].

    delta [batch, length, width], decay [width, state], b and c [batch, length, state]:
    h = exp(delta * decay) * h + delta * b * x, y = sum over the state of h * c.
    Source: Gu, Dao, arXiv 2312.00752.
    """
    batch, _, width = x.shape
    state = decay.shape[1]

    def step(h: Value, now: Sequence[Value]) -> tuple[Value, Value]:
        x_t, delta_t, b_t, c_t = now
        keep = ops.exp(ops.unsqueeze(delta_t, 2) * decay)
        h = keep * h + ops.unsqueeze(delta_t * x_t, 2) * ops.unsqueeze(b_t, 1)
        return h, ops.sum(h * ops.unsqueeze(c_t, 1), axes=2)

    along = [ops.transpose(value, (1, 0, 2)) for value in (x, delta, b, c)]
    _, y = ops.scan(step, ops.zeros((batch, width, state)), tuple(along))
    return ops.transpose(y, (1, 0, 2))


def trained_scan(batch: int, length: int, width: int, state: int) -> Module:
    """Return the selective scan of x [batch, length, width], every operand of which is trained.

    x enters as x + shift, so that the gradient of the parameter `shift` is that of x.
    """

    @nn.module(
        shift=nn.param((batch, length, width), nn.normal(0.0, 0.1)),
        delta=nn.param((batch, length, width), nn.uniform(0.001, 0.101)),
        decay=nn.param((width, state), nn.uniform(-2.0, -0.5)),
        b=nn.param((batch, length, state), nn.normal(1.0)),
        c=nn.param((batch, length, state), nn.normal(1.0)),
    )
    def trained(self: nn.Scope, x: Value) -> Value:
        return selective_scan(x + self.shift, self.delta, self.decay, self.b, self.c)

    return trained


def gcn(nodes: int = 10_000, widths: Sequence[int] = (128, 64, 16)) -> Module:
    """Return a graph convolutional network of node features and edges (source, target, weight).

    The weight of an edge is its share in the normalised adjacency. Source: Kipf, Welling,
    arXiv 1609.02907.
    """
    layers = {f"layer{i}": nn.Linear(a, b) for i, (a, b) in enumerate(itertools.pairwise(widths))}

    @nn.module(**layers)
    def gcn(self: nn.Scope, x: Value, source: Value, target: Value, weight: Value) -> Value:
        for position in range(len(layers)):
            x = ops.relu(x) if position else x
            x = self[position](x)
            messages = ops.gather(x, source) * ops.unsqueeze(weight, 1)
            x = ops.scatter_add(messages, target, (nodes, x.shape[1]))
        return x

    return gcn
