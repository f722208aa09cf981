"""sibling_fusion: the second half of operator_fusion, which joins groups that lie side by side.

Groups that run over the same loops and read the same large value become one: the value is read
once, and one kernel is compiled and launched in the place of many. The *level* of a group is the
length of the longest path that leads to it. No path connects two groups of one level, and a path
leads from lower levels to higher ones alone, so groups of one level may be joined at will, and the
partition stays convex.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from frame.compiler.passes.fusion_groups import (
    ELEMENTWISE,
    MOST_NODES,
    REDUCTION,
    VIEWS,
    Group,
    magnitude,
)
from frame.ir.graph import Graph, Node, Value

MOST_STREAMS = 9
"""Large values that siblings read and write at most. First-level caches have eight ways or more:
past that, streams that start at equal offsets of a page push each other out. One run with 1 M
elements on eight ways, in times of no fusion: multiples of one input 0.64 with 9 streams and 1.11
with 17; its products with other inputs, where little is saved, 1.06 with 9 and 2.13 with 33."""

MOST_SMALL_STREAMS, SMALL = 33, 1 << 10
"""The same for domains of up to SMALL elements, where launches cost more than memory."""

MOST_APART = MOST_NODES
"""Nodes between two siblings at most: the results of the later one are made early, and hold their
memory until they are read."""


class Partition(Protocol):
    """What the partition of operator_fusion offers here."""

    graph: Graph
    owner: dict[Node, Group]
    groups: dict[Group, None]

    def reads(self, node: Node) -> Iterable[Value]:
        """What the group of `node`, or `node` alone, reads from memory."""

    def values_in_memory(self) -> set[Value]:
        """The results that are read outside of their group."""

    def absorb(self, home: Group, other: Group) -> None:
        """Move the nodes of another group into `home`."""


@dataclass(slots=True)
class _Streams:
    """What a group reads at least one element of at each step, and how many values it writes."""

    reads: dict[Value, None]
    results: int

    def __len__(self) -> int:
        return len(self.reads) + self.results

    def joined(self, other: _Streams) -> _Streams:
        """Return the streams of the two groups as one."""
        return _Streams({**self.reads, **other.reads}, self.results + other.results)


def merge_siblings(partition: Partition) -> None:
    """Join the groups of a partition that lie side by side, in time linear in its nodes."""
    if len(partition.groups) < 2:
        return
    levels = _levels(partition)
    streams = _all_streams(partition)
    homes: dict[Hashable, Group] = {}
    for group in sorted(partition.groups, key=lambda each: each.first):
        if not _may_have_siblings(group):
            continue
        loops = (levels[group], group.anchor, group.domain, group.reduced)
        keys = [(*loops, value) for value in streams[group].reads]
        found = dict.fromkeys(homes[key] for key in keys if key in homes)
        home = next((h for h in found if _has_room(h, group, streams)), None)
        if home is not None:
            partition.absorb(home, group)
            streams[home] = streams[home].joined(streams[group])
        homes.update(dict.fromkeys(keys, home or group))


def _may_have_siblings(group: Group) -> bool:
    """Only plain loops may: a transposed read has a loop order of its own."""
    if group.anchor not in (ELEMENTWISE, REDUCTION):
        return False
    views = {node.op for node in group.nodes if node.op in VIEWS}
    return not views or (group.anchor == ELEMENTWISE and views == {"slice"})


def _has_room(home: Group, group: Group, streams: Mapping[Group, _Streams]) -> bool:
    most = MOST_SMALL_STREAMS if magnitude(home.domain) <= SMALL else MOST_STREAMS
    return (
        home.has_room(group.weight)
        and len(streams[home].joined(streams[group])) <= most
        and group.first - home.last <= MOST_APART
    )


def _all_streams(partition: Partition) -> dict[Group, _Streams]:
    needed = partition.values_in_memory()
    found = {}
    for group in partition.groups:
        least = magnitude(group.domain)
        reads = (v for v in partition.reads(group.nodes[0]) if magnitude(v.shape) >= least)
        results = sum(result in needed for node in group.nodes for result in node.results)
        found[group] = _Streams(dict.fromkeys(reads), results)
    return found


def _levels(partition: Partition) -> dict[Group, int]:
    """Return the length of the longest path of groups and single nodes that leads to each group."""
    levels: dict[Group | Node, int] = {}
    for node in partition.graph.nodes:
        pending = [node]
        while pending:
            current = pending[-1]
            unit = partition.owner.get(current, current)
            sources = [read.node for read in partition.reads(current) if read.node is not None]
            before = [partition.owner.get(source, source) for source in sources]
            open_ = [s for s, b in zip(sources, before, strict=True) if b not in levels]
            if unit not in levels and open_:
                pending.extend(open_)
                continue
            pending.pop()
            if unit not in levels:
                levels[unit] = 1 + max((levels[each] for each in before), default=0)
    return {group: levels[group] for group in partition.groups}
