"""What every format of weight files asks: which names an array may have, and a sound header."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from frame.core.errors import InvalidArgumentError

Fail = Callable[[str], NoReturn]
"""Raises the error of a file that isn't sound, which names the file, for a problem."""

MAX_NAME = 1024
METADATA = "__metadata__"
DTYPES = "__dtypes__"
RESERVED = frozenset({METADATA, DTYPES})


def check_name(name: object) -> str:
    """Return the name.

    Raises:
        InvalidArgumentError: it is empty, longer than 1024 characters, has a character that can't
            be printed, or is one of the names that the formats use themselves.
    """
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    if not good or name in RESERVED:
        raise InvalidArgumentError(
            f"expected an array name of 1 to {MAX_NAME} printable characters other than "
            f"{' and '.join(sorted(RESERVED))}, received {name!r:.200}"
        )
    return str(name)


def check_read_name(name: object, fail: Fail) -> None:
    """Check a name that a file has, as `check_name`."""
    try:
        check_name(name)
    except InvalidArgumentError as problem:
        fail(str(problem))


def json_object(text: bytes, what: str, fail: Fail) -> dict[str, Any]:
    """Return the JSON object that a part of a file, `what`, holds; no name may occur twice."""
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:
        fail(f"{what} is not sound JSON: {problem}")
    if not isinstance(found, dict):
        fail(f"{what} is not a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
