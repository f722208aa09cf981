from __future__ import annotations

import math

import numpy as np
import pytest

from frame import nn
from frame.core.dtypes import bfloat16, float32, float64, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role, TensorType
from frame.nn.parameters import ParamSpec, fans

BIG = (400, 300)


def values(init, shape=BIG, name="w", seed=3, dtype=float32):
    spec = nn.param(shape, init, dtype=dtype, trainable=dtype.is_float, name=name)
    return nn.materialize(spec, seed)


@pytest.mark.parametrize(
    ("init", "deviation", "bound"),
    [
        (nn.uniform(-2.0, 4.0), 6 / math.sqrt(12), 4.0),
        (nn.normal(1.0, 0.5), 0.5, math.inf),
        (nn.kaiming_uniform(), math.sqrt(2 / 400), math.sqrt(6 / 400)),
        (nn.kaiming_normal(), math.sqrt(2 / 400), math.inf),
        (nn.kaiming_normal(mode="fan_out"), math.sqrt(2 / 300), math.inf),
        (nn.kaiming_uniform(fan=50), math.sqrt(2 / 50), math.sqrt(6 / 50)),
        (nn.xavier_uniform(), math.sqrt(2 / 700), math.sqrt(6 / 700)),
        (nn.xavier_normal(gain=2.0), 2 * math.sqrt(2 / 700), math.inf),
    ],
)
def test_random_initialisers_have_the_stated_spread(init, deviation, bound):
    w = values(init).astype(np.float64)
    count = w.size
    # Five standard errors of the sample deviation; kurtosis of the normal, the wider of the two.
    assert abs(w.std() / deviation - 1) < 5 / math.sqrt(2 * count)
    mean = {nn.uniform(-2.0, 4.0): 1.0, nn.normal(1.0, 0.5): 1.0}.get(init, 0.0)
    assert abs(w.mean() - mean) < 5 * deviation / math.sqrt(count)
    assert abs(w).max() <= bound
    assert len(np.unique(w)) > 0.9 * count


def test_constant_initialisers():
    assert values(nn.zeros()).tolist() == np.zeros(BIG).tolist()
    assert values(nn.ones()).sum() == 120_000
    assert values(nn.full(2.5), (2,)).tolist() == [2.5, 2.5]
    assert values(nn.zeros(), (3,), dtype=int64).dtype == np.int64
    given = np.array([1.0, -2.0])
    spec = nn.param(2, nn.inline(given), name="w")
    given[0] = 7.0
    assert nn.materialize(spec).tolist() == [1.0, -2.0]


def test_values_depend_on_seed_and_path_alone():
    same = values(nn.normal())
    np.testing.assert_array_equal(same, values(nn.normal()))
    assert not np.array_equal(same, values(nn.normal(), seed=4))
    assert not np.array_equal(same, values(nn.normal(), name="v"))
    # Known values: they pin the format, so that a seed means the same in every version.
    known = values(nn.uniform(), (4,), name="mlp.0.weight", seed=0)
    again = values(nn.uniform(), (2, 2), name="mlp.0.weight", seed=0)
    np.testing.assert_array_equal(known.reshape(2, 2), again)
    assert (known * 2**24).tolist() == [3038283, 7216068, 8265608, 15009104]


@pytest.mark.parametrize("dtype", [float64, float32, bfloat16])
def test_dtypes(dtype):
    w = values(nn.uniform(-1.0, 1.0), (1000,), dtype=dtype)
    assert w.dtype == dtype.numpy
    assert len(np.unique(w.astype(np.float64))) > 150


def test_fans():
    assert fans((3, 5)) == (3, 5)
    assert fans((8, 4, 3, 2)) == (24, 48)
    with pytest.raises(InvalidArgumentError, match="two axes"):
        values(nn.xavier_normal(), (5,))


def test_bad_declarations():
    with pytest.raises(InvalidArgumentError, match="known sizes"):
        nn.param((Dim.symbol("n"), 2))
    with pytest.raises(InvalidArgumentError, match="inline values"):
        nn.param((3,), nn.inline(np.zeros(2)))
    with pytest.raises(InvalidArgumentError, match="from 0 to"):
        nn.param((-1,))
    with pytest.raises(InvalidArgumentError, match="low <= high"):
        nn.uniform(1.0, 0.0)
    with pytest.raises(InvalidArgumentError, match="deviation"):
        nn.normal(0.0, -1.0)
    with pytest.raises(InvalidArgumentError, match="fan_in"):
        nn.kaiming_normal(mode="fan")
    for wrong in ("a", True, math.nan):
        with pytest.raises(InvalidArgumentError, match="nn.full: expected value to be a number"):
            nn.full(wrong)
    with pytest.raises(
        InvalidArgumentError,
        match="nn.normal: expected deviation to be a finite number, received 'a'",
    ):
        nn.normal(0.0, "a")
    for wrong in ("abc", [1, "x"], [[1], [1, 2]]):
        with pytest.raises(InvalidArgumentError, match="nn.inline takes an array of numbers"):
            nn.inline(wrong)
    with pytest.raises(InvalidArgumentError, match="fan to be an integer"):
        nn.kaiming_uniform(fan=0)
    with pytest.raises(InvalidArgumentError, match="gain >= 0, received 'a'"):
        nn.xavier_normal(gain="a")
    with pytest.raises(InvalidArgumentError, match="floats"):
        values(nn.uniform(), dtype=int64)
    with pytest.raises(InvalidArgumentError, match="trainable parameter must be a float .*int64"):
        nn.param((3,), dtype=int64)
    with pytest.raises(InvalidArgumentError, match="float that is computed with"):
        nn.param((3,), dtype="float8_e4m3fn")
    with pytest.raises(InvalidArgumentError, match="role"):
        ParamSpec("w", TensorType(float32, (2,)), role=Role.INPUT)


def test_parameter_inputs_are_in_order_and_unique():
    specs = [nn.param((2, 3), name="a"), nn.buffer((4,), name="b")]
    with GraphBuilder() as builder:
        first, second = nn.add_parameter_inputs(builder, specs)
        assert (first.shape, second.shape) == ((2, 3), (4,))
        assert [e.role for e in builder.inputs] == [Role.PARAMETER, Role.BUFFER]
        assert [e.name for e in builder.inputs] == ["a", "b"]
        with pytest.raises(InvalidArgumentError, match="already has an input named 'a'"):
            nn.add_parameter_inputs(builder, specs[:1])


def test_param_defaults():
    assert nn.param((2, 2)).trainable and not nn.buffer(2).trainable
    assert nn.materialize(nn.param(3, name="b")).tolist() == [0, 0, 0]
    bound = 1 / math.sqrt(400)
    assert abs(values(None)).max() <= bound
