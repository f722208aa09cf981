"""What rematerialisation computes again where modules are named: the inside of each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from frame.compiler.passes.forward import Forward
from frame.compiler.passes.operator_fusion import root_of
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph, Node, Value


def inside(forward: Forward, patterns: Collection[str]) -> frozenset[Value]:
    """Return the roots that are made in a unit and read, in the forward part, nowhere else.

    What a group reads whose nodes are of several units is kept, so that a copy of it needs none of
    the units before it.
    """
    graph = forward.graph
    _require_matches(graph, patterns)
    units = {node: _units(graph, node, patterns) for node in forward.nodes}
    found = set()
    for _, root in forward.made():
        own = _unit_of(graph, root, patterns)
        around = [units[each] for each in forward.readers(root)]
        if own and all(each == {own} for each in (*around, _inner_units(graph, root, patterns))):
            found.add(root)
    return frozenset(found)


def _require_matches(graph: Graph, patterns: Collection[str]) -> None:
    paths = dict.fromkeys(location.module for location in graph.locations if location.module)
    parts = {part for path in paths for part in _prefixes(path)}
    for pattern in patterns:
        if not any(fnmatchcase(part, pattern) for part in parts):
            raise InvalidArgumentError(
                f"no module matches the pattern {pattern!r}; there are "
                f"{', '.join(list(paths)[:12])}{', ...' if len(paths) > 12 else ''}"
            )


def _units(graph: Graph, node: Node, patterns: Collection[str]) -> set[str]:
    """Return the units of a node, or of all nodes of a group that stand in the user's model."""
    inner = node.attributes["body"].nodes if node.op == "group" else (node,)
    return {_unit(graph.location(each).module, patterns) for each in inner if _stands(each)}


def _stands(node: Node) -> bool:
    """Whether a node counts: constants and what is shared as if it were one have any origin."""
    return node.op not in ("constant", "expand", "iota", "size")


def _unit_of(graph: Graph, root: Value, patterns: Collection[str]) -> str:
    inner = _inner(root)
    return "" if inner.node is None else _unit(graph.location(inner.node).module, patterns)


def _inner(root: Value) -> Value:
    """Return the value of a group's body that a result of it is; else the value itself."""
    node = root.node
    if node is None or node.op != "group":
        return root
    inner: Value = node.attributes["body"].outputs[root.index]
    return inner


def _inner_units(graph: Graph, root: Value, patterns: Collection[str]) -> set[str]:
    """Return the units of the nodes that read a value inside of the group that makes it."""
    inner = _inner(root)
    own = {_unit_of(graph, root, patterns)}
    if inner is root or root.node is None:
        return own
    body: Graph = root.node.attributes["body"]
    readers = (node for node in body.nodes if inner in map(root_of, node.operands))
    return own | {_unit(graph.location(n).module, patterns) for n in readers if _stands(n)}


def _prefixes(path: str) -> Iterator[str]:
    """Yield a.b.c as a, a.b and a.b.c."""
    parts = path.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def _unit(path: str, patterns: Collection[str]) -> str:
    """Return the outermost module around a path that matches a pattern; empty for none."""
    matching = (p for p in _prefixes(path) if any(fnmatchcase(p, each) for each in patterns))
    return next(matching, "")
