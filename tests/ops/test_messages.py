"""What a wrong call says: expected, received, where, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.dtypes import float16, float32, int32
from frame.core.errors import InternalError, InvalidArgumentError, NotFoundError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops import registry
from frame.ops.binding import check_binding, constraints
from frame.ops.interpreter import interpret
from frame.ops.record import NoGradient, OpDef, Operand

BATCH, SEQ = Dim.symbol("batch"), Dim.symbol("seq")


def f(*shape, dtype=float32):
    return TensorType(dtype, shape)


# call (given values of the types), types, parts of the message
MESSAGES = [
    (lambda a: ops.add(a), [f(2)], ["add", "(a, b)", "received 1"]),
    (lambda a: ops.relu(), [f(2)], ["relu", "(x)", "received 0"]),
    (lambda a: ops.relu(a, 1, 2), [f(2)], ["relu", "positional"]),
    (lambda a: ops.add(a, a, a=a), [f(2)], ["'a'", "twice"]),
    (lambda a: ops.sum(a, 0, axes=0), [f(2)], ["'axes'", "twice"]),
    (
        lambda a, b: a + b,
        [f(2), f(2, dtype=float16)],
        ["'a'", "'b'", "float32 and float16", "cast"],
    ),
    (lambda a: ops.sqrt(a), [f(2, dtype=int32)], ["sqrt", "float", "int32", "cast"]),
    (lambda a: ops.mean(a), [f(2, dtype=int32)], ["mean", "int32", "cast"]),
    (lambda a: ops.div(a, a), [f(2, dtype=int32)], ["div", "int32", "cast"]),
    (lambda a: ops.sum(a, keepdim=True), [f(2)], ["'keepdim'", "did you mean 'keepdims'"]),
    (lambda a: ops.sum(a, dim=0), [f(2)], ["'dim'", "axes, keepdims"]),
    (lambda a: ops.neg(a, speed=1), [f(2)], ["'speed'", "none"]),
    (lambda a: ops.sum(a, "x"), [f(2)], ["'axes'", "ints", "'x'", "str"]),
    (lambda a: ops.sum(a, 0, keepdims=1), [f(2)], ["'keepdims'", "bool", "int"]),
    (lambda a: ops.sum(a, 2), [f(2, 3)], ["axis", "-2 to 1", "2"]),
    (lambda a: ops.sum(a, (0, -2)), [f(2, 3)], ["each axis once"]),
    (lambda a: ops.argmax(a, 0), [f()], ["rank 0"]),
    (lambda a: ops.argmax(a), [f(2)], ["argmax", "'axis'"]),
    (lambda a: ops.cast(a, "float99"), [f(2)], ["float99", "float32"]),
    (lambda a, b: a + b, [f(2, 3), f(4)], ["(2, 3)", "(4,)", "broadcast"]),
    (lambda a, b: a + b, [f(BATCH), f(3)], ["(batch,)", "(3,)"]),
    (lambda a, b: a + b, [f(BATCH), f(SEQ)], ["batch", "seq"]),
    (lambda a, b: a @ b, [f(2, 3), f(4, 5)], ["(2, 3)", "(4, 5)", "3 and 4"]),
    (lambda a, b: a @ b, [f(2, 2, 3), f(3, 3, 5)], ["(2, 2, 3)", "(3, 3, 5)", "batch"]),
    (lambda a, b: a @ b, [f(), f(3)], ["()", "(3,)", "rank 1"]),
    (lambda a, b: ops.matmul(a, b, transpose_a=True), [f(3), f(3)], ["rank 2", "transpose_a"]),
    (lambda a: ops.reshape(a, (4, 2)), [f(2, 3)], ["(2, 3)", "6", "(4, 2)", "8"]),
    (lambda a: ops.reshape(a, (-1, 4)), [f(2, 3)], ["(2, 3)", "(-1, 4)", "6"]),
    (lambda a: ops.reshape(a, (-1, -1)), [f(2, 3)], ["one -1"]),
    (lambda a: ops.reshape(a, (-1, 0)), [f(0, 3)], ["ambiguous"]),
    (lambda a: ops.reshape(a, (-2, 3)), [f(2, 3)], ["-2"]),
    (lambda a: ops.reshape(a, (BATCH, 6)), [f(BATCH, 3)], ["3*batch", "6*batch"]),
    (lambda a: ops.transpose(a, (0,)), [f(2, 3)], ["permutation", "(2, 3)"]),
    (lambda a: ops.transpose(a, (0, 0)), [f(2, 3)], ["once"]),
    (lambda a: ops.squeeze(a, 0), [f(2, 1)], ["axis 0", "(2, 1)", "size 2"]),
    (lambda a: ops.unsqueeze(a, 3), [f(2, 1)], ["axis", "3"]),
    (lambda a: ops.flatten(a, 1, 0), [f(2, 1)], ["start_axis <= end_axis"]),
    (lambda a: ops.expand(a, (3,)), [f(2, 3)], ["(2, 3)", "(3,)"]),
    (lambda a: ops.expand(a, (2, 4)), [f(2, 3)], ["(2, 3)", "(2, 4)"]),
    (lambda a, b: ops.concat([a, b]), [f(2, 3), f(2, 4)], ["(2, 3)", "(2, 4)", "axis 0"]),
    (lambda a: ops.concat([]), [f(2)], ["concat", "at least one"]),
    (lambda a, b: ops.stack([a, b]), [f(2), f(3)], ["(2,)", "(3,)"]),
    (lambda a: ops.split(a, (1, 1)), [f(3)], ["(3,)", "(1, 1)", "add up to 3"]),
    (lambda a: ops.split(a, 2), [f(3)], ["3", "divisible"]),
    (lambda a: ops.split(a, 0), [f(3)], ["one part"]),
    (lambda a: ops.slice(a, (0,), (4,)), [f(3)], ["(3,)", "stop <= 3", "0 and 4"]),
    (lambda a: ops.slice(a, (2,), (1,)), [f(3)], ["2 and 1"]),
    (lambda a: ops.slice(a, (0,), (1,), (0,)), [f(3)], ["step", "flip"]),
    (lambda a: ops.slice(a, (-1,), (1,)), [f(3)], ["-1"]),
    (lambda a: ops.slice(a, (0, 0), (1, 1)), [f(3)], ["one start"]),
    (lambda a: ops.pad(a, (-1,), (0,)), [f(3)], ["0 or more", "slice"]),
    (lambda a: ops.pad(a, (1, 1), (0,)), [f(3)], ["one entry an axis"]),
    (lambda a: ops.pad(a, 1, 0, 0.5), [f(3, dtype=int32)], ["0.5", "int32"]),
    (lambda a: ops.pad(a, 1, 0, float("nan")), [f(3, dtype=int32)], ["nan", "int32"]),
    (lambda a: ops.gather(a, a), [f(3)], ["indices", "int", "float32"]),
    (
        lambda a, i: ops.scatter_add(a, i, shape=(4,)),
        [f(3), f(2, dtype=int32)],
        ["(2,)", "(3,)", "(4,)"],
    ),
    (lambda a: ops.tile(a, -1), [f(3)], ["-1"]),
    (lambda a: ops.iota((2,), 1), [f()], ["axis", "1"]),
    (lambda a: ops.iota((2,), 0, "bool"), [f()], ["bool"]),
    (lambda a: ops.zeros((2**40, 2**40)), [f()], ["2**62"]),
    (lambda a: ops.expand(a, (2**32, 2**32, 3)), [f()], ["2**62"]),
    (lambda a: ops.relayout(a, (0, 0)), [f(2, 3)], ["(2, 3)", "(0, 0)"]),
    (lambda a: ops.relayout(a, (), (5, 8)), [f(2, 3)], ["blocks"]),
]


@pytest.mark.parametrize(("call", "types", "parts"), MESSAGES, ids=range(len(MESSAGES)))
def test_message(call, types, parts):
    with GraphBuilder() as builder:
        operands = [builder.input(type_) for type_ in types]
        with pytest.raises(InvalidArgumentError) as raised:
            call(*operands)
    for part in parts:
        assert part in str(raised.value), f"{part!r} is not in: {raised.value}"


def test_outside_of_a_builder():
    with pytest.raises(InvalidArgumentError, match=r"frame\.trace"):
        ops.add(1.0, 2.0)


def test_unknown_op_names_the_nearest():
    with pytest.raises(NotFoundError, match="did you mean matmul"):
        registry.lookup("matmull")
    with pytest.raises(AttributeError, match="matmull"):
        ops.matmull  # noqa: B018


def test_interpreter_messages():
    with GraphBuilder("model") as builder:
        x = builder.input(f(BATCH, 3), name="x")
        builder.output(x + 1.0)
    graph = builder.finish()
    with pytest.raises(InvalidArgumentError, match=r"model has 1 inputs \(x\), received 2"):
        interpret(graph, [np.zeros((2, 3)), np.zeros(1)])
    with pytest.raises(InvalidArgumentError, match=r"x \(batch, 3\); received \(2, 4\)"):
        interpret(graph, [np.zeros((2, 4))])
    with pytest.raises(InvalidArgumentError, match="'x'.*float32.*received int64"):
        interpret(graph, [np.zeros((2, 3), np.int64)])
    with pytest.raises(InvalidArgumentError, match="precision"):
        interpret(graph, [np.zeros((2, 3))], precision="half")


def test_a_reference_that_breaks_its_type_rule_is_an_internal_error():
    record = OpDef(
        name="broken_for_test",
        doc="Break the rule.",
        operands=(Operand("x"),),
        infer=lambda types, attributes: types[0],
        reference=lambda operands, attributes: operands[0][:1],
        gradient=NoGradient("it only serves this test"),
    )
    ops.register(record)
    try:
        with GraphBuilder() as builder:
            builder.output(ops.broken_for_test(builder.input(f(3))))
        with pytest.raises(InternalError, match=r"broken_for_test.*\(1,\)"):
            interpret(builder.finish(), [np.zeros(3)])
    finally:
        ops.unregister("broken_for_test")


def test_binding_names_the_node_and_the_values():
    with GraphBuilder("model") as builder:
        x = builder.input(f(BATCH, 3), name="x")
        builder.push_module("head")
        builder.output(ops.slice(x, (0, 0), (4, 3)))
        builder.output(ops.max(x, 0))
    graph = builder.finish()
    check_binding(graph, {"batch": 4})
    pattern = r"slice \(head, .*\) needs stop <= size on axis 0.*4 and batch.*with batch=3"
    with pytest.raises(InvalidArgumentError, match=pattern):
        check_binding(graph, {"batch": 3})
    with pytest.raises(NotFoundError, match="batch"):
        check_binding(graph, {})


def test_constraints_are_few():
    """What holds for all values leaves none, and one condition is kept once."""
    with GraphBuilder("model") as builder:
        x = builder.input(f(BATCH, SEQ), name="x")
        y = ops.concat([x, x[:, 1:]], 1)
        builder.output(ops.sum(ops.relu(y) @ ops.transpose(y), 0))
        builder.output(x[:, 1:] + 1.0)
    assert [c.size for c in constraints(builder.finish())] == [SEQ - 1, 2 * SEQ - 1]


@pytest.mark.parametrize(
    ("build", "least"),
    [
        (lambda x: x[3], 4),
        (lambda x: x[-2:], 2),
        (lambda x: ops.max(x), 1),
        (lambda x: ops.argmin(x, 0), 1),
        (lambda x: ops.pad(x, (0,), (BATCH - 5,)), 5),
        (lambda x: ops.split(x, (3, BATCH - 3))[1], 3),
        (lambda x: ops.iota((BATCH - 1,), 0), 1),
        (lambda x: ops.sum(x) + 1.0, 0),
    ],
)
def test_the_smallest_size_that_holds(build, least):
    with GraphBuilder("model") as builder:
        builder.output(build(builder.input(f(BATCH), name="x")))
    graph = builder.finish()
    interpret(graph, [np.ones(least)])
    if least:
        with pytest.raises(InvalidArgumentError, match=f"batch={least - 1}"):
            interpret(graph, [np.ones(least - 1)])


def test_binding_looks_into_bodies():
    with GraphBuilder("body") as inner:
        inner.output(inner.input(f(BATCH))[2:])
    with GraphBuilder("model") as builder:
        x = builder.input(f(BATCH), name="x")
        builder.output(ops.group(x, anchor="elementwise", body=inner.finish()))
    graph = builder.finish()
    check_binding(graph, {"batch": 2})
    with pytest.raises(InvalidArgumentError, match="batch=1"):
        check_binding(graph, {"batch": 1})
