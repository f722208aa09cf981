"""Every operator on every dtype, as native code, against the numpy semantics of the loop IR.

It runs for this machine and for its baseline, which lacks fma, rounding and half conversion on x86:
the code that stands in for missing instructions must give the same bits.
"""

import numpy as np
import pytest

from frame.backends.cpu.target import host_architecture, host_target, named_target
from frame.core import dtypes as dt
from tests.codegen import operators
from tests.codegen.native import Native, module_of

BASELINE = {"x86_64": "x86-64", "aarch64": "armv8-a"}[host_architecture()]


@pytest.fixture(params=["host", "baseline"])
def target(request):
    return host_target() if request.param == "host" else named_target(BASELINE)


def run(rows, target, lanes=operators.LANES):
    native = Native(module_of(*operators.kernels_of(rows, lanes)), target)
    for place, (_, _, result, arrays, expected) in enumerate(rows):
        for count in lanes:
            got = np.zeros(operators.COUNT, result.numpy)
            native.kernel(f"k{place}x{count}", [*arrays, got])
            operators.assert_same(got, expected, f"row {place} lanes {count}", arrays)


@pytest.mark.parametrize("dtype", operators.DTYPE_PARAMETERS)
@pytest.mark.parametrize("family", ["unary", "binary", "compare", "cast"])
def test_lanewise(target, dtype, family):
    run(getattr(operators, f"{family}_rows")(dtype), target)


def test_16_bit_floats_and_the_ties_between_them(target):
    run(operators.half_rows(), target)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_fma_rounds_once(target, dtype):
    run(operators.fma_rows(dtype), target)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_dot_products_of_pairs(target, lanes):
    run(operators.pair_rows(lanes), target, lanes=(lanes,))


def test_repeated_pairs(target):
    run(operators.repeated_rows(), target, lanes=(8,))


def test_bits(target):
    run(operators.bit_rows(), target)


@pytest.mark.parametrize("dtype", [*operators.FLOATS, dt.int32, dt.uint8], ids=str)
def test_across_lanes(target, dtype):
    run(operators.lane_rows(dtype), target, lanes=(8,))


def test_casts_of_what_is_only_stored(target):
    run(operators.storage_rows(), target)
