"""Small networks that must converge: fixed seeds, shapes, learning rates and thresholds.

Where a scenario stems from layers that had a bias for each row of the batch, a parameter of that
shape stands beside the layer (`Offset`, or a one at the row's own place in x): without it the few
steps of these runs would not reach their thresholds.
"""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.compiler.autodiff import build_backward_graph
from frame.compiler.optimizers import SGD
from frame.core import config
from frame.core.dtypes import float16, float32
from frame.core.errors import InvalidArgumentError
from frame.data import DataLoader, TensorDataset
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret
from frame.runtime import compile_stats
from frame.train import fit

REACH = 0.5  # weights and data are drawn between -REACH and REACH where nothing else is said


class Numbers:
    """Draws from a seed: data first, then the parameters of a module in their order."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def draw(self, *shape, reach=REACH):
        return self.generator.uniform(-reach, reach, shape).astype(np.float32)

    def weights(self, module, reach=REACH):
        found = {s.name: self.draw(*s.shape, reach=reach) for s in module.parameters()}
        return found | {name: value + 1 for name, value in found.items() if name.endswith("gamma")}


def Offset(*shape):
    """Return x plus a parameter of the shape of x, its batch included."""

    @nn.module(value=nn.param(shape, nn.zeros()))
    def offset(self, x):
        return x + self.value

    return offset


def outputs(module, x, weights):
    graph = nn.build_graph(module, [TensorType(float32, x.shape)])
    (y,) = interpret(graph, [x, *weights.values()])
    return y.astype(np.float32)


def losses(module, x, target, rate, steps, weights=None):
    """Return the first and the last loss of gradient descent, and the trained model."""
    model = frame.compile(
        module,
        [frame.spec(x.shape, x.dtype)],
        loss=nn.MseLoss(),
        targets=[frame.spec(target.shape, target.dtype)],
        optimizer=SGD(),
    )
    if weights is not None:
        model.load_params(weights)
    seen = [float(model.train_step(x, target, learning_rate=rate)[0]) for _ in range(steps)]
    return seen[0], seen[-1], model


# --- perceptrons ----------------------------------------------------------------------------------


def test_a_perceptron_with_a_bias_for_each_row():
    numbers = Numbers(20260713)
    x, target = numbers.draw(8, 4), numbers.draw(8, 1)
    module = nn.Sequential(
        [nn.Linear(4, 8, bias=False), Offset(8, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)]
    )
    first, last, _ = losses(module, x, target, 0.05, 300, numbers.weights(module))
    assert last < 0.1 * first and last < 0.05


def test_a_perceptron_of_four_points():
    numbers = Numbers(20260713)
    x = numbers.draw(4, 2)
    module = nn.Sequential("mlp", [nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)])
    names = [spec.name for spec in module.parameters()]
    assert names == ["mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]
    first, last, _ = losses(module, x, x[:, :1] * x[:, 1:], 0.1, 100, numbers.weights(module))
    assert last < 0.2 * first


def test_a_linear_layer_in_float16_stays_in_float16():
    numbers = Numbers(20260713)
    x = numbers.draw(4, 2, reach=1).astype(np.float16)
    target = (x @ np.array([[1.0], [-0.5]]) + 0.5).astype(np.float16)
    module = nn.Linear(2, 1, dtype=float16)
    first, last, model = losses(module, x, target, 0.1, 30)
    assert last < 0.5 * first
    assert {str(np.asarray(value).dtype) for value in model.params.values()} == {"float16"}


def test_batches_of_a_loader_train_a_perceptron():
    numbers = Numbers(20260713)
    x = numbers.draw(16, 4)
    target = np.float32(0.5) * x[:, :1] - np.float32(0.25) * x[:, 1:2] + np.float32(0.2)
    module = nn.Sequential([nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)])
    batches = DataLoader(TensorDataset([x, target]), 4, shuffle=True, seed=7)
    model = frame.compile(
        module,
        [frame.spec((4, 4))],
        loss=nn.MseLoss(),
        targets=[frame.spec((4, 1))],
        optimizer=SGD(),
    )
    epochs = fit(model, batches, epochs=150, learning_rate=0.1).epochs
    assert epochs[-1].loss < 0.1 * epochs[0].loss and epochs[-1].loss < 0.1


def test_a_backward_graph_keeps_the_order_of_its_outputs():
    """The outputs of the forward graph come first: [square, sum, 2 x]."""
    x = np.array([1.0, -2.0, 0.5], np.float32)
    with GraphBuilder("square") as builder:
        builder.output(ops.square(builder.input(TensorType(float32, (3,)))))
    graph = build_backward_graph(with_output(builder.finish(), ops.sum), 1, [0])
    square, total, slope = frame.compile(graph)(x)
    assert square.tolist() == [1, 4, 0.25] and total == 5.25 and slope.tolist() == [2, -4, 1]


def test_relu_of_a_product_on_paper():
    x = np.array([[1, -2, 3], [0.5, 1, -1]], np.float32)
    w = np.array([[1, 0, -1, 2], [0, 1, 0.5, 0], [-1, 0, 1, 1]], np.float32)
    found = frame.compile(
        lambda x, w: ops.relu(x @ w + 0.5), [frame.spec((2, 3)), frame.spec(w.shape)]
    )
    np.testing.assert_array_equal(found(x, w), np.maximum(x @ w + 0.5, 0))


def test_a_hundred_compiles_of_one_graph_are_one_run_of_the_pipeline(tmp_path):
    """Counted: the first one runs the passes and makes the code, the others ask the cache."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3), (3, 4)))
    specs = [frame.spec(x.shape), frame.spec(w.shape)]
    graph = frame.trace(lambda x, w: ops.relu(x @ w + 0.5), *specs)
    with config.override(FRAME_CACHE_DIR=str(tmp_path), FRAME_CACHE="1"):
        start = compile_stats()
        expected = frame.compile(graph)(x, w)
        once = compile_stats()
        assert (once - start).passes > 0 and (once - start).compiled == 1
        for _ in range(99):
            np.testing.assert_array_equal(frame.compile(graph)(x, w), expected)
        assert (compile_stats() - once).row()[:2] == (0, 0)


# --- images ---------------------------------------------------------------------------------------


def _fusion():
    @nn.module(
        left=nn.Conv2d(1, 4, 3, padding=1),
        right=nn.Conv2d(1, 4, 1),
        fuse=nn.AFF(4, local_only=True),
    )
    def fusion(self, x):
        return self.fuse(self.left(x), self.right(x))

    return fusion


IMAGES = {
    "cnn": (
        lambda: [
            *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64, 1)),
        ],
        1e-4,
    ),
    "attentional_fusion": (lambda: [_fusion(), nn.Flatten(), nn.Linear(256, 1)], 1e-3),
    "wavelet": (lambda: [nn.Dwt2d("haar"), nn.Flatten(), nn.Linear(64, 1)], 1e-6),
}


SLOW = pytest.param("attentional_fusion", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["cnn", SLOW, "wavelet"])
def test_networks_of_images(kind):
    layers, limit = IMAGES[kind]
    numbers = Numbers(20260721)
    x, target, module = numbers.draw(8, 1, 8, 8), numbers.draw(8, 1), nn.Sequential(layers())
    first, last, _ = losses(module, x, target, 0.05, 300, numbers.weights(module))
    assert last < limit < first


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_recurrent_network_with_a_bias_for_each_row():
    """What stands at the row's own place makes weight_ih hold a bias of the gates for each row."""
    numbers = Numbers(20260722)
    own = np.tile(2 * np.eye(8, dtype=np.float32)[:, None], (1, 4, 1))
    x = np.concatenate([numbers.draw(8, 4, 3), own], 2)
    module = nn.LSTM(11, 4, bias=False, sequence=False)
    target, weights = numbers.draw(8, 4, reach=0.2), numbers.weights(module, 0.2)
    first, last, _ = losses(module, x, target, 0.1, 2000, weights)
    assert last < 1e-4 * first and last < 1e-6


@pytest.mark.slow
def test_a_transformer_finds_the_output_of_its_teacher():
    numbers = Numbers(20260722)
    x, module = numbers.draw(2, 2, 4), nn.TransformerEncoderBlock(4, 2, 6)
    weights = numbers.weights(module)
    moved = {"ln2.beta": weights["ln2.beta"] + numbers.draw(4, reach=0.3)}
    target = outputs(module, x, weights | moved)
    first, last, _ = losses(module, x, target, 0.05, 500, weights)
    assert last < 1e-2 * first and last < 1e-4


@pytest.mark.slow
def test_a_spectral_convolution_finds_its_teacher():
    numbers = Numbers(20260723)
    x, module = numbers.draw(4, 2, 8, reach=1), nn.SpectralConv1d(2, 3, 3)
    target = outputs(module, x, numbers.weights(module))
    first, last, _ = losses(module, x, target, 0.02, 2000, numbers.weights(module))
    assert last < 0.1 * first


@pytest.mark.parametrize(
    ("module", "seed"),
    [
        pytest.param(nn.SimpleMamba(1, 2), 20260729, marks=pytest.mark.slow),
        (nn.FourierMamba(1, 3, 2), 20260730),
    ],
    ids=lambda value: value.kind if isinstance(value, nn.Module) else "",
)
def test_selective_scans(module, seed):
    numbers = Numbers(seed)
    x = numbers.draw(2, 1, 3)
    target = np.float32(0.35) * x + np.float32(0.05)
    whole = nn.Sequential([module, Offset(2, 1, 3)])
    first, last, _ = losses(whole, x, target, 0.1, 200, numbers.weights(whole))
    assert last < 1e-3 * first and last < 1e-5


# --- equations ------------------------------------------------------------------------------------


def with_output(graph, build):
    """Return the graph with one more output, made of its outputs."""
    with Rewriter(graph) as builder:
        for node in graph.nodes:
            builder.copy(node)
        builder.outputs.extend(graph.outputs)
        builder.output(build(*graph.outputs))
        return GraphBuilder.finish(builder)


def test_a_network_that_meets_a_differential_equation():
    """u = (x w)**2 with u'' = 2 at four points, u'' by two derivatives of the graph by x; the
    gradient by w is a third one."""
    x = np.array([[0.75], [0.25], [-0.25], [-0.75]], np.float32)
    with GraphBuilder("pinn") as builder:
        points, weight = (builder.input(TensorType(float32, shape)) for shape in ((4, 1), (1, 1)))
        builder.output(ops.square(points @ weight))
    graph = with_output(builder.finish(), ops.sum)
    graph = with_output(build_backward_graph(graph, 1, [0]), lambda *values: ops.sum(values[-1]))
    graph = build_backward_graph(graph, 3, [0])
    graph = with_output(graph, lambda *values: ops.mean(ops.square(values[-1] - 2.0)))
    graph = build_backward_graph(graph, 5, [1])
    assert len(graph.outputs) == 7
    model = frame.compile(graph)
    w = np.array([[0.4]], np.float32)
    np.testing.assert_allclose(model(x, w)[4], np.full_like(x, 0.32), rtol=1e-6)
    for _ in range(100):
        *_, loss, slope = model(x, w)
        w = w - np.float32(0.02) * slope
    assert loss < 1e-6 and abs(w[0, 0] - 1) < 1e-3


def second_derivative(u):
    """Return u'' of periodic u [..., n] over [0, 2 pi), in the frequency domain."""
    size = u.shape[-1]
    square = -(np.arange(size // 2 + 1, dtype=np.float32) ** 2)
    return ops.irfft(ops.rfft(u) * ops.constant(square[:, None]), n=size)


def test_an_operator_that_meets_a_differential_equation():
    """The filter of u'' = -sin is the identity at the frequency of the sine: u = sin."""
    x = np.sin(2 * np.pi * np.arange(8) / 8).astype(np.float32)[None, None]

    @nn.module(filter=nn.FourierFilter1d(1, 8))
    def residual(self, x):
        return second_derivative(self.filter(x))

    module = residual.named("pino")
    numbers = Numbers(20260731)
    first, last, model = losses(module, x, -x, 0.1, 120, numbers.weights(module))
    assert last < 1e-6 < first
    weight = model.params["pino.filter.weight_re"]
    assert abs(weight[0, 1] - 1) < 1e-3


# --- graphs ---------------------------------------------------------------------------------------

MEMBERS, EDGES = (0, 1, 1, 2, 2, 3), (0, 0, 1, 1, 2, 2)


def test_a_hypergraph_convolution_finds_the_weights_of_its_teacher():
    numbers = Numbers(20260802)
    x = np.array([[1, 0], [0, 1], [1, 1], [-1, 0.5]], np.float32)
    module = nn.HypergraphConv(4, 3, 2, 1, MEMBERS, EDGES)
    target = outputs(module, x, {"linear.weight": np.array([[0.4], [-0.2]], np.float32)})
    first, last, _ = losses(module, x, target, 0.1, 1000, numbers.weights(module))
    assert last < 1e-4 * first and last < 1e-6


def test_parallel_edges_add_up_and_bad_ones_are_refused():
    x = Numbers(20260801).draw(3, 2)
    weights = {"linear.weight": np.eye(2, dtype=np.float32)}
    twice = nn.GraphConv(3, 2, 2, [0, 0], [1, 1])
    # Two edges: 2 messages of x[0] / sqrt(2 leaving * 2 arriving).
    np.testing.assert_allclose(outputs(twice, x, weights)[1], x[0], rtol=1e-6)
    with pytest.raises(InvalidArgumentError, match="from 0 to 2, got 3 at position 0"):
        nn.GraphConv(3, 2, 2, [3], [0])
