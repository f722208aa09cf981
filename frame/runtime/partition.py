"""Cutting a graph into pieces for several devices: what one backend refuses, another one runs.

Nodes are taken device by device: as long as a node of the current device is ready it joins the
current piece, so that pieces are convex and none can be made larger by a node that is ready. Which
device comes first decides how many pieces there are; each is tried, and the fewest pieces win.

The last piece updates its state in place, where its device can: after it come only copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.errors import InternalError
from frame.core.shapes import Dim
from frame.ir.graph import (
    Graph,
    GraphInput,
    Node,
    Role,
    StateUpdate,
    Value,
    shape_symbols,
)
from frame.runtime.late_nodes import late_nodes
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


def cut(
    graph: Graph, devices: Mapping[Node, Device], donating: Collection[Device] = ()
) -> Partition:
    """Cut a graph by the device of each node; constants go wherever they are read.

    Those `donating` write the new values of state in place.
    """
    return _Cutter(graph, devices, donating).run()


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


def _segments(
    graph: Graph, devices: Mapping[Node, Device], late: Collection[Node] = ()
) -> list[Segment]:
    """Return the nodes of each piece, in order, for the first device that gives fewest pieces.

    Nodes that are `late`, which no other ones read, come after all others.
    """
    firsts = dict.fromkeys(devices.values())
    found = [_Walk(graph, devices, late).segments(first) for first in firsts]
    return min(found, key=len, default=[])


class _Walk:
    """One way through a graph: which nodes wait for others, and which are ready by device."""

    def __init__(
        self, graph: Graph, devices: Mapping[Node, Device], late: Collection[Node]
    ) -> None:
        self._devices = devices
        self._late = late
        self._waiting: dict[Node, int] = {}
        self._readers: dict[Node, list[Node]] = {}
        self._ready: dict[Device, deque[Node]] = {}
        self._held: list[Node] = []  # late nodes that are ready
        nodes = [node for node in graph.nodes if node.op != "constant"]
        for node in nodes:
            sources = {o.node for o in node.operands if o.node is not None}
            sources = {source for source in sources if source.op != "constant"}
            self._waiting[node] = len(sources)
            for source in sources:
                self._readers.setdefault(source, []).append(node)
        for node in nodes:
            if not self._waiting[node]:
                self._put(node)

    def segments(self, device: Device) -> list[Segment]:
        """Take all nodes, from those of `device` on."""
        found = self._taken(device)
        self._late, held = (), self._held
        for node in held:
            self._put(node)
        found += self._taken(found[-1][0] if found else device)
        return _joined(found)

    def _put(self, node: Node) -> None:
        if node in self._late:
            self._held.append(node)
        else:
            self._ready.setdefault(self._devices[node], deque()).append(node)

    def _taken(self, device: Device) -> list[Segment]:
        found: list[Segment] = []
        while any(self._ready.values()):
            if taken := self._closure(device):
                found.append((device, taken))
            device = next((other for other, queue in self._ready.items() if queue), device)
        return found

    def _closure(self, device: Device) -> list[Node]:
        """Take every node of a device that is ready or becomes so by those taken."""
        taken: list[Node] = []
        queue = self._ready.setdefault(device, deque())
        while queue:
            node = queue.popleft()
            taken.append(node)
            for reader in self._readers.get(node, ()):
                self._waiting[reader] -= 1
                if not self._waiting[reader]:
                    self._put(reader)
        return taken


def _joined(segments: list[Segment]) -> list[Segment]:
    """Return the segments with neighbours of one device as one."""
    found: list[Segment] = []
    for device, nodes in segments:
        if found and found[-1][0] == device:
            found[-1] = (device, found[-1][1] + nodes)
        else:
            found.append((device, nodes))
    return found


def _in_place(
    graph: Graph, segments: list[Segment], donating: Collection[Device]
) -> tuple[StateUpdate, ...]:
    """Return the updates that the last piece makes where the state is.

    Its old value must not be returned, nor become the new value of another state.
    """
    device, nodes = segments[-1] if segments else (NUMPY, [])
    if device not in donating:
        return ()
    made = {result for node in nodes for result in node.results}
    kept = set(graph.returned)
    return tuple(
        update
        for update in graph.updates
        if update.value in made and graph.input_values[update.input_index] not in kept
    )


class _Cutter:
    """The state of one cut."""

    def __init__(
        self, graph: Graph, devices: Mapping[Node, Device], donating: Collection[Device]
    ) -> None:
        self.graph = graph
        self.segments = _segments(graph, devices, late_nodes(graph, devices, donating))
        self.in_place = _in_place(graph, self.segments, donating)
        self.written_back = {u.value for u in graph.updates if u not in self.in_place}
        self.slots: dict[tuple[Value, Device], int] = {
            (value, HOST): slot for slot, value in enumerate(graph.input_values)
        }
        self.homes: dict[Value, Device] = dict.fromkeys(graph.input_values, HOST)
        self.next_slot = len(graph.inputs)
        self.pieces: list[PieceGraph] = []
        self.steps: list[Step] = []

    def run(self) -> Partition:
        """Return the pieces and the steps."""
        for device, nodes in self.segments[:-1]:
            self._add_piece(device, nodes)
        for value in self.graph.outputs:  # what is there already comes home before state changes
            if value in self.homes:
                self._slot(value, HOST)
        for device, nodes in self.segments[-1:]:
            self._add_piece(device, nodes, self.in_place)
        outputs = tuple(self._slot(value, HOST) for value in self.graph.outputs)
        for update in self.graph.updates:
            self._write_back(update)
        return Partition(tuple(self.pieces), tuple(self.steps), outputs)

    def _write_back(self, update: StateUpdate) -> None:
        if update in self.in_place:
            device = _memory_of(self.segments[-1][0])
            slot = self.slots[self.graph.input_values[update.input_index], device]
        else:
            if self._is_constant(update.value):
                self._constant_slot(update.value)
            device = self.homes[update.value]
            slot = self.slots[update.value, device]
        self.steps.append(WriteBackStep(slot, update.input_index, device))

    def _add_piece(
        self, device: Device, nodes: list[Node], updates: tuple[StateUpdate, ...] = ()
    ) -> None:
        inside = set(nodes)
        sources = dict.fromkeys(operand.node for node in nodes for operand in node.operands)
        constants = [node for node in sources if node is not None and node.op == "constant"]
        made = {r for node in (*nodes, *constants) for r in node.results}
        reads = dict.fromkeys(o for node in nodes for o in node.operands if o not in made)
        reads.update(dict.fromkeys(self.graph.input_values[u.input_index] for u in updates))
        self._add_sizes(reads, nodes)
        results = [r for node in nodes for r in node.results if self._needed(r, inside)]
        memory = _memory_of(device)
        inputs = tuple(self._slot(value, memory) for value in reads)
        graph = self._graph(tuple(reads), (*constants, *nodes), results, device, updates)
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
        wanted = value in self.graph.outputs or value in self.written_back
        return wanted or any(node not in inside for node, _ in users)

    def _graph(
        self,
        reads: tuple[Value, ...],
        nodes: tuple[Node, ...],
        results: list[Value],
        device: Device,
        updates: tuple[StateUpdate, ...] = (),
    ) -> Graph:
        names = {entry.value: entry.name for entry in self.graph.inputs}
        states = [self.graph.inputs[update.input_index] for update in updates]
        roles = {entry.value: entry.role for entry in states}
        taken = set(names.values())
        values = {value: Value(value.type) for value in reads}
        inputs = tuple(
            GraphInput(
                values[value],
                roles.get(value, Role.INPUT),
                names.get(value) or _free(f"value{k}", taken),
            )
            for k, value in enumerate(reads)
        )
        nodes = tuple(_moved(node, values) for node in nodes)
        results = [values[result] for result in results]
        places = {value: position for position, value in enumerate(reads)}
        moved = tuple(
            StateUpdate(places[entry.value], values[update.value])
            for entry, update in zip(states, updates, strict=True)
        )
        outputs = tuple(f"output{k}" for k in range(len(results)))
        name = f"{self.graph.name}_{device.backend}{len(self.steps)}"
        return Graph(inputs, nodes, tuple(results), moved, name, outputs, self.graph.locations)

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
