"""Finding attention: two products with a softmax between them, which one group computes.

    scores = q @ k^T                          [..., queries, keys]
    x      = scale, mask ... of the scores    elementwise, one operand each that is computed here
    y      = softmax(x) @ v

The scores, as large as queries x keys, then never are in memory. Views of q, k and v that nothing
else reads, and a transpose of y, belong to the group: its kernel reads and writes across them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from frame.core.dataclass import dataclass
from frame.core.dtypes import float32, float64
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup
from frame.ops.softmax_pattern import Softmax, softmax_of

MOST_KEYS, MOST_FEATURES = 1 << 12, 1 << 8
"""A row of scores, and a row of q, k and v, that a kernel holds in the caches."""

LEAST_QUERIES = 12
"""Fewer rows do not pay for k and v in the order in which the kernel reads them."""

_MOST_STEPS = 8  # elementwise nodes between the scores and the softmax

IsFree = Callable[[Node], bool]


def find_attentions(graph: Graph, is_free: IsFree) -> list[list[Node]]:
    """Return the nodes of each attention of a graph, in its order; `is_free` names the nodes that
    every group copies."""
    if sum(node.op == "matmul" for node in graph.nodes) < 2:
        return []
    finder = _Finder(graph, is_free)
    found = (finder.attention(node) for node in graph.nodes if node.op == "matmul")
    return [nodes for nodes in found if nodes]


@dataclass(frozen=True, slots=True)
class _Products:
    """The two products and what is between them."""

    first: Node
    steps: tuple[Node, ...]
    softmax: Softmax
    second: Node


class _Finder:
    """Looks for attention in one graph."""

    def __init__(self, graph: Graph, is_free: IsFree) -> None:
        self.is_free = is_free
        self.position = {node: place for place, node in enumerate(graph.nodes)}
        self.returned = set(graph.returned)
        self.readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                self.readers.setdefault(operand, []).append(node)

    def attention(self, second: Node) -> list[Node]:
        """Return the nodes of the attention that a product ends, none where it ends none."""
        products = self._products(second)
        if products is None or not _is_supported(products):
            return []
        soft = products.softmax
        inner = {products.first, *products.steps, *self._between(soft), second}
        kept = all(self._reads_stay(node, inner) for node in inner if node is not second)
        if not kept:
            return []
        self._add_views(products, inner)
        self._add_transpose(second, inner)
        return sorted(inner, key=self.position.__getitem__)

    def _products(self, second: Node) -> _Products | None:
        plain = not (second.attributes["transpose_a"] or second.attributes["transpose_b"])
        division = second.operands[0].node
        soft = softmax_of(division) if plain and division is not None else None
        if soft is None or soft.top.attributes["axes"] != (soft.x.rank - 1,):
            return None
        if soft.total.attributes["axes"] != soft.top.attributes["axes"]:
            return None
        steps: list[Node] = []
        node = soft.x.node
        while node is not None and node.op != "matmul" and len(steps) < _MOST_STEPS:
            steps.append(node)
            node = self._step_below(node)
        if node is None or node.op != "matmul":
            return None
        return _Products(node, tuple(steps), soft, second)

    def _step_below(self, node: Node) -> Node | None:
        """Return the node whose result, of the same shape, an elementwise step changes."""
        traits = lookup(node.op).traits
        if Trait.ELEMENTWISE not in traits or traits & {Trait.EXPENSIVE, Trait.RANDOM}:
            return None
        shape = node.results[0].shape
        below = [
            o.node
            for o in node.operands
            if o.node is not None and o.shape == shape and not self.is_free(o.node)
        ]
        return below[0] if len(below) == 1 else None

    def _between(self, soft: Softmax) -> Iterator[Node]:
        """The nodes of a softmax, and what guards its reductions."""
        yield from (soft.top, soft.difference, soft.weights, soft.total, soft.division)
        for value, reduction in (
            (soft.difference.operands[1], soft.top),
            (soft.division.operands[1], soft.total),
        ):
            pending = [value]
            while pending:
                node = pending.pop().node
                if node is not None and node is not reduction and not self.is_free(node):
                    yield node
                if node is not None and node is not reduction:
                    pending.extend(node.operands)

    def _reads_stay(self, node: Node, inner: set[Node]) -> bool:
        """Whether only nodes of a set read the results of a node."""
        return all(self._stays(result, inner) for result in node.results)

    def _stays(self, value: Value, inner: set[Node]) -> bool:
        if value in self.returned:
            return False
        return all(
            reader in inner or (self.is_free(reader) and self._reads_stay(reader, inner))
            for reader in self.readers.get(value, ())
        )

    def _add_views(self, products: _Products, inner: set[Node]) -> None:
        """Take views into the group whose results it alone reads."""
        pending = [*products.first.operands, products.second.operands[1]]
        found = []
        while pending:
            node = pending.pop().node
            if node is None or not (self._is_view(node) or self.is_free(node)):
                continue
            found.append(node)
            pending.extend(node.operands)
        for node in sorted(set(found), key=self.position.__getitem__, reverse=True):
            if not self.is_free(node) and self._reads_stay(node, inner):
                inner.add(node)

    def _is_view(self, node: Node) -> bool:
        """Whether a node reorders or cuts axes, with the elements of the last one side by side; or
        multiplies by a number, which is done as often as the elements are read: once."""
        last = node.results[0].rank - 1
        if node.op == "transpose":
            return bool(node.attributes["permutation"][last] == last)
        if node.op == "slice":
            return bool(node.attributes["steps"][last] == 1)
        if node.op != "mul":
            return False
        return any(o.node is not None and o.rank == 0 for o in node.operands)

    def _add_transpose(self, second: Node, inner: set[Node]) -> None:
        (result,) = second.results
        readers = self.readers.get(result, ())
        if len(readers) != 1 or result in self.returned or readers[0].op != "transpose":
            return
        last = result.rank - 1
        if readers[0].attributes["permutation"][last] == last:
            inner.add(readers[0])


def _is_supported(products: _Products) -> bool:
    first, second = products.first, products.second
    (q, k), v = first.operands, second.operands[1]
    if first.attributes["transpose_a"] or not first.attributes["transpose_b"]:
        return False
    if min(value.rank for value in (q, k, v)) < 2 or q.dtype not in (float32, float64):
        return False
    if first.results[0].rank != second.results[0].rank or {k.dtype, v.dtype} != {q.dtype}:
        return False
    sizes = (q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    queries, keys, *features = (size for size in sizes if isinstance(size, int))
    return queries >= LEAST_QUERIES and keys <= MOST_KEYS and max(features) <= MOST_FEATURES
