"""Wavelet transforms against plain sums over extended signals, and their inverses."""

from __future__ import annotations

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.graph import TensorType
from frame.nn.daubechies import MOST_MOMENTS, filters
from frame.nn.wavelets import MODES
from frame.ops.interpreter import interpret
from tests.ops.support import check_gradient


def graph_of(module, *shapes):
    return nn.build_graph(module, [TensorType(float64, shape) for shape in shapes])


def run(module, x):
    (y,) = interpret(graph_of(module, x.shape), [x])
    return y


def signal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# --- filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, MOST_MOMENTS + 1))
def test_filters_are_orthonormal_and_have_vanishing_moments(number):
    pair = filters(f"db{number}")
    assert pair.shape == (2, 2 * number)
    shifted = np.zeros((2, number, 4 * number - 2))
    for shift in range(number):
        shifted[:, shift, 2 * shift : 2 * shift + 2 * number] = pair
    rows = shifted.reshape(2 * number, -1)
    np.testing.assert_allclose(rows @ rows.T, np.eye(2 * number), atol=1e-15)
    # Moments about the middle, each in units of the absolute sum, which rounding is relative to.
    places = (np.arange(2 * number) - number + 0.5) / number
    for power in range(number):
        weights = pair[1] * places**power
        assert abs(weights.sum()) <= 1e-15 * max(abs(weights).sum(), 1.0)


def test_known_filters():
    r = np.sqrt(3)
    four = np.array([1 + r, 3 + r, 3 - r, 1 - r]) / (4 * np.sqrt(2))
    np.testing.assert_allclose(filters("db2"), [four, four[::-1] * [1, -1, 1, -1]], atol=1e-16)
    np.testing.assert_array_equal(filters("haar"), filters("db1"))
    np.testing.assert_allclose(filters("haar"), np.array([[1, 1], [1, -1]]) / np.sqrt(2))
    # Daubechies (1988), table 1, in the normalisation of a sum of sqrt(2).
    table = [
        0.230377813308855230, 0.714846570552541500, 0.630880767929590400, -0.027983769416983850,
        -0.187034811718881140, 0.030841381835986965, 0.032883011666982945, -0.010597401784997278,
    ]  # fmt: skip
    np.testing.assert_allclose(filters("db4")[0], table, atol=1e-12)


# --- transforms -----------------------------------------------------------------------------------


def sample(x, n, mode):
    """Return sample n of a signal that goes on beyond its ends, by the definition of the mode."""
    size = len(x)
    if mode == "periodization":
        x = np.append(x, x[-1:]) if size % 2 else x
        return x[n % len(x)]
    if 0 <= n < size:
        return x[n]
    if mode == "symmetric":
        n %= 2 * size
        return x[n if n < size else 2 * size - 1 - n]
    if mode == "reflect":
        n %= max(2 * size - 2, 1)
        return x[n if n < size else 2 * size - 2 - n]
    beyond = -n if n < 0 else n - size + 1
    if mode == "smooth":
        ends = (x[0], x[min(1, size - 1)]) if n < 0 else (x[-1], x[max(-2, -size)])
        return ends[0] + beyond * (ends[0] - ends[1])
    if mode == "antisymmetric":
        return -sample(x, beyond - 1 if n < 0 else size - beyond, mode)
    if mode == "antireflect":
        return x[0] if size == 1 else _antireflected(x, n, beyond)
    edges = {"zero": 0.0, "constant": x[0 if n < 0 else -1], "periodic": x[n % size]}
    return edges[mode]


def _antireflected(x, n, beyond):
    place, end = (beyond, x[0]) if n < 0 else (len(x) - 1 - beyond, x[-1])
    return 2 * end - sample(x, place, "antireflect")


def windows(size, taps, mode):
    """Return where the windows of the transform begin."""
    if mode == "valid":
        return range(0, size - taps + 1, 2)
    if mode == "periodization":
        return range(1 - taps // 2, size - taps // 2 + size % 2, 2)
    return range(2 - taps, 2 * ((size + taps - 1) // 2) - taps + 1, 2)


def dwt(x, wavelet, mode):
    """Return (approximation, detail) of one signal."""
    pair = filters(wavelet)
    taps = pair.shape[1]
    parts = [
        [sample(x, start + k, mode) for k in range(taps)] for start in windows(len(x), taps, mode)
    ]
    return pair @ np.array(parts).T


SIZES = {"haar": (6, 7), "db2": (8, 5, 1), "db3": (7, 4), "db5": (3,)}
CASES = [(w, m, n) for w, sizes in SIZES.items() for m in MODES for n in sizes]
CASES = [(w, m, n) for w, m, n in CASES if m != "valid" or n >= filters(w).shape[1]]


@pytest.mark.parametrize(("wavelet", "mode", "size"), CASES)
def test_dwt1d_and_its_inverse(wavelet, mode, size):
    x = signal(2, 2, size)
    y = run(nn.Dwt1d(wavelet, mode), x)
    expected = [np.concatenate([dwt(c, wavelet, mode) for c in row]) for row in x]
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    back = run(nn.Idwt1d(wavelet, mode, size=None if mode == "valid" else size), y)
    edge = filters(wavelet).shape[1] - 2 if mode == "valid" else 0
    end = back.shape[2] - edge
    np.testing.assert_allclose(back[..., edge:end], x[..., edge:end], rtol=1e-11, atol=1e-12)


def dwt2(x, wavelet, mode):
    """Return LL, LH, HL, HH of one image: over the rows, then from row to row."""
    low, high = np.stack([dwt(row, wavelet, mode) for row in x], 1)
    parts = []
    for part in (low, high):
        columns = np.stack([dwt(column, wavelet, mode) for column in part.T], 2)
        parts += list(columns)
    return np.stack(parts)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wavelet", ["haar", "db3"])
def test_dwt2d_and_its_inverse(wavelet, mode):
    x = signal(1, 2, 6, 7) if mode != "valid" else signal(1, 2, 6, 8)
    y = run(nn.Dwt2d(wavelet, mode), x)
    expected = np.concatenate([dwt2(c, wavelet, mode) for c in x[0]])[None]
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    if mode != "valid" or wavelet == "haar":
        size = x.shape[2:] if mode != "valid" else None
        back = run(nn.Idwt2d(wavelet, mode, size), y)
        np.testing.assert_allclose(back, x, rtol=1e-11, atol=1e-12)


def test_haar_in_closed_form():
    image = np.array([[1.0, 2.0], [3.0, 5.0]]).reshape(1, 1, 2, 2)
    y = run(nn.Dwt2d("haar"), image)
    np.testing.assert_allclose(y.ravel(), [5.5, -2.5, -1.5, 0.5], rtol=1e-15)
    np.testing.assert_allclose(
        run(nn.Dwt1d("haar"), image[:, :, 1]).ravel(), np.array([8, -2]) / np.sqrt(2), rtol=1e-15
    )


def test_numbers_of_pywavelets():
    x = np.arange(1.0, 8.0).reshape(1, 1, 7) ** 1.5
    rows = {  # pywt.dwt(x, "db2", mode), version 1.8
        "symmetric": [2.06066017, 2.97839784, 9.80576018, 19.44842279, 26.28448326],
        "reflect": [4.73369278, 2.97839784, 9.80576018, 19.9431969, 22.70955541],
        "periodization": [9.74265762, 6.05900012, 14.11377064, 26.61236797],
        "periodic": [22.44869343, 2.97839784, 9.80576018, 21.71571116, 9.74265762],
        "smooth": [-2.1180364, 2.97839784, 9.80576018, 18.95364868, 29.61949729],
        "antisymmetric": [-2.34442324, 2.97839784, 9.80576018, 24.24181858, -8.39528661],
        "antireflect": [-2.37849742, 2.97839784, 9.80576018, 18.95364868, 29.67364801],
    }
    for mode, expected in rows.items():
        y = run(nn.Dwt1d("db2", mode), x)
        np.testing.assert_allclose(y[0, 0], expected, atol=1e-8)


def test_a_decomposition_applies_the_transform_to_each_approximation():
    x, transform = signal(2, 3, 11), nn.Dwt1d("db2", "smooth")
    low, *details = interpret(graph_of(nn.Wavedec1d("db2", "smooth", 3), x.shape), [x])
    expected = x
    for detail in reversed(details):
        bands = run(transform, expected)
        expected = bands[:, ::2]
        np.testing.assert_allclose(detail, bands[:, 1::2], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(low, expected, rtol=1e-13, atol=1e-14)
    shapes = [low.shape, *(detail.shape for detail in details)]
    assert shapes == [(2, 3, 4), (2, 3, 4), (2, 3, 5), (2, 3, 7)]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "valid"])
def test_decompositions_and_their_inverses(mode):
    x = signal(2, 2, 13)
    pair = nn.Sequential([nn.Wavedec1d("db3", mode), nn.Waverec1d("db3", mode, 13)])
    np.testing.assert_allclose(run(pair, x), x, rtol=1e-10, atol=1e-11)
    images = signal(1, 2, 5, 6)
    parts = [nn.Wavedec2d("haar", mode, 2), nn.Waverec2d("haar", mode, (5, 6))]
    np.testing.assert_allclose(run(nn.Sequential(parts), images), images, rtol=1e-11, atol=1e-12)


def test_the_details_of_images_are_the_subbands_of_each_level():
    x = signal(1, 2, 6, 4)
    low, second, first = interpret(graph_of(nn.Wavedec2d("haar", levels=2), x.shape), [x])
    bands = run(nn.Dwt2d(), x).reshape(1, 2, 4, 3, 2)
    np.testing.assert_array_equal(first, bands[:, :, 1:].reshape(1, 6, 3, 2))
    deeper = run(nn.Dwt2d(), np.ascontiguousarray(bands[:, :, 0])).reshape(1, 2, 4, 2, 1)
    np.testing.assert_array_equal(second, deeper[:, :, 1:].reshape(1, 6, 2, 1))
    np.testing.assert_array_equal(low, deeper[:, :, 0])


def test_decompositions_of_pywavelets():
    x = (np.arange(11.0) ** 1.5).reshape(1, 1, 11)
    expected = [
        [0.35355339, 0.7980593, 6.05900012, 14.11377064, 24.16831462, 36.50990648, 44.84927771],
        [-0.61237244, -0.36766738, -0.2382702, -0.1916505, -0.16492174, 2.20025222, 0.47739708],
    ]  # pywt.wavedec(x, "db2"), version 1.8
    found = interpret(graph_of(nn.Wavedec1d("db2"), x.shape), [x])
    assert len(found) == len(expected) == 2
    for received, row in zip(found, expected, strict=True):
        np.testing.assert_allclose(received.ravel(), row, atol=1e-7)
    assert len(graph_of(nn.Wavedec1d("haar"), (1, 1, 16)).outputs) == 5


@pytest.mark.parametrize("wavelet", ["haar", "db2", "db7"])
def test_periodization_is_an_orthogonal_matrix(wavelet):
    matrix = run(nn.Dwt1d(wavelet, "periodization"), np.eye(6)[:, None])
    rows = matrix.reshape(6, 6)
    np.testing.assert_allclose(rows @ rows.T, np.eye(6), atol=1e-14)


def test_batch_and_length_may_be_symbols():
    batch, size = Dim.symbol("batch"), Dim.symbol("size")
    graph = graph_of(nn.Dwt2d("haar", "valid"), (batch, 3, 4, 4))
    assert graph.outputs[0].shape == (batch, 12, 2, 2)
    x = signal(2, 3, 4, 4)
    np.testing.assert_allclose(interpret(graph, [x])[0], run(nn.Dwt2d(), x))
    with pytest.raises(InvalidArgumentError, match="of known size"):
        graph_of(nn.Dwt1d("db2"), (1, 1, size))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Dwt1d("db2", "reflect"), (1, 2, 5)),
        (nn.Idwt1d("db2", "periodization"), (1, 2, 3)),
        (nn.Dwt2d("db2"), (1, 1, 4, 3)),
        (nn.Idwt2d("haar", size=(3, 4)), (1, 4, 2, 2)),
        (nn.Dwt1d("db3", "antisymmetric"), (1, 1, 3)),
        (nn.Wavedec2d("haar", "antireflect", 2), (1, 1, 3, 4)),
    ],
    ids=lambda value: value.kind if isinstance(value, nn.Module) else "",
)
def test_gradients(module, shape):
    check_gradient(graph_of(module, shape), [signal(*shape)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Dwt1d("db39"), "wavelet must be haar or db1 to db38, got 'db39'"),
        (lambda: nn.Dwt1d("db02"), "wavelet must be"),
        (lambda: nn.Dwt2d("sym4"), "wavelet must be"),
        (lambda: nn.Dwt2d("haar", "same"), "mode must be one of zero, constant"),
        (lambda: nn.Idwt1d(size=0), "size must be an integer of at least 1, got 0"),
        (lambda: nn.Idwt2d(size=(3,)), r"size must be a number or \(height, width\)"),
        (lambda: graph_of(nn.Dwt1d(), (2, 3)), r"Dwt1d takes an input \[N, C, L\]"),
        (lambda: graph_of(nn.Idwt1d(), (2, 3, 4)), "does not divide by 2"),
        (lambda: graph_of(nn.Idwt1d(size=6), (2, 2, 4)), "size of Idwt1d must be"),
        (lambda: nn.Wavedec1d(levels=0), "levels must be an integer of at least 1, got 0"),
        (lambda: graph_of(nn.Wavedec1d("db4"), (1, 1, 6)), "no level of db4 fits into"),
        (lambda: graph_of(nn.Wavedec2d(), (1, 1, 6)), r"takes an input \[N, C, H, W\]"),
        (lambda: graph_of(nn.Waverec1d(), (1, 1, 6)), "received no detail"),
        (lambda: graph_of(nn.Waverec1d(), (1, 1, 4), (1, 1, 6)), "size of Waverec1d must be"),
        (lambda: graph_of(nn.Waverec2d(), (1, 1, 2, 2), (1, 4, 2, 2)), "divide by 3"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
