"""Autocast: the products of a graph in a low-precision float, everything delicate in float32.

What happens to an op stands in its record: `low` ops (products, convolutions) take their float32
operands in the low dtype and give it; `float32` ops (sums, exponentials, normalisations, losses)
take and give float32; the others follow their operands. Parameters stay float32 and are cast where
they are read, so an optimizer updates float32 master weights and gets float32 gradients. Source:
Micikevicius et al., "Mixed Precision Training", ICLR 2018.
"""

from __future__ import annotations

from frame import ops
from frame.core.dtypes import DType, float32
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import Graph, Node, Role, StateUpdate, Value
from frame.ops.record import Autocast
from frame.ops.registry import create_node, lookup

LOW = ("bfloat16", "float16")
_FIXED = frozenset({"cast", "constant", "uniform", "normal", "iota", "size"})
_VIEWS = frozenset({"reshape", "expand", "transpose", "squeeze", "unsqueeze", "slice"})


def autocast(graph: Graph, low: DType) -> Graph:
    """Return the graph in mixed precision; its inputs, outputs and updates keep their types.

    Bodies of control flow and of functions with a gradient of their own stay as they are.

    Raises:
        InvalidArgumentError: the dtype is not one of LOW.
    """
    if low.name not in LOW:
        raise InvalidArgumentError(f"autocast: expected one of {', '.join(LOW)}, received {low}")
    with _Autocast(graph, low) as cast:
        for node in graph.nodes:
            cast.take(node)
        cast.outputs.extend(map(cast.declared, graph.outputs))
        cast.output_names = list(graph.output_names)
        cast.updates.extend(
            StateUpdate(update.input_index, cast.declared(update.value)) for update in graph.updates
        )
        # a rewriter finishes with what the old outputs have become, which may be low
        return GraphBuilder.finish(cast)


class _Autocast(Rewriter):
    """A rewriter whose values may have another float dtype than those that they stand for."""

    def __init__(self, graph: Graph, low: DType) -> None:
        super().__init__(graph)
        self._low = low
        self._casts: dict[tuple[Value, DType], Value] = {}
        self._weak = {e.value for e in graph.inputs if e.role is Role.PARAMETER}

    def take(self, node: Node) -> None:
        """Append a node on operands of the dtypes that its record asks for."""
        self.at(node)
        self._note_weak(node)
        lowers = self._is_low(node)
        operands = tuple(
            self._as_low(each) if lowers else self.declared(each) for each in node.operands
        )
        if not lowers:
            results = self.append(node.on(operands))
        else:
            results = create_node(node.op, operands, dict(node.attributes))
        for old, new in zip(node.results, results, strict=True):
            self.replace(old, new)

    def declared(self, value: Value) -> Value:
        """Return what stands for a value, in the dtype of the value."""
        return self._cast(self[value], value.dtype)

    def _as_low(self, value: Value) -> Value:
        return self._cast(self[value], self._low) if value.dtype == float32 else self[value]

    def _cast(self, value: Value, dtype: DType) -> Value:
        if value.dtype == dtype:
            return value
        key = (value, dtype)
        if key not in self._casts:
            self._casts[key] = ops.cast(value, dtype)
        return self._casts[key]

    def _note_weak(self, node: Node) -> None:
        """Constants, parameters and views of them have no say in what an op follows."""
        views = node.op in _VIEWS and all(each in self._weak for each in node.operands)
        if node.op == "constant" or views:
            self._weak.update(node.results)

    def _is_low(self, node: Node) -> bool:
        """Whether a node runs in the low dtype."""
        floats = [each for each in node.operands if each.dtype == float32]
        rule = lookup(node.op).autocast
        fixed = node.op in _FIXED or any(True for _ in node.bodies)
        if fixed or not floats or rule is Autocast.FLOAT32:
            return False
        if any(each.dtype.is_float and each.dtype != float32 for each in node.operands):
            return False
        if rule is Autocast.LOW:
            return True
        strong = [each for each in floats if each not in self._weak]
        return bool(strong) and all(self[each].dtype == self._low for each in strong)
