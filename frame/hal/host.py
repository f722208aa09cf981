"""Memory and streams of backends that run on the host: work is done when a call returns."""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
from collections.abc import Sequence

import numpy as np

from frame.core.devices import Device
from frame.core.errors import OutOfMemoryError
from frame.ir.graph import TensorType

_HUGE_PAGE = 1 << 21  # bytes, on most processors; nothing depends on it but speed
_LINE = 64  # bytes of a line of the caches


def block(size: int) -> mmap.mmap:
    """Return fresh memory in huge pages, where the system has them: fewer addresses to translate.

    Linux aligns whole huge pages only.

    Raises:
        OSError, ValueError, OverflowError: there is no such memory.
    """
    if size >= _HUGE_PAGE:
        size = -(-size // _HUGE_PAGE) * _HUGE_PAGE
    private = getattr(mmap, "MAP_PRIVATE", None)
    if private is None:
        return mmap.mmap(-1, size)
    made = mmap.mmap(-1, size, flags=private | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def arrays_together(types: Sequence[TensorType]) -> list[np.ndarray]:
    """Return fresh arrays for what is stored of types of known shape, side by side in one block.

    Each begins with a line of the caches. Raises OutOfMemoryError.
    """
    shapes = [tuple(map(int, t.storage_shape)) for t in types]  # type: ignore[arg-type]
    sizes = [math.prod(s) * t.dtype.itemsize for s, t in zip(shapes, types, strict=True)]
    *starts, total = itertools.accumulate((-(-s // _LINE) * _LINE for s in sizes), initial=0)
    try:
        memory = block(max(total, 1))
    except (OSError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(f"could not allocate {total} bytes of host memory") from error
    return [
        np.frombuffer(memory, np.uint8, size, start).view(t.dtype.numpy).reshape(shape)
        for t, shape, size, start in zip(types, shapes, sizes, starts, strict=True)
    ]


class HostAllocator:
    """Allocates aligned host memory."""

    def allocate(self, size: int, alignment: int = 64) -> np.ndarray:
        """Return `size` bytes at a multiple of `alignment`; raise OutOfMemoryError."""
        try:
            raw = np.empty(size + alignment, np.uint8)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(f"could not allocate {size} bytes of host memory") from error
        start = -raw.ctypes.data % alignment
        return raw[start : start + size]

    def free(self, storage: np.ndarray) -> None:
        """Give a storage back; host memory goes with its last reference."""


class HostEvent:
    """An event that has been reached: what is queued ends before the call returns."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class HostStream:
    """A queue whose work is done in the call that queues it."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> HostEvent:
        """Return an event that has been reached."""
        return HostEvent()

    def wait(self, event: HostEvent) -> None:
        """Wait for an event, of any backend."""
        event.synchronize()

    def synchronize(self) -> None:
        """Return at once."""
