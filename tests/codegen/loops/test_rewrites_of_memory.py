"""Staging, predication, substitution and simplification: same results, and they can refuse."""

from __future__ import annotations

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops import rewrites
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import (
    Alloc,
    BinaryOp,
    Fail,
    For,
    If,
    Kernel,
    Let,
    Scope,
    Store,
)
from frame.codegen.loops.printer import print_kernel
from frame.codegen.loops.rewrites import ScheduleError, at, find_loop, vectorise
from frame.codegen.loops.traverse import all_expressions, walk
from frame.codegen.loops.verifier import verify_kernel
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from tests.codegen.loops.rewriting import (
    GRID,
    N,
    P,
    X,
    Y,
    assert_equivalent,
    kernel_of,
    loop_over,
    nest,
    scale,
)

# stage, predicate, substitute, simplify


@pytest.mark.parametrize("scope", [Scope.LOCAL, Scope.REGISTER])
def test_stage(scope):
    def outer(i):
        return b.for_(4, lambda j: b.store(Y, [j], b.load(GRID, [i, b.add(j, 1)])), "j")

    loop = b.for_(6, outer, "i")
    kernel = Kernel("k", (GRID, Y), (N,), (loop,))
    inner = find_loop(kernel.body, "j")

    def rewrite(inner):
        block = rewrites.stage(inner, GRID, [loop.var, 1], [1, 4], scope)
        return (*block[:-1], *rewrites.unroll(block[-1]))

    after = at(kernel, inner, rewrite)
    verify_kernel(after, lowered=True)
    results = []
    for k in (kernel, after):
        results.append(np.zeros(4, np.float32))
        run_kernel(k, [np.arange(42, dtype=np.float32), results[-1]], [4])
    np.testing.assert_array_equal(*results)


def test_stage_masks_a_window_that_may_leave_the_buffer():
    loop = b.for_(
        2,
        lambda j: b.if_(
            b.lt(b.add(N, j), 9), [b.store(Y, [j], b.load(X, [b.add(b.sub(N, 1), j)]))]
        ),
    )
    kernel = kernel_of(loop)
    after = at(kernel, loop, lambda loop: rewrites.stage(loop, X, [b.sub(N, 1)], [2]))
    for size, first in ((8, 7.0), (9, 0.0)):
        x, y = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
        run_kernel(after, [x, y], [size])
        assert y.tolist() == [first, *([0.0] * (size - 1))]


UNSTAGED = {
    "the window is too small": ([0], [3], "spans 0 .. 3 of a window of 3"),
    "the window starts too late": ([1], [8], "spans -1 .. 2"),
    "another rank": ([0, 0], [4, 4], "has rank 1"),
    "an empty window": ([0], [0], "extents"),
}


@pytest.mark.parametrize("name", UNSTAGED)
def test_stage_refuses(name):
    starts, extents, reason = UNSTAGED[name]
    loop = b.for_(4, lambda j: b.store(Y, [j], b.load(X, [j])))
    with pytest.raises(ScheduleError, match=reason):
        rewrites.stage(loop, X, starts, extents)


def test_stage_refuses_what_is_written_or_moves():
    loop = b.for_(4, lambda j: b.store(X, [j], b.load(X, [j])))
    with pytest.raises(ScheduleError, match="it is written"):
        rewrites.stage(loop, X, [0], [4])
    with pytest.raises(ScheduleError, match="moves"):
        rewrites.stage(loop, X, [loop.var], [4])
    with pytest.raises(ScheduleError, match="scope"):
        rewrites.stage(loop, X, [0], [4], Scope.GLOBAL)


def test_predicate():
    def body(i):
        x = b.load(X, [i])
        then = b.store(Y, [i], b.neg(x))
        return b.if_(b.gt(x, 0.0), [then], [b.store(Y, [i], b.mul(x, 3.0))])

    kernel = kernel_of(loop_over(N, body))
    (branch,) = (s for s in walk(kernel.body) if isinstance(s, If))
    block = rewrites.replace(kernel.body, branch, rewrites.predicate(branch))
    after = rewrites.with_body(kernel, block)
    assert not any(isinstance(s, If) for s in walk(after.body))
    assert_equivalent(kernel, after)


def test_predicate_refuses():
    with pytest.raises(ScheduleError, match="holds a Fail"):
        rewrites.predicate(b.if_(b.lt(N, 3), [Fail(1, N, N)]))


def test_substitute_checks_types():
    with pytest.raises(InvalidArgumentError, match="is float32"):
        rewrites.substitute((), {N: b.const(1.0, float32)})


def test_replace_refuses_a_stranger():
    with pytest.raises(ScheduleError, match="not in the block"):
        rewrites.replace((), scale(), ())
    with pytest.raises(ScheduleError, match="no loop over q"):
        find_loop((), "q")


def simplified(*statements, **options):
    kernel = kernel_of(*statements, **options)
    after = rewrites.simplify(kernel)
    verify_kernel(after)
    return after


def test_simplify_drops_what_is_known():
    let, unused = b.let("unused", b.add(N, 3))
    empty = b.for_(0, lambda i: b.store(Y, [i], 1.0))
    once = b.for_(1, lambda i: b.store(Y, [i], 2.0))
    never = b.if_(b.boolean(False), [b.store(Y, [0], 3.0)])
    body = simplified(let, Alloc(b.fresh_buffer("near", float32, [2])), empty, once, never).body
    assert len(body) == 1 and isinstance(body[0], Store) and unused not in all_expressions(body)


def test_simplify_uses_the_ranges_of_loops():
    def body(i):
        return b.if_(
            b.lt(i, N),
            [b.store(Y, [b.rem(b.add(b.mul(i, 8), 3), 8)], b.cast(b.div(i, 100), float32))],
        )

    after = simplified(loop_over(N, body), b.for_(8, lambda i: b.if_(b.ge(i, 8), scale())))
    assert not any(isinstance(s, If) for s in walk(after.body))
    (store,) = (s for s in walk(after.body) if isinstance(s, Store))
    assert b.constant_value(store.indices[0]) == 3


def test_simplify_splits_a_flat_index():
    grid = b.buffer("grid", float32, [4, 8])

    def inner(i, j):
        flat = b.add(b.mul(i, 8), j)
        return b.store(grid, [b.div(flat, 8), b.rem(flat, 8)], 1.0)

    after = simplified(nest(inner, 4, 8), buffers=(grid,))
    (store,) = (s for s in walk(after.body) if isinstance(s, Store))
    loops = [s.var for s in walk(after.body) if isinstance(s, For)]
    assert list(store.indices) == loops


def test_simplify_proves_the_guard_of_a_masked_tile():
    loop = b.for_(64, lambda i: b.store(Y, [i], b.load(X, [i])))
    tiled = rewrites.tile(loop_over(N, lambda i: b.store(Y, [i], 0.0)), 8, "mask")
    assert any(isinstance(s, If) for s in walk(simplified(*tiled).body))
    (store,) = (s for s in walk(simplified(*rewrites.tile(loop, 8)).body) if isinstance(s, Store))
    assert store.mask is None


def test_simplify_forgets_what_holds_inside_a_loop_only():
    """Inside the loop n >= 1; the same expression after it must still be decided at run time."""
    positive = b.ge(N, 1)
    flag = b.buffer("flag", float32, [1])
    loop = loop_over(N, lambda i: b.if_(positive, [b.store(Y, [i], 1.0)]))
    after = simplified(loop, b.if_(positive, [b.store(flag, [0], 5.0)]), buffers=(Y, flag))
    assert sum(isinstance(s, If) for s in walk(after.body)) == 1
    memory = np.zeros(1, np.float32)
    run_kernel(after, [np.zeros(0, np.float32), memory], [0])
    assert memory[0] == 0


def test_simplify_shares_equal_expressions_but_not_reads():
    first, x = b.let("x", b.add(b.mul(N, 3), 1))
    second, y = b.let("y", b.add(b.mul(N, 3), 1))
    after = simplified(first, second, b.store(P, [0], x), b.store(P, [1], y), buffers=(P,))
    values = [s.value for s in after.body if isinstance(s, Let)]
    assert values[0] is values[1]
    read = b.load(P, [0])
    step = b.store(P, [0], b.add(read, 1))
    again = b.store(P, [1], b.load(P, [0]))
    memory = np.array([4, 0], np.int64)
    run_kernel(simplified(step, again, buffers=(P,)), [memory], [2])
    np.testing.assert_array_equal(memory, [5, 5])


def test_simplify_keeps_float_bits():
    """x + 0.0 and x * 0.0 are not x and 0."""
    x = b.load(X, [0])
    after = simplified(b.store(Y, [0], b.add(b.mul(x, 0.0), 0.0)))
    ops = [getattr(e, "op", None) for e in all_expressions(after.body)]
    assert BinaryOp.ADD in ops and BinaryOp.MUL in ops


def test_rewrites_are_linear_in_deep_expressions():
    """A chain of 6,000 operations, each used twice: no recursion, no blow-up."""
    value = b.load(X, [0])
    for _ in range(3_000):
        value = b.add(b.mul(value, value), 1.0)
    loop = loop_over(N, lambda i: b.store(Y, [i], b.add(value, b.load(X, [i]))))
    kernel = kernel_of(loop)
    after = rewrites.simplify(at(kernel, loop, lambda loop: vectorise(loop, 8)))
    verify_kernel(after)
    assert len(print_kernel(after).splitlines()) < 20_000
