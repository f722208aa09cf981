from __future__ import annotations

import math

import numpy as np
import pytest

from frame import ops
from frame.core import philox
from frame.core.dtypes import bfloat16, float16, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ops.interpreter import interpret
from tests.ops.checking import gradients, run, trace, value_of

COUNTER = np.array([5, 2], np.uint64)
COUNT = 200_000


def draw(name, shape, counter=COUNTER, stream=1, **attributes):
    make = getattr(ops, name)
    return run(lambda c: make(c, shape, stream=stream, **attributes), counter, precision="native")[
        0
    ]


def test_element_i_is_word_i_of_the_stream():
    """Bit for bit: block i // 4, word i % 4, under the counter (block, 0, step, stream)."""
    counter = np.array([0x0123456789ABCDEF, 77], np.uint64)
    words = philox.philox4x32(
        [[block, 0, 77, 9] for block in range(3)], [0x89ABCDEF, 0x01234567]
    ).reshape(-1)
    found = draw("uniform", (11,), counter, stream=9)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, ((words >> 8) * 2.0**-24).astype(np.float32)[:11])


def test_known_numbers():
    """The published block of Philox4x32-10 for an all-zero counter and key, its upper 24 bits."""
    words = draw("uniform", (4,), np.zeros(2, np.uint64), stream=0) * 2.0**24
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(word) for word in words] == [word >> 8 for word in expected]


def test_shape_and_tiling_do_not_matter():
    flat = draw("uniform", (24,))
    np.testing.assert_array_equal(draw("uniform", (2, 3, 4)).reshape(-1), flat)
    np.testing.assert_array_equal(draw("uniform", (7,)), flat[:7])
    np.testing.assert_array_equal(draw("normal", (7,)), draw("normal", (24,))[:7])


@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
def test_uniform_is_uniform(dtype):
    u = draw("uniform", (COUNT,), dtype=dtype).astype(np.float64)
    step = 2.0 ** -philox.SIGNIFICANT_BITS[dtype]
    assert u.min() >= 0 and u.max() < 1
    # The grid of a narrow dtype shifts the mean by half a step. Five standard errors.
    assert abs(u.mean() - (0.5 - step / 2)) < 5 / math.sqrt(12 * COUNT)
    assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / COUNT) + step
    counts = np.histogram(u, 64, (0, 1))[0]
    chi = float(((counts - COUNT / 64) ** 2 / (COUNT / 64)).sum())
    assert abs(chi - 63) < 5 * math.sqrt(2 * 63)


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_normal_is_normal(dtype):
    z = draw("normal", (COUNT,), dtype=dtype).astype(np.float64)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 5 / math.sqrt(COUNT)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / COUNT)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / COUNT)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / COUNT)
    assert abs(np.mean(z[0::2] * z[1::2])) < 5 / math.sqrt(COUNT / 2)
    inside = float((abs(z) < 1).mean())
    assert abs(inside - math.erf(math.sqrt(0.5))) < 5 * math.sqrt(0.25 / COUNT)


def test_scaled_numbers():
    close = {"rtol": 1e-6, "atol": 1e-6}
    plain = draw("uniform", (9,))
    np.testing.assert_allclose(draw("uniform", (9,), low=-1.0, high=3.0), plain * 4 - 1, **close)
    plain = draw("normal", (9,))
    np.testing.assert_allclose(draw("normal", (9,), mean=2.0, scale=0.5), plain / 2 + 2, **close)


def test_seed_step_and_stream_all_matter():
    drawn = [
        draw("uniform", (50,), np.array([seed, step], np.uint64), stream)
        for seed, step, stream in ((5, 2, 1), (6, 2, 1), (5, 3, 1), (5, 2, 2))
    ]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not np.isin(one, other).any()


def test_each_call_takes_a_fresh_stream():
    with GraphBuilder():
        counter = value_of((2,), "uint64")
        nodes = [ops.uniform(counter, (3,)).node, ops.normal(counter, (3,)).node]
        nodes.append(ops.dropout(value_of((3,)), counter, 0.5).node)
        streams = [node.attributes["stream"] for node in nodes]
        assert len(set(streams)) == 3


def test_streams_are_unique_over_bodies():
    def function(counter, x):
        def step(carry, _):
            return carry + ops.uniform(counter, (2,), dtype=float64), None

        first = ops.uniform(counter, (2,), dtype=float64)
        return ops.scan(step, x, length=2)[0] + first

    graph = trace(function, COUNTER, np.zeros(2))
    (body,) = (body for node in graph.nodes for _, body in node.bodies)
    streams = [n.attributes["stream"] for n in (*graph.nodes, *body.nodes) if n.op == "uniform"]
    assert len(set(streams)) == 2


def test_symbolic_shapes():
    batch = Dim.symbol("batch")
    with GraphBuilder() as builder:
        x, counter = value_of((batch, 3)), value_of((2,), "uint64")
        builder.output(ops.dropout(x, counter, 0.5, stream=1))
        builder.output(ops.uniform(counter, (batch, 2), stream=2))
    y, u = interpret(builder.finish(), [np.ones((4, 3)), COUNTER])
    assert y.shape == (4, 3) and u.shape == (4, 2)


# --- dropout --------------------------------------------------------------------------------------


def dropped(x, rate, counter=COUNTER):
    return run(lambda x, c: ops.dropout(x, c, rate, stream=3), x, counter)[0]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(rate):
    y = dropped(np.ones(COUNT), rate)
    values = np.unique(y)
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-15)
    assert abs((y == 0).mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / COUNT)


def test_dropout_of_rate_zero_is_the_identity():
    x = np.array([1.5, np.nan, -np.inf])
    np.testing.assert_array_equal(dropped(x, 0.0), x)


def test_dropped_elements_are_zero_even_where_x_is_not_finite():
    y = dropped(np.full(100, np.inf), 0.5)
    assert set(y.tolist()) == {0.0, np.inf}


def test_the_gradient_has_the_mask_of_the_forward_pass():
    x = np.ones(200)
    y = dropped(x, 0.4)
    function = gradients(lambda x, c: ops.dropout(x, c, 0.4, stream=3), 0)
    np.testing.assert_array_equal(run(function, x, COUNTER)[0], y)


def test_all_dtypes_drop_the_same_elements():
    masks = []
    for dtype in (float64, float32, float16, bfloat16):
        x = np.ones(300, dtype.numpy)
        function = trace(lambda x, c: ops.dropout(x, c, 0.3, stream=3), x, COUNTER)
        masks.append((interpret(function, [x, COUNTER], precision="native")[0] != 0).tolist())
    assert all(mask == masks[0] for mask in masks)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: ops.dropout(value_of((2,)), c, 1.0), "'rate' of dropout"),
        (lambda c: ops.dropout(value_of((2,)), c, -0.1), "'rate' of dropout"),
        (lambda c: ops.dropout(value_of((2,)), c, np.nan), "'rate' of dropout"),
        (lambda c: ops.dropout(value_of((2,), "int32"), c, 0.5), "of kind float"),
        (lambda c: ops.uniform(value_of((3,), "uint64"), (2,)), r"uint64 of shape \(2,\)"),
        (lambda c: ops.uniform(value_of((2,), "uint32"), (2,)), "uint64"),
        (lambda c: ops.uniform(c, (2,), dtype="int32"), "'dtype' of uniform"),
        (lambda c: ops.uniform(c, (2,), 1.0, 0.0), "low <= high"),
        (lambda c: ops.uniform(c, (2,), 0.0, np.inf), "finite bounds"),
        (lambda c: ops.uniform(c, (-2,)), "negative"),
        (lambda c: ops.uniform(c, (2,), stream=2**32), "'stream' of uniform"),
        (lambda c: ops.normal(c, (2,), scale=-1.0), "scale >= 0"),
    ],
)
def test_bad_arguments(call, message):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match=message):
        call(value_of((2,), "uint64"))


# --- loops ----------------------------------------------------------------------------------------


def test_each_iteration_of_a_scan_draws_other_numbers():
    def function(counter):
        return ops.scan(lambda c, _: (c, ops.uniform(counter, (40,))), (), length=5)[1]

    (rows,) = run(function, COUNTER)
    assert len(np.unique(rows)) > 5 * 40 - 3


def test_a_scan_draws_the_same_numbers_in_both_directions_and_in_its_gradient():
    def function(x, counter, reverse=False):
        def step(carry, x):
            return carry + 1.0, ops.dropout(x, counter, 0.5)

        return ops.scan(step, 0.0, x, reverse=reverse)[1]

    x = np.ones((4, 50), np.float32)
    (forward,) = run(function, x, COUNTER)
    (backward,) = run(lambda x, c: function(x, c, reverse=True), x, COUNTER)
    np.testing.assert_array_equal(forward, backward)
    np.testing.assert_array_equal(run(gradients(function, 0), x, COUNTER)[0], forward)


def test_nested_loops_draw_other_numbers_in_each_iteration():
    def function(counter):
        def outer(carry, _):
            def inner(carry, _):
                return carry, ops.cond(
                    ops.constant(np.array(True)),
                    lambda: ops.uniform(counter, (20,)),
                    lambda: ops.zeros((20,)),
                )

            return carry, ops.scan(inner, (), length=3)[1]

        return ops.scan(outer, (), length=4)[1]

    (cube,) = run(function, COUNTER)
    assert cube.shape == (4, 3, 20)
    assert len(np.unique(cube)) > 4 * 3 * 20 - 3


def test_a_while_loop_draws_other_numbers_in_each_iteration():
    def function(counter):
        def body(carry):
            i, total = carry
            drawn = ops.uniform(counter, (1, 30))
            row = ops.equal(ops.reshape(ops.iota(shape=(4,), axis=0), (4, 1)), i)
            return i + 1, ops.where(row, drawn, total)

        start = (ops.constant(0), ops.zeros((4, 30)))
        return ops.while_loop(lambda c: c[0] < 4, body, start)[1]

    (rows,) = run(function, COUNTER)
    assert len(np.unique(rows)) > 4 * 30 - 3


def test_a_counter_made_inside_the_loop_is_left_alone():
    def function(counter):
        def step(carry, _):
            return carry, ops.uniform(ops.add(carry, 0), (4,), stream=1)

        return ops.scan(step, counter, length=2)[1]

    (rows,) = run(function, COUNTER)
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], draw("uniform", (4,)))
