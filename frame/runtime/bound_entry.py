"""Entries of backends that need known sizes: one compile for each set of sizes that comes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core import forks
from frame.core.errors import InvalidArgumentError
from frame.core.logs import Logger
from frame.core.shapes import match_shapes, shape_text
from frame.hal.interfaces import KernelTime
from frame.runtime.entry import Counter, Entry
from frame.runtime.loading import Declared, Loaded, load
from frame.runtime.parameters import ParameterStore

if TYPE_CHECKING:
    from frame.hal.source import Source

_LOG = Logger("frame.runtime")
KEPT_BINDINGS = 16
"""How many sets of sizes an entry keeps compiled; the one not used for longest goes first."""

Bindings = tuple[tuple[str, int], ...]


def make_entry(
    declared: Declared,
    store: ParameterStore,
    counter: Counter | None = None,
    loaded: Loaded | None = None,
) -> Entry:
    """Return the entry of a declaration, of the kind that its backend needs."""
    loaded = loaded or load(declared)
    kind = BoundEntry if loaded.manifest.is_unbound else Entry
    return kind(declared, store, counter, loaded)


class BoundEntry(Entry):
    """An entry that is compiled for each set of sizes; all of them share the store."""

    def __init__(
        self,
        declared: Declared,
        store: ParameterStore,
        counter: Counter | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        super().__init__(declared, store, counter, loaded)
        self.compiles = 0
        self._pure = False
        self._bound: OrderedDict[Bindings, Entry] = OrderedDict()
        self._binding = forks.recursive_lock()

    def run(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        out: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Run the executable of the sizes that the inputs have, compiled at their first use."""
        return self._entry(inputs, named or {}).run(inputs, named, out)

    def profile(self, *inputs: Any, **named: Any) -> list[KernelTime]:
        """Run once and return the time of each kernel launch."""
        return self._entry(inputs, named).profile(*inputs, **named)

    def source(self, node: Any = None) -> Source:
        """Return the generated code for the sizes used last; raise InvalidArgumentError."""
        return self._latest().source(node)

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops that run in numpy for the sizes used last; empty before the first call."""
        return self._latest().host_steps if self._bound else ()

    def _latest(self) -> Entry:
        if not self._bound:
            raise InvalidArgumentError(
                f"{self.declared.graph.name}: {self.declared.backend} needs known sizes; call the "
                "model once, or write numbers in the specs of the inputs"
            )
        return next(reversed(self._bound.values()))

    def _entry(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Entry:
        key = self._key(inputs, named)
        with self._binding:
            if key not in self._bound:
                self._bound[key] = self._made(dict(key))
                if len(self._bound) > KEPT_BINDINGS:
                    self._bound.popitem(last=False)
            self._bound.move_to_end(key)
            return self._bound[key]

    def _made(self, bindings: Mapping[str, int]) -> Entry:
        from frame.compiler.bind import bind_symbols  # the compiler is not needed without a call

        sizes = ", ".join(f"{name} = {value}" for name, value in bindings.items())
        _LOG.info("%s is compiled for %s", self.declared.graph.name, sizes)
        self.compiles += 1
        graph = bind_symbols(self.declared.graph, bindings)
        return Entry(replace(self.declared, graph=graph), self.store, self.counter)

    def _key(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Bindings:
        values = self._ordered(self._given(inputs, named))
        rows = [
            (port.type.shape, np.shape(value))
            for port, value in zip(self._free, values, strict=True)
            if value is not None
        ]
        bindings: dict[str, int] = {}
        if not match_shapes(rows, bindings):
            received = ", ".join(shape_text(shape) for _, shape in rows)
            raise InvalidArgumentError(
                f"{self.declared.graph.name} takes {self._describe()}; received {received}"
            )
        return tuple(sorted(bindings.items()))
