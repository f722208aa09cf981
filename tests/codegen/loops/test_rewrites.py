"""Each rewrite: it gives the same results, and its legality check can fail."""

from __future__ import annotations

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops import rewrites
from frame.codegen.loops.affine import Facts
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import (
    Alloc,
    Call,
    Copy,
    Fail,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Ramp,
    Scope,
    View,
    fresh,
)
from frame.codegen.loops.printer import print_kernel
from frame.codegen.loops.rewrites import ScheduleError, at, find_loop, vectorise
from frame.codegen.loops.traverse import all_expressions, walk
from frame.codegen.loops.verifier import verify_kernel
from frame.core.dtypes import bool_, float32, int32, int64
from tests.codegen.loops.rewriting import (
    GRID,
    OTHER,
    N,
    P,
    X,
    Y,
    assert_equivalent,
    kernel_of,
    loop_over,
    nest,
    run,
    scale,
)

# vectorise


@pytest.mark.parametrize("tail", ["mask", "scalar"])
@pytest.mark.parametrize("lanes", [2, 8, 64])
def test_vectorise_a_map(lanes, tail):
    kernel = kernel_of(scale())
    after = at(kernel, find_loop(kernel.body, "i"), lambda loop: vectorise(loop, lanes, tail))
    assert_equivalent(kernel, after)


def test_vectorise_makes_contiguous_accesses_of_stride_one():
    kernel = kernel_of(scale())
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8))
    found = [e for e in all_expressions(after.body) if isinstance(e, Load)]
    assert found and all(isinstance(load.indices[-1], Ramp) for load in found)


def test_vectorise_without_rest_has_no_tail():
    fixed = b.for_(16, lambda i: b.store(Y, [i], b.load(X, [i])))
    block = vectorise(fixed, 8)
    assert len(block) == 1 and isinstance(block[0], For)


def test_vectorise_uniform_loads_stay_scalar():
    body = b.for_(16, lambda i: b.store(Y, [i], b.load(X, [3])))
    block = vectorise(body, 8)
    assert [e.type.lanes for e in all_expressions(block) if isinstance(e, Load)] == [1]


def test_vectorise_gathers_other_strides():
    def body(i):
        return b.store(Y, [i], b.load(X, [b.sub(b.sub(N, 1), i)]))

    kernel = kernel_of(loop_over(N, body))
    assert_equivalent(kernel, at(kernel, kernel.body[0], lambda loop: vectorise(loop, 4)))


def test_vectorise_keeps_aligned_quotients_scalar():
    """Row and column of a flat index: no lane crosses a row of 16 columns."""
    grid = b.buffer("grid", float32, [4, 16])
    row = b.buffer("row", float32, [4])

    def body(i):
        value = b.add(b.load(grid, [b.div(i, 16), b.rem(i, 16)]), b.load(row, [b.div(i, 16)]))
        return b.store(Y, [i], value)

    block = vectorise(b.for_(64, body), 8)
    kinds = {e.buffer.name: [x.type.lanes for x in e.indices] for e in all_expressions(block)
             if isinstance(e, Load)}  # fmt: skip
    assert kinds == {"grid": [1, 8], "row": [1]}


def test_vectorise_predicates_branches():
    def body(i):
        x = b.load(X, [i])
        small = b.store(Y, [i], b.neg(x))
        return b.if_(b.gt(x, 0.0), [small], [b.store(Y, [i], b.mul(x, x))])

    kernel = kernel_of(loop_over(N, body))
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8))
    assert_equivalent(kernel, after)
    assert sum(isinstance(s, If) for s in walk(after.body)) == 1  # the tail


def test_vectorise_guards_divisions_of_lanes_that_are_off():
    """x / 0 must not run where a branch or the end of the data excludes it."""

    def body(i):
        d = b.load(P, [i])
        return b.if_(b.ne(d, 0), [b.store(Y, [i], b.cast(b.div(b.index(12), d), float32))])

    kernel = kernel_of(loop_over(N, body), buffers=(P, Y))
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8))
    for n in (5, 8, 19):
        p = np.arange(n) % 3
        one, other = np.zeros(n, np.float32), np.zeros(n, np.float32)
        run_kernel(kernel, [p, one], [n])
        run_kernel(after, [p, other], [n])
        np.testing.assert_array_equal(one, other)


def test_vectorise_guards_loads_of_lanes_that_are_off():
    def body(i):
        place = b.load(P, [i])
        return b.if_(b.ge(place, 0), [b.store(Y, [i], b.load(X, [place]))])

    kernel = kernel_of(loop_over(N, body), buffers=(P, X, Y))
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 4))
    p = np.array([2, -7, 0, -1, 4, 3, -2], np.int64)
    y = np.full(7, 9, np.float32)
    run_kernel(after, [p, np.arange(7, dtype=np.float32), y], [7])
    np.testing.assert_array_equal(y, [2, 9, 0, 9, 4, 3, 9])


def test_vectorise_reports_bad_values_per_lane():
    def body(i):
        bad = b.lt(b.load(X, [i]), 0.0)
        return [b.if_(bad, [Fail(5, i, b.index(-1))]), b.store(Y, [i], 1.0)]

    kernel = kernel_of(loop_over(N, body))
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8))
    for n in (1, 3, 12):
        assert run(kernel, n)[1].fail == run(after, n)[1].fail == (5, 0, -1)
    clean = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8, "scalar"))
    assert run(clean, 12)[1].fail == (5, 0, -1)


def test_vectorise_gives_each_lane_its_own_scratch():
    def body(i):
        scratch = b.fresh_buffer("scratch", float32, [2], Scope.LOCAL)
        first = b.store(scratch, [0], b.load(X, [i]))
        second = b.store(scratch, [1], b.load(scratch, [b.rem(i, 1)]))
        return [Alloc(scratch), first, second, b.store(Y, [i], b.load(scratch, [1]))]

    kernel = kernel_of(loop_over(N, body))
    assert_equivalent(kernel, at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8)))


def inner_sum(i):
    """Rows of a triangle would need the lane in an extent; a fixed inner loop does not."""
    fold, (total,) = b.fold(
        3, [b.const(0.0, float32)], lambda j, acc: ((), [b.add(acc, b.load(X, [i]))]), "j"
    )
    return [fold, b.store(Y, [i], total)]


def test_vectorise_widens_carried_values_of_inner_loops():
    kernel = kernel_of(loop_over(N, inner_sum))
    assert_equivalent(kernel, at(kernel, kernel.body[0], lambda loop: vectorise(loop, 8)))


def reduction(combine, init, dtype=float32, values=None, name="total"):
    source = b.buffer("source", dtype, [N])
    target = b.buffer("target", dtype, [])

    def body(i, acc):
        return (), [combine(acc, b.load(source, [i]))]

    fold, (total,) = b.fold(N, [b.const(init, dtype)], body)
    return Kernel("sum", (source, target), (N,), (fold, b.store(target, [], total)))


REDUCTIONS = {
    "add": (b.add, 1.0, float32),
    "sub": (b.sub, 1.0, float32),
    "mul": (b.mul, 1, int32),
    "min": (b.min_, 3, int32),
    "max": (b.max_, -3, int64),
    "minimum": (b.minimum, 2.0, float32),
    "maximum": (b.maximum, -50.0, float32),
    "and": (b.and_, -1, int32),
    "or": (b.or_, 0, int64),
    "all": (b.and_, True, bool_),
    "any": (b.or_, False, bool_),
    "fma": (lambda acc, x: b.fma(x, x, acc), 0.5, float32),
    "chosen": (lambda acc, x: b.select(b.gt(x, 0.0), b.add(acc, x), acc), 0.0, float32),
}


@pytest.mark.parametrize("tail", ["mask", "scalar"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_vectorise_reductions(name, tail):
    combine, init, dtype = REDUCTIONS[name]
    kernel = reduction(combine, init, dtype)
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 4, tail))
    verify_kernel(after)
    for n in (0, 1, 4, 11):
        source = (np.arange(n) * 7 % 11 - 5).astype(dtype.numpy)
        one, other = np.zeros((), dtype.numpy), np.zeros((), dtype.numpy)
        run_kernel(kernel, [source, one], [n])
        run_kernel(after, [source, other], [n])
        assert one == other, (n, one, other)


def test_vectorise_propagates_nan_of_maximum():
    kernel = reduction(b.maximum, -np.inf)
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 4))
    source = np.array([1, np.nan, 3, 2, 5, 4], np.float32)
    found = np.zeros((), np.float32)
    run_kernel(after, [source, found], [6])
    assert np.isnan(found)


def test_vectorise_an_empty_sum_keeps_the_sign_of_zero():
    kernel = reduction(b.add, -0.0)
    after = at(kernel, kernel.body[0], lambda loop: vectorise(loop, 4))
    found = np.ones((), np.float32)
    run_kernel(after, [np.zeros(0, np.float32), found], [0])
    assert found == 0 and np.signbit(found)


def running_sum():
    def body(i, acc):
        following = b.add(acc, b.load(X, [i]))
        return b.store(Y, [i], following), [following]

    return b.fold(N, [b.const(0.0, float32)], body, "i")[0]


def difference(i):
    return b.store(Y, [i], b.load(Y, [b.max_(b.sub(i, 1), 0)]))


def triangle(i):
    return b.for_(i, lambda j: b.store(Y, [i], b.load(X, [j])))


def shifted(distance):
    return lambda i: b.store(Y, [b.add(i, distance)], b.load(Y, [i]))


NOT_VECTORS = {
    "a running sum is stored": (running_sum, "used besides its reduction"),
    "reads what the last iteration wrote": (lambda: loop_over(N, shifted(1)), "a write"),
    "all iterations write one element": (
        lambda: loop_over(N, lambda i: b.store(Y, [0], b.load(X, [i]))),
        "a write and a write of buffer y",
    ),
    "a scatter": (
        lambda: loop_over(N, lambda i: b.store(Y, [b.load(P, [i])], 1.0)),
        "a write and a write of buffer y",
    ),
    "overlapping pairs": (
        lambda: loop_over(N, lambda i: [b.store(Y, [i], 1.0), b.store(Y, [b.add(i, 1)], 2.0)]),
        "different iterations",
    ),
    "inner extent depends on the lane": (
        lambda: loop_over(N, triangle),
        "the extent of the inner loop",
    ),
    "holds vectors": (
        lambda: loop_over(
            N, lambda i: b.store(Y, [b.ramp(b.mul(i, 4), 4)], b.broadcast(b.const(1.0, float32), 4))
        ),
        "holds vectors",
    ),
    "holds a copy": (
        lambda: loop_over(N, lambda i: Copy(View(Y, (i,)), View(X, (i,)), (b.index(1),))),
        "Copy has no vector form",
    ),
    "holds a call": (lambda: loop_over(N, lambda i: Call("f", (View(Y),))), "a write"),
    "a swap of carried values": (
        lambda: b.fold(
            N, [b.const(0.0, float32), b.const(1.0, float32)], lambda i, p, q: ((), [q, p])
        )[0],
        "is no reduction",
    ),
    "two operators": (
        lambda: b.fold(
            N,
            [b.const(0.0, float32)],
            lambda i, acc: ((), [b.mul(b.add(acc, b.load(X, [i])), 2.0)]),
        )[0],
        "is no reduction",
    ),
}


@pytest.mark.parametrize("name", NOT_VECTORS)
def test_vectorise_refuses(name):
    make, reason = NOT_VECTORS[name]
    with pytest.raises(ScheduleError, match=reason):
        vectorise(make(), 4)


def test_vectorise_refuses_a_register_index_that_depends_on_the_lane():
    near = b.fresh_buffer("near", float32, [8])
    with pytest.raises(ScheduleError, match="register index"):
        vectorise(b.for_(8, lambda i: b.store(Y, [i], b.load(near, [i]))), 4)


@pytest.mark.parametrize("lanes", [0, 1, 3, 128])
def test_vectorise_refuses_lanes(lanes):
    with pytest.raises(ScheduleError, match="expected lanes"):
        vectorise(scale(), lanes)


def test_vectorise_refuses_tails_that_it_does_not_know():
    with pytest.raises(ScheduleError, match="tail"):
        vectorise(scale(), 4, "none")


def test_vectorise_takes_the_word_of_the_caller():
    loop = loop_over(N, lambda i: b.store(Y, [b.load(P, [i])], b.load(X, [i])))
    kernel = kernel_of(loop, buffers=(P, X, Y))
    after = at(kernel, loop, lambda loop: vectorise(loop, 4, assume=(Y,)))
    y = np.zeros(6, np.float32)
    run_kernel(after, [np.arange(6)[::-1].copy(), np.arange(6, dtype=np.float32), y], [6])
    np.testing.assert_array_equal(y, [5, 4, 3, 2, 1, 0])


def test_vectorise_allows_interleaved_stores_that_never_meet():
    pairs = b.buffer("pairs", float32, [64])

    def body(i):
        even, odd = b.mul(i, 2), b.add(b.mul(i, 2), 1)
        return [b.store(pairs, [even], b.load(X, [i])), b.store(pairs, [odd], 1.0)]

    verify_kernel(kernel_of(*vectorise(b.for_(32, body), 8), buffers=(X, pairs)))


def test_known_31_flip_of_the_input_itself_is_refused():
    """y = flip(x) written over x: reads and writes of different iterations meet."""
    loop = loop_over(N, lambda i: b.store(X, [i], b.load(X, [b.sub(b.sub(N, 1), i)])))
    with pytest.raises(ScheduleError, match="one element in different iterations"):
        vectorise(loop, 8)
    with pytest.raises(ScheduleError, match="can't run in parallel"):
        rewrites.parallelise(kernel_of(loop))


@pytest.mark.parametrize("step", [1, 2, 3, 16])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_known_34_strided_slices_stacked_agree_with_the_scalar_loop(step, start):
    """Slices of any step, through a function, interleaved on the last axis."""
    source = b.buffer("source", float32, [200])
    target = b.buffer("target", float32, [11, 2])

    def body(i):
        x = b.load(source, [b.add(b.mul(i, step), start)])
        pair = [b.store(target, [i, k], b.sqrt(b.add(b.mul(x, x), float(k)))) for k in (0, 1)]
        return pair

    loop = b.for_(11, body)
    kernel = Kernel("k", (source, target), (), (loop,))
    values = np.random.RandomState(0).randn(200).astype(np.float32)
    results = []
    for lanes in (0, 4, 8):
        after = at(kernel, loop, lambda loop, n=lanes: vectorise(loop, n)) if lanes else kernel
        verify_kernel(after)
        results.append(np.zeros((11, 2), np.float32))
        run_kernel(after, [values, results[-1]])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# tile, unroll, reorder


@pytest.mark.parametrize("tail", ["mask", "scalar"])
@pytest.mark.parametrize("factor", [1, 3, 8])
def test_tile(factor, tail):
    kernel = kernel_of(scale())
    assert_equivalent(
        kernel, at(kernel, kernel.body[0], lambda loop: rewrites.tile(loop, factor, tail))
    )


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_tile_passes_carried_values_on_in_order(factor):
    kernel = kernel_of(running_sum())
    assert_equivalent(kernel, at(kernel, kernel.body[0], lambda loop: rewrites.tile(loop, factor)))


def test_tile_refuses():
    with pytest.raises(ScheduleError, match="can't be split by 0"):
        rewrites.tile(scale(), 0)
    with pytest.raises(ScheduleError, match="carried values"):
        rewrites.tile(running_sum(), 2, "mask")
    with pytest.raises(ScheduleError, match="parallel"):
        rewrites.tile(For(LoopKind.PARALLEL, fresh("i"), N, ()), 2)
    with pytest.raises(ScheduleError, match="tail"):
        rewrites.tile(scale(), 2, "none")


@pytest.mark.parametrize("factor", [None, 2, 3])
def test_unroll(factor):
    def body(i, acc):
        following = b.add(b.mul(acc, 2.0), b.load(X, [i]))
        return b.store(Y, [i], following), [following]

    fold, _ = b.fold(7, [b.const(1.0, float32)], body)
    kernel = kernel_of(fold)
    after = at(kernel, fold, lambda loop: rewrites.unroll(loop, factor))
    assert_equivalent(kernel, after, sizes=(7, 9))


def test_unroll_makes_register_indices_constant():
    near = b.fresh_buffer("near", float32, [4])
    fill = b.for_(4, lambda i: b.store(near, [i], b.load(X, [i])))
    kernel = kernel_of(Alloc(near), fill, b.store(Y, [0], b.load(near, [3])))
    after = at(kernel, fill, rewrites.unroll)
    verify_kernel(after, lowered=True)
    assert_equivalent(kernel, after, sizes=(4,))


def test_unroll_keeps_chains_linear():
    """acc = acc * acc, 64 times: 64 multiplications, not 2**64."""
    fold, (last,) = b.fold(64, [b.load(X, [0])], lambda i, acc: ((), [b.add(b.mul(acc, acc), acc)]))
    kernel = kernel_of(fold, b.store(Y, [0], last))
    after = at(kernel, fold, rewrites.unroll)
    assert len(all_expressions(after.body)) < 500
    assert len(print_kernel(after)) < 20000


def test_unroll_refuses():
    with pytest.raises(ScheduleError, match="not constant"):
        rewrites.unroll(scale())
    with pytest.raises(ScheduleError, match="copies"):
        rewrites.unroll(b.for_(5000, lambda i: b.store(Y, [i], 0.0)))
    with pytest.raises(ScheduleError, match="parallel"):
        rewrites.unroll(For(LoopKind.PARALLEL, fresh("i"), b.index(2), ()))


def test_reorder():
    loop = nest(lambda i, j: b.store(OTHER, [j, i], b.load(GRID, [i, j])))
    kernel = Kernel("k", (GRID, OTHER), (), (loop,))
    after = at(kernel, loop, rewrites.reorder)
    outer = find_loop(after.body, "j")
    assert after.body == (outer,) and isinstance(outer.body[0], For)
    grid = np.arange(42, dtype=np.float32).reshape(6, 7)
    for k in (kernel, after):
        verify_kernel(k)
        other = np.zeros((7, 6), np.float32)
        run_kernel(k, [grid, other])
        np.testing.assert_array_equal(other, grid.T)


def test_reorder_allows_a_sum_in_memory():
    """y[i] += x[j]: the dependence stays inside one i, so the loops may be exchanged."""

    def body(i, j):
        return b.store(Y, [i], b.add(b.load(Y, [i]), b.load(X, [j])))

    loop = nest(body)
    kernel = Kernel("k", (X, Y), (N,), (loop,))
    after = at(kernel, loop, rewrites.reorder)
    results = []
    for k in (kernel, after):
        y = np.zeros(8, np.float32)
        run_kernel(k, [np.arange(8, dtype=np.float32), y], [8])
        results.append(y)
    np.testing.assert_array_equal(*results)


def test_reorder_moves_lets_inwards():
    def outer(i):
        let, row = b.let("row", b.add(i, 1))
        return [let, b.for_(7, lambda j: b.store(GRID, [b.sub(row, 1), j], b.load(OTHER, [j, i])))]

    before = b.for_(6, outer)
    (block,) = rewrites.reorder(before)
    assert [b.constant_value(loop.extent) for loop in (before, block)] == [6, 7]
    for statement in (before, block):
        kernel = Kernel("k", (GRID, OTHER), (), (statement,))
        verify_kernel(kernel)
        grid = np.zeros((6, 7), np.float32)
        run_kernel(kernel, [grid, np.arange(42, dtype=np.float32).reshape(7, 6)])
        np.testing.assert_array_equal(grid, np.arange(42).reshape(7, 6).T)


CROSSED = {
    "a skewed dependence": (
        nest(lambda i, j: b.store(GRID, [b.add(i, 1), j], b.load(GRID, [i, b.add(j, 1)])), 5, 6),
        "one element",
    ),
    "a triangle": (
        nest(lambda i, j: b.store(GRID, [i, j], 0.0), extent=lambda i: i),
        "depends on it",
    ),
    "no nest": (b.for_(6, lambda i: b.store(Y, [i], 0.0)), "not one loop"),
    "carried values": (
        b.for_(6, lambda i: b.fold(3, [b.index(0)], lambda j, a: ((), [b.add(a, j)]))[0]),
        "carries values",
    ),
    "a parallel loop": (
        For(LoopKind.PARALLEL, fresh("i"), b.index(2), (b.for_(2, lambda j: ()),)),
        "parallel",
    ),
}


@pytest.mark.parametrize("name", CROSSED)
def test_reorder_refuses(name):
    loop, reason = CROSSED[name]
    with pytest.raises(ScheduleError, match=reason):
        rewrites.reorder(loop)


def test_reorder_refuses_a_let_that_reads_memory():
    def outer(i):
        let, row = b.let("row", b.load(X, [i]))
        return [let, b.for_(7, lambda j: b.store(GRID, [i, j], row))]

    with pytest.raises(ScheduleError, match="reads memory"):
        rewrites.reorder(b.for_(6, outer))


# parallelise


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("grain", [1, 4, 100])
def test_parallelise(grain, order):
    kernel = kernel_of(scale())
    after = rewrites.parallelise(kernel, grain)
    assert rewrites.parallel_loop(after) is after.body[-1]
    assert_equivalent(kernel, after, order=order)


def test_parallelise_by_a_grain_known_at_run_time():
    grain = fresh("grain")
    kernel = kernel_of(scale(), scalars=(N, grain))
    after = rewrites.parallelise(kernel, grain)
    y = np.zeros(10, np.float32)
    run_kernel(after, [np.ones(10, np.float32), y], [10, 3], order="reversed")
    np.testing.assert_array_equal(y, np.full(10, 2, np.float32))


def test_parallel_extent_is_in_terms_of_the_scalars():
    let, rows = b.let("rows", b.mul(N, 2))
    pairs = b.buffer("pairs", float32, [b.mul(N, 2)])
    loop = loop_over(rows, lambda i: b.store(pairs, [i], 0.0))
    kernel = rewrites.parallelise(kernel_of(let, loop, buffers=(pairs,)), 4)
    form = Facts().form(rewrites.parallel_extent(kernel).a)
    assert form.coefficient(N) == 2 and form.constant == 3


SERIAL_ONLY = {
    "reads the neighbour": (lambda: loop_over(N, shifted(1)), "one element"),
    "carries a value": (running_sum, "carries values"),
    "two statements": (lambda: [scale(), scale()], "expected Lets and then one loop"),
    "writes one place": (lambda: loop_over(N, lambda i: b.store(Y, [0], 1.0)), "a write"),
    "shares scratch memory": (
        lambda: loop_over(N, lambda i: b.for_(8, lambda j: b.store(Y, [j], 1.0))),
        "a write",
    ),
    "a block that is too wide": (
        lambda: loop_over(
            N, lambda i: b.for_(5, lambda j: b.store(Y, [b.add(b.mul(i, 4), j)], 1.0))
        ),
        "a write",
    ),
    "a vector that is too wide": (
        lambda: loop_over(
            N, lambda i: b.store(Y, [b.ramp(b.mul(i, 4), 8)], b.broadcast(b.const(1.0, float32), 8))
        ),
        "a write",
    ),
    "a copy that overlaps": (
        lambda: loop_over(
            N, lambda i: Copy(View(Y, (b.mul(i, 4),)), View(X, (b.index(0),)), (b.index(5),))
        ),
        "a write",
    ),
}


@pytest.mark.parametrize("name", SERIAL_ONLY)
def test_parallelise_refuses(name):
    make, reason = SERIAL_ONLY[name]
    with pytest.raises(ScheduleError, match=reason):
        rewrites.parallelise(kernel_of(make()))


def test_parallelise_accepts_blocks_that_fit():
    def body(i):
        wide = b.broadcast(b.const(1.0, float32), 4)
        copy = Copy(View(X, (b.mul(i, 4),)), View(P, (b.index(0),)), (b.index(4),))
        return [b.store(Y, [b.ramp(b.mul(i, 4), 4)], wide), copy]

    after = rewrites.parallelise(kernel_of(b.for_(b.div(N, 4), body), buffers=(X, Y)))
    (loop,) = after.body
    assert loop.kind is LoopKind.PARALLEL


def test_parallelise_refuses_what_runs_in_parallel():
    with pytest.raises(ScheduleError, match="already"):
        rewrites.parallelise(rewrites.parallelise(kernel_of(scale())))
    with pytest.raises(ScheduleError, match="grain"):
        rewrites.parallelise(kernel_of(scale()), 0)
    with pytest.raises(ScheduleError, match="no parallel loop"):
        rewrites.parallel_extent(kernel_of(scale()))
