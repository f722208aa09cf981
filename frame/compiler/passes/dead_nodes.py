"""dead_node_elimination: drop what no output, update or side effect depends on.

Bodies lose dead nodes too, and control flow the results that nobody reads with what made them, and
the captures that its bodies no longer read. Inputs of the graph itself stay: they are its
signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import has_trait
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value, op_table
from frame.ops.record import Trait


@dataclass(frozen=True)
class DeadNodeElimination:
    """Drops nodes, and results, elements and captures of control flow, that nothing needs."""

    name: ClassVar[str] = "dead_node_elimination"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph without what nothing needs."""
        live = _live_values(graph)
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                if not _is_live(node, live):
                    context.count("dead node")
                    continue
                prune = _PRUNERS.get(node.op)
                if prune is None:
                    rewriter.copy(node)
                else:
                    self._control(rewriter, node, live, prune, context)
            return rewriter.finish()

    def _control(
        self,
        rewriter: Rewriter,
        node: Node,
        live: set[Value],
        prune: Callable[[Node, set[Value]], _Pruned],
        context: PassContext,
    ) -> None:
        pruned = prune(node, live)
        attributes = {
            name: self.run(value, context) if isinstance(value, Graph) else value
            for name, value in pruned.attributes.items()
        }
        pruned = _drop_unread(node.op, replace(pruned, attributes=attributes))
        if pruned.is_same(node):
            rewriter.copy(node)
            return
        context.count("pruned control flow")
        operands = tuple(rewriter[operand] for operand in pruned.operands)
        normal, types = (
            op_table()
            .lookup(node.op)
            .check(tuple(operand.type for operand in operands), pruned.attributes)
        )
        results = rewriter.append(Node(node.op, operands, normal, types, node.origin))
        for old, new in zip(pruned.results, results, strict=True):
            rewriter.replace(old, new)


def _live_values(graph: Graph) -> set[Value]:
    live = set(graph.returned)
    for node in reversed(graph.nodes):
        if _is_live(node, live):
            live.update(node.operands)
    return live


def _is_live(node: Node, live: set[Value]) -> bool:
    return any(result in live for result in node.results) or has_trait(node, Trait.SIDE_EFFECT)


@dataclass(frozen=True)
class _Pruned:
    """A control-flow node that is about to lose operands and results."""

    operands: tuple[Value, ...]
    attributes: Mapping[str, Any]
    results: tuple[Value, ...]

    def is_same(self, node: Node) -> bool:
        """Whether it is the node still."""
        return (
            len(self.operands) == len(node.operands)
            and len(self.results) == len(node.results)
            and all(self.attributes[name] is node.attributes[name] for name, _ in node.bodies)
        )


def _keep_outputs(body: Graph, keep: Sequence[int]) -> Graph:
    if len(keep) == len(body.outputs):
        return body
    names = tuple(body.output_names[i] for i in keep) if body.output_names else ()
    return replace(body, outputs=tuple(body.outputs[i] for i in keep), output_names=names)


def _prune_scan(node: Node, live: set[Value]) -> _Pruned:
    """Drop the ys that nobody reads; carries stay, the next step reads them."""
    carries = node.attributes["carries"]
    keep = [i for i, value in enumerate(node.results) if i < carries or value in live]
    body = _keep_outputs(node.attributes["body"], keep)
    results = tuple(node.results[i] for i in keep)
    return _Pruned(node.operands, {**node.attributes, "body": body}, results)


def _prune_cond(node: Node, live: set[Value]) -> _Pruned:
    keep = [i for i, value in enumerate(node.results) if value in live]
    attributes = {name: _keep_outputs(body, keep) for name, body in node.bodies}
    return _Pruned(node.operands, attributes, tuple(node.results[i] for i in keep))


def _prune_while(node: Node, live: set[Value]) -> _Pruned:
    return _Pruned(node.operands, dict(node.attributes), node.results)


_PRUNERS: Mapping[str, Callable[[Node, set[Value]], _Pruned]] = {
    "scan": _prune_scan,
    "cond": _prune_cond,
    "while": _prune_while,
}


def _drop_unread(op: str, pruned: _Pruned) -> _Pruned:
    """Drop the inputs after the carries that no body reads, with their operands."""
    bodies = {name: v for name, v in pruned.attributes.items() if isinstance(v, Graph)}
    first = pruned.attributes.get("carries", 0)
    read = [_read_inputs(body) for body in bodies.values()]
    count = len(next(iter(bodies.values())).inputs)
    keep = [i for i in range(count) if i < first or any(i in each for each in read)]
    if len(keep) == count:
        return pruned
    skip = len(pruned.operands) - count  # the predicate of cond
    operands = pruned.operands[:skip] + tuple(pruned.operands[skip + i] for i in keep)
    attributes = dict(pruned.attributes)
    for name, body in bodies.items():
        attributes[name] = replace(body, inputs=tuple(body.inputs[i] for i in keep))
    if "elements" in attributes:
        last = first + attributes["elements"]
        attributes["elements"] = sum(first <= i < last for i in keep)
    return replace(pruned, operands=operands, attributes=attributes)


def _read_inputs(body: Graph) -> set[int]:
    used = set(body.returned).union(*(node.operands for node in body.nodes))
    return {i for i, entry in enumerate(body.inputs) if entry.value in used}
