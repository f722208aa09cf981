"""Variants of a plan: texts such as `panels=2,tiles=8` that name the fields which differ.

A plan is a frozen record of every decision about the loops of a schedule. A variant changes some of
them, and may only be one of those that leave each sum in the order in which the default adds it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from frame.core.errors import InvalidArgumentError

Plan = TypeVar("Plan")

_ITEM = re.compile(r"([a-z_]+)=([0-9]{1,9})", re.ASCII)


def text_of(changes: Mapping[str, int]) -> str:
    """Return the text of a variant: the changed fields by name; a flag is 0 or 1."""
    return ",".join(f"{name}={int(changes[name])}" for name in sorted(changes))


def changes_of(text: str) -> dict[str, int]:
    """Return the fields of a variant; raise InvalidArgumentError for another text."""
    found = [_ITEM.fullmatch(item) for item in text.split(",")]
    if not all(found):
        raise InvalidArgumentError(
            f"expected a variant such as 'panels=2,tiles=8', received {text!r:.80}"
        )
    return {match[1]: int(match[2]) for match in found if match}


def varied(plan: Plan, text: str, fields: Collection[str]) -> Plan:
    """Return a plan with the fields of a variant changed.

    Raises:
        InvalidArgumentError: the text is none of a variant, or names a field that is not one of
            `fields`, or a flag that is neither 0 nor 1.
    """
    values: dict[str, Any] = {}
    for name, value in changes_of(text).items():
        if name not in fields:
            raise InvalidArgumentError(
                f"a variant may change {', '.join(sorted(fields))}, received {text!r:.80}"
            )
        is_flag = isinstance(getattr(plan, name), bool)
        if is_flag and value > 1:
            raise InvalidArgumentError(f"expected {name} to be 0 or 1, received {value}")
        values[name] = bool(value) if is_flag else value
    changed: Plan = replace(plan, **values)  # type: ignore[type-var]
    return changed
