"""Memory plans as text, for people."""

from __future__ import annotations

from collections.abc import Mapping

from frame.ir.graph import Graph
from frame.ir.memory import MemoryPlan, Offsets, Place, Slot, Space


def print_plan(graph: Graph, plan: MemoryPlan, bindings: Mapping[str, int] | None = None) -> str:
    """Return a plan as text: the arena, its slots, the places, the copies, the plans of bodies.

    Offsets are shown for a plan without symbols, or when `bindings` give their values.
    """
    known = bindings is not None or not plan.symbols
    filled = plan.fill(bindings) if known else None
    return "\n".join(_lines(graph, plan, filled, 0, ""))


def _lines(
    graph: Graph, plan: MemoryPlan, filled: Offsets | None, first: int, indent: str
) -> list[str]:
    lines = [f"{indent}plan of {graph.name}: {_summary(plan, filled if not indent else None)}"]
    for index, slot in enumerate(plan.slots):
        at = "" if filled is None else f" at {filled.offsets[first + index]}"
        lines.append(f"{indent}  slot {index}{at}: {_slot_text(plan, index, slot)}")
    for number, place in enumerate(plan.places):
        if place.space is not Space.ARENA and place != Place(Space.INPUT, number):
            lines.append(f"{indent}  %{number} in {place}")
    for copy in plan.copies:
        lines.append(f"{indent}  copy {copy.source} to {copy.target}, {copy.nbytes} bytes")
    if plan.status_step is not None:
        lines.append(f"{indent}  status before step {plan.status_step}")
    for index, body in enumerate(plan.bodies):
        inner = graph.nodes[body.node].attributes[body.attribute]
        start = first + plan.body_table(index)
        lines.append(f"{indent}  body {body.attribute} of step {body.node} in slot {body.slot}:")
        lines += _lines(inner, body.plan, filled, start, indent + "    ")
    return lines


def _summary(plan: MemoryPlan, filled: Offsets | None) -> str:
    count = f"{len(plan.slots)} slots"
    if filled is None:
        symbols = f", symbols {', '.join(plan.symbols)}" if plan.symbols else ""
        return count + symbols
    return f"{count}, {filled.arena_size} bytes, lower bound {filled.lower_bound}"


def _slot_text(plan: MemoryPlan, index: int, slot: Slot) -> str:
    values = [
        f"%{number}"
        for number, place in enumerate(plan.places)
        if place.space is Space.ARENA and place.index == index
    ]
    size = "as large as its bodies" if slot.bodies else f"{slot.size} bytes"
    holds = " ".join(values) if values else str(slot.purpose)
    return f"{size}, steps {slot.start} to {slot.end}, {holds}"
