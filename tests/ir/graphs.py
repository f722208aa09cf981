"""Graphs and helpers that several tests of the IR use."""

from __future__ import annotations

import numpy as np

from frame.core.dtypes import DTYPES, dtype
from frame.core.shapes import as_shape
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Constant, Graph, Role, TensorType, Value
from frame.ops.registry import create_node


def tensor(*sizes, dtype: str = "float32", **rest) -> TensorType:
    return TensorType(DTYPES[dtype], as_shape(sizes), **rest)


def op(name: str, *operands: Value, **attributes) -> Value:
    return create_node(name, operands, attributes)[0]


def constant(*values, dtype="float32") -> Value:
    array = np.array(values, dtype=DTYPES[dtype].numpy)
    return op("t_constant", value=Constant(array))


def mlp() -> Graph:
    """Two layers, a body with a capture, two results, a symbol and a state update."""
    with GraphBuilder("mlp") as builder:
        x = builder.input(tensor("batch", 4), name="x")
        weight = builder.input(tensor(4, 4), Role.PARAMETER, "0.weight")
        hidden = op("t_relu", op("t_matmul", x, weight))
        with GraphBuilder("step") as step:
            carry = step.input(tensor("batch", 4), Role.CARRY, "carry")
            step.output(op("t_add", op("t_matmul", carry, weight), carry))
        captures = tuple(step.captures)
        looped = op("t_loop", hidden, *captures, body=step.finish())
        first, second = create_node("t_many", (looped,), {"kernel": (3, 3)})
        builder.output(first, "logits")
        builder.output(second)
        builder.update(weight, op("t_add", weight, constant(0.5)))
    return builder.finish()


def array_type(array: np.ndarray) -> TensorType:
    return TensorType(dtype(array.dtype), array.shape)
