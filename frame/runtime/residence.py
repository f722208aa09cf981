"""State arrays that may lie on devices: where the newest copy is, and how it gets elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from frame.core import forks
from frame.core.devices import HOST, Device
from frame.runtime.backends import backend


class Resident:
    """One array with copies on devices, of which some are current.

    A state buffer stays on the device that updates it: it is copied elsewhere only when somebody
    asks for it there. Whoever changes it must keep everyone else from using it meanwhile.
    """

    __slots__ = ("_copies", "_current", "_lock", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._copies: dict[Device, Any] = {}
        self._current = {HOST}
        self._lock = forks.lock()

    def on(self, device: Device) -> Any:
        """Return the memory on a device; copied there first unless it is current."""
        if device == HOST:
            return self.host()
        with self._lock:
            if device not in self._current:
                owner = backend(device.backend)
                self._put(device, owner.upload(self._host(), device))
                self._current.add(device)
            return self._copies[device]

    def host(self) -> np.ndarray:
        """Return the host array; copied back first unless it is current."""
        with self._lock:
            return self._host()

    def changed(self, device: Device) -> None:
        """Note that the memory on `device` alone is current from now on."""
        with self._lock:
            self._current = {device}

    def replace(self, device: Device, storage: Any) -> None:
        """Take other memory on a device as the only current one, and free the one before."""
        with self._lock:
            self._put(device, storage)
            self._current = {device}

    def _put(self, device: Device, storage: Any) -> None:
        before = self._copies.get(device)
        self._copies[device] = storage
        if before is not None:
            backend(device.backend).allocator(device).free(before)

    def _host(self) -> np.ndarray:
        if HOST not in self._current:
            device = next(iter(self._current))
            found = backend(device.backend).download(self._copies[device])
            np.copyto(self.array, np.asarray(found))
            self._current.add(HOST)
        return self.array
