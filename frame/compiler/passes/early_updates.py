"""An order of the backward part in which what is kept for it is let go as soon as can be.

A training graph ends with its updates, and a gradient that is fused with its update waits there,
and with it the activation and the cotangent that it is made of. Here the backward part is put in
order again: of the nodes that could come next, the one that frees the most memory less what it
takes does; where none frees any, the first one of the old order. What computes with single numbers
alone comes before all: it takes nothing, and all gradients may wait for it, as they do for the
reciprocal of a loss scale. Two things hold: a state is
written after everything that reads it, so that it can be written in place, and after every check of
an index, so that a bad one changes nothing.

That is greedy: the best order is NP-complete to find (Sethi, "Complete Register Allocation
Problems", SIAM J. Comput. 1975).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from frame.compiler.passes.forward import Forward
from frame.compiler.passes.fusion_groups import magnitude
from frame.compiler.passes.operator_fusion import root_of
from frame.ir.graph import Graph, Node, Value
from frame.ir.plan import is_checked


def with_early_updates(forward: Forward) -> Graph:
    """Return the graph with its backward part in the order of `_Schedule`."""
    order = tuple(_Schedule(forward).run())
    if order == tuple(forward.backward):
        return forward.graph
    return replace(forward.graph, nodes=(*forward.nodes, *order))


class _Schedule:
    """The state of one list scheduling: what is ready, and who still reads each root."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._waits: dict[Node, set[Node]] = {node: set() for node in forward.backward}
        self._followers: dict[Node, list[Node]] = defaultdict(list)
        self._left: Counter[Value] = Counter()
        for node in forward.backward:
            self._left.update({root_of(operand) for operand in node.operands})
            for operand in node.operands:
                self._after(node, operand.node)
        self._keep_states()

    def _after(self, node: Node, before: Node | None) -> None:
        if before in self._waits and before is not node and before not in self._waits[node]:
            self._waits[node].add(before)
            self._followers[before].append(node)

    def _keep_states(self) -> None:
        """Let what writes a state wait for its other readers, and for checks of indices."""
        graph = self._forward.graph
        checks = [node for node in self._forward.backward if is_checked(node)]
        readers: dict[Value, list[Node]] = defaultdict(list)
        for node in self._forward.backward:
            for root in {root_of(operand) for operand in node.operands}:
                readers[root].append(node)
        for update in graph.updates:
            writer = root_of(update.value).node
            if writer not in self._waits:
                continue
            state = graph.inputs[update.input_index].value
            for before in (*checks, *readers[state]):
                if not self._depends(before, writer):
                    self._after(writer, before)

    def _depends(self, node: Node, on: Node) -> bool:
        """Whether a node comes after another: it must not be waited for by that."""
        pending, seen = [on], {on}
        while pending:
            current = pending.pop()
            if current is node:
                return True
            fresh = [each for each in self._followers[current] if each not in seen]
            seen.update(fresh)
            pending.extend(fresh)
        return False

    def run(self) -> Iterator[Node]:
        """Yield the nodes of the backward part."""
        ready = [node for node, waits in self._waits.items() if not waits]
        while ready:
            node = max(ready, key=self._worth)
            ready.remove(node)
            yield node
            self._left.subtract({root_of(operand) for operand in node.operands})
            for follower in self._followers[node]:
                self._waits[follower].discard(node)
                if not self._waits[follower]:
                    ready.append(follower)

    def _worth(self, node: Node) -> tuple[bool, int, int]:
        """Return whether a node computes with single numbers, and the bytes that it frees less
        those that it takes, 0 if it frees none.

        The last number puts the earlier one before another on a tie.
        """
        graph = self._forward
        freed = sum(
            _bytes_of(root)
            for root in {root_of(operand) for operand in node.operands}
            if self._left[root] == 1 and root.node is not None and root not in graph.returned
        )
        taken = sum(_bytes_of(each) for each in node.results if root_of(each) is each)
        kept = sum(_bytes_of(each) for each in node.results if each in graph.returned)
        single = all(each.shape == () for each in (*node.operands, *node.results))
        return single, max(freed - taken + kept, 0), -graph.position[node]


def _bytes_of(value: Value) -> int:
    """Return about how many bytes a value has: symbols count as some number."""
    return magnitude(value.shape) * value.dtype.itemsize
