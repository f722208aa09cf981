"""The one table of tolerances, and the comparison against the float64 reference. For tests.

An error is measured against a reference computed in float64 and allowed relative to a magnitude:
the expected value itself, or, for reductions and contractions, `scale`: the sum of the magnitudes
of the terms (sum |a||b| for a matrix product), because rounding is relative to the terms, not to
what is left after they cancel. Integers, bools and storage-only types are exact. NaN and infinity
must stand exactly where the reference, rounded to the dtype, has them.

Loosening a number here or at a call needs a reason written beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from frame.core.dtypes import DType, bfloat16, float16, float32, float64
from frame.core.errors import FrameError, InvalidArgumentError

VALUES: Mapping[DType, float] = MappingProxyType(
    {
        float64: 2e-15,  # 18 units of rounding (2**-53), as for float32
        float32: 1e-6,  # 17 units of rounding (2**-24): a few operations with 4 ULP functions
        float16: 1e-3,  # 2 units of rounding (2**-11): computed in float32, rounded once
        bfloat16: 8e-3,  # 2 units of rounding (2**-8): computed in float32, rounded once
    }
)
"""Allowed error of one op's result, relative to the magnitude that the module text defines."""

GRADIENTS: Mapping[DType, float] = MappingProxyType(
    {
        float64: 2e-14,  # a gradient chains up to ten ops, each with the error above
        float32: 1e-5,
        float16: 4e-3,  # intermediates between the chained ops may be rounded to 11 bits
        bfloat16: 3e-2,  # intermediates between the chained ops may be rounded to 8 bits
    }
)
"""Allowed error of a generated gradient against the same gradient in float64."""

DIFFERENCE_STEP = 6e-6
"""Step of a central difference in float64, times max(1, |x|): the cube root of the rounding unit
balances truncation (h**2) against cancellation (2**-53 / h)."""

DIFFERENCES = 1e-8
"""Allowed error of a float64 gradient against central differences, relative to `scale`: an order
above what truncation and cancellation leave at that step."""


class ToleranceError(FrameError, AssertionError):
    """A result differs from its reference by more than the table allows."""


def compare(
    actual: npt.ArrayLike,
    expected64: npt.ArrayLike,
    dtype: DType,
    scale: npt.ArrayLike | None = None,
    where: str = "",
    *,
    table: Mapping[DType, float] = VALUES,
    zero_signs: bool = True,
) -> None:
    """Check a result against its float64 (or exact integer) reference.

    `scale` is a magnitude that broadcasts to the result. The sign of an exact zero is checked too,
    unless there is a scale or `zero_signs` is False (for ops that do not define it, such as max).

    Raises:
        ToleranceError: dtype, shape or values differ; the message shows the worst element.
    """
    got, expected = np.asarray(actual), np.asarray(expected64)
    if got.dtype != dtype.numpy:
        raise ToleranceError(f"{where}: expected dtype {dtype}, received {got.dtype}")
    if got.shape != expected.shape:
        raise ToleranceError(f"{where}: expected shape {expected.shape}, received {got.shape}")
    relative = table.get(dtype)
    if relative is None:
        _compare_exactly(got, expected, dtype, where)
        return
    exact = expected.astype(np.float64)
    check_sign = zero_signs and scale is None
    magnitude = np.abs(exact) if scale is None else np.maximum(np.abs(exact), np.abs(scale))
    _compare_floats(got, exact, relative * _finite_magnitude(magnitude, dtype), check_sign, where)


def ulp_errors(
    actual: npt.ArrayLike, expected: npt.ArrayLike, dtype: DType
) -> npt.NDArray[np.float64]:
    """Return |actual - expected| in units in the last place of `expected` in `dtype`.

    `expected` may be wider than `dtype` (float64, or longdouble for float64 functions). Equal
    infinities and two NaNs count 0; any other pair with a non-finite side counts infinity.
    """
    wide = np.longdouble
    got, exact = np.asarray(actual).astype(wide), np.asarray(expected).astype(wide)
    info = _float_info(dtype)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
        errors = np.abs(got - exact) / np.ldexp(wide(1), exponent - info.nmant)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        finite = np.isfinite(got) & np.isfinite(exact)
    return np.where(same, 0.0, np.where(finite, errors, np.inf)).astype(np.float64)


def _float_info(dtype: DType) -> Any:
    if dtype.numpy.kind == "f":
        return np.finfo(dtype.numpy)
    import ml_dtypes  # only where one of its types is compared

    return ml_dtypes.finfo(dtype.numpy)


def _finite_magnitude(magnitude: Any, dtype: DType) -> Any:
    # A non-finite term makes a non-finite result, which is compared exactly. Below the smallest
    # normal number the spacing of the dtype is absolute.
    smallest = float(_float_info(dtype).smallest_normal)
    return np.maximum(np.where(np.isfinite(magnitude), magnitude, 0.0), smallest)


def _compare_floats(got: Any, exact: Any, allowed: Any, check_sign: bool, where: str) -> None:
    wide = got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(wide - exact)
        # Near overflow the result may round to infinity when the allowed error reaches it.
        reached = (exact + np.copysign(allowed, wide)).astype(got.dtype)
        good = (error <= allowed) | (exact.astype(got.dtype) == got)
        good |= np.isinf(wide) & (reached == got)
    good |= np.isnan(wide) & np.isnan(exact)
    if check_sign:
        good &= (exact != 0) | (wide != 0) | (np.signbit(exact) == np.signbit(wide))
    if not good.all():
        excess = np.where(good, -1.0, np.nan_to_num(error / allowed, nan=np.inf))
        worst = np.unravel_index(int(np.argmax(excess)), good.shape)
        _fail(got, exact, good, worst, allowed, where)


def _compare_exactly(got: Any, expected: Any, dtype: DType, where: str) -> None:
    if dtype.is_float and not dtype.storage_only:
        raise InvalidArgumentError(f"the tolerance table has no row for {dtype}")
    if dtype.storage_only:
        expected = expected.astype(dtype.numpy)
    good = (got == expected) | ((got != got) & (expected != expected))  # NaN equals NaN here
    if not np.all(good):
        index = np.unravel_index(int(np.argmin(good)), got.shape)
        _fail(got, expected, good, index, None, where)


def _fail(got: Any, expected: Any, good: Any, index: Any, allowed: Any, where: str) -> None:
    position = tuple(int(i) for i in index)
    text = f"{where}: {int(np.sum(~good))} of {good.size} elements differ"
    text += f"; worst at {position}: expected {expected[index]!r}, received {got[index]!r}"
    if allowed is not None:
        with np.errstate(all="ignore"):
            error = abs(float(got[index]) - float(expected[index]))
        bound = float(np.broadcast_to(allowed, got.shape)[index])
        text += f" (error {error:.3g}, allowed {bound:.3g})"
    raise ToleranceError(text)
