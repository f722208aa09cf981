"""Blueprints as program text: printing what a user would write, and reading it back.

Reading evaluates nothing: the text is parsed as a Python expression, and only calls of the
factories with numbers, True, False, lists of parts and `BlockStyle.NAME` are understood.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from frame.blueprint import factories
from frame.blueprint.values import BlockStyle, BluePrint
from frame.core.errors import InvalidArgumentError

FACTORIES: Mapping[str, Callable[..., BluePrint]] = MappingProxyType(
    {
        name: getattr(factories, name)
        for name in (
            "add2", "avgpool", "block", "bn", "cbr", "cbrp", "channel_padding", "conv",
            "conv_bn_relu", "conv_dw", "dropout", "elu", "fc", "flatten", "gap", "gap_fc",
            "group_conv", "hardswish", "identity", "leaky_relu", "maxpool", "mbconv", "relu",
            "relu6", "repeat", "seq", "sigmoid", "silu", "tanh_act",
        )
    }
)  # fmt: skip
"""Every factory by name."""

_WIDTH = 88
_MAX_TEXT = 1 << 20


def program_text(value: BluePrint, indent: str = "") -> str:
    """Return the program that makes a blueprint; long lines are broken at the parts."""
    line = _one_line(value)
    if len(indent) + len(line) <= _WIDTH or not value.children:
        return line
    inner = indent + "    "
    rows = [f"{inner}{program_text(child, inner)},\n" for child in value.children]
    rows += [f"{inner}{text},\n" for text in _arguments(value)]
    return f"{value.factory}(\n{''.join(rows)}{indent})"


def _one_line(value: BluePrint) -> str:
    parts = [*map(_one_line, value.children), *_arguments(value)]
    return f"{value.factory}({', '.join(parts)})"


def _arguments(value: BluePrint) -> list[str]:
    """Return the arguments that differ from the defaults, and those before them."""
    given = list(value.arguments)
    for default in reversed(_defaults(value.factory)):
        if not given or given[-1] != default:
            break
        given.pop()
    return [repr(argument) for argument in given]


def _defaults(factory: str) -> list[Any]:
    parameters = inspect.signature(FACTORIES[factory]).parameters.values()
    return [each.default for each in parameters if each.default is not each.empty]


def parse(text: str) -> BluePrint:
    """Return the blueprint that a program text describes; nothing is evaluated.

    Raises:
        InvalidArgumentError: the text is something else than calls of the factories; the message
            names line and column.
    """
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise InvalidArgumentError(
            f"parse: expected a program text of at most {_MAX_TEXT} characters, received "
            f"{text!r:.60}"
        )
    try:
        value = _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"parse: expected a program such as seq(...): {error}") from None
    if not isinstance(value, BluePrint):
        raise InvalidArgumentError(f"parse: expected calls of the factories, received {text!r:.60}")
    return value


def _read(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _read_call(node, node.func.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_read(element) for element in node.elts]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        known = BlockStyle.__members__
        if node.value.id == "BlockStyle" and node.attr in known:
            return known[node.attr]
    _refuse(node, f"expected a factory, a number or BlockStyle.NAME, received {ast.unparse(node)}")


def _read_call(node: ast.Call, name: str) -> BluePrint:
    if name not in FACTORIES:
        _refuse(node, f"unknown factory {name!r}; known: {', '.join(FACTORIES)}")
    arguments = [_read(argument) for argument in node.args]
    named = {word.arg: _read(word.value) for word in node.keywords if word.arg is not None}
    if len(named) != len(node.keywords):
        _refuse(node, f"{name}: ** is not understood")
    try:
        return FACTORIES[name](*arguments, **named)
    except TypeError as error:
        _refuse(node, f"{name}: {error}")
    except InvalidArgumentError as error:
        if str(error).startswith("line "):
            raise
        _refuse(node, str(error))


def _refuse(node: ast.expr, message: str) -> NoReturn:
    raise InvalidArgumentError(f"line {node.lineno}, column {node.col_offset + 1}: {message}")
