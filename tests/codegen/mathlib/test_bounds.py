"""Every function of the library stays within its stated bound and has C99's special values."""

import numpy as np
import pytest

from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.target import host_architecture, named_target
from frame.codegen import mathlib
from frame.codegen.emit.llvm import emit_module
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.codegen.mathlib import exponential
from frame.core import dtypes as dt
from frame.core.errors import InternalError
from tests.codegen.mathlib.accuracy import Library, erf, errors, kernel_of, reference, search
from tests.codegen.native import Native, module_of

NAMES = tuple(mathlib.FUNCTIONS)
TYPES = (dt.float32, dt.float64)
UNARY = tuple(name for name in NAMES if mathlib.FUNCTIONS[name].operands == 1)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0]
SPECIAL += [1e-45, -1e-45, 1e-38, 5e-324, -5e-324, 2.2e-308, 88.72, 88.73, 89.0, -87.4, -103.9]
SPECIAL += [-104.5, 709.78, 709.79, 711.0, -745.1, -746.0, 20.0, 1e300, -1e300, 1e-300, 1e38, 1.5]


@pytest.fixture(scope="module", params=TYPES, ids=str)
def library(request):
    return Library(request.param)


def points(dtype, count, seed=0):
    """Random bit patterns, and values dense where the functions do their work."""
    rng = np.random.default_rng(seed)
    integer = np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(integer).max, count, integer, endpoint=True)
    scales = 2.0 ** rng.uniform(-30, 12, count) * rng.choice([-1, 1], count)
    parts = [bits.view(dtype.numpy), rng.uniform(-20, 20, count), rng.uniform(-1.5, 1.5, count)]
    parts += [rng.uniform(-110, 95, count), scales, np.repeat(SPECIAL, 8)]
    with np.errstate(all="ignore"):
        return np.concatenate([np.asarray(part).astype(dtype.numpy) for part in parts])


def check(library, name, *arrays):
    exact = erf(arrays[0]) if name == "erf" else reference(name, *arrays)
    found = errors(library(name, *arrays), exact)
    worst = int(np.argmax(found))
    bound = mathlib.BOUNDS[name][library.dtype]
    places = [array[worst] for array in arrays]
    assert found[worst] <= bound, (name, places, library(name, *arrays)[worst], exact[worst])


@pytest.mark.parametrize("name", UNARY)
def test_bound(library, name):
    count = 4000 if name == "erf" else 100_000 if library.dtype == dt.float32 else 40_000
    check(library, name, points(library.dtype, count))


def test_exp_of_no_positive_numbers_has_the_bits_of_exp(library):
    dtype = library.dtype
    x = points(dtype, 20_000)
    x = np.resize(x[x <= 0], 80_000)
    source, result = (b.buffer(name, dtype, [len(x)]) for name in "xy")
    body = b.Body()
    with body.loop(len(x) // 4) as i:
        at = b.ramp(b.mul(i, 4), 4)
        body.store(result, [at], exponential.exp_below(b.load(source, [at])))
    found = np.zeros_like(x)
    native = Native(module_of(ir.Kernel("below", (source, result), (), body.block())))
    native.kernel("below", [x, found])
    np.testing.assert_array_equal(found, library("exp", x))
    nan = np.full_like(x, np.nan)
    native.kernel("below", [nan, found])
    assert np.isnan(found).all()


@pytest.mark.parametrize("name", ["atan2", "pow"])
def test_bound_of_two_operands(library, name):
    x = points(library.dtype, 30_000, 1)
    y = np.random.default_rng(2).permutation(x)
    check(library, name, x, y)
    with np.errstate(invalid="ignore"):
        y = y * library.dtype.numpy.type(0.01)
    check(library, name, np.abs(x), y)


@pytest.mark.parametrize("name", ["atan2", "pow"])
def test_every_pair_of_special_values(library, name):
    with np.errstate(over="ignore"):
        values = np.array([*SPECIAL, 5.0, -5.0, 2.0**24 + 2, 7.5], library.dtype.numpy)
    x, y = (np.repeat(values, len(values)), np.tile(values, len(values)))
    count = len(x) // 8 * 8
    check(library, name, x[:count], y[:count])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_arguments_next_to_multiples_of_half_pi(library, name):
    half_pi = 2 * np.arctan(np.longdouble(1))
    rng = np.random.default_rng(3)
    low = np.arange(1, 20_001)
    high = (2.0 ** rng.uniform(10, 62, 20_000)).astype(np.int64)
    near = (np.concatenate([low, high]).astype(np.longdouble) * half_pi).astype(library.dtype.numpy)
    hardest = np.array([6381956970095103.0 * 2.0**797] * 8)  # 4.7e-19 from a multiple of pi / 2
    x = np.concatenate([near, -near, np.nextafter(near, 0)])
    check(library, name, x if library.dtype == dt.float32 else np.concatenate([x, hardest]))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.slow
def test_bound_over_every_17th_float32(name):
    """Against the float64 version; `python -m tests.codegen.mathlib.accuracy` tries every one."""
    worst, where = search(name, step=17)
    assert worst <= mathlib.BOUNDS[name][dt.float32], where


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
def test_16_bit_floats_round_the_float32_result(dtype):
    narrow, single = Library(dtype), Library(dt.float32)
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    for name in UNARY:
        with np.errstate(all="ignore"):
            expected = single(name, x.astype(np.float32)).astype(dtype.numpy)
        got = narrow(name, x)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        assert same.all(), name


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bounds_hold_without_the_fma_instruction(dtype):
    names = ("exp", "log", "tanh") if dtype == dt.float32 else ("exp", "log")
    target = named_target({"x86_64": "x86-64", "aarch64": "armv8-a"}[host_architecture()])
    library = Library(dtype, names, target)
    for name in names:
        check(library, name, points(dtype, 2000))


@pytest.mark.parametrize("machine", ["x86-64", "armv8-a"])
@pytest.mark.slow
def test_other_machines_need_no_library(machine):
    target = named_target(machine)
    kernels = [kernel_of(name, dt.float32) for name in NAMES]
    assert compile_ir(emit_module(module_of(*kernels), target), target, level=1)


def test_constants_fold_to_the_bits_of_native_code(library):
    x = np.full(8, 0.3, library.dtype.numpy)
    for name in UNARY:
        folded = getattr(mathlib, name)(b.const(0.3, library.dtype))
        assert isinstance(folded, ir.Const), name
        assert folded.value == float(library(name, x)[0]), name


@pytest.mark.parametrize("name", ["exp", "pow"])
def test_integers_are_refused(name):
    operand = b.const(1, dt.int32)
    with pytest.raises(InternalError, match="expected a float operand"):
        getattr(mathlib, name)(*[operand] * mathlib.FUNCTIONS[name].operands)
