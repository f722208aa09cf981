"""The one error hierarchy of frame.

Every class is also the builtin exception that a Python user expects, so `except ValueError` works.
A message says what was expected, what was received, where in the user's model, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable


class FrameError(Exception):
    """Base class of every error that frame raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        # KeyError.__str__ shows the repr of its argument: a message must not be quoted.
        return self.message


class InvalidArgumentError(FrameError, ValueError):
    """A value, shape, dtype, name or text that the called function can't accept."""


class NotFoundError(FrameError, KeyError):
    """A name, file or entry that does not exist."""


class AlreadyExistsError(FrameError, RuntimeError):
    """A name that is registered twice."""


class UnimplementedError(FrameError, NotImplementedError):
    """Something that this target or op can't do; the only error that starts the fallback.

    `nodes` are the graph nodes that are refused (objects or indices, as the raiser documents).
    """

    def __init__(self, message: str, nodes: Iterable[object] = ()) -> None:
        super().__init__(message)
        self.nodes: tuple[object, ...] = tuple(nodes)


class OutOfMemoryError(FrameError, MemoryError):
    """The host or a device could not provide the memory asked for."""


class DeviceError(FrameError, RuntimeError):
    """A device, driver or runtime library failed or is absent."""


class InternalError(FrameError, RuntimeError):
    """An invariant of frame itself is broken: a bug in frame, never a user's fault."""
