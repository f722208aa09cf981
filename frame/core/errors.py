"""The one error hierarchy of frame.

Every class is also the builtin exception that a Python user expects, so `except ValueError` works.
A message says what was expected, what was received, where in the user's model, and what to do next.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, NoReturn


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


# --- checks of arguments, for every factory and record --------------------------------------------

LARGEST = 2**31 - 1
"""The largest count that an argument may be where nothing else bounds it."""


def refuse(owner: str, name: str, expected: str, received: object) -> NoReturn:
    """Raise InvalidArgumentError for an argument: whose it is, what was expected, what came."""
    raise InvalidArgumentError(
        f"{owner}: expected {name} to be {expected}, received {received!r:.80}"
    )


_PLAIN = frozenset({bool, int, float, str, type(None)})


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or numpy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_flag(value: Any) -> bool:
    """Whether a value is a bool of Python or numpy."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def plain(value: Any) -> Any:
    """Return a numpy number as one of Python, in tuples and lists, too; others as they are."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return kind(map(plain, value))
    if kind.__module__ != "numpy" or not (is_flag(value) or isinstance(value, numbers.Real)):
        return value
    if is_flag(value):
        return bool(value)
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def whole(owner: str, name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return an integer from `least` to `most`, given as one of Python or numpy.

    Raises:
        InvalidArgumentError: it is none, or out of range; the message names the argument.
    """
    right = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not right or value < least:
        refuse(owner, name, f"an integer of at least {least}", value)
    if value > most:
        refuse(owner, name, f"an integer of at most {most}", value)
    return int(value)


def real(owner: str, name: str, value: Any) -> float:
    """Return a finite number as a float.

    Raises:
        InvalidArgumentError: it is no number, NaN or infinite; the message names the argument.
    """
    if not is_number(value) or not math.isfinite(value):
        refuse(owner, name, "a finite number", value)
    return float(value)


def flag(owner: str, name: str, value: Any) -> bool:
    """Return a bool, of Python or numpy; raise InvalidArgumentError for anything else."""
    if not is_flag(value):
        refuse(owner, name, "True or False", value)
    return bool(value)


def text(owner: str, name: str, value: Any) -> str:
    """Return a string; raise InvalidArgumentError for anything else."""
    if not isinstance(value, str):
        refuse(owner, name, "a text", value)
    return value


def path(owner: str, name: str, value: Any) -> str:
    """Return a path as text; raise InvalidArgumentError for what is none."""
    if not isinstance(value, (str, os.PathLike)):
        refuse(owner, name, "a path", value)
    return str(os.fspath(value))


def _count(owner: str, name: str, value: Any) -> int:
    return whole(owner, name, value, -LARGEST - 1)


_BY_ANNOTATION: Mapping[str, Callable[[str, str, Any], Any]] = {
    "int": _count,
    "float": real,
    "bool": flag,
    "str": text,
}


def settle(owner: str, record: Any) -> None:
    """Check the fields of a dataclass by their annotations, and make numbers Python's own.

    Integers are of 32 bits, numbers finite; `int | None` and its like are None, too.

    Raises:
        InvalidArgumentError: a field has another type; the message names it.
    """
    for each in fields(record):
        kind, _, rest = str(each.type).partition(" | ")
        check = _BY_ANNOTATION.get(kind) if rest in ("", "None") else None
        value = getattr(record, each.name)
        if check is not None and not (rest and value is None):
            object.__setattr__(record, each.name, check(owner, each.name, value))
