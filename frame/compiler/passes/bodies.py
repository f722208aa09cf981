"""What passes share: going into bodies, and what they ask of nodes and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from frame.core.shapes import Dim, numel
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Role, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

GraphFunction = Callable[[Graph], Graph]

NO_ORIGIN = -1
"""The origin of nodes that a pass makes for a node whose place of declaration is not known."""


class BodyPass:
    """Applies a function to bodies, to a body that stands in several nodes once."""

    def __init__(self, function: GraphFunction) -> None:
        self._function = function
        self._done: dict[int, tuple[Graph, Graph]] = {}

    def __call__(self, body: Graph) -> Graph:
        """Return what the function makes of a body."""
        # The old body is kept too: its id must not be given to another graph meanwhile.
        found = self._done.get(id(body))
        if found is None:
            found = self._done[id(body)] = (body, self._function(body))
        return found[1]

    def changed(self, node: Node) -> dict[str, Graph]:
        """Return the bodies of a node that the function changes, by attribute name."""
        if node.op == "group" or not has_bodies(node):
            return {}
        pairs = ((name, body, self(body)) for name, body in node.bodies)
        return {name: new for name, body, new in pairs if new is not body}


def take_over(rewriter: Rewriter, node: Node, bodies: BodyPass) -> tuple[Value, ...]:
    """Copy a node, with its bodies passed through `bodies`."""
    changed = bodies.changed(node) if has_bodies(node) else {}
    return rewriter.retype(node, **changed) if changed else rewriter.copy(node)


def has_bodies(node: Node) -> bool:
    """Tell whether a node has a body."""
    # A loop, not any(): this is asked of every node in every pass.
    for value in node.attributes.values():  # noqa: SIM110
        if isinstance(value, Graph):
            return True
    return False


def begin(rewriter: Rewriter, node: Node) -> None:
    """Give what is built from here on the origin of `node`, even if it has none."""
    rewriter.origin = NO_ORIGIN if node.origin is None else node.origin


def has_trait(node: Node, *traits: Trait) -> bool:
    """Tell whether the op of a node has one of some traits."""
    own = lookup(node.op).traits
    return any(trait in own for trait in traits)


def subgraphs(graph: Graph, groups: bool = False) -> Iterator[Graph]:
    """Iterate over a graph and its bodies, those of control flow and, if asked for, of groups."""
    pending, seen = [graph], {id(graph)}
    while pending:
        current = pending.pop()
        yield current
        for node in current.nodes:
            if node.op == "group" and not groups:
                continue
            for _, body in node.bodies:
                if id(body) not in seen:
                    seen.add(id(body))
                    pending.append(body)


def constant_array(value: Value) -> np.ndarray | None:
    """Return the array of a constant, or None for any other value."""
    node = value.node
    if node is None or node.op != "constant":
        return None
    array: np.ndarray = node.attributes["value"].array
    return array


def uniform_element(value: Value) -> np.generic | None:
    """Return the element of a constant of one element, seen through broadcasts and reshapes."""
    node = value.node
    while node is not None and node.op in ("expand", "reshape"):
        value = node.operands[0]
        node = value.node
    array = constant_array(value)
    return array.reshape(-1)[0] if array is not None and array.size == 1 else None


def is_static(value: Value) -> bool:
    """Tell whether no size of a value is symbolic."""
    return not any(isinstance(size, Dim) for size in value.shape)


def byte_count(value: Value) -> int | None:
    """Return the bytes of a row-major value, or None where its shape is symbolic."""
    count = numel(value.shape)
    return count * value.dtype.itemsize if isinstance(count, int) else None


# Ops that compute nothing: they stay with their reader, and are worth no memory of their own.
TRIVIAL = frozenset({"constant", "reshape", "expand", "iota", "stop_gradient"})


def updates_weights(graph: Graph) -> bool:
    """Tell whether a graph updates a parameter or buffer of its own."""
    weights = (Role.PARAMETER, Role.BUFFER)
    return any(graph.inputs[update.input_index].role in weights for update in graph.updates)


def constant_for_a_model(graph: Graph) -> set[Value]:
    """Return the values that depend on parameters, buffers and constants alone.

    None do in a graph that updates its weights: what was derived from them would be stale after
    every run.
    """
    if updates_weights(graph):
        return set()
    roles = (Role.PARAMETER, Role.BUFFER)
    found = {entry.value for entry in graph.inputs if entry.role in roles}
    for node in graph.nodes:
        if all(operand in found for operand in node.operands) and not has_trait(
            node, Trait.SIDE_EFFECT
        ):
            found.update(result for result in node.results if is_static(result))
    return found


def rewrite_scans(
    graph: Graph,
    whole: Callable[[Graph], Graph],
    build: Callable[[Rewriter, Node, Mapping[str, Graph]], bool],
) -> Graph:
    """Return the graph with its scans built anew, bodies first.

    `whole` does the same to a body; `build` takes a scan with its changed bodies and tells whether
    it has built it: what it leaves is copied, with these bodies.
    """
    if not any(has_bodies(node) for node in graph.nodes):
        return graph
    bodies = BodyPass(whole)
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            changed = bodies.changed(node) if has_bodies(node) else {}
            if node.op == "scan" and build(rewriter, node, changed):
                continue
            if changed:
                rewriter.retype(node, **changed)
            else:
                rewriter.copy(node)
        return rewriter.finish()
