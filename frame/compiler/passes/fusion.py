"""The pass around the fusion algorithm of `operator_fusion`."""

from __future__ import annotations

from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import subgraphs
from frame.compiler.passes.operator_fusion import fuse
from frame.core.dataclass import dataclass
from frame.ir.graph import Graph


@dataclass(frozen=True)
class OperatorFusion:
    """Gathers nodes into groups, one schedule each. A target without anchors gets none."""

    name: ClassVar[str] = "operator_fusion"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph of groups; a graph that has groups already is left alone."""
        anchors = context.capabilities.anchors
        if not anchors or any(n.op == "group" for each in subgraphs(graph) for n in each.nodes):
            return graph
        fused = fuse(graph, anchors)
        context.count("groups", sum(node.op == "group" for node in fused.nodes))
        return fused
