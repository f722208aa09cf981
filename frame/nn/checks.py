"""What the factories of layers share: checks of arguments, and the making of a Module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from frame.core.arguments import is_finite_number, shown
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import Value
from frame.nn.layers import check_flags, positive
from frame.nn.module import Builder, Module
from frame.nn.parameters import ParamSpec


def number(what: str, value: float, low: float, high: float = math.inf) -> float:
    """Return a number in [low, high), or raise InvalidArgumentError that names `what`."""
    if not is_finite_number(value) or not low <= value < high:
        raise InvalidArgumentError(
            f"{what} must be a number in [{low}, {high}), got {shown(value)}"
        )
    return float(value)


def above_zero(what: str, value: float) -> float:
    """Return a finite number above 0, or raise InvalidArgumentError that names `what`."""
    if not is_finite_number(value) or not value > 0:
        raise InvalidArgumentError(f"{what} must be finite and above 0, got {shown(value)}")
    return float(value)


def choice(what: str, value: str, choices: Sequence[str]) -> str:
    """Return one of `choices`, or raise InvalidArgumentError that names `what`."""
    if value not in choices:
        raise InvalidArgumentError(
            f"{what} must be one of {', '.join(choices)}, got {shown(value)}"
        )
    return value


def divides(what: str, value: int, parts_name: str, parts: int) -> int:
    """Return value / parts, or raise InvalidArgumentError where that is no integer."""
    if positive(what, value) % positive(parts_name, parts):
        raise InvalidArgumentError(f"{what}, {value}, must divide by {parts_name}, {parts}")
    return value // parts


def of_shape(kind: str, x: Value, *expected: object) -> Value:
    """Return x, or raise InvalidArgumentError where it isn't like ("N", 3, "L")."""
    sizes = zip(expected, x.shape, strict=False)
    wrong = any(not isinstance(want, str) and want != size for want, size in sizes)
    if x.rank != len(expected) or wrong:
        text = ", ".join(map(str, expected))
        raise InvalidArgumentError(
            f"{kind} takes an input [{text}], received the shape {shape_text(x.shape)}"
        )
    return x


def layer(
    kind: str,
    builder: Builder,
    options: Mapping[str, Any],
    specs: Sequence[ParamSpec] = (),
    children: Mapping[str, Module] | None = None,
    name: str = "",
) -> Module:
    """Return a Module of own parameters and named children.

    Raises:
        InvalidArgumentError: an option that is true or false is something else.
    """
    check_flags(options)
    below = tuple(child.named(key) for key, child in (children or {}).items())
    return Module(name, tuple(specs), below, builder, kind, tuple(options.items()))
