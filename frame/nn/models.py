"""Networks of the literature, made of the layers of `frame.nn`.

Images are [N, C, H, W], token ids [N, T]. Widths and depths are arguments, so that a test, or a
small device, has a small one. Parameters have no pretrained values: `nn.materialize` draws them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from frame import ops
from frame.core.arguments import shown
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.attention import TransformerEncoderBlock
from frame.nn.checks import divides, layer
from frame.nn.common import Embedding, Residual
from frame.nn.layers import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    ReLU6,
    Sequential,
    check_flags,
    positive,
)
from frame.nn.module import Module, Scope
from frame.nn.parameters import Initialiser, normal, param

__all__ = ("bert", "lenet5", "mlp", "mobilenet_v2", "resnet", "vgg16_bn", "vit")

# --- small networks -------------------------------------------------------------------------------


def mlp(widths: Sequence[int] = (784, 1024, 512, 256, 10), *, name: str = "") -> Module:
    """Return Linear layers with ReLU between them: [N, widths[0]] -> [N, widths[-1]].

    Raises:
        InvalidArgumentError: fewer than two widths, or one that is no positive integer.
    """
    if isinstance(widths, str) or not isinstance(widths, Sequence) or len(widths) < 2:
        raise InvalidArgumentError(f"widths must be two or more integers, got {shown(widths)}")
    layers: list[Module] = []
    for before, after in itertools.pairwise(positive("widths", width) for width in widths):
        layers += [Linear(before, after), ReLU()]
    return Sequential(name, layers[:-1])


def lenet5(classes: int = 10, *, name: str = "") -> Module:
    """Return LeNet-5 with ReLU and max pooling: [N, 1, 28, 28] -> [N, classes].

    Source: LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of
    the IEEE 86 (1998); ReLU and max pooling stand where the paper has tanh and subsampling.
    """
    classes = positive("classes", classes)
    images = [Conv2d(1, 6, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(6, 16, 5), ReLU()]
    head = [Linear(400, 120), ReLU(), Linear(120, 84), ReLU(), Linear(84, classes)]
    return Sequential(name, [*images, MaxPool2d(2), Flatten(), *head])


# --- convolutional networks -----------------------------------------------------------------------


def _conv_norm(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[Module]:
    convolution = Conv2d(
        before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, BatchNorm2d(after)]


def _residual(branch: Sequence[Module], before: int, after: int, stride: int) -> list[Module]:
    """Return branch(x) + x, with a projection of x where the sum would not fit, then ReLU."""
    fits = stride == 1 and before == after
    shortcut = None if fits else Sequential(_conv_norm(before, after, 1, stride))
    return [Residual(Sequential(branch), shortcut), ReLU()]


def _basic_block(before: int, after: int, stride: int) -> list[Module]:
    branch = [*_conv_norm(before, after, 3, stride), ReLU(), *_conv_norm(after, after, 3)]
    return _residual(branch, before, after, stride)


def _bottleneck(before: int, after: int, stride: int) -> list[Module]:
    inner = after // 4
    reduce, expand = _conv_norm(before, inner, 1), _conv_norm(inner, after, 1)
    middle = _conv_norm(inner, inner, 3, stride)
    return _residual([*reduce, ReLU(), *middle, ReLU(), *expand], before, after, stride)


RESNETS = MappingProxyType(
    {
        18: (_basic_block, (2, 2, 2, 2), 1),
        34: (_basic_block, (3, 4, 6, 3), 1),
        50: (_bottleneck, (3, 4, 6, 3), 4),
        101: (_bottleneck, (3, 4, 23, 3), 4),
        152: (_bottleneck, (3, 8, 36, 3), 4),
    }
)
"""Depth -> block, blocks of each stage, channels of a block's result for each inner one."""


def resnet(
    depth: int = 50,
    classes: int = 1000,
    small: bool = False,
    width: int = 64,
    *,
    name: str = "",
) -> Module:
    """Return a residual network: [N, 3, H, W] -> [N, classes].

    The stride of a bottleneck is in its 3x3 convolution, as in most trained networks of today.
    Source: He et al., "Deep residual learning for image recognition", arXiv 1512.03385.

    Args:
        depth: 18, 34, 50, 101 or 152.
        classes: features of the result.
        small: whether the stem is one 3x3 convolution without pooling, for images of 32 x 32.
        width: channels of the stem.
        name: the name in the parent.

    Raises:
        InvalidArgumentError: another depth, or a number that is no positive integer.
    """
    if positive("depth", depth) not in RESNETS:
        raise InvalidArgumentError(
            f"depth must be one of {', '.join(map(str, RESNETS))}, got {shown(depth)}"
        )
    block, counts, expansion = RESNETS[depth]
    check_flags({"small": small})
    classes, width = positive("classes", classes), positive("width", width)
    stem = _conv_norm(3, width, 3) if small else _conv_norm(3, width, 7, 2)
    layers = [*stem, ReLU()] + ([] if small else [MaxPool2d(3, 2, 1)])
    before = width
    for stage, count in enumerate(counts):
        after = width * 2**stage * expansion
        for position in range(count):
            layers += block(before, after, 2 if stage and not position else 1)
            before = after
    return Sequential(name, [*layers, GlobalAvgPool2d(), Linear(before, classes)])


INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and the stride of the first block of each stage of MobileNetV2."""


def mobilenet_v2(classes: int = 1000, *, name: str = "") -> Module:
    """Return MobileNetV2 of width 1: [N, 3, H, W] -> [N, classes], without dropout.

    Source: Sandler et al., "MobileNetV2: Inverted residuals and linear bottlenecks", arXiv
    1801.04381.
    """
    classes = positive("classes", classes)
    layers = [*_conv_norm(3, 32, 3, 2), ReLU6()]
    before = 32
    for expansion, after, count, first in INVERTED:
        for position in range(count):
            layers.append(_inverted(before, after, 1 if position else first, expansion))
            before = after
    layers += [*_conv_norm(before, 1280, 1), ReLU6(), GlobalAvgPool2d(), Linear(1280, classes)]
    return Sequential(name, layers)


def _inverted(before: int, after: int, stride: int, expansion: int) -> Module:
    inner = before * expansion
    expand = [*_conv_norm(before, inner, 1), ReLU6()] if expansion > 1 else []
    depthwise = [*_conv_norm(inner, inner, 3, stride, inner), ReLU6()]
    branch = Sequential([*expand, *depthwise, *_conv_norm(inner, after, 1)])
    return Residual(branch) if stride == 1 and before == after else branch


VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of the convolutions of VGG-16; 0 is a max pooling."""


def vgg16_bn(
    classes: int = 1000, small: bool = False, width: int = 64, *, name: str = ""
) -> Module:
    """Return VGG-16 with batch norm: [N, 3, 224, 224] -> [N, classes], without dropout.

    Source: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image
    recognition", arXiv 1409.1556; batch norm: Ioffe, Szegedy, arXiv 1502.03167.

    Args:
        classes: features of the result.
        small: whether one Linear layer is the head, for images of 32 x 32.
        width: channels of the first convolution.
        name: the name in the parent.
    """
    check_flags({"small": small})
    classes, width = positive("classes", classes), positive("width", width)
    layers: list[Module] = []
    before = 3
    for channels in VGG16:
        after = channels * width // VGG16[0]
        layers += [*_conv_norm(before, after, 3), ReLU()] if after else [MaxPool2d(2)]
        before = after or before
    return Sequential(name, [*layers, Flatten(), *_vgg_head(before, classes, small)])


def _vgg_head(channels: int, classes: int, small: bool) -> list[Module]:
    if small:
        return [Linear(channels, classes)]
    hidden = 8 * channels
    first = [Linear(channels * 49, hidden), ReLU(), Linear(hidden, hidden), ReLU()]
    return [*first, Linear(hidden, classes)]


# --- transformers ---------------------------------------------------------------------------------


def _blocks(layers: int, width: int, heads: int, hidden: int, norm: str) -> dict[str, Module]:
    return {
        f"block{number}": TransformerEncoderBlock(
            width, heads, hidden, norm=norm, activation="gelu"
        )
        for number in range(layers)
    }


def _small() -> Initialiser:
    """Return the initial values of tables: as those papers have them, but not truncated."""
    return normal(mean=0.0, deviation=0.02)


def _build_bert(self: Scope, tokens: Value, segments: Any = None, mask: Any = None) -> Value:
    kinds = self.segments[0:1] if segments is None else ops.embedding(self.segments, segments)
    x = self.norm(self.words(tokens) + self.positions + kinds)
    if mask is not None:
        batch, length = mask.shape
        mask = ops.reshape(mask, (batch, 1, 1, length))
    for number in range(self.options["layers"]):
        x = getattr(self, f"block{number}")(x, mask)
    return x  # type: ignore[no-any-return]


def bert(
    layers: int = 6,
    width: int = 256,
    heads: int = 8,
    hidden: int = 1024,
    words: int = 30522,
    length: int = 128,
    *,
    name: str = "",
) -> Module:
    """Return BERT: (tokens [N, length], segments=None, mask=None) -> [N, length, width].

    Tokens and segments (0 or 1, all 0 if left out) are integers; the bool mask [N, length] says
    which tokens count. Without dropout, pooler and heads. Source: Devlin et al., "BERT:
    Pre-training of deep bidirectional transformers", arXiv 1810.04805; the defaults are the widths
    of BERT-mini (Turc et al., arXiv 1908.08962) with six layers.

    Args:
        layers: blocks, which normalise behind each sum.
        width: features of a token.
        heads: heads of each attention.
        hidden: features between the two Linear layers of a block.
        words: ids are below this number.
        length: tokens of a sequence.
        name: the name in the parent.
    """
    layers, words = positive("layers", layers), positive("words", words)
    hidden, length = positive("hidden", hidden), positive("length", length)
    width, heads = positive("width", width), positive("heads", heads)
    divides("width", width, "heads", heads)
    children = {
        "words": Embedding(words, width, init=_small()),
        "norm": LayerNorm(width),
        **_blocks(layers, width, heads, hidden, "post"),
    }
    specs = [
        param((length, width), _small(), name="positions"),
        param((2, width), _small(), name="segments"),
    ]
    return layer("bert", _build_bert, {"layers": layers}, specs, children, name)


def _build_vit(self: Scope, images: Value) -> Value:
    batch = images.shape[0]
    grid = self.embed(images)
    width, tokens = grid.shape[1], self.options["tokens"]
    patches = ops.transpose(ops.reshape(grid, (batch, width, tokens)), (0, 2, 1))
    first = ops.expand(self.token, (batch, 1, width))
    x = ops.concat([first, patches], axis=1) + self.positions
    for number in range(self.options["layers"]):
        x = getattr(self, f"block{number}")(x)
    return self.head(ops.reshape(self.norm(x)[:, 0:1], (batch, width)))  # type: ignore[no-any-return]


def vit(
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 192,
    heads: int = 3,
    classes: int = 1000,
    *,
    name: str = "",
) -> Module:
    """Return a vision transformer: [N, 3, image, image] -> [N, classes].

    The defaults are ViT-tiny. Source: Dosovitskiy et al., "An image is worth 16x16 words", arXiv
    2010.11929; the tiny sizes: Touvron et al., arXiv 2012.12877.

    Args:
        image: the edge of the images.
        patch: the edge of the patches, which divides `image`.
        layers: blocks.
        width: features of a token.
        heads: heads of each attention.
        classes: features of the result.
        name: the name in the parent.
    """
    tokens = divides("image", image, "patch", patch) ** 2
    layers, classes = positive("layers", layers), positive("classes", classes)
    width, heads = positive("width", width), positive("heads", heads)
    divides("width", width, "heads", heads)
    children: Mapping[str, Module] = {
        "embed": Conv2d(3, width, patch, patch),
        **_blocks(layers, width, heads, 4 * width, "pre"),
        "norm": LayerNorm(width),
        "head": Linear(width, classes),
    }
    specs = [
        param((1, 1, width), _small(), name="token"),
        param((tokens + 1, width), _small(), name="positions"),
    ]
    return layer("vit", _build_vit, {"tokens": tokens, "layers": layers}, specs, children, name)
