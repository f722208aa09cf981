"""Measuring the variants of one group's schedule: in this process, on its threads.

    compile    the group alone, once a variant; one whose results differ in a bit is dropped
    rounds     each variant once a round, in turns, so that all meet the same state of the machine
    decide     by the median of the ratios to the default within each round

The default stays unless another one is clearly faster: by the margin, in most rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frame.compiler.pipeline import group_piece
from frame.core.logs import Logger
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node, TensorType
from frame.runtime.cache import Cache

_LOG = Logger("frame.tuning")
MARGIN = 1.03
"""How many times as fast as the default a variant must be to take its place."""
_FIRST, _ROUNDS = 3, 12  # rounds before all but the best are dropped, and rounds of these
_KEPT, _HOPELESS = 3, 1.0  # variants that stay after the first rounds, and the gain they need
_SHARE = 0.75  # of the rounds, that a variant must win
_SAMPLE = 1e-3  # seconds of one sample, at least
_MOST_RUNS, _MOST_COPIES = 200, 8
_MOST_BYTES = 1 << 27  # of all copies of one operand
_SEED = 20261201

Clock = Callable[[], float]


class Measurement:
    """One group alone with operands of its sizes, which variants run on."""

    _turn = 0  # of the sets of operands: each run takes the one used longest ago

    def __init__(
        self,
        owner: Any,
        target: TargetDescription,
        options: Mapping[str, Any],
        group: Node,
        cold: Mapping[int, int],
        clock: Clock = time.perf_counter,
    ) -> None:
        """Take the operands that come from memory, each with the bytes read between two runs."""
        self.owner, self.target, self.options, self.group = owner, target, options, group
        self.clock = clock
        self.sets = operand_sets(group, cold)

    def best(self, variants: Sequence[str], deadline: float) -> tuple[str, float] | None:
        """Return the fastest variant and its gain over the default, ("", 1) where that stays.

        None where `deadline`, a time of `time.monotonic`, came first.
        """
        default = self._made("")
        expected = default(0)
        runs: dict[str, Callable[[int], Any]] = {"": default}
        for variant in variants:
            if time.monotonic() >= deadline:
                return None
            run = self._made(variant)
            if _same_bits(run(0), expected):
                runs[variant] = run
            else:
                _LOG.warning("the variant %s of a schedule has other results: ignored", variant)
        return self.decide(runs, deadline)

    def decide(
        self, runs: Mapping[str, Callable[[int], Any]], deadline: float
    ) -> tuple[str, float] | None:
        """Return what `best` does, given what runs each variant on one set of operands."""
        count = self._runs_of_sample(runs[""])
        gains: dict[str, list[float]] = {variant: [] for variant in runs if variant}
        for number in range(_ROUNDS):
            if time.monotonic() >= deadline:
                return None
            if number == _FIRST:
                gains = _promising(gains)
            if not gains:
                break
            base = self._sample(runs[""], count)
            for variant, found in gains.items():
                found.append(base / max(self._sample(runs[variant], count), 1e-12))
        middle = {variant: statistics.median(found) for variant, found in gains.items()}
        best = max(middle, key=lambda variant: middle[variant], default="")
        if not best or middle[best] < MARGIN:
            return "", 1.0
        won = sum(gain > 1 for gain in gains[best])
        return (best, round(middle[best], 3)) if won >= _SHARE * len(gains[best]) else ("", 1.0)

    def _made(self, variant: str) -> Callable[[int], Any]:
        """Return what runs the group in a variant on one of the sets of operands."""
        attributes = {**self.group.attributes, "variant": variant}
        if not variant:
            del attributes["variant"]
        group = self.group
        types = tuple(result.type for result in group.results)
        node = Node("group", group.operands, attributes, types, group.origin)
        capabilities = self.owner.capabilities(self.target)
        piece = group_piece(node, self.target, capabilities, self.owner.group_info)
        store = Cache(None, remembered=0).artifacts()
        made = self.owner.compile(piece, self.target, self.options, store)
        results = made.run(self.sets[0])
        return lambda number: made.run(self.sets[number % len(self.sets)], results)

    def _runs_of_sample(self, run: Callable[[int], Any]) -> int:
        """Return how many runs make a sample long enough for the clock."""
        run(0)
        start = self.clock()
        run(0)
        once = max(self.clock() - start, 1e-7)
        least = len(self.sets) if once * len(self.sets) < _SAMPLE else 1
        return max(least, min(_MOST_RUNS, int(_SAMPLE / once)))

    def _sample(self, run: Callable[[int], Any], count: int) -> float:
        """Return the seconds of some runs in a row, on the sets that were used longest ago."""
        first, self._turn = self._turn, self._turn + count
        start = self.clock()
        for number in range(first, self._turn):
            run(number)
        return self.clock() - start


def _promising(gains: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the few variants that were fastest, without those that were slower than the default;
    what they have won so far is forgotten, as it is why they were chosen."""
    middle = {variant: statistics.median(found) for variant, found in gains.items()}
    order = sorted(middle, key=lambda variant: -middle[variant])[:_KEPT]
    return {variant: [] for variant in order if middle[variant] > _HOPELESS}


def _same_bits(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# --- operands -------------------------------------------------------------------------------------


def operand_sets(group: Node, cold: Mapping[int, int]) -> list[list[np.ndarray]]:
    """Return sets of operands: weights have copies of their own, as many bytes as are read between
    two runs of the group in its graph, within bounds."""
    random = np.random.Generator(np.random.Philox(_SEED))
    limit = _least_size(group.attributes["body"])
    base = [_filled(value.type, random, limit) for value in group.operands]
    copies = [
        [array, *(array.copy() for _ in range(1, _copies(array.nbytes, cold.get(k, 0))))]
        for k, array in enumerate(base)
    ]
    return [
        [own[number % len(own)] for own in copies]
        for number in range(max(map(len, copies), default=1))
    ]


def _copies(own: int, total: int) -> int:
    return max(1, min(_MOST_COPIES, total // max(own, 1), _MOST_BYTES // max(own, 1)))


def _filled(type_: TensorType, random: np.random.Generator, limit: int) -> np.ndarray:
    """Return an array of a type: positive floats, and integers that every axis has as indices."""
    shape = tuple(int(size) for size in type_.storage_shape)  # type: ignore[arg-type]
    kind = type_.dtype.numpy
    if type_.dtype.is_float:
        return np.asarray(random.random(shape, np.float32) + np.float32(0.1), kind)
    return np.asarray(random.integers(0, max(1, min(limit, 100)), shape), kind)


def _least_size(body: Graph) -> int:
    """Return the size of the shortest axis in a group: indices below it are valid everywhere."""
    values = [*body.input_values, *(result for node in body.nodes for result in node.results)]
    return min((int(size) for value in values for size in value.shape), default=1)  # type: ignore[arg-type]
