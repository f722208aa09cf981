"""The reference interpreter: runs a graph in numpy through the references of its ops.

It is the oracle of the tests, the last hop of the fallback, and how constants are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, dtype, float64
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.shapes import Shape, bind_shape, match_shapes, shape_text
from frame.ir.graph import Graph, Node, TensorType, Value
from frame.ops.binding import bind_attributes, check_binding
from frame.ops.registry import lookup

PRECISIONS = ("float64", "native")


@dataclass(frozen=True, slots=True)
class _Run:
    """What holds for a whole interpretation, bodies included."""

    bindings: Mapping[str, int]
    native: bool


_DEFAULT = _Run(MappingProxyType({}), False)
_run: ContextVar[_Run] = ContextVar("frame_interpreter_run", default=_DEFAULT)


def interpret(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    bindings: Mapping[str, int] | None = None,
    precision: str = "float64",
) -> list[np.ndarray]:
    """Run `graph` and return its outputs, then the values of its state updates.

    Args:
        graph: the graph to run.
        inputs: one array for each graph input, in order; any float dtype for a float input.
        bindings: values of symbols that the shapes of the inputs do not determine.
        precision: "float64" keeps floats in float64 throughout (the oracle); "native" computes each
            op in float64 and rounds each result to its declared dtype.

    Raises:
        InvalidArgumentError: the inputs don't fit the graph, or an op rejects a value (an index).
    """
    if precision not in PRECISIONS:
        raise InvalidArgumentError(
            f"precision must be one of {', '.join(PRECISIONS)}, received {precision!r}"
        )
    arrays = _check_inputs(graph, inputs)
    solved = dict(bindings or {})
    _solve(graph, arrays, solved)
    if solved:
        check_binding(graph, solved)
    with _activate(_Run(solved, precision == "native")):
        return [np.array(result) for result in run_body(graph, arrays)]


def run_body(graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a body graph inside the current interpretation; references of control flow call it.

    Outside of any interpretation floats are float64 and no symbol is bound.
    """
    run = _run.get()
    values: dict[Value, np.ndarray] = {}
    for entry, array in zip(graph.inputs, inputs, strict=True):
        values[entry.value] = _stored(np.asarray(array), entry.value.dtype, run.native)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            operands = [values[operand] for operand in node.operands]
            values.update(zip(node.results, run_node(node, operands), strict=True))
    return [values[value] for value in graph.returned]


def run_node(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Run one node inside the current interpretation and return its results."""
    run = _run.get()
    record = lookup(node.op)
    arrays = [
        array.astype(np.float64) if value.dtype.is_float else array
        for value, array in zip(node.operands, operands, strict=True)
    ]
    raw = record.reference(arrays, bind_attributes(node.attributes, run.bindings))
    results = raw if isinstance(raw, (tuple, list)) else (raw,)
    if len(results) != len(node.results):
        raise InternalError(
            f"the reference of {node.op} returned {len(results)} results, "
            f"its type rule gives {len(node.results)}"
        )
    return tuple(
        _result(node, value.type, np.asarray(result), run)
        for value, result in zip(node.results, results, strict=True)
    )


def bound_shape(shape: Shape) -> tuple[int, ...]:
    """Return a shape with the symbols that the current interpretation has bound replaced."""
    return bind_shape(shape, _run.get().bindings)


@contextmanager
def _activate(run: _Run) -> Iterator[None]:
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def _check_inputs(graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    if len(inputs) != len(graph.inputs):
        names = ", ".join(entry.name for entry in graph.inputs)
        raise InvalidArgumentError(
            f"{graph.name} has {len(graph.inputs)} inputs ({names}), received {len(inputs)}"
        )
    arrays = [np.asarray(array) for array in inputs]
    for entry, array in zip(graph.inputs, arrays, strict=True):
        expected, received = entry.value.dtype, dtype(array.dtype)
        if received != expected and not (received.is_float and expected.is_float):
            raise InvalidArgumentError(
                f"input {entry.name!r} of {graph.name} is {entry.value.type}, received {received}"
            )
    return arrays


def _solve(graph: Graph, arrays: list[np.ndarray], bindings: dict[str, int]) -> None:
    pairs = [(e.value.shape, a.shape) for e, a in zip(graph.inputs, arrays, strict=True)]
    if match_shapes(pairs, bindings):
        return
    expected = ", ".join(f"{e.name} {shape_text(e.value.shape)}" for e in graph.inputs)
    received = ", ".join(shape_text(a.shape) for a in arrays)
    raise InvalidArgumentError(
        f"the inputs of {graph.name} have the shapes {expected}; received {received}"
    )


def _result(node: Node, type_: TensorType, array: np.ndarray, run: _Run) -> np.ndarray:
    expected = bind_shape(type_.shape, run.bindings)
    if array.shape != expected:
        raise InternalError(
            f"the reference of {node.op} returned the shape {shape_text(array.shape)}, its type "
            f"rule gives {type_}"
        )
    return _stored(array, type_.dtype, run.native)


def _stored(array: np.ndarray, declared: DType, native: bool) -> np.ndarray:
    target = float64 if declared.is_float and not native else declared
    return array.astype(target.numpy, copy=False)
