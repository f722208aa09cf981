"""Seeded numbers of specs: the Mersenne Twister, as every implementation has it.

Source: Matsumoto, Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), seeded with one 32-bit word
(`init_genrand` of the authors' code, `std::mt19937`, numpy's legacy `RandomState`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frame.core.errors import OutOfMemoryError

SEED = 2**32 - 1
"""The largest seed."""


class Draws:
    """One stream of 32-bit words; each call takes the next ones."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def words(self, count: int) -> np.ndarray:
        """Return the next `count` words as uint32; raise OutOfMemoryError for too many."""
        try:
            return self._state.randint(0, 2**32, count, dtype=np.uint32)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(
                f"data: expected as many seeded numbers as the memory holds, received {count}"
            ) from error

    def uniform(self, shape: Sequence[int], low: float, high: float) -> np.ndarray:
        """Return float32 numbers, each low + (high - low) * word / 2**32, in row-major order."""
        shares = self.words(math.prod(shape)) / 2.0**32
        return (low + (high - low) * shares).astype(np.float32).reshape(shape)

    def integers(self, shape: Sequence[int], low: int, high: int) -> np.ndarray:
        """Return int64 numbers from `low` to `high - 1`: the part of the range that a word is."""
        words = self.words(math.prod(shape)).astype(np.uint64)
        return (low + (words * np.uint64(high - low) >> np.uint64(32)).astype(np.int64)).reshape(
            tuple(shape)
        )
