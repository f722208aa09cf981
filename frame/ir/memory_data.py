"""Memory plans as JSON-able data, for the cache manifest and `.frame` files.

Reading checks everything: a plan decides where native code writes.
"""

from __future__ import annotations

from typing import Any

from frame.core.errors import FrameError, InvalidArgumentError
from frame.core.shapes import Dim, Size, as_size
from frame.ir.memory import BodyPlan, Copy, MemoryPlan, Place, Purpose, Slot, Space

VERSION = 1
_MAX_DEPTH = 64


def plan_to_data(plan: MemoryPlan) -> dict[str, Any]:
    """Return a plan as dicts, lists, strings and ints."""
    return {
        "version": VERSION,
        "places": [_place_data(place) for place in plan.places],
        "slots": [
            [_size_data(s.size), s.start, s.end, str(s.purpose), list(s.bodies)] for s in plan.slots
        ],
        "workspaces": [list(slots) for slots in plan.workspaces],
        "bodies": [[b.node, b.attribute, b.slot, plan_to_data(b.plan)] for b in plan.bodies],
        "copies": [
            [_place_data(c.source), _place_data(c.target), _size_data(c.nbytes)]
            for c in plan.copies
        ],
        "status_step": plan.status_step,
    }


def plan_from_data(data: Any) -> MemoryPlan:
    """Return the plan that `plan_to_data` has written.

    Raises:
        InvalidArgumentError: the data is not such a plan; an index is out of range.
    """
    try:
        return _read_plan(data, 0)
    except (FrameError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(
            f"expected a memory plan of version {VERSION}, received damaged data: {error!r}"
        ) from error


def _place_data(place: Place) -> list[Any]:
    return [str(place.space), place.index, _size_data(place.offset)]


def _size_data(size: Size) -> int | str:
    return str(size) if isinstance(size, Dim) else size


def _read_plan(data: Any, depth: int) -> MemoryPlan:
    _require(depth < _MAX_DEPTH and data["version"] == VERSION, "version or depth")
    bodies = tuple(_read_body(item, depth) for item in data["bodies"])
    slots = tuple(_read_slot(item, len(bodies)) for item in data["slots"])
    count = len(slots)
    workspaces = tuple(tuple(_index(i, count) for i in item) for item in data["workspaces"])
    steps = len(workspaces)
    _require(all(slot.end <= steps for slot in slots), "the steps of a slot")
    _require(all(body.slot < count and body.node < steps for body in bodies), "a body")
    status = data["status_step"]
    return MemoryPlan(
        tuple(_read_place(item, count) for item in data["places"]),
        slots,
        workspaces,
        bodies,
        tuple(_read_copy(item, count) for item in data["copies"]),
        None if status is None else _index(status, steps + 1),
    )


def _read_body(item: Any, depth: int) -> BodyPlan:
    node, attribute, slot, plan = item
    _require(isinstance(attribute, str), "the name of a body")
    return BodyPlan(_index(node), attribute, _index(slot), _read_plan(plan, depth + 1))


def _read_slot(item: Any, bodies: int) -> Slot:
    size, start, end, purpose, inner = item
    _require(_index(start) <= _index(end), "the steps of a slot")
    indices = tuple(_index(index, bodies) for index in inner)
    return Slot(as_size(size), start, end, Purpose(purpose), indices)


def _read_place(item: Any, slots: int) -> Place:
    space, index, offset = item
    limit = slots if Space(space) is Space.ARENA else None
    return Place(Space(space), _index(index, limit), as_size(offset))


def _read_copy(item: Any, slots: int) -> Copy:
    source, target, size = item
    return Copy(_read_place(source, slots), _read_place(target, slots), as_size(size))


def _index(value: Any, limit: int | None = None) -> int:
    _require(type(value) is int and value >= 0 and (limit is None or value < limit), f"{value!r}")
    return int(value)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
