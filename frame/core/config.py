"""Settings: the only module that reads environment variables.

`config.get("FRAME_CACHE")` reads the override in force, else the environment, else the default;
`with config.override(FRAME_CACHE="0"):` is the twin of setting a variable, for the whole process.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: how its text is parsed, its default and what it does.

    `parse` raises ValueError, with what it expected as the message, on a text it can't accept.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return parse


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
            raise ValueError(f"an integer from {least} to {most}")
        return int(text)

    return parse


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size_in_bytes(text: str) -> int:
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number.removesuffix(unit)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
        raise ValueError("a number of bytes such as 500000000, 512M or 2G")
    return int(digits) * _UNITS[unit]


def _openmp_threads(text: str) -> int | None:
    # The OpenMP standard allows a list, one entry a nesting level. The variable is not frame's
    # own, so a text that frame does not understand is not an error.
    first = text.split(",")[0].strip()
    count = int(first[:9]) if first.isascii() and first.isdigit() else 0
    return count if count > 0 else None


def _absolute_folder(text: str) -> str | None:
    # A variable of the XDG base directory specification, which has relative paths ignored.
    return text if os.path.isabs(text) else None


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("a name")
    return text.strip()


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        row.name: row
        for row in (
            Setting("FRAME_CACHE_DIR", str, None, "folder of the compile cache"),
            Setting("XDG_CACHE_HOME", _absolute_folder, None, "used without FRAME_CACHE_DIR"),
            Setting("FRAME_CACHE", _choice("0", "1", "readonly"), "1", "whether the cache is used"),
            Setting("FRAME_CACHE_SIZE", _size_in_bytes, 1 << 30, "bytes that the cache may hold"),
            Setting("FRAME_DEBUG", _integer(0, 4), 0, "debug level, 0 to 4"),
            Setting("FRAME_NUM_THREADS", _integer(1, 4096), None, "threads of the native pool"),
            Setting("OMP_NUM_THREADS", _openmp_threads, None, "used without FRAME_NUM_THREADS"),
            Setting("FRAME_CPU", _name, "native", "CPU to generate code for: x86-64-v3, native"),
            Setting("FRAME_BACKEND", _name, "cpu", "backend of a compile that names none"),
            Setting("FRAME_DUMP_DIR", str, None, "folder that receives the text of every stage"),
            Setting("NO_COLOR", bool, False, "any text turns colour off (no-color.org)"),
            Setting(
                "FRAME_POOL_WAIT",
                _choice("futex", "portable"),
                "futex",
                "how an idle worker sleeps",
            ),
            Setting("FRAME_GRAIN", _integer(1, 1 << 40), None, "forced chunk grain, for tests"),
            Setting("FRAME_WINOGRAD", _choice("0", "1"), "1", "whether convolutions may use it"),
        )
    }
)
"""Every setting by name."""

_overrides: dict[str, Any] = {}
_warned: set[str] = set()


def get(name: str) -> Any:
    """Return the value of a setting. An empty variable counts as unset.

    Raises:
        NotFoundError: there is no such setting.
        InvalidArgumentError: the variable holds a text that the setting can't accept.
    """
    setting = _setting(name)
    if name in _overrides:
        return _overrides[name]
    _warn_unknown()
    text = os.environ.get(name, "")
    return _parse(setting, text) if text else setting.default


@contextlib.contextmanager
def override(**values: str | None) -> Iterator[None]:
    """Set settings for the length of a `with` block; None restores a setting's default.

    The change is seen by the whole process, as an environment variable would be.
    """
    parsed = {name: _override_value(name, text) for name, text in values.items()}
    before = {name: _overrides[name] for name in parsed if name in _overrides}
    _overrides.update(parsed)
    try:
        yield
    finally:
        for name in parsed:
            _overrides.pop(name, None)
        _overrides.update(before)


def environment() -> dict[str, str]:
    """Return the variables of the settings that are set now, for reports such as `doctor`."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def _setting(name: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is None:
        raise NotFoundError(f"no setting {name!r}; the settings are {', '.join(SETTINGS)}")
    return setting


def _override_value(name: str, text: str | None) -> Any:
    setting = _setting(name)
    return _parse(setting, str(text)) if text is not None else setting.default


def _parse(setting: Setting, text: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as problem:
        raise InvalidArgumentError(
            f"{setting.name}: expected {problem}, received {text!r} ({setting.doc})"
        ) from None


def _warn_unknown() -> None:
    for name in os.environ:
        if name.startswith("FRAME_") and name not in SETTINGS and name not in _warned:
            import difflib  # only a misspelt variable needs it

            _warned.add(name)
            close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.8)
            hint = f"; did you mean {close[0]}?" if close else ""
            warnings.warn(
                f"environment variable {name} is not a setting of frame{hint}", stacklevel=3
            )
