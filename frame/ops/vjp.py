"""Reverse-mode differentiation: the one walk that every gradient of frame is made of.

`pullback` goes through nodes in reverse, asks the record of each op for its gradient, and sums what
arrives at a value from several readers. It appends to the active builder and leaves the nodes that
it differentiates alone, so its result can be differentiated again.

Source: Linnainmaa 1976, in the form of a vector-Jacobian product per op (Griewank, Walther,
"Evaluating Derivatives", SIAM 2008, chapter 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.shapes import shape_text
from frame.ir.builder import GraphBuilder, current_builder
from frame.ir.graph import Attribute, Constant, Graph, Node, TensorType, Value
from frame.ops.record import Decomposition, Gradient, GradientContext, NoGradient
from frame.ops.registry import create_node, lookup


def filled(type_: TensorType, number: float) -> Value:
    """Return a value of `type_` whose elements all are `number`: an expanded scalar constant."""
    scalar = Constant(np.asarray(number, type_.dtype.numpy))
    (value,) = create_node("constant", (), {"value": scalar})
    if type_.shape == ():
        return value
    return create_node("expand", (value,), {"shape": type_.shape})[0]


def zeros_like(value: Value) -> Value:
    """Return zeros of the type of `value`."""
    return filled(value.type, 0)


def is_zeros(value: Value) -> bool:
    """Tell whether `value` is known to be all zeros, as the cotangent of an unused result is."""
    node = value.node
    if node is not None and node.op == "expand":
        node = node.operands[0].node
    return node is not None and node.op == "constant" and not node.attributes["value"].array.any()


def inline(graph: Graph, inputs: Sequence[Value]) -> dict[Value, Value]:
    """Append a copy of the nodes of `graph` to the active builder, fed by `inputs`.

    Returns:
        What each value of `graph` has become.

    Raises:
        InvalidArgumentError: the number or the types of `inputs` differ from the graph's.
    """
    _check_inputs(graph, inputs)
    builder = current_builder()
    values = dict(zip(graph.input_values, inputs, strict=True))
    for node in graph.nodes:
        operands = tuple(values[operand] for operand in node.operands)
        types = tuple(result.type for result in node.results)
        results = builder.add(node.op, operands, node.attributes, types)
        values.update(zip(node.results, results, strict=True))
    return values


def _check_inputs(graph: Graph, inputs: Sequence[Value]) -> None:
    expected = tuple(value.type for value in graph.input_values)
    received = tuple(value.type for value in inputs)
    if expected != received:
        raise InvalidArgumentError(
            f"the graph {graph.name} takes ({', '.join(map(str, expected))}), "
            f"received ({', '.join(map(str, received))})"
        )


def vjp(
    graph: Graph,
    inputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    wrt: Sequence[int],
) -> tuple[Value, ...]:
    """Append `graph` and its backward walk to the active builder; return the gradients.

    Args:
        graph: the function to differentiate.
        inputs: one value of the active builder for each graph input.
        cotangents: one for each graph output, of its type; None where nothing flows back.
        wrt: positions of the inputs whose gradients are wanted.

    Raises:
        InvalidArgumentError: counts or types don't fit, or an input of `wrt` isn't a float.
        UnimplementedError: an op on the way has no gradient.
    """
    values = inline(graph, inputs)
    if len(cotangents) != len(graph.outputs):
        raise InvalidArgumentError(
            f"the graph {graph.name} has {len(graph.outputs)} outputs and needs as many "
            f"cotangents, received {len(cotangents)}"
        )
    seeds = [
        (values[output], cotangent)
        for output, cotangent in zip(graph.outputs, cotangents, strict=True)
        if cotangent is not None
    ]
    nodes = {values[r].node: None for node in graph.nodes for r in node.results}
    return pullback([n for n in nodes if n is not None], seeds, [inputs[i] for i in wrt])


def pullback(
    nodes: Sequence[Node],
    seeds: Iterable[tuple[Value, Value]],
    wrt: Sequence[Value],
    values: Mapping[Value, Value] | None = None,
) -> tuple[Value, ...]:
    """Return the gradients of `sum(value * cotangent for value, cotangent in seeds)`.

    Args:
        nodes: the nodes to differentiate, in topological order. Their values must be visible in
            the active builder, whose location table their origins refer to.
        seeds: (value, cotangent) pairs; several for one value are summed.
        wrt: the values whose gradients are wanted: inputs, or results of `nodes`.
        values: what to read in place of a value of `nodes` (a copy that is cheaper to reach).

    Returns:
        One value for each of `wrt`, of its type; zeros where nothing connects it to a seed.

    Raises:
        InvalidArgumentError: a seed or the gradient of a user's op has a wrong type, or an entry
            of `wrt` is not a float.
        UnimplementedError: an op on the way has no gradient; `nodes` of the error holds it.
    """
    for value in wrt:
        _check_float(value)
    walk = _Walk(nodes, wrt, values or {})
    for value, cotangent in seeds:
        _check_type("cotangent", value, cotangent)
        walk.add(value, cotangent)
    for node in reversed(nodes):
        walk.visit(node)
    return tuple(walk.total(value) for value in wrt)


def _check_float(value: Value) -> None:
    if not value.dtype.is_float:
        raise InvalidArgumentError(
            f"a gradient is defined for float values only, received {value!r}"
        )


def _check_type(what: str, value: Value, received: Value) -> None:
    if (received.dtype, received.shape) != (value.dtype, value.shape):
        raise InvalidArgumentError(
            f"the {what} of a {value.dtype} value of shape {shape_text(value.shape)} must have "
            f"this dtype and shape, received {received.dtype} {shape_text(received.shape)}"
        )


class _Walk:
    """The state of one backward walk: which values matter, and what has arrived at each."""

    def __init__(
        self, nodes: Sequence[Node], wrt: Sequence[Value], values: Mapping[Value, Value]
    ) -> None:
        self._active = _dependents(nodes, wrt)
        self._values = values
        self._arrived: dict[Value, Value] = {}

    def add(self, value: Value, cotangent: Value) -> None:
        """Let `cotangent` flow into `value`."""
        if value not in self._active:
            return
        known = self._arrived.get(value)
        if known is not None:
            (cotangent,) = create_node("add", (known, cotangent), {})
        self._arrived[value] = cotangent

    def total(self, value: Value) -> Value:
        """Return the sum of what has arrived at `value`; zeros where nothing has."""
        found = self._arrived.get(value)
        return zeros_like(self._read(value)) if found is None else found

    def visit(self, node: Node) -> None:
        """Distribute what has arrived at the results of `node` to its operands."""
        if not any(result in self._arrived for result in node.results):
            return
        needed = tuple(o in self._active and o.dtype.is_float for o in node.operands)
        if not any(needed):
            return
        gradient = _gradient_of(node)
        with _origin_of(node):
            context = GradientContext(
                tuple(self._read(operand) for operand in node.operands),
                tuple(self._read(result) for result in node.results),
                tuple(self.total(result) for result in node.results),
                node.attributes,
                needed,
            )
            self._distribute(node, gradient(context), needed)

    def _read(self, value: Value) -> Value:
        return self._values.get(value, value)

    def _distribute(
        self, node: Node, gradients: Sequence[Value | None], needed: tuple[bool, ...]
    ) -> None:
        if len(gradients) != len(node.operands):
            raise InvalidArgumentError(
                f"the gradient of {node.op} must return one entry for each of its "
                f"{len(node.operands)} operands, received {len(gradients)}"
            )
        for operand, found, wanted in zip(node.operands, gradients, needed, strict=True):
            if wanted and found is not None:
                _check_type(f"gradient that {node.op} sends to", operand, found)
                self.add(operand, found)


def _dependents(nodes: Sequence[Node], wrt: Sequence[Value]) -> set[Value]:
    """Return the float values that depend on `wrt` through ops that pass gradients on."""
    active = set(wrt)
    for node in nodes:
        if any(operand in active for operand in node.operands) and not _is_barrier(node):
            active.update(result for result in node.results if result.dtype.is_float)
    return active


def _is_barrier(node: Node) -> bool:
    gradient = lookup(node.op).gradient
    return isinstance(gradient, NoGradient) and gradient.zero


def _gradient_of(node: Node) -> Gradient:
    gradient = lookup(node.op).gradient
    if not isinstance(gradient, NoGradient):
        return gradient
    raise UnimplementedError(
        f"{node.op} has no gradient: {gradient.reason}; frame.ops.stop_gradient keeps the walk "
        "away from it",
        nodes=(node,),
    )


@contextmanager
def _origin_of(node: Node) -> Iterator[GraphBuilder]:
    """Give what is built inside the block the origin of `node`."""
    builder = current_builder()
    before, builder.origin = builder.origin, node.origin
    try:
        yield builder
    finally:
        builder.origin = before


def composite_gradient(decomposition: Decomposition) -> Gradient:
    """Return the gradient of an op that is the gradient of its decomposition.

    The forward part is built again beside the backward part; common subexpression elimination
    merges it with the decomposed forward op.
    """

    def gradient(context: GradientContext) -> Sequence[Value | None]:
        nodes, results = _rebuild(decomposition, context.operands, context.attributes)
        seeds = list(zip(results, context.cotangents, strict=True))
        # An operand that stands at two positions gets its whole gradient at the first one.
        first = {o: i for i, o in reversed(list(enumerate(context.operands))) if context.needed[i]}
        found = dict(zip(first.values(), pullback(nodes, seeds, tuple(first)), strict=True))
        return [found.get(position) for position in range(len(context.operands))]

    return gradient


def _rebuild(
    decomposition: Decomposition,
    operands: tuple[Value, ...],
    attributes: Mapping[str, Attribute],
) -> tuple[list[Node], tuple[Value, ...]]:
    """Build a decomposition and return the nodes that this appended, with its results."""
    builder = current_builder()
    before = len(builder.nodes)
    results = decomposition(operands, attributes)
    return builder.nodes[before:], results if isinstance(results, tuple) else (results,)
