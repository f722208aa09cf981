"""layout_assignment: store weights in the order in which the schedules read them.

A contraction's group is shown to the target on its own; where the target asks for a layout of an
operand that is fixed for the model, a `relayout` is put before it, which then runs in the load
program. Other operands, such as the weights of a graph that updates them, get one where it pays
though it runs each time. Everything else stays row-major.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import begin, constant_for_a_model, has_trait
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.compiler.passes.loop_invariants import hoist_invariants
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import ROW_MAJOR, Attribute, Graph, GraphInput, Layout, Node, Role, Value
from frame.ops.anchors import ANCHORS
from frame.ops.record import Trait
from frame.ops.registry import create_node

_OFTEN = 8  # steps of a scan for which packing before it pays


@dataclass(frozen=True)
class LayoutAssignment:
    """Packs the weights of contractions as the target prefers."""

    name: ClassVar[str] = "layout_assignment"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with relayouts before the weights that are worth one."""
        if not context.capabilities.anchors:
            return graph
        assigned = _assign(graph, constant_for_a_model(graph), context)
        if assigned is graph or not any(node.op == "scan" for node in graph.nodes):
            return assigned
        # A weight that the body of a scan reads is packed before the scan, not in every step, and
        # the scan no longer captures it as it was.
        return DeadNodeElimination().run(hoist_invariants(assigned, context), context)


def assign_some(
    graph: Graph, nodes: Collection[Node], context: PassContext
) -> tuple[Graph, dict[Node, Node]]:
    """Pack the weights that some nodes of a graph read, which has several targets.

    Returns:
        the new graph, and for each of its nodes the one of `graph` that it was made for.
    """
    if not context.capabilities.anchors:
        return graph, {node: node for node in graph.nodes}
    fixed, packed = constant_for_a_model(graph), _Packed(context)
    made_for: dict[Node, Node] = {}
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            start = len(rewriter.nodes)
            if node in nodes:
                _assign_node(rewriter, node, fixed, packed)
            else:
                rewriter.copy(node)
            made_for.update(dict.fromkeys(rewriter.nodes[start:], node))
        return rewriter.finish(), made_for


@dataclass(frozen=True, slots=True)
class _Packed:
    """What has been packed so far in one graph."""

    context: PassContext
    values: dict[tuple[Value, Layout], Value] = field(default_factory=dict)


def _assign(graph: Graph, fixed: set[Value], context: PassContext) -> Graph:
    packed = _Packed(context)
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            _assign_node(rewriter, node, fixed, packed)
        return rewriter.finish()


def _assign_node(rewriter: Rewriter, node: Node, fixed: set[Value], packed: _Packed) -> None:
    if node.op == "scan":
        _assign_body(rewriter, node, fixed, packed.context)
        return
    wanted = _wanted(node, fixed, packed.context)
    if not wanted:
        rewriter.copy(node)
        return
    begin(rewriter, node)
    operands = [rewriter[operand] for operand in node.operands]
    for position, layout in wanted.items():
        operands[position] = _relayout(operands[position], layout, packed)
    results = create_node(node.op, tuple(operands), node.attributes)
    for old, new in zip(node.results, results, strict=True):
        rewriter.replace(old, new)


def _assign_body(rewriter: Rewriter, node: Node, fixed: set[Value], context: PassContext) -> None:
    body: Graph = node.attributes["body"]
    length = node.attributes["length"]
    often = not isinstance(length, int) or length >= _OFTEN
    inner = {
        entry.value
        for entry, operand in zip(body.inputs, node.operands, strict=True)
        if entry.role is Role.CAPTURE and (often or operand in fixed)
    }
    assigned = _assign(body, inner, context) if inner else body
    if assigned is body:
        rewriter.copy(node)
    else:
        rewriter.retype(node, body=assigned)


def _wanted(node: Node, fixed: set[Value], context: PassContext) -> dict[int, Layout]:
    """Return the layouts that the target asks for, by position of the operand."""
    if not has_trait(node, Trait.CONTRACTION):
        return {}
    if not any(operand.type.layout == ROW_MAJOR for operand in node.operands):
        return {}
    group = probe_group(node)
    info = context.group_info(group, context.target)
    layouts: Mapping[int, Layout] = info.layouts
    asked = {
        group.operands[capture]: layout
        for capture, layout in layouts.items()
        if group.operands[capture] in fixed or capture in info.repeated
    }
    return {
        position: asked[operand]
        for position, operand in enumerate(node.operands)
        if operand in asked and operand.type.layout == ROW_MAJOR != asked[operand]
    }


def _relayout(value: Value, layout: Layout, packed: _Packed) -> Value:
    found = packed.values.get((value, layout))
    if found is None:
        packed.context.count("relayout")
        blocks = tuple(part for block in layout.blocks for part in block)
        attributes: dict[str, Attribute] = {"permutation": layout.permutation, "blocks": blocks}
        if layout.winograd:
            attributes["winograd"] = layout.winograd
        (found,) = create_node("relayout", (value,), attributes)
        packed.values[value, layout] = found
    return found


def probe_group(node: Node) -> Node:
    """Return a group of one node, not part of any graph, to ask a target about."""
    captures = tuple(dict.fromkeys(node.operands))
    inner = {value: Value(value.type) for value in captures}
    inputs = tuple(
        GraphInput(inner[value], Role.CAPTURE, f"capture{i}") for i, value in enumerate(captures)
    )
    types = tuple(result.type for result in node.results)
    copy = Node(node.op, tuple(inner[v] for v in node.operands), node.attributes, types)
    body = Graph(inputs, (copy,), copy.results, (), "group")
    attributes = {"anchor": ANCHORS.get(node.op, node.op), "body": body}
    return Node("group", captures, attributes, types, node.origin)
