"""Memory and streams of backends that run on the host: work is done when a call returns."""

from __future__ import annotations

import numpy as np

from frame.core.devices import Device
from frame.core.errors import OutOfMemoryError


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
