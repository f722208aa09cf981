"""Checks of the factories' arguments: what was expected, what was received, in which factory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from frame.blueprint.values import BlockStyle, BluePrint
from frame.core.arguments import is_finite_number, is_flag, shown
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import is_count

LARGEST = 1 << 24
"""The largest number of channels, features or steps that a factory takes."""


def whole(factory: str, name: str, value: Any, least: int = 1) -> int:
    """Return an integer from `least` to LARGEST."""
    if not is_count(value, least) or value > LARGEST:
        raise InvalidArgumentError(
            f"{factory}: {name} must be an integer from {least} to {LARGEST}, received "
            f"{shown(value, 60)}"
        )
    return int(value)


def real(factory: str, name: str, value: Any, low: float, high: float, form: str) -> float:
    """Return a finite float of an interval that `form` names: `[0, 1)`, `(0, 1]`, ..."""
    good = is_finite_number(value)
    inside = good and low <= value <= high
    if inside and ((form[0] == "(" and value == low) or (form[-1] == ")" and value == high)):
        inside = False
    if not inside:
        raise InvalidArgumentError(
            f"{factory}: {name} must be a number in {form}, received {shown(value, 60)}"
        )
    return float(value)


def flag(factory: str, name: str, value: Any) -> bool:
    """Return a bool."""
    if not is_flag(value):
        raise InvalidArgumentError(
            f"{factory}: {name} must be True or False, received {shown(value, 60)}"
        )
    return bool(value)


def one_of(factory: str, name: str, value: Any, allowed: tuple[int, ...]) -> int:
    """Return one of a few integers."""
    if not is_count(value, 0) or value not in allowed:
        choices = " or ".join(map(str, allowed))
        raise InvalidArgumentError(
            f"{factory}: {name} must be {choices}, received {shown(value, 60)}"
        )
    return int(value)


def window(
    factory: str, kernel: Any, stride: Any, padding: Any, *, pool: bool = False, before: str = ""
) -> tuple[int, int, int]:
    """Return the checked (kernel, stride, padding) of a square window.

    `before` stands before these names in what the factory calls them. A pool's padding must be
    smaller than its window, so that no window lies in padding alone.
    """
    sizes = (
        whole(factory, f"{before}kernel", kernel),
        whole(factory, f"{before}stride", stride),
        whole(factory, f"{before}padding", padding, 0),
    )
    if pool and sizes[2] >= sizes[0]:
        raise InvalidArgumentError(
            f"{factory}: {before}padding must be smaller than the window {sizes[0]}, received "
            f"{padding}: a window would hold nothing but padding"
        )
    return sizes


def part(factory: str, name: str, value: Any) -> BluePrint:
    """Return a blueprint."""
    if not isinstance(value, BluePrint):
        hint = "; call the factory: relu()" if callable(value) else ""
        raise InvalidArgumentError(
            f"{factory}: {name} must be a layer such as conv(64, 3), received "
            f"{shown(value, 60)}{hint}"
        )
    return value


def parts(factory: str, values: Iterable[Any]) -> tuple[BluePrint, ...]:
    """Return blueprints, at least one."""
    found = tuple(part(factory, f"part {k}", value) for k, value in enumerate(values))
    if not found:
        raise InvalidArgumentError(
            f"{factory}: expected at least one layer, received none; identity() does nothing"
        )
    return found


def style(value: Any, allowed: tuple[BlockStyle, ...], form: str) -> BlockStyle:
    """Return a block style that a form of `block` takes."""
    if value not in allowed or not isinstance(value, BlockStyle):
        names = ", ".join(each.name for each in allowed)
        raise InvalidArgumentError(
            f"block: {form} takes the styles {names}, received {shown(value, 60)}"
        )
    return value
