"""Families of ops that are imported at the first use of one of their names, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.record import Sample
from tests.ops import support
from tests.ops.checking import gradients, run
from tests.project import checkout


def test_families_load_at_the_first_use_and_bring_what_they_promise():
    code = (
        "import importlib, sys\n"
        "from frame import ops\n"
        "from frame.ops import registry\n"
        "assert not set(ops.DEFERRED) & set(sys.modules)\n"
        "assert registry.is_built_in('rms_norm') and 'rms_norm' in dir(ops)\n"
        "assert registry.lookup('rms_norm').name == 'rms_norm'\n"
        "assert 'frame.ops.group_norms' in sys.modules\n"
        "assert 'frame.ops.attention' not in sys.modules\n"
        "known = registry.known_names()\n"
        "names = {r.name for r in ops.records()}\n"
        "assert registry.known_names() == known, 'a family brings other names than DEFERRED says'\n"
        "assert all(registry.is_built_in(name) for name in names)\n"
        "assert not registry.foreign_records()\n"
    )
    done = checkout.run_python("-c", code, folder=checkout.ROOT, path=checkout.ROOT)
    assert done.returncode == 0, done.stderr


def test_heaviside_fires_at_both_zeros_and_not_for_nan():
    x = np.array([-2.0, -0.0, 0.0, 0.25, np.nan])
    (fired,) = run(lambda v: ops.heaviside_surrogate(v, alpha=3.0), x)
    assert fired.tolist() == [0, 1, 1, 1, 0]


def test_the_gradient_of_heaviside_is_that_of_a_sigmoid():
    x = np.array([-0.5, 0.0, 0.7])
    (slope,) = run(gradients(lambda v: ops.heaviside_surrogate(v, alpha=3.0)), x)
    s = 1 / (1 + np.exp(-3 * x))
    np.testing.assert_allclose(slope, 3 * s * (1 - s), rtol=1e-13)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf, np.nan])
def test_heaviside_needs_a_positive_steepness(alpha):
    with pytest.raises(InvalidArgumentError, match="alpha"):
        run(lambda v: ops.heaviside_surrogate(v, alpha=alpha), np.zeros(2))


def test_selective_scan_closed_form():
    columns = [[1, 2, -1], [0.5, 0.25, -0.5], [2, 1, 3], [1, 2, 0.5], [0.1, -1, 2]]
    (y,) = run(ops.selective_scan, *(np.array(c, np.float64) for c in columns))
    np.testing.assert_allclose(y, [2.1, 3, -4.125], rtol=1e-14)


def test_the_gradient_of_selective_scan_is_a_scan_of_its_own_length():
    """One scan in the other direction, however long: no node a step."""

    def ops_of(size):
        types = [TensorType(float32, (2, size))] * 5
        with GraphBuilder() as builder:
            builder.output(ops.selective_scan(*map(builder.input, types)))
        return [node.op for node in support.backward(builder.finish()).nodes]

    long, short = ops_of(1000), ops_of(3)
    assert long == short and "linear_scan" in long


def test_the_padding_row_of_an_embedding_learns_nothing():
    table, indices = np.ones((4, 2)), np.array([1, 2, 1, 0])
    (gradient,) = run(
        gradients(lambda t, i: ops.embedding(t, i, padding_index=1), 0), table, indices
    )
    assert gradient[:, 0].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("function", "index"),
    [
        (lambda i: ops.one_hot(i, depth=3), 3),
        (lambda i: ops.embedding(np.zeros((3, 2)), i), -1),
        (lambda i: ops.take_along_axis(np.zeros((2, 3)), i), 3),
        (lambda i: ops.nll_loss(np.zeros((2, 1, 3)), i), 3),
    ],
)
def test_indices_out_of_range_are_named(function, index):
    with pytest.raises(InvalidArgumentError, match=str(index)):
        run(function, np.array([[0], [index]]))


def test_sort_is_stable_and_puts_nan_last():
    x = np.array([np.nan, 1.0, -0.0, 0.0, np.inf, 1.0])
    values, order = run(ops.sort, x)
    np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(values, np.sort(x))


def test_the_size_of_a_sort_does_not_grow_with_the_axis():
    def nodes(size):
        return len(
            support.decomposed(ops.lookup("sort"), Sample("s", (np.arange(float(size)),))).nodes
        )

    assert nodes(1 << 16) == nodes(8)


def test_topk_takes_no_more_than_there_is():
    with pytest.raises(InvalidArgumentError, match="from 0 to 3, received 4"):
        run(lambda v: ops.topk(v, k=4), np.zeros((2, 3)))


def test_attention_without_a_key_gives_zeros_and_no_nan_gradient():
    q, k, v = (np.random.default_rng(s).standard_normal((2, 3)) for s in range(3))
    mask = np.array([[True, True], [False, False]])
    attend = lambda *qkv: ops.scaled_dot_product_attention(*qkv, mask)  # noqa: E731
    (y,) = run(attend, q, k, v)
    assert y[1].tolist() == [0, 0, 0] and np.abs(y[0]).min() > 0
    assert all(np.isfinite(g).all() for g in run(gradients(attend), q, k, v))


def test_a_few_frequencies_are_those_of_the_whole_transform():
    x = np.random.default_rng(0).standard_normal((2, 90))
    (some,) = run(lambda v: ops.rfft(v, count=4), x)
    np.testing.assert_allclose(some, run(ops.rfft, x)[0][:, :4], rtol=1e-12, atol=1e-13)
    (low,) = run(lambda z: ops.irfft(z, n=90), some)
    kept = np.fft.rfft(x)
    kept[:, 4:] = 0
    np.testing.assert_allclose(low, np.fft.irfft(kept, 90), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("count", [-1, 6])
def test_rfft_keeps_at_most_what_there_is(count):
    with pytest.raises(InvalidArgumentError, match="0 or from 1 to 5, the frequencies of 8"):
        run(lambda v: ops.rfft(v, count=count), np.zeros(8))


def test_irfft_takes_no_frequency_above_the_middle():
    with pytest.raises(InvalidArgumentError, match="or fewer frequencies, received"):
        run(lambda z: ops.irfft(z, n=8), np.zeros((6, 2)))
