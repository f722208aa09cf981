"""batch_blocks: run the layers of a network on a few images at a time, not each on a whole batch.

    for block of images           a scan over blocks, which becomes a loop in the entry
      layer, layer, ...           what lies between them stays in a cache

A value as large as a batch of images comes from memory and goes there. Convolutions of few
multiply-adds, such as depthwise ones, then wait for memory, and a batch of 32 takes longer for each
image than one image does. Images do not know of each other before the last layers: what lies
between layers needs only be as large as a block of them. Layers follow each other in segments, each
with the largest block whose values lie in the cache, as images shrink. A batch that no block near
that size divides stays whole: a few images at a time have little work for several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import NO_ORIGIN, begin, byte_count, has_bodies
from frame.core.dataclass import dataclass
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import ROW_MAJOR, Graph, Node, Role, TensorType, Value
from frame.ops.record import Trait
from frame.ops.registry import create_node, lookup

_LAYERS = frozenset({"conv2d", "max_pool2d", "avg_pool2d"})
_SHARE = 8  # of the last cache, which other cores and weights use, too: one part in so many
_LEAST_LAYERS = 2  # of a segment: one layer reads and writes as much in blocks
_FULL = 4  # a block of fewer images than one part in so many of what fits is too small
_WEIGHTS = 2  # bytes of weights that a block reads again, for each byte that is stored

_BARRED = (Trait.RANDOM, Trait.SIDE_EFFECT, Trait.CHECKED, Trait.CONTROL_FLOW)


@dataclass(frozen=True)
class BatchBlocks:
    """Makes loops over blocks of a batch of layers whose values are larger than the cache."""

    name: ClassVar[str] = "batch_blocks"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with such loops; the graph itself where none pays."""
        room = context.target.l3 // _SHARE
        if not room or not context.capabilities.anchors or graph.updates:
            return graph
        rows = _rows_of(graph)
        segments = [] if rows is None else _segments(graph, rows, room)
        if rows is None or not segments:
            return graph
        context.count("segments", len(segments))
        return _Blocked(graph, rows, segments).build()


# --- which values have rows -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """The values whose first axis is a batch of images that do not know of each other, and the
    nodes that compute them in order. `later` depends on them otherwise."""

    batch: int
    values: frozenset[Value]
    nodes: tuple[Node, ...]
    later: frozenset[Node]


def _rows_of(graph: Graph) -> _Rows | None:
    """Find what has rows, from the inputs of a graph on; None where there is no batch."""
    first = next((node for node in graph.nodes if node.op in _LAYERS), None)
    batch = first.results[0].shape[0] if first is not None else 1
    if not isinstance(batch, int) or batch < 2:
        return None
    rows = {e.value for e in graph.inputs if e.role is Role.INPUT and _is_long(e.value, batch)}
    later: set[Value] = {e.value for e in graph.inputs if e.role is Role.INPUT} - rows
    nodes, behind = [], set[Node]()
    for node in graph.nodes:
        if any(operand in later for operand in node.operands):
            keeps = False
        elif not any(operand in rows for operand in node.operands):
            continue
        else:
            keeps = _keeps_rows(node, rows, batch)
        if keeps:
            nodes.append(node)
            rows.update(node.results)
        else:
            behind.add(node)
            later.update(node.results)
    return _Rows(batch, frozenset(rows), tuple(nodes), frozenset(behind))


def _is_long(value: Value, batch: int) -> bool:
    known = all(isinstance(size, int) for size in value.shape)
    return known and value.shape[:1] == (batch,) and value.type.layout == ROW_MAJOR


def _keeps_rows(node: Node, rows: set[Value], batch: int) -> bool:
    """Whether each row of the results of a node depends on that row of its operands alone."""
    traits = lookup(node.op).traits
    if has_bodies(node) or any(trait in traits for trait in _BARRED):
        return False
    if not all(_is_long(result, batch) for result in node.results):
        return False
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, rows, batch)
    return Trait.ELEMENTWISE in traits and _beside(node, rows)


def _beside(node: Node, rows: set[Value]) -> bool:
    """Whether broadcasting lines rows up with rows, and all else with no row."""
    rank = node.results[0].rank
    return all(
        operand.rank == rank if operand in rows else operand.rank < rank or operand.shape[0] == 1
        for operand in node.operands
    )


def _first_alone(node: Node, rows: set[Value], batch: int) -> bool:
    return not any(operand in rows for operand in node.operands[1:])


def _other_axes(node: Node, rows: set[Value], batch: int) -> bool:
    return 0 not in node.attributes["axes"]


def _reshaped(node: Node, rows: set[Value], batch: int) -> bool:
    return bool(_is_long(node.operands[0], batch))


def _concatenated(node: Node, rows: set[Value], batch: int) -> bool:
    return node.attributes["axis"] != 0 and all(operand in rows for operand in node.operands)


Rule = Callable[[Node, set[Value], int], bool]

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("conv2d", "max_pool2d", "avg_pool2d"), _first_alone),
    **dict.fromkeys(("sum", "max", "min"), _other_axes),
    "reshape": _reshaped,
    "concat": _concatenated,
}


# --- segments -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Segment:
    """Nodes that run on `block` images at a time."""

    block: int
    nodes: tuple[Node, ...]


Readers = Mapping[Value, Sequence[Node]]


def _bytes(values: Sequence[Value]) -> int:
    """Return the bytes of values, those of symbolic shapes left out."""
    return sum(byte_count(value) or 0 for value in values)


def _segments(graph: Graph, rows: _Rows, room: int) -> list[_Segment]:
    """Cut the nodes that have rows into segments, and return those whose loops pay."""
    largest, blocks = 0, list[int]()
    for node in reversed(rows.nodes):
        if node.op in _LAYERS:
            largest = max(largest, _bytes((node.operands[0], node.results[0])) // rows.batch)
        blocks.append(_block(rows.batch, room, largest))
    blocks.reverse()
    found: list[_Segment] = []
    for node, block in zip(rows.nodes, blocks, strict=True):
        if found and (node.op not in _LAYERS or found[-1].block == block):
            found[-1] = replace(found[-1], nodes=(*found[-1].nodes, node))
        else:
            found.append(_Segment(block, (node,)))
    readers = _readers_of(graph)
    return [segment for segment in found if _pays(segment, rows, graph, readers)]


def _block(batch: int, room: int, row: int) -> int:
    """Return the largest divisor of the batch so many rows of which there is room for.

    The batch itself where that would fill less than a quarter of the room.
    """
    most = batch if row == 0 else max(1, min(batch, room // row))
    block = next(n for n in range(most, 0, -1) if batch % n == 0)
    return batch if _FULL * block < most else block


def _readers_of(graph: Graph) -> Readers:
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(operand, []).append(node)
    return readers


def _handed_on(segment: _Segment, graph: Graph, readers: Readers) -> list[Value]:
    """Return the results in a segment that are read behind it, or returned by the graph."""
    inside, returned = set(segment.nodes), set(graph.returned)
    results = (value for node in segment.nodes for value in node.results)
    return [
        value
        for value in results
        if value in returned or any(node not in inside for node in readers.get(value, ()))
    ]


def _pays(segment: _Segment, rows: _Rows, graph: Graph, readers: Readers) -> bool:
    """Whether less comes from memory: values between layers, against weights read again.

    What is read behind a segment, such as what a gradient needs of each layer, goes there anyway.
    """
    layers = [node for node in segment.nodes if node.op in _LAYERS]
    if segment.block == rows.batch or len(layers) < _LEAST_LAYERS:
        return False
    again = _WEIGHTS * _bytes([v for node in layers for v in node.operands[1:]])
    near = {v for node in segment.nodes for v in node.results}
    near -= set(_handed_on(segment, graph, readers))
    saved = _bytes([v for v in {node.operands[0]: None for node in layers} if v in near])
    return saved > again * (rows.batch // segment.block - 1)


# --- the graph with loops -------------------------------------------------------------------------


class _Blocked:
    """Builds the graph: what depends on no row, then all that has rows, then what is left."""

    def __init__(self, graph: Graph, rows: _Rows, segments: Sequence[_Segment]) -> None:
        self.graph, self.rows = graph, rows
        self.segment_of = {node: segment for segment in segments for node in segment.nodes}
        self.readers = _readers_of(graph)

    def build(self) -> Graph:
        """Return the graph."""
        apart = {*self.rows.nodes, *self.rows.later}
        built = set[int]()
        with Rewriter(self.graph) as rewriter:
            for node in self.graph.nodes:
                if node not in apart:
                    rewriter.copy(node)
            for node in self.rows.nodes:
                segment = self.segment_of.get(node)
                if segment is None:
                    rewriter.copy(node)
                elif id(segment) not in built:
                    built.add(id(segment))
                    self._loop(rewriter, segment)
            for node in self.graph.nodes:
                if node in self.rows.later:
                    rewriter.copy(node)
            return rewriter.finish()

    def _loop(self, rewriter: Rewriter, segment: _Segment) -> None:
        """Build the scan of a segment over its blocks."""
        made = {v for n in segment.nodes for v in n.results}
        read = dict.fromkeys(v for n in segment.nodes for v in n.operands)
        elements = [v for v in read if v in self.rows.values and v not in made]
        kept = _handed_on(segment, self.graph, self.readers)
        length = self.rows.batch // segment.block
        begin(rewriter, segment.nodes[0])
        xs = [ops.reshape(rewriter[v], (length, segment.block, *v.shape[1:])) for v in elements]
        body, captured = self._body(rewriter, segment, elements, kept)
        attributes = {
            "body": body,
            "carries": 0,
            "elements": len(xs),
            "length": length,
            "reverse": False,
        }
        results = create_node("scan", (*xs, *captured), attributes)
        for old, new in zip(kept, results, strict=True):
            rewriter.replace(old, ops.reshape(new, old.shape))

    def _body(
        self,
        rewriter: Rewriter,
        segment: _Segment,
        elements: Sequence[Value],
        kept: Sequence[Value],
    ) -> tuple[Graph, list[Value]]:
        """Return the body of a scan for one block, and what it captures."""
        known: dict[Value, Value] = {}
        with GraphBuilder("block") as builder:
            for position, value in enumerate(elements):
                type_ = TensorType(value.dtype, (segment.block, *value.shape[1:]))
                known[value] = builder.input(type_, Role.ELEMENT, f"x{position}")
            for node in segment.nodes:
                operands = tuple(self._inner(rewriter, builder, v, known) for v in node.operands)
                builder.origin = NO_ORIGIN if node.origin is None else node.origin
                attributes = dict(node.attributes)
                if node.op == "reshape":
                    attributes["shape"] = (segment.block, *node.results[0].shape[1:])
                results = create_node(node.op, operands, attributes)
                known.update(zip(node.results, results, strict=True))
            for value in kept:
                builder.output(known[value])
            body = replace(builder.finish(), locations=self.graph.locations)
        outer = {inner: value for value, inner in builder.captures.items()}
        captured = [outer[e.value] for e in body.inputs if e.role is Role.CAPTURE]
        return body, captured

    def _inner(
        self, rewriter: Rewriter, builder: GraphBuilder, value: Value, known: dict[Value, Value]
    ) -> Value:
        """Return a value as the body reads it: what computes nothing is built there once more."""
        if value in known:
            return known[value]
        node = value.node
        if node is None or not (node.op in ("reshape", "expand") or _is_scalar(node)):
            return rewriter[value]
        operands = tuple(self._inner(rewriter, builder, v, known) for v in node.operands)
        builder.origin = NO_ORIGIN if node.origin is None else node.origin
        (known[value],) = create_node(node.op, operands, node.attributes)
        return known[value]


def _is_scalar(node: Node) -> bool:
    return node.op == "constant" and all(size == 1 for size in node.results[0].shape)
