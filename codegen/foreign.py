"""What users registered beside frame's own scalar rules and schedules.

It decides what code is made. It stands apart from the tables that it belongs to, so that a cache
key can cover it in a process that generates no code and never imports those tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RULES: dict[str, Callable[..., Any]] = {}
"""The scalar rules by op."""

SCHEDULES: dict[tuple[str, str], Any] = {}
"""The schedules by family of targets and anchor."""


def foreign_rules() -> Mapping[str, Callable[..., Any]]:
    """Return the scalar rules that are not frame's own, by op."""
    return dict(sorted(RULES.items()))


def foreign_schedules(family: str = "cpu") -> Mapping[str, Any]:
    """Return the schedules of a family that are not frame's own, by anchor."""
    return {anchor: row for (name, anchor), row in sorted(SCHEDULES.items()) if name == family}
