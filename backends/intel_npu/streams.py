"""Host memory and streams of the backend: OpenVINO reads and writes host arrays."""

from __future__ import annotations

import numpy as np

from frame.core.devices import Device
from frame.core.errors import OutOfMemoryError
from frame.hal.interfaces import Event


class DoneEvent:
    """A point that has been reached: a run ends before it returns."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class HostStream:
    """A queue whose work is done when the call that queues it returns."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> DoneEvent:
        """Return an event that has been reached."""
        return DoneEvent()

    def wait(self, event: Event) -> None:
        """Wait for an event, of any backend."""
        event.synchronize()

    def synchronize(self) -> None:
        """Return at once."""


class HostAllocator:
    """Memory that OpenVINO reads without a copy."""

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
