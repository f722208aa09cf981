"""memory_planning: give every value, workspace and body of a fused graph its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import has_bodies, subgraphs
from frame.compiler.passes.operator_fusion import is_alias
from frame.core.dataclass import dataclass
from frame.core.shapes import Size
from frame.hal.interfaces import GroupInfo
from frame.ir.check_plan import check_plan
from frame.ir.graph import Graph, Node, Value
from frame.ir.memory import MemoryPlan
from frame.ir.plan import plan_memory

PRODUCED = "plan"
"""The name under which the pass leaves the plan in the context."""

# What symbols are bound to when a plan is replayed: sizes that differ, none a power of two.
_CHECK_SIZE = 7


@dataclass(frozen=True)
class MemoryPlanning:
    """Plans the memory and leaves the graph as it is.

    With `check` the plan is replayed and proved right for one binding of the symbols.
    """

    name: ClassVar[str] = "memory_planning"
    check: bool = True

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return `graph`, and leave its plan in `context.produced`; None without anchors.

        Raises:
            InternalError: the plan is wrong.
        """
        context.produced[PRODUCED] = self._plan(graph, context)
        return graph

    def _plan(self, graph: Graph, context: PassContext) -> MemoryPlan | None:
        if not context.capabilities.anchors:
            return None
        infos = group_infos(graph, context)
        workspaces = {n: info.workspaces for n, info in infos.items() if info.workspaces}
        overwritable = {n: info.overwritable for n, info in infos.items() if info.overwritable}
        views = alias_views(graph)
        plan = plan_memory(graph, workspaces, overwritable, views)
        if self.check:
            bindings = {name: _CHECK_SIZE + 4 * i for i, name in enumerate(_all_symbols(graph))}
            check_plan(graph, plan, workspaces, overwritable, views, bindings)
        return plan


def group_infos(graph: Graph, context: PassContext) -> Mapping[Node, GroupInfo]:
    """Return what the target says of every group and control-flow node, those in bodies too."""
    return {
        node: context.group_info(node, context.target)
        for current in subgraphs(graph)
        for node in current.nodes
        if node.op == "group" or has_bodies(node)
    }


def alias_views(graph: Graph) -> Mapping[Value, Value | tuple[Value, Size]]:
    """Return the results that are no more than another look at an operand."""
    return {
        node.results[0]: node.operands[0]
        for current in subgraphs(graph)
        for node in current.nodes
        if is_alias(node)
    }


def _all_symbols(graph: Graph) -> tuple[str, ...]:
    found = (name for current in subgraphs(graph) for name in current.symbols)
    return tuple(dict.fromkeys((*graph.symbols, *found)))
