"""Which functions of a loop module share an LLVM module, when its text is long.

LLVM compiles a module on one thread. A long text is cut into several, which processes compile side
by side. Where it is cut depends on the text alone, so that every machine makes the same objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from frame.codegen.loops import ir
from frame.codegen.loops.traverse import walk
from frame.core.dataclass import dataclass

PART_LENGTH = 100_000
"""Characters of one module's text. LLVM takes 0.2 to 0.5 s for as many."""

ENTRY = ""
"""Stands for the entry among the names of kernels, none of which is empty."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Functions that stay in one module: their texts by symbol, and the symbols they refer to.

    `internal` functions, which other modules may use all the same, come without their linkage:
    `define void @...`. `declarations` are the intrinsics and helpers that they need, by name.
    """

    functions: Mapping[str, str]
    internal: frozenset[str]
    uses: frozenset[str]
    declarations: Mapping[str, str]

    @property
    def length(self) -> int:
        """The characters of its functions."""
        return sum(map(len, self.functions.values()))


def blocks(module: ir.Module) -> dict[str, ir.Block]:
    """Return the statements of the entry and of each kernel by name."""
    return {ENTRY: module.entry.body} | {kernel.name: kernel.body for kernel in module.kernels}


def kept_together(statements: Mapping[str, ir.Block], shared: Iterable[str]) -> list[list[str]]:
    """Return the names of the kernels in groups that must share a module, the entry's group first.

    A kernel that one place alone calls is inlined there; `shared` ones are called by several.
    """
    apart = frozenset(shared)
    leader = {name: name for name in statements}
    members = {name: [name] for name in leader}
    for caller, block in statements.items():
        for callee in (s.kernel for s in walk(block) if isinstance(s, ir.Call)):
            first, second = leader[caller], leader[callee]
            if callee not in apart and first != second:
                if second == leader[ENTRY]:
                    first, second = second, first
                moved = members.pop(second)
                members[first] += moved
                leader.update(dict.fromkeys(moved, first))
    return list(members.values())


def packed(units: Sequence[Unit], longest: int | None) -> list[list[Unit]]:
    """Return the units in groups of about `longest` characters; the first holds the first unit.

    One group where `longest` is None, or where the whole is no longer than two of them.
    """
    total = sum(unit.length for unit in units)
    if longest is None or total <= 2 * longest:
        return [list(units)]
    groups: list[list[int]] = [[] for _ in range(math.ceil(total / longest))]
    sizes = [0] * len(groups)
    falling = sorted(range(1, len(units)), key=lambda index: -units[index].length)
    for index in (0, *falling):
        lightest = sizes.index(min(sizes))
        groups[lightest].append(index)
        sizes[lightest] += units[index].length
    return [[units[index] for index in sorted(group)] for group in groups if group]
