"""Memory planning: an analysis that gives every value of an ordered graph its memory.

1. Views share the memory of what they look at. A value and its views are one *block*.
2. In place: a result joins the block of an operand that dies at its node, where the node allows it.
3. Donation: the block of an update's value is computed into the memory of the state, if the state
   has no later reader and every node whose check of indices can fail comes before; one that checks
   again what an earlier one has checked can't.
4. Outputs are computed into output memory. What can't be (a value returned twice, an input or a
   constant returned as it is, a view) is copied at the end.
5. All other blocks, the workspaces, and the arenas of bodies become slots of the arena.

`frame.ir.check_plan` proves a plan right by replaying it, and shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size
from frame.ir.graph import Constant, Graph, Node, Value, op_table
from frame.ir.memory import (
    ALIGNMENT,
    BodyPlan,
    Copy,
    MemoryPlan,
    Offsets,
    Place,
    Purpose,
    Slot,
    Space,
    evaluate,
)
from frame.ir.printer import print_node

__all__ = [
    "ALIGNMENT",
    "BodyPlan",
    "Copy",
    "MemoryPlan",
    "Offsets",
    "Place",
    "Purpose",
    "Slot",
    "Space",
    "is_checked",
    "plan_memory",
]

Workspaces = Mapping[Node, tuple[Size, ...]]
Overwritable = Mapping[Node, tuple[tuple[int, int], ...]]
Views = Mapping[Value, "Value | tuple[Value, Size]"]

OPAQUE = frozenset({"group"})
"""Ops whose bodies are not planned: a group is one kernel, its backend names its workspaces."""


def plan_memory(
    graph: Graph,
    workspaces: Workspaces | None = None,
    overwritable: Overwritable | None = None,
    views: Views | None = None,
    bindings: Mapping[str, int] | None = None,
    opaque: Collection[str] = OPAQUE,
) -> MemoryPlan:
    """Plan the memory of a graph whose nodes stand in their order of execution.

    Args:
        graph: the graph, verified.
        workspaces: the scratch buffers, in bytes, of nodes of the graph or of any body in it.
        overwritable: the (result, operand position) pairs of a node where the result may be
            written over that operand, element by element, when nothing reads it afterwards.
        views: results that are no more than another look at an operand of their node: the operand,
            or the operand and the number of bytes at which the result begins in it.
        bindings: values of the symbols; the plan is then one without symbols.
        opaque: ops whose bodies the planner leaves to the backend.

    Raises:
        InvalidArgumentError: a view or a pair does not fit its node.
    """
    hints = _Hints(workspaces or {}, overwritable or {}, views or {}, bindings, frozenset(opaque))
    return _Planner(graph, hints).plan()


def is_checked(node: Node) -> bool:
    """Tell whether a node, or one in its bodies, checks indices and can fail at run time."""
    if "checked" in op_table().lookup(node.op).traits:
        return True
    return any(is_checked(inner) for _, body in node.bodies for inner in body.nodes)


def _with_indices(node: Node) -> Iterator[tuple[Node, Mapping[Value, Size]]]:
    """Yield a node, or each of a group, with its indices as values outside of the group."""
    if node.op not in OPAQUE:
        yield node, op_table().lookup(node.op).indices(node)
        return
    ((_, body),) = node.bodies
    outside = dict(zip(body.input_values, node.operands, strict=True))
    outside.update(zip(body.outputs, node.results, strict=True))
    for inner in body.nodes:
        indices = op_table().lookup(inner.op).indices(inner)
        yield inner, {outside.get(value, value): limit for value, limit in indices.items()}


@dataclass(frozen=True, slots=True)
class _Hints:
    """The arguments of `plan_memory`, which bodies share."""

    workspaces: Workspaces
    overwritable: Overwritable
    views: Views
    bindings: Mapping[str, int] | None
    opaque: frozenset[str]

    def bound(self, size: Size) -> Size:
        """Return a size with the symbols bound, where bindings were given."""
        return size if self.bindings is None else evaluate(size, self.bindings)


@dataclass(eq=False, slots=True)
class _Block:
    """Values that share memory from its first byte on, one after the other."""

    size: Size
    start: int  # the step that writes it first; -1 for an input
    last: int  # the last step that reads it
    first: Value | None = None  # the value that is written first; None for inputs and constants
    place: Place | None = None
    overwritten: bool = field(default=False)  # in the step that is being planned


class _Planner:
    """Plans one graph. Steps are node indices; `self._end` is the step after the last node."""

    def __init__(self, graph: Graph, hints: _Hints) -> None:
        self._graph = graph
        self._hints = hints
        self._end = len(graph.nodes)
        self._home: dict[Value, tuple[Value, Size]] = {}
        self._block: dict[Value, _Block] = {}
        self._blocks: list[_Block] = []
        self._slots: list[Slot] = []
        self._bodies: list[BodyPlan] = []
        self._copies: list[Copy] = []
        self._donated: dict[int, _Block] = {}
        self._sizes: dict[Value, Size] = {}

    def plan(self) -> MemoryPlan:
        """Return the plan."""
        self._find_homes()
        self._last = self._last_reads()
        self._last_checked = self._find_last_checked()
        self._inputs = {value: i for i, value in enumerate(self._graph.input_values)}
        self._states = self._states_by_root()
        self._make_blocks()
        self._place_outputs()
        self._place_in_arena()
        workspaces = tuple(self._scratch(index) for index in range(self._end))
        self._copy_outputs()
        self._copy_states()
        return MemoryPlan(
            tuple(self._place(value) for value in self._home),
            tuple(self._slots),
            workspaces,
            tuple(self._bodies),
            tuple(self._copies),
            self._status_step(),
        )

    # --- 1. views -----------------------------------------------------------------------------

    def _find_homes(self) -> None:
        """Fill, in order of value numbers: value -> (the value that owns its memory, offset)."""
        for value in self._graph.input_values:
            self._home[value] = (value, 0)
        for node in self._graph.nodes:
            for value in node.results:
                self._home[value] = self._home_of(node, value)

    def _home_of(self, node: Node, value: Value) -> tuple[Value, Size]:
        view = self._hints.views.get(value)
        if view is None:
            return value, 0
        operand, offset = view if isinstance(view, tuple) else (view, 0)
        if operand not in node.operands:
            raise InvalidArgumentError(
                f"a view must look at an operand of its node, received another value for "
                f"{print_node(node, self._graph)}"
            )
        root, start = self._home[operand]
        return root, start + self._hints.bound(offset)

    def _last_reads(self) -> dict[Value, int]:
        """Return, for each root, the last step that reads it or one of its views."""
        last: dict[Value, int] = {}
        for step, node in enumerate(self._graph.nodes):
            for value in node.results:
                last.setdefault(self._home[value][0], step)
            if not all(result in self._hints.views for result in node.results) or not node.results:
                for operand in node.operands:
                    last[self._home[operand][0]] = step
        for value in self._graph.returned:
            last[self._home[value][0]] = self._end
        return last

    def _find_last_checked(self) -> int:
        """Return the last step that can fail: earlier ones may have checked what it checks."""
        last = -1
        known: set[tuple[Value, Size]] = set()
        for step, node in enumerate(self._graph.nodes):
            found: set[tuple[Value, Size]] = set()
            for each, indices in _with_indices(node):
                here = {(self._owner(value), limit) for value, limit in indices.items()}
                if is_checked(each) and not (here and here <= known):
                    last = step
                found |= here
            known |= found
        return last

    def _owner(self, value: Value) -> Value:
        """Return the value of whose bytes a value is another look at, as a whole."""
        root, offset = self._home.get(value, (value, 0))
        return root if offset == 0 and self._size(root) == self._size(value) else value

    # --- 2. and 3. blocks: in place, donation ---------------------------------------------------

    def _states_by_root(self) -> dict[Value, list[int]]:
        """Return the state inputs whose next value a root is as a whole."""
        states: dict[Value, list[int]] = {}
        for update in self._graph.updates:
            root, offset = self._home[update.value]
            if offset == 0:
                states.setdefault(root, []).append(update.input_index)
        return states

    def _make_blocks(self) -> None:
        for value in self._graph.input_values:
            place = Place(Space.INPUT, self._inputs[value])
            self._add_block(value, _Block(self._size(value), -1, self._last.get(value, -1)), place)
        constants = 0
        for step, node in enumerate(self._graph.nodes):
            constant = _is_constant(node)
            for index, value in enumerate(node.results):
                if constant:
                    block = _Block(self._size(value), step, self._end)
                    self._add_block(value, block, Place(Space.CONSTANT, constants))
                elif self._home[value][0] is value:
                    self._place_result(step, node, index)
            constants += constant
            for operand in node.operands:
                self._block_of(operand).overwritten = False

    def _add_block(self, value: Value, block: _Block, place: Place | None = None) -> None:
        block.place = place
        self._block[value] = block
        self._blocks.append(block)

    def _place_result(self, step: int, node: Node, index: int) -> None:
        """Choose a block for a result: chained to a donated one, donated, in place, or new."""
        value = node.results[index]
        size, last = self._size(value), self._last[value]
        fresh = _Block(size, step, last, value)
        old = self._overwrites(step, node, index, size)
        if old is not None and self._donate(value, old, last):
            old.last, old.overwritten = last, True
            self._block[value] = old
        elif self._donate(value, fresh, last):
            self._add_block(value, fresh, fresh.place)
        elif old is not None:
            old.last, old.overwritten = last, True
            self._block[value] = old
        else:
            self._add_block(value, fresh)

    def _overwrites(self, step: int, node: Node, index: int, size: Size) -> _Block | None:
        """Return the first block that result `index` of the node may take over."""
        allowed = self._allowed(node, index)
        blocks = (self._block_of(node.operands[position]) for position in allowed)
        takeable = (b for b in blocks if self._can_take(b, step, node, allowed, size))
        return next(takeable, None)

    def _allowed(self, node: Node, index: int) -> tuple[int, ...]:
        """Return the positions of the operands that result `index` may be written over."""
        pairs = self._hints.overwritable.get(node, ())
        for result, position in pairs:
            if not (0 <= result < len(node.results) and 0 <= position < len(node.operands)):
                raise InvalidArgumentError(
                    f"expected (result, operand) pairs of {print_node(node, self._graph)}, "
                    f"received {(result, position)}"
                )
        return tuple(position for result, position in pairs if result == index)

    def _can_take(
        self, block: _Block, step: int, node: Node, allowed: Collection[int], size: Size
    ) -> bool:
        free = block.place is None and not block.overwritten
        return (
            free
            and block.last == step
            and block.size == size
            and self._read_only_at(node, block, allowed)
        )

    def _read_only_at(self, node: Node, block: _Block, allowed: Collection[int]) -> bool:
        """Tell whether the node reads a block as a whole, and at these positions alone."""
        reads = [p for p, operand in enumerate(node.operands) if self._block_of(operand) is block]
        whole = all(self._is_whole(node.operands[position]) for position in reads)
        return whole and all(position in allowed for position in reads)

    def _donate(self, value: Value, block: _Block, last: int) -> bool:
        """Place a block that `value` ends in a state's memory, if that is legal."""
        if last != self._end or block.start <= self._last_checked:
            return False
        for state in self._states.get(value, ()):
            if state not in self._donated and self._may_write_state(state, block):
                block.place = Place(Space.INPUT, state)
                self._donated[state] = block
                return True
        return False

    def _may_write_state(self, state: int, block: _Block) -> bool:
        old = self._block[self._graph.input_values[state]]
        node = block.first.node if block.first is not None else None
        if node is None or block.first is None or old.size != block.size:
            return False
        allowed = self._allowed(node, block.first.index)
        return old.last < block.start or (
            old.last == block.start and self._read_only_at(node, old, allowed)
        )

    # --- 4. outputs -----------------------------------------------------------------------------

    def _place_outputs(self) -> None:
        for index, value in enumerate(self._graph.outputs):
            block = self._block_of(value)
            if block.place is None and self._is_whole(value):
                block.place = Place(Space.OUTPUT, index)

    def _copy_outputs(self) -> None:
        for index, value in enumerate(self._graph.outputs):
            source, target = self._place(value), Place(Space.OUTPUT, index)
            if source != target:
                self._copies.append(Copy(source, target, self._size(value)))

    def _copy_states(self) -> None:
        """Copy what was not computed in place; first save old states that other states take."""
        pending = [
            (self._place(update.value), update)
            for update in self._graph.updates
            if self._place(update.value) != Place(Space.INPUT, update.input_index)
        ]
        written = {update.input_index for _, update in pending}
        copies = []
        for source, update in pending:
            size = self._size(update.value)
            if source.space is Space.INPUT and source.index in written:
                source = self._snapshot(source, size)
            copies.append(Copy(source, Place(Space.INPUT, update.input_index), size))
        self._copies.extend(copies)

    def _snapshot(self, source: Place, size: Size) -> Place:
        target = Place(Space.ARENA, len(self._slots))
        self._slots.append(Slot(size, self._end, self._end, Purpose.SNAPSHOT))
        self._copies.append(Copy(source, target, size))
        return target

    def _status_step(self) -> int | None:
        if self._last_checked < 0 or not self._graph.updates:
            return None
        return min((block.start for block in self._donated.values()), default=self._end)

    # --- 5. the arena ---------------------------------------------------------------------------

    def _place_in_arena(self) -> None:
        for block in self._blocks:
            if block.place is None:
                block.place = Place(Space.ARENA, len(self._slots))
                self._slots.append(Slot(block.size, block.start, block.last))

    def _scratch(self, step: int) -> tuple[int, ...]:
        """Add the workspaces and the body arena of a node; return the slots of the former."""
        node = self._graph.nodes[step]
        slots = []
        for size in self._hints.workspaces.get(node, ()):
            slots.append(len(self._slots))
            self._slots.append(Slot(self._hints.bound(size), step, step, Purpose.WORKSPACE))
        if node.op not in self._hints.opaque:
            self._plan_bodies(step, list(node.bodies))
        return tuple(slots)

    def _plan_bodies(self, step: int, bodies: Iterable[tuple[str, Graph]]) -> None:
        slot, first = len(self._slots), len(self._bodies)
        for name, body in bodies:
            self._bodies.append(BodyPlan(step, name, slot, _Planner(body, self._hints).plan()))
        if len(self._bodies) > first:
            indices = tuple(range(first, len(self._bodies)))
            self._slots.append(Slot(0, step, step, Purpose.BODY, indices))

    # --- small helpers --------------------------------------------------------------------------

    def _size(self, value: Value) -> Size:
        size = self._sizes.get(value)
        if size is None:
            size = self._sizes[value] = self._hints.bound(value.type.nbytes)
        return size

    def _block_of(self, value: Value) -> _Block:
        return self._block[self._home[value][0]]

    def _is_whole(self, value: Value) -> bool:
        """Tell whether a value covers its block from the first byte to the last."""
        return self._home[value][1] == 0 and self._size(value) == self._block_of(value).size

    def _place(self, value: Value) -> Place:
        place, offset = self._block_of(value).place, self._home[value][1]
        if place is None:
            raise InvalidArgumentError(f"{value!r} has no place: it is no value of the graph")
        return Place(place.space, place.index, place.offset + offset)


def _is_constant(node: Node) -> bool:
    value = node.attributes.get("value")
    return not node.operands and isinstance(value, Constant) and len(node.attributes) == 1
