"""Cancels transposes around what works alike in every order of the axes.

    conv -> transpose -> bias, relu, add -> transpose -> conv   =   conv -> bias, relu, add -> conv

Elementwise ops, reductions that keep their axes, and a few that move elements along an axis are
*movable*: computed on operands in another order of axes they give their result in that order.
Movable nodes that read one another make a *region*. A region has one order for all of its values,
and pays with a transpose wherever a value enters or leaves it in another one. The order that the
graph was declared with is changed where another one makes fewer elements move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import BodyPass, begin, has_trait, take_over
from frame.compiler.passes.fusion_groups import magnitude
from frame.core.dataclass import dataclass
from frame.core.shapes import Shape
from frame.ir.builder import Rewriter
from frame.ir.graph import Attribute, Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import create_node
from frame.ops.shape import inverse

Permutation = tuple[int, ...]
Attributes = Mapping[str, Attribute]
Move = Callable[[Attributes, Permutation], Attributes]

_SYMBOLIC = 64  # what a symbolic size counts for
_CANDIDATES = 8  # the most orders of axes that are tried for a region


# --- what is movable: how attributes follow when axis i becomes axis permutation[i] ---------------


def _along(attributes: Attributes, permutation: Permutation) -> Attributes:
    return {**attributes, "axis": permutation[attributes["axis"]]}


def _over(attributes: Attributes, permutation: Permutation) -> Attributes:
    axes = tuple(sorted(permutation[axis] for axis in attributes["axes"]))
    return {**attributes, "axes": axes}


def _each(*names: str) -> Move:
    """Attributes that have an entry for each axis."""

    def move(attributes: Attributes, permutation: Permutation) -> Attributes:
        moved = {name: _reordered(attributes[name], inverse(permutation)) for name in names}
        return {**attributes, **moved}

    return move


MOVABLE: Mapping[str, Move] = {
    "concat": _along,
    "flip": _over,
    "slice": _each("starts", "stops", "steps"),
    "pad": _each("low", "high"),
    "expand": _each("shape"),
}
"""op -> its attributes in another order of the axes; elementwise ops and reductions beside."""


def _is_movable(node: Node) -> bool:
    if len(node.results) != 1 or node.results[0].rank < 2:
        return False
    if has_trait(node, Trait.ELEMENTWISE) or node.op == "expand":
        return True
    keeps = has_trait(node, Trait.REDUCTION) and node.attributes["keepdims"]
    return bool(keeps) or node.op in MOVABLE


def _moved_attributes(node: Node, permutation: Permutation) -> Attributes:
    if has_trait(node, Trait.REDUCTION):
        return _over(node.attributes, permutation)
    move = MOVABLE.get(node.op)
    return node.attributes if move is None else move(node.attributes, permutation)


# --- permutations ---------------------------------------------------------------------------------


def _identity(permutation: Permutation) -> Permutation:
    return tuple(range(len(permutation)))


def _reordered(items: Sequence, permutation: Permutation) -> tuple:  # type: ignore[type-arg]
    return tuple(items[axis] for axis in permutation)


def _origin(value: Value) -> tuple[Value, Permutation]:
    """Return what a value is a transpose of, transposes of transposes included, and the order."""
    permutation = tuple(range(value.rank))
    while value.node is not None and value.node.op == "transpose":
        permutation = _reordered(value.node.attributes["permutation"], permutation)
        value = value.node.operands[0]
    return value, permutation


def _keeps_order(shape: Shape, permutation: Permutation) -> bool:
    """Tell whether a transpose moves nothing: all axes but those of size 1 stay in their order."""
    order = [axis for axis in permutation if shape[axis] != 1]
    return order == sorted(order)


def _weight(value: Value) -> int:
    """Return how many elements a transpose of a value moves."""
    return max(magnitude(value.shape, _SYMBOLIC), 1)


def _price(value: Value, permutation: Permutation) -> int:
    """Return how many elements are moved to have a value in another order of its axes."""
    source, first = _origin(value)
    whole = _reordered(first, permutation)
    return 0 if _keeps_order(source.shape, whole) else _weight(value)


def _transposed(value: Value, permutation: Permutation) -> Value:
    source, first = _origin(value)
    whole = _reordered(first, permutation)
    if whole == tuple(range(len(whole))):
        return source
    if _keeps_order(source.shape, whole):
        return ops.reshape(source, _reordered(source.shape, whole))
    return ops.transpose(source, whole)


# --- regions --------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Region:
    """Movable nodes of one rank that read one another, and the order they are computed in."""

    nodes: list[Node]
    permutation: Permutation = ()


def _live(graph: Graph) -> list[Node]:
    """Return the nodes that a result depends on: a transpose that nothing reads costs nothing."""
    needed = set(graph.returned)
    found = []
    for node in reversed(graph.nodes):
        if has_trait(node, Trait.SIDE_EFFECT) or any(v in needed for v in node.results):
            found.append(node)
            needed.update(node.operands)
    return found[::-1]


class _Regions:
    """The regions of a graph, and which order of the axes is best for each."""

    def __init__(self, graph: Graph) -> None:
        self._readers: dict[Value, list[Node]] = {}
        self._returned = set(graph.returned)
        self.of: dict[Value, _Region] = {}
        for node in _live(graph):
            for operand in dict.fromkeys(node.operands):
                self._readers.setdefault(operand, []).append(node)
            if _is_movable(node):
                self._join(node)
        for region in {id(region): region for region in self.of.values()}.values():
            self._choose(region)

    def _join(self, node: Node) -> None:
        result = node.results[0]
        near = [self.of[v] for v in node.operands if v in self.of and v.rank == result.rank]
        regions = sorted({id(r): r for r in near}.values(), key=lambda r: -len(r.nodes))
        home = regions[0] if regions else _Region([])
        for other in regions[1:]:
            home.nodes += other.nodes
            self.of.update((inner.results[0], home) for inner in other.nodes)
        home.nodes.append(node)
        self.of[result] = home

    def _choose(self, region: _Region) -> None:
        same = tuple(range(region.nodes[0].results[0].rank))
        candidates = dict.fromkeys(_origin(value)[1] for value in self._entering(region))
        candidates.pop(same, None)
        best, least = same, self._cost(region, same) if candidates else 0
        for permutation in tuple(candidates)[:_CANDIDATES]:
            cost = self._cost(region, permutation)
            if cost < least:
                best, least = permutation, cost
        region.permutation = () if best == same else best

    def _entering(self, region: _Region) -> Iterator[Value]:
        """Iterate over what a region reads of others that has its rank."""
        found = (value for node in region.nodes for value in node.operands)
        rank = region.nodes[0].results[0].rank
        return (v for v in dict.fromkeys(found) if self.of.get(v) is not region and v.rank == rank)

    def _cost(self, region: _Region, permutation: Permutation) -> int:
        """Return how many elements the transposes around a region move in an order of its axes."""
        back = inverse(permutation)
        total = 0
        for node in region.nodes:
            total += self._cost_of_leaving(region, node.results[0], permutation)
            for value in node.operands:
                if value.rank < len(back):
                    total += _price_of_lower(value, back)
        for value in self._entering(region):
            total += _price(value, back)
            if back != _identity(back) and self._is_read_elsewhere(region, value):
                total += _price(value, _identity(back))
        return total

    def _is_read_elsewhere(self, region: _Region, value: Value) -> bool:
        readers = self._readers.get(value, ())
        inside = all(
            self.of.get(reader.results[0]) is region for reader in readers if reader.results
        )
        return value in self._returned or not inside

    def _cost_of_leaving(self, region: _Region, value: Value, permutation: Permutation) -> int:
        outside = [r for r in self._readers.get(value, ()) if not self._has(region, r)]
        plain = value in self._returned
        total = 0
        for reader in outside:
            if reader.op == "transpose":
                whole = _reordered(permutation, reader.attributes["permutation"])
                shape = _reordered(value.shape, inverse(permutation))
                total += 0 if _keeps_order(shape, whole) else _weight(value)
            elif not _takes_any_order(reader, permutation):
                plain = True
        if plain and permutation != _identity(permutation):
            shape = _reordered(value.shape, inverse(permutation))
            total += 0 if _keeps_order(shape, permutation) else _weight(value)
        return total

    def _has(self, region: _Region, node: Node) -> bool:
        return len(node.results) == 1 and self.of.get(node.results[0]) is region


def _price_of_lower(value: Value, back: Permutation) -> int:
    shape = (*(1,) * (len(back) - value.rank), *value.shape)
    return 0 if _keeps_order(shape, back) else _weight(value)


def _drops_axes(node: Node) -> bool:
    return has_trait(node, Trait.REDUCTION) and not node.attributes["keepdims"]


def _takes_any_order(node: Node, permutation: Permutation) -> bool:
    """Tell whether a node that is not movable reads an operand in this order for nothing.

    A reduction does if the axes that it keeps stay in their order.
    """
    if not _drops_axes(node):
        return False
    kept = [permutation[a] for a in range(len(permutation)) if a not in node.attributes["axes"]]
    return kept == sorted(kept)


# --- the rewrite ----------------------------------------------------------------------------------


def cancel_transposes(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with each region, those in bodies too, in its best order of the axes."""
    bodies = BodyPass(lambda body: cancel_transposes(body, context))
    regions = _Regions(graph) if any(node.op == "transpose" for node in graph.nodes) else None
    with _Cancelling(graph, context) as rewriter:
        for node in graph.nodes:
            region = regions and regions.of.get(node.results[0]) if node.results else None
            if region and region.permutation:
                rewriter.move(node, region.permutation)
            else:
                rewriter.keep(node, bodies)
        rewriter.need(graph.returned)
        return rewriter.finish()


class _Cancelling(Rewriter):
    """Rewrites regions; `_moved` holds their values in their new order, and that order."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        super().__init__(graph)
        self._context = context
        self._moved: dict[Value, tuple[Value, Permutation]] = {}

    def move(self, node: Node, permutation: Permutation) -> None:
        """Compute a node of a region in the order of the region."""
        self._context.count("computed in another order of axes")
        begin(self, node)
        operands = tuple(self._in_order(value, permutation) for value in node.operands)
        attributes = _moved_attributes(node, permutation)
        (result,) = create_node(node.op, operands, attributes)
        self._moved[node.results[0]] = (result, permutation)

    def _in_order(self, value: Value, permutation: Permutation) -> Value:
        found = self._moved.get(value)
        if found is not None and found[1] == permutation:
            return found[0]
        self.need([value])
        new = self[value]
        if all(size == 1 for size in new.shape) and new.rank < len(permutation):
            return new
        if new.rank < len(permutation):
            new = ops.reshape(new, (*(1,) * (len(permutation) - new.rank), *new.shape))
        return _transposed(new, inverse(permutation))

    def keep(self, node: Node, bodies: BodyPass) -> None:
        """Take over a node that belongs to no region that moves."""
        begin(self, node)
        if node.op == "transpose":
            value, permutation = self._source(node)
            whole = _reordered(permutation, node.attributes["permutation"])
            self._put(node, permutation, lambda: _transposed(value, whole))
        elif _drops_axes(node):
            value, permutation = self._source(node)
            if not _takes_any_order(node, permutation):
                permutation = _identity(permutation)
            attributes = _over(node.attributes, permutation)
            self._put(node, permutation, lambda: create_node(node.op, (value,), attributes)[0])
        else:
            self.need(node.operands)
            take_over(self, node, bodies)

    def _source(self, node: Node) -> tuple[Value, Permutation]:
        """Return what the operand of a node is a transpose of, and the order of its axes."""
        (operand,) = node.operands
        return self._moved.get(operand) or _origin(self[operand])

    def _put(self, node: Node, permutation: Permutation, build: Callable[[], Value]) -> None:
        """Replace a node that would read a transpose; copy any other."""
        if permutation == _identity(permutation):
            self.need(node.operands)
            self.copy(node)
        else:
            self.replace(node.results[0], build())

    def need(self, values: Iterable[Value]) -> None:
        """Have values of regions in the order that they were declared with."""
        for value in values:
            if value not in self and value in self._moved:
                new, permutation = self._moved[value]
                self.replace(value, _transposed(new, permutation))
