from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.shapes import (
    Dim,
    Size,
    as_shape,
    as_size,
    bind_shape,
    broadcast_shapes,
    exact_divide,
    match_shape,
    match_shapes,
    normalize_axes,
    normalize_axis,
    numel,
    parse_dim,
    row_major_strides,
    shape_symbols,
    shape_text,
)

BATCH, SEQ = Dim.symbol("batch"), Dim.symbol("seq")
POINT = {"a": 3, "b": 5, "c": 7}


def polynomials() -> st.SearchStrategy[Size]:
    monomial = st.lists(st.sampled_from("abc"), max_size=3)
    term = st.tuples(st.integers(-9, 9), monomial)
    return st.lists(term, max_size=4).map(
        lambda terms: sum((math.prod(map(Dim.symbol, m), start=c) for c, m in terms), start=0)
    )


def value(size: Size) -> int:
    return size.evaluate(POINT) if isinstance(size, Dim) else size


@given(polynomials(), polynomials(), polynomials())
@settings(max_examples=100, deadline=None)
def test_dims_form_a_commutative_ring_and_agree_with_integers(a: Size, b: Size, c: Size) -> None:
    assert a + b == b + a and a * b == b * a
    assert (a + b) + c == a + (b + c) and (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0 and a + 0 == a and a * 1 == a and a * 0 == 0
    assert value(a + b) == value(a) + value(b)
    assert value(a * b - c) == value(a) * value(b) - value(c)


@given(polynomials(), polynomials())
@settings(max_examples=100, deadline=None)
def test_exact_division_inverts_multiplication(a: Size, b: Size) -> None:
    if b != 0:
        assert exact_divide(a * b, b) == a


@given(polynomials())
@settings(max_examples=100, deadline=None)
def test_parse_inverts_print(a: Size) -> None:
    assert parse_dim(str(a)) == a
    assert str(parse_dim(str(a))) == str(a)
    if isinstance(a, Dim):
        assert hash(parse_dim(str(a))) == hash(a)


def test_canonical_text() -> None:
    assert str(3 + BATCH + SEQ * 2 * BATCH) == "2*batch*seq + batch + 3"
    assert str(1 - BATCH) == "-batch + 1"
    assert str(BATCH - 1) == "batch - 1"
    assert parse_dim(" ( batch+1)*2 // 2 ") == BATCH + 1
    assert parse_dim("12") == 12


def test_a_result_without_symbols_is_an_int() -> None:
    assert type(BATCH - BATCH) is int
    assert type((2 * BATCH) // BATCH) is int
    assert np.int64(3) * BATCH == BATCH * 3 == BATCH * np.int32(3)
    assert np.int64(3) + BATCH == BATCH + 3


@pytest.mark.parametrize(
    "text",
    [
        *("", "2batch", "batch +", "(batch", "batch)", "batch seq", "a.b", "é", "batch // 2"),
        *("1" * 30, "(" * 100 + "a" + ")" * 100, "a" * 65, "a" * 5000, "3 // 0", "a ** 2", "--a"),
        "*".join(f"(a{i}+b{i})" for i in range(40)),
    ],
    ids=lambda text: text[:20] + f"_{len(text)}",
)
def test_bad_size_texts(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_dim(text)


def test_division_is_exact_or_an_error() -> None:
    assert (4 * BATCH * SEQ + 2 * BATCH) // (2 * BATCH) == 2 * SEQ + 1
    for left, right in ((BATCH, 2), (BATCH, SEQ), (BATCH + 1, BATCH), (5, BATCH)):
        with pytest.raises(InvalidArgumentError, match="not divisible"):
            _ = left // right  # type: ignore[operator]
    with pytest.raises(InvalidArgumentError, match="divisor other than 0"):
        _ = BATCH // 0


def test_a_dim_has_no_order_and_no_truth() -> None:
    with pytest.raises(InvalidArgumentError, match="batch"):
        _ = BATCH < 3
    with pytest.raises(InvalidArgumentError, match="batch"):
        _ = BATCH <= 3
    with pytest.raises(InvalidArgumentError, match="symbolic"):
        bool(BATCH)
    with pytest.raises(TypeError):
        _ = BATCH + 1.5  # type: ignore[operator]
    assert BATCH != 3 and BATCH != SEQ and Dim.symbol("batch") == BATCH


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a" * 65, "é", "a b", 3])
def test_bad_symbol_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="symbol"):
        Dim.symbol(name)


def test_only_normal_forms_can_be_built() -> None:
    with pytest.raises(InvalidArgumentError, match="normal form"):
        Dim(((("b", "a"), 1),))
    with pytest.raises(InvalidArgumentError, match="normal form"):
        Dim((((), 4),))


def test_numel_and_overflow() -> None:
    assert numel(()) == 1 and numel((2, 3)) == 6 and numel((BATCH, 3)) == 3 * BATCH
    assert numel((2**62, 1)) == 2**62
    assert numel((0, BATCH)) == 0
    for shape in ((2**62, 2), (2**40, 2**40, BATCH), (2**40, 0, 2**40)):
        with pytest.raises(InvalidArgumentError, match=r"2\*\*62"):
            numel(shape)


def test_as_size_and_as_shape() -> None:
    assert as_shape(("batch", 2, np.int64(3), SEQ)) == (BATCH, 2, 3, SEQ)
    assert as_shape(4) == (4,) and as_shape("2*seq") == (2 * SEQ,)
    for bad in (-1, 1.5, True, None, 2**63):
        with pytest.raises(InvalidArgumentError, match="expected a size"):
            as_size(bad)
    with pytest.raises(InvalidArgumentError, match="shape"):
        as_shape(1.5)


def test_bind_shape() -> None:
    assert bind_shape((2 * BATCH, 3), {"batch": 4}) == (8, 3)
    with pytest.raises(NotFoundError, match="needs a value of batch"):
        bind_shape((BATCH,), {"seq": 1})
    with pytest.raises(InvalidArgumentError, match=r"negative size: \(-1,\) with batch=1"):
        bind_shape((BATCH - 2,), {"batch": 1})
    assert shape_symbols((BATCH * SEQ, 3)) == {"batch", "seq"}
    assert shape_symbols(()) == frozenset()


def test_match_shape_solves_and_checks() -> None:
    bindings: dict[str, int] = {}
    assert match_shape((2 * BATCH + 1, BATCH * SEQ, 5), (9, 12, 5), bindings)
    assert bindings == {"batch": 4, "seq": 3}
    assert match_shape((BATCH,), (4,), bindings) and not match_shape((BATCH,), (5,), bindings)


@pytest.mark.parametrize(
    ("shape", "actual"),
    [
        ((BATCH, 3), (2, 4)),
        ((BATCH, BATCH), (2, 4)),
        ((BATCH,), (2, 2)),
        ((2 * BATCH,), (3,)),
        ((BATCH + 5,), (3,)),
    ],
)
def test_a_mismatch_leaves_the_bindings_alone(shape: tuple[Size], actual: tuple[int]) -> None:
    bindings = {"seq": 1}
    assert match_shape(shape, actual, bindings) is False
    assert bindings == {"seq": 1}


def test_symbols_are_solved_across_shapes() -> None:
    bindings: dict[str, int] = {}
    assert match_shapes([((BATCH * SEQ,), (12,)), ((BATCH,), (3,))], bindings)
    assert bindings == {"batch": 3, "seq": 4}
    with pytest.raises(InvalidArgumentError, match=r"can't solve batch\*seq = 12"):
        match_shape((BATCH * SEQ,), (12,), {})


def test_broadcast_shapes() -> None:
    assert broadcast_shapes((BATCH, 1, 3), (4, 1), ()) == (BATCH, 4, 3)
    assert broadcast_shapes((0,), (1,)) == (0,)
    assert broadcast_shapes() == ()
    for left, right in (((BATCH,), (4,)), ((BATCH,), (SEQ,)), ((2, 3), (2,))):
        with pytest.raises(InvalidArgumentError, match="do not broadcast"):
            broadcast_shapes(left, right)  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3))
def test_broadcasting_of_integers_is_numpys(shapes: list[list[int]]) -> None:
    try:
        expected = np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        with pytest.raises(InvalidArgumentError):
            broadcast_shapes(*shapes)
    else:
        assert broadcast_shapes(*shapes) == expected


def test_axes() -> None:
    assert normalize_axis(-1, 3) == 2 and normalize_axis(np.int64(0), 1) == 0
    assert normalize_axes(None, 2) == (0, 1) and normalize_axes((-1, 0), 2) == (1, 0)
    assert normalize_axes(1, 2) == (1,) and normalize_axes((), 2) == ()
    for axis, rank in ((2, 2), (-3, 2), (0, 0), (1.0, 2), (True, 2)):
        with pytest.raises(InvalidArgumentError, match="axis"):
            normalize_axis(axis, rank)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="once"):
        normalize_axes((0, -2), 2)


def test_strides_and_text() -> None:
    assert row_major_strides((2, BATCH, 4)) == (4 * BATCH, 4, 1)
    assert row_major_strides(()) == ()
    assert shape_text((2 * BATCH, 784)) == "(2*batch, 784)" and shape_text((3,)) == "(3,)"
