"""The networks of the benchmarks, each declared once as a Module.

Images are NCHW, sequences are [batch, length, width]. Sizes are arguments, so that the tests can
build every network small.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from frame import nn, ops
from frame.ir.graph import Value
from frame.nn import Module

MLP_WIDTHS = (784, 1024, 512, 256, 10)


def mlp(widths: Sequence[int] = MLP_WIDTHS) -> Module:
    """Return linear layers with ReLU between them."""
    layers: list[Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential("mlp", layers[:-1])


def lenet() -> Module:
    """Return LeNet-5 with ReLU and max pooling for images of 1 x 28 x 28.

    Source: LeCun et al., Proceedings of the IEEE 86 (1998).
    """
    return nn.Sequential(
        "lenet",
        [
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        ],
    )


# --- convolutional networks -----------------------------------------------------------------------


def _conv_norm(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[Module]:
    convolution = nn.Conv2d(
        before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(after)]


def _residual(main: Sequence[Module], short: Sequence[Module], activate: bool = True) -> Module:
    """Return main(x) + short(x), or + x where `short` is empty, then ReLU where asked."""

    @nn.module(main=nn.Sequential(list(main)), short=nn.Sequential(list(short)))
    def residual(self: nn.Scope, x: Value) -> Value:
        y = self.main(x) + (self.short(x) if short else x)
        return ops.relu(y) if activate else y

    return residual


def _basic_block(before: int, after: int, stride: int) -> Module:
    main = [*_conv_norm(before, after, 3, stride), nn.ReLU(), *_conv_norm(after, after, 3)]
    return _residual(main, _projection(before, after, stride))


def _bottleneck(before: int, after: int, stride: int) -> Module:
    inner = after // 4
    main = [
        *_conv_norm(before, inner, 1),
        nn.ReLU(),
        *_conv_norm(inner, inner, 3, stride),
        nn.ReLU(),
        *_conv_norm(inner, after, 1),
    ]
    return _residual(main, _projection(before, after, stride))


def _projection(before: int, after: int, stride: int) -> list[Module]:
    return _conv_norm(before, after, 1, stride) if stride > 1 or before != after else []


RESNETS = {18: (_basic_block, (2, 2, 2, 2), 1), 50: (_bottleneck, (3, 4, 6, 3), 4)}


def resnet(depth: int, classes: int = 1000, small: bool = False, width: int = 64) -> Module:
    """Return ResNet-18 or ResNet-50; `small` has the 3x3 stem for images of 32 x 32.

    The stride of a bottleneck is in its 3x3 convolution. Source: He et al., arXiv 1512.03385.
    """
    block, counts, expansion = RESNETS[depth]
    stem = _conv_norm(3, width, 3 if small else 7, 1 if small else 2)
    layers = [*stem, nn.ReLU()] + ([] if small else [nn.MaxPool2d(3, 2, 1)])
    before = width
    for stage, count in enumerate(counts):
        after = width * 2**stage * expansion
        for position in range(count):
            layers.append(block(before, after, 2 if stage and not position else 1))
            before = after
    return nn.Sequential("resnet", [*layers, nn.GlobalAvgPool2d(), nn.Linear(before, classes)])


# expansion, channels, blocks, stride of the first block
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(classes: int = 1000) -> Module:
    """Return MobileNetV2 of width 1. Source: Sandler et al., arXiv 1801.04381."""
    layers = [*_conv_norm(3, 32, 3, 2), nn.ReLU6()]
    before = 32
    for expansion, after, count, first in INVERTED:
        for position in range(count):
            layers.append(_inverted(before, after, 1 if position else first, expansion))
            before = after
    layers += [*_conv_norm(before, 1280, 1), nn.ReLU6(), nn.GlobalAvgPool2d()]
    return nn.Sequential("mobilenet", [*layers, nn.Linear(1280, classes)])


def _inverted(before: int, after: int, stride: int, expansion: int) -> Module:
    inner = before * expansion
    expand = [*_conv_norm(before, inner, 1), nn.ReLU6()] if expansion > 1 else []
    depthwise = [*_conv_norm(inner, inner, 3, stride, inner), nn.ReLU6()]
    main = [*expand, *depthwise, *_conv_norm(inner, after, 1)]
    if stride == 1 and before == after:
        return _residual(main, [], activate=False)
    return nn.Sequential(main)


VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of the convolutions; 0 is a max pooling."""


def vgg16_bn(classes: int = 1000, small: bool = False, width: int = 64) -> Module:
    """Return VGG-16 with batch norm; `small` has one linear layer, for images of 32 x 32.

    Dropout is left out: every peer would draw other masks. Source: Simonyan, Zisserman,
    arXiv 1409.1556.
    """
    layers: list[Module] = []
    before = 3
    for channels in VGG16:
        after = channels * width // 64
        layers += [*_conv_norm(before, after, 3), nn.ReLU()] if after else [nn.MaxPool2d(2)]
        before = after or before
    return nn.Sequential("vgg", [*layers, nn.Flatten(), *_vgg_head(before, classes, small)])


def _vgg_head(channels: int, classes: int, small: bool) -> list[Module]:
    if small:
        return [nn.Linear(channels, classes)]
    hidden = 8 * channels
    first = [nn.Linear(channels * 49, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return [*first, nn.Linear(hidden, classes)]


# --- transformers ---------------------------------------------------------------------------------


def attention(width: int, heads: int) -> Module:
    """Return self-attention over [batch, length, width]. Source: arXiv 1706.03762."""
    size = width // heads

    @nn.module(qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))
    def attention(self: nn.Scope, x: Value) -> Value:
        batch, length, _ = x.shape
        split = ops.reshape(self.qkv(x), (batch, length, 3, heads, size))
        query, key, value = ops.unpack(ops.transpose(split, (2, 0, 3, 1, 4)))
        scores = ops.softmax(ops.matmul(query, key, transpose_b=True) * size**-0.5)
        mixed = ops.transpose(ops.matmul(scores, value), (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, (batch, length, width)))

    return attention


def encoder_block(width: int = 256, heads: int = 8, hidden: int = 1024) -> Module:
    """Return a transformer encoder block that normalises before each half."""

    @nn.module(
        norm0=nn.LayerNorm(width),
        mix=attention(width, heads),
        norm1=nn.LayerNorm(width),
        up=nn.Linear(width, hidden),
        down=nn.Linear(hidden, width),
    )
    def encoder(self: nn.Scope, x: Value) -> Value:
        x = x + self.mix(self.norm0(x))
        return x + self.down(ops.gelu(self.up(self.norm1(x))))

    return encoder


def bert(
    layers: int = 6,
    width: int = 256,
    heads: int = 8,
    hidden: int = 1024,
    words: int = 30522,
    length: int = 128,
) -> Module:
    """Return a BERT of token ids [batch, length] -> [batch, length, width], without a head.

    Source: Devlin et al., arXiv 1810.04805; the small sizes: Turc et al., arXiv 1908.08962.
    """

    @nn.module(
        words=nn.param((words, width), nn.normal(0.02)),
        positions=nn.param((length, width), nn.normal(0.02)),
        norm=nn.LayerNorm(width),
        blocks=nn.Sequential([encoder_block(width, heads, hidden) for _ in range(layers)]),
    )
    def bert(self: nn.Scope, tokens: Value) -> Value:
        x = ops.gather(self.words, tokens) + self.positions
        return self.blocks(self.norm(x))

    return bert


def vit(
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 192,
    heads: int = 3,
    classes: int = 1000,
) -> Module:
    """Return a vision transformer; the defaults are ViT-tiny. Source: arXiv 2010.11929."""
    tokens = (image // patch) ** 2

    @nn.module(
        embed=nn.Conv2d(3, width, patch, patch),
        token=nn.param((1, 1, width), nn.normal(0.02)),
        positions=nn.param((tokens + 1, width), nn.normal(0.02)),
        blocks=nn.Sequential([encoder_block(width, heads, 4 * width) for _ in range(layers)]),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, classes),
    )
    def vit(self: nn.Scope, images: Value) -> Value:
        batch = images.shape[0]
        patches = ops.reshape(self.embed(images), (batch, width, tokens))
        first = ops.expand(self.token, (batch, 1, width))
        x = ops.concat([first, ops.transpose(patches, (0, 2, 1))], axis=1) + self.positions
        x = self.norm(self.blocks(x))
        return self.head(ops.reshape(x[:, 0:1], (batch, width)))

    return vit


# --- recurrences and graphs -----------------------------------------------------------------------


def lstm(inputs: int = 128, hidden: int = 128) -> Module:
    """Return an LSTM over [length, batch, inputs] -> [length, batch, hidden].

    The gates stand in the order input, forget, cell, output. The products with the inputs are one
    product over all steps. Source: Hochreiter, Schmidhuber, Neural Computation 9 (1997).
    """

    @nn.module(
        weight=nn.param((inputs, 4 * hidden), nn.xavier_uniform()),
        recurrent=nn.param((hidden, 4 * hidden), nn.xavier_uniform()),
        bias=nn.param((4 * hidden,), nn.normal(0.1)),
    )
    def lstm(self: nn.Scope, x: Value) -> Value:
        batch = x.shape[1]
        zero = ops.zeros((batch, hidden))
        recurrent = self.recurrent

        def step(carry: tuple[Value, Value], gates_x: Value) -> tuple[tuple[Value, Value], Value]:
            state, cell = carry
            gates = gates_x + state @ recurrent
            into, keep, fresh, out = ops.split(gates, (hidden,) * 4, axis=1)
            cell = ops.sigmoid(keep) * cell + ops.sigmoid(into) * ops.tanh(fresh)
            state = ops.sigmoid(out) * ops.tanh(cell)
            return (state, cell), state

        _, states = ops.scan(step, (zero, zero), x @ self.weight + self.bias)
        return states

    return lstm


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
        shift=nn.param((batch, length, width), nn.normal(0.1)),
        delta=nn.param((batch, length, width), nn.uniform(0.001, 0.101)),
        decay=nn.param((width, state), nn.uniform(-2.0, -0.5)),
        b=nn.param((batch, length, state), nn.normal(1.0)),
        c=nn.param((batch, length, state), nn.normal(1.0)),
    )
    def trained(self: nn.Scope, x: Value) -> Value:
        return selective_scan(x + self.shift, self.delta, self.decay, self.b, self.c)

    return trained


def mamba_block(model: int = 64, width: int = 128, state: int = 16, rank: int = 4) -> Module:
    """Return a Mamba block over [batch, length, model]. Source: Gu, Dao, arXiv 2312.00752."""

    @nn.module(
        into=nn.Linear(model, 2 * width, bias=False),
        mix=nn.Conv2d(width, width, (1, 4), padding=(0, 0, 3, 0), groups=width),
        select=nn.Linear(width, rank + 2 * state, bias=False),
        step=nn.Linear(rank, width),
        decay=nn.param((width, state), nn.uniform(0.0, 2.0)),
        skip=nn.param((width,), nn.ones()),
        out=nn.Linear(width, model, bias=False),
    )
    def mamba(self: nn.Scope, x: Value) -> Value:
        batch, length, _ = x.shape
        inner, gate = ops.split(self.into(x), (width, width), axis=2)
        image = ops.reshape(ops.transpose(inner, (0, 2, 1)), (batch, width, 1, length))
        mixed = ops.reshape(self.mix(image), (batch, width, length))
        inner = ops.silu(ops.transpose(mixed, (0, 2, 1)))
        low, b, c = ops.split(self.select(inner), (rank, state, state), axis=2)
        delta = ops.softplus(self.step(low))
        y = selective_scan(inner, delta, -ops.exp(self.decay), b, c) + inner * self.skip
        return self.out(y * ops.silu(gate))

    return mamba


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
