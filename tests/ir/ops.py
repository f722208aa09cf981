"""Tiny ops for the tests of the IR, simpler than those of the op families."""

from __future__ import annotations

import contextlib

from frame.core.dtypes import dtype, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import broadcast_shapes
from frame.ir.graph import TensorType, op_table
from frame.ops import registry
from frame.ops.record import AttributeSpec, NoGradient, OpDef, Operand, Trait

_NONE = NoGradient("a test op")


def _broadcast(operands, attributes):
    return TensorType(operands[0].dtype, broadcast_shapes(*(o.shape for o in operands)))


def _constant(operands, attributes):
    array = attributes["value"].array
    return TensorType(dtype(array.dtype), array.shape)


def _matmul(operands, attributes):
    a, b = operands
    if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArgumentError(f"t_matmul can't multiply {a} by {b}")
    return TensorType(a.dtype, (a.shape[0], b.shape[1]))


def _many(operands, attributes):
    return (operands[0], operands[0])


def _same(operands, attributes):
    return operands[0]


def _shaped(operands, attributes):
    return TensorType(operands[0].dtype, attributes["shape"])


def _body(operands, attributes):
    return tuple(value.type for value in attributes["body"].outputs)


def _op(name, infer, count=1, attributes=(), variadic=False, traits=(), results=("y",)):
    operands = [Operand(f"x{i}", group=f"T{i}") for i in range(count)]
    if variadic:
        operands.append(Operand("rest", group="R", variadic=True))
    return OpDef(
        name,
        "A test op.",
        tuple(operands),
        infer,
        lambda operands, attributes: operands[0],
        _NONE,
        tuple(attributes),
        results,
        frozenset(traits),
    )


_EVERY = tuple(
    AttributeSpec(kind, kind, default)
    for kind, default in {
        "int": 1,
        "float": 1.0,
        "bool": False,
        "str": "",
        "size": 1,
        "ints": (),
        "floats": (),
        "shape": (),
    }.items()
)

TEST_OPS = (
    _op("t_add", _broadcast, 2, traits=(Trait.ELEMENTWISE,)),
    _op("t_relu", _same, 1, traits=(Trait.ELEMENTWISE,)),
    _op("t_matmul", _matmul, 2),
    _op("t_constant", _constant, 0, (AttributeSpec("value", "constant"),)),
    _op("t_many", _many, 1, (AttributeSpec("kernel", "ints", (2, 2)),), results=("y", "z")),
    _op("t_view", _shaped, 1, (AttributeSpec("shape", "shape"),), traits=(Trait.VIEW,)),
    _op("t_every", _same, 1, (*_EVERY, AttributeSpec("dtype", "dtype", float32))),
    _op("t_pick", _same, 2, traits=(Trait.CHECKED,)),
    _op("t_loop", _body, 1, (AttributeSpec("body", "graph"),), variadic=True),
    _op("t_sink", lambda operands, attributes: (), 1, results=()),
    _op("t_absurd", lambda operands, attributes: operands[9], 1),
)


@contextlib.contextmanager
def registered():
    """Register the test ops."""
    op_table()
    for record in TEST_OPS:
        registry.register(record)
    try:
        yield
    finally:
        for record in TEST_OPS:
            registry.unregister(record.name)
