"""Binding symbols: which values of its symbols a graph accepts, and attributes with values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from frame.core.shapes import Dim, Size, shape_text
from frame.ir.constraints import Constraint, check_constraints, is_natural
from frame.ir.graph import Attribute, Graph, Node
from frame.ops.registry import lookup


def bind_attributes(
    attributes: Mapping[str, Attribute], bindings: Mapping[str, int]
) -> dict[str, Attribute]:
    """Return the attributes with every symbolic size replaced by its value; bodies stay."""
    return {name: _bind(value, bindings) for name, value in attributes.items()}


def constraints(graph: Graph) -> tuple[Constraint, ...]:
    """Return what the symbols of a graph must meet, its bodies included.

    Conditions that hold for all values are left out, and so are repeated ones. They hold for the
    graph that is given: passes may remove the nodes that ask, so collect them from the declared
    graph.
    """
    found: dict[Dim, Constraint] = {}
    for constraint in _collect(graph, graph):
        found.setdefault(constraint.size, constraint)
    return tuple(found.values())


def check_binding(graph: Graph, bindings: Mapping[str, int]) -> None:
    """Check that a graph accepts these values of its symbols.

    Raises:
        NotFoundError: a symbol has no value.
        InvalidArgumentError: an op does not accept the sizes; the message names the node, its
            place in the model, and the values.
    """
    check_constraints(constraints(graph), bindings)


def _bind(value: Any, bindings: Mapping[str, int]) -> Any:
    if isinstance(value, Dim):
        return value.evaluate(bindings)
    if isinstance(value, tuple):
        return tuple(_bind(item, bindings) for item in value)
    return value


def _collect(graph: Graph, top: Graph) -> Iterator[Constraint]:
    for node in graph.nodes:
        for _, body in node.bodies:
            # The origins of a fused body lead to the locations of the graph around it.
            yield from _collect(body, body if body.locations else top)
        for size, text in _conditions(node):
            if isinstance(size, Dim) and not is_natural(size):
                yield Constraint(size, node.op, text, str(top.location(node)))


def _conditions(node: Node) -> Iterable[tuple[Size, str]]:
    types = tuple(operand.type for operand in node.operands)
    yield from lookup(node.op).constraints(types, node.attributes)
    for result in node.results:
        for size in result.shape:
            yield size, f"sizes of 0 or more in its result {shape_text(result.shape)}"
