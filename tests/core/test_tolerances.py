from __future__ import annotations

import numpy as np
import pytest

from frame.core import dtypes
from frame.core.tolerances import GRADIENTS, VALUES, ToleranceError, compare, ulp_errors

FLOATS = list(VALUES)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_passes_and_a_larger_error_fails(dtype: dtypes.DType) -> None:
    exact = np.linspace(-3, 3, 101) ** 3
    rounded = exact.astype(dtype.numpy)
    compare(rounded, exact, dtype)
    wrong = rounded.copy()
    wrong[70] = dtype.numpy.type(exact[70] * (1 + 2.5 * VALUES[dtype]))
    with pytest.raises(ToleranceError, match=r"case: 1 of 101 elements differ; worst at \(70,\)"):
        compare(wrong, exact, dtype, where="case")
    assert isinstance(ToleranceError("x"), AssertionError)


def test_the_gradient_table_has_the_same_rows() -> None:
    assert GRADIENTS.keys() == VALUES.keys()
    compare(np.float32([1.000005]), [1.0], dtypes.float32, table=GRADIENTS)
    with pytest.raises(ToleranceError):
        compare(np.float32([1.000005]), [1.0], dtypes.float32)


def test_errors_scale_with_the_magnitude_of_the_terms() -> None:
    actual, exact = np.float32([1e-4]), np.array([0.0])
    compare(actual, exact, dtypes.float32, scale=1000.0)
    compare(actual, exact, dtypes.float32, scale=[1000.0])
    with pytest.raises(ToleranceError, match=r"error 0.0001, allowed 1e-05"):
        compare(actual, exact, dtypes.float32, scale=10.0)


@pytest.mark.parametrize(
    ("actual", "exact", "scale"),
    [
        (np.nan, 1.0, None),
        (1.0, np.nan, None),
        (np.inf, 1.0, None),
        (1.0, np.inf, None),
        (-np.inf, np.inf, None),
        (np.inf, np.nan, None),
        (1.0, np.inf, np.inf),
        (1.0, 2.0, np.nan),
        (3.4e38, 1e39, None),
    ],
)
def test_non_finite_positions_are_exact(actual: float, exact: float, scale: float | None) -> None:
    with pytest.raises(ToleranceError):
        compare(np.float32([actual]), [exact], dtypes.float32, scale=scale)


def test_overflow_and_non_finite_values_that_agree() -> None:
    actual = np.float32([np.inf, -np.inf, np.nan, np.inf, np.inf])
    exact = np.array([np.inf, -np.inf, np.nan, 1e39, 3.4028234e38])
    compare(actual, exact, dtypes.float32)


def test_subnormal_results() -> None:
    compare(np.float32([0.0, 3e-45]), [1e-50, 1.5e-45], dtypes.float32)
    with pytest.raises(ToleranceError):
        compare(np.float32([0.0]), [1e-40], dtypes.float32)


def test_the_sign_of_an_exact_zero() -> None:
    actual, exact = np.float32([0.0]), np.array([-0.0])
    with pytest.raises(ToleranceError):
        compare(actual, exact, dtypes.float32)
    compare(actual, exact, dtypes.float32, zero_signs=False)
    compare(actual, exact, dtypes.float32, scale=1.0)


@pytest.mark.parametrize("name", ["int64", "uint8", "bool", "int4", "float8_e5m2"])
def test_other_types_are_exact(name: str) -> None:
    dtype = dtypes.dtype(name)
    values = np.array([0, 1, 1, 0]).astype(dtype.numpy)
    compare(values, np.array([0, 1, 1, 0]), dtype)
    with pytest.raises(ToleranceError, match="1 of 4"):
        compare(values, np.array([0, 1, 0, 0]), dtype)
    large = np.array([2**62 + 1])
    with pytest.raises(ToleranceError):
        compare(large, large - 1, dtypes.int64)


def test_dtype_and_shape_are_checked() -> None:
    with pytest.raises(ToleranceError, match="expected dtype float32, received float64"):
        compare(np.zeros(1), [0.0], dtypes.float32)
    with pytest.raises(ToleranceError, match="expected shape"):
        compare(np.zeros((1, 1), np.float32), [0.0], dtypes.float32)
    compare(np.zeros((0, 3), np.float32), np.zeros((0, 3)), dtypes.float32)
    compare(np.float32(2), 2.0, dtypes.float32)


def test_ulp_errors() -> None:
    one = np.float32(1)
    above = np.nextafter(one, np.float32(2))
    actual = np.float32([one, above, np.inf, np.nan, np.inf, 0])
    expected = np.array([1.0, 1.0, np.inf, np.nan, 1.0, 2.0**-150])
    assert ulp_errors(actual, expected, dtypes.float32).tolist() == [0, 1, 0, 0, np.inf, 0.5]
    assert ulp_errors([1.0078125], [1.0], dtypes.bfloat16).tolist() == [1]
    assert ulp_errors([1.0], [np.longdouble(1) + np.longdouble(2) ** -54], dtypes.float64) == 0.25
