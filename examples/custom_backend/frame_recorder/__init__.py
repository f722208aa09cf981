"""A backend plug-in for frame: an asynchronous device in numpy that records every operation."""

from __future__ import annotations

from frame_recorder.backend import RecorderBackend
from frame_recorder.device import Buffer, HazardError, Operation

__all__ = ["Buffer", "HazardError", "Operation", "RecorderBackend", "create_backend"]


def create_backend() -> RecorderBackend:
    """Return the backend; the entry point `recorder` of the group `frame.backends`."""
    return RecorderBackend()
