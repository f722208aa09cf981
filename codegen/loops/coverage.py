"""Count which branches and loop trips a run of the interpreter has executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from frame.codegen.loops.ir import Block, For, If, Stmt, While
from frame.codegen.loops.traverse import nested

TRIPS = ("zero", "one", "many")


@dataclass(slots=True)
class Coverage:
    """What ran, by place: `branches` counts (place, taken), `loops` counts (place, trips).

    A place names the kernel or entry and the positions of the statements from the outermost block
    inwards, as in `kernel softmax/1.0.2`. One Coverage may collect any number of runs.
    """

    branches: Counter[tuple[str, bool]] = field(default_factory=Counter)
    loops: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[Stmt, str] = field(default_factory=dict)
    declared: set[tuple[str, Block]] = field(default_factory=set)

    def declare(self, where: str, body: Block) -> None:
        """Name every branch and loop of a body, so that one that never runs is known."""
        if (where, body) not in self.declared:
            self.declared.add((where, body))
            self.places.update(_places(body, f"{where}/"))

    def branch(self, statement: If, taken: bool) -> None:
        """Count one execution of an If."""
        self.branches[self.places[statement], taken] += 1

    def loop(self, statement: For | While, trips: int) -> None:
        """Count one execution of a loop, by its number of trips."""
        self.loops[self.places[statement], TRIPS[min(trips, 2)]] += 1

    def missing_branches(self) -> list[str]:
        """Return the sides of branches that never ran, as `place: true` or `place: false`."""
        names = sorted({p for s, p in self.places.items() if isinstance(s, If)})
        sides = [(name, side) for name in names for side in (True, False)]
        return [f"{n}: {str(side).lower()}" for n, side in sides if not self.branches[n, side]]

    def idle_loops(self) -> list[str]:
        """Return the loops that never ran a trip."""
        names = sorted({p for s, p in self.places.items() if isinstance(s, (For, While))})
        return [n for n in names if not (self.loops[n, "one"] or self.loops[n, "many"])]


def _places(body: Block, prefix: str) -> Iterator[tuple[Stmt, str]]:
    for position, statement in enumerate(body):
        place = f"{prefix}{position}"
        if isinstance(statement, (If, For, While)):
            yield statement, place
        for side, block in enumerate(nested(statement)):
            yield from _places(block, f"{place}{'e' if side else ''}.")
