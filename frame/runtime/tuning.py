"""Measured tuning of schedules: which variant of a group's schedule is fastest on this machine.

    choice    what was measured for a group: its key covers the group, the target, the code of the
              backend and the number of threads; its value is the variant and how much it won

Choices are entries of the cache beside the artefacts, or stay in this process where it keeps none.
Every variant gives the same bits, so a lost choice costs time and never changes a result.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frame.core.dataclass import dataclass
from frame.core.errors import FrameError
from frame.core.logs import Logger
from frame.core.shapes import Dim
from frame.hal.interfaces import VOLATILE
from frame.ir.graph import Graph, Node, Role, TensorType, Value
from frame.ir.hashing import structural_hash
from frame.runtime import statistics
from frame.runtime.backends import backend
from frame.runtime.cache import CHOICE, Cache, default_cache, process_cache
from frame.runtime.manifest import Tuned

if TYPE_CHECKING:
    from frame.runtime.loading import Declared

_LOG = Logger("frame.tuning")
_WEIGHTS = frozenset({Role.PARAMETER, Role.BUFFER, Role.DERIVED})


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant that was measured to be fastest; `gain` is the default's time over its time."""

    variant: str = ""
    gain: float = 1.0

    def to_bytes(self) -> bytes:
        """Return the choice as a JSON text."""
        return json.dumps({"variant": self.variant, "gain": self.gain}).encode()


class Tuner:
    """Chooses the variants of one compile, from the cache or by measuring, and keeps count."""

    def __init__(self, declared: Declared, cache: Cache) -> None:
        self.declared = declared
        self.owner: Any = backend(declared.backend)
        self.cache = _cache_for(self.owner.source_hash(), cache)
        self.left = 0
        self._deadline = time.monotonic() + (declared.tune or 0.0)
        self._rows: Counter[Tuned] = Counter()
        self._warned = False

    @property
    def rows(self) -> tuple[Tuned, ...]:
        """What was chosen, one row a kind of group that has variants."""
        return tuple(replace(row, count=count) for row, count in self._rows.items())

    def choose(self, graph: Graph, groups: Sequence[Node]) -> Mapping[Node, str]:
        """Return the variants of groups; those left out keep the default schedule.

        The groups that compute most come first, in case that the time does not suffice for all.
        """
        same: dict[str, list[Node]] = {}
        for group in groups:
            if not any(_is_symbolic(value) for value in (*group.operands, *group.results)):
                same.setdefault(self._key(group), []).append(group)
        order = sorted(same, key=lambda key: -_size(same[key][0]) * len(same[key]))
        found: dict[Node, str] = {}
        for position, key in enumerate(order):
            group, variants = same[key][0], self.owner.variants(same[key][0], self.declared.on)
            if not variants:
                continue
            choice = self._known(key, variants)
            if choice is None:
                progress = f"{position + 1} of {len(order)}"
                choice = self._measured(key, graph, group, variants, progress)
            if choice is None:
                self.left += len(same[key])
                continue
            found.update(dict.fromkeys(same[key], choice.variant))
            row = Tuned(_title(group), choice.variant, choice.gain)
            self._rows[row] += len(same[key])
        if self.left and self.declared.tune:
            _LOG.info(
                "%d groups keep their default schedules: the time for tuning, %g s, is over; "
                "compiling again goes on from here",
                self.left,
                self.declared.tune,
            )
        return found

    def _key(self, group: Node) -> str:
        parts = (
            "choice 1",
            group.attributes["anchor"],
            structural_hash(group.attributes["body"]),
            self.declared.on.text(),
            self.owner.source_hash(),
            self.owner.tuning_context(),
            repr(sorted(self.declared.options.items())),
        )
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def _known(self, key: str, variants: Sequence[str]) -> Choice | None:
        """Return the choice that the cache has, None where it has none of use."""
        data = self.cache.get(CHOICE, key)
        if data is None:
            return None
        choice = _read(data)
        if choice is not None and choice.variant in ("", *variants):
            return choice
        if not self._warned:
            self._warned = True
            _LOG.warning("cache: a choice of a schedule is none that is known here: ignored")
        return None

    def _measured(
        self, key: str, graph: Graph, group: Node, variants: Sequence[str], progress: str
    ) -> Choice | None:
        """Measure variants and keep what was found; None where the time was over before."""
        from frame.runtime.measuring import Measurement  # only a measurement needs its code

        if time.monotonic() >= self._deadline:
            return None
        statistics.count(tuned=1)
        cold = _cold(graph, group)
        try:
            made = Measurement(self.owner, self.declared.on, self.declared.options, group, cold)
            found = made.best(variants, self._deadline)
        except (FrameError, MemoryError) as error:  # can't run on its own, on such data, or now
            _LOG.warning("%s keeps its default schedule: %s", _title(group), error)
            return Choice()
        if found is None:
            return None
        choice = Choice(*found)
        told = f"{choice.variant}, {choice.gain:.2f} times as fast" if choice.variant else "default"
        _LOG.info("tuning group %s, %s: %s", progress, _title(group), told)
        self.cache.put(CHOICE, key, choice.to_bytes())
        return choice


def _cache_for(source_hash: str, cache: Cache) -> Cache:
    """Return where choices are kept: in memory where nothing may be kept, or nothing is."""
    if source_hash.startswith(VOLATILE):
        return process_cache()
    found = cache if cache.active else default_cache()
    return found if found.active else process_cache()


def _read(data: bytes) -> Choice | None:
    try:
        found = json.loads(data)
        choice = Choice(str(found["variant"]), float(found["gain"]))
    except (ValueError, TypeError, KeyError):
        return None
    return choice if math.isfinite(choice.gain) and choice.gain > 0 else None


def _is_symbolic(value: Value) -> bool:
    return any(isinstance(size, Dim) for size in value.shape)


def _title(group: Node) -> str:
    """Return what people read of a group: its main op and the shapes around it."""
    body: Graph = group.attributes["body"]
    ops = [node.op for node in body.nodes if node.op not in ("constant", "expand", "reshape")]
    shapes = [_shape(value.type) for value in (*group.operands[:2], group.results[0])]
    return f"{'_'.join(ops[:3])} {' '.join(shapes[:-1])} -> {shapes[-1]}"


def _shape(type_: TensorType) -> str:
    return "x".join(map(str, type_.shape)) or "scalar"


def _size(group: Node) -> float:
    """What the three largest arrays of a group hold, multiplied: about the work of a product."""
    counts = sorted(_elements(value) for value in (*group.operands, *group.results))
    total = 1.0
    for count in counts[-3:]:
        total *= max(1, count)
    return total


def _elements(value: Value) -> int:
    total = 1
    for size in value.shape:
        total *= size if isinstance(size, int) else 1
    return total


def _cold(graph: Graph, group: Node) -> Mapping[int, int]:
    """Return the operands that are weights, each with the bytes of all weights of the graph.

    A run reads all of them before it comes back to one: caches hold it only if they hold them all.
    """
    weights = {entry.value for entry in graph.inputs if entry.role in _WEIGHTS}
    total = sum(int(w.type.nbytes) for w in weights if isinstance(w.type.nbytes, int))
    return {k: total for k, value in enumerate(group.operands) if value in weights}
