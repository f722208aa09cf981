"""The memory of a planned graph by region: weights, state, inputs, outputs, uses of the arena.

Parameters, state, inputs and outputs have memory of their own. What a run computes lives in one
arena, whose bytes serve one value after another; so a use of the arena has two sizes: the bytes of
all its buffers, and those that live at the step where most of the arena is in use. A gradient that
is used up in its own update is never stored, and no region counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from frame.core import views
from frame.core.dataclass import dataclass
from frame.ir.graph import Graph, Node, Role, Value
from frame.ir.memory import MemoryPlan, Purpose, Slot, Space, evaluate
from frame.ir.offsets import align


class Region(StrEnum):
    """What memory is for."""

    WEIGHTS = "weights"
    STATISTICS = "running statistics"
    OPTIMIZER_STATE = "optimizer state"
    DERIVED = "prepared weights"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    CONSTANTS = "constants"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    WORKSPACE = "workspace"


_OF_ROLE: Mapping[Role, Region] = {
    Role.PARAMETER: Region.WEIGHTS,
    Role.BUFFER: Region.STATISTICS,
    Role.OPTIMIZER_STATE: Region.OPTIMIZER_STATE,
    Role.DERIVED: Region.DERIVED,
}
IN_ARENA = (Region.ACTIVATIONS, Region.GRADIENTS, Region.WORKSPACE)


@dataclass(frozen=True, slots=True)
class RegionSize:
    """The memory of one region.

    Attributes:
        region: what it is for.
        buffers: how many values, or buffers of the arena.
        nbytes: their bytes, each for itself.
        at_peak: their bytes that are in use at the arena's fullest step; all of them outside of it.
    """

    region: Region
    buffers: int
    nbytes: int
    at_peak: int


@dataclass(frozen=True, slots=True, repr=False)
class MemoryRegions:
    """The regions of a planned graph, and its arena. `repr` is a table."""

    rows: tuple[RegionSize, ...]
    arena_size: int

    def __getitem__(self, region: Region | str) -> RegionSize:
        """Return a region by its name; one that does not occur has no bytes."""
        wanted = Region(region)
        empty = RegionSize(wanted, 0, 0, 0)
        return next((row for row in self.rows if row.region is wanted), empty)

    @property
    def total(self) -> int:
        """The bytes of everything outside of the arena, and of the arena."""
        outside = sum(row.nbytes for row in self.rows if row.region not in IN_ARENA)
        return outside + self.arena_size

    def __add__(self, other: MemoryRegions) -> MemoryRegions:
        """Return the regions of two graphs that don't share memory."""
        rows = tuple(_sum(region, (self[region], other[region])) for region in Region)
        kept = tuple(row for row in rows if row.buffers)
        return MemoryRegions(kept, self.arena_size + other.arena_size)

    def _repr_html_(self) -> str:
        rows = [
            (row.region, str(row.buffers), f"{row.nbytes:,}", f"{row.at_peak:,}")
            for row in self.rows
        ]
        sums = [("arena", "", f"{self.arena_size:,}", ""), ("total", "", f"{self.total:,}", "")]
        return views.table(("region", "buffers", "bytes", "at peak"), [*rows, *sums], "lrrr")

    def __repr__(self) -> str:
        lines = [f"{'region':<20}{'buffers':>9}{'bytes':>16}{'at peak':>16}"]
        lines += [
            f"{row.region:<20}{row.buffers:>9}{row.nbytes:>16,}{row.at_peak:>16,}"
            for row in self.rows
        ]
        lines.append(f"{'arena':<20}{'':>9}{self.arena_size:>16,}")
        return "\n".join([*lines, f"{'total':<20}{'':>9}{self.total:>16,}"])


def memory_regions(
    graph: Graph, plan: MemoryPlan, bindings: Mapping[str, int] | None = None
) -> MemoryRegions:
    """Return the memory of a graph and its plan by region.

    Values on which an output or a running statistic depends are activations; what else is computed
    belongs to the way back, the gradients.

    Args:
        graph: the graph.
        plan: its plan.
        bindings: values of the symbols.

    Raises:
        InvalidArgumentError: a symbol has no value.
    """
    known = dict(bindings or {})
    found = [*_outside(graph, known), *_in_arena(graph, plan, known)]
    rows = (_sum(region, (row for row in found if row.region is region)) for region in Region)
    return MemoryRegions(tuple(row for row in rows if row.buffers), plan.fill(known).arena_size)


def _sum(region: Region, rows: Iterable[RegionSize]) -> RegionSize:
    kept = tuple(rows)
    return RegionSize(
        region,
        sum(row.buffers for row in kept),
        sum(row.nbytes for row in kept),
        sum(row.at_peak for row in kept),
    )


def _outside(graph: Graph, bindings: Mapping[str, int]) -> list[RegionSize]:
    values = [(_OF_ROLE.get(entry.role, Region.INPUTS), entry.value) for entry in graph.inputs]
    values += [(Region.OUTPUTS, value) for value in graph.outputs]
    values += [(Region.CONSTANTS, node.results[0]) for node in graph.nodes if node.op == "constant"]
    sizes = [(region, evaluate(value.type.nbytes, bindings)) for region, value in values]
    return [RegionSize(region, 1, size, size) for region, size in sizes]


def _in_arena(graph: Graph, plan: MemoryPlan, bindings: Mapping[str, int]) -> list[RegionSize]:
    regions = _slot_regions(graph, plan)
    bodies = [body.plan.fill(bindings).arena_size for body in plan.bodies]
    sizes = [_slot_size(slot, bodies, bindings) for slot in plan.slots]
    peak = _fullest_step(plan.slots, sizes)
    return [
        RegionSize(region, 1, size, size if slot.start <= peak <= slot.end else 0)
        for region, slot, size in zip(regions, plan.slots, sizes, strict=True)
    ]


def _slot_size(slot: Slot, bodies: Sequence[int], bindings: Mapping[str, int]) -> int:
    own = evaluate(slot.size, bindings)
    return align(max([own, *(bodies[index] for index in slot.bodies)]))


def _fullest_step(slots: Sequence[Slot], sizes: Sequence[int]) -> int:
    """Return the first step at which most bytes live."""
    changes: dict[int, int] = {}
    for slot, size in zip(slots, sizes, strict=True):
        changes[slot.start] = changes.get(slot.start, 0) + size
        changes[slot.end + 1] = changes.get(slot.end + 1, 0) - size
    live, best, fullest = 0, -1, 0
    for step in sorted(changes):
        live += changes[step]
        if live > best:
            best, fullest = live, step
    return fullest


def _slot_regions(graph: Graph, plan: MemoryPlan) -> list[Region]:
    regions = [
        Region.GRADIENTS if slot.purpose is Purpose.VALUE else Region.WORKSPACE
        for slot in plan.slots
    ]
    forward = _forward_nodes(graph)
    for value, place in plan.places_of(graph).items():
        in_slot = place.space is Space.ARENA and plan.slots[place.index].purpose is Purpose.VALUE
        if in_slot and value.node in forward:
            regions[place.index] = Region.ACTIVATIONS
    return regions


def _forward_nodes(graph: Graph) -> set[Node]:
    """Return the nodes on which the outputs and the running statistics depend."""
    statistics = [u.value for u in graph.updates if graph.inputs[u.input_index].role is Role.BUFFER]
    wanted: list[Value] = [*graph.outputs, *statistics]
    found: set[Node] = set()
    while wanted:
        node = wanted.pop().node
        if node is not None and node not in found:
            found.add(node)
            wanted.extend(node.operands)
    return found
