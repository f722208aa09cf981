"""Cutting a graph into pieces for several devices: what one backend refuses, another one runs.

Nodes are taken device by device: as long as a node of the current device is ready it joins the
current piece, so that pieces are convex and none can be made larger by a node that is ready. Which
device comes first decides how many pieces there are; each is tried, and the fewest pieces win.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.errors import InternalError
from frame.core.shapes import Dim
from frame.ir.graph import Graph, GraphInput, Node, Role, Value, shape_symbols
from frame.runtime.steps import HostStep, RunStep, Step, TransferStep, WriteBackStep

NUMPY = Device("numpy", 0)
"""The device of nodes that no backend takes: the numpy references run them on the host."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceGraph:
    """The graph of one piece and where it runs. `sources` leads from its nodes to those cut."""

    graph: Graph
    device: Device
    sources: Mapping[Node, Node]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Pieces (of compiled devices, in the order of `RunStep.piece`), steps and result slots."""

    pieces: tuple[PieceGraph, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def cut(graph: Graph, devices: Mapping[Node, Device]) -> Partition:
    """Cut a graph by the device of each node; constants go wherever they are read."""
    return _Cutter(graph, devices).run()


def _memory_of(device: Device) -> Device:
    """The device whose memory a piece works in."""
    return HOST if device == NUMPY else device


def _moved(node: Node, values: dict[Value, Value]) -> Node:
    """Return a node over the values of a piece, and note its results."""
    operands = tuple(values[operand] for operand in node.operands)
    types = tuple(result.type for result in node.results)
    moved = Node(node.op, operands, node.attributes, types, node.origin)
    values.update(zip(node.results, moved.results, strict=True))
    return moved


def _symbols_of(node: Node) -> Iterator[str]:
    """Yield the symbols in the types and attributes of a node and of its bodies."""
    for result in node.results:
        yield from shape_symbols(result.shape)
    for attribute in node.attributes.values():
        items = attribute if isinstance(attribute, tuple) else (attribute,)
        yield from shape_symbols(tuple(item for item in items if isinstance(item, Dim)))
    for _, body in node.bodies:
        for inner in body.nodes:
            yield from _symbols_of(inner)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


Segment = tuple[Device, list[Node]]


def _segments(graph: Graph, devices: Mapping[Node, Device]) -> list[Segment]:
    """Return the nodes of each piece, in order, for the first device that gives fewest pieces."""
    found = [_segments_from(graph, devices, first) for first in dict.fromkeys(devices.values())]
    return min(found, key=len, default=[])


def _segments_from(graph: Graph, devices: Mapping[Node, Device], device: Device) -> list[Segment]:
    nodes = [node for node in graph.nodes if node.op != "constant"]
    waiting: dict[Node, int] = {}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        sources = {o.node for o in node.operands if o.node is not None}
        sources = {source for source in sources if source.op != "constant"}
        waiting[node] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(node)
    ready: dict[Device, deque[Node]] = {}
    for node in nodes:
        if not waiting[node]:
            ready.setdefault(devices[node], deque()).append(node)
    found: list[Segment] = []
    while any(ready.values()):
        taken = _closure(ready, device, devices, waiting, readers)
        if taken:
            found.append((device, taken))
        device = next((other for other, queue in ready.items() if queue), device)
    return found


def _closure(
    ready: dict[Device, deque[Node]],
    device: Device,
    devices: Mapping[Node, Device],
    waiting: dict[Node, int],
    readers: Mapping[Node, list[Node]],
) -> list[Node]:
    """Take every node of a device that is ready or becomes so by those taken."""
    taken: list[Node] = []
    queue = ready.setdefault(device, deque())
    while queue:
        node = queue.popleft()
        taken.append(node)
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.setdefault(devices[reader], deque()).append(reader)
    return taken


class _Cutter:
    """The state of one cut."""

    def __init__(self, graph: Graph, devices: Mapping[Node, Device]) -> None:
        self.graph = graph
        self.devices = devices
        self.slots: dict[tuple[Value, Device], int] = {
            (value, HOST): slot for slot, value in enumerate(graph.input_values)
        }
        self.homes: dict[Value, Device] = dict.fromkeys(graph.input_values, HOST)
        self.next_slot = len(graph.inputs)
        self.pieces: list[PieceGraph] = []
        self.steps: list[Step] = []

    def run(self) -> Partition:
        """Return the pieces and the steps."""
        for device, nodes in _segments(self.graph, self.devices):
            self._add_piece(device, nodes)
        outputs = tuple(self._slot(value, HOST) for value in self.graph.outputs)
        for update in self.graph.updates:
            if self._is_constant(update.value):
                self._constant_slot(update.value)
            device = self.homes[update.value]
            slot = self.slots[update.value, device]
            self.steps.append(WriteBackStep(slot, update.input_index, device))
        return Partition(tuple(self.pieces), tuple(self.steps), outputs)

    def _add_piece(self, device: Device, nodes: list[Node]) -> None:
        inside = set(nodes)
        sources = dict.fromkeys(operand.node for node in nodes for operand in node.operands)
        constants = [node for node in sources if node is not None and node.op == "constant"]
        made = {r for node in (*nodes, *constants) for r in node.results}
        reads = dict.fromkeys(o for node in nodes for o in node.operands if o not in made)
        self._add_sizes(reads, nodes)
        results = [r for node in nodes for r in node.results if self._needed(r, inside)]
        memory = _memory_of(device)
        inputs = tuple(self._slot(value, memory) for value in reads)
        graph = self._graph(tuple(reads), (*constants, *nodes), results, device)
        outputs = tuple(self._new_slot(result, memory) for result in results)
        if device == NUMPY:
            self.steps.append(HostStep(graph, inputs, outputs))
        else:
            self.steps.append(RunStep(len(self.pieces), inputs, outputs))
            moved = zip(graph.nodes, (*constants, *nodes), strict=True)
            self.pieces.append(PieceGraph(graph, device, dict(moved)))

    def _add_sizes(self, reads: dict[Value, None], nodes: list[Node]) -> None:
        """Let a piece read inputs of the whole graph for the symbols that nothing else binds."""
        bound = {symbol for value in reads for symbol in shape_symbols(value.shape)}
        for symbol in dict.fromkeys(s for node in nodes for s in _symbols_of(node)):
            if symbol not in bound:
                alone = Dim.symbol(symbol)
                value = next((v for v in self.graph.input_values if alone in v.shape), None)
                if value is not None:
                    reads[value] = None
                    bound.update(shape_symbols(value.shape))

    def _needed(self, value: Value, inside: set[Node]) -> bool:
        users = self.graph.uses.get(value, ())
        return value in self.graph.returned or any(node not in inside for node, _ in users)

    def _graph(
        self,
        reads: tuple[Value, ...],
        nodes: tuple[Node, ...],
        results: list[Value],
        device: Device,
    ) -> Graph:
        names = {entry.value: entry.name for entry in self.graph.inputs}
        taken = set(names.values())
        values = {value: Value(value.type) for value in reads}
        inputs = tuple(
            GraphInput(values[value], Role.INPUT, names.get(value) or _free(f"value{k}", taken))
            for k, value in enumerate(reads)
        )
        nodes = tuple(_moved(node, values) for node in nodes)
        results = [values[result] for result in results]
        outputs = tuple(f"output{k}" for k in range(len(results)))
        name = f"{self.graph.name}_{device.backend}{len(self.steps)}"
        return Graph(inputs, nodes, tuple(results), (), name, outputs, self.graph.locations)

    def _new_slot(self, value: Value, device: Device) -> int:
        slot = self.next_slot
        self.next_slot += 1
        self.slots[value, device] = slot
        self.homes.setdefault(value, device)
        return slot

    def _slot(self, value: Value, device: Device) -> int:
        """Return the slot of a value on a device, with a transfer if it is elsewhere."""
        if (value, device) in self.slots:
            return self.slots[value, device]
        if self._is_constant(value):
            return self._constant_slot(value)
        home = self.homes.get(value)
        if home is None:
            raise InternalError(f"{value!r} is read before it is made")
        via = home if HOST in (home, device) else HOST
        source = self._slot(value, via)
        target = self._new_slot(value, device)
        self.steps.append(TransferStep(source, target, via, device))
        return target

    @staticmethod
    def _is_constant(value: Value) -> bool:
        return value.node is not None and value.node.op == "constant"

    def _constant_slot(self, value: Value) -> int:
        """A constant that is a result itself: a host step makes it."""
        if (value, HOST) in self.slots:
            return self.slots[value, HOST]
        graph = self._graph((), (value.node,), [value], NUMPY)  # type: ignore[arg-type]
        slot = self._new_slot(value, HOST)
        self.steps.append(HostStep(graph, (), (slot,)))
        return slot
