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


class BadIndexError(InvalidArgumentError):
    """An index in the data is out of range: found by a kernel, which knows the node alone.

    `origin` is the number of the declared node whose location tells the rest; see `located`.
    """

    def __init__(self, op: str, problem: str, origin: int | None = None, where: str = "") -> None:
        super().__init__(f"{op} ({where}): {problem}" if where else f"{op}: {problem}")
        self.op, self.problem, self.origin = op, problem, origin

    def located(self, op: str, where: str) -> BadIndexError:
        """Return the error with the op as the user wrote it, and the place where."""
        name = self.op if op in ("", self.op) else f"{op}, in its {self.op}"
        return BadIndexError(name, self.problem, self.origin, where)


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
