"""The networks of the tests: the well-known ones, which are only counted, and small ones."""

from __future__ import annotations

from frame.blueprint import (
    BlockStyle,
    BluePrint,
    add2,
    avgpool,
    block,
    bn,
    cbr,
    cbrp,
    channel_padding,
    conv,
    conv_dw,
    dropout,
    fc,
    flatten,
    gap,
    gap_fc,
    group_conv,
    identity,
    maxpool,
    mbconv,
    relu,
    repeat,
    seq,
    silu,
    tanh_act,
)

BOTTLENECK, BOTTLENECK_DS = BlockStyle.RESNET_1_3_1, BlockStyle.RESNET_1_3_1_DS
BASIC, BASIC_DS = BlockStyle.RESNET_3_3, BlockStyle.RESNET_3_3_DS


def mlp() -> BluePrint:
    hidden = [part for size in (1024, 512, 256) for part in (fc(size, True), relu())]
    return seq(*hidden, fc(10, True))


def lenet5() -> BluePrint:
    return seq(
        conv(6, 5),
        tanh_act(),
        maxpool(2, 2, 0),
        conv(16, 5),
        tanh_act(),
        maxpool(2, 2, 0),
        fc(120, True),
        tanh_act(),
        fc(84, True),
        tanh_act(),
        fc(10, True),
    )


def mlp_bn() -> BluePrint:
    hidden = [part for size in (1024, 512, 256) for part in (fc(size, True), bn(), relu())]
    return seq(*hidden, fc(10, True))


def _norms(wanted: bool) -> list[BluePrint]:
    return [bn()] if wanted else []


def lenet(norms: bool = False) -> BluePrint:
    """LeNet as it was trained: padded channels, mean pools, hidden layers of 120 and 88."""
    parts = [channel_padding()]
    for convolution in (conv(8, 5, 1, 2), conv(16, 5)):
        parts += [convolution, *_norms(norms), relu(), avgpool(2, 2, 0)]
    for size in (120, 88):
        parts += [fc(size, True), *_norms(norms), relu()]
    return seq(*parts, fc(10, True))


def lenet_bn() -> BluePrint:
    return lenet(norms=True)


def mini_lenet(norms: bool = False) -> BluePrint:
    stem = [channel_padding(), conv(8, 3, 1, 1), *_norms(norms), relu(), avgpool(2, 2, 0)]
    return seq(*stem, fc(512, True), relu(), fc(256, True), relu(), fc(10, True))


def mini_lenet_bn() -> BluePrint:
    return mini_lenet(norms=True)


def network_in_network() -> BluePrint:
    parts = [channel_padding()]
    for _ in range(2):
        layers = (conv(192, 5, 1, 2), relu(), conv(192, 1), relu(), conv(192, 1), relu())
        parts += [*layers, maxpool(3, 2, 1), dropout(0.5)]
    return seq(*parts, conv(192, 3, 1, 1), relu(), conv(192, 1), relu(), conv(10, 1), gap())


def all_convolutions() -> BluePrint:
    return seq(conv(128, 3, 1, 1), relu(), conv(128, 3, 1, 1), relu(), conv(10, 1), gap())


def odd_flatten() -> BluePrint:
    """Six channels of an image: no multiple of 8, so a Flatten stands before the fc."""
    hidden = [part for size in (400, 120, 84) for part in (fc(size, True), relu())]
    return seq(conv(6, 3, 1, 1), relu(), *hidden, fc(10, True))


def vgg16_bn() -> BluePrint:
    def stage(channels: int, count: int) -> list[BluePrint]:
        parts = [p for _ in range(count) for p in (conv(channels, 3, 1, 1), bn(), relu())]
        return [*parts, maxpool(2, 2, 0)]

    stages = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    head = [part for _ in range(2) for part in (fc(4096, True), relu(), dropout(0.5))]
    body = [part for stage_ in stages for part in stage(*stage_)]
    return seq(*body, flatten(), *head, fc(1000, True))


def resnet18() -> BluePrint:
    deeper = [part for c in (128, 256, 512) for part in (block(c, BASIC_DS), block(c, BASIC))]
    stem = (cbr(64, 7, 2, 3), maxpool(3, 2, 1))
    return seq(*stem, repeat(block(64, BASIC), 2), *deeper, gap_fc(1000, True))


def resnet34() -> BluePrint:
    stages = ((128, 3), (256, 5), (512, 2))
    deeper = [p for c, n in stages for p in (block(c, BASIC_DS), repeat(block(c, BASIC), n))]
    stem = (cbr(64, 7, 2, 3), maxpool(3, 2, 1))
    return seq(*stem, repeat(block(64, BASIC), 3), *deeper, gap_fc(1000, True))


STAGES = ((64, 256, 1, 2), (128, 512, 2, 3), (256, 1024, 2, 5), (512, 2048, 2, 2))
"""Of ResNet-50: middle and output channels, stride, and how often the block is repeated."""


def resnet50() -> BluePrint:
    return seq(
        cbrp(64, 7, 2, 3, 3, 2, 1),
        repeat(block(64, 256, BOTTLENECK), 3),
        block(128, 512, BOTTLENECK_DS),
        repeat(block(128, 512, BOTTLENECK), 3),
        block(256, 1024, BOTTLENECK_DS),
        repeat(block(256, 1024, BOTTLENECK), 5),
        block(512, 2048, BOTTLENECK_DS),
        repeat(block(512, 2048, BOTTLENECK), 2),
        gap_fc(1000, True),
    )


def bottleneck_by_hand(middle: int, out: int, stride: int, project: bool) -> BluePrint:
    stem = seq(
        conv(middle, 1),
        bn(),
        relu(),
        conv(middle, 3, stride, 1),
        bn(),
        relu(),
        conv(out, 1),
        bn(),
    )
    shortcut = seq(conv(out, 1, stride), bn()) if project else identity()
    return seq(add2(shortcut, stem), relu())


def resnet50_by_hand() -> BluePrint:
    blocks = []
    for middle, out, stride, more in STAGES:
        blocks.append(bottleneck_by_hand(middle, out, stride, project=True))
        blocks += [bottleneck_by_hand(middle, out, 1, project=False)] * more
    stem = (conv(64, 7, 2, 3), bn(), relu(), maxpool(3, 2, 1))
    return seq(*stem, *blocks, gap(), fc(1000, True))


def mobilenet_v2() -> BluePrint:
    return seq(
        cbr(32, 3, 2, 1),
        mbconv(1, 16, 1),
        mbconv(6, 24, 2),
        mbconv(6, 24, 1),
        mbconv(6, 32, 2),
        repeat(mbconv(6, 32, 1), 2),
        mbconv(6, 64, 2),
        repeat(mbconv(6, 64, 1), 3),
        repeat(mbconv(6, 96, 1), 3),
        mbconv(6, 160, 2),
        repeat(mbconv(6, 160, 1), 2),
        mbconv(6, 320, 1),
        cbr(1280, 1, 1, 0),
        gap_fc(1000, True),
    )


# --- small ones, which are run --------------------------------------------------------------------


def small_residual() -> BluePrint:
    """Every kind of block, nested add2, and both kinds of normalisation; any resolution."""
    return seq(
        cbr(8, 3, 1, 1),
        maxpool(2, 2, 0),
        block(8, BASIC),
        block(12, BASIC_DS),
        block(4, 16, BOTTLENECK),
        add2(identity(), seq(add2(conv_dw(3, 1, 1), seq(conv(16, 3, 1, 1), bn())), silu())),
        gap(),
        fc(10, False),
        silu(),
        bn(),
        fc(5, True),
    )


def small_mobile() -> BluePrint:
    """Depthwise and grouped convolutions, and inverted residuals of each form."""
    return seq(
        cbr(8, 3, 2, 1),
        mbconv(1, 8, 1),
        mbconv(6, 12, 2),
        mbconv(6, 12, 1),
        group_conv(18, 3, 3, 1, 1),
        bn(),
        relu(),
        conv_dw(3, 1, 1),
        gap_fc(5, True),
    )


def small_flat() -> BluePrint:
    """A convolution whose image an fc reads, in the order H, W, C."""
    return seq(conv(3, 3, 1, 1), bn(), relu(), maxpool(2, 2, 0), fc(7, True), relu(), fc(4, True))
