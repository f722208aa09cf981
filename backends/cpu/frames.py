"""The memory of running calls: context words, pointer words, arenas, and recycled outputs."""

from __future__ import annotations

import mmap
import sys
import weakref
from typing import Any

import _cffi_backend  # cffi itself would import a parser of C, which a dozen types don't need
import numpy as np

from frame.backends.cpu.pool import get_pool
from frame.core.dataclass import dataclass
from frame.core.errors import OutOfMemoryError
from frame.hal.host import block

FFI = _cffi_backend.FFI()
_CONTEXT_WORDS = 12  # the last two belong to gates
_STATUS_WORDS = 4
_POOLED = 4  # recycled arrays an output
RECYCLED_BYTES = 1 << 16
"""Outputs of this size and above are recycled."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What values of the symbols decide: the arena, its offset table, and the outputs.

    `results` has a row an output: its word, shape, dtype, recycler (None for small ones) and how
    its pointer is taken.
    """

    values: tuple[int, ...]
    arena_size: int
    table: Any
    results: tuple[tuple[int, tuple[int, ...], np.dtype, Recycler | None, Any], ...]


class Frame:
    """The memory of one running call. Its words stand ready for `owner` and `binding`."""

    __slots__ = (
        "arena", "binding", "context", "owner", "size", "status", "symbols", "table", "words",
    )  # fmt: skip

    def __init__(self, ports: int, symbols: int) -> None:
        pool = get_pool()
        self.words = FFI.new("void *[]", max(ports, 1))
        self.symbols = FFI.new("int64_t[]", max(symbols, 1))
        self.status = FFI.new("int64_t[]", _STATUS_WORDS)
        self.context = FFI.new("intptr_t[]", _CONTEXT_WORDS)
        self.arena: mmap.mmap | None = None
        self.size = 0
        self.table: Any = None
        self.binding: Binding | None = None
        self.owner: object = None
        self.context[0] = pool.address
        self.context[1] = pool.launch_address
        self.context[2] = pool.fail_address
        self.context[3] = address_of(self.status)
        self.context[5] = address_of(self.words)
        self.context[6] = address_of(self.symbols)
        self.context[9] = pool.clock_address

    def bind(self, binding: Binding) -> None:
        """Set the symbols, the arena and its offset table; raise OutOfMemoryError."""
        self._reserve(binding.arena_size)
        for position, value in enumerate(binding.values):
            self.symbols[position] = value
        self.table = binding.table
        self.context[7] = 0 if binding.table is None else address_of(binding.table)
        self.binding = binding

    def _reserve(self, size: int) -> None:
        """Make the arena hold at least `size` bytes."""
        if size <= self.size:
            return
        try:
            self.arena = block(size)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(
                f"the run needs {size} bytes for intermediate values and could not get them: "
                f"{error}; use a smaller batch"
            ) from error
        self.size = size
        self.context[4] = address_of(FFI.from_buffer(self.arena))


def address_of(data: Any) -> int:
    """Return the address of memory that cffi holds."""
    return int(FFI.cast("intptr_t", data))


@dataclass(slots=True)
class Recycler:
    """Arrays of one output that are reused once only this object holds them.

    Gates read the list where it is: it changes in place alone.
    """

    arrays: list[np.ndarray]

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array that nobody else holds."""
        for array in self.arrays:
            if sys.getrefcount(array) == _COUNT_OF_ONE_HOLDER and _is_whole(array, shape, dtype):
                return array
        array = empty(shape, dtype)
        if len(self.arrays) >= _POOLED:
            self.arrays.pop(0)
        self.arrays.append(array)
        return array


def _is_whole(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array is as it was made, and nobody gets at it again.

    Its last holder may have changed it in place, and a weak reference would show what follows.
    """
    flags = array.flags
    return (
        array.shape == shape
        and array.dtype == dtype
        and flags.c_contiguous
        and flags.writeable
        and flags.owndata
        and not weakref.getweakrefcount(array)
    )


def _count_of_one_holder() -> int:
    """Return the count that `Recycler.take` sees of an array that only its list holds.

    Besides the list it counts the loop variable, and the argument where the interpreter counts
    that: from Python 3.14 on it does not, and a fixed number would hand out arrays in use.
    """
    arrays, count = [np.empty(0)], 0
    for array in arrays:
        count = sys.getrefcount(array)
    return count


_COUNT_OF_ONE_HOLDER = _count_of_one_holder()


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a fresh array; raise OutOfMemoryError."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise OutOfMemoryError(
            f"could not get memory for an output of {dtype.name}{list(shape)}: {error}"
        ) from error
