"""An array that does not fit the signature never reaches the machine code."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame.core.errors import InvalidArgumentError


def _add(x, y):
    return x + y


@pytest.fixture(scope="module")
def fixed():
    return frame.compile(_add, {"x": frame.spec((6, 3)), "y": frame.spec((6, 3))})


@pytest.fixture(scope="module")
def symbolic():
    return frame.compile(_add, {"x": frame.spec(("n", 3)), "y": frame.spec(("n", 3))})


@pytest.mark.parametrize("shape", [(5, 3), (7, 3), (6, 2), (18,), (6, 3, 1), (), (0, 3)])
def test_a_fixed_shape_names_the_input_and_both_shapes(fixed, shape: tuple) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        fixed(np.ones((6, 3), np.float32), np.ones(shape, np.float32))
    text = str(caught.value)
    assert "input 1 ('y')" in text and "float32[6, 3]" in text and str(list(shape)) in text


@pytest.mark.parametrize("shape", [(5, 3), (6, 4), (6,), (0, 3)])
def test_a_symbol_names_the_size_that_the_other_inputs_gave_it(symbolic, shape: tuple) -> None:
    with pytest.raises(InvalidArgumentError, match=r"input 1 \('y'\).*the other inputs have n = 6"):
        symbolic(np.ones((6, 3), np.float32), np.ones(shape, np.float32))


def test_after_an_error_the_next_call_is_right(symbolic) -> None:
    good = np.arange(12, dtype=np.float32).reshape(4, 3)
    with pytest.raises(InvalidArgumentError):
        symbolic(good, good[:3])
    np.testing.assert_array_equal(symbolic(good, good), good + good)


@pytest.mark.parametrize("dtype", ["float64", "int32", ">f4", "float16"])
def test_dtypes(fixed, dtype: str) -> None:
    value = np.ones((6, 3), dtype)
    if dtype == ">f4":
        np.testing.assert_array_equal(fixed(value, value), np.full((6, 3), 2, np.float32))
        return
    with pytest.raises(InvalidArgumentError, match=r"input 0 \('x'\): expected float32\[6, 3\]"):
        fixed(value, value)
