"""The values at the edges, written out: what a reader of the records may rely on."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core import dtypes
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.interpreter import interpret
from frame.ops.weak import constant_array
from tests.ops import support

NAN, INF = float("nan"), float("inf")


def run(name, operands, **attributes):
    """Run one op natively on lists of numbers, each (dtype name, values)."""
    arrays = [np.asarray(values, dtypes.dtype(kind).numpy) for kind, values in operands]
    graph = support.graph_of(name, support.types_of(arrays), attributes)
    results = interpret(graph, arrays, precision="native")
    return results[0] if len(results) == 1 else results


def expect(received, kind, values):
    expected = np.asarray(values, dtypes.dtype(kind).numpy)
    assert received.dtype == expected.dtype
    np.testing.assert_array_equal(received, expected)
    if expected.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(received)[number], np.signbit(expected)[number])


I8 = (-128, 127)

# op, dtype, left, right, result
BINARY = [
    ("add", "int8", [127, -128], [1, -1], [-128, 127]),
    ("add", "uint8", [255], [1], [0]),
    ("sub", "uint16", [0], [1], [65535]),
    ("mul", "int32", [2**31 - 1], [2], [-2]),
    ("mul", "int64", [2**63 - 1], [2], [-2]),
    ("floor_div", "int32", [7, -7, 7, -7], [2, 2, -2, -2], [3, -4, -4, 3]),
    ("floor_div", "int32", [5, -5, 0], [0, 0, 0], [0, 0, 0]),
    ("floor_div", "int8", [-128, -128], [-1, 1], [-128, -128]),
    ("floor_div", "int64", [-(2**63)], [-1], [-(2**63)]),
    ("floor_div", "uint8", [255, 3], [2, 0], [127, 0]),
    (
        "floor_div",
        "float32",
        [7.5, -7.5, 1, -1, 0, -1],
        [2, 2, 0, 0, 0, INF],
        [3, -4, INF, -INF, NAN, -1],
    ),
    ("mod", "int32", [7, -7, 7, -7], [2, 2, -2, -2], [1, 1, -1, -1]),
    ("mod", "int32", [5, -5], [0, 0], [0, 0]),
    ("mod", "int8", [-128], [-1], [0]),
    ("mod", "float32", [5.5, -5.5, 5.5, -5.5], [2, 2, -2, -2], [1.5, 0.5, -0.5, -1.5]),
    ("mod", "float32", [4, -4, 1, -1, 1], [-2, 2, 0, INF, NAN], [-0.0, 0.0, NAN, INF, NAN]),
    ("pow", "int32", [2, 3, -2, 10], [10, 0, 3, 9], [1024, 1, -8, 10**9]),
    ("pow", "int32", [2, 1, -1, -1, 0, -3], [-1, -5, -3, -4, -1, -2], [0, 1, -1, 1, 0, 0]),
    ("pow", "int8", [2, 3], [8, 5], [0, -13]),
    ("pow", "uint8", [2, 0, 255], [7, 0, 255], [128, 1, 255]),
    ("pow", "float32", [0, 0, NAN, 1, -8], [0, -1, 0, NAN, 1 / 3], [1, INF, 1, 1, NAN]),
    ("maximum", "float32", [NAN, 1, INF, -INF], [1, NAN, NAN, -1], [NAN, NAN, NAN, -1]),
    ("minimum", "float32", [NAN, 1, -INF, INF], [1, NAN, NAN, 1], [NAN, NAN, NAN, 1]),
    ("div", "float32", [1, -1, 0, 1, 1], [0, 0, 0, -0.0, INF], [INF, -INF, NAN, -INF, 0]),
    ("shift_left", "int8", [1, 1, 1, 1, -1], [7, 8, 100, -1, 1], [-128, 0, 0, 0, -2]),
    ("shift_right", "int8", [-128, -128, 127, -1], [7, 8, 8, -1], [-1, -1, 0, -1]),
    ("shift_right", "uint8", [255, 255], [7, 8], [1, 0]),
    ("shift_left", "uint64", [1, 1], [63, 64], [2**63, 0]),
    ("shift_right", "int64", [-1, 1], [64, 63], [-1, 0]),
    ("atan2", "float32", [0.0, -0.0], [-1, -1], [np.pi, -np.pi]),
]


@pytest.mark.parametrize(("name", "kind", "left", "right", "result"), BINARY)
def test_binary(name, kind, left, right, result):
    expect(run(name, [(kind, left), (kind, right)]), kind, result)


UNARY = [
    ("neg", "int8", [-128, 127], [-128, -127]),
    ("neg", "uint8", [1, 0, 255], [255, 0, 1]),
    ("neg", "float32", [0.0, -0.0], [-0.0, 0.0]),
    ("abs", "int8", [-128, -127], [-128, 127]),
    ("abs", "float32", [-0.0, -INF, NAN], [0.0, INF, NAN]),
    ("sign", "float32", [-2, -0.0, 0.0, 3, NAN], [-1, 0, 0, 1, NAN]),
    ("sign", "uint8", [0, 255], [0, 1]),
    ("square", "int8", [16, -12], [0, -112]),
    ("relu", "float32", [-1, -0.0, 2, NAN, -INF, INF], [0, 0, 2, NAN, 0, INF]),
    ("relu", "int8", [-128, 127], [0, 127]),
    ("round", "float32", [0.5, 1.5, 2.5, -0.5, -1.5, NAN], [0, 2, 2, -0.0, -2, NAN]),
    ("trunc", "float32", [-0.5, 1.9, -1.9, INF], [-0.0, 1, -1, INF]),
    ("floor", "float32", [-0.5, -0.0], [-1, -0.0]),
    ("ceil", "float32", [-0.5, 0.5], [-0.0, 1]),
    ("sqrt", "float32", [-0.0, -1, INF], [-0.0, NAN, INF]),
    ("rsqrt", "float32", [0.0, -0.0, INF, -1], [INF, -INF, 0, NAN]),
    ("reciprocal", "float32", [0.0, -0.0, INF], [INF, -INF, 0]),
    ("log", "float32", [0, -1, 1, INF], [-INF, NAN, 0, INF]),
    ("log1p", "float32", [-1, -2], [-INF, NAN]),
    ("exp", "float32", [-INF, INF, 1000, -1000, NAN], [0, INF, INF, 0, NAN]),
    ("expm1", "float32", [-INF, -0.0], [-1, -0.0]),
    ("tanh", "float32", [INF, -INF, -0.0], [1, -1, -0.0]),
    ("sigmoid", "float32", [INF, -INF, 0, 1000, -1000], [1, 0, 0.5, 1, 0]),
    ("erf", "float32", [INF, -INF, 0], [1, -1, 0]),
    ("bitwise_not", "uint8", [0, 255], [255, 0]),
    ("bitwise_not", "int8", [0, -128], [-1, 127]),
    ("bitwise_not", "bool", [True, False], [False, True]),
]


@pytest.mark.parametrize(("name", "kind", "operand", "result"), UNARY)
def test_unary(name, kind, operand, result):
    expect(run(name, [(kind, operand)]), kind, result)


CASTS = [
    ("float32", [NAN, INF, -INF, 1.9, -1.9], "int8", [0, 127, -128, 1, -1]),
    ("float32", [127.9, 128, -128.9, -129], "int8", [127, 127, -128, -128]),
    ("float32", [-1, -0.5, 255.9, 256, NAN], "uint8", [0, 0, 255, 255, 0]),
    ("float32", [2.0**31, -(2.0**31), 3e9], "int32", [2**31 - 1, -(2**31), 2**31 - 1]),
    (
        "float64",
        [2.0**63, 2.0**63 - 1024, -(2.0**63), -INF],
        "int64",
        [2**63 - 1, 2**63 - 1024, -(2**63), -(2**63)],
    ),
    ("float64", [2.0**64, 2.0**64 - 2048, -1], "uint64", [2**64 - 1, 2**64 - 2048, 0]),
    ("int32", [300, -1, 2**31 - 1], "uint8", [44, 255, 255]),
    ("int32", [200, -200], "int8", [-56, 56]),
    ("uint64", [2**64 - 1], "int64", [-1]),
    ("int64", [-1], "uint64", [2**64 - 1]),
    ("float32", [0, -0.0, NAN, 0.1], "bool", [False, False, True, True]),
    ("int8", [0, -1, 2], "bool", [False, True, True]),
    ("bool", [False, True], "float16", [0, 1]),
    ("bool", [False, True], "uint8", [0, 1]),
    ("float32", [1e6, 65504, 65519, 65520, 1e-8], "float16", [INF, 65504, 65504, INF, 0]),
    ("int64", [2**53 + 1], "float64", [2**53]),
    ("float32", [1.0, 300.0], "float8_e4m3fn", [1.0, 288.0]),
    ("float32", [-9, 3.7, 9, NAN], "int4", [-8, 3, 7, 0]),
]


@pytest.mark.parametrize(("source", "operand", "target", "result"), CASTS)
def test_cast(source, operand, target, result):
    received = run("cast", [(source, operand)], dtype=dtypes.dtype(target))
    assert received.dtype == dtypes.dtype(target).numpy
    expected = np.asarray(result, dtypes.dtype(target).numpy)
    np.testing.assert_array_equal(received.astype(object), expected.astype(object))


def test_storage_only_dtypes_are_moved_but_not_computed():
    packed = np.asarray([1, -2, 3], dtypes.int4.numpy)
    expect(run("cast", [("int4", packed)], dtype=dtypes.int32), "int32", [1, -2, 3])
    assert list(run("flip", [("int4", packed)]).astype(int)) == [3, -2, 1]
    with pytest.raises(InvalidArgumentError, match="int4"):
        run("add", [("int4", packed), ("int4", packed)])


REDUCTIONS = [
    ("sum", "int8", [127, 1], -128),
    ("sum", "float32", [INF, -INF], NAN),
    ("sum", "float32", [], 0),
    ("prod", "uint8", [16, 16], 0),
    ("prod", "int32", [], 1),
    ("mean", "float32", [], NAN),
    ("max", "float32", [1, NAN, INF], NAN),
    ("min", "float32", [1, NAN, -INF], NAN),
    ("max", "float32", [-INF, -INF], -INF),
    ("max", "int8", [-128, -128], -128),
    ("min", "uint8", [255, 255], 255),
    ("any", "bool", [], False),
    ("all", "bool", [], True),
    ("any", "bool", [False, True], True),
    ("all", "bool", [False, True], False),
]


@pytest.mark.parametrize(("name", "kind", "operand", "result"), REDUCTIONS)
def test_reduction(name, kind, operand, result):
    expect(run(name, [(kind, operand)]), kind, result)


@pytest.mark.parametrize(
    ("name", "operand", "result"),
    [
        ("argmax", [1, 3, 3], 1),
        ("argmin", [2, 1, 1], 1),
        ("argmax", [1, NAN, INF, NAN], 1),
        ("argmin", [-INF, NAN], 1),
        ("argmax", [-INF, -INF], 0),
        ("argmax", [0.0, -0.0], 0),
        ("argmin", [0.0, -0.0], 0),
    ],
)
def test_position(name, operand, result):
    expect(run(name, [("float32", operand)], axis=0), "int64", result)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_choosing_among_no_elements_is_an_error(name):
    attributes = {"axis": 1} if name.startswith("arg") else {"axes": 1}
    with pytest.raises(InvalidArgumentError, match="no element"):
        run(name, [("float32", np.zeros((2, 0)))], **attributes)
    assert run(name, [("float32", np.zeros((0, 2)))], **attributes).shape == (0,)


COMPARISONS = [
    ("equal", [1, NAN, 0.0, INF], [1, NAN, -0.0, INF], [True, False, True, True]),
    ("not_equal", [1, NAN, 0.0], [1, NAN, -0.0], [False, True, False]),
    ("less", [1, NAN, -0.0, -INF], [2, 1, 0.0, NAN], [True, False, False, False]),
    ("greater_equal", [1, NAN, -0.0], [1, 1, 0.0], [True, False, True]),
]


@pytest.mark.parametrize(("name", "left", "right", "result"), COMPARISONS)
def test_comparison(name, left, right, result):
    expect(run(name, [("float32", left), ("float32", right)]), "bool", result)


def test_comparison_of_unsigned_integers_is_unsigned():
    expect(run("less", [("uint64", [1]), ("uint64", [2**64 - 1])]), "bool", [True])


def test_where_ignores_what_is_not_chosen():
    operands = [("bool", [True, False]), ("float32", [1, NAN]), ("float32", [NAN, 2])]
    expect(run("where", operands), "float32", [1, 2])


def test_clamp():
    values = ("float32", [-2, 0, 2, NAN, INF])
    low, high = ("float32", -1), ("float32", 1)
    expect(run("clamp", [values, low, high]), "float32", [-1, 0, 1, NAN, 1])
    expect(run("clamp", [values, high, low]), "float32", [-1, -1, -1, NAN, -1])
    expect(run("clamp", [("float32", [0]), ("float32", NAN), high]), "float32", [NAN])


@pytest.mark.parametrize("name", ["gather", "scatter_add"])
@pytest.mark.parametrize(("indices", "position"), [([0, 3], 1), ([-1, 0], 0), ([1, 2, -9], 2)])
def test_index_out_of_range(name, indices, position):
    operands = [("float32", np.zeros(3 if name == "gather" else len(indices))), ("int64", indices)]
    attributes = {} if name == "gather" else {"shape": (3,)}
    pattern = f"{name}: index {indices[position]} at position {position} .*0 <= index < 3"
    with pytest.raises(InvalidArgumentError, match=pattern):
        run(name, operands, **attributes)


def test_matmul_of_an_empty_inner_axis_is_zero():
    expect(
        run("matmul", [("float32", np.zeros((2, 0))), ("float32", np.zeros((0, 3)))]),
        "float32",
        np.zeros((2, 3)),
    )


def test_matmul_of_integers_wraps():
    expect(run("matmul", [("int8", [[100, 100]]), ("int8", [[1], [1]])]), "int8", [[-56]])


def test_iota_wraps():
    expect(run("iota", [], shape=(258,), axis=0, dtype=dtypes.uint8)[-3:], "uint8", [255, 0, 1])


def test_gradient_of_max_and_maximum_shares_ties():
    x = np.array([2.0, 1.0, 2.0])
    graph = support.backward(support.graph_of("max", support.types_of([x])))
    np.testing.assert_array_equal(interpret(graph, [x, np.array(1.0)])[0], [0.5, 0, 0.5])
    pair = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])]
    graph = support.backward(support.graph_of("maximum", support.types_of(pair)))
    left, right = interpret(graph, [*pair, np.ones(3)])
    np.testing.assert_array_equal(left, [0.5, 0, 1])
    np.testing.assert_array_equal(right, [0.5, 1, 0])


@pytest.mark.parametrize(
    ("name", "operand", "slope"), [("relu", 0.0, 0.0), ("abs", 0.0, 0.0), ("pow", 0.0, 2.0)]
)
def test_gradient_at_a_kink(name, operand, slope):
    arrays = [np.array(operand)] + ([np.array(1.0)] if name == "pow" else [])
    graph = support.backward(support.graph_of(name, support.types_of(arrays)))
    gradient = interpret(graph, [*arrays, np.array(2.0)])[0]
    assert gradient == slope


def test_gradient_of_pow_at_zero_has_no_nan():
    arrays = [np.array([0.0, 0.0, 2.0]), np.array([0.0, 2.0, 0.0])]
    graph = support.backward(support.graph_of("pow", support.types_of(arrays)))
    base, exponent = interpret(graph, [*arrays, np.ones(3)])
    np.testing.assert_array_equal(base, [0, 0, 0])
    np.testing.assert_allclose(exponent, [0, 0, np.log(2)])


def test_oracle_keeps_float64_and_native_rounds():
    x = np.array([1.0 + 2.0**-30])
    graph = support.graph_of("neg", [TensorType(dtypes.float32, (1,))])
    assert interpret(graph, [x])[0][0] == -x[0]
    (native,) = interpret(graph, [x], precision="native")
    assert native.dtype == np.float32
    assert native[0] == -1.0


def test_constants_keep_their_numbers():
    assert constant_array(2.5).dtype == np.float32
    assert constant_array([1, 2]).dtype == np.int64
    assert constant_array(True).dtype == np.bool_
    assert constant_array(np.float64(1)).dtype == np.float32
    assert constant_array(np.zeros(2)).dtype == np.float64
    assert constant_array(7, "uint8").dtype == np.uint8
    assert constant_array(np.zeros(2, ">f4")).dtype.isnative
    with pytest.raises(InvalidArgumentError, match="255"):
        constant_array(256, "uint8")
    with pytest.raises(InvalidArgumentError, match="int32"):
        constant_array(0.5, "int32")


def test_fillers():
    with GraphBuilder() as builder:
        x = builder.input(TensorType(dtypes.float16, (2, 3)))
        for value in (ops.zeros((2,)), ops.ones(3, "int8"), ops.full((), 7.0), ops.ones_like(x)):
            builder.output(value)
    graph = builder.finish()
    zeros, ones, seven, like = interpret(graph, [np.zeros((2, 3))], precision="native")
    expect(zeros, "float32", [0, 0])
    expect(ones, "int8", [1, 1, 1])
    expect(seven, "float32", 7)
    expect(like, "float16", np.ones((2, 3)))
