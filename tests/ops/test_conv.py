from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ops.binding import check_binding
from frame.ops.interpreter import interpret
from frame.ops.registry import lookup
from tests.ops import support
from tests.ops.checking import check_second_order, gradients, run, trace, value_of

BATCH = Dim.symbol("batch")


def direct(x, w, strides, padding, dilation, input_dilation, groups):
    """Convolution by its definition, one product after another."""
    x = np.asarray(x, np.float64)
    count, _, height, width = x.shape
    outputs, channels, kh, kw = w.shape
    tall, wide = (height - 1) * input_dilation[0] + 1, (width - 1) * input_dilation[1] + 1
    oh = (tall + padding[0] + padding[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (wide + padding[2] + padding[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    y = np.zeros((count, outputs, oh, ow))
    for o, i, j, a, b in np.ndindex(outputs, oh, ow, kh, kw):
        row = i * strides[0] + a * dilation[0] - padding[0]
        column = j * strides[1] + b * dilation[1] - padding[2]
        inside = 0 <= row < tall and 0 <= column < wide
        if not inside or row % input_dilation[0] or column % input_dilation[1]:
            continue
        first = o // (outputs // groups) * channels
        pixel = x[
            :, first : first + channels, row // input_dilation[0], column // input_dilation[1]
        ]
        y[:, o, i, j] += pixel @ w[o, :, a, b]
    return y


FINITE = [s for s in lookup("conv2d").samples() if s.gradient]


@pytest.mark.parametrize("sample", FINITE, ids=lambda sample: sample.name)
def test_reference_is_the_definition(sample):
    graph = support.sample_graph(lookup("conv2d"), sample)
    attributes = lookup("conv2d").normalize(sample.attributes)
    x, w = sample.operands
    np.testing.assert_allclose(
        interpret(graph, [x, w])[0], direct(x, w, **attributes), rtol=1e-12, atol=1e-12
    )


SMALL = [
    dict(strides=(2, 2), padding=(1, 1, 1, 1)),
    dict(groups=2, padding=(0, 1, -1, 1)),
    dict(dilation=(2, 1), input_dilation=(1, 2), strides=(1, 2)),
]


@pytest.mark.parametrize("attributes", SMALL, ids=str)
def test_second_order(attributes):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, 2, 4, 4))
    w = generator.standard_normal((2, 2 // attributes.get("groups", 1), 2, 2))
    check_second_order(lambda x, w: ops.conv2d(x, w, **attributes), x, w)


def test_gradients_are_convolutions():
    """The op is closed: its gradients consist of conv2d and of ops that move elements."""
    with GraphBuilder() as builder:
        x, w = value_of((BATCH, 4, 9, 9)), value_of((6, 2, 3, 3))
        strides = {"strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 2}
        gradients(lambda x, w: ops.conv2d(x, w, **strides), 0, 1)(x, w)
    used = {node.op for node in builder.nodes}
    assert used <= {"conv2d", "transpose", "reshape", "flip", "slice", "constant", "expand"}
    assert sum(node.op == "conv2d" for node in builder.nodes) == 3


def test_transposed_convolution_inverts_the_shape():
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5))
    w = np.random.default_rng(1).standard_normal((2, 3, 3, 3))
    attributes = {"input_dilation": (2, 2), "padding": (2, 2, 2, 2)}
    (y,) = run(lambda x, w: ops.conv2d(x, w, **attributes), x, w)
    assert y.shape == (1, 2, 9, 11)


def test_a_symbolic_batch_passes_through_both_gradients():
    def function(x, w):
        return gradients(lambda x, w: ops.conv2d(x, w, strides=(2, 1), groups=2), 0, 1)(x, w)

    generator = np.random.default_rng(2)
    w = generator.standard_normal((4, 1, 3, 2))
    with GraphBuilder() as builder:
        for value in function(value_of((BATCH, 2, 6, 5), "float64"), value_of(w.shape, "float64")):
            builder.output(value)
    graph = builder.finish()
    assert [v.shape for v in graph.outputs] == [(BATCH, 2, 6, 5), (4, 1, 3, 2)]
    for batch in (0, 1, 3):
        x = generator.standard_normal((batch, 2, 6, 5))
        for one, other in zip(interpret(graph, [x, w]), run(function, x, w), strict=True):
            np.testing.assert_array_equal(one, other)


def test_symbolic_sizes():
    height = Dim.symbol("h")
    with GraphBuilder():
        w = value_of((2, 3, 3, 3))
        y = ops.conv2d(value_of((1, 3, height, 7)), w, padding=(1, 1, 1, 1))
        assert y.shape == (1, 2, height, 7)
        even = ops.conv2d(value_of((1, 3, 2 * height + 1, 7)), w, strides=(2, 1))
        assert even.shape == (1, 2, height, 5)
        with pytest.raises(InvalidArgumentError, match="not divisible"):
            ops.conv2d(value_of((1, 3, height, 7)), w, strides=(2, 1))


def test_a_symbolic_image_must_hold_the_window():
    with GraphBuilder() as builder:
        x = value_of((1, 1, Dim.symbol("h"), 7))
        builder.output(ops.conv2d(x, value_of((1, 1, 3, 3)), padding=(1, 0, 0, 0)))
        builder.output(ops.avg_pool2d(x, kernel=(4, 1), strides=(1, 1)))
    graph = builder.finish()
    check_binding(graph, {"h": 4})
    with pytest.raises(InvalidArgumentError, match=r"avg_pool2d.*height.*window of 4.*h=3"):
        check_binding(graph, {"h": 3})
    with pytest.raises(InvalidArgumentError, match=r"conv2d.*height.*window of 3.*h=1"):
        check_binding(graph, {"h": 1})
    with pytest.raises(InvalidArgumentError, match=r"height of 1 or more.*h=0"):
        check_binding(graph, {"h": 0})


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 5), (2, 3, 3, 3), {}, r"four axes \[N, C, H, W\]"),
        ((1, 3, 5, 5), (2, 3, 3), {}, r"four axes \[O, I, H, W\]"),
        ((1, 4, 5, 5), (2, 3, 3, 3), {}, "takes 3 channels"),
        ((1, 6, 5, 5), (3, 3, 3, 3), {"groups": 2}, "must divide into 2 groups"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"groups": 0}, "at least 1"),
        ((1, 3, 2, 5), (2, 3, 3, 3), {}, "does not fit"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (-2, -2, 0, 0)}, "does not fit"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (1, 1)}, "must hold 4 integers"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"strides": (0, 1)}, "'strides' of conv2d"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"dilation": (1, -1)}, "'dilation' of conv2d"),
    ],
)
def test_bad_convolutions(x, w, attributes, message):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match=message):
        ops.conv2d(value_of(x), value_of(w), **attributes)


# --- pooling --------------------------------------------------------------------------------------

TWO = {"kernel": (2, 2), "strides": (2, 2)}


def test_max_pool_takes_the_first_of_ties_and_lets_nan_win():
    x = np.array([[1.0, 1.0, 5.0, np.nan], [1.0, 0.0, np.nan, 7.0]]).reshape(1, 1, 2, 4)
    y, index = run(lambda x: ops.max_pool2d(x, **TWO), x)
    assert index.reshape(-1).tolist() == [0, 3]
    assert y.reshape(-1)[0] == 1.0 and np.isnan(y.reshape(-1)[1])


def test_padding_never_wins():
    x = np.full((1, 1, 2, 2), -np.inf)
    window = {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    y, index = run(lambda x: ops.max_pool2d(x, **window), x)
    assert index.reshape(-1).tolist() == [0, 1, 2, 3]
    assert np.isneginf(y).all()


def test_max_pool_by_its_definition():
    x = np.round(np.random.default_rng(0).standard_normal((2, 3, 7, 6)), 1)
    window = {"kernel": (3, 2), "strides": (2, 2), "padding": (1, 2, 0, 1)}
    y, index = run(lambda x: ops.max_pool2d(x, **window), x)
    for n, c, i, j in np.ndindex(y.shape):
        rows = range(max(0, 2 * i - 1), min(7, 2 * i + 2))
        columns = range(max(0, 2 * j), min(6, 2 * j + 2))
        best = max((x[n, c, r, k], -(r * 6 + k)) for r in rows for k in columns)
        assert (y[n, c, i, j], -index[n, c, i, j]) == best


def test_the_gradient_goes_to_the_chosen_element_alone():
    x = np.array([[3.0, 3.0], [1.0, 2.0]]).reshape(1, 1, 2, 2)
    (g,) = run(gradients(lambda x: ops.max_pool2d(x, **TWO)[0]), x)
    assert g.reshape(-1).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_overlapping_windows_add_up():
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 1, 1] = 5.0
    window = {"kernel": (2, 2), "strides": (1, 1)}
    (g,) = run(gradients(lambda x: ops.max_pool2d(x, **window)[0]), x)
    assert g[0, 0, 1, 1] == 4.0 and g.sum() == 4.0


def test_positions_of_the_pool_gradient_are_checked():
    with pytest.raises(InvalidArgumentError, match=r"max_pool2d_grad.*position 1 is 6"):
        run(
            lambda g, i: ops.max_pool2d_grad(g, i, input_shape=(1, 1, 2, 3)),
            np.ones((1, 1, 1, 2)),
            np.array([[[[5, 6]]]]),
        )


def test_pool_gradients_of_a_symbolic_batch_to_second_order():
    def function(x):
        first = gradients(lambda x: ops.square(ops.max_pool2d(x, **TWO)[0]))
        return gradients(lambda x: ops.sum(ops.square(first(x)[0])))(x)

    with GraphBuilder() as builder:
        builder.output(function(value_of((BATCH, 2, 4, 4), "float64"))[0])
    graph = builder.finish()
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 4))
    # f = sum m**2 has the gradient 2m, its squared norm 4 m**2, and the gradient of that 8m.
    y, index = run(lambda x: ops.max_pool2d(x, **TWO), x)
    expected = np.zeros((6, 16))
    np.put_along_axis(expected, index.reshape(6, 4), 8 * y.reshape(6, 4), 1)
    np.testing.assert_allclose(interpret(graph, [x])[0], expected.reshape(x.shape), rtol=1e-14)


def test_avg_pool_counts_padding():
    x = np.ones((1, 1, 3, 3))
    window = {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 0, 1, 0)}
    (y,) = run(lambda x: ops.avg_pool2d(x, **window), x)
    assert y.reshape(-1).tolist() == [0.25, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ((1, 2, 4), TWO, "four axes"),
        ((1, 2, 1, 4), TWO, "does not fit"),
        ((1, 2, 4, 4), {**TWO, "padding": (2, 0, 0, 0)}, "window less one"),
        ((1, 2, 4, 4), {**TWO, "padding": (-1, 0, 0, 0)}, "window less one"),
        ((1, 2, 4, 4), {"kernel": (2,), "strides": (1, 1)}, "must hold 2"),
        ((1, 2, 4, 4), {"kernel": (2, 2), "strides": (1, 0)}, "at least 1"),
    ],
)
def test_bad_pools(name, shape, attributes, message):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match=message):
        getattr(ops, name)(value_of(shape), **attributes)


def test_traced_convolution_has_one_node():
    graph = trace(ops.conv2d, np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 2, 2)))
    assert [node.op for node in graph.nodes] == ["conv2d"]
