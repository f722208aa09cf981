"""common_subexpression_elimination: what is computed twice from the same values is read twice.

Nodes are the same when op, operands (in any order where the op commutes), attributes and types
are; reductions also when one keeps the reduced axes with size 1 and the other does not. Random
nodes carry the number of their stream as an attribute, so two streams never merge. A scan that
another one extends is read from that one: see `scan_extensions`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import BodyPass, begin, has_trait, take_over
from frame.compiler.passes.scan_extensions import stand_ins
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value
from frame.ir.hashing import structural_hash
from frame.ops.record import Trait


@dataclass(frozen=True)
class CommonSubexpressionElimination:
    """Merges nodes that compute the same, in the graph and in each body."""

    name: ClassVar[str] = "common_subexpression_elimination"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with one node for each thing that is computed."""
        bodies = BodyPass(lambda body: self.run(body, context))
        known: dict[Hashable, tuple[Value, ...]] = {}
        extended = stand_ins(graph, bodies)
        with Rewriter(graph) as rewriter:
            for original in graph.nodes:
                node = extended.get(original, original)
                if has_trait(node, Trait.SIDE_EFFECT):
                    take_over(rewriter, node, bodies)
                    continue
                key = node_key(node, tuple(rewriter[operand] for operand in node.operands), bodies)
                found = known.get(key)
                if found is None:
                    found = known[key] = take_over(rewriter, node, bodies)
                    if node is original:
                        continue
                context.count("merged")
                begin(rewriter, original)
                for old, new in zip(original.results, found, strict=False):
                    rewriter.replace(old, _shaped(new, old))
            return rewriter.finish()


def _shaped(found: Value, wanted: Value) -> Value:
    return found if found.shape == wanted.shape else ops.reshape(found, wanted.shape)


def node_key(node: Node, operands: tuple[Value, ...], bodies: BodyPass | None = None) -> Hashable:
    """Return a key that is equal for nodes that compute the same from `operands`."""
    if {"axes", "keepdims"} <= node.attributes.keys() and has_trait(node, Trait.REDUCTION):
        # Whether the axes stay with size 1 is a matter of shape, not of what is computed.
        return node.op, operands, node.attributes["axes"]
    if len(operands) == 2 and has_trait(node, Trait.COMMUTATIVE):
        operands = tuple(sorted(operands, key=id))
    types = tuple(result.type for result in node.results)
    return node.op, operands, attributes_key(node.attributes, bodies), types


def attributes_key(attributes: Mapping[str, Any], bodies: BodyPass | None = None) -> Hashable:
    """Return a key of attributes that tells 0.0 from -0.0 and knows equal bodies."""
    return tuple((name, _key(attributes[name], bodies)) for name in sorted(attributes))


def _key(value: Any, bodies: BodyPass | None) -> Hashable:
    if isinstance(value, tuple):
        return tuple(_key(item, bodies) for item in value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Graph):
        return structural_hash(value if bodies is None else bodies(value))
    key: Hashable = value
    return key
