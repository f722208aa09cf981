"""Which forward values to compute again: the choices that a byte budget is met with.

From the cheapest to the dearest: nothing; what elementwise groups and reductions make of kept
values, the largest first; then segments of the forward part, of which only what leaves them is
kept, in growing number. The last segment is kept, for its backward part comes right after it, but
for its cheap values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from frame.compiler.passes.forward import Forward, bytes_of
from frame.compiler.passes.fusion_groups import ELEMENTWISE, REDUCTION
from frame.compiler.passes.operator_fusion import root_of
from frame.ir.graph import Node, Value

_SHARES = (4, 2, 1)  # a quarter, half and all of the cheap values
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)


def choices(forward: Forward) -> Iterator[frozenset[Value]]:
    """Yield sets of roots to compute again, from none on, each once."""
    tried = set()
    for chosen in _candidates(forward):
        if chosen not in tried:
            tried.add(chosen)
            yield chosen


def _candidates(forward: Forward) -> Iterator[frozenset[Value]]:
    yield frozenset()
    cheap, follows = _cheap(forward)
    for share in _SHARES:
        yield _closed(forward, cheap[: -(-len(cheap) // share)], follows)
    for count in _COUNTS:
        inner, last = _segmented(forward, count)
        yield inner
        late = [root for root in cheap if root.node in last]
        yield inner | _closed(forward, late, follows)


# --- cheap values ---------------------------------------------------------------------------------


def _cheap(forward: Forward) -> tuple[list[Value], set[Value]]:
    """Return the residuals that light groups make, the largest first, and all that they make.

    Light groups that read what nothing keeps, such as a product that the backward part does not
    need, are left out: it would have to be kept for them.
    """
    follows: set[Value] = set()
    for node, root in forward.made():
        sources = map(root_of, node.operands)
        if _is_light(node) and all(
            each in follows or each in forward.residuals or not forward.is_made(each)
            for each in sources
        ):
            follows.add(root)
    found = [root for _, root in forward.made() if root in follows and root in forward.residuals]
    return sorted(found, key=bytes_of, reverse=True), follows


def _is_light(node: Node) -> bool:
    return node.op == "group" and node.attributes["anchor"] in (ELEMENTWISE, REDUCTION)


def _closed(
    forward: Forward, roots: Sequence[Value], follows: Collection[Value]
) -> frozenset[Value]:
    """Return roots with what is on the way to them from values that are kept."""
    found, pending = set(roots), list(roots)
    while pending:
        node = pending.pop().node
        for each in map(root_of, () if node is None else node.operands):
            if each in follows and each not in forward.residuals and each not in found:
                found.add(each)
                pending.append(each)
    return frozenset(found)


# --- segments -------------------------------------------------------------------------------------


def _segmented(forward: Forward, count: int) -> tuple[frozenset[Value], set[Node]]:
    """Return what is made inside of the first count - 1 of `count` segments, and the last one.

    The segments have about equal bytes of residuals; near each equal share the boundary is where
    the fewest bytes cross it.
    """
    ends = _ends(forward, count)
    segment_of: dict[Node, int] = {}
    segment = 0
    for index, node in enumerate(forward.nodes):
        segment_of[node] = segment
        segment += index in ends
    inner = frozenset(
        root
        for node, root in forward.made()
        if segment_of[node] < segment
        and all(segment_of[each] == segment_of[node] for each in forward.readers(root))
    )
    return inner, {node for node, number in segment_of.items() if number == segment}


def _ends(forward: Forward, count: int) -> set[int]:
    """Return the positions of the nodes that end a segment, but for the last."""
    kept, total = [], 0
    for node in forward.nodes:
        total += sum(bytes_of(value) for value in node.results if value in forward.residuals)
        kept.append(total)
    crossing, ends = _crossing(forward), set()
    for number in range(1, count):
        low, high = (total * (2 * number + side) / (2 * count) for side in (-1, 1))
        near = [index for index, held in enumerate(kept) if low <= held <= high]
        if near:
            middle = total * number / count
            ends.add(min(near, key=lambda i: (crossing[i], abs(kept[i] - middle))))
    return ends


def _crossing(forward: Forward) -> list[int]:
    """Return the bytes that are made up to each node and read, in the forward part, behind it."""
    changes = [0] * (len(forward.nodes) + 1)
    for node, root in forward.made():
        first = forward.position[node]
        readers = forward.readers(root)
        changes[first] += bytes_of(root)
        changes[max((forward.position[each] for each in readers), default=first)] -= bytes_of(root)
    found, live = [], 0
    for change in changes[:-1]:
        live += change
        found.append(live)
    return found
