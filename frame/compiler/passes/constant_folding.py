"""constant_folding: compute what does not depend on any input, with the references of the ops.

A result is rounded to its declared dtype. A constant of more than 64 KiB is made only when it is
no larger than what it is computed from, so that a graph never grows by an array that a loop makes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import (
    BodyPass,
    begin,
    byte_count,
    has_bodies,
    has_trait,
    is_static,
    take_over,
)
from frame.core.dataclass import dataclass
from frame.core.dtypes import int64
from frame.core.errors import FrameError
from frame.ir.builder import Rewriter
from frame.ir.graph import Constant, Graph, Node, Value
from frame.ops.interpreter import interpret
from frame.ops.record import Trait
from frame.ops.registry import create_node

# What a loop makes for nothing: a constant in its place would have to be loaded.
_FREE = frozenset({"constant", "expand", "iota"})
_NEVER = (Trait.RANDOM, Trait.CHECKED, Trait.SIDE_EFFECT, Trait.CONTROL_FLOW)


@dataclass(frozen=True)
class ConstantFolding:
    """Replaces nodes of constants by constants.

    `limit` is the size in bytes up to which a constant may be larger than what it is made from;
    `work` bounds the elements of an operand, and the products of a contraction.
    """

    name: ClassVar[str] = "constant_folding"
    limit: int = 64 * 1024
    work: int = 1 << 24

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with everything computed that is known now."""
        bodies = BodyPass(lambda body: self.run(body, context))
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                arrays = self._fold(rewriter, node)
                if arrays is None:
                    take_over(rewriter, node, bodies)
                    continue
                context.count("folded")
                begin(rewriter, node)
                for old, array in zip(node.results, arrays, strict=True):
                    (new,) = create_node("constant", (), {"value": Constant(array)})
                    rewriter.replace(old, new)
            return rewriter.finish()

    def _fold(self, rewriter: Rewriter, node: Node) -> list[np.ndarray] | None:
        """Return the results of a node, or None where they are not known or not wanted."""
        operands = tuple(rewriter[operand] for operand in node.operands)
        if node.op == "size":
            return _known_size(operands[0], node.attributes["axis"])
        if node.op in _FREE or not node.operands or not self._may_fold(node, operands):
            return None
        parts: list[Node] = []
        if not all(_collect(operand, parts) for operand in operands):
            return None
        return _evaluate(node, operands, parts)

    def _may_fold(self, node: Node, operands: tuple[Value, ...]) -> bool:
        if any(_root_is_unknown(operand) for operand in operands):
            return False
        if has_bodies(node) or has_trait(node, *_NEVER):
            return False
        values = (*operands, *node.results)
        if not all(is_static(value) and not value.dtype.storage_only for value in values):
            return False
        return self._is_small(node, operands) and self._is_quick(node, operands)

    def _is_small(self, node: Node, operands: tuple[Value, ...]) -> bool:
        made = sum(byte_count(result) or 0 for result in node.results)
        return made <= self.limit or made <= sum(_stored_bytes(operand) for operand in operands)

    def _is_quick(self, node: Node, operands: tuple[Value, ...]) -> bool:
        elements = [(byte_count(o) or 0) // o.dtype.itemsize for o in operands]
        if has_trait(node, Trait.CONTRACTION):
            return math.prod(elements) <= self.work
        return max(elements) <= self.work


def _known_size(operand: Value, axis: int) -> list[np.ndarray] | None:
    size = operand.shape[axis]
    return [np.asarray(size, int64.numpy)] if isinstance(size, int) else None


def _root_is_unknown(value: Value) -> bool:
    return value.node is None or value.node.op not in _FREE


def _collect(value: Value, parts: list[Node]) -> bool:
    """List the nodes that make a value of constants alone; return whether there is nothing else."""
    node = value.node
    if node is None or node.op not in _FREE or not is_static(value):
        return False
    if not all(_collect(operand, parts) for operand in node.operands):
        return False
    if node not in parts:
        parts.append(node)
    return True


def _stored_bytes(value: Value) -> int:
    """Return the bytes that a value takes in the graph: an expanded scalar takes those of one."""
    node = value.node
    if node is None or node.op == "iota":
        return 0
    if node.op == "expand":
        return _stored_bytes(node.operands[0])
    return byte_count(value) or 0


def _evaluate(
    node: Node, operands: tuple[Value, ...], parts: list[Node]
) -> list[np.ndarray] | None:
    types = tuple(result.type for result in node.results)
    copy = Node(node.op, operands, node.attributes, types, node.origin)
    graph = Graph((), (*parts, copy), copy.results, (), "constants")
    try:
        return interpret(graph, (), precision="native")
    except FrameError:
        return None  # the op refuses its operands: the run will say so, and where
