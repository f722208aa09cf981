"""Runs functions of graph values on arrays, and differentiates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from frame.core.dtypes import dtype
from frame.ir.builder import GraphBuilder, current_builder
from frame.ir.graph import Graph, TensorType, Value
from frame.ops.interpreter import interpret
from frame.ops.vjp import filled, pullback
from tests.ops import support

Function = Callable[..., object]


def trace(function: Function, *arrays: object) -> Graph:
    """Build the graph of a function of values, with inputs typed like `arrays`."""
    with GraphBuilder("test") as builder:
        types = support.types_of([np.asarray(a) for a in arrays])
        for value in _tuple(function(*(builder.input(type_) for type_ in types))):
            builder.output(value)
    return builder.finish()


def run(function: Function, *arrays: object, precision: str = "float64") -> list[np.ndarray]:
    """Build the graph of a function, and interpret it."""
    operands = [np.asarray(a) for a in arrays]
    return interpret(trace(function, *operands), operands, precision=precision)


def gradients(function: Function, *wrt: int) -> Function:
    """Return the function that computes d sum(float outputs) / d inputs[wrt] (all by default)."""

    def gradient(*inputs: Value) -> tuple[Value, ...]:
        builder = current_builder()
        start = len(builder.nodes)
        results = _tuple(function(*inputs))
        nodes = builder.nodes[start:]
        seeds = [(r, filled(r.type, 1.0)) for r in results if r.dtype.is_float]
        return pullback(nodes, seeds, [inputs[i] for i in wrt or range(len(inputs))])

    return gradient


def check_gradient(function: Function, *arrays: object) -> None:
    """Compare the gradient of a function with central differences in float64."""
    operands = [np.asarray(a) for a in arrays]
    support.check_gradient(trace(function, *operands), operands)


def check_second_order(function: Function, *arrays: object) -> None:
    """Compare the gradient of the gradient with central differences in float64."""
    operands = [np.asarray(a) for a in arrays]
    first = support.backward(trace(function, *operands))
    generator = np.random.default_rng(3)
    cotangents = [generator.standard_normal(v.shape) for v in first.input_values[len(operands) :]]
    support.check_gradient(first, [*operands, *cotangents])


def value_of(shape: Sequence[object], element: object = "float32") -> Value:
    """Declare an input of the active builder."""
    return current_builder().input(TensorType(dtype(element), tuple(shape)))


def _tuple(results: object) -> tuple[Value, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
