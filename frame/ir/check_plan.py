"""The verifier of memory plans: replays the schedule and watches who owns every byte.

It knows nothing of how plans are made. Every range of every buffer has an owner, the value whose
bytes stand there. A step reads its operands (the owner must be the value asked for, at the right
displacement), then writes its workspaces and results. What it proves:

    M1  the plan has the shape of the graph: one place a value, one entry a node, one plan a body
    M2  offsets are aligned, inside their buffer, and of the interval that the slot states
    M3  slots whose intervals meet do not overlap
    M4  every read finds the bytes that the producer wrote
    M5  a result overlaps no operand, workspace or other result of its step, but for the operands
        that the node lets it overwrite
    M6  an input is written only if it is a state, after its last reader and every node whose check
        can fail (none has checked the same indices before), and not before the step at which the
        program looks at the status
    M7  at the end every output and every state holds its value, and every other input its own
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from frame.core.dataclass import dataclass
from frame.core.errors import InternalError
from frame.core.shapes import Dim, Size
from frame.ir.graph import Constant, Graph, Node, Value, op_table
from frame.ir.memory import MemoryPlan, Place, Purpose, Space

_ALIGNMENT = 64


def check_plan(
    graph: Graph,
    plan: MemoryPlan,
    workspaces: Mapping[Node, tuple[Size, ...]] | None = None,
    overwritable: Mapping[Node, tuple[tuple[int, int], ...]] | None = None,
    views: Mapping[Value, Value | tuple[Value, Size]] | None = None,
    bindings: Mapping[str, int] | None = None,
    opaque: Collection[str] = ("group",),
) -> None:
    """Prove that a plan is right for one binding of the symbols; the arguments are the planner's.

    Raises:
        InternalError: it is not; the message starts with the number of the broken rule.
    """
    facts = _Facts(
        workspaces or {}, overwritable or {}, views or {}, dict(bindings or {}), frozenset(opaque)
    )
    filled = plan.fill(bindings)
    _Replay(graph, plan, list(filled.offsets), filled.arena_size, facts).run()


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the caller says of the nodes."""

    workspaces: Mapping[Node, tuple[Size, ...]]
    overwritable: Mapping[Node, tuple[tuple[int, int], ...]]
    views: Mapping[Value, Value | tuple[Value, Size]]
    bindings: Mapping[str, int]
    opaque: frozenset[str]

    def number(self, size: Size) -> int:
        """Return a size as an int."""
        return size.evaluate(self.bindings) if isinstance(size, Dim) else size


@dataclass(frozen=True, slots=True)
class _Region:
    """Bytes [begin, end) of a buffer."""

    buffer: tuple[str, int]
    begin: int
    end: int

    def meets(self, other: _Region) -> bool:
        """Tell whether two regions share a byte."""
        return self.buffer == other.buffer and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True, eq=False)
class _Owner:
    """The value whose bytes stand in a range, and where its first byte is."""

    value: Value | None
    origin: int


class _Buffer:
    """A buffer as a sorted list of owned ranges that do not overlap."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ranges: list[tuple[int, int, _Owner]] = []

    def write(self, begin: int, end: int, owner: _Owner) -> None:
        """Give [begin, end) to an owner."""
        if begin >= end:
            return
        first = max(bisect_right(self._begins, begin) - 1, 0)
        last = bisect_left(self._begins, end)
        kept = []
        for old_begin, old_end, old in self._ranges[first:last]:
            if old_begin < begin:
                kept.append((old_begin, min(old_end, begin), old))
            if old_end > end:
                kept.append((max(old_begin, end), old_end, old))
        kept.append((begin, end, owner))
        kept = sorted((item for item in kept if item[0] < item[1]), key=lambda item: item[0])
        self._ranges[first:last] = kept
        self._begins[first:last] = [item[0] for item in kept]

    def owners(self, begin: int, end: int) -> list[tuple[int, int, _Owner | None]]:
        """Return who owns [begin, end), range by range; None for bytes never written."""
        found: list[tuple[int, int, _Owner | None]] = []
        position = begin
        first = max(bisect_right(self._begins, begin) - 1, 0)
        for low, high, owner in self._ranges[first:]:
            if low >= end:
                break
            if high > position:
                if low > position:
                    found.append((position, low, None))
                found.append((max(low, position), min(high, end), owner))
                position = min(high, end)
        if position < end:
            found.append((position, end, None))
        return found


class _Replay:
    """Runs the schedule of one graph on buffers that know their owners."""

    def __init__(
        self, graph: Graph, plan: MemoryPlan, table: list[int], arena: int, facts: _Facts
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._table = table
        self._arena = arena
        self._facts = facts
        self._step = 0
        self._buffers: dict[tuple[str, int], _Buffer] = {}
        self._limits: dict[tuple[str, int], int] = {("arena", 0): arena}
        self._source: dict[Value, tuple[Value, int]] = {}
        self._places: dict[Value, Place] = {}
        self._sizes: dict[Value, int] = {}
        self._extents: dict[int, int] = {}
        self._states = {update.input_index for update in graph.updates}
        self._last_check = self._last_failing_check()

    def _last_failing_check(self) -> int:
        """Return the last step with a check that no earlier step has made on the same bytes."""
        passed: set[tuple[Value, Size]] = set()
        last = -1
        for step, node in enumerate(self._graph.nodes):
            asked, promised = _index_claims(node)
            wanted = None if asked is None else {(self._seen(v), limit) for v, limit in asked}
            if wanted is None or not wanted <= passed:
                last = step
            passed.update((self._seen(v), limit) for v, limit in promised)
        return last

    def _seen(self, value: Value) -> Value:
        """Follow views that show all of an operand from its first byte on."""
        while (target := self._facts.views.get(value)) is not None:
            operand, offset = target if isinstance(target, tuple) else (target, 0)
            if self._facts.number(offset) or self._size(operand) != self._size(value):
                break
            value = operand
        return value

    def run(self) -> None:
        """Check the whole plan."""
        self._check_shape()
        self._check_slots()
        self._start()
        for step, node in enumerate(self._graph.nodes):
            self._step = step
            self._run_node(node)
        self._step = len(self._graph.nodes)
        self._run_copies()
        self._check_end()
        self._check_bodies()

    def _fail(self, rule: int, problem: str) -> NoReturn:
        where = f"the memory plan of {self._graph.name!r} at step {self._step}"
        if self._step < len(self._graph.nodes):
            where += f" ({self._graph.nodes[self._step].op})"
        raise InternalError(f"M{rule}: {problem}; in {where}")

    # --- M1: the shape of the plan --------------------------------------------------------------

    def _check_shape(self) -> None:
        values = list(dict.fromkeys(self._graph.input_values))
        values += [value for node in self._graph.nodes for value in node.results]
        if len(values) != len(self._plan.places):
            self._fail(1, f"there are {len(values)} values, {len(self._plan.places)} places")
        if len(self._graph.nodes) != len(self._plan.workspaces):
            self._fail(1, "there must be one list of workspaces a node")
        self._places = dict(zip(values, self._plan.places, strict=True))
        for node, slots in zip(self._graph.nodes, self._plan.workspaces, strict=True):
            if len(self._facts.workspaces.get(node, ())) != len(slots):
                self._fail(1, f"a {node.op} node asks for another number of workspaces")
        expected = [
            (step, name)
            for step, node in enumerate(self._graph.nodes)
            if node.op not in self._facts.opaque
            for name, _ in node.bodies
        ]
        if [(body.node, body.attribute) for body in self._plan.bodies] != expected:
            self._fail(1, "the planned bodies are not those of the graph")

    # --- M2, M3: slots --------------------------------------------------------------------------

    def _extent(self, index: int) -> int:
        """Return the bytes that a slot occupies."""
        if index not in self._extents:
            slot = self._plan.slots[index]
            inner = (self._body_height(body) for body in slot.bodies)
            self._extents[index] = max([self._facts.number(slot.size), *inner])
        return self._extents[index]

    def _body_height(self, index: int) -> int:
        body = self._plan.bodies[index]
        return body.plan.fill(self._facts.bindings).arena_size

    def _check_slots(self) -> None:
        spans = []
        for index, slot in enumerate(self._plan.slots):
            begin = self._table[index]
            end = begin + self._extent(index)
            if begin % _ALIGNMENT or not 0 <= begin <= end <= self._arena:
                self._fail(2, f"slot {index} at {begin} to {end} is misaligned or outside")
            if begin < end:
                spans.append((begin, end, slot.start, slot.end, index))
        spans.sort()
        for position, (_, end, start, last, index) in enumerate(spans):
            for other in spans[position + 1 :]:
                if other[0] >= end:
                    break
                if other[2] <= last and start <= other[3]:
                    self._fail(3, f"slots {index} and {other[4]} are live together and overlap")

    def _slot_region(self, index: int) -> _Region:
        if index >= len(self._plan.slots):
            self._fail(1, f"there is no slot {index}")
        slot = self._plan.slots[index]
        if not slot.start <= self._step <= slot.end:
            self._fail(2, f"slot {index} is used outside its interval {slot.start}..{slot.end}")
        begin = self._table[index]
        return _Region(("arena", 0), begin, begin + self._extent(index))

    # --- places to bytes ------------------------------------------------------------------------

    def _region(self, place: Place, size: int) -> _Region:
        begin = self._facts.number(place.offset)
        if place.space is Space.ARENA:
            whole = self._slot_region(place.index)
            region = _Region(whole.buffer, whole.begin + begin, whole.begin + begin + size)
            if not whole.begin <= region.begin <= region.end <= whole.end:
                self._fail(2, f"{place} of {size} bytes leaves its slot")
            return region
        region = _Region((str(place.space), place.index), begin, begin + size)
        limit = self._limits.get(region.buffer)
        if limit is None or not 0 <= begin <= region.end <= limit:
            self._fail(2, f"{place} of {size} bytes leaves its buffer of {limit} bytes")
        return region

    def _region_of(self, value: Value) -> _Region:
        return self._region(self._places[value], self._size(value))

    def _size(self, value: Value) -> int:
        if value not in self._sizes:
            self._sizes[value] = self._facts.number(value.type.nbytes)
        return self._sizes[value]

    def _write(self, region: _Region, value: Value | None) -> None:
        buffer = self._buffers.setdefault(region.buffer, _Buffer())
        buffer.write(region.begin, region.end, _Owner(value, region.begin))

    def _expect(self, rule: int, region: _Region, value: Value, what: str) -> None:
        """Fail unless a region holds exactly the bytes of a value."""
        source, offset = self._source[value]
        buffer = self._buffers.setdefault(region.buffer, _Buffer())
        for begin, end, owner in buffer.owners(region.begin, region.end):
            if owner is None or owner.value is not source:
                holder = "nothing" if owner is None else f"{owner.value!r}"
                self._fail(
                    rule,
                    f"{what} needs {value!r} at {region}, bytes {begin} to {end} hold {holder}",
                )
            if region.begin - owner.origin != offset:
                self._fail(rule, f"{what} finds {value!r} displaced at {region}")

    # --- the schedule ---------------------------------------------------------------------------

    def _start(self) -> None:
        for index, value in enumerate(self._graph.input_values):
            self._limits["input", index] = self._size(value)
            self._source[value] = (value, 0)
            if self._places[value] != Place(Space.INPUT, index):
                self._fail(1, f"input {index} must stay in its own memory")
            self._write(_Region(("input", index), 0, self._size(value)), value)
        for index, value in enumerate(self._graph.outputs):
            self._limits["output", index] = self._size(value)
        constants = [node for node in self._graph.nodes if _holds_constant(node)]
        for index, node in enumerate(constants):
            self._limits["constant", index] = self._size(node.results[0])

    def _run_node(self, node: Node) -> None:
        views = [value for value in node.results if value in self._facts.views]
        fresh = [value for value in node.results if value not in self._facts.views]
        if fresh or not node.results:
            for position, operand in enumerate(node.operands):
                self._expect(4, self._region_of(operand), operand, f"operand {position}")
        if _holds_constant(node):
            self._define_constant(node)
        else:
            self._check_overlaps(node, fresh)
            self._write_results(fresh)
        for value in views:
            self._define_view(value)

    def _define_constant(self, node: Node) -> None:
        value = node.results[0]
        self._source[value] = (value, 0)
        if self._places[value].space is not Space.CONSTANT:
            self._fail(1, "a constant must live in constant memory")
        region = self._region_of(value)
        if self._buffers.get(region.buffer) is not None:
            self._fail(5, "two constants share a place")
        self._write(region, value)

    def _define_view(self, value: Value) -> None:
        target = self._facts.views[value]
        operand, offset = target if isinstance(target, tuple) else (target, 0)
        source, start = self._source[operand]
        # Whether its place is right is seen by its readers; a view that none reads may be anywhere.
        self._source[value] = (source, start + self._facts.number(offset))

    def _write_results(self, results: Iterable[Value]) -> None:
        for value in results:
            self._source[value] = (value, 0)
            region = self._region_of(value)
            self._check_input_write(region)
            if region.buffer[0] == "constant":
                self._fail(5, f"{value!r} is written over a constant")
            self._write(region, value)

    def _check_input_write(self, region: _Region) -> None:
        """M6; that no reader follows is seen when a reader finds another owner."""
        space, index = region.buffer
        if space != "input":
            return
        if index not in self._states:
            self._fail(6, f"input {index} is no state and must not be written")
        self._check_status()

    def _check_status(self) -> None:
        if self._last_check < 0:
            return
        status = self._plan.status_step
        if self._last_check >= self._step:
            self._fail(6, "a state is written before the last index check")
        if status is None or not self._last_check < status <= self._step:
            self._fail(6, f"the status is looked at before step {status}, too early or too late")

    # --- M5: overlaps inside one step -------------------------------------------------------------

    def _check_overlaps(self, node: Node, fresh: list[Value]) -> None:
        results = [(value, self._region_of(value)) for value in fresh]
        scratch = self._scratch_regions(node)
        touched = node.operands if fresh or not node.results else ()
        reads = [(p, self._region_of(v)) for p, v in enumerate(touched)]
        for index, region in enumerate(scratch):
            others = scratch[index + 1 :] + [r for _, r in results] + [r for _, r in reads]
            if any(region.meets(other) for other in others):
                self._fail(5, f"a workspace overlaps another buffer of its step at {region}")
            self._write(region, None)
        for index, (value, region) in enumerate(results):
            if any(region.meets(other) for _, other in results[index + 1 :]):
                self._fail(5, f"two results overlap at {region}")
            self._check_in_place(node, value, region, reads)

    def _scratch_regions(self, node: Node) -> list[_Region]:
        regions = []
        sizes = self._facts.workspaces.get(node, ())
        for size, slot in zip(sizes, self._plan.workspaces[self._step], strict=True):
            region = self._slot_region(slot)
            if region.end - region.begin < self._facts.number(size):
                self._fail(2, f"slot {slot} is too small for a workspace of {size} bytes")
            regions.append(region)
        bodies = {body.slot for body in self._plan.bodies if body.node == self._step}
        return regions + [self._slot_region(slot) for slot in sorted(bodies)]

    def _check_in_place(
        self, node: Node, value: Value, region: _Region, reads: list[tuple[int, _Region]]
    ) -> None:
        pairs = self._facts.overwritable.get(node, ())
        for position, read in reads:
            allowed = (value.index, position) in pairs and read == region
            if region.meets(read) and not allowed:
                self._fail(5, f"result {value.index} overlaps operand {position} at {read}")

    # --- M7: the end ----------------------------------------------------------------------------

    def _run_copies(self) -> None:
        for copy in self._plan.copies:
            size = self._facts.number(copy.nbytes)
            source, target = self._region(copy.source, size), self._region(copy.target, size)
            if source.meets(target):
                self._fail(5, f"the copy from {copy.source} to {copy.target} overlaps itself")
            self._check_input_write(target)
            if copy.target.space is Space.CONSTANT:
                self._fail(5, "a copy is made into constant memory")
            if copy.target.space is Space.ARENA:
                self._check_snapshot(copy.target)
            self._move(source, target)

    def _check_snapshot(self, target: Place) -> None:
        if self._plan.slots[target.index].purpose is not Purpose.SNAPSHOT:
            self._fail(5, f"a copy is made into slot {target.index}, which is no snapshot")

    def _move(self, source: _Region, target: _Region) -> None:
        owners = self._buffers.setdefault(source.buffer, _Buffer()).owners(source.begin, source.end)
        buffer = self._buffers.setdefault(target.buffer, _Buffer())
        shift = target.begin - source.begin
        for begin, end, owner in owners:
            if owner is None:
                self._fail(4, f"a copy reads bytes that nothing wrote at {source}")
            moved = _Owner(owner.value, owner.origin + shift)
            buffer.write(begin + shift, end + shift, moved)

    def _check_end(self) -> None:
        for index, value in enumerate(self._graph.outputs):
            self._expect(7, _Region(("output", index), 0, self._size(value)), value, "an output")
        finals = dict(enumerate(self._graph.input_values))
        finals.update({update.input_index: update.value for update in self._graph.updates})
        for index, value in finals.items():
            region = _Region(("input", index), 0, self._limits["input", index])
            self._expect(7, region, value, f"input {index} at the end")

    # --- bodies ---------------------------------------------------------------------------------

    def _check_bodies(self) -> None:
        entry = len(self._plan.slots)
        for body in self._plan.bodies:
            length = body.plan.table_length
            base = self._table[body.slot]
            table = [offset - base for offset in self._table[entry : entry + length]]
            entry += length
            graph = self._graph.nodes[body.node].attributes[body.attribute]
            height = body.plan.fill(self._facts.bindings).arena_size
            if height > self._extent(body.slot):
                self._fail(2, f"the arena of body {body.attribute!r} leaves its slot")
            _Replay(graph, body.plan, table, height, self._facts).run()


def _holds_constant(node: Node) -> bool:
    return not node.operands and [type(v) for v in node.attributes.values()] == [Constant]


def _checks(node: Node) -> bool:
    inner = (n for _, body in node.bodies for n in body.nodes)
    return "checked" in op_table().lookup(node.op).traits or any(_checks(n) for n in inner)


_Claims = list[tuple[Value, Size]]


def _index_claims(node: Node) -> tuple[_Claims | None, _Claims]:
    """Return the indices that a node checks, None if it can't be told, and those it vouches for.

    What a group checks inside stays a value of its body, which no other step vouches for.
    """
    if node.op != "group":
        claims = list(op_table().lookup(node.op).indices(node).items())
        known = not any(node.bodies) and bool(claims)
        return (claims if known else None) if _checks(node) else [], claims
    body = node.attributes["body"]
    names = dict(zip(body.input_values, node.operands, strict=True))
    names |= dict(zip(body.outputs, node.results, strict=True))
    asked: _Claims | None = []
    promised: _Claims = []
    for inner_asked, inner_promised in map(_index_claims, body.nodes):
        promised += [(names.get(value, value), limit) for value, limit in inner_promised]
        if asked is not None and inner_asked is not None:
            asked += [(names.get(value, value), limit) for value, limit in inner_asked]
        else:
            asked = None
    return asked, promised
