"""Binding symbols: a graph for one set of sizes, for a target that can't keep shapes symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frame.compiler.passes.bodies import BodyPass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import bind_shape
from frame.ir.builder import on_device
from frame.ir.graph import Graph, GraphInput, Node, StateUpdate, Value, op_table
from frame.ops.binding import bind_attributes, check_binding


def bind_symbols(graph: Graph, bindings: Mapping[str, int]) -> Graph:
    """Return the graph with every symbol replaced by its value, bodies included.

    Args:
        graph: a graph before layout_assignment.
        bindings: a value for each symbol; others are ignored.

    Raises:
        InvalidArgumentError: a symbol has no value, a size is negative or absurd, or an op does
            not accept the sizes.
    """
    missing = [name for name in graph.symbols if name not in bindings]
    if missing:
        raise InvalidArgumentError(
            f"the graph {graph.name} has the symbols {', '.join(graph.symbols)}; {missing[0]} has "
            "no value"
        )
    if not graph.symbols:
        return graph
    check_binding(graph, bindings)
    return _Binder(bindings).graph(graph)


class _Binder:
    """Rebuilds graphs with one set of sizes."""

    def __init__(self, bindings: Mapping[str, int]) -> None:
        self._bindings = bindings
        self._bodies = BodyPass(self.graph)

    def graph(self, graph: Graph) -> Graph:
        """Return the bound graph."""
        values: dict[Value, Value] = {}
        inputs = tuple(self._input(entry, values) for entry in graph.inputs)
        nodes = tuple(self._node(node, values) for node in graph.nodes)
        return replace(
            graph,
            inputs=inputs,
            nodes=nodes,
            outputs=tuple(values[value] for value in graph.outputs),
            updates=tuple(StateUpdate(u.input_index, values[u.value]) for u in graph.updates),
        )

    def _input(self, entry: GraphInput, values: dict[Value, Value]) -> GraphInput:
        old = entry.value
        new = Value(replace(old.type, shape=bind_shape(old.shape, self._bindings)))
        values[old] = new
        return GraphInput(new, entry.role, entry.name)

    def _node(self, node: Node, values: dict[Value, Value]) -> Node:
        operands = tuple(values[operand] for operand in node.operands)
        bound = bind_attributes(node.attributes, self._bindings)
        attributes = {
            name: self._bodies(value) if isinstance(value, Graph) else value
            for name, value in bound.items()
        }
        types = tuple(operand.type for operand in operands)
        normal, inferred = op_table().lookup(node.op).check(types, attributes)
        new = Node(node.op, operands, normal, on_device(inferred, operands), node.origin)
        values.update(zip(node.results, new.results, strict=True))
        return new
