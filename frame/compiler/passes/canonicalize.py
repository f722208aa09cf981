"""canonicalize: bring a graph into the form that the later passes expect.

Composites that the target does not take whole are decomposed, down to primitives. Rewrites that
are exact for every input, NaN, infinities and signed zeros included, remove what does nothing.
Nodes are visited in order; what a rewrite builds is visited in turn, so one sweep reaches the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from frame.compiler.pass_manager import MAX_ROUNDS, PassContext, endless
from frame.compiler.passes.batch_norm import fold_batch_norms
from frame.compiler.passes.bodies import BodyPass, begin, has_bodies
from frame.compiler.passes.decomposition import DECOMPOSITIONS
from frame.compiler.passes.loop_invariants import hoist_invariants
from frame.compiler.passes.loop_sums import move_sums
from frame.compiler.passes.operator_fusion import inline_groups
from frame.compiler.passes.rules_arithmetic import ARITHMETIC
from frame.compiler.passes.rules_views import VIEW_RULES
from frame.compiler.passes.spectra import narrow_spectra
from frame.compiler.passes.transposes import cancel_transposes
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value

Results = Value | Sequence[Value] | None
Rule = Callable[[Node, PassContext], Results]

# op -> the rules for it, by name, tried in order; rules under "*" are tried on every op
TABLES = (VIEW_RULES, ARITHMETIC, DECOMPOSITIONS)


def _merge() -> dict[str, tuple[tuple[str, Rule], ...]]:
    merged: dict[str, list[tuple[str, Rule]]] = {}
    for table in TABLES:
        for op, rules in table.items():
            merged.setdefault(op, []).extend(rules)
    return {op: tuple(rules) for op, rules in merged.items()}


RULES = _merge()


@dataclass(frozen=True)
class Canonicalize:
    """Decomposes composites and removes what does nothing.

    `batch_norm` says whether the normalisation after a convolution or a product may be folded into
    its weights, where these do not change from run to run; `hoist` whether what is the same in
    every step of a scan is computed before it, and what only its last step needs after it.
    Of a spectrum only the frequencies that are used are made.
    """

    name: ClassVar[str] = "canonicalize"
    batch_norm: bool = True
    hoist: bool = True

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph in canonical form."""
        graph = narrow_spectra(cancel_transposes(inline_groups(graph), context), context)
        if self.batch_norm:
            graph = fold_batch_norms(graph, context)
        if self.hoist:
            graph = move_sums(hoist_invariants(graph, context), context)
        return _settle(_sweep(graph, context), context)


def _settle(graph: Graph, context: PassContext) -> Graph:
    """Cancel what transposes the sweep has brought together, which may give it work again."""
    for _ in range(MAX_ROUNDS):
        changed = cancel_transposes(graph, context)
        if changed is graph:
            return graph
        graph = _sweep(changed, context)
    raise endless("canonicalize's sweep and cancel_transposes")


def _sweep(graph: Graph, context: PassContext) -> Graph:
    bodies = BodyPass(lambda body: _sweep(body, context))
    with _Sweep(graph, context, bodies) as sweep:
        for node in graph.nodes:
            begin(sweep, node)
            sweep.visit(node)
        return sweep.finish()


class _Sweep(Rewriter):
    """Rewrites node by node; `self[value]` is what has become of a value."""

    def __init__(self, graph: Graph, context: PassContext, bodies: BodyPass) -> None:
        super().__init__(graph)
        self._context = context
        self._bodies = bodies
        self._settled = context.settled

    def visit(self, node: Node) -> None:
        """Take a node over, or what the rules make of it."""
        current = self._current(node)
        if current in self._settled or not self._rewrite(node, current):
            self._settled.add(current)
            results = self.append(current)
            for old, new in zip(node.results, results, strict=True):
                self.replace(old, new)

    def _rewrite(self, node: Node, current: Node) -> bool:
        """Put what the first rule that fits makes of a node in its place; tell whether one did."""
        for name, rule in (*RULES.get(current.op, ()), *RULES["*"]):
            start = len(self.nodes)
            results = rule(current, self._context)
            if results is None:
                self._withdraw(start)
                continue
            self._context.count(name)
            for built in self._withdraw(start):
                self.visit(built)
            values = (results,) if isinstance(results, Value) else tuple(results)
            for old, new in zip(node.results, values, strict=True):
                self.replace(old, self._latest(new))
            return True
        return False

    def _current(self, node: Node) -> Node:
        """Return the node with its operands, and its bodies, as they are now."""
        operands = tuple(map(self._latest, node.operands))
        changed = self._bodies.changed(node) if has_bodies(node) else {}
        if not changed:
            return node.on(operands)
        types = tuple(result.type for result in node.results)
        return Node(node.op, operands, {**node.attributes, **changed}, types, node.origin)

    def _latest(self, value: Value) -> Value:
        return self._values.get(value, value)

    def _withdraw(self, start: int) -> Iterable[Node]:
        """Take back the nodes that a rule has built: they are visited before they are kept."""
        built = self.nodes[start:]
        del self.nodes[start:]
        return built
