"""The table of schedules: for each anchor kind and family of targets, how a group is lowered."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from frame.codegen import foreign
from frame.codegen.schedules.group import KernelCall
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.errors import AlreadyExistsError, InvalidArgumentError, UnimplementedError
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Layout, Node


def _no_sizes(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    return ()


def _no_pairs(body: Graph) -> tuple[tuple[int, int], ...]:
    return ()


def _no_layouts(body: Graph, target: TargetDescription) -> Mapping[int, Layout]:
    return {}


def _no_positions(body: Graph, target: TargetDescription) -> frozenset[int]:
    return frozenset()


def _no_checks(body: Graph) -> tuple[tuple[Node, Size], ...]:
    return ()


def _no_graphs(target: TargetDescription) -> Iterable[Graph]:
    return ()


def _no_variants(body: Graph, target: TargetDescription) -> tuple[str, ...]:
    return ()


def _no_shapes(target: TargetDescription, dtype: DType) -> Iterable[Shape]:
    return ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How groups of one anchor kind become kernels.

    `lower` makes the kernel calls of a group, in order. `workspaces` gives the bytes of scratch
    memory that they need, `overwritable` the (result, capture) pairs that may share memory,
    `layouts` the preferred layout of captures by position, `repeated` the positions of those whose
    layout pays even where every run makes it again, `checks` the (node, limit) of each check
    that the kernels make, in the order of their sites. `boundary_graphs` builds graphs whose
    groups have sizes at every edge of the schedule on a target: vectors, tiles, blocks, grains.
    `boundary_shapes` gives such sizes alone, for the operands of any op of the anchor's kind in a
    dtype, where many ops share the schedule. `variants` lists other choices of the schedule for a
    body, most promising first: texts which `lower` and `workspaces` of such a schedule then take as
    the keyword argument `variant`. Each gives the very same bits as the default, and an unknown or
    illegal text is an InvalidArgumentError.
    """

    anchor: str
    lower: Callable[..., tuple[KernelCall, ...]]
    workspaces: Callable[..., tuple[Size, ...]] = _no_sizes
    overwritable: Callable[[Graph], tuple[tuple[int, int], ...]] = _no_pairs
    layouts: Callable[[Graph, TargetDescription], Mapping[int, Layout]] = _no_layouts
    repeated: Callable[[Graph, TargetDescription], frozenset[int]] = _no_positions
    checks: Callable[[Graph], tuple[tuple[Node, Size], ...]] = _no_checks
    boundary_graphs: Callable[[TargetDescription], Iterable[Graph]] = _no_graphs
    boundary_shapes: Callable[[TargetDescription, DType], Iterable[Shape]] = _no_shapes
    variants: Callable[[Graph, TargetDescription], tuple[str, ...]] = _no_variants


# family of targets -> module that registers its schedules when imported
_FAMILIES: dict[str, str] = {"cpu": "frame.codegen.schedules.cpu.table"}
_schedules: dict[tuple[str, str], Schedule] = {}


def register_schedule(schedule: Schedule, family: str = "cpu") -> Schedule:
    """Add a schedule to the table of a family of targets and return it.

    Raises:
        AlreadyExistsError: when the family has a schedule for that anchor.
    """
    key = (family, schedule.anchor)
    if key in _schedules:
        raise AlreadyExistsError(f"the {family} schedules have one for {schedule.anchor!r} already")
    _schedules[key] = schedule
    if not _is_own(schedule.lower):
        foreign.SCHEDULES[key] = schedule
    return schedule


def unregister_schedule(anchor: str, family: str = "cpu") -> None:
    """Remove a schedule that a user registered."""
    del _schedules[family, anchor]
    foreign.SCHEDULES.pop((family, anchor), None)


def schedules(family: str = "cpu") -> Mapping[str, Schedule]:
    """Return the schedules of a family of targets by anchor."""
    importlib.import_module(_FAMILIES[family])
    return {anchor: item for (name, anchor), item in _schedules.items() if name == family}


def _is_own(function: Callable[..., object]) -> bool:
    return getattr(function, "__module__", "").startswith("frame.")


def schedule_for(anchor: str, family: str = "cpu") -> Schedule:
    """Return the schedule of an anchor; raise UnimplementedError when there is none."""
    importlib.import_module(_FAMILIES[family])
    found = _schedules.get((family, anchor))
    if found is None:
        raise UnimplementedError(
            f"no {family} schedule for {anchor!r}: register one with "
            "frame.codegen.register_schedule, or give the op a decomposition"
        )
    return found


def schedule_of(group: Node, family: str = "cpu") -> Schedule:
    """Return the schedule of a group, bound to the variant that the group names.

    Raises:
        UnimplementedError: there is no schedule for its anchor.
        InvalidArgumentError: the group names a variant and the schedule has none.
    """
    found, variant = schedule_for(group.attributes["anchor"], family), variant_of(group)
    if not variant:
        return found
    if found.variants is _no_variants:
        raise InvalidArgumentError(
            f"the schedule for {found.anchor!r} has no variants, received {variant!r}"
        )
    lower = functools.partial(found.lower, variant=variant)
    return replace(
        found, lower=lower, workspaces=functools.partial(found.workspaces, variant=variant)
    )


def variant_of(group: Node) -> str:
    """Return the text of the variant that a group names; empty for the default."""
    variant: str = group.attributes.get("variant") or ""
    return variant
