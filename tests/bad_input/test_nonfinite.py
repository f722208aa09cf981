"""NaN and infinities through compiled code: at the first, inner and last element, and in tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.cpu.pool import set_num_threads
from frame.core.dtypes import DType, bfloat16, dtype, float16, float32, float64
from frame.core.tolerances import compare
from frame.ops.interpreter import interpret

WIDTHS = {"rows": (1, 5, 16, 33), "elements": (5, 35)}  # below, at and above vectors
NAN, INF = float("nan"), float("inf")
SPECIALS = (
    (NAN,), (INF,), (-INF,), (NAN, INF), (INF, -INF), (-INF, NAN), (-INF, -INF), (NAN, NAN),
)  # fmt: skip


def _rows(width: int, seed: int = 0) -> np.ndarray:
    """Rows with special numbers first, last and inside; rows that are nothing else; and one row
    of plain numbers, that must not be touched by its neighbours."""
    generator = np.random.default_rng(seed)
    rows = []
    for special in SPECIALS:
        for place in {0, width // 2, width - 1}:
            row = generator.standard_normal(width)
            for k, value in enumerate(special):
                row[(place + k) % width] = value
            rows.append(row)
        rows.append(np.resize(np.array(special), width))
    rows.append(generator.standard_normal(width))
    return np.array(rows)


ROW_OPS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: ops.softmax(x),
    "log_softmax": lambda x: ops.log_softmax(x),
    "softmax of columns": lambda x: ops.softmax(x, 0),
    "max": lambda x: ops.max(x, 1),
    "min": lambda x: ops.min(x, 1),
    "max of columns": lambda x: ops.max(x, 0),
    "argmax": lambda x: ops.argmax(x, 1),
    "argmin": lambda x: ops.argmin(x, 1),
    "argmax of columns": lambda x: ops.argmax(x, 0),
    "sum": lambda x: ops.sum(x, 1),
    "mean": lambda x: ops.mean(x, 1),
    "sum of columns": lambda x: ops.sum(x, 0),
    "prod": lambda x: ops.prod(x, 1),
    "whole": lambda x: ops.max(x),
    "any": lambda x: ops.any(ops.isnan(x), 1),
    "all": lambda x: ops.all(ops.isfinite(x), 1),
    "layer_norm": lambda x: ops.layer_norm(x, x[-1] * 0.5, x[-1]),
    "mse": lambda x: ops.mse_loss(x, x * 0.5),
}
ELEMENT_OPS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(ops, name)
        for name in (
            "relu", "sigmoid", "tanh", "exp", "log", "erf", "sqrt", "abs", "neg", "sign", "floor",
            "round", "isnan", "isinf", "isfinite", "sin", "expm1", "log1p", "reciprocal", "square",
            "silu", "softplus", "gelu", "elu", "hardswish", "relu6",
        )
    },
    "maximum": lambda x: ops.maximum(x, ops.flip(x, (1,))),
    "minimum": lambda x: ops.minimum(x, ops.flip(x, (1,))),
    "clamp": lambda x: ops.clamp(x, -0.5, 0.5),
    "where": lambda x: ops.where(x > 0.0, x, -x),
    "less": lambda x: x < ops.flip(x, (1,)),
    "equal": lambda x: ops.equal(x, x),
    "not_equal": lambda x: ops.not_equal(x, x),
    "pow": lambda x: x**2.0,
    "div": lambda x: x / ops.flip(x, (1,)),
    "int32": lambda x: ops.cast(x, "int32"),
    "uint8": lambda x: ops.cast(x, "uint8"),
    "int64": lambda x: ops.cast(x, "int64"),
    "bool": lambda x: ops.cast(x, "bool"),
    "times zero": lambda x: x * 0.0,
    "minus itself": lambda x: x - x,
    "transposed": lambda x: ops.transpose(x, (1, 0)) + 1.0,
}  # fmt: skip


@pytest.mark.parametrize("floats", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["rows", "elements"])
def test_results_are_what_the_references_say(kind: str, floats: DType) -> None:
    """All ops and widths of a dtype as one graph; NaN and infinities exactly in their places."""
    table = ROW_OPS if kind == "rows" else ELEMENT_OPS
    arrays = [_rows(width).astype(floats.numpy) for width in WIDTHS[kind]]
    graph = frame.trace(
        lambda *xs: [function(x) for x in xs for function in table.values()],
        *(frame.spec(a.shape, floats.name) for a in arrays),
        name=f"nonfinite_{kind}_{floats}",
    )
    with np.errstate(all="ignore"):
        wanted = interpret(graph, arrays)
    model = frame.compile(graph)
    names = [f"{name} of {width}" for width in WIDTHS[kind] for name in table]
    results = []
    for threads in (1, 2):
        set_num_threads(threads)
        try:
            results.append(model(*arrays))
        finally:
            set_num_threads(None)
    for name, got, again, want, value in zip(
        names, *results, wanted, graph.outputs, strict=True
    ):  # fmt: skip
        assert got.tobytes() == again.tobytes(), name
        finite = np.where(np.isfinite(want), np.abs(want), 0) if want.dtype.kind == "f" else want
        scale = None if want.dtype.kind != "f" else np.max(finite, initial=1.0)
        compare(got, want, value.dtype, scale, f"{name} in {floats}", zero_signs=False)


@pytest.mark.parametrize("rows", [1, 7, 33])
def test_losses(rows: int) -> None:
    width = 13
    model = frame.compile(
        lambda x, y, t: (ops.softmax_cross_entropy(x, t), ops.mse_loss(x, y)),
        [(rows, width), (rows, width), frame.spec((rows,), "int64")],
    )
    generator = np.random.default_rng(0)
    labels = generator.integers(0, width, rows)
    for value in (NAN, INF, -INF):
        x = generator.standard_normal((rows, width)).astype(np.float32)
        x[rows // 2, width - 1] = value
        y = x[::-1] + np.float32(1)
        got = model(x, y, labels)
        with np.errstate(all="ignore"):
            want = interpret(model.graph, [x, y, labels])
        for one, other in zip(got, want, strict=True):
            compare(one, other, float32, 10.0, f"{value} of {rows} rows")
        others = np.delete(got[0], rows // 2)
        assert np.isfinite(others).all(), "only the loss of its own row is not finite"


@pytest.mark.parametrize("size", [(1, 40, 1), (7, 33, 19), (64, 70, 96), (130, 128, 65)])
def test_products_spread_nan_over_one_row_or_column_alone(size: tuple[int, int, int]) -> None:
    """Packing pads tiles with zeros: a zero of the padding times infinity must reach nobody."""
    m, k, n = size
    model = frame.compile(lambda x, w: ops.relu(x @ w) + 0.0, [(m, k), (k, n)])
    generator = np.random.default_rng(1)
    for row, column, value in ((0, 0, NAN), (m - 1, k - 1, INF), (m // 2, k // 2, NAN)):
        x = generator.standard_normal((m, k)).astype(np.float32)
        w = np.abs(generator.standard_normal((k, n))).astype(np.float32)
        x[row, column] = value
        got = model(x, w)
        expected = np.zeros((m, n), bool)
        expected[row] = True
        assert np.array_equal(~np.isfinite(got), expected)
        v = w.copy()
        v[column, n - 1] = value
        x[row, column] = 1
        got = model(np.abs(x), v)
        expected = np.zeros((m, n), bool)
        expected[:, n - 1] = True
        assert np.array_equal(~np.isfinite(got), expected)


def test_convolution_and_pooling_keep_nan_in_their_windows() -> None:
    model = frame.compile(
        lambda x, w: (ops.conv2d(x, w, padding=(1, 1, 1, 1)), *ops.max_pool2d(x, (2, 2), (2, 2))),
        [(2, 3, 9, 11), (5, 3, 3, 3)],
    )
    generator = np.random.default_rng(2)
    w = generator.standard_normal((5, 3, 3, 3)).astype(np.float32)
    for place in ((0, 0, 0, 0), (1, 2, 8, 10), (0, 1, 4, 5)):
        x = generator.standard_normal((2, 3, 9, 11)).astype(np.float32)
        x[place] = NAN
        got = model(x, w)
        want = interpret(model.graph, [x, w])
        for one, other in zip(got, want, strict=True):
            scale = 20.0 if other.dtype.kind == "f" else None
            compare(one, other, dtype(one.dtype), scale, str(place))
        assert 0 < np.isnan(got[0]).sum() <= 5 * 9


def test_a_nan_in_a_batch_goes_into_the_parameters_as_the_mathematics_say() -> None:
    """No silent repair: the loss is NaN and says so; it is `fit` that stops."""
    model = frame.compile(
        nn.Sequential("net", [nn.Linear(3, 2)]),
        [frame.spec(("n", 3))],
        loss=nn.MseLoss(),
        targets=[frame.spec(("n", 2))],
        optimizer=frame.train.SGD(),
    )
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    x[2, 1] = NAN
    assert np.isnan(model.train_step(x, y, learning_rate=0.1)[0])
    assert np.isnan(model.params["net.0.weight"]).any(0).tolist() == [True, True]


def test_a_tensor_on_another_device_is_refused_with_the_way_out() -> None:
    from frame.core.devices import Device
    from frame.core.errors import InvalidArgumentError
    from frame.core.tensors import Tensor

    class Far:
        device, nbytes = Device("fake", 1), 48

    far = Tensor(Far(), (3, 4), float32)
    here = frame.from_numpy(np.ones((3, 4), np.float32))
    model = frame.compile(lambda x, y: x + y, [(3, 4), (3, 4)])
    for arguments in ((far, here), (here, far), (far, far)):
        with pytest.raises(InvalidArgumentError, match=r"on cpu:0, received one on fake:1.*\.to\("):
            model(*arguments)
    with pytest.raises(InvalidArgumentError, match="'y'"):
        model(here, y=far)
    with pytest.raises(InvalidArgumentError, match=r"fake:1.*call \.numpy"):
        frame.jit(lambda x: x + 1.0)(far)
    assert isinstance(model(here, here), Tensor) and model(here, here).tolist()[0][0] == 2
