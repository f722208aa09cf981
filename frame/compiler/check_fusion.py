"""The verifier of fusions: proves that a graph of groups computes what the graph before computed.

It shares no code with the pass. Every value of both graphs gets a *term*: a number that stands for
"this op, with these attributes and types, of these terms". Inputs that are the same object have the
same term. Groups are looked through: a capture has the term of its operand.

    F1  the order is valid: a node, in a graph or a body, follows what it reads; since a group runs
        as one, this is convexity
    F2  captures are explicit: a body reads its inputs and its own nodes alone, and every input
    F3  the types of captures and results are those of the operands and results of the group
    F4  every node is computed exactly as often as before, but for free ones, which may be copied
        into each reader; nothing new is computed
    F5  outputs and updates have the terms that they had, and inputs are the same
    F6  the bodies of control flow agree in the same way
    F7  a result of a group is read, or returned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, NoReturn

from frame.core.errors import InternalError
from frame.ir.graph import Graph, Node, Value
from frame.ir.hashing import structural_hash
from frame.ir.printer import print_node
from frame.ops.record import Trait
from frame.ops.registry import lookup

_FREE_OPS = frozenset({"expand", "iota", "size", "constant", "reshape"})


def check_fusion(before: Graph, after: Graph) -> None:
    """Prove that fusion turned `before` into `after` rightly, in time linear in their nodes.

    Raises:
        InternalError: it did not; the message starts with the number of the broken rule.
    """
    terms = _Terms()
    _check_inputs(before, after)
    arguments = {value: terms.of("argument", i) for i, value in enumerate(before.input_values)}
    old = _Reading(terms, before, "before fusion").read(dict(arguments))
    new = _Reading(terms, after, "after fusion").read(dict(arguments))
    _compare(old, new, after)


def _fail(rule: str, problem: str) -> NoReturn:
    raise InternalError(f"{rule}: {problem}")


def _check_inputs(before: Graph, after: Graph) -> None:
    same = len(before.inputs) == len(after.inputs) and all(
        one.value is other.value for one, other in zip(before.inputs, after.inputs, strict=True)
    )
    if not same:
        _fail("F5", f"the inputs of {before.name} are not those that it had")


class _Terms:
    """Numbers for what is computed: equal numbers, equal computations."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._texts: dict[int, str] = {}

    def of(self, *key: Hashable) -> int:
        """Return the number of a computation."""
        return self._numbers.setdefault(key, len(self._numbers))

    def describe(self, term: int, node: Node | None = None) -> str:
        """Return, or note, the text of the node behind a term."""
        if node is not None:
            self._texts.setdefault(term, print_node(node))
        return self._texts.get(term, f"term {term}")


class _Summary:
    """What a graph computes: how often each node that is not free, the returned terms, updates."""

    def __init__(self, terms: _Terms) -> None:
        self.terms = terms
        self.counts: Counter[int] = Counter()
        self.known: set[int] = set()
        self.returned: tuple[int, ...] = ()
        self.updates: tuple[tuple[int, int], ...] = ()

    def key(self) -> Hashable:
        """Return a key that is equal for graphs that compute the same things as often."""
        return self.returned, tuple(sorted(self.counts.items()))


def _compare(old: _Summary, new: _Summary, after: Graph) -> None:
    for term in old.counts.keys() | new.counts.keys():
        if old.counts[term] != new.counts[term]:
            _fail(
                "F4",
                f"{old.terms.describe(term)} in {after.name} was computed {old.counts[term]} times "
                f"before fusion and is computed {new.counts[term]} times now",
            )
    strange = next((term for term in new.known if term not in old.known), None)
    if strange is not None:
        _fail("F4", f"{old.terms.describe(strange)} in {after.name} was not there before fusion")
    if old.returned != new.returned:
        _fail("F5", f"an output of {after.name} is not what it was")
    if old.updates != new.updates:
        _fail("F5", f"an update of {after.name} is not what it was")


class _Reading:
    """Reads one graph into a summary."""

    def __init__(self, terms: _Terms, graph: Graph, when: str) -> None:
        self._terms = terms
        self._graph = graph
        self._when = when
        self._copied: set[Value] = set()
        self._summary = _Summary(terms)

    def read(self, values: dict[Value, int]) -> _Summary:
        """Return the summary, given the terms of the inputs."""
        self._nodes(self._graph, values)
        self._summary.returned = tuple(self._term(v, values) for v in self._graph.outputs)
        self._summary.updates = tuple(
            (u.input_index, self._term(u.value, values)) for u in self._graph.updates
        )
        self._check_read(self._graph)
        return self._summary

    def _nodes(self, graph: Graph, values: dict[Value, int]) -> None:
        for node in graph.nodes:
            if node.op == "group":
                self._group(node, values)
            else:
                self._plain(node, values)

    def _term(self, value: Value, values: Mapping[Value, int], node: Node | None = None) -> int:
        found = values.get(value)
        if found is None:
            where = f"{print_node(node)} reads" if node is not None else "there is returned"
            _fail("F1", f"{self._when}, {where} {value!r}, which is not computed before it")
        return found

    def _plain(self, node: Node, values: dict[Value, int]) -> None:
        operands = tuple(self._term(operand, values, node) for operand in node.operands)
        types = tuple((r.dtype, r.shape, r.type.layout) for r in node.results)
        attributes = tuple(
            (n, self._attribute(node.attributes[n])) for n in sorted(node.attributes)
        )
        term = self._terms.of(node.op, operands, attributes, types)
        self._terms.describe(term, node)
        self._summary.known.add(term)
        if self._may_be_copied(node):
            self._copied.update(node.results)
        else:
            self._summary.counts[term] += 1
        for result in node.results:
            values[result] = self._terms.of("result", term, result.index)

    def _attribute(self, value: Any) -> Hashable:
        if not isinstance(value, Graph):
            return float.hex(value) if isinstance(value, float) else value  # type: ignore[no-any-return]
        if not value.nodes:
            return structural_hash(value)
        inner = {
            v: self._terms.of("argument of a body", i) for i, v in enumerate(value.input_values)
        }
        return _Reading(self._terms, value, self._when).read(inner).key()

    def _group(self, node: Node, values: dict[Value, int]) -> None:
        body: Graph = node.attributes["body"]
        operands = [self._term(operand, values, node) for operand in node.operands]
        self._check_types(node, body)
        inner = dict(zip(body.input_values, operands, strict=True))
        visible = set(inner)
        for each in body.nodes:
            outside = next((v for v in each.operands if v not in visible), None)
            if outside is not None:
                rule = "F2" if outside in values else "F1"
                _fail(
                    rule, f"the body of {print_node(node)} reads {outside!r} without capturing it"
                )
            self._plain(each, inner)
            visible.update(each.results)
        self._check_captures(node, body)
        for result, value in zip(node.results, body.outputs, strict=True):
            values[result] = self._term(value, inner, node)

    def _check_types(self, node: Node, body: Graph) -> None:
        pairs = [*zip(node.operands, body.input_values, strict=False)]
        pairs += zip(node.results, body.outputs, strict=False)
        counts = (len(node.operands), len(node.results))
        if counts != (len(body.inputs), len(body.outputs)):
            _fail("F3", f"{print_node(node)} and its body differ in the number of values")
        for outer, inner in pairs:
            if outer.type != inner.type:
                _fail("F3", f"{print_node(node)} has {outer.type} for {inner.type} in its body")

    def _check_captures(self, node: Node, body: Graph) -> None:
        read = set(body.outputs).union(*(each.operands for each in body.nodes))
        unread = next((entry.name for entry in body.inputs if entry.value not in read), None)
        if unread is not None:
            _fail("F2", f"the body of {print_node(node)} never reads its input {unread}")

    def _check_read(self, graph: Graph) -> None:
        read = set(graph.returned).union(*(node.operands for node in graph.nodes))
        for node in graph.nodes:
            if node.op == "group" and any(result not in read for result in node.results):
                _fail("F7", f"nothing reads a result of {print_node(node)}")

    def _may_be_copied(self, node: Node) -> bool:
        """Whether a node costs nothing: the fusion may copy it into each group, or drop it."""
        single = all(size == 1 for result in node.results for size in result.shape)
        if node.op == "constant":
            return single
        if node.op in _FREE_OPS:
            return True
        plain = Trait.ELEMENTWISE in lookup(node.op).traits
        return plain and single and all(operand in self._copied for operand in node.operands)
