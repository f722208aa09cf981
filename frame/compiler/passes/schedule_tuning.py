"""schedule_tuning: give groups the variants of their schedules that were measured to be faster.

It is no standard pass: `frame.compile(..., tune=True)` puts it behind fusion. Only groups of the
top graph with known sizes are asked about; those in bodies keep their default schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node

Choose = Callable[[Graph, Sequence[Node]], Mapping[Node, str]]


@dataclass(frozen=True)
class ScheduleTuning:
    """Sets the attribute `variant` of groups to what `choose` returns for them."""

    name: ClassVar[str] = "schedule_tuning"
    choose: Choose

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with variants; groups that `choose` leaves out keep the default."""
        groups = [node for node in graph.nodes if node.op == "group"]
        chosen = self.choose(graph, groups)
        context.count("tuned", sum(map(bool, chosen.values())))
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                if chosen.get(node):
                    rewriter.retype(node, variant=chosen[node])
                else:
                    rewriter.copy(node)
            return rewriter.finish()
