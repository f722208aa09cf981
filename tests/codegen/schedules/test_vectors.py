"""How many vectors a loop keeps in flight, and that every element is reached by some loop."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from frame.backends.cpu.target import host_target
from frame.codegen import mathlib
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import For, LoopKind
from frame.codegen.schedules.cpu.vectors import in_flight, live_bytes, vectorise_loops
from frame.core.dtypes import float32, float64

TARGET = replace(host_target(), vector_bits=256, vector_registers=16)


def sweep(extent, function, dtype=float32):
    """A vector loop y[i] = function(x[i]) and its buffers."""
    x, y = b.buffer("x", dtype, [512]), b.buffer("y", dtype, [512])
    body = b.Body()
    with body.loop(extent, "i", LoopKind.VECTOR) as i:
        body.store(y, [i], function(b.load(x, [i])))
    return x, y, body.block()


def many_values(x):
    """Thirty values are needed until the last of them is there, and then again."""
    values = [b.mul(x, float(k + 2)) for k in range(30)]
    return b.add(
        functools.reduce(lambda total, value: b.fma(total, total, value), values),
        functools.reduce(lambda total, value: b.fma(total, total, value), reversed(values)),
    )


def test_one_iteration_holds_what_is_still_needed():
    (chain,) = sweep(512, lambda x: b.mul(b.add(x, 1.0), 2.0))[2]
    assert live_bytes(chain) == 4
    (pair,) = sweep(512, lambda x: b.mul(b.add(x, 1.0), b.sub(x, 1.0)))[2]
    assert live_bytes(pair) == 8
    (many,) = sweep(512, many_values)[2]
    assert live_bytes(many) >= 30 * 4


@pytest.mark.parametrize(
    ("function", "registers", "count"),
    [
        (lambda x: b.add(x, 1.0), 16, 4),
        (mathlib.exp, 16, 4),
        (mathlib.erf, 32, 4),
        (many_values, 16, 1),
        (many_values, 32, 2),
    ],
)
def test_registers_decide_how_many_vectors_are_in_flight(function, registers, count):
    (loop,) = sweep(512, function)[2]
    target = replace(TARGET, vector_registers=registers)
    assert in_flight(loop, 8, target) == count
    assert in_flight(loop, 4, replace(target, vector_bits=128)) == count


@pytest.mark.parametrize(("extent", "count"), [(7, 1), (8, 1), (16, 2), (31, 2), (32, 4), (99, 4)])
def test_a_short_loop_runs_no_more_vectors_than_it_has(extent, count):
    (loop,) = sweep(extent, lambda x: b.add(x, 1.0))[2]
    assert in_flight(loop, 8, TARGET) == count


def test_wide_elements_take_more_registers():
    (narrow,) = sweep(512, many_values)[2]
    (wide,) = sweep(512, many_values, float64)[2]
    assert live_bytes(wide) == 2 * live_bytes(narrow)


def test_loops_below_a_branch_are_vectorised_too():
    _, _, block = sweep(64, lambda x: b.add(x, 1.0))
    branch = ir.If(b.lt(b.fresh("n"), 3), block, block)
    (done,) = vectorise_loops((branch,), 8, TARGET)
    for side in (done.then, done.otherwise):
        loops = [statement for statement in side if isinstance(statement, For)]
        assert loops and all(loop.kind is LoopKind.SERIAL for loop in loops)


def test_a_loop_around_a_loop_runs_one_vector():
    x, y, body = b.buffer("x", float32, [4, 64]), b.buffer("y", float32, [64]), b.Body()
    zero = b.const(0.0, float32)
    with body.loop(64, "j", LoopKind.VECTOR) as j:
        with body.fold(4, [zero], "k") as folding:
            folding.next = [b.add(folding.values[0], b.load(x, [folding.index, j]))]
        body.store(y, [j], folding.results[0])
    (loop,) = body.block()
    assert in_flight(loop, 8, TARGET) == 1


@pytest.mark.parametrize("extent", [1, 3, 4, 5, 15, 16, 17, 20, 23, 37, 64])
@pytest.mark.parametrize("fixed", [True, False])
def test_every_iteration_runs_once(extent, fixed):
    n = b.fresh("n")
    x, y, block = sweep(extent if fixed else n, lambda v: b.add(b.mul(v, 3.0), 1.0))
    done = vectorise_loops(block, 4, replace(TARGET, vector_bits=128))
    loops = [s for s in done if isinstance(s, For)]
    assert all(loop.kind is LoopKind.SERIAL for loop in loops)
    data = np.arange(512, dtype=np.float32)
    result = np.full(512, -1.0, np.float32)
    kernel = ir.Kernel("sweep", (x, y), () if fixed else (n,), done)
    run_kernel(kernel, [data, result], () if fixed else (extent,))
    np.testing.assert_array_equal(result[:extent], data[:extent] * 3 + 1)
    assert (result[extent:] == -1).all()
