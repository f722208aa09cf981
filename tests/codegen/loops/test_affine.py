"""Linear forms and what loops say about ranges."""

from __future__ import annotations

import random

import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops.affine import Facts, linear_form, variables
from frame.codegen.loops.ir import Expr, fresh
from frame.core.dtypes import float32, int64

N, I, J = fresh("n"), fresh("i"), fresh("j")  # noqa: E741 - the names of loops


def facts(*loops):
    known = Facts()
    for var, extent in loops:
        known.enter(var, b.as_index(extent))
    return known


def test_forms_collect_terms():
    form = linear_form(b.add(b.mul(b.sub(b.add(I, J), 3), 4), b.sub(I, b.shl(J, 2))))
    assert form.coefficient(I) == 5 and form.coefficient(J) == 0 and form.constant == -12
    assert linear_form(b.neg(I)).coefficient(I) == -1
    assert linear_form(b.sub(b.add(I, J), b.add(J, I))).is_constant


def test_opaque_parts_are_one_atom_where_they_are_equal():
    known = Facts()
    one, other = b.rem(b.mul(I, J), N), b.rem(b.mul(I, J), N)
    assert one is not other
    assert known.form(b.sub(one, other)).is_constant
    assert not known.form(b.sub(one, b.rem(b.mul(I, J), I))).is_constant


def test_loads_equal_themselves_alone():
    p = b.buffer("p", int64, [N])
    known = Facts()
    one, other = b.load(p, [0]), b.load(p, [0])
    assert known.form(b.sub(b.add(one, 1), one)).constant == 1
    assert not known.form(b.sub(one, other)).is_constant
    q = fresh("q")
    known.define(q, one)
    assert known.form(q).coefficient(q) == 1 and known.reads(one)


def test_lets_are_expanded():
    known, q = Facts(), fresh("q")
    known.define(q, b.add(b.mul(I, 2), 1))
    assert known.form(b.mul(q, 3)).coefficient(I) == 6
    block = [b.let("row", b.mul(N, 2))[0], b.for_(4, lambda i: b.for_(i, lambda j: (), "j"))]
    known.learn(b.block(block))
    assert known.form(block[0].var).coefficient(N) == 2
    assert known.maximum(block[1].body[0].var) == 2  # j < i <= 3


def test_ranges_of_loops():
    known = facts((I, 10), (J, 4))
    assert (known.minimum(b.sub(I, J)), known.maximum(b.sub(I, J))) == (-3, 9)
    assert known.maximum(b.add(b.mul(I, 4), J)) == 39
    assert known.maximum(N) is None and known.difference(N, b.add(N, 3)) == (-3, -3)
    assert known.is_natural(I) and not known.is_natural(b.sub(I, J)) and not known.is_natural(N)


def test_symbolic_extents_cancel():
    known = facts((I, N))
    assert known.difference(I, N)[1] == -1
    tiles = facts((I, b.div(N, 8)), (J, 8))
    tiles.suppose(tiles.form(b.div(N, 8)), 1)
    assert tiles.difference(b.add(b.mul(I, 8), J), N)[1] == -1
    chunk = facts((I, b.ceil_div(N, 16)), (J, b.min_(16, b.sub(N, b.mul(I, 16)))))
    assert chunk.difference(b.add(b.mul(I, 16), J), N)[1] == -1


def test_bounds_of_operators():
    known = facts((I, 20))
    assert known.maximum(b.rem(I, 6)) == 5 and known.minimum(b.rem(I, 6)) == 0
    assert known.maximum(b.div(I, 3)) == 6 and known.minimum(b.div(I, 3)) == 0
    assert known.maximum(b.min_(I, N)) == 19 and known.maximum(b.min_(N, 7)) == 7
    assert known.minimum(b.max_(N, 2)) == 2 and known.maximum(b.max_(I, 30)) == 30
    assert known.minimum(b.rem(N, 6)) == -5


def test_suppositions_reach_operands():
    known = Facts()
    known.suppose(known.form(b.min_(b.div(N, 8), J)), 1)
    assert known.minimum(N) == 8 and known.minimum(J) == 1
    known.suppose(known.form(b.add(b.mul(I, 3), 5)), 12)
    assert known.minimum(I) == 3
    known.suppose(known.form(b.add(N, J)), 100)
    known.suppose(known.form(b.sub(0, N)), 100)
    assert known.minimum(N) == 8


@pytest.mark.parametrize("seed", range(60))
def test_bounds_hold_for_every_value(seed):
    """Random expressions over small loops: no value lies outside its bounds."""
    choose = random.Random(seed)
    known = facts((I, 6), (J, 5))

    def make(depth: int) -> Expr:
        if depth == 0:
            return choose.choice([I, J, b.index(choose.randint(-4, 9))])
        op = choose.choice([b.add, b.sub, b.min_, b.max_, scaled, divided, remainder])
        return op(make(depth - 1), make(depth - 1))

    def scaled(x: Expr, _: Expr) -> Expr:
        return b.mul(x, choose.randint(-3, 3))

    def divided(x: Expr, _: Expr) -> Expr:
        return b.div(x, choose.randint(1, 4))

    def remainder(x: Expr, _: Expr) -> Expr:
        return b.rem(x, choose.randint(1, 4))

    expression = make(4)
    low, high = known.minimum(expression), known.maximum(expression)
    from frame.codegen.loops.traverse import Substitution

    for i in range(6):
        for j in range(5):
            values = {I: b.index(i), J: b.index(j)}
            value = b.constant_value(Substitution(values).expression(expression))
            assert low is None or value >= low
            assert high is None or value <= high


def test_variables():
    x = b.buffer("x", float32, [N])
    assert variables([b.load(x, [b.add(I, J)]), N]) == {I, J, N}
