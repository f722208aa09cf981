"""backend_lowering: check that every node has an owner, and freeze what a backend compiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import subgraphs
from frame.compiler.passes.memory_planning import PRODUCED as PLAN
from frame.compiler.passes.operator_fusion import CONTROL, anchor_of, is_alias
from frame.core.dataclass import dataclass
from frame.core.errors import UnimplementedError
from frame.hal.interfaces import Capabilities, Piece, Port, Signature
from frame.ir.graph import Graph, Node, Value
from frame.ir.printer import print_node
from frame.ops.binding import constraints

PRODUCED = "piece"
"""The name under which the pass leaves the `Piece` in the context."""

CONSTRAINTS = "constraints"
"""The name under which the context holds what the symbols of the declared graph must meet."""


@dataclass(frozen=True)
class BackendLowering:
    """Freezes a `Piece`: the graph, its plan and its signature."""

    name: ClassVar[str] = "backend_lowering"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return `graph`, and leave its piece in `context.produced`.

        Raises:
            UnimplementedError: the target can't run a node, or has no such dtype; `nodes` holds
                what it can't run, a group's nodes as they stand in its body.
        """
        _check_owners(graph, context.capabilities)
        plan = context.produced.get(PLAN)
        signature = signature_of(graph)
        if CONSTRAINTS in context.produced:
            signature = replace(signature, constraints=context.produced[CONSTRAINTS])
        context.produced[PRODUCED] = Piece(graph, plan, signature)
        return graph


def signature_of(graph: Graph) -> Signature:
    """Return the inputs, outputs, symbols and overwritten inputs of a graph."""
    names = graph.output_names or tuple(f"output{i}" for i in range(len(graph.outputs)))
    return Signature(
        tuple(Port(entry.name, entry.value.type, entry.role) for entry in graph.inputs),
        tuple(Port(name, v.type) for name, v in zip(names, graph.outputs, strict=True)),
        graph.symbols,
        tuple(update.input_index for update in graph.updates),
        constraints(graph),
    )


def _check_owners(graph: Graph, capabilities: Capabilities) -> None:
    check = _group_reason if capabilities.anchors else _native_reason
    refused: dict[Node, str] = {}
    for current in subgraphs(graph):
        for node in current.nodes:
            for inner, reason in check(node, capabilities):
                refused.setdefault(inner, reason)
    if refused:
        node, reason = next(iter(refused.items()))
        location = str(graph.location(node))
        where = f" ({location})" if location else ""
        raise UnimplementedError(f"{print_node(node)}{where}: {reason}", nodes=tuple(refused))


def _group_reason(node: Node, capabilities: Capabilities) -> Iterator[tuple[Node, str]]:
    """Yield what a target of groups can't run of a node: each needs a group, or to be none."""
    if node.op == "group":
        anchor, body = node.attributes["anchor"], node.attributes["body"]
        if anchor not in capabilities.anchors:
            of_kind = (inner for inner in body.nodes if anchor_of(inner) == anchor)
            yield next(of_kind, body.nodes[0]), f"the target has no schedule for {anchor!r}"
        for inner in body.nodes:
            yield from _native_reason(inner, capabilities)
    elif node.op not in CONTROL and node.op != "constant" and not is_alias(node):
        yield node, _why_alone(anchor_of(node), capabilities)
    else:
        yield from _dtype_reason(node, capabilities)


def _why_alone(anchor: str, capabilities: Capabilities) -> str:
    if anchor not in capabilities.anchors:
        return f"the target has no schedule for {anchor!r}"
    return "the node is in no group: the pass operator_fusion must come before"


def _native_reason(node: Node, capabilities: Capabilities) -> Iterator[tuple[Node, str]]:
    known = capabilities.native | capabilities.composites
    if known and node.op not in known:
        yield node, f"the target does not run {node.op}"
    yield from _dtype_reason(node, capabilities)


def _dtype_reason(node: Node, capabilities: Capabilities) -> Iterator[tuple[Node, str]]:
    if not capabilities.dtypes:
        return
    values: tuple[Value, ...] = (*node.operands, *node.results)
    missing = next((v.dtype for v in values if v.dtype.name not in capabilities.dtypes), None)
    if missing is not None:
        yield node, f"the target does not compute with {missing}"
