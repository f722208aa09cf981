"""The memory plan of a graph as data: where the bytes of each value are, and when they live.

A plan is a template. Its slots have sizes (symbolic ones are allowed) and intervals of steps; step
i is node i of the graph, step `len(nodes)` is the end, where `copies` are made. `fill` turns the
template into offsets for one binding of the symbols; a plan without symbols carries them along.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.forks import cached_property
from frame.core.shapes import MAX_NUMEL, Dim, Size
from frame.ir.graph import Graph, Value, dim_symbols
from frame.ir.offsets import ALIGNMENT, align, lower_bound, pack
from frame.ir.printer import number_values

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
]


class Space(StrEnum):
    """Which memory an index of a place counts in."""

    ARENA = "arena"  # a slot of the plan
    INPUT = "input"  # the memory of a graph input
    OUTPUT = "output"  # the memory of a graph output
    CONSTANT = "constant"  # the constant nodes, in order


class Purpose(StrEnum):
    """What a slot holds."""

    VALUE = "value"
    WORKSPACE = "workspace"
    BODY = "body"  # the arena of a node's bodies, which run one at a time
    SNAPSHOT = "snapshot"  # a state's old value that another state takes over at the end


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value begins: `offset` bytes into buffer `index` of a memory space."""

    space: Space
    index: int
    offset: Size = 0

    def __str__(self) -> str:
        tail = f"+{self.offset}" if self.offset != 0 else ""
        return f"{self.space} {self.index}{tail}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of the arena that is occupied from step `start` to step `end`, both included.

    `size` is in bytes, before alignment. A slot of purpose BODY is as large as the largest arena
    of its `bodies` (indices into `MemoryPlan.bodies`), beside `size`.
    """

    size: Size
    start: int
    end: int
    purpose: Purpose = Purpose.VALUE
    bodies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `nbytes` bytes at the end of a run."""

    source: Place
    target: Place
    nbytes: Size


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The plan of the body `attribute` of node `node`; its arena is the parent's slot `slot`."""

    node: int
    attribute: str
    slot: int
    plan: MemoryPlan


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offset table of one binding: bytes from the start of the arena, 64-byte aligned.

    The slots of the plan come first, then the tables of its bodies, one after the other; those
    too count from the start of the outermost arena. `lower_bound` is the peak of live bytes.
    """

    offsets: tuple[int, ...]
    arena_size: int
    lower_bound: int


@dataclass(frozen=True)
class MemoryPlan:
    """Where each value, workspace and body arena of a graph lives.

    `places` is indexed by value number (`printer.number_values`: inputs, then results in order).
    `workspaces[i]` are the slots of node i. `copies` are made at the end, in order: outputs that
    could not be computed in place, snapshots, then states. Before step `status_step` the program
    must return if an index check failed: from there on it writes into the memory of its states
    (None: it has no states or checks nothing).
    """

    places: tuple[Place, ...]
    slots: tuple[Slot, ...]
    workspaces: tuple[tuple[int, ...], ...]
    bodies: tuple[BodyPlan, ...] = ()
    copies: tuple[Copy, ...] = ()
    status_step: int | None = None

    @property
    def steps(self) -> int:
        """The number of nodes."""
        return len(self.workspaces)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the sizes, bodies included, in order of first appearance."""
        found: dict[str, None] = {}
        for slot in self.slots:
            found.update(dict.fromkeys(dim_symbols(slot.size)))
        for body in self.bodies:
            found.update(dict.fromkeys(body.plan.symbols))
        return tuple(found)

    @cached_property
    def table_length(self) -> int:
        """The number of entries of the offset table, bodies included."""
        return len(self.slots) + sum(body.plan.table_length for body in self.bodies)

    def body_table(self, index: int) -> int:
        """Return the entry at which the offsets of `bodies[index]` begin in the offset table."""
        before = self.bodies[:index]
        return len(self.slots) + sum(body.plan.table_length for body in before)

    def places_of(self, graph: Graph) -> dict[Value, Place]:
        """Return the place of each value of the graph that was planned."""
        return {value: self.places[number] for value, number in number_values(graph).items()}

    @cached_property
    def static(self) -> Offsets | None:
        """The offsets of a plan without symbols, None for any other."""
        return None if self.symbols else self._fill({})

    @property
    def arena_size(self) -> int:
        """The bytes of the arena of a plan without symbols.

        Raises:
            InvalidArgumentError: the size depends on symbols; `fill` gives it for a binding.
        """
        return self._static("arena_size").arena_size

    @property
    def lower_bound(self) -> int:
        """The peak of live bytes of a plan without symbols, which no plan can go below.

        Raises:
            InvalidArgumentError: it depends on symbols; `fill` gives it for a binding.
        """
        return self._static("lower_bound").lower_bound

    def _static(self, what: str) -> Offsets:
        if self.static is None:
            raise InvalidArgumentError(
                f"the {what} of this plan depends on the symbols {', '.join(self.symbols)}: call "
                f"fill(bindings).{what}"
            )
        return self.static

    def fill(self, bindings: Mapping[str, int] | None = None) -> Offsets:
        """Return the offset table for one binding of the symbols. Keep it: it is not cached.

        Raises:
            InvalidArgumentError: a symbol has no value, or a size is negative or absurd.
        """
        return self.static or self._fill(bindings or {})

    def _fill(self, bindings: Mapping[str, int]) -> Offsets:
        children = [body.plan.fill(bindings) for body in self.bodies]
        sizes = [_slot_size(slot, children, bindings) for slot in self.slots]
        starts = [slot.start for slot in self.slots]
        ends = [slot.end for slot in self.slots]
        bound = lower_bound(sizes, starts, ends)
        offsets, height = pack(sizes, starts, ends, bound)
        table = list(offsets)
        for body, child in zip(self.bodies, children, strict=True):
            base = offsets[body.slot]
            table.extend(base + offset for offset in child.offsets)
        return Offsets(tuple(table), height, bound)

    def to_data(self) -> dict[str, Any]:
        """Return the plan as lists, strings and ints, for a JSON text."""
        from frame.ir.memory_data import plan_to_data

        return plan_to_data(self)

    @classmethod
    def from_data(cls, data: Any) -> MemoryPlan:
        """Return the plan that `to_data` has written.

        Raises:
            InvalidArgumentError: the data is not such a plan.
        """
        from frame.ir.memory_data import plan_from_data

        return plan_from_data(data)


def _slot_size(slot: Slot, children: list[Offsets], bindings: Mapping[str, int]) -> int:
    own = evaluate(slot.size, bindings)
    return align(max([own, *(children[index].arena_size for index in slot.bodies)]))


def evaluate(size: Size, bindings: Mapping[str, int]) -> int:
    """Return a size in bytes under a binding.

    Raises:
        InvalidArgumentError: a symbol has no value, or the size is negative or above 2**62.
    """
    try:
        value = size.evaluate(bindings) if isinstance(size, Dim) else size
    except NotFoundError as error:
        raise InvalidArgumentError(str(error)) from error
    if not 0 <= value <= MAX_NUMEL:
        raise InvalidArgumentError(
            f"the size of {size} bytes is {value} with {dict(bindings)}: expected 0 to 2**62"
        )
    return value
