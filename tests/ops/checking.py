"""What the tests of ops share: running samples, decompositions and gradients in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from frame.core import tolerances
from frame.core.dtypes import DType, dtype, float32, float64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType, Value
from frame.ops.interpreter import interpret
from frame.ops.record import OpDef, Sample
from frame.ops.registry import create_node, lookup
from frame.ops.vjp import filled, pullback

Arrays = Sequence[np.ndarray]


def trace(function: Callable[..., object], arrays: Arrays) -> Graph:
    """Build the graph of a function of values, with inputs typed like `arrays`."""
    with GraphBuilder("test") as builder:
        inputs = [builder.input(TensorType(dtype(a.dtype), a.shape)) for a in arrays]
        results = function(*inputs)
        for value in results if isinstance(results, (tuple, list)) else (results,):
            builder.output(value)
    return builder.finish()


def run(function: Callable[..., object], *arrays: object) -> list[np.ndarray]:
    """Build the graph of a function, and interpret it in float64."""
    operands = [np.asarray(a) for a in arrays]
    return interpret(trace(function, operands), operands)


def run_native(function: Callable[..., object], *arrays: object) -> list[np.ndarray]:
    """Build the graph of a function, and interpret it with results rounded to their dtypes."""
    operands = [np.asarray(a) for a in arrays]
    return interpret(trace(function, operands), operands, precision="native")


def node(name: str, attributes: Mapping[str, object]) -> Callable[..., tuple[Value, ...]]:
    """Return the function that applies an op with these attributes."""
    return lambda *operands: create_node(name, operands, attributes)


def gradients(function: Callable[..., object], arrays: Arrays, wrt: Sequence[int]) -> Callable:
    """Return the function of values that computes d sum(outputs * weights) / d inputs[wrt].

    The weights differ from element to element, so that errors don't cancel.
    """

    def gradient(*inputs: Value) -> tuple[Value, ...]:
        from frame.ir.builder import current_builder

        builder = current_builder()
        start = len(builder.nodes)
        results = function(*inputs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        nodes = builder.nodes[start:]
        seeds = [(r, weights(r)) for r in results if r.dtype.is_float]
        return pullback(nodes, seeds, [inputs[i] for i in wrt])

    return gradient


def weights(value: Value) -> Value:
    """Return a constant cotangent of the type of `value` with varied elements."""
    if any(not isinstance(size, int) for size in value.shape):
        return filled(value.type, 1.5)
    from frame import ops

    return ops.constant(weight_array(value.shape, value.dtype))


def weight_array(shape: Sequence[int], element: DType = float64) -> np.ndarray:
    """Return the elements of `weights`."""
    count = int(np.prod(shape, dtype=np.int64))
    return (1.0 + 0.5 * np.sin(1.0 + np.arange(count))).reshape(tuple(shape)).astype(element.numpy)


def check_gradient(function: Callable[..., object], arrays: Arrays, wrt: Sequence[int]) -> None:
    """Compare gradients with central differences in float64, at every element of the inputs."""
    arrays = [np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "f" else a for a in arrays]
    forward = trace(function, arrays)
    found = interpret(trace(gradients(function, arrays, wrt), arrays), arrays)
    for position, gradient in zip(wrt, found, strict=True):
        expected, scale = differences(forward, arrays, position)
        where = f"gradient by operand {position}"
        limits = tolerances.DIFFERENCES
        tolerances.compare(
            gradient, expected, float64, np.maximum(scale, 1.0), where, table={float64: limits}
        )


def differences(forward: Graph, arrays: Arrays, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Return central differences of the weighted sum of outputs, and the magnitude of its terms."""
    point = np.array(arrays[position], np.float64)
    result, scale = np.zeros(point.shape), np.zeros(point.shape)
    for index in np.ndindex(point.shape):
        step = tolerances.DIFFERENCE_STEP * max(1.0, abs(point[index]))
        ends = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] += sign * step
            ends.append(_total(forward, [*arrays[:position], moved, *arrays[position + 1 :]]))
        result[index] = (ends[0][0] - ends[1][0]) / (2 * step)
        scale[index] = ends[0][1]
    return result, scale


def _total(forward: Graph, arrays: Arrays) -> tuple[float, float]:
    total = magnitude = 0.0
    for value, array in zip(forward.outputs, interpret(forward, arrays), strict=True):
        if value.dtype.is_float:
            terms = array * weight_array(array.shape, value.dtype)
            total += float(np.sum(terms, dtype=np.longdouble))
            magnitude += float(np.sum(np.abs(terms)))
    return total, magnitude


def operands_of(sample: Sample, element: DType = float64) -> list[np.ndarray]:
    """Return the operands of a sample, floats cast to `element` unless they are fixed."""
    return [
        a if a.dtype.kind != "f" or position in sample.fixed else a.astype(element.numpy)
        for position, a in enumerate(np.asarray(o) for o in sample.operands if o is not None)
    ]


def smooth_operands(sample: Sample) -> list[int]:
    """Return the positions of the float operands of a sample."""
    return [i for i, a in enumerate(operands_of(sample)) if a.dtype.kind == "f"]


def check_sample(record: OpDef, sample: Sample) -> None:
    """Check one sample: the reference runs, agrees with the decomposition, and its gradient too."""
    arrays = operands_of(sample)
    apply = node(record.name, sample.attributes)
    expected = interpret(trace(apply, arrays), arrays)
    if record.decomposition is not None:
        check_decomposition(record, sample, arrays, expected)
    if sample.gradient and record.name not in ("uniform", "normal"):
        check_gradient(apply, arrays, smooth_operands(sample))


def check_decomposition(record: OpDef, sample: Sample, arrays: Arrays, expected: Arrays) -> None:
    """Compare the decomposition, interpreted in float64, with the reference."""
    decomposition = record.decomposition
    assert decomposition is not None
    normal = record.check(
        tuple(TensorType(dtype(a.dtype), a.shape) for a in arrays), sample.attributes
    )[0]
    graph = trace(lambda *operands: decomposition(operands, normal), arrays)
    declared = trace(node(record.name, sample.attributes), arrays)
    for value, other, array, right in zip(
        graph.outputs, declared.outputs, interpret(graph, arrays), expected, strict=True
    ):
        assert value.type == other.type
        scale = np.maximum(1.0, np.max(np.abs(np.nan_to_num(array, posinf=0, neginf=0)), initial=0))
        element = float64 if value.dtype.is_float else value.dtype
        tolerances.compare(array, right, element, scale, f"{record.name} {sample.name}")


def samples_of(*names: str) -> list[tuple[str, Sample]]:
    """Return (op, sample) pairs for pytest.mark.parametrize."""
    return [(name, sample) for name in names for sample in lookup(name).samples()]


def sample_id(value: object) -> str:
    """Return the id of a parameter of a test."""
    return value.name if isinstance(value, Sample) else str(value)


FLOATS: tuple[DType, ...] = (float32, float64)
