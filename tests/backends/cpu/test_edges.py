"""The values at the edges that the records state, in generated code: vectors and tails alike."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu.target import code_features, host_features, known_targets, named_target
from frame.core import config, dtypes
from tests.ops.test_edges import BINARY, CASTS, UNARY

COPIES = 37  # of each list of values: whole vectors of any width, and a rest


def _runnable() -> list[str]:
    """The CPUs by name that this machine can run."""
    machine = code_features(named_target("native"))[0]
    return [
        name
        for name in known_targets()
        if code_features(named_target(name))[0] == machine
        and set(named_target(name).features) <= host_features()
    ]


def _array(kind: str, values: list) -> np.ndarray:
    return np.tile(np.asarray(values, dtypes.dtype(kind).numpy), COPIES)


def _rows() -> list[tuple[str, tuple[np.ndarray, ...], dict, np.ndarray]]:
    """Op, operands, attributes and result of each row of the tables; what is only stored left out,
    as it has tests of its own."""
    rows = [
        (name, (_array(kind, left), _array(kind, right)), {}, _array(kind, result))
        for name, kind, left, right, result in BINARY
    ]
    rows += [(name, (_array(kind, x),), {}, _array(kind, y)) for name, kind, x, y in UNARY]
    rows += [
        ("cast", (_array(source, x),), {"dtype": target}, _array(target, y))
        for source, x, target, y in CASTS
        if not dtypes.dtype(target).storage_only
    ]
    return rows


def _compare(found: np.ndarray, wanted: np.ndarray, name: str) -> None:
    """Equal bits but for the payloads of NaN, and for what is rounded (pi) in the last place."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, name
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    np.testing.assert_array_max_ulp(found, wanted, 1)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number], name)


@pytest.mark.parametrize("cpu", _runnable())
def test_the_edges_in_generated_code(cpu: str) -> None:
    """All rows are one graph, so that this costs one compile for each CPU."""
    rows = _rows()
    counts = [len(operands) for _, operands, _, _ in rows]
    arrays = [array for _, operands, _, _ in rows for array in operands]

    def graph(*values):
        left = iter(values)
        return tuple(
            getattr(ops, name)(*(next(left) for _ in range(count)), **attributes)
            for (name, _, attributes, _), count in zip(rows, counts, strict=True)
        )

    with config.override(FRAME_CPU=cpu):
        model = frame.compile(graph, [frame.spec(a.shape, a.dtype.name) for a in arrays])
    assert model.host_steps == ()
    for (name, operands, _, wanted), found in zip(rows, model(*arrays), strict=True):
        _compare(found, wanted, f"{name} of {[str(a.dtype) for a in operands]}")


def test_floats_that_become_integers_saturate_in_every_pair_of_dtypes() -> None:
    """NaN is 0, and what is beyond the range is its end; the same bits as the record's."""
    floats = ("float64", "float32", "float16", "bfloat16")
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    powers = [s * 2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)]
    values = np.array([0.0, -0.0, 0.9, -0.9, np.nan, np.inf, -np.inf, *powers] * 5)
    near = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.inf)])

    def graph(*xs):
        return tuple(ops.cast(x, kind) for x in xs for kind in integers)

    with np.errstate(over="ignore"):
        arrays = [near.astype(dtypes.dtype(kind).numpy) for kind in floats]
    model = frame.compile(
        graph, [frame.spec(a.shape, kind) for a, kind in zip(arrays, floats, strict=True)]
    )
    found = iter(model(*arrays))
    for array in arrays:
        exact = array.astype(np.float64)
        for kind in integers:
            info = np.iinfo(kind)
            wanted = [
                0 if np.isnan(v) else info.max if v >= 2.0 ** (info.bits - (info.min < 0))
                else info.min if v <= info.min else int(v)
                for v in exact.tolist()
            ]  # fmt: skip
            np.testing.assert_array_equal(next(found), np.array(wanted, kind), f"{array.dtype}")
