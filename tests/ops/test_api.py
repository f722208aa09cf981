"""The functions of frame.ops, weak scalars, operators and indexing."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import frame
from frame import ops
from frame.compiler.autodiff import build_backward_graph
from frame.core.dtypes import bool_, dtype, float16, float32, float64, int8, int32, int64, uint8
from frame.core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import TensorType
from frame.ops import api, stubs
from frame.ops.interpreter import interpret
from frame.ops.record import AttributeSpec, NoGradient, OpDef, Operand
from tests.ops import support
from tests.project import checkout

BATCH = Dim.symbol("batch")


@pytest.fixture
def builder():
    with GraphBuilder("test") as active:
        yield active


def tensor(builder, shape=(2, 3), dtype=float32):
    return builder.input(TensorType(dtype, shape))


def evaluate(function, *arrays, bindings=None, shapes=None):
    """Trace a function of values, and run it natively."""
    with GraphBuilder("traced") as active:
        shapes = shapes or [array.shape for array in arrays]
        operands = [
            active.input(TensorType(dtype(array.dtype), shape))
            for array, shape in zip(arrays, shapes, strict=True)
        ]
        result = function(*operands)
        for value in result if isinstance(result, (tuple, list)) else (result,):
            active.output(value)
    results = interpret(active.finish(), arrays, bindings, precision="native")
    return results if isinstance(result, (tuple, list)) else results[0]


# --- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in ops.__all__ if n not in ("lookup", "records")])
def test_every_function_has_a_docstring_and_a_signature(name):
    function = getattr(ops, name)
    assert len(inspect.getdoc(function)) > 20
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_functions_are_made_when_they_are_asked_for():
    code = (
        "import inspect, pydoc, types\n"
        "from frame import ops\n"
        "made = [n for n in ops.__all__ if n in vars(ops)]\n"
        "assert sorted(made) == ['lookup', 'records', 'register', 'unregister'], made\n"
        "assert set(ops.__all__) <= set(dir(ops))\n"
        "import dataclasses\n"
        "ops.register(dataclasses.replace(ops.lookup('relu'), name='t_later'))\n"
        "assert 't_later' in dir(ops) and ops.t_later.__name__ == 't_later'\n"
        "ops.unregister('t_later')\n"
        "assert 't_later' not in dir(ops) and not hasattr(ops, 't_later')\n"
        "assert ops.add is ops.add and 'add' in vars(ops)\n"
        "functions = dict(inspect.getmembers(ops, inspect.isfunction))\n"
        "assert set(ops.__all__) <= set(functions), functions\n"
        "import frame.ops.matmul\n"
        "assert ops.matmul is functions['matmul']\n"
        "assert 'matmul(a' in pydoc.plain(pydoc.render_doc(ops))\n"
        "names = {}\n"
        "exec('from frame.ops import *', names)\n"
        "assert names['gather'] is ops.gather and not isinstance(ops.gather, types.ModuleType)\n"
    )
    done = checkout.run_python("-c", code, folder=checkout.ROOT, path=checkout.ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("record", list(ops.records()), ids=lambda record: record.name)
def test_generated_docstring_names_operands_and_attributes(record):
    text = api.builder(record).__doc__
    for entry in (*record.operands, *record.attributes):
        assert f"    {entry.name}" in text
    assert "InvalidArgumentError" in text


def test_stub_is_current():
    assert stubs.PATH.read_text("utf-8") == stubs.generate(), "run: python -m frame.ops.stubs"


def test_attributes_by_position_and_by_name(builder):
    x = tensor(builder)
    assert ops.sum(x, 1, True).shape == ops.sum(x, axes=(1,), keepdims=True).shape == (2, 1)
    assert ops.sum(x=x, axes=[-1]).shape == (2,)
    assert ops.transpose(x).shape == (3, 2)
    assert ops.cast(x, np.int8).dtype == int8
    assert ops.cast(x, "float16").dtype == float16
    assert ops.concat([x, x], 1).shape == ops.concat(x, x, axis=-1).shape == (2, 6)
    assert ops.where(x=x, condition=x > 0, y=0.0).shape == (2, 3)


def test_attributes_are_stored_in_normal_form(builder):
    x = tensor(builder)
    assert ops.sum(x, -1).node.attributes["axes"] == (1,)
    assert ops.sum(x).node.attributes["axes"] == (0, 1)
    assert ops.reshape(x, (-1,)).node.attributes["shape"] == (6,)
    assert ops.argmax(x, -1).node.attributes["axis"] == 1
    assert ops.transpose(x).node.attributes["permutation"] == (1, 0)
    assert ops.expand(x, (4, -1, -1)).node.attributes["shape"] == (4, 2, 3)
    sliced = ops.slice(x, (0, 0), (2, 3), (1, 2))
    assert sliced.node.attributes["stops"] == (2, 3)
    assert ops.slice(tensor(builder, (4,)), (0,), (4,), (2,)).node.attributes["stops"] == (3,)


def test_an_op_registered_later_is_a_function_too(builder):
    record = OpDef(
        name="twice_for_test",
        doc="Return x + x.",
        operands=(Operand("x", ("float",)),),
        infer=lambda types, attributes: types[0],
        reference=lambda operands, attributes: operands[0] * 2,
        gradient=NoGradient("it only serves this test"),
        attributes=(AttributeSpec("size", "int", 1, "unused"),),
    )
    ops.register(record)
    try:
        assert ops.twice_for_test(tensor(builder), size=3).node.attributes["size"] == 3
        with pytest.raises(AlreadyExistsError, match="twice_for_test"):
            ops.register(record)
    finally:
        ops.unregister("twice_for_test")
    with pytest.raises(AttributeError, match="twice_for_test"):
        ops.twice_for_test  # noqa: B018
    with pytest.raises(NotFoundError):
        ops.unregister("twice_for_test")


@pytest.mark.parametrize("name", ["Add", "2x", "", "input", "a-b"])
def test_op_names_are_identifiers(name):
    template = ops.lookup("add")
    with pytest.raises(InvalidArgumentError, match="op name"):
        ops.register(OpDef(name, "", (), template.infer, template.reference, template.gradient))


# --- weak scalars ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scalar", [2, 2.0, True, np.float64(2), np.int8(2), np.float32(2)])
@pytest.mark.parametrize("dtype", [float16, float32, float64])
def test_a_scalar_takes_the_dtype_of_the_tensor(builder, scalar, dtype):
    x = tensor(builder, dtype=dtype)
    assert (x + scalar).dtype == dtype
    assert (scalar - x).dtype == dtype
    assert (x > scalar).dtype == bool_


def test_weak_integers(builder):
    x = tensor(builder, dtype=uint8)
    assert (x + 255).dtype == uint8
    with pytest.raises(InvalidArgumentError, match="256.*uint8.*0 to 255"):
        x + 256
    with pytest.raises(InvalidArgumentError, match="-1"):
        ops.maximum(x, -1)
    with pytest.raises(InvalidArgumentError, match=r"0\.5.*uint8.*frame\.ops\.cast"):
        x * 0.5
    with pytest.raises(InvalidArgumentError, match=r"frame\.ops\.cast"):
        ops.logical_and(tensor(builder, dtype=bool_), 1)


def test_scalars_alone_have_default_dtypes(builder):
    assert ops.add(1.0, 2).dtype == float32
    assert ops.add(1, 2).dtype == int64
    assert ops.sqrt(2).dtype == float32
    assert ops.where(True, 1.0, 0).dtype == float32


def test_lists_are_weak_and_arrays_are_not(builder):
    x = tensor(builder)
    assert (x * [1, 2, 3]).shape == (2, 3)
    assert (np.ones(3, np.float32) * x).shape == (2, 3)
    assert (x + np.ones(3, ">f4")).dtype == float32
    with pytest.raises(InvalidArgumentError, match="float32 and float64"):
        x + np.ones(3)
    assert ops.gather(x, [0, 1, 1]).shape == (3, 3)


def test_numpy_on_the_left_leaves_the_operation_to_the_value(builder):
    x = tensor(builder, (3,))
    for value in (np.float32(2) * x, np.ones(3, np.float32) - x, np.ones(3, np.float32) @ x):
        assert value.dtype == float32


@pytest.mark.parametrize("wrong", ["a", object(), None, 1j, ["a"], [[1, 2], [3]], {}])
def test_what_is_no_number_is_refused(builder, wrong):
    with pytest.raises(InvalidArgumentError):
        ops.add(wrong, tensor(builder))


def test_a_symbolic_size_is_no_operand(builder):
    with pytest.raises(InvalidArgumentError, match=r"frame\.ops\.size"):
        tensor(builder) / BATCH


# --- operators ------------------------------------------------------------------------------------


def test_operators():
    a, b = np.array([7.0, -7.0], np.float32), np.array([2.0, 2.0], np.float32)
    for function in (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: x // y,
        lambda x, y: x % y,
        lambda x, y: x**2.0,
        lambda x, y: 2.0**y,
        lambda x, y: -x,
        lambda x, y: abs(x),
        lambda x, y: x @ y,
        lambda x, y: 3.0 - x,
        lambda x, y: 1.0 / y,
        lambda x, y: x < y,
        lambda x, y: x >= y,
    ):
        np.testing.assert_allclose(evaluate(function, a, b), function(a, b), rtol=1e-6)


def test_integer_and_bool_operators():
    a, b = np.array([6, -7], np.int32), np.array([3, 2], np.int32)
    for function in (
        lambda x, y: x & y,
        lambda x, y: x | y,
        lambda x, y: x ^ y,
        lambda x, y: ~x,
        lambda x, y: x << y,
        lambda x, y: x >> y,
        lambda x, y: 1 << y,
        lambda x, y: (x > 0) & (y > 0),
        lambda x, y: ~(x > 0),
    ):
        np.testing.assert_array_equal(evaluate(function, a, b), function(a, b))


def test_a_value_has_no_truth_value(builder):
    with pytest.raises(InvalidArgumentError, match=r"frame\.ops\.where"):
        bool(tensor(builder) > 0)


def test_iteration():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)

    def rows(value):
        first, second, third = value
        return [third, first, second]

    third, first, second = evaluate(rows, x)
    np.testing.assert_array_equal(np.stack([first, second, third]), x)
    with GraphBuilder() as builder, pytest.raises(InvalidArgumentError, match="scan"):
        list(tensor(builder, (BATCH, 3)))
    with GraphBuilder() as builder, pytest.raises(InvalidArgumentError, match="iterate"):
        list(tensor(builder, ()))


# --- indexing -------------------------------------------------------------------------------------

X = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5)

KEYS = [
    0,
    -1,
    (0, 1, 2, 3),
    (0, -1),
    slice(None),
    slice(None, None, -1),
    (slice(None), slice(1, None), slice(None, -1)),
    (slice(None), slice(None, None, 2), slice(3, 0, -2)),
    Ellipsis,
    (Ellipsis, 0),
    (0, Ellipsis, slice(1, 3)),
    None,
    (None, 0, None, slice(None), 2),
    (slice(None), None, Ellipsis, None),
    (slice(5, 9),),
    (slice(-100, 100, 3),),
    (slice(2, 1),),
    (slice(None), slice(2, None, -1), -1, slice(None, None, -3)),
    np.int64(1),
    (slice(None), [2, 0]),
    np.array([[0, 1], [1, 0]]),
    (Ellipsis, np.array([4, 4, 0], np.uint8)),
    (None, slice(1, None), None, [1, 1], slice(None, None, 2)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_that_of_numpy(key):
    np.testing.assert_array_equal(evaluate(lambda x: x[key], X), X[key])


_BOUND = st.none() | st.integers(-8, 8)
_ENTRY = st.integers(-2, 1) | st.builds(
    slice, _BOUND, _BOUND, st.none() | st.integers(-4, 4).filter(bool)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_ENTRY | st.none(), max_size=4), st.integers(0, 4), st.booleans())
def test_any_basic_index_is_that_of_numpy(entries, place, ellipsis):
    if ellipsis:
        entries.insert(min(place, len(entries)), Ellipsis)
    key = tuple(entries)
    np.testing.assert_array_equal(evaluate(lambda x: x[key], X), X[key])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, "out of range for axis 0"),
        (-3, "out of range"),
        ((0, 0, 0, 0, 0), "at most 4"),
        ((Ellipsis, Ellipsis), "one Ellipsis"),
        (slice(None, None, 0), "step"),
        (slice(0.5, None), "bounds"),
        ("a", "integer, a slice"),
        (True, "integer, a slice"),
        (1.0, "integer, a slice"),
        (np.array([True, False]), "mask"),
        (([0], [1]), "one tensor of positions"),
        ((0, [1]), "gather"),
    ],
    ids=str,
)
def test_wrong_indices(builder, key, message):
    with pytest.raises(InvalidArgumentError, match=message):
        tensor(builder, X.shape)[key]


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, None),
        slice(None, -2),
        slice(-3, None),
        slice(None, None, -1),
        slice(2, 5),
        slice(-1, None, -1),
        slice(None, 1, -1),
        slice(-2, -5, -1),
    ],
    ids=str,
)
def test_indexing_a_symbolic_axis(key):
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    result = evaluate(lambda value: value[key], x, shapes=[(BATCH, 2)])
    np.testing.assert_array_equal(result, x[key])


def test_a_symbolic_bound():
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    result = evaluate(lambda value: value[1 : value.shape[0] - 1], x, shapes=[(BATCH, 2)])
    np.testing.assert_array_equal(result, x[1:6])


@pytest.mark.parametrize("key", [0, slice(2, 5), slice(-3, None), slice(None, -2)], ids=str)
def test_a_symbolic_index_that_does_not_hold_is_found_when_bound(key):
    x = np.zeros((0, 2), np.float32)
    with pytest.raises(InvalidArgumentError, match="batch=0"):
        evaluate(lambda value: value[key], x, shapes=[(BATCH, 2)])


# --- composites in Python form --------------------------------------------------------------------


def test_split_by_number_and_by_sizes():
    x = np.arange(12).reshape(6, 2)
    parts = evaluate(lambda value: ops.split(value, 3), x)
    assert [part.tolist() for part in parts] == [part.tolist() for part in np.split(x, 3)]
    first, second = evaluate(lambda value: ops.split(value, (1, 5)), x)
    assert (first.shape, second.shape) == ((1, 2), (5, 2))
    (only,) = evaluate(lambda value: ops.split(value, 1), x)
    assert only.shape == x.shape


def test_mean_over_a_symbolic_batch():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    decomposition = ops.lookup("mean").decomposition
    result = evaluate(
        lambda value: decomposition((value,), {"axes": (0,), "keepdims": False}),
        x,
        shapes=[(BATCH, 2)],
    )
    np.testing.assert_allclose(result, x.mean(0))


def test_size_is_a_value_of_the_graph():
    x = np.zeros((3, 2), np.float32)
    assert evaluate(lambda value: ops.size(value, 0), x, shapes=[(BATCH, 2)]) == 3


def test_fill_of_a_symbolic_shape():
    x = np.zeros((3, 2), np.float32)
    result = evaluate(ops.ones_like, x, shapes=[(BATCH, 2)])
    np.testing.assert_array_equal(result, np.ones((3, 2)))


def test_gradients_with_a_symbolic_batch():
    def build(shape):
        with GraphBuilder("f") as active:
            x = active.input(TensorType(float64, shape))
            w = active.input(TensorType(float64, (3, 4)))
            y = ops.matmul(ops.reshape(x, (-1, 3)), w)
            y = ops.mean(ops.concat([y, -y, y], 0)[::3] * ops.max(y, 0), 0)
            active.output(ops.prod(ops.expand(y[None], (2, 4))) + ops.sum(ops.tile(x[1:], (2, 1))))
        return active.finish()

    x, w = np.linspace(-1, 1, 15).reshape(5, 3), np.linspace(0.2, 1, 12).reshape(3, 4)
    known, symbolic = build((5, 3)), build((BATCH, 3))
    support.check_gradient(known, [x, w])
    expected = interpret(support.backward(known), [x, w, np.array(1.0)])
    received = interpret(support.backward(symbolic), [x, w, np.array(1.0)])
    for a, b in zip(expected, received, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_int_dtypes_of_results(builder):
    x = tensor(builder, dtype=int32)
    assert ops.sum(x).dtype == int32
    assert ops.argmax(x, 0).dtype == int64


def test_equality_compares_elements_where_a_user_builds_a_graph():
    x = np.array([0, 1, np.nan], np.float32)
    y = np.array([1, 1, np.nan], np.float32)

    def function(a, b):
        same = a  # compared with itself: a NaN is not equal to itself
        return a == b, a != b, a == 1.0, y == a, same == a, a[0] == b[0]

    wanted = [x == y, x != y, x == 1, x == y, x == x, np.False_]
    for run in (frame.jit(function), frame.eager(function)):
        for found, expected in zip(run(x, y), wanted, strict=True):
            assert found.dtype == bool and np.array_equal(found, expected)

    def in_bodies(a):
        steps = ops.scan(lambda c, row: (c, row == c), a[0], a)[1]
        return steps, ops.cond(a[0] == 0.0, lambda: a != 0.0, lambda: a == 0.0)

    steps, chosen = frame.jit(in_bodies)(x)
    assert steps.tolist() == (x == x[0]).tolist() and chosen.tolist() == (x != 0).tolist()
    with pytest.raises(InvalidArgumentError, match="has no truth value"):
        frame.trace(lambda a, b: a if a == b else b, (3,), (3,))


def test_equality_is_identity_in_tables_in_passes_and_without_a_builder():
    def function(a, b):
        assert {a: 1, b: 2}[b] == 2 and (a == None) is False and a != "a"  # noqa: E711
        return a + b

    graph = frame.trace(function, (3,), (3,))
    a, b = graph.input_values
    assert a == a and a != b and (a, b) == graph.input_values and b not in (a,)
    with Rewriter(graph) as rewriter:
        assert a != b and [node.operands == (a, b) for node in graph.nodes] == [True]
        with GraphBuilder("body"):  # a pass that builds a body compares values as before
            assert (a == b) is False
        for node in graph.nodes:
            rewriter.copy(node)
        assert rewriter.finish() is graph


def test_equality_compares_elements_in_the_gradient_of_a_users_op():
    def gradient(context):
        (cotangent,), (x,) = context.cotangents, context.operands
        return (ops.where(x == x, ops.where(x == 0.0, 0.0, cotangent), 5.0),)

    record = dataclasses.replace(ops.lookup("relu"), name="t_odd", gradient=gradient)
    ops.register(record)
    try:
        with GraphBuilder("graph") as builder:
            x = builder.input(TensorType(float64, (3,)), name="x")
            builder.output(ops.sum(ops.t_odd(x)), "loss")
        backward = build_backward_graph(builder.finish(), "loss", ["x"])
        _, slopes = interpret(backward, [np.array([0, 1, np.nan])])
    finally:
        ops.unregister("t_odd")
    assert slopes.tolist() == [0, 1, 5]


def test_equality_compares_elements_in_the_decomposition_of_a_users_op():
    def decomposition(operands, attributes):
        a, b = operands
        total = ops.scan(lambda c, row: (ops.where(row == c, c, row), row), a[0], a)[0]
        return ops.where(a == b, 1.0, a) + total

    record = dataclasses.replace(
        ops.lookup("minimum"), name="t_same", decomposition=decomposition, traits=frozenset()
    )
    ops.register(record)
    try:
        x, y = np.array([1, 2, 3], np.float32), np.array([1, 5, 3], np.float32)
        found = frame.jit(lambda a, b: ops.t_same(a, b))(x, y)
        in_body = frame.jit(lambda a: ops.scan(lambda c, r: (c, ops.t_same(r, c)), a, a[None])[1])
        assert found.tolist() == [4, 5, 4] and in_body(x).tolist() == [[4, 4, 4]]
    finally:
        ops.unregister("t_same")
