"""The table of cases, and that of the cases which can't be compared yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks import networks
from benchmarks.suite.case import Case, Declaration, Input, normal, of_function
from frame import nn, ops
from frame.ir.graph import Value

CALL = "call overhead"
PRODUCT = "matrix product"
ELEMENTWISE = "elementwise and reduction"
CONVOLUTION = "convolution"
INFERENCE = "inference"
TRAINING = "training step"
GROUPS = (CALL, PRODUCT, ELEMENTWISE, CONVOLUTION, INFERENCE, TRAINING)

Sizes = tuple[Any, ...]


# --- call overhead and products -------------------------------------------------------------------


def add(count: int) -> Declaration:
    """The sum of two short vectors: what a call costs."""
    return Declaration(of_function(lambda x, y: x + y), normal((count,), (count,)), family="add")


def matmul(m: int, k: int, n: int) -> Declaration:
    """A product of two inputs."""
    return Declaration(of_function(lambda x, y: x @ y), normal((m, k), (k, n)), family="matmul")


def linear(m: int, k: int, n: int) -> Declaration:
    """A product with constant weights, bias and ReLU."""
    return Declaration(nn.Sequential("layer", [nn.Linear(k, n), nn.ReLU()]), normal((m, k)))


PRODUCTS: tuple[tuple[int, int, int], ...] = (
    *((n, n, n) for n in (64, 128, 256, 512, 1000, 1024, 2048)),
    (1, 4096, 4096),
    (32, 784, 1024),
    (128, 768, 3072),
    (197, 768, 768),
    (33, 65, 129),
    (1000, 17, 3),
)


def _products() -> Iterator[Case]:
    yield Case("add16", CALL, add, (16,), (16,))
    for declare in (matmul, linear):
        for sizes in PRODUCTS:
            name = f"{declare.__name__}_{'x'.join(map(str, sizes))}"
            yield Case(name, PRODUCT, declare, sizes, (5, 7, 3))


# --- elementwise, reduction and movement ----------------------------------------------------------


def gelu(approximate: str, rows: int, width: int) -> Declaration:
    """A chain of elementwise ops: GELU of x * a + b, plus r."""
    shapes = normal(*[(rows, width)] * 4)
    function = of_function(lambda x, a, b, r: ops.gelu(x * a + b, approximate=approximate) + r)
    return Declaration(function, shapes, family=f"gelu_{approximate}")


def softmax(rows: int, width: int) -> Declaration:
    """Softmax over rows."""
    return Declaration(of_function(ops.softmax), normal((rows, width)), family="softmax")


def layer_norm(rows: int, width: int) -> Declaration:
    """Layer normalisation of rows, with scale and shift as inputs."""
    shapes = normal((rows, width), (width,), (width,))
    return Declaration(of_function(ops.layer_norm), shapes, family="layer_norm")


def sums(axis: int, rows: int, width: int) -> Declaration:
    """The sum over one axis of a matrix."""
    function = of_function(lambda x: ops.sum(x, axes=(axis,)))
    return Declaration(function, normal((rows, width)), family=f"sum{axis}")


def cumulative_sum(count: int) -> Declaration:
    """The sums of the elements of a vector up to each one."""
    return Declaration(of_function(ops.cumsum), normal((count,)), family="cumsum")


def transpose(shape: Sequence[int], order: Sequence[int]) -> Declaration:
    """A copy with the axes in another order."""
    function = of_function(lambda x: ops.transpose(x, tuple(order)))
    return Declaration(function, normal(shape), family="transpose")


def gather(rows: int, width: int, count: int) -> Declaration:
    """Rows of a table."""
    inputs = (Input((rows, width)), Input((count,), below=rows))
    return Declaration(of_function(ops.gather), inputs, family="gather")


def scatter(rows: int, width: int, count: int) -> Declaration:
    """Rows added up at indices."""
    inputs = (Input((count, width)), Input((count,), below=rows))
    function = of_function(lambda x, i: ops.scatter_add(x, i, (rows, width)))
    return Declaration(function, inputs, family="scatter")


ELEMENTWISE_CASES: tuple[tuple[str, Callable[..., Declaration], Sizes, Sizes], ...] = (
    ("gelu_erf_1M", gelu, ("none", 1024, 1024), ("none", 5, 7)),
    ("gelu_tanh_1M", gelu, ("tanh", 1024, 1024), ("tanh", 5, 7)),
    ("gelu_erf_16M", gelu, ("none", 4096, 4096), ("none", 5, 7)),
    ("gelu_tanh_16M", gelu, ("tanh", 4096, 4096), ("tanh", 5, 7)),
    ("softmax_512x1024", softmax, (512, 1024), (5, 7)),
    ("softmax_16384x1024", softmax, (16384, 1024), (5, 7)),
    ("layer_norm_512x1024", layer_norm, (512, 1024), (5, 7)),
    ("layer_norm_16384x1024", layer_norm, (16384, 1024), (5, 7)),
    ("sum0_1M", sums, (0, 1024, 1024), (0, 5, 7)),
    ("sum1_1M", sums, (1, 1024, 1024), (1, 5, 7)),
    ("sum0_16M", sums, (0, 4096, 4096), (0, 5, 7)),
    ("sum1_16M", sums, (1, 4096, 4096), (1, 5, 7)),
    ("cumsum_1M", cumulative_sum, (1 << 20,), (37,)),
    ("transpose_2048x2048", transpose, ((2048, 2048), (1, 0)), ((5, 7), (1, 0))),
    ("transpose_heads", transpose, ((8, 128, 8, 32), (0, 2, 1, 3)), ((2, 3, 4, 5), (0, 2, 1, 3))),
    ("transpose_nhwc", transpose, ((32, 3, 224, 224), (0, 2, 3, 1)), ((2, 3, 4, 5), (0, 2, 3, 1))),
    ("gather_30522x256_4096", gather, (30522, 256, 4096), (7, 5, 9)),
    ("scatter_10000x64_100000", scatter, (10_000, 64, 100_000), (7, 5, 9)),
)


def _elementwise() -> Iterator[Case]:
    for name, declare, sizes, tiny in ELEMENTWISE_CASES:
        yield Case(name, ELEMENTWISE, declare, sizes, tiny)


# --- convolutions ---------------------------------------------------------------------------------


def conv(shape: Sequence[int], out: int, kernel: int, options: Mapping[str, int]) -> Declaration:
    """A convolution with constant weights and bias; options of nn.Conv2d."""
    return Declaration(nn.Conv2d(shape[1], out, kernel, **options), normal(shape))


def conv_transposed(shape: Sequence[int], out: int, kernel: int, stride: int) -> Declaration:
    """A transposed convolution that multiplies the size by the stride."""
    low = kernel - 1 - (kernel - stride) // 2

    @nn.module(weight=nn.param((out, shape[1], kernel, kernel), nn.kaiming_uniform()))
    def transposed(self: nn.Scope, x: Value) -> Value:
        return ops.conv2d(x, self.weight, padding=(low,) * 4, input_dilation=(stride, stride))

    return Declaration(transposed, normal(shape))


def _options(**values: int) -> Mapping[str, int]:
    return MappingProxyType(values)


_SMALL = (2, 4, 9, 9)
CONVOLUTIONS: tuple[tuple[str, Sizes, Sizes], ...] = (
    (
        "conv3x3_64_56",
        ((1, 64, 56, 56), 64, 3, _options(padding=1)),
        (_SMALL, 8, 3, _options(padding=1)),
    ),
    (
        "conv7x7s2_3_224_b32",
        ((32, 3, 224, 224), 64, 7, _options(padding=3, stride=2)),
        ((2, 3, 16, 16), 8, 7, _options(padding=3, stride=2)),
    ),
    ("conv1x1_128_28_b8", ((8, 128, 28, 28), 256, 1, _options()), (_SMALL, 8, 1, _options())),
    (
        "dwconv3x3_96_56_b8",
        ((8, 96, 56, 56), 96, 3, _options(padding=1, groups=96)),
        (_SMALL, 4, 3, _options(padding=1, groups=4)),
    ),
    (
        "dwconv3x3s2_96_56_b8",
        ((8, 96, 56, 56), 96, 3, _options(padding=1, groups=96, stride=2)),
        (_SMALL, 4, 3, _options(padding=1, groups=4, stride=2)),
    ),
    (
        "conv3x3_1_28_b128",
        ((128, 1, 28, 28), 32, 3, _options(padding=1)),
        ((2, 1, 9, 9), 8, 3, _options(padding=1)),
    ),
    (
        "conv3x3_256_14_b1",
        ((1, 256, 14, 14), 256, 3, _options(padding=1)),
        (_SMALL, 4, 3, _options(padding=1)),
    ),
    (
        "conv3x3_grouped4_128_28_b8",
        ((8, 128, 28, 28), 128, 3, _options(padding=1, groups=4)),
        (_SMALL, 4, 3, _options(padding=1, groups=2)),
    ),
    (
        "conv3x3_dilated2_64_56",
        ((1, 64, 56, 56), 64, 3, _options(padding=2, dilation=2)),
        (_SMALL, 4, 3, _options(padding=2, dilation=2)),
    ),
    (
        "conv5x5_32_28_b8",
        ((8, 32, 28, 28), 64, 5, _options(padding=2)),
        (_SMALL, 8, 5, _options(padding=2)),
    ),
)


def _convolutions() -> Iterator[Case]:
    for name, sizes, tiny in CONVOLUTIONS:
        yield Case(name, CONVOLUTION, conv, sizes, tiny)
    sizes, tiny = ((8, 128, 14, 14), 64, 4, 2), ((2, 4, 5, 5), 3, 4, 2)
    yield Case("convtransposed4x4s2_128_14_b8", CONVOLUTION, conv_transposed, sizes, tiny)


# --- networks -------------------------------------------------------------------------------------


def image_network(
    make: Callable[..., nn.Module], options: Mapping[str, Any], batch: int, shape: Sequence[int]
) -> Declaration:
    """A network of one input of normal numbers [batch, *shape]."""
    return Declaration(make(**options), normal((batch, *shape)))


def tokens_network(options: Mapping[str, int], batch: int, length: int, words: int) -> Declaration:
    """BERT over token ids."""
    network = networks.bert(words=words, length=length, **options)
    return Declaration(network, (Input((batch, length), below=words),))


def lstm(length: int, batch: int, width: int) -> Declaration:
    """An LSTM as wide as its input [batch, length, width]."""
    return Declaration(nn.LSTM(width, width), normal((batch, length, width)), idiom="lstm")


def selective_scan(batch: int, length: int, width: int, state: int) -> Declaration:
    """The scan of a Mamba block."""
    inputs = (
        Input((batch, length, width)),
        Input((batch, length, width), low=0.001, scale=0.1),
        Input((width, state), low=-2.0, scale=1.5),
        Input((batch, length, state)),
        Input((batch, length, state)),
    )
    function = of_function(networks.selective_scan)
    return Declaration(function, inputs, family="selective_scan", idiom="selective_scan")


def gcn(nodes: int, edges: int, widths: Sequence[int]) -> Declaration:
    """A graph network over random edges."""
    inputs = (
        Input((nodes, widths[0])),
        Input((edges,), below=nodes),
        Input((edges,), below=nodes),
        Input((edges,), low=0.0, scale=0.2),
    )
    return Declaration(networks.gcn(nodes, widths), inputs)


def fno(batch: int, channels: int, length: int, modes: int) -> Declaration:
    """A block of a Fourier neural operator that keeps the lowest modes."""
    return Declaration(nn.Fno1dBlock(channels, channels, modes), normal((batch, channels, length)))


_NONE: Mapping[str, Any] = MappingProxyType({})
_IMAGE, _TINY_IMAGE, _TEXT = (3, 224, 224), (3, 32, 32), (128, 256)

# name, network, its options, batches, shape without the batch; small: options and shape; heavy
IMAGE_NETWORKS: tuple[tuple[Any, ...], ...] = (
    (
        "mlp",
        networks.mlp,
        _NONE,
        (1, 8, 32, 128),
        (784,),
        {"widths": (9, 17, 5, 10)},
        (9,),
        False,
    ),
    ("lenet", networks.lenet5, _NONE, (1, 8, 32), (1, 28, 28), _NONE, (1, 28, 28), False),
    (
        "resnet18",
        networks.resnet,
        {"depth": 18},
        (1, 8, 32),
        _IMAGE,
        {"depth": 18, "classes": 5, "width": 8},
        _TINY_IMAGE,
        True,
    ),
    (
        "resnet50",
        networks.resnet,
        {"depth": 50},
        (1, 8),
        _IMAGE,
        {"depth": 50, "classes": 5, "width": 8},
        _TINY_IMAGE,
        True,
    ),
    (
        "mobilenetv2",
        networks.mobilenet_v2,
        _NONE,
        (1, 8, 32),
        _IMAGE,
        {"classes": 5},
        _TINY_IMAGE,
        True,
    ),
    (
        "vgg16bn",
        networks.vgg16_bn,
        _NONE,
        (1, 8),
        _IMAGE,
        {"classes": 5, "width": 8, "small": True},
        _TINY_IMAGE,
        True,
    ),
    (
        "encoder",
        networks.encoder_block,
        _NONE,
        (1, 8, 32),
        _TEXT,
        {"width": 8, "heads": 2, "hidden": 12},
        (5, 8),
        False,
    ),
    (
        "vit_tiny",
        networks.vit,
        _NONE,
        (1, 8),
        _IMAGE,
        {"image": 16, "patch": 8, "layers": 2, "width": 12, "classes": 5},
        (3, 16, 16),
        True,
    ),
    (
        "mamba_block",
        nn.Mamba,
        {"features": 64},
        (4,),
        (256, 64),
        {"features": 6, "state": 4},
        (9, 6),
        False,
    ),
)

_BERT = {"layers": 2, "width": 8, "heads": 2, "hidden": 12}


def _networks() -> Iterator[Case]:
    for name, make, options, batches, shape, small, small_shape, heavy in IMAGE_NETWORKS:
        for batch in batches:
            sizes, tiny = (make, options, batch, shape), (make, small, 2, small_shape)
            yield Case(f"{name}_b{batch}", INFERENCE, image_network, sizes, tiny, heavy=heavy)
    for batch in (1, 8):
        sizes, tiny = (_NONE, batch, 128, 30522), (_BERT, 2, 5, 31)
        yield Case(f"bert_mini_b{batch}", INFERENCE, tokens_network, sizes, tiny, heavy=True)
    yield Case("lstm_h128_t64_b16", INFERENCE, lstm, (64, 16, 128), (5, 2, 4))
    yield Case("ssm_b4_l256_d128_n16", INFERENCE, selective_scan, (4, 256, 128, 16), (2, 5, 3, 4))
    yield Case("fno1d_b16_c64_l1024_m16", INFERENCE, fno, (16, 64, 1024, 16), (2, 3, 12, 4))
    yield Case(
        "gcn_10000_100000", INFERENCE, gcn, (10_000, 100_000, (128, 64, 16)), (7, 11, (5, 4, 3))
    )


# --- training -------------------------------------------------------------------------------------


def classify(
    make: Callable[..., nn.Module], options: Mapping[str, Any], shape: Sequence[int], classes: int
) -> Declaration:
    """A training step of a classifier: softmax cross entropy."""
    return Declaration(make(**options), normal(shape), Input((shape[0],), below=classes))


def regress(
    make: Callable[..., nn.Module],
    options: Mapping[str, Any],
    shape: Sequence[int],
    out: int,
    idiom: str = "",
) -> Declaration:
    """A training step towards random targets [..., out]: mean squared error."""
    return Declaration(make(**options), normal(shape), Input((*shape[:-1], out)), idiom=idiom)


_SCAN: Mapping[str, Any] = {"batch": 4, "length": 256, "width": 128, "state": 16}
_WIDTHS: Mapping[str, Any] = {"input_size": 128, "hidden_size": 128}
_TINY_SCAN: Mapping[str, Any] = {"batch": 2, "length": 5, "width": 3, "state": 4}
_SMALL_RESNET: Mapping[str, Any] = {"depth": 18, "classes": 10, "small": True}
_TRAINED: tuple[tuple[str, Callable[..., Declaration], Sizes, Sizes, bool], ...] = (
    (
        "train_mlp_b128",
        classify,
        (networks.mlp, _NONE, (128, 784), 10),
        (networks.mlp, {"widths": (9, 17, 10)}, (4, 9), 10),
        False,
    ),
    (
        "train_lenet_b64",
        classify,
        (networks.lenet5, _NONE, (64, 1, 28, 28), 10),
        (networks.lenet5, _NONE, (2, 1, 28, 28), 10),
        False,
    ),
    (
        "train_resnet18_cifar_b64",
        classify,
        (networks.resnet, _SMALL_RESNET, (64, 3, 32, 32), 10),
        (networks.resnet, {**_SMALL_RESNET, "width": 4}, (4, 3, 16, 16), 10),
        True,
    ),
    (
        "train_vgg16bn_b32",
        classify,
        (networks.vgg16_bn, {"classes": 10, "small": True}, (32, 3, 32, 32), 10),
        (
            networks.vgg16_bn,
            {"classes": 10, "small": True, "width": 4},
            (8, 3, 32, 32),
            10,
        ),
        True,
    ),
    (
        "train_encoder_b8",
        regress,
        (networks.encoder_block, _NONE, (8, 128, 256), 256),
        (
            networks.encoder_block,
            {"width": 8, "heads": 2, "hidden": 12},
            (2, 5, 8),
            8,
        ),
        False,
    ),
    (
        "train_lstm",
        regress,
        (nn.LSTM, _WIDTHS, (16, 64, 128), 128, "lstm"),
        (nn.LSTM, {"input_size": 4, "hidden_size": 4}, (2, 5, 4), 4, "lstm"),
        False,
    ),
    (
        "train_ssm_b4_l256_d128_n16",
        regress,
        (networks.trained_scan, _SCAN, (4, 256, 128), 128, "selective_scan"),
        (networks.trained_scan, _TINY_SCAN, (2, 5, 3), 3, "selective_scan"),
        False,
    ),
    (
        "train_mamba_block_b4",
        regress,
        (nn.Mamba, {"features": 64}, (4, 256, 64), 64),
        (nn.Mamba, {"features": 6, "state": 4}, (2, 9, 6), 6),
        False,
    ),
)


def _training() -> Iterator[Case]:
    for name, declare, sizes, tiny, heavy in _TRAINED:
        yield Case(name, TRAINING, declare, sizes, tiny, tolerance=5e-3, heavy=heavy)


CASES: tuple[Case, ...] = (
    *_products(),
    *_elementwise(),
    *_convolutions(),
    *_networks(),
    *_training(),
)

ABSENT: Mapping[str, str] = MappingProxyType({})
"""Cases that the suite should have and that can't be compared yet, with the reason."""


def select(only: str = "", group: str = "", cases: Sequence[Case] = CASES) -> list[Case]:
    """Return the cases whose name holds one of the comma-separated texts of `only`, by group."""
    texts = [text for text in only.split(",") if text]
    return [
        case
        for case in cases
        if group in case.group and (not texts or any(text in case.name for text in texts))
    ]


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest magnitude expected."""
    if result.shape != expected.shape:
        raise ValueError(f"expected the shape {expected.shape}, received {result.shape}")
    if expected.size == 0:
        return 0.0
    scale = float(np.max(np.abs(expected))) or 1.0
    return float(np.max(np.abs(result.astype(np.float64) - expected))) / scale
