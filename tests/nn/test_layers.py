from __future__ import annotations

import math

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret

BATCH = Dim.symbol("batch")


def smooth(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parameters(module, seed=0):
    return [nn.materialize(spec, seed) for spec in module.parameters()]


def run(module, *inputs, mode="infer", given=None, extra=()):
    types = [TensorType(float32 if x.dtype.kind == "f" else int64, x.shape) for x in inputs]
    graph = nn.build_graph(module, types, mode)
    values = parameters(module) if given is None else given
    return interpret(graph, [*inputs, *values, *extra])


def test_linear():
    module = nn.Linear(5, 3)
    x = smooth(2, 4, 5)
    (y,) = run(module, x)
    weight, bias = (np.float64(p) for p in parameters(module))
    assert weight.shape == (5, 3)
    np.testing.assert_allclose(y, x @ weight + bias, rtol=1e-12)
    assert abs(weight).max() <= 1 / math.sqrt(5) and abs(bias).max() <= 1 / math.sqrt(5)
    assert [s.name for s in nn.Linear(5, 3, bias=False).parameters()] == ["weight"]


def test_conv2d_with_bias_groups_and_padding():
    module = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)
    weight, bias = (np.float64(p) for p in parameters(module))
    assert weight.shape == (6, 2, 3, 2) and bias.shape == (6,)
    x = smooth(2, 4, 5, 6)
    (y,) = run(module, x)
    padded = np.pad(np.float64(x), ((0, 0), (0, 0), (1, 1), (0, 0)))
    expected = np.zeros((2, 6, 3, 5))
    for n, o, i, j in np.ndindex(expected.shape):
        group = o // 3
        window = padded[n, 2 * group : 2 * group + 2, 2 * i : 2 * i + 3, j : j + 2]
        expected[n, o, i, j] = np.sum(window * weight[o]) + bias[o]
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (4, 1), (3, 2), ((1, 5), (1, 3))])
def test_same_padding_keeps_the_size(kernel, dilation):
    module = nn.Conv2d(1, 1, kernel, padding="same", dilation=dilation)
    (y,) = run(module, smooth(1, 1, 9, 11))
    assert y.shape == (1, 1, 9, 11)


def test_pooling():
    x = smooth(1, 2, 5, 6)
    (largest,) = run(nn.MaxPool2d(2), x)
    np.testing.assert_array_equal(largest[0, 0, 0, 0], x[0, 0, :2, :2].max())
    assert largest.shape == (1, 2, 2, 3)
    (mean,) = run(nn.AvgPool2d(3, stride=1, padding=1), x)
    assert mean.shape == x.shape
    np.testing.assert_allclose(mean[0, 1, 0, 0], np.float64(x[0, 1, :2, :2]).sum() / 9)
    (everything,) = run(nn.GlobalAvgPool2d(), x)
    np.testing.assert_allclose(everything, np.float64(x).mean((2, 3)), rtol=1e-12)


def test_batch_norm_trains_and_infers_as_torch_does():
    module = nn.BatchNorm2d(3, momentum=0.2)
    x = smooth(4, 3, 2, 2) * 2 + 1
    gamma, beta = smooth(3, seed=1), smooth(3, seed=2)
    mean, variance = smooth(3, seed=3), abs(smooth(3, seed=4)) + 0.5
    given = [gamma, beta, mean, variance]
    wide = np.float64(x)

    def normalised(m, v):
        m, v, g, b = (np.float64(a).reshape(3, 1, 1) for a in (m, v, gamma, beta))
        return (wide - m) / np.sqrt(v + 1e-5) * g + b

    (y,) = run(module, x, given=given)
    np.testing.assert_allclose(y, normalised(mean, variance), rtol=1e-10, atol=1e-12)
    y, new_mean, new_variance = run(module, x, mode="train", given=given)
    own_mean, own = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
    np.testing.assert_allclose(y, normalised(own_mean, own), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new_mean, 0.8 * np.float64(mean) + 0.2 * own_mean, rtol=1e-6)
    unbiased = own * 16 / 15
    np.testing.assert_allclose(new_variance, 0.8 * np.float64(variance) + 0.2 * unbiased, rtol=1e-6)


def test_batch_norm_over_a_symbolic_batch_counts_at_run_time():
    module = nn.BatchNorm2d(2)
    graph = nn.build_graph(module, [TensorType(float32, (BATCH, 2, 3, 3))], "train")
    for batch in (1, 5):
        x = smooth(batch, 2, 3, 3)
        fixed = nn.build_graph(module, [TensorType(float32, x.shape)], "train")
        ours = interpret(graph, [x, *parameters(module)])
        theirs = interpret(fixed, [x, *parameters(module)])
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_batch_norm_of_a_single_element_keeps_the_variance_finite():
    results = run(nn.BatchNorm2d(2), smooth(1, 2, 1, 1), mode="train")
    assert all(np.isfinite(r).all() for r in results)
    graph = nn.build_graph(nn.BatchNorm2d(2), [TensorType(float32, (BATCH, 2, 1, 1))], "train")
    results = interpret(graph, [smooth(1, 2, 1, 1), *parameters(nn.BatchNorm2d(2))])
    assert all(np.isfinite(r).all() for r in results)


def test_layer_norm_and_flatten():
    x = smooth(2, 3, 4)
    (y,) = run(nn.LayerNorm(4), x)
    np.testing.assert_allclose(y.mean(-1), np.zeros((2, 3)), atol=1e-7)
    (flat,) = run(nn.Flatten(), x)
    np.testing.assert_array_equal(flat, x.reshape(2, 12))
    graph = nn.build_graph(nn.Flatten(), [TensorType(float32, (BATCH, 3, 4))])
    assert graph.outputs[0].shape == (BATCH, 12)
    assert run(nn.Flatten(0), x)[0].shape == (24,)


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # Klambauer et al., section 2


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (nn.ReLU(), lambda x: np.maximum(x, 0)),
        (nn.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
        (nn.Tanh(), np.tanh),
        (nn.SiLU(), lambda x: x / (1 + np.exp(-x))),
        (nn.GELU(), lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2),
        (nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
        (nn.ELU(), lambda x: np.where(x > 0, x, np.expm1(x))),
        (nn.ReLU6(), lambda x: np.clip(x, 0, 6)),
        (nn.Hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6),
        (nn.Softplus(), lambda x: np.log1p(np.exp(x))),
        (nn.Softmax(), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        (nn.Identity(), lambda x: x),
        (nn.CELU(2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2))),
        (nn.SELU(), lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))),
        (nn.Mish(), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (nn.Softsign(), lambda x: x / (1 + abs(x))),
        (nn.Hardsigmoid(), lambda x: np.clip(x + 3, 0, 6) / 6),
        (nn.Hardtanh(-0.5, 2.0), lambda x: np.clip(x, -0.5, 2.0)),
        (nn.LogSigmoid(), lambda x: -np.log1p(np.exp(-x))),
        (nn.LogSoftmax(0), lambda x: x - np.log(np.exp(x).sum(0))),
        (nn.GLU(1), lambda x: x[:, :3] / (1 + np.exp(-x[:, 3:]))),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_activations(module, function):
    x = smooth(3, 6) * 3
    (y,) = run(module, x)
    np.testing.assert_allclose(y, function(np.float64(x)), rtol=1e-10, atol=1e-12)
    assert module.parameters() == ()


def test_prelu_learns_one_slope_or_one_a_channel():
    x = smooth(2, 3, 4)
    slopes = np.array([0.1, -0.5, 2.0], np.float32)
    (y,) = run(nn.PReLU(3), x, given=[slopes])
    np.testing.assert_allclose(y, np.where(x > 0, x, np.float64(x) * slopes[:, None]))
    (y,) = run(nn.PReLU(), x)
    np.testing.assert_allclose(y, np.where(x > 0, x, np.float64(x) * 0.25))


def test_pools_of_sequences():
    x = smooth(2, 3, 7)
    wide = np.float64(x)
    (largest,) = run(nn.MaxPool1d(3, 2, (1, 0)), x)
    padded = np.pad(wide, ((0, 0), (0, 0), (1, 0)), constant_values=-np.inf)
    windows = [padded[..., k : k + 3] for k in (0, 2, 4)]
    np.testing.assert_array_equal(largest, np.stack([w.max(-1) for w in windows], -1))
    (mean,) = run(nn.AvgPool1d(2), x)
    np.testing.assert_allclose(mean, wide[..., :6].reshape(2, 3, 3, 2).mean(-1), rtol=1e-12)
    (everything,) = run(nn.GlobalMaxPool(keepdims=True), smooth(2, 3, 4, 5))
    np.testing.assert_array_equal(everything, smooth(2, 3, 4, 5).max((2, 3), keepdims=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.GELU("erf"), "approximate must be one of none, tanh, got 'erf'"),
        (lambda: nn.LeakyReLU("a"), "slope must be a finite number, got 'a'"),
        (lambda: nn.ELU(math.nan), "alpha must be a finite number"),
        (lambda: nn.Softmax(1.0), "axis must be an integer, got 1.0"),
        (lambda: nn.LayerNorm(3, eps=-1.0), "eps must be a finite number of at least 0.0, got -1"),
        (lambda: nn.BatchNorm2d(3, eps="x"), "eps must be"),
        (lambda: nn.BatchNorm1d(3, momentum=None), "momentum must be a finite number, got None"),
        (lambda: nn.CrossEntropyLoss("0.1"), r"label_smoothing must be in \[0, 1\], got '0.1'"),
        (
            lambda: run(nn.CrossEntropyLoss(weight=[1, 2]), smooth(2, 3), np.array([0, 1])),
            r"weights of 2 classes, and the logits have the shape \(2, 3\)",
        ),
        (lambda: nn.HuberLoss("1"), "delta must be finite and above 0, got '1'"),
        (lambda: nn.CELU(0.0), "alpha must be finite and above 0"),
        (lambda: nn.Hardtanh(1.0, 1.0), "low of Hardtanh must be below high"),
        (lambda: nn.GLU(None), "axis must be an integer"),
        (lambda: nn.PReLU(0), "channels must be"),
        (lambda: nn.MaxPool1d(0), "kernel_size must be"),
        (lambda: nn.AvgPool1d(2, padding=(1, 2, 3)), "padding must be a number or"),
        (lambda: run(nn.MaxPool1d(2), smooth(2, 3)), r"MaxPool1d takes an input \[N, C, L\]"),
        (lambda: run(nn.GlobalMaxPool(), smooth(2, 3)), "GlobalMaxPool takes an input"),
    ],
)
def test_activations_norms_and_pools_check_their_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_dropout_drops_in_training_only():
    x = np.ones((50, 40), np.float32)
    np.testing.assert_array_equal(run(nn.Dropout(0.3), x)[0], x)
    first = np.array([1, 0], np.uint64)
    (y,) = run(nn.Dropout(0.3), x, mode="train", extra=[first])
    assert set(np.unique(y)) == {0.0, np.unique(y)[-1]}
    np.testing.assert_allclose(np.unique(y)[-1], 1 / 0.7, rtol=1e-6)
    share = float((y == 0).mean())
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / x.size)
    (again,) = run(nn.Dropout(0.3), x, mode="train", extra=[first])
    np.testing.assert_array_equal(y, again)
    (later,) = run(nn.Dropout(0.3), x, mode="train", extra=[np.array([1, 1], np.uint64)])
    assert not np.array_equal(y, later)
    graph = nn.build_graph(nn.Dropout(0.0), [TensorType(float32, (2,))], "train")
    assert len(graph.inputs) == 1


def test_two_dropouts_draw_different_masks():
    x = np.ones((30, 30), np.float32)
    model = nn.Sequential([nn.Dropout(0.5), nn.Dropout(0.5)])
    (y,) = run(model, x, mode="train", extra=[np.array([1, 0], np.uint64)])
    assert abs(float((y != 0).mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / x.size)


def test_losses():
    prediction, target = smooth(4, 3), smooth(4, 3, seed=1)
    wide = (np.float64(prediction) - target) ** 2
    np.testing.assert_allclose(run(nn.MseLoss(), prediction, target)[0], wide.mean())
    np.testing.assert_allclose(run(nn.MseLoss("sum"), prediction, target)[0], wide.sum())
    np.testing.assert_allclose(run(nn.MseLoss("none"), prediction, target)[0], wide)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_loss(smoothing):
    logits, labels = smooth(6, 4), np.array([0, 3, 1, 1, 2, 0])
    wide = np.float64(logits)
    log = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    target = np.full((6, 4), smoothing / 4) + (1 - smoothing) * np.eye(4)[labels]
    rows = -(target * log).sum(-1)
    # The smoothing is a float32 constant of the graph.
    for reduction, expected in (("mean", rows.mean()), ("sum", rows.sum()), ("none", rows)):
        module = nn.CrossEntropyLoss(smoothing, reduction)
        np.testing.assert_allclose(run(module, logits, labels)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 2.0, 0.0]])
@pytest.mark.parametrize("ignored", [None, -100])
def test_cross_entropy_of_weighted_classes_and_ignored_labels(smoothing, weight, ignored):
    logits, labels = smooth(2, 3, 4), np.array([[0, 3, 1], [1, 2, 0]])
    if ignored is not None:
        labels[0, 2] = labels[1, 0] = ignored
    wide = np.float64(logits)
    log = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    of_class = np.ones(4) if weight is None else np.array(weight)
    target = np.full((2, 3, 4), smoothing / 4) + (1 - smoothing) * np.eye(4)[labels * (labels >= 0)]
    rows = -(target * of_class * log).sum(-1) * (labels >= 0)
    heavy = of_class[labels * (labels >= 0)] * (labels >= 0)
    for reduction, expected in (
        ("mean", rows.sum() / heavy.sum()),
        ("sum", rows.sum()),
        ("none", rows),
    ):
        module = nn.CrossEntropyLoss(smoothing, reduction, weight, ignored)
        np.testing.assert_allclose(run(module, logits, labels)[0], expected, rtol=1e-6)


def test_ignored_rows_count_nothing_where_their_loss_is_not_finite():
    logits = np.array([[-np.inf, 1, 2], [-np.inf, 1, 2], [np.nan, 0, 0]], np.float32)
    labels = np.array([1, -1, -1])
    loss = run(nn.CrossEntropyLoss(ignore_index=-1), logits, labels)[0]
    np.testing.assert_allclose(loss, np.log1p(np.e), rtol=1e-6)


def test_sequential_passes_several_results_on():
    @nn.module
    def split(self, x):
        return x * 2.0, x + 1.0

    @nn.module
    def join(self, a, b):
        return a - b

    (y,) = run(nn.Sequential([split, join]), np.array([3.0], np.float32))
    assert y.tolist() == [2.0]
    assert run(nn.Sequential([]), np.array([3.0], np.float32))[0].tolist() == [3.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(0, 3), "in_features must be an integer of at least 1"),
        (lambda: nn.Linear(2, 3.0), "out_features"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "must divide into 2 groups"),
        (lambda: nn.Conv2d(2, 4, 0), "kernel_size"),
        (lambda: nn.Conv2d(2, 4, 3, stride=2, padding="same"), "stride of 1"),
        (lambda: nn.Conv2d(2, 4, 3, padding="valid"), "'same'"),
        (lambda: nn.Conv2d(2, 4, 3, padding=-1), "padding"),
        (lambda: nn.Conv2d(2, 4, (3, 3, 3)), r"a number or \(height, width\)"),
        (lambda: nn.MaxPool2d(2, stride=0), "stride"),
        (lambda: nn.Dropout(1.0), r"\[0, 1\)"),
        (lambda: nn.Dropout(-0.1), r"\[0, 1\)"),
        (lambda: nn.BatchNorm2d(4, momentum=1.5), "momentum"),
        (lambda: nn.CrossEntropyLoss(1.5), "label_smoothing"),
        (lambda: nn.MseLoss("average"), "mean, sum, none"),
        (lambda: nn.Sequential("s", [3]), "takes modules"),
        (lambda: nn.LayerNorm(0), "features"),
        (lambda: nn.MaxPool2d(2, padding=2), r"padding must be below the window \(2,\).*got"),
        (lambda: nn.AvgPool2d((2, 3), padding=(1, 3)), r"below the window \(2, 3\)"),
        (lambda: nn.AvgPool1d(3, padding=(0, 3)), "padding must be below the window"),
        (lambda: nn.ConvTranspose1d(1, 1, 2, 2, output_padding=2), "output_padding must be below"),
        (lambda: nn.ConvTranspose2d(1, 1, 2, (3, 1), output_padding=(2, 1)), "the stride 1"),
        (lambda: nn.Linear(2, 3, name="a.b"), "name of a parameter or module .* 'a.b' in Linear"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_bad_inputs_are_named():
    with pytest.raises(InvalidArgumentError, match=r"in module norm \(BatchNorm2d\).*N, C, H, W"):
        nn.build_graph(nn.BatchNorm2d(3, name="norm"), [TensorType(float32, (2, 3))])
    with pytest.raises(InvalidArgumentError, match="in module conv"):
        nn.build_graph(nn.Conv2d(3, 4, 3, name="conv"), [TensorType(float32, (1, 2, 5, 5))])


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5)])
def test_batch_norm_of_features(shape):
    module = nn.BatchNorm1d(3, momentum=0.2)
    x = smooth(*shape)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    gamma, beta, mean, var = smooth(4, 3)
    given = [gamma, beta, mean, np.abs(var)]
    column = [np.float64(v).reshape(3, *(1,) * (x.ndim - 2)) for v in given]
    (y,) = run(module, x, given=given)
    exact = (x - column[2]) / np.sqrt(column[3] + 1e-5) * column[0] + column[1]
    np.testing.assert_allclose(y, exact, rtol=1e-10, atol=1e-12)
    graph = nn.build_graph(module, [TensorType(float32, shape)], "train")
    _, new_mean, new_var = interpret(graph, [x, *given])
    wide = np.float64(x)
    moments = wide.mean(axes), wide.var(axes)
    unbiased = moments[1] * (x.size / 3) / (x.size / 3 - 1)
    np.testing.assert_allclose(new_mean, 0.8 * np.float64(mean) + 0.2 * moments[0], rtol=1e-6)
    np.testing.assert_allclose(new_var, 0.8 * np.abs(np.float64(var)) + 0.2 * unbiased, rtol=1e-6)


def test_batch_norms_refuse_other_ranks():
    with pytest.raises(InvalidArgumentError, match=r"BatchNorm1d takes features \[N, C\]"):
        run(nn.BatchNorm1d(3), smooth(2, 3, 4, 4))
    with pytest.raises(InvalidArgumentError, match=r"BatchNorm2d takes images \[N, C, H, W\]"):
        run(nn.BatchNorm2d(3), smooth(2, 3))


def test_children_have_one_place() -> None:
    with pytest.raises(InvalidArgumentError, match="name of Sequential must be a text"):
        nn.Sequential([nn.ReLU()], [nn.ReLU()])
