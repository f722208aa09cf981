"""Builds graphs of single ops from samples, and compares gradients with central differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from frame.core.dtypes import DType, dtype, float64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType, Value
from frame.ops import record as record_module
from frame.ops import records
from frame.ops.interpreter import interpret
from frame.ops.record import OpDef, Sample
from frame.ops.registry import create_node
from frame.ops.vjp import vjp

STEP = 6e-6
FULL = 16  # up to that many elements each one is varied; else a few random directions


def is_float(array: np.ndarray) -> bool:
    return dtype(array.dtype).is_float


def operands_of(sample: Sample, floats: DType = float64) -> list[np.ndarray]:
    """Return the operands that are present, with the floats in the dtype under test."""
    arrays = []
    for position, array in enumerate(sample.operands):
        if array is None:
            continue
        cast = is_float(array) and position not in sample.fixed
        with np.errstate(over="ignore"):
            arrays.append(array.astype(floats.numpy) if cast else array)
    return arrays


def types_of(arrays: Sequence[np.ndarray]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype(array.dtype), array.shape) for array in arrays)


def graph_of(
    name: str, types: Sequence[TensorType], attributes: Mapping[str, object] | None = None
) -> Graph:
    with GraphBuilder(name) as builder:
        operands = tuple(builder.input(type_) for type_ in types)
        for result in create_node(name, operands, attributes or {}):
            builder.output(result)
    return builder.finish()


def sample_graph(record: OpDef, sample: Sample, floats: DType = float64) -> Graph:
    return graph_of(record.name, types_of(operands_of(sample, floats)), sample.attributes)


def decomposed(record: OpDef, sample: Sample) -> Graph:
    types = types_of(operands_of(sample))
    attributes, _ = record.check(types, sample.attributes)
    with GraphBuilder(record.name) as builder:
        operands = tuple(builder.input(type_) for type_ in types)
        results = record.decomposition(operands, attributes)
        for result in results if isinstance(results, tuple) else (results,):
            builder.output(result)
    return builder.finish()


def backward(graph: Graph) -> Graph:
    """Return the graph (inputs, one cotangent a float output) -> gradients of the float inputs."""
    wrt = [i for i, value in enumerate(graph.input_values) if value.dtype.is_float]
    with GraphBuilder(f"{graph.name}_backward") as builder:
        inputs = [builder.input(value.type) for value in graph.input_values]
        cotangents: list[Value | None] = [
            builder.input(value.type) if value.dtype.is_float else None for value in graph.outputs
        ]
        for gradient in vjp(graph, inputs, cotangents, wrt):
            builder.output(gradient)
    return builder.finish()


def float_outputs(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    results = interpret(graph, arrays)
    return [r for r, v in zip(results, graph.outputs, strict=True) if v.dtype.is_float]


def check_gradient(graph: Graph, arrays: Sequence[np.ndarray], seed: int = 0) -> None:
    """Compare the backward graph with central differences in float64."""
    generator = np.random.default_rng(seed)
    outputs = float_outputs(graph, arrays)
    weights = [generator.standard_normal(output.shape) for output in outputs]
    wrt = [i for i, value in enumerate(graph.input_values) if value.dtype.is_float]
    gradients = interpret(backward(graph), [*arrays, *weights])

    def objective(changed: Sequence[np.ndarray]) -> float:
        values = float_outputs(graph, changed)
        return sum(float(np.sum(w * v)) for w, v in zip(weights, values, strict=True))

    for position, gradient in zip(wrt, gradients, strict=True):
        assert gradient.shape == arrays[position].shape
        for direction in _directions(gradient.shape, generator):
            moved = [
                objective(
                    [*arrays[:position], arrays[position] + s * direction, *arrays[position + 1 :]]
                )
                for s in (STEP, -STEP)
            ]
            measured = (moved[0] - moved[1]) / (2 * STEP)
            computed = float(np.sum(gradient * direction))
            scale = 1.0 + float(np.sum(np.abs(gradient * direction)))
            assert abs(measured - computed) <= 2e-7 * scale, (
                f"operand {position}: central difference {measured}, gradient {computed}"
            )


def _directions(shape: tuple[int, ...], generator: np.random.Generator) -> Iterator[np.ndarray]:
    count = int(np.prod(shape))
    if count <= FULL:
        for index in range(count):
            unit = np.zeros(count)
            unit[index] = 1.0
            yield unit.reshape(shape)
        return
    for _ in range(3):
        yield generator.standard_normal(shape)


def cases(
    chosen: object = None,
) -> Iterator[tuple[OpDef, Sample]]:
    """Yield every built-in record with every one of its samples."""
    for record in records():
        for sample in record.samples():
            yield record, sample


def differentiable(record: OpDef) -> bool:
    return not isinstance(record.gradient, record_module.NoGradient)
