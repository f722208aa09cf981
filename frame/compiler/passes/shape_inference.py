"""shape_inference: every node has the types that its op infers from its operands.

A graph from a builder or a parser has them already. A custom pass that changed operands without
asking the ops, or that made a shape more precise, is put right here.
"""

from __future__ import annotations

from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import BodyPass, has_bodies
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node
from frame.ir.schema import check_node


@dataclass(frozen=True)
class ShapeInference:
    """Infers the types of all nodes again, and lets what became more precise flow on."""

    name: ClassVar[str] = "shape_inference"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with the types that the ops infer.

        Raises:
            InvalidArgumentError: an op does not take its operands.
        """
        bodies = BodyPass(lambda body: self.run(body, context))
        if all(_fits(node) and not bodies.changed(node) for node in graph.nodes):
            return graph
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                _infer(rewriter, node, bodies, context)
            return rewriter.finish()


def _infer(rewriter: Rewriter, node: Node, bodies: BodyPass, context: PassContext) -> None:
    changed = bodies.changed(node) if has_bodies(node) else {}
    same = all(rewriter[operand] is operand for operand in node.operands)
    if same and not changed and _fits(node):
        rewriter.copy(node)
        return
    context.count("inferred")
    rewriter.retype(node, **changed)


def _fits(node: Node) -> bool:
    try:
        check_node(node)
    except InvalidArgumentError:
        return False
    return True
