"""The recording backend of examples/custom_backend, as tests use it: without an installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.runtime.backends import register_backend, unregister_backend

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "custom_backend"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

from frame_recorder import Buffer, HazardError, RecorderBackend  # noqa: E402

__all__ = ["FOLDER", "Buffer", "HazardError", "RecorderBackend", "names", "recorder"]


@contextmanager
def recorder(*args: Any, **settings: Any) -> Iterator[RecorderBackend]:
    """Register a recording backend for a block."""
    made = RecorderBackend(*args, **settings)
    register_backend(made.name, lambda: made)
    try:
        yield made
    finally:
        unregister_backend(made.name)


def names(backend: RecorderBackend) -> list[str]:
    """Return the ops that ran on the device, without copies and waits."""
    quiet = {"upload", "download", "copy", "wait", "nothing", "update"}
    return [operation.name for operation in backend.log if operation.name not in quiet]
