"""operator_fusion: partition the graph into groups that a schedule can turn into few kernels.

Every node ends in one group, except control flow, constants and reshapes that only rename memory.
A group has one anchor: a contraction, a convolution, another op with a schedule of its own, a
reduction, attention as a whole (`attention_fusion`), or none (elementwise). Nodes are visited in
order; each joins the group of a producer where the domain allows it and the partition stays convex,
and opens a group of its own otherwise.

    domain    the shape that the loops of the group run over
    reduced   the axes of the domain that its reductions remove; None before the first reduction

A node that would open a group of a kind that the target has no schedule for stays alone, for
backend_lowering to refuse.

Free nodes (broadcasts, iota, sizes, scalars, reshapes that add or drop axes of size 1) are copied
into every group that reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

from frame.compiler.passes.attention_fusion import find_attentions
from frame.compiler.passes.fusion_groups import (
    ATTENTION,
    ELEMENTWISE,
    REDUCTION,
    VIEWS,
    Group,
    magnitude,
    weight_of,
)
from frame.compiler.passes.sibling_fusion import merge_siblings
from frame.core.shapes import Shape, Size, stands_beside
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, GraphInput, Node, Role, StateUpdate, Value
from frame.ops.anchors import ANCHORS, EPILOGUES
from frame.ops.record import Trait
from frame.ops.registry import lookup

INDEXED = frozenset({"iota", "uniform", "normal"})
CONTROL = frozenset({"scan", "cond", "while"})

# A group that reads its own reduction back (softmax) has one chunk a kept element: below this
# many kept elements it is worth fusing only while a row is small.
_PARALLEL_ROWS, _SMALL_ROW = 8, 1 << 14


def is_alias(node: Node) -> bool:
    """Tell whether a node only renames memory: a reshape of a row-major value."""
    return node.op == "reshape"


def root_of(value: Value) -> Value:
    """Return the value whose memory a value is: what reshapes only rename is one."""
    while value.node is not None and is_alias(value.node):
        value = value.node.operands[0]
    return value


def _drops_ones(node: Node) -> bool:
    old, new = node.operands[0].shape, node.results[0].shape
    return [d for d in old if d != 1] == [d for d in new if d != 1]


def _is_scalar_constant(node: Node) -> bool:
    return node.op == "constant" and all(size == 1 for size in node.results[0].shape)


# Nodes are immutable, so what is free once is free for good.
_free: weakref.WeakKeyDictionary[Node, bool] = weakref.WeakKeyDictionary()


def _is_free(node: Node) -> bool:
    known = _free.get(node)
    if known is None:
        known = _free[node] = _costs_nothing(node)
    return known


def _costs_nothing(node: Node) -> bool:
    if node.op in ("expand", "iota", "size"):
        return True
    if node.op == "reshape":
        return _drops_ones(node)
    return _is_scalar_constant(node) or _is_scalar_of_sizes(node)


def _is_scalar_of_sizes(node: Node) -> bool:
    """Whether a node computes a single number from sizes and constants, such as 1 / batch."""
    traits = lookup(node.op).traits
    plain = Trait.ELEMENTWISE in traits and not traits & {Trait.EXPENSIVE, Trait.RANDOM}
    single = all(size == 1 for result in node.results for size in result.shape)
    return plain and single and all(o.node is not None and _is_free(o.node) for o in node.operands)


def _has(node: Node, trait: Trait) -> bool:
    return trait in lookup(node.op).traits


def _is_reduction(node: Node) -> bool:
    """Tell whether a node is a plain reduction; a composite that reduces has no axes."""
    return "axes" in node.attributes and _has(node, Trait.REDUCTION)


def anchor_of(node: Node) -> str:
    """Return the kind of the group that a node opens."""
    anchor = ANCHORS.get(node.op)
    if anchor is not None:
        return anchor
    if _is_reduction(node):
        return REDUCTION
    plain = node.op in VIEWS or node.op in INDEXED or _has(node, Trait.ELEMENTWISE)
    return ELEMENTWISE if plain or _is_free(node) else node.op


def _kept(group: Group) -> tuple[Size, ...]:
    return tuple(
        size for axis, size in enumerate(group.domain) if axis not in (group.reduced or ())
    )


def _head_of(group: Group) -> Node:
    return next(node for node in group.nodes if ANCHORS.get(node.op) == group.anchor)


class _Partition:
    """The growing partition of one graph."""

    def __init__(self, graph: Graph, anchors: frozenset[str]) -> None:
        self.graph = graph
        self.anchors = anchors
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.owner: dict[Node, Group] = {}
        self.groups: dict[Group, None] = {}
        self.returned = frozenset(graph.returned)
        self.readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                self.readers.setdefault(operand, []).append(node)

    def build(self) -> None:
        """Assign every node that is not free to a group."""
        if ATTENTION in self.anchors:
            for nodes in find_attentions(self.graph, _is_free):
                self._open_whole(ATTENTION, nodes)
        for node in self.graph.nodes:
            views = self._views_of_weights(node)
            if views and anchor_of(node) in self.anchors:
                self._open_whole(anchor_of(node), [*views, node])
        for node in self.graph.nodes:
            if (
                node in self.owner
                or node.op in CONTROL
                or node.op == "constant"
                or _is_free(node)
                or is_alias(node)
            ):
                continue
            self._place(node)

    def _views_of_weights(self, node: Node) -> list[Node]:
        """The views through which a node, and nothing else, reads weights that it copies anyway."""
        position = 1 if node.op == "conv2d" else 0
        if position == 0 and not node.attributes.get("winograd"):
            return []
        found: list[Node] = []
        value = node.operands[position]
        while value.node is not None and value.node.op in VIEWS and value not in self.returned:
            if len(self._readers(value)) > 1:
                break
            found.insert(0, value.node)
            value = value.node.operands[0]
        return found

    def _place(self, node: Node) -> None:
        anchor = anchor_of(node)
        if anchor == REDUCTION:
            self._place_reduction(node)
        elif anchor == ELEMENTWISE and node.op not in VIEWS:
            self._place_elementwise(node)
        else:
            self._open(node, anchor, node.results[0].shape)

    def _open(
        self, node: Node, anchor: str, domain: Shape, reduced: tuple[int, ...] | None = None
    ) -> None:
        """Open a group for a node, or leave it alone where the target has none of this kind."""
        if anchor not in self.anchors:
            return
        index = self.position[node]
        group = Group(anchor, domain, index, index, reduced=reduced)
        self.groups[group] = None
        self._add(group, node)

    def _open_whole(self, anchor: str, nodes: list[Node]) -> None:
        """Open a group of nodes of which only the last is read outside."""
        first, last = self.position[nodes[0]], self.position[nodes[-1]]
        group = Group(anchor, nodes[-1].results[0].shape, first, last)
        self.groups[group] = None
        for node in nodes:
            self._add(group, node)

    def _add(self, group: Group, node: Node) -> None:
        group.nodes.append(node)
        group.weight += weight_of(node)
        group.last = max(group.last, self.position[node])
        group.reads.update(dict.fromkeys(self.sources(node)))
        self.owner[node] = group

    def sources(self, node: Node) -> Iterator[Value]:
        """The values that a node reads once free nodes are copied in."""
        for operand in node.operands:
            if operand.node is not None and _is_free(operand.node):
                yield from self.sources(operand.node)
            else:
                yield operand

    def _producers(self, node: Node) -> list[Group]:
        """The groups that a node reads from, the latest first, each once."""
        found: dict[int, Group] = {}
        for source in self.sources(node):
            group = self.owner.get(source.node) if source.node is not None else None
            if group is not None:
                found[id(group)] = group
        return sorted(found.values(), key=lambda group: -group.last)

    def _place_elementwise(self, node: Node) -> None:
        candidates = [g for g in self._producers(node) if self._fits(g, node)]
        candidates.sort(key=lambda group: group.anchor == ELEMENTWISE)
        home = next((g for g in candidates if self._convex(g, node)), None)
        if home is None:
            self._open(node, ELEMENTWISE, node.results[0].shape)
            return
        self._add(home, node)
        for other in candidates:
            if other is not home and other.anchor in (ELEMENTWISE, home.anchor):
                self._merge(home, other)

    def _fits(self, group: Group, node: Node) -> bool:
        """Whether the result of an elementwise node has a place in the loops of a group."""
        if not group.has_room(weight_of(node)):
            return False
        shape = node.results[0].shape
        if group.anchor in EPILOGUES:
            if shape != group.domain or self._is_only_summed(group, node):
                return False
            return self._reads_elementwise(group, node)
        if group.anchor not in (ELEMENTWISE, REDUCTION):
            return False
        if group.reduced is None:
            return shape == group.domain
        if shape == group.domain:
            return self._may_read_back(group) and self._reads_beside(group, node)
        return self._is_kept(group, shape)

    def _is_only_summed(self, group: Group, node: Node) -> bool:
        """Whether only reductions read a node, and others read what it reads of a group.

        Then it is computed beside the reduction, of values that are in memory anyway; in the group
        of the anchor it would be written besides.
        """
        readers = self._readers(node.results[0])
        if not readers or not all(map(_is_reduction, readers)):
            return False
        if node.results[0] in self.returned:
            return False
        made = (s for s in self.sources(node) if s.node and self.owner.get(s.node) is group)
        return all(
            any(reader is not node and _is_reduction(reader) for reader in self._readers(value))
            for value in made
        )

    def _readers(self, value: Value) -> Sequence[Node]:
        return self.readers.get(value, ())

    def _reads_beside(self, group: Group, node: Node) -> bool:
        """Whether a node over the domain reads reductions of a group at their own elements."""
        over = node.operands[0].shape if _is_reduction(node) else node.results[0].shape
        if group.reduced is None or over != group.domain:
            return True
        return all(self._is_beside(group, operand) for operand in node.operands)

    def _is_beside(self, group: Group, value: Value) -> bool:
        """Whether broadcasting lines up a value with the domain, and all it is a free view of."""
        root = root_of(value)
        made = [v.node for v in (value, root) if v.node is not None]
        own = any(self.owner.get(node) is group for node in made)
        free = bool(made) and not own and _is_free(made[-1])
        if not own and not (free and self._reads_group(group, made[-1])):
            return True
        if not stands_beside(value.shape, group.domain, group.reduced or ()):
            return False
        return own or all(self._is_beside(group, operand) for operand in made[-1].operands)

    def _reads_group(self, group: Group, node: Node) -> bool:
        sources = (source.node for source in self.sources(node))
        return any(source is not None and self.owner.get(source) is group for source in sources)

    def _reads_elementwise(self, group: Group, node: Node) -> bool:
        """An epilogue may read the first result of its anchor and what follows from it."""
        anchor = _head_of(group)
        return all(source.node is not anchor or source.index == 0 for source in self.sources(node))

    def _is_kept(self, group: Group, shape: Shape) -> bool:
        ones = tuple(
            1 if axis in (group.reduced or ()) else size for axis, size in enumerate(group.domain)
        )
        return shape in (ones, _kept(group))

    def _may_read_back(self, group: Group) -> bool:
        rows = magnitude(_kept(group))
        return rows >= _PARALLEL_ROWS or magnitude(group.domain) <= _SMALL_ROW

    def _place_reduction(self, node: Node) -> None:
        source = node.operands[0]
        axes = tuple(node.attributes["axes"])
        for group in self._producers(node):
            if self._takes_reduction(group, node, axes) and self._convex(group, node):
                group.reduced, group.anchor = axes, REDUCTION
                self._add(group, node)
                return
        self._open(node, REDUCTION, source.shape, axes)

    def _takes_reduction(self, group: Group, node: Node, axes: tuple[int, ...]) -> bool:
        source = node.operands[0]
        if group.anchor not in (ELEMENTWISE, REDUCTION) or source.shape != group.domain:
            return False
        if REDUCTION not in self.anchors or not group.has_room(weight_of(node)):
            return False
        if not self._reads_beside(group, node):
            return False
        if any(member.op in VIEWS for member in group.nodes):
            return False
        if group.reduced is None:
            return True
        return group.reduced == axes and (
            self._may_read_back(group) or not self._after_reduction(group, source)
        )

    def _after_reduction(self, group: Group, value: Value) -> bool:
        """Whether a value of the group depends on one of its reductions."""
        pending, seen = [value], set()
        while pending:
            node = pending.pop().node
            if node is None or node in seen:
                continue
            seen.add(node)
            if self.owner.get(node) is group and _is_reduction(node):
                return True
            if self.owner.get(node) is group or _is_free(node):
                pending.extend(node.operands)
        return False

    def _convex(self, group: Group, node: Node) -> bool:
        """Whether `node` reads nothing, outside the group, that waits for the group."""
        outside = [
            source
            for source in self.sources(node)
            if source.node is None or self.owner.get(source.node) is not group
        ]
        return not self._waits_for(outside, group, set())

    def _waits_for(self, sources: Iterable[Value], group: Group, seen: set[int]) -> bool:
        """Whether one of `sources` is made, after `group` and outside `seen`, from the group."""
        pending = [source.node for source in sources if source.node is not None]
        visited: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            owner = self.owner.get(node)
            if owner is group:
                return True
            if owner is None:
                if self.position[node] > group.first:
                    pending.extend(o.node for o in node.operands if o.node is not None)
            elif id(owner) not in seen and owner.last > group.first:
                seen.add(id(owner))
                pending.extend(read.node for read in owner.reads if read.node is not None)
        return False

    def _merge(self, home: Group, other: Group) -> None:
        """Take over another group that has the same loops, if no path outside connects them."""
        if not home.has_room(other.weight):
            return
        if self._same_loops(home, other) and not self._path_between(home, other):
            self.absorb(home, other)

    def absorb(self, home: Group, other: Group) -> None:
        """Move the nodes of another group into `home`; the caller has checked that it may."""
        for node in other.nodes:
            self.owner[node] = home
        home.nodes = sorted([*home.nodes, *other.nodes], key=self.position.__getitem__)
        home.reads.update(other.reads)
        home.weight += other.weight
        home.first, home.last = min(home.first, other.first), max(home.last, other.last)
        del self.groups[other]

    def _same_loops(self, home: Group, other: Group) -> bool:
        if other.domain != home.domain:
            return self._is_row_of(home, other)
        views = any(member.op in VIEWS for member in other.nodes)
        if home.anchor in EPILOGUES:
            return other.anchor == ELEMENTWISE and not views and not self._feeds(other, home)
        if home.anchor not in (ELEMENTWISE, REDUCTION):
            return False
        for made, reader in ((home, other), (other, home)):
            if not all(self._reads_beside(made, node) for node in reader.nodes):
                return False
        return other.reduced in (None, home.reduced) and not (views and home.anchor == REDUCTION)

    def _is_row_of(self, home: Group, other: Group) -> bool:
        """Whether another group computes what stands beside the results of a reduction.

        The sweep over the full domain must not wait for it.
        """
        plain = other.anchor == ELEMENTWISE and other.reduced is None
        if home.reduced is None or not plain or not self._is_kept(home, other.domain):
            return False
        if any(member.op in VIEWS for member in other.nodes):
            return False
        sweeping = (
            node
            for node in home.nodes
            if _is_reduction(node) or node.results[0].shape == home.domain
        )
        readers = (source.node for node in sweeping for source in self.sources(node))
        return not any(node is not None and self.owner.get(node) is other for node in readers)

    def _feeds(self, group: Group, home: Group) -> bool:
        """Whether an anchor reads a group: in one with it, it would compute that again and again.

        A product reads each element of its operands once for every block of its result.
        """
        sources = self.sources(_head_of(home))
        return any(s.node is not None and self.owner.get(s.node) is group for s in sources)

    def _path_between(self, a: Group, b: Group) -> bool:
        return self._outside_path(a, b) or self._outside_path(b, a)

    def _outside_path(self, source: Group, sink: Group) -> bool:
        """Whether `sink` reads, outside both groups, something made from `source`."""
        inside = {id(source), id(sink)}
        outside = [
            read
            for read in sink.reads
            if read.node is not None and id(self.owner.get(read.node)) not in inside
        ]
        return self._waits_for(outside, source, {id(sink)})

    def values_in_memory(self) -> set[Value]:
        """Values that are returned, or read by another group, a reshape or control flow."""
        needed = set(self.graph.returned)
        for group in self.groups:
            needed.update(self.reads(group.nodes[0]))
        for node in reversed(self.graph.nodes):
            alone = self.owner.get(node) is None
            if alone and (node.op in CONTROL or needed.intersection(node.results)):
                needed.update(self.reads(node))
        return needed

    def reads(self, node: Node) -> Iterable[Value]:
        """What must be in memory before the group of `node`, or `node` alone, can run."""
        group = self.owner.get(node)
        if group is not None:
            return [
                read
                for read in group.reads
                if read.node is None or self.owner.get(read.node) is not group
            ]
        return node.operands if self.stands_alone(node) else self.sources(node)

    def stands_alone(self, node: Node) -> bool:
        """Whether a node without a group stays in the graph as it is."""
        return (
            node.op in CONTROL
            or node.op == "constant"
            or is_alias(node)
            or anchor_of(node) not in self.anchors
        )


def fuse(graph: Graph, anchors: frozenset[str]) -> Graph:
    """Return `graph` with its nodes gathered into `group` nodes; bodies are fused in turn."""
    graph = _fuse_bodies(graph, anchors)
    partition = _Partition(graph, anchors)
    partition.build()
    merge_siblings(partition)
    return _Assembler(partition).run()


def inline_groups(graph: Graph) -> Graph:
    """Put the bodies of groups that exist already back into the graph."""
    if not any(node.op == "group" for node in graph.nodes):
        return graph
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            if node.op != "group":
                rewriter.copy(node)
                continue
            body: Graph = node.attributes["body"]
            for entry, operand in zip(body.inputs, node.operands, strict=True):
                rewriter.replace(entry.value, rewriter[operand])
            for inner in body.nodes:
                rewriter.copy(inner)
            for result, value in zip(node.results, body.outputs, strict=True):
                rewriter.replace(result, rewriter[value])
        return rewriter.finish()


def _fuse_bodies(graph: Graph, anchors: frozenset[str]) -> Graph:
    if not any(node.op in CONTROL for node in graph.nodes):
        return graph
    with Rewriter(graph) as rewriter:
        for node in graph.nodes:
            fused = {name: fuse(body, anchors) for name, body in node.bodies}
            if node.op in CONTROL and fused:
                rewriter.retype(node, **fused)
            else:
                rewriter.copy(node)
        return rewriter.finish()


class _Assembler:
    """Writes a partition as a graph of group nodes, in an order that respects every read."""

    def __init__(self, partition: _Partition) -> None:
        self.partition = partition
        self.graph = partition.graph
        self.values: dict[Value, Value] = {value: value for value in self.graph.input_values}
        self.nodes: list[Node] = []
        self.needed = partition.values_in_memory()

    def run(self) -> Graph:
        """Return the graph of groups."""
        for node in self._first_checks():
            self._require(node)
        for node in self.graph.nodes:
            group = self.partition.owner.get(node)
            if self._is_due(node, group):
                self._require(node)
        return Graph(
            self.graph.inputs,
            tuple(self.nodes),
            tuple(self.values[value] for value in self.graph.outputs),
            tuple(StateUpdate(u.input_index, self.values[u.value]) for u in self.graph.updates),
            self.graph.name,
            self.graph.output_names,
            self.graph.locations,
        )

    def _first_checks(self) -> Iterator[Node]:
        """The nodes of groups that check indices which the caller gave, such as labels.

        Once they have run, the groups after them may write new states where the old ones are.
        Those with results larger than the indices stay where they are read.
        """
        if not self.graph.updates:
            return
        ops = {node.op for node in self.graph.nodes}
        checked = {op for op in ops if Trait.CHECKED in lookup(op).traits}
        for group in self.partition.groups:
            if any(node.op in checked for node in group.nodes):
                reads = tuple(self.partition.reads(group.nodes[0]))
                shapes = [read.shape for read in reads]
                small = all(result.shape in shapes for result in self._results(group))
                if small and all(map(self._is_near_inputs, reads)):
                    yield group.nodes[0]

    def _is_near_inputs(self, value: Value) -> bool:
        """Whether a value is an input, or elementwise work such as a mask has made it of some."""
        node = root_of(value).node
        group = None if node is None else self.partition.owner.get(node)
        if node is None or group is None:
            return node is None
        reads = self.partition.reads(node)
        return group.anchor == ELEMENTWISE and all(root_of(r).node is None for r in reads)

    def _is_due(self, node: Node, group: Group | None) -> bool:
        if group is not None:
            return self.partition.position[node] == group.last
        return node.op in CONTROL or bool(self.needed.intersection(node.results))

    def _require(self, node: Node) -> None:
        """Emit the group of `node`, or `node` alone, after everything that it reads."""
        pending = [(node, False)]
        while pending:
            current, ready = pending.pop()
            if self._is_emitted(current):
                continue
            if ready:
                self._emit(current)
                continue
            pending.append((current, True))
            reads = [read.node for read in self.partition.reads(current) if read not in self.values]
            pending.extend((read, False) for read in reversed(reads) if read is not None)

    def _is_emitted(self, node: Node) -> bool:
        group = self.partition.owner.get(node)
        results = node.results if group is None else self._results(group)
        return all(result in self.values for result in results)

    def _results(self, group: Group) -> list[Value]:
        return [r for node in group.nodes for r in node.results if r in self.needed]

    def _emit(self, node: Node) -> None:
        group = self.partition.owner.get(node)
        if group is not None:
            self._write(group.anchor, group.nodes, self._results(group))
        elif self.partition.stands_alone(node):
            self._copy(node)
        else:
            self._write(ELEMENTWISE, [node], list(node.results))

    def _copy(self, node: Node) -> None:
        operands = tuple(self.values[operand] for operand in node.operands)
        copy = node.on(operands)
        self.nodes.append(copy)
        self.values.update(zip(node.results, copy.results, strict=True))

    def _write(self, anchor: str, nodes: list[Node], results: list[Value]) -> None:
        body = _BodyWriter(nodes)
        graph = body.write(results)
        operands = tuple(self.values[value] for value in body.captures)
        types = tuple(result.type for result in results)
        group = Node("group", operands, {"anchor": anchor, "body": graph}, types, nodes[0].origin)
        self.nodes.append(group)
        self.values.update(zip(results, group.results, strict=True))


class _BodyWriter:
    """Writes the body of one group: its nodes, the free nodes that they read, and captures."""

    def __init__(self, nodes: list[Node]) -> None:
        self.members = set(nodes)
        self.order = nodes
        self.nodes: list[Node] = []
        self.inputs: list[GraphInput] = []
        self.captures: dict[Value, Value] = {}
        self.values: dict[Value, Value] = {}

    def write(self, results: list[Value]) -> Graph:
        """Return the body; `captures` then lists the outer values that it reads."""
        for node in self.order:
            self._clone(node)
        names = tuple(f"output{index}" for index in range(len(results)))
        outputs = tuple(self.values[result] for result in results)
        return Graph(tuple(self.inputs), tuple(self.nodes), outputs, (), "group", names)

    def _clone(self, node: Node) -> None:
        copy = node.on(tuple(map(self._value, node.operands)), always=True)
        self.nodes.append(copy)
        self.values.update(zip(node.results, copy.results, strict=True))

    def _value(self, value: Value) -> Value:
        if value not in self.values:
            if value.node is not None and _is_free(value.node):
                self._clone(value.node)
            else:
                inner = Value(value.type)
                name = f"capture{len(self.inputs)}"
                self.inputs.append(GraphInput(inner, Role.CAPTURE, name))
                self.captures[value] = inner
                self.values[value] = inner
        return self.values[value]
