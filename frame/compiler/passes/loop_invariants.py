"""Moves out of the body of a scan what is the same in every step.

What a body computes from its captures alone is computed once, before the scan, and captured. A
scan may run no step at all, so nothing that checks its operands is moved. What computes nothing (a
broadcast, a constant) stays in the body, and is copied out where something that moves reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import TRIVIAL, begin, has_trait, rewrite_scans
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, GraphInput, Node, Role, Value
from frame.ops.record import Trait

_STAYS = (Trait.CHECKED, Trait.SIDE_EFFECT, Trait.RANDOM, Trait.CONTROL_FLOW)


def hoist_invariants(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with the invariants of every scan before it, bodies first."""
    return rewrite_scans(
        graph,
        lambda body: hoist_invariants(body, context),
        lambda rewriter, node, changed: _hoist(rewriter, node, changed, context),
    )


def _hoist(
    rewriter: Rewriter, node: Node, changed: Mapping[str, Graph], context: PassContext
) -> bool:
    """Build a scan behind its invariants, if it has any; tell whether it had."""
    body: Graph = changed.get("body") or node.attributes["body"]
    moving = _invariants(body)
    if not moving:
        return False
    begin(rewriter, node)
    context.count("hoisted out of a scan", len(moving))
    outside = _Outside(rewriter, body, tuple(rewriter[operand] for operand in node.operands))
    for each in body.nodes:
        if each in moving:
            outside.build(each)
    read = {v for n in body.nodes if n not in moving for v in n.operands} | set(body.outputs)
    captured = [r for n in body.nodes if n in moving for r in n.results if r in read]
    operands = (*outside.operands, *(outside[value] for value in captured))
    inner = _with_captures(body, moving, captured)
    attributes = {**node.attributes, "body": inner}
    types = tuple(result.type for result in node.results)
    results = rewriter.append(Node("scan", operands, attributes, types, node.origin))
    for old, new in zip(node.results, results, strict=True):
        rewriter.replace(old, new)
    return True


def _invariants(body: Graph) -> set[Node]:
    """Return the nodes that depend on captures alone and compute something."""
    fixed = {entry.value for entry in body.inputs if entry.role is Role.CAPTURE}
    captures = set(fixed)
    moving: set[Node] = set()
    for node in body.nodes:
        if has_trait(node, *_STAYS) or not all(operand in fixed for operand in node.operands):
            continue
        fixed.update(node.results)
        # What depends on no capture is a constant, which costs nothing where it stands.
        depends = any(operand in captures for operand in node.operands)
        captures.update(node.results if depends else ())
        if depends and node.op not in TRIVIAL:
            moving.add(node)
    return moving


class _Outside:
    """What the values of a body are before the scan."""

    def __init__(self, rewriter: Rewriter, body: Graph, operands: tuple[Value, ...]) -> None:
        self.operands = operands
        self._rewriter = rewriter
        self._values = dict(zip(body.input_values, operands, strict=True))

    def __getitem__(self, value: Value) -> Value:
        found = self._values.get(value)
        if found is None and value.node is not None:
            self.build(value.node)
            found = self._values[value]
        return found if found is not None else value

    def build(self, node: Node) -> None:
        """Build a node before the scan, with the nodes that cost nothing below it."""
        operands = tuple(self[operand] for operand in node.operands)
        types = tuple(result.type for result in node.results)
        results = self._rewriter.add(node.op, operands, node.attributes, types)
        self._values.update(zip(node.results, results, strict=True))


def _with_captures(body: Graph, moving: set[Node], captured: list[Value]) -> Graph:
    """Return the body without the nodes that move; it captures what it still reads of them."""
    names = {entry.name for entry in body.inputs}
    new: list[GraphInput] = []
    with Rewriter(body) as rewriter:
        for value in captured:
            name = _free_name(names)
            entry = GraphInput(Value(value.type), Role.CAPTURE, name)
            rewriter.adopt(entry)
            rewriter.replace(value, entry.value)
            new.append(entry)
        for node in body.nodes:
            if node not in moving:
                rewriter.copy(node)
        outputs = tuple(rewriter[value] for value in body.outputs)
        inputs = (*body.inputs, *new)
        return replace(body, inputs=inputs, nodes=tuple(rewriter.nodes), outputs=outputs)


def _free_name(names: set[str]) -> str:
    number = len(names)
    while (name := f"invariant{number}") in names:
        number += 1
    names.add(name)
    return name
