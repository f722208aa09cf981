"""JSON texts as data: with limits, without duplicate keys, and with the path of every fault."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError

MOST_BYTES = 64 << 20
"""The largest text that is read: data of that size belongs in an array file."""

MOST_LEVELS = 32
"""How deep objects and arrays may nest."""

_MOST_DIGITS = 40
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Odd:
    """A number that JSON does not have (NaN, Infinity), or an integer of too many digits."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Object(dict[str, Any]):
    """A JSON object that remembers the keys that came twice."""

    duplicates: tuple[str, ...] = ()


def wrong(path: str, expected: str, received: Any, hint: str = "") -> NoReturn:
    """Raise the error of a field.

    Raises:
        InvalidArgumentError: always; with the path, what was expected, what was received, and
            what to do.
    """
    text = f"{path or 'the spec'}: expected {expected}, received {shown(received)}"
    raise InvalidArgumentError(f"{text}; {hint}" if hint else text)


def shown(value: Any) -> str:
    """Return a value of a document as a short text: JSON, or the words of a `Told`."""
    if isinstance(value, (Odd, Told)):
        return repr(value)[: 4 * _SHOWN]
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclass(frozen=True, slots=True)
class Told:
    """What was received, in words rather than as JSON."""

    text: str

    def __repr__(self) -> str:
        return self.text


NOTHING = Told("nothing")


def joined(path: str, key: str) -> str:
    """Return the path of a key: `data.x`, with quotes where the key is no plain name."""
    plain = key.replace("_", "").replace("$", "").isalnum()
    if not plain:
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def read_document(path: str | os.PathLike[str]) -> Object:
    """Return the JSON object of a file.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: see `parse_document`; or the file is too large or not UTF-8.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}: expected a model spec in JSON")
    size = file.stat().st_size
    if size > MOST_BYTES:
        wrong(
            str(file),
            f"at most {MOST_BYTES} bytes",
            Told(f"{size} bytes"),
            "put the data into a .npz file",
        )
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{file}: expected UTF-8 text, {error}") from None
    return parse_document(text, str(file))


def parse_document(text: str, where: str = "the text") -> Object:
    """Return the JSON object of a text.

    Raises:
        InvalidArgumentError: the text is not JSON, not an object, nests too deep, or has a key
            twice in an object.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=Odd, parse_int=_integer)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidArgumentError(f"{where}: expected JSON, {error.msg} at {place}") from None
    except RecursionError:
        _too_deep(where)
    if not isinstance(value, Object):
        wrong(where, "one JSON object", value)
    for path, inner, level in _walk(value, "", 1):
        if level > MOST_LEVELS:
            _too_deep(path)
        if isinstance(inner, Object) and inner.duplicates:
            key = inner.duplicates[0]
            wrong(joined(path, key), "each key once", Told("it twice"), "remove one of them")
    return value


def _too_deep(path: str) -> NoReturn:
    wrong(path[:200], f"at most {MOST_LEVELS} levels of objects and arrays", Told("more"))


def _walk(value: Any, path: str, level: int) -> Iterator[tuple[str, Any, int]]:
    yield path, value, level
    if isinstance(value, Object):
        for key, inner in value.items():
            yield from _walk(inner, joined(path, key), level + 1)
    elif isinstance(value, list) and any(isinstance(inner, (list, dict)) for inner in value):
        for place, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{place}]", level + 1)


def _object(pairs: list[tuple[str, Any]]) -> Object:
    made = Object(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        made.duplicates = tuple(key for key, count in counts.items() if count > 1)
    return made


def _integer(text: str) -> int | Odd:
    return int(text) if len(text) <= _MOST_DIGITS else Odd(f"{text[:_MOST_DIGITS]}...")
