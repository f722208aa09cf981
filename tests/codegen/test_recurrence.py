"""Scans whose batch is cut into tiles: which ones are, and that they compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu.target import host_target
from frame.codegen import recurrence
from frame.core import config
from frame.core.dtypes import float32
from frame.ir.graph import Graph, GraphInput, Node, Role, TensorType, Value
from frame.ops.interpreter import interpret

STEPS, BATCH, WIDTH = 5, 16, 8
X, STATE = (STEPS, BATCH, WIDTH), (BATCH, WIDTH)
WEIGHT = (WIDTH, WIDTH)


def recurrent(x, state, weight):
    """A product with the state in every step; the old state is handed on, too."""

    def step(h, row):
        following = ops.tanh(h @ weight + row)
        return following, (following, h)

    return ops.scan(step, state, x)


def reverse(x, state, weight):
    return ops.scan(lambda h, row: (ops.tanh(h @ weight + row), h * row), state, x, reverse=True)


def two_carries(x, state, weight):
    def step(carry, row):
        h, c = carry
        gates = ops.concat([h @ weight, row], axis=1)
        c = ops.sigmoid(gates[:, :WIDTH]) * c + gates[:, WIDTH:]
        return (ops.tanh(c), c), ops.sum(c, axes=(1,))

    return ops.scan(step, (state, state * 0.5), x)


def with_states(x, state, weight):
    """A state space model: the states of a channel meet in a sum, a broadcast takes them apart."""

    def step(h, row):
        keep = ops.exp(ops.unsqueeze(row, 2) * weight)
        h = keep * h + ops.unsqueeze(row, 1)
        return h, ops.sum(h * ops.unsqueeze(row, 1), axes=(2,))

    return ops.scan(step, ops.zeros((BATCH, WIDTH, WIDTH)), x * 0.1)


def masked(x, state, weight):
    """A capture that has rows."""
    return ops.scan(lambda h, row: (h * state + row, row), state, x)


def mixed_over_rows(x, state, weight):
    """Rows meet: a mean over the batch."""
    step = lambda h, row: (ops.tanh(h - ops.mean(h, axes=(0,))) + row, row)  # noqa: E731
    return ops.scan(step, state, x)


def turned(x, state, weight):
    """Rows become columns, in a body of square values."""
    square = ops.zeros((BATCH, BATCH))
    row = lambda h, r: (ops.transpose(h, (1, 0)) + r[:, :1], h)  # noqa: E731
    return ops.scan(row, square, x)


def across(x, state, weight):
    """As many columns as rows: a vector of elements lies along columns."""
    square = ops.zeros((BATCH, BATCH))
    return ops.scan(lambda h, r: (ops.tanh(h + r), h), square, x[:, :, 0])


def over_matrices(x, state, weight):
    """A product of each matrix of the state with as many matrices as there are rows."""
    many = ops.zeros((BATCH, BATCH, 1, WIDTH)) + ops.reshape(state, (BATCH, 1, 1, WIDTH))
    elements = ops.unsqueeze(x, 3) * weight
    return ops.scan(lambda h, r: (ops.tanh(ops.matmul(h, r)), h), many, elements)


def counted(x, state, weight):
    """A carry without rows."""
    step = lambda c, row: ((c[0] * 0.5 + row, c[1] + 1.0), row)  # noqa: E731
    return ops.scan(step, (state, ops.zeros(())), x)


def with_bias(x, state, weight):
    """A bias of columns, as long as the batch, beside a capture that has rows."""
    square, bias = ops.matmul(x[0], x[1], transpose_b=True), x[0, :, 0]
    return ops.scan(lambda h, r: (ops.tanh(h * square + bias) + r[:, :1], h), square, x)


def along_columns(x, state, weight):
    """A carry that has rows and is added to another one along its columns."""
    square = ops.matmul(x[0], x[1], transpose_b=True)
    step = lambda c, r: ((ops.tanh(c[0] + c[1]), c[1] + r[:, 0]), c[0])  # noqa: E731
    return ops.scan(step, (square, x[0, :, 0]), x)


def spread_along_columns(x, state, weight):
    """The same, where the broadcast is a node."""
    square = ops.matmul(x[0], x[1], transpose_b=True)

    def step(carry, row):
        h, u = carry
        return (ops.tanh(h + ops.expand(u, h.shape)), u + row[:, 0]), h

    return ops.scan(step, (square, x[0, :, 0]), x)


TILED = (recurrent, reverse, two_carries, with_states, masked)
WHOLE = (
    mixed_over_rows,
    turned,
    across,
    over_matrices,
    counted,
    with_bias,
    along_columns,
    spread_along_columns,
)


def arrays(*shapes):
    return [
        (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)
        for seed, shape in enumerate(shapes)
    ]


def gradient(function):
    """Return the gradients of the sum of squares of all results."""

    def loss(*operands):
        final, ys = function(*operands)
        leaves = [*(final if isinstance(final, tuple) else (final,))]
        leaves += [*(ys if isinstance(ys, tuple) else (ys,))]
        total = ops.sum(leaves[0] * leaves[0])
        for leaf in leaves[1:]:
            total = total + ops.sum(leaf * leaf)
        return total

    return frame.grad(loss, argnums=(0, 1, 2))


def launches(model):
    """Return whether the entry has a loop around its launches, and the kernels named scan."""
    entry = model.source()["loop"].split("\nentry ")[1]
    return "for " in entry, entry.count("launch scan")


@pytest.fixture(params=[1, 4], ids=["rows1", "rows4"])
def rows(request, monkeypatch):
    """How many rows a tile has where the batch can be cut at all."""
    monkeypatch.setattr(recurrence, "_tile", lambda body, batch, target: request.param)
    with config.override(FRAME_CACHE="0"):
        yield request.param


@pytest.mark.parametrize("function", [*TILED, *WHOLE])
def test_results(function, rows):
    given = arrays(X, STATE, WEIGHT)
    traced = frame.trace(function, *(frame.spec(a.shape) for a in given))
    model = frame.compile(traced)
    assert launches(model) == ((True, 0) if function in WHOLE else (False, 1))
    wanted = interpret(traced, given)
    for got, expected in zip(_leaves(model(*given)), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("function", [recurrent, two_carries, with_states])
def test_gradients(function, rows):
    given = arrays(X, STATE, WEIGHT)
    traced = frame.trace(gradient(function), *(frame.spec(a.shape) for a in given))
    model = frame.compile(traced)
    assert launches(model) == (False, 2)
    for got, expected in zip(_leaves(model(*given)), interpret(traced, given), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("work", "batch", "rows"), [((16, 128, 512), 16, 4), ((16, 128, 512), 15, 3), ((4, 8, 8), 4, 4)]
)
def test_rows_of_a_tile(work, batch, rows):
    """As many as share weights, a part of the batch, and all of it where a step is little work."""
    _, depth, columns = work
    body = _product_body(batch, depth, columns)
    assert recurrence._tile(body, batch, host_target()) == rows


def test_weights_beyond_the_cache_are_read_once_a_step():
    assert recurrence._tile(_product_body(64, 2048, 2048), 64, host_target()) == 0


def _product_body(batch, depth, columns):
    """Return a body of one group: a product with weights."""
    types = [TensorType(float32, shape) for shape in ((batch, depth), (depth, columns))]
    x, weight = map(Value, types)
    node = Node(
        "matmul",
        (x, weight),
        {"transpose_a": False, "transpose_b": False},
        (TensorType(float32, (batch, columns)),),
    )
    inputs = (GraphInput(x, Role.CARRY, "x"), GraphInput(weight, Role.CAPTURE, "weight"))
    group = Graph(inputs, (node,), node.results)
    outer = tuple(GraphInput(Value(t), e.role, e.name) for t, e in zip(types, inputs, strict=True))
    made = Node(
        "group",
        tuple(e.value for e in outer),
        {"anchor": "contraction", "body": group},
        (node.results[0].type,),
    )
    return Graph(outer, (made,), made.results)


def _leaves(results):
    found = []
    for each in results if isinstance(results, (tuple, list)) else (results,):
        found += _leaves(each) if isinstance(each, (tuple, list)) else [each]
    return found
