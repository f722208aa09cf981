"""The helpers fold what they may, broadcast where lanes differ, and refuse wrong types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Broadcast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Ramp,
    Scope,
    Store,
    Type,
    Var,
    fresh,
)
from frame.codegen.loops.verifier import verify_kernel
from frame.core.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from frame.core.errors import InternalError

ROW, COLUMN = fresh("i"), fresh("j")
X = b.buffer("x", float32, [8])
V = b.load(X, [b.ramp(b.index(0), 8)])
S = b.load(X, [ROW])


def value(x):
    """The number of a folded constant; a test fails here if nothing was folded."""
    assert isinstance(x, Const), x
    return x.value


def test_constants_are_rounded_to_their_dtype():
    assert value(b.const(0.1, Type(float32))) == float(np.float32(0.1))
    assert value(b.const(0.1, float16)) == float(np.float16(0.1))
    assert value(b.const(1 / 3, bfloat16)) == 0.333984375
    assert value(b.const(1e39, float32)) == math.inf
    assert b.const(3, float32).value == 3.0 and isinstance(b.const(3, float32).value, float)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(128, int8), (-1, uint8), (1.5, int32), (True, int32), (1, bool_), (True, float32)],
)
def test_constants_out_of_range_are_refused(number, dtype):
    with pytest.raises(InternalError, match="is not a value of"):
        b.const(number, dtype)


def test_neutral_elements_of_integers():
    same = [b.add(ROW, 0), b.add(0, ROW), b.sub(ROW, 0), b.mul(ROW, 1), b.mul(1, ROW)]
    for folded in (*same, b.div(ROW, 1)):
        assert folded is ROW
    for folded in (b.mul(ROW, 0), b.sub(ROW, ROW), b.rem(ROW, 1), b.and_(ROW, 0)):
        assert value(folded) == 0
    for folded in (b.or_(ROW, 0), b.xor(ROW, 0), b.shl(ROW, 0), b.min_(ROW, ROW), b.and_(ROW, ROW)):
        assert folded is ROW


def test_constants_of_sums_and_products_gather():
    assert value(b.add(b.add(ROW, 3), 4).b) == 7
    assert b.sub(b.add(ROW, 3), 3) is ROW
    assert value(b.mul(b.mul(ROW, 3), 4).b) == 12
    total = b.add(b.add(ROW, 1), b.add(COLUMN, 2))
    assert value(total.b) == 3 and isinstance(total.a, Binary)
    assert value(b.sub(b.add(ROW, 5), b.add(COLUMN, 2)).b) == 3
    assert b.sub(b.add(b.add(ROW, COLUMN), 5), 5).type == INDEX


def test_integers_wrap_when_folded():
    top = b.const(127, int8)
    assert value(b.add(top, 1)) == -128
    assert value(b.add(b.const(2**63 - 1), 1)) == -(2**63)
    assert value(b.mul(b.const(2**62), 4)) == 0
    assert value(b.neg(b.const(-(2**31), int32))) == -(2**31)
    x = fresh("x", Type(uint8))
    assert value(b.sub(x, 1).b) == 255


def test_division_truncates_toward_zero():
    assert value(b.div(b.index(-7), 2)) == -3
    assert value(b.rem(b.index(-7), 2)) == -1
    assert value(b.div(b.index(7), b.index(-2))) == -3
    for op in (b.div, b.rem):
        with pytest.raises(InternalError, match="by the constant 0"):
            op(ROW, 0)
    with pytest.raises(InternalError, match="overflows"):
        b.div(b.const(-(2**63)), -1)


def test_float_folds_keep_every_bit():
    assert b.mul(S, 1.0) is S and b.div(S, 1.0) is S
    assert b.add(S, -0.0) is S and b.sub(S, 0.0) is S
    for kept in (b.add(S, 0.0), b.mul(S, 0.0), b.sub(S, S), b.sub(S, -0.0)):
        assert isinstance(kept, Binary)
    assert value(b.add(b.const(0.1, float32), b.const(0.2, float32))) == float(
        np.float32(0.1) + np.float32(0.2)
    )


def test_minimum_and_maximum_on_nan():
    nan, one = b.const(math.nan, float32), b.const(1.0, float32)
    assert value(b.min_(nan, one)) == 1 and value(b.max_(nan, one)) == 1
    assert math.isnan(value(b.min_(one, nan)))
    for op in (b.minimum, b.maximum):
        assert math.isnan(value(op(nan, one))) and math.isnan(value(op(one, nan)))


def test_logic_and_selection():
    p = b.lt(ROW, COLUMN)
    assert b.and_(p, b.TRUE) is p and b.or_(p, b.FALSE) is p
    assert value(b.and_(p, b.FALSE)) is False and value(b.or_(p, b.TRUE)) is True
    assert b.select(b.TRUE, ROW, COLUMN) is ROW and b.select(b.FALSE, ROW, COLUMN) is COLUMN
    assert b.select(p, ROW, ROW) is ROW
    assert b.not_(p).op == "ge" and b.not_(b.not_(p)).op == "lt"
    assert isinstance(b.not_(b.lt(S, 0.0)), Expr) and b.not_(b.lt(S, 0.0)).op == "not"
    assert value(b.le(ROW, ROW)) is True and value(b.lt(ROW, ROW)) is False
    assert not isinstance(b.eq(S, S), Const)


def test_casts_fold_as_they_run():
    assert value(b.cast(b.const(1e30, float64), uint32)) == 2**32 - 1
    assert value(b.cast(b.const(math.nan, float32), int32)) == 0
    assert value(b.cast(b.const(300, int32), uint8)) == 44
    assert value(b.cast(b.const(-0.0, float32), bool_)) is False
    assert b.cast(S, float32) is S
    assert value(b.bitcast(b.const(1.0, float32), uint32)) == 0x3F800000
    assert not isinstance(b.bitcast(b.const(0x7FC00001, uint32), float32), Const)
    assert value(b.mul_high(b.const(2**31, uint32), 6)) == 3
    assert value(b.fma(b.const(3.0, float32), 2.0, 1.0)) == 7


def test_vectors():
    assert isinstance(b.add(V, S).b, Broadcast)
    assert b.add(V, 1.0).b.type == Type(float32, 8)
    ramp = b.add(b.ramp(ROW, 8), 4)
    assert isinstance(ramp, Ramp) and value(ramp.base.b) == 4
    assert isinstance(b.add(b.broadcast(COLUMN, 8), b.ramp(ROW, 8)), Ramp)
    assert isinstance(b.sub(b.ramp(ROW, 8), COLUMN), Ramp)
    assert b.extract(b.broadcast(S, 8), 3) is S
    assert value(b.extract(b.ramp(ROW, 8), 3).b) == 3
    both = b.add(b.broadcast(S, 8), b.broadcast(S, 8))
    assert isinstance(both, Broadcast) and isinstance(both.x, Binary)
    assert b.ramp(ROW, 1) is ROW and b.sum_lanes(S) is S
    assert b.shuffle(V, V, [0, 8, 1, 9]).type == Type(float32, 4)


REFUSED = [
    lambda: b.add(ROW, S),
    lambda: b.add(1, 2),
    lambda: b.and_(S, S),
    lambda: b.add(b.TRUE, b.TRUE),
    lambda: b.sqrt(ROW),
    lambda: b.neg(b.TRUE),
    lambda: b.select(ROW, ROW, COLUMN),
    lambda: b.select(b.TRUE, ROW, S),
    lambda: b.fma(ROW, ROW, ROW),
    lambda: b.fma(S, ROW, S),
    lambda: b.bitcast(ROW, float32),
    lambda: b.mul_high(ROW, ROW),
    lambda: b.broadcast(V, 4),
    lambda: b.ramp(S, 4),
    lambda: b.extract(V, 8),
    lambda: b.shuffle(V, V, [16]),
    lambda: b.shuffle(V, b.cast(V, int32), [0]),
    lambda: b.lt(ROW, S),
    lambda: b.load(X, []),
    lambda: b.load(X, [S]),
    lambda: b.load(X, [ROW], mask=ROW),
    lambda: b.store(X, [ROW], ROW),
    lambda: b.if_(ROW, []),
    lambda: b.flat_index(X, [ROW, COLUMN]),
    lambda: b.unify(1, 2),
]


@pytest.mark.parametrize("position", range(len(REFUSED)))
def test_wrong_operands_are_refused(position):
    with pytest.raises(InternalError):
        REFUSED[position]()


def test_masks():
    assert b.store(X, [ROW], 1).value.value == 1.0  # an int is a value of a float buffer
    assert b.load(X, [ROW], b.TRUE).mask is None
    assert b.load(X, [b.ramp(ROW, 4)], b.lt(ROW, COLUMN)).mask.type == Type(bool_, 4)
    assert b.store(X, [b.ramp(ROW, 4)], S).value.type == Type(float32, 4)


def test_flat_index_uses_strides():
    grid = b.buffer("grid", float32, [ROW, 5, 7])
    assert b.strides_of(grid) == (35, 7, 1)
    strided = b.buffer("strided", float32, [2, 3], [1, b.index(2)])
    assert strided.strides == (1, 2)
    assert value(b.flat_index(strided, [1, 2])) == 5
    symbolic = b.buffer("symbolic", float32, [2, ROW])
    assert b.strides_of(symbolic) == (ROW, 1)


def test_functions_for_statements():
    loop, (total,) = b.fold(4, [b.const(0.0, float32)], lambda i, acc: ([], [b.add(acc, 1.0)]))
    assert isinstance(loop, For) and loop.carried[0].result is total
    let, var = b.let("t", S)
    assert let.var is var and var.type == S.type
    nested = b.block(let, [[loop], []], b.if_(b.TRUE, let))
    assert [type(s) for s in nested] == [Let, For, If]


def test_body_writes_nested_blocks():
    n = fresh("n")
    x, y = b.buffer("x", float32, [n]), b.buffer("y", float32, [n])
    body = b.Body()
    near = body.alloc("near", float32, [2], Scope.LOCAL)
    body.store(near, [0], 3.0)
    with body.loop(n) as i:
        v = body.let("v", b.load(x, [i]))
        assert isinstance(v, Var) and body.let("same", v) is v
        with body.when(b.lt(v, 0.0)):
            body.store(y, [i], b.load(near, [0]))
        with body.otherwise():
            body.store(y, [i], v)
    with body.fold(n, [b.const(0.0, float32)]) as fold:
        fold.next = [b.add(fold.values[0], b.load(x, [fold.index]))]
    with body.when(b.gt(n, 0)):
        body.store(x, [0], fold.results[0])
    body.fail(1, n, n)
    kernel = Kernel("k", (x, y), (n,), body.block())
    verify_kernel(kernel)
    assert isinstance(kernel.body[0], Alloc) and isinstance(kernel.body[1], Store)
    memory = [np.array([1, -2, 5], np.float32), np.zeros(3, np.float32)]
    assert run_kernel(kernel, memory, [3]).fail == (1, 3, 3)
    np.testing.assert_array_equal(memory[1], [1, 3, 5])
    assert memory[0][0] == 4


def test_otherwise_needs_a_when():
    body = b.Body()
    with pytest.raises(InternalError, match="otherwise"), body.otherwise():
        pass


def test_operands_stay_loads():
    assert isinstance(S, Load) and b.as_index(3).value == 3
    assert b.add_all([]).value == 0 and b.add_all([ROW]) is ROW
    assert b.constant_value(b.broadcast(b.index(3), 4)) == 3 and b.constant_value(ROW) is None
    assert b.constant_value(b.ceil_div(7, 2)) == 4
    assert BinaryOp.ADD == "add" and b.like(2, S).value == 2.0 and b.index(999).value == 999
    assert b.const(5, int64).type == INDEX
