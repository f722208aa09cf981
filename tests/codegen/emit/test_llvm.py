"""Loop IR through the LLVM emitter: the numbers of the native code."""

import numpy as np
import pytest

from frame.backends.cpu.target import host_target
from frame.codegen.emit import llvm
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.core import dtypes as dt
from frame.core.targets import TargetDescription
from tests.codegen.native import Native, module_of


def unary_kernel(dtype, out, lanes, function, name="k"):
    """A kernel out[i] = function(x[i]) over `n` elements in vectors, n a multiple of the lanes."""
    n = b.fresh("n")
    x, y = b.buffer("x", dtype, [n]), b.buffer("y", out, [n])
    body = b.Body()
    with body.loop(b.div(n, lanes)) as i:
        at = b.ramp(b.mul(i, lanes), lanes)
        body.store(y, [at], function(b.load(x, [at])))
    return ir.Kernel(name, (x, y), (n,), body.block())


def run_unary(dtype, out, function, values, lanes=8, target=None):
    kernel = unary_kernel(dtype, out, lanes, function)
    x = np.asarray(values).astype(dtype.numpy)
    assert len(x) % lanes == 0
    result = np.zeros(len(x), out.numpy)
    Native(module_of(kernel), target).kernel("k", [x, result], [len(x)])
    return x, result


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_an_elementwise_kernel_computes(lanes):
    x, y = run_unary(dt.float32, dt.float32, lambda v: b.fma(v, v, 1.0), np.arange(32), lanes)
    np.testing.assert_array_equal(y, x * x + 1)


def scale_module():
    """Launches y = x * 2 in chunks of 4, then y = y + size; a check fails on values > 90."""
    n = b.fresh("n")
    x, y = b.buffer("x", dt.float32, [n]), b.buffer("y", dt.float32, [n])
    chunk, body = b.fresh("chunk"), b.Body()
    with body.loop(4) as i:
        at = b.add(b.mul(chunk, 4), i)
        body.store(y, [at], b.mul(b.load(x, [at]), 2.0))
    parallel = ir.For(ir.LoopKind.PARALLEL, chunk, b.div(n, 4), body.block())
    double = ir.Kernel("double", (x, y), (n,), (parallel,))
    m, z = b.fresh("m"), b.buffer("z", dt.float32, [4])
    body = b.Body()
    with body.loop(m) as i:
        value = body.let("v", b.load(z, [i]))
        with body.when(b.gt(value, 90.0)):
            body.fail(7, i, b.cast(value, dt.int64))
        body.store(z, [i], b.add(value, b.cast(m, dt.float32)))
    shift = ir.Kernel("shift", (z,), (m,), body.block())
    return double, shift


def entry_of(double, shift):
    size = b.fresh("size")
    source, result = b.buffer("source", dt.float32, [size]), b.buffer("result", dt.float32, [size])
    scratch = b.buffer("scratch", dt.float32, [size])
    bias = b.buffer("bias", dt.float32, [1])
    body = b.Body()
    view = ir.View
    body.add(
        ir.Launch("double", (view(source), view(scratch)), (size,), b.div(size, 4)),
        ir.Launch("shift", (view(scratch),), (size,), b.index(1)),
        ir.Return(),
        ir.Copy(view(result), view(scratch), (size,)),
    )
    body.store(result, [0], b.add(b.load(result, [0]), b.load(bias, [0])))
    placements = (
        ir.Placement(source, ir.Place.ARGUMENT, 0),
        ir.Placement(result, ir.Place.ARGUMENT, 1),
        ir.Placement(scratch, ir.Place.TABLE, 0),
        ir.Placement(bias, ir.Place.CONSTANT, 0),
    )
    return ir.Entry("main", placements, (size,), body.block())


@pytest.mark.parametrize("profile", [False, True])
def test_an_entry_launches_returns_and_measures(profile):
    kernels = scale_module()
    data = ir.ConstantData("bias", np.array([1000.0], np.float32).tobytes())
    module = module_of(*kernels, entry=entry_of(*kernels), constants=(data,))
    native = Native(module, profile=profile)
    x, y = np.arange(20, dtype=np.float32), np.full(20, -1, np.float32)
    result, status, words = native.entry([x, y], [20], arena=256, offsets=[64], launches=2)
    expected = x * 2 + 20
    expected[0] += 1000
    assert (result, status) == (0, (0, 0, 0))
    np.testing.assert_array_equal(y, expected)
    assert words == ((5, 1, 5, 1) if profile else (0, 0, 0, 0))
    assert llvm.launch_order(module) == ("double", "shift")


def test_a_failed_check_leaves_before_the_outputs_change():
    kernels = scale_module()
    data = ir.ConstantData("bias", np.array([1000.0], np.float32).tobytes())
    native = Native(module_of(*kernels, entry=entry_of(*kernels), constants=(data,)))
    x, y = np.arange(20, dtype=np.float32) * 4, np.full(20, -1, np.float32)
    result, status, _ = native.entry([x, y], [20], arena=256, offsets=[0])
    assert (result, status) == (1, (7, 12, 96))
    assert (y == -1).all()


BASELINES = [
    TargetDescription("x86-64", "x86_64-unknown-linux-gnu", "x86-64"),
    TargetDescription("armv8-a", "aarch64-unknown-linux-gnu", "generic", fma=True, half="convert"),
]


@pytest.mark.parametrize("target", BASELINES, ids=lambda target: target.name)
def test_baseline_targets_need_no_library(target):
    from frame.backends.cpu.llvm import compile_ir

    kernels = scale_module()
    data = ir.ConstantData("bias", bytes(4))
    module = module_of(*kernels, entry=entry_of(*kernels), constants=(data,))
    assert compile_ir(llvm.emit_module(module, target), target)


def test_a_kernel_that_several_places_call_is_compiled_once():
    x = b.buffer("x", dt.float32, [4])
    inner = ir.Kernel("inner", (x,), (), (b.store(x, [0], b.add(b.load(x, [0]), 1.0)),))
    y = b.buffer("y", dt.float32, [4])
    once, again = (ir.Call("inner", (ir.View(y, (b.index(i),)),)) for i in (1, 2))
    single = ir.Kernel("outer", (y,), (), (once,))
    double = ir.Kernel("outer", (y,), (), (once, again))
    assert "noinline" not in llvm.emit_module(module_of(inner, single), host_target())
    native = Native(module_of(inner, double))
    assert native.text.count("noinline") == 1
    assert native.object.symbols == ("entry", "outer")  # inner has no thunk
    values = np.zeros(4, np.float32)
    native.kernel("outer", [values])
    np.testing.assert_array_equal(values, [0, 1, 1, 0])
