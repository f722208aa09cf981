"""Checking a graph of symbolic shapes against values of its symbols.

A type rule accepts what may hold for some values of a symbol (`x[:10]` on an axis of size batch).
Whoever binds the symbols calls `check_binding` once for each new set of values, before it runs
code that relies on the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.shapes import Dim, bind_shape, shape_symbols
from frame.ir.graph import Attribute, Graph, Node, TensorType
from frame.ops.record import Trait
from frame.ops.registry import lookup


def bind_type(type_: TensorType, bindings: Mapping[str, int]) -> TensorType:
    """Return the type with its symbols replaced by their values.

    Raises:
        NotFoundError: a symbol has no value.
        InvalidArgumentError: a size becomes negative, or the number of elements overflows.
    """
    return replace(type_, shape=bind_shape(type_.shape, bindings))


def bind_attributes(
    attributes: Mapping[str, Attribute], bindings: Mapping[str, int]
) -> dict[str, Attribute]:
    """Return the attributes with every symbolic size replaced by its value; bodies stay."""
    return {name: _bind(value, bindings) for name, value in attributes.items()}


def check_binding(graph: Graph, bindings: Mapping[str, int]) -> None:
    """Check that the shapes of all nodes hold for these values of the symbols.

    Raises:
        NotFoundError: a symbol has no value.
        InvalidArgumentError: a size becomes negative or an op does not accept the shapes; the
            message names the node, its place in the model, and the values.
    """
    for node in graph.nodes:
        for _, body in node.bodies:
            check_binding(body, bindings)
        if _is_symbolic(node):
            _check_node(graph, node, bindings)


def _bind(value: Any, bindings: Mapping[str, int]) -> Any:
    if isinstance(value, Dim):
        return value.evaluate(bindings)
    if isinstance(value, tuple):
        return tuple(_bind(item, bindings) for item in value)
    return value


def _is_symbolic(node: Node) -> bool:
    shapes = (*node.operands, *node.results)
    if any(shape_symbols(value.shape) for value in shapes):
        return True
    return any(
        isinstance(item, Dim)
        for value in node.attributes.values()
        for item in (value if isinstance(value, tuple) else (value,))
    )


def _check_node(graph: Graph, node: Node, bindings: Mapping[str, int]) -> None:
    try:
        results = tuple(bind_type(value.type, bindings) for value in node.results)
        record = lookup(node.op)
        # Broadcasting takes equal sizes only, so it holds for all values; bodies are checked above.
        if Trait.ELEMENTWISE in record.traits or any(node.bodies):
            return
        operands = tuple(bind_type(value.type, bindings) for value in node.operands)
        _, types = record.check(operands, bind_attributes(node.attributes, bindings))
    except InvalidArgumentError as error:
        values = ", ".join(f"{name}={value}" for name, value in sorted(bindings.items()))
        place = str(graph.location(node))
        raise InvalidArgumentError(
            f"{node.op}{f' ({place})' if place else ''} does not hold with {values}: {error}"
        ) from None
    if tuple(type_.shape for type_ in types) != tuple(type_.shape for type_ in results):
        raise InternalError(
            f"the type rule of {node.op} gives {results} for symbols and {types} for {bindings}"
        )
