"""Checks of arguments, for every factory and record: what is wrong is told by its name."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from frame.core.errors import InvalidArgumentError

LARGEST = 2**31 - 1
"""The largest count that an argument may be where nothing else bounds it."""


def shown(value: Any, most: int = 80) -> str:
    """Return a value as a message shows it: its first characters, whatever it is."""
    try:
        return repr(value)[:most]
    except ValueError:  # Python writes no integers of more than 4300 digits
        digits = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        return f"a {type(value).__name__}{digits}, too large to be shown"


def refuse(owner: str, name: str, expected: str, received: object) -> NoReturn:
    """Raise InvalidArgumentError for an argument: whose it is, what was expected, what came."""
    raise InvalidArgumentError(
        f"{owner}: expected {name} to be {expected}, received {shown(received)}"
    )


_PLAIN = frozenset({bool, int, float, str, type(None)})


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or numpy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold, and neither NaN nor infinite."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False


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
    if not is_finite_number(value):
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
