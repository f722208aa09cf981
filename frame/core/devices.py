"""Where a tensor lives or a kernel runs: a backend's name and the index of one of its devices."""

from __future__ import annotations

import re

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError

_BACKEND = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_DEVICE = re.compile(r"([a-z][a-z0-9_]{0,63})(?::([0-9]{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one backend; its text is `backend:index`, such as `cpu:0`."""

    backend: str
    index: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str) or not _BACKEND.fullmatch(self.backend):
            raise InvalidArgumentError(
                "expected a backend name of lower-case letters, digits and underscores, "
                f"received {self.backend!r}"
            )
        if not isinstance(self.index, int) or isinstance(self.index, bool) or self.index < 0:
            raise InvalidArgumentError(
                f"expected a device index of 0 or more for backend {self.backend}, "
                f"received {self.index!r}"
            )

    @classmethod
    def parse(cls, value: Device | str) -> Device:
        """Return the device that a text names: `cpu` is `cpu:0`; a Device passes through.

        Raises:
            InvalidArgumentError: the text is not `backend` or `backend:index`.
        """
        if isinstance(value, Device):
            return value
        match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise InvalidArgumentError(
                f"expected a device such as 'cpu' or 'cuda:1', received {value!r}"
            )
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"{self.backend}:{self.index}"


HOST = Device("cpu", 0)
"""The device whose memory is ordinary process memory."""
