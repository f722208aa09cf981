"""Counter-based random numbers: Philox4x32-10.

A number depends on its seed, stream, iteration and position alone, so results are the same for any
thread count, tiling and backend, and any part of a tensor can be made without the rest.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

Layout, which generated code follows too: word w of a stream is word w % 4 of the block w // 4,
whose counter is (block low, block high, iteration, stream) and whose key is (seed low, seed high).
32-bit and narrower elements take one word each, float64 elements two.

numpy computes the numbers here. A backend may install native code that makes the same bits in a
tenth of the time: the weights of a small network would otherwise be a fifth of a start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from frame.core.dtypes import DType, bfloat16, float16, float32, float64
from frame.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""Multipliers of counter words 0 and 2 in each round."""
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What the two key words grow by after each round (golden ratio, sqrt(3) - 1)."""

SIGNIFICANT_BITS = {float64: 53, float32: 24, float16: 11, bfloat16: 8}
"""Random bits in a uniform number: all that the significand holds, so 1.0 is never reached."""

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_CHUNK = 1 << 13  # blocks at a time: their words in 64 bits stay in a level-2 cache

_WORTHWHILE = 1 << 16  # numbers in all; numpy makes fewer in the time that native code needs

Words: TypeAlias = "npt.NDArray[np.uint32]"
Fixed: TypeAlias = tuple[int, int, int, int]
"""What the blocks of a stream share: iteration, stream, and the two key words."""


class Native(Protocol):
    """Native code that fills arrays with blocks; its numbers are those of this module."""

    def words(self, first: int, fixed: Fixed, out: np.ndarray) -> None:
        """Fill uint32 [blocks, 4] with the blocks from `first` on."""

    def between(self, first: int, fixed: Fixed, low: float, width: float, out: np.ndarray) -> None:
        """Fill float32 [blocks, 4] with low + u * width, u being uniform numbers of 24 bits."""


class Store(Protocol):
    """Where the machine code of `Native` is kept: an artefact store."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under the key, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Keep data under a key, if that is possible."""


_asked = 0
_native: Native | None = None
_load_native: Callable[[Store | None], Native | None] | None = None
_find_store: Callable[[], Store] | None = None


def set_native(load: Callable[[Store | None], Native | None]) -> None:
    """Install what loads native code, when many numbers are first asked for; backends call this."""
    global _load_native
    _load_native = load


def set_store(find: Callable[[], Store]) -> None:
    """Install the store that native code is loaded from; `frame.runtime` calls this."""
    global _find_store
    _find_store = find


def _native_for(count: int) -> Native | None:
    """Return the native code if it is loaded, or if the numbers so far are worth loading it."""
    global _native, _load_native, _asked
    load = _load_native
    _asked += count
    if load is not None and _asked >= _WORTHWHILE:
        _load_native = None
        _native = load(None if _find_store is None else _find_store())
    return _native


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> Words:
    """Return the random block of each counter: uint32 [..., 4] x uint32 [..., 2] -> [..., 4].

    Leading axes broadcast.

    Raises:
        InvalidArgumentError: the last axes are not 4 and 2 words.
    """
    counters, keys = np.asarray(counter, np.uint32), np.asarray(key, np.uint32)
    if counters.shape[-1:] != (4,) or keys.shape[-1:] != (2,):
        raise InvalidArgumentError(
            "expected counters of shape [..., 4] and keys of shape [..., 2], received "
            f"{counters.shape} and {keys.shape}"
        )
    words = [counters[..., i].astype(np.uint64) for i in range(4)]
    key_words = [keys[..., i].astype(np.uint64) for i in range(2)]
    for _ in range(ROUNDS):
        words = _round(words, key_words)
        key_words = [(k + np.uint64(w)) & _MASK for k, w in zip(key_words, WEYL, strict=True)]
    return np.stack(np.broadcast_arrays(*words), axis=-1).astype(np.uint32)


def _round(words: list[Any], key: list[Any]) -> list[Any]:
    # Every word is below 2**32 and stands in 64 bits, so a product is exact.
    low, high = (words[2 * i] * np.uint64(MULTIPLIERS[i]) for i in range(2))
    return [
        (high >> _SHIFT) ^ words[1] ^ key[0],
        high & _MASK,
        (low >> _SHIFT) ^ words[3] ^ key[1],
        low & _MASK,
    ]


def random_bits(seed: int, stream: int, offset: int, count: int, iteration: int = 0) -> Words:
    """Return words [offset, offset + count) of a stream as uint32 [count].

    `seed` has 64 bits and `stream` has 32. `iteration` is the run-time counter (of training steps
    or of a scan's iterations); its low 32 bits are used.

    Raises:
        InvalidArgumentError: an argument is negative or has more bits than that.
    """
    seed = _checked("seed", seed, 64)
    stream = _checked("stream", stream, 32)
    offset = _checked("offset", offset, 62)
    count = _checked("count", count, 62)
    first = offset // 4
    last = first + (offset % 4 + count + 3) // 4
    words = np.empty((last - first, 4), np.uint32)
    fixed = _fixed(seed, stream, iteration)
    native = _native_for(count)
    if native is not None:
        native.words(first, fixed, words)
    else:
        _fill(first, fixed, words)
    return words.reshape(-1)[offset % 4 : offset % 4 + count]


def _fixed(seed: int, stream: int, iteration: int) -> Fixed:
    return int(iteration) & 0xFFFFFFFF, stream, seed & 0xFFFFFFFF, seed >> 32


def _fill(first: int, fixed: Fixed, out: Words) -> None:
    """Do what `Native.words` does, in numpy."""
    for start in range(0, len(out), _CHUNK):
        part = out[start : start + _CHUNK]
        _blocks(first + start, first + start + len(part), fixed, part)


def _blocks(start: int, end: int, fixed: Fixed, out: Words) -> None:
    """Write the blocks [start, end) of a stream into `out`; `fixed` ends with the two key words."""
    blocks = np.arange(start, end, dtype=np.uint64)
    words: list[Any] = [blocks & _MASK, blocks >> _SHIFT, *map(np.uint64, fixed[:2])]
    key = [int(word) for word in fixed[2:]]
    for _ in range(ROUNDS):
        words = _round(words, [np.uint64(word) for word in key])
        key = [(word + grown) & 0xFFFFFFFF for word, grown in zip(key, WEYL, strict=True)]
    for position, word in enumerate(words):
        out[:, position] = word


def uniform(
    seed: int,
    stream: int,
    count: int,
    dtype: DType = float32,
    *,
    offset: int = 0,
    iteration: int = 0,
) -> npt.NDArray[Any]:
    """Return elements [offset, offset + count) of a uniform random tensor in [0, 1).

    The numbers are the multiples of 2**-24 in float32 (2**-53, 2**-11 and 2**-8 in float64,
    float16 and bfloat16), all equally likely.

    Raises:
        InvalidArgumentError: the dtype is not one of these four, or as `random_bits`.
    """
    bits = _significant_bits(dtype)
    if dtype == float64:
        words = random_bits(seed, stream, 2 * offset, 2 * count, iteration)
        return _double(words[0::2], words[1::2])
    words = random_bits(seed, stream, offset, count, iteration)
    numbers = (words >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)
    return numbers.astype(dtype.numpy)


def between(
    seed: int,
    stream: int,
    count: int,
    low: float,
    high: float,
    dtype: DType = float32,
    *,
    iteration: int = 0,
) -> npt.NDArray[Any]:
    """Return the first `count` elements of a uniform random tensor between `low` and `high`.

    They are low + u * (high - low) in float64, rounded once to `dtype`. u are the numbers of
    `uniform` in float32, or in float64 for that dtype: eight random bits make a poor weight.

    Raises:
        InvalidArgumentError: as `uniform`.
    """
    _significant_bits(dtype)
    width = high - low
    native = _native_for(count) if dtype == float32 else None
    if native is None:
        wide = float64 if dtype == float64 else float32
        numbers = uniform(seed, stream, count, wide, iteration=iteration).astype(np.float64)
        return (low + numbers * width).astype(dtype.numpy)
    fixed = _fixed(_checked("seed", seed, 64), _checked("stream", stream, 32), iteration)
    made = np.empty((-(-_checked("count", count, 62) // 4), 4), np.float32)
    native.between(0, fixed, low, width, made)
    return made.reshape(-1)[:count]


def normal(
    seed: int,
    stream: int,
    count: int,
    dtype: DType = float32,
    *,
    offset: int = 0,
    iteration: int = 0,
) -> npt.NDArray[Any]:
    """Return elements [offset, offset + count) of a standard normal random tensor.

    Box-Muller on pairs: elements 2k and 2k + 1 are r cos(t) and r sin(t), with
    r = sqrt(-2 log u1) and t = 2 pi u2. u1 in (0, 1] and u2 in [0, 1) have 24 bits and come from
    words 2k and 2k + 1 (float64: 53 bits, from words 4k to 4k + 3). They are computed in float64
    and rounded once, so this is the reference for generated code that computes in float32.

    Raises:
        InvalidArgumentError: the dtype is not a float that frame computes in, or as `random_bits`.
    """
    _significant_bits(dtype)
    skipped = offset % 2
    first, pairs = offset - skipped, (skipped + count + 1) // 2
    u1, u2 = _pairs(seed, stream, first, pairs, dtype, iteration)
    radius = np.sqrt(-2.0 * np.log(u1))
    angle = 2.0 * np.pi * u2
    numbers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1)
    return numbers[skipped : skipped + count].astype(dtype.numpy)


def _pairs(
    seed: int, stream: int, first: int, pairs: int, dtype: DType, iteration: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return u1 in (0, 1] and u2 in [0, 1) of the pairs that begin at element `first`."""
    if dtype == float64:
        words = random_bits(seed, stream, 2 * first, 4 * pairs, iteration)
        return _double(words[0::4], words[1::4]) + 2.0**-53, _double(words[2::4], words[3::4])
    bits = random_bits(seed, stream, first, 2 * pairs, iteration) >> np.uint32(8)
    numbers = bits.astype(np.float64)
    return (numbers[0::2] + 1.0) * 2.0**-24, numbers[1::2] * 2.0**-24


def permutation(seed: int, stream: int, count: int, iteration: int = 0) -> npt.NDArray[np.int64]:
    """Return a random order of range(count) as int64 [count]: the stable argsort of 64-bit keys.

    Raises:
        InvalidArgumentError: as `random_bits`.
    """
    words = random_bits(seed, stream, 0, 2 * count, iteration).astype(np.uint64)
    return np.argsort((words[0::2] << _SHIFT) | words[1::2], kind="stable").astype(np.int64)


def _double(high: Words, low: Words) -> npt.NDArray[np.float64]:
    return ((high >> 5).astype(np.float64) * 2.0**26 + (low >> 6)) * 2.0**-53


def _significant_bits(dtype: DType) -> int:
    bits = SIGNIFICANT_BITS.get(dtype)
    if bits is None:
        raise InvalidArgumentError(
            f"expected a random tensor of float64, float32, float16 or bfloat16, received {dtype}"
        )
    return bits


def _checked(name: str, value: int, bits: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number != value or not 0 <= number < 1 << bits:
        raise InvalidArgumentError(
            f"expected a {name} that is an integer from 0 to 2**{bits} - 1, received {value!r}"
        )
    return number
