"""Variants: one declaration compiled for several inputs, with one set of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frame.core import forks
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from frame.runtime.specs import as_spec, named_specs

if TYPE_CHECKING:
    from frame.nn.module import Module
    from frame.runtime.model import CompiledModel

Key = tuple[
    tuple[tuple[str, TensorType], ...],
    tuple[TensorType, ...],
    tuple[tuple[str, int], ...],
    "Module | None",
]
Maker = Callable[
    [Any, Sequence[Any], Mapping[str, int], "Module | None", "Family"], "CompiledModel"
]


class Family:
    """The models that `CompiledModel.variant` makes of one; the first one owns the parameters."""

    def __init__(self, make: Maker, targets: Sequence[Any]) -> None:
        self._make = make
        self._targets = tuple(targets)
        self._members: dict[Key, CompiledModel] = {}
        self._lock = forks.recursive_lock()

    def begin(self, model: CompiledModel, inputs: Any, sizes: Mapping[str, int]) -> None:
        """Take the first member."""
        self._members[_key(inputs, self._targets, sizes, None)] = model

    def member(
        self,
        inputs: Any,
        targets: Sequence[Any] | None,
        sizes: Mapping[str, int],
        module: Module | None = None,
    ) -> CompiledModel:
        """Return the model for these inputs, making it at the first use.

        Raises:
            InvalidArgumentError: the model needs parameters of other shapes for these inputs.
        """
        wanted = self._targets if targets is None else tuple(targets)
        key = _key(inputs, wanted, sizes, module)
        with self._lock:
            if key not in self._members:
                first = next(iter(self._members.values()))
                made = self._make(inputs, wanted, sizes, module, self)
                _require_same(first.module, made.module)
                made.share_state(first)
                self._members[key] = made
            return self._members[key]


def _key(
    inputs: Any, targets: Sequence[Any], sizes: Mapping[str, int], module: Module | None
) -> Key:
    named = tuple(named_specs(inputs).items())
    return named, tuple(map(as_spec, targets)), tuple(sorted(sizes.items())), module


def _require_same(first: Module | None, other: Module | None) -> None:
    """Raise InvalidArgumentError unless both modules have the same parameters."""
    if first is None or other is None:
        return
    expected = {spec.name: (spec.type, spec.role) for spec in first.parameters()}
    received = {spec.name: (spec.type, spec.role) for spec in other.parameters()}
    differs = [n for n in {**expected, **received} if expected.get(n) != received.get(n)]
    if differs:
        name = differs[0]
        before, after = (table.get(name, ("nothing",))[0] for table in (expected, received))
        raise InvalidArgumentError(
            f"variants share their parameters: expected {name!r} as {before}, these inputs need "
            f"{after}; a layer whose weights depend on the resolution, such as an fc that reads "
            "an image, needs a global average pool before it"
        )
