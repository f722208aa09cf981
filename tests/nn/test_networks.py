"""The layers beside the basic ones, against plain numpy, and small networks that learn."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn
from frame.compiler.optimizers import SGD
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from tests.nn.test_layers import parameters, run, smooth
from tests.project import checkout


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def named(module):
    values = zip(module.parameters(), parameters(module), strict=True)
    return {spec.name: np.float64(value) for spec, value in values}


def close(received, expected, rtol=1e-9):
    np.testing.assert_allclose(received, expected, rtol=rtol, atol=1e-12)


ROUNDED = 1e-6  # where constants of the graph are float32


def test_families_of_layers_load_at_their_first_use():
    code = (
        "import sys\n"
        "from frame import nn\n"
        "assert not set(nn._LAZY.values()) & set(sys.modules)\n"
        "assert set(nn._LAZY) <= set(nn.__all__) and nn.LSTM is nn.LSTM\n"
        "assert 'frame.nn.attention' not in sys.modules\n"
        "for name in nn.__all__:\n"
        "    getattr(nn, name)\n"
        "import frame.ops\n"
        "assert not set(frame.ops.DEFERRED) & set(sys.modules)\n"
    )
    done = checkout.run_python("-c", code, folder=checkout.ROOT, path=checkout.ROOT)
    assert done.returncode == 0, done.stderr


# --- recurrent ------------------------------------------------------------------------------------


def lstm(x, w, end, order):
    n, steps, _ = x.shape
    h = c = np.zeros((n, w[f"weight_hh{end}"].shape[0]))
    found = {}
    for t in order(range(steps)):
        gates = x[:, t] @ w[f"weight_ih{end}"] + w[f"bias_ih{end}"] + h @ w[f"weight_hh{end}"]
        i, f, g, o = np.split(gates, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        found[t] = h
    return np.stack([found[t] for t in range(steps)], 1)


def test_lstm_of_two_layers_in_both_directions():
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    x, w = smooth(2, 5, 3), named(module)
    expected = np.float64(x)
    for k in range(2):
        both = lstm(expected, w, f"_{k}", list), lstm(expected, w, f"_{k}_reverse", reversed)
        expected = np.concatenate(both, 2)
    close(run(module, x)[0], expected)
    last = nn.LSTM(3, 4, num_layers=2, bidirectional=True, sequence=False)
    close(run(last, x)[0], np.concatenate([expected[:, -1, :4], expected[:, 0, 4:]], 1))


def test_gru():
    module = nn.GRU(3, 4)
    x, w = smooth(2, 5, 3), named(module)
    h, steps = np.zeros((2, 4)), []
    for t in range(5):
        a = np.split(x[:, t] @ w["weight_ih_0"] + w["bias_ih_0"], 3, 1)
        b = np.split(h @ w["weight_hh_0"] + w["bias_hh_0"], 3, 1)
        r, z = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        h = (1 - z) * np.tanh(a[2] + r * b[2]) + z * h
        steps.append(h)
    close(run(module, x)[0], np.stack(steps, 1))


def test_a_long_recurrence_has_no_more_nodes_than_a_short_one():
    def nodes(steps):
        return len(nn.build_graph(nn.LSTM(3, 4), [TensorType(float32, (2, steps, 3))]).nodes)

    assert nodes(1000) == nodes(10)


# --- convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_spreads_each_element(groups):
    module = nn.ConvTranspose1d(4, 6, 3, 2, 1, output_padding=1, groups=groups, dilation=2)
    x, w = smooth(2, 4, 5), named(module)
    assert w["weight"].shape == (4, 6 // groups, 3)
    whole = np.zeros((2, 6, 2 * 4 + 2 * 2 + 1 + 1))
    for i in range(4):
        first = i // (4 // groups) * (6 // groups)
        for t in range(5):
            for k in range(3):
                spread = x[:, i, t, None] * w["weight"][i, :, k]
                whole[:, first : first + 6 // groups, 2 * t + 2 * k] += spread
    close(run(module, x)[0], whole[:, :, 1:-1] + w["bias"][:, None])


# --- attention ------------------------------------------------------------------------------------


def attention(q, k, v, w, heads, allowed):
    def split(x, part):
        y = x @ w[f"{part}.weight"] + w[f"{part}.bias"]
        return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q_, k_, v_ = split(q, "q"), split(k, "k"), split(v, "v")
    scores = q_ @ k_.swapaxes(2, 3) / np.sqrt(q_.shape[-1])
    weights = np.exp(np.where(allowed, scores, -np.inf))
    y = weights / weights.sum(-1, keepdims=True) @ v_
    return y.transpose(0, 2, 1, 3).reshape(q.shape) @ w["o.weight"] + w["o.bias"]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_to_itself_and_to_others(causal):
    module = nn.MultiheadAttention(6, 2, causal=causal)
    x, w = smooth(2, 4, 6), named(module)
    allowed = np.tri(4, dtype=bool) if causal else np.ones((4, 4), bool)
    close(run(module, x)[0], attention(x, x, x, w, 2, allowed))
    memory = smooth(2, 3, 6, seed=1)
    seen = np.tri(4, 3, dtype=bool) if causal else np.ones((4, 3), bool)
    close(run(module, x, memory)[0], attention(x, memory, memory, w, 2, seen))


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_encoder_block(place):
    module = nn.TransformerEncoderBlock(4, 2, 6, norm=place)
    x, w = np.float64(smooth(2, 3, 4)), named(module)
    mha = {key[4:]: value for key, value in w.items() if key.startswith("mha.")}

    def attend(v):
        return attention(v, v, v, mha, 2, np.ones((3, 3), bool))

    def feed(v):
        inner = np.maximum(v @ w["ffn1.weight"] + w["ffn1.bias"], 0)
        return inner @ w["ffn2.weight"] + w["ffn2.bias"]

    y = x
    for branch in (attend, feed):
        y = norm(y + branch(y)) if place == "post" else y + branch(norm(y))
    close(run(module, np.float32(x))[0], y)
    assert len(module.parameters()) == 16


def test_decoder_block_sees_no_later_step_and_all_of_the_memory():
    module = nn.TransformerDecoderBlock(4, 2, 6)
    x, memory = smooth(1, 4, 4), smooth(1, 3, 4, seed=1)
    (before,) = run(module, x, memory)
    changed = x.copy()
    changed[:, 2:] += 1
    (after,) = run(module, changed, memory)
    close(after[:, :2], before[:, :2])
    assert abs(after[:, 2:] - before[:, 2:]).max() > 1e-3
    memory[:, 2] += 1
    assert abs(run(module, x, memory)[0] - before).max(-1).min() > 1e-6


# --- others ---------------------------------------------------------------------------------------


def test_attentional_fusion_weighs_two_images():
    full, local = nn.AFF(8), nn.AFF(4, local_only=True)
    assert [s.shape for s in full.parameters()][:2] == [(2, 8, 1, 1), (2,)]
    assert [s.name for s in local.parameters()] == ["c1.weight", "c1.bias", "c2.weight", "c2.bias"]
    for module, channels in ((full, 8), (local, 4)):
        x, y = smooth(2, channels, 3, 3), smooth(2, channels, 3, 3, seed=1)
        (fused,) = run(module, x, y)
        assert (fused >= np.minimum(x, y) - 1e-9).all() and (fused <= np.maximum(x, y) + 1e-9).all()
        close(run(module, x, x)[0], x)


def test_spikes_are_zeros_and_ones_and_reset_the_potential():
    current = np.array([0.3, 0.3, 0.3, 0.0, 0.6], np.float32).reshape(1, 5, 1)
    (spikes,) = run(nn.LIFCell(decay=0.5, threshold=0.5, alpha=3.0), current)
    assert spikes.ravel().tolist() == [0, 0, 1, 0, 1]


def test_graph_convolution_normalises_by_both_degrees():
    module = nn.GraphConv(3, 2, 2, [0, 0, 1], [1, 2, 2])
    x, weight = smooth(3, 2), named(module)["linear.weight"]
    adjacency = np.zeros((3, 3))
    adjacency[1, 0], adjacency[2, 0], adjacency[2, 1] = 1 / np.sqrt(2), 0.5, 1 / np.sqrt(2)
    close(run(module, x)[0], adjacency @ x @ weight, ROUNDED)


def test_hypergraph_convolution_is_the_product_of_the_paper():
    nodes, edges = [0, 1, 1, 2, 2, 3], [0, 0, 1, 1, 2, 2]
    module = nn.HypergraphConv(5, 3, 2, 3, nodes, edges)
    x, weight = smooth(5, 2), named(module)["linear.weight"]
    h = np.zeros((5, 3))
    h[nodes, edges] = 1
    degree = np.where(h.sum(1) > 0, np.maximum(h.sum(1), 1) ** -0.5, 0)[:, None]
    close(run(module, x)[0], degree * (h / h.sum(0) @ (h.T @ (degree * x @ weight))), ROUNDED)


def test_graph_attention_is_a_softmax_at_each_target():
    """Also where one target's scores lie so far below another's that exp of both is lost."""
    sources, targets = [0, 1, 2, 3, 0, 2, 1], [1, 3, 1, 1, 2, 1, 1]
    module = nn.GATConv(4, 2, 4, sources, targets, heads=2, bias=False)
    x, w = smooth(4, 2, seed=3), named(module)
    x[0] *= 4000
    h = (x @ w["linear.weight"]).reshape(4, 2, 2)
    leaving, arriving = (np.sum(h * w[f"attention_{end}"], 2) for end in ("source", "target"))
    scores = leaving[sources] + arriving[targets]
    scores = np.where(scores > 0, scores, 0.2 * scores)
    assert np.ptp(scores, axis=0).max() > 200
    expected = np.zeros((4, 2, 2))
    for target in set(targets):
        edges = [k for k, each in enumerate(targets) if each == target]
        weights = np.exp(scores[edges] - scores[edges].max(0))
        weights = weights / weights.sum(0)
        expected[target] = np.sum(h[[sources[k] for k in edges]] * weights[..., None], 0)
    close(run(module, x)[0], expected.reshape(4, 4), ROUNDED)


def test_graph_attention_of_equal_features_is_their_mean():
    module = nn.GATConv(3, 2, 4, [0, 1, 2], [2, 2, 2], heads=2)
    x = np.tile(smooth(1, 2), (3, 1))
    (y,) = run(module, x)
    close(y[2], x[0] @ named(module)["linear.weight"])
    close(y[:2], np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MultiheadAttention(5, 2), "embed_dim, 5, must divide by num_heads, 2"),
        (lambda: nn.LSTM(0, 4), "input_size must be an integer of at least 1, got 0"),
        (lambda: nn.GRU(3, 4, dropout=1.0), "dropout must be a number in"),
        (lambda: nn.GroupNorm(3, 4), "must divide by groups, 3"),
        (lambda: nn.TransformerEncoderBlock(4, 2, 6, norm="mid"), "norm must be one of post, pre"),
        (lambda: nn.GraphConv(3, 2, 2, [0, 3], [1, 2]), "from 0 to 2, got 3 at position 1"),
        (lambda: nn.HypergraphConv(3, 2, 2, 2, [0, 0], [1, 1]), "twice"),
        (lambda: nn.LIFCell(decay=1.0), "decay"),
        (lambda: nn.Embedding(4, 2, padding_index=4), "padding_index"),
        (lambda: nn.HuberLoss(delta=0.0), "delta"),
        (lambda: nn.L1Loss("max"), "reduction must be one of"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


# --- networks that learn --------------------------------------------------------------------------


def train(module, x, target, rate, steps, seed=0, weights=None):
    """Return the first and the last loss of gradient descent."""
    model = frame.compile(
        module,
        [frame.spec(x.shape)],
        loss=nn.MseLoss(),
        targets=[frame.spec(target.shape)],
        optimizer=SGD(),
        seed=seed,
    )
    if weights is not None:
        model.load_params(weights)
    losses = []
    for _ in range(steps):
        loss, _ = model.train_step(x, target, learning_rate=rate)
        losses.append(float(loss))
    return losses[0], losses[-1]


def test_an_lstm_learns():
    module = nn.Sequential([nn.LSTM(3, 4, sequence=False), nn.Linear(4, 1)])
    x = np.random.default_rng(5).uniform(-0.5, 0.5, (8, 4, 3)).astype(np.float32)
    first, last = train(module, x, x.mean((1, 2), keepdims=True)[..., 0], 0.1, 400)
    assert last < 0.1 * first


def test_a_graph_convolution_finds_the_weights_of_its_teacher():
    x = np.array([[1, 0], [0, 1], [1, 1], [-1, 0.5]], np.float32)
    ring = nn.GraphConv(4, 2, 1, [0, 1, 2, 3], [1, 2, 3, 0])
    target = (x @ np.array([[0.4], [-0.2]], np.float32))[[3, 0, 1, 2]]
    np.testing.assert_allclose(target.ravel(), [-0.5, 0.4, -0.2, 0.2], atol=1e-7)
    first, last = train(ring, x, target, 0.1, 200, seed=20260801)
    assert last < 1e-4 * first and last < 1e-6


def test_a_spiking_classifier_learns():
    module = nn.SnnClassifier(2, 4, 2, decay=0.5, threshold=0.5, alpha=3.0)
    x = np.zeros((4, 3, 2), np.float32)
    x[:2, :, 0], x[2:, :, 1] = 1.0, 1.0
    target = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    side = np.array([[0.15, -0.15]] * 2 + [[-0.15, 0.15]] * 2, np.float32)
    weights = {
        "input.weight": np.array([[0.8, 0.7, -0.6, -0.5], [-0.5, -0.6, 0.7, 0.8]], np.float32),
        "input.bias": np.zeros(4, np.float32),
        "output.weight": side,
        "output.bias": np.zeros(2, np.float32),
    }
    first, last = train(module, x, target, 0.03, 250, weights=weights)
    assert last < 1e-3 * first and last < 1e-5
