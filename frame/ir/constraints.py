"""What symbols must meet: conditions that a graph puts on its sizes, as data.

A type rule accepts what may hold for some values of a symbol (`x[:10]` on an axis of size batch)
and leaves a constraint. The executable keeps them and checks each new set of values once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim


@dataclass(frozen=True, slots=True)
class Constraint:
    """The condition that `size` is 0 or more. `op` needs it, at `place` in the user's model.

    `need` completes the sentence "op needs ...". The place may be unknown, as in a cached program.
    """

    size: Dim
    op: str
    need: str
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.op}{f' ({self.place})' if self.place else ''} needs {self.need}"


def is_natural(size: Dim) -> bool:
    """Tell whether a size is 0 or more for all values of its symbols, which are never negative."""
    return all(coefficient >= 0 for _, coefficient in size.terms)


def check_constraints(constraints: Iterable[Constraint], bindings: Mapping[str, int]) -> None:
    """Check the constraints for values of the symbols.

    Raises:
        NotFoundError: a symbol has no value.
        InvalidArgumentError: a constraint does not hold; the message names the values.
    """
    for constraint in constraints:
        if constraint.size.evaluate(bindings) < 0:
            names = sorted(constraint.size.symbols)
            values = ", ".join(f"{name}={bindings[name]}" for name in names)
            raise InvalidArgumentError(f"{constraint}; this does not hold with {values}")
