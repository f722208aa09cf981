"""Writes `docs/api.md`: every public name with its arguments and what it is for.

Run `python -m tests.project.api_page` after a change of a public name, its arguments or the first
sentence of its docstring; a test fails while the page is stale.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from types import ModuleType
from typing import Any

from frame.core.config import SETTINGS
from tests.project.checkout import ROOT

PATH = ROOT / "docs" / "api.md"
COMMAND = "python -m tests.project.api_page"
PACKAGES = (
    "frame", "frame.nn", "frame.nn.models", "frame.ops", "frame.train", "frame.data",
    "frame.blueprint", "frame.frontend", "frame.runtime", "frame.core", "frame.interop",
    "frame.codegen",
)  # fmt: skip
CLASSES = (
    ("frame.runtime", "CompiledModel"),
    ("frame", "Tensor"),
    ("frame.train", "DeepLearningTask"),
)
"""Classes whose methods have a section of their own: what a user holds in hands."""

_HEAD = f"""# The public names

Written by `{COMMAND}` from the docstrings; `help(name)` tells the rest.
Arguments behind a `*` go by name.
"""
_ALIASES = ("GenericAlias", "UnionType", "_GenericAlias", "_UnionGenericAlias")
_PLAIN = (bool, int, float, str, type(None))


def generate() -> str:
    """Return the text of the page."""
    parts = [_HEAD, *map(_package, PACKAGES)]
    parts += [_members(package, name) for package, name in CLASSES]
    return "\n".join([*parts, _settings()])


def _package(name: str) -> str:
    package = importlib.import_module(name)
    # Not what plug-ins and users registered since: that is not part of the package.
    names = sorted(getattr(package, "__all__", None) or dir(package), key=str.lower)
    rows = [_row(each, getattr(package, each)) for each in names if each[0] != "_"]
    return _section(f"`{name}`", _first_sentence(package), rows)


def _members(package: str, name: str) -> str:
    owner = getattr(importlib.import_module(package), name)
    rows = []
    for key, member in inspect.getmembers_static(owner):
        if key[0] != "_" and (callable(member) or isinstance(member, property)):
            rows.append(_row(key, member, method=True))
    return _section(f"Methods of `{package}.{name}`", _first_sentence(owner), rows)


def _settings() -> str:
    rows = [
        (f"`{setting.name}`", f"{setting.doc}{_standard(setting.default)}")
        for setting in SETTINGS.values()
    ]
    return _section("Environment variables", "An empty variable counts as unset.", rows)


def _standard(default: Any) -> str:
    return "" if default is None or default is False else f" (default: {default})"


def _section(title: str, text: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {name} | {about} |" for name, about in rows]
    return "\n".join([f"## {title}", text, "", "| name | what it is |", "|---|---|", *lines, ""])


def _row(name: str, value: Any, method: bool = False) -> tuple[str, str]:
    if isinstance(value, ModuleType):
        return f"`{name}`", f"package; {_first_sentence(value)}"
    if isinstance(value, property):
        return f"`{name}`", _first_sentence(value)
    if type(value).__name__ in _ALIASES:
        return f"`{name}`", "a type, for annotations"
    if not callable(value):
        return f"`{name}`", f"a {type(value).__name__}"
    return f"`{name}{_arguments(value, method)}`", _first_sentence(value)


def _arguments(value: Any, method: bool) -> str:
    if isinstance(value, EnumType) or getattr(value, "_is_protocol", False):
        return ""  # nobody calls them, and releases of Python differ in what they tell
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ""
    return f"({', '.join(_parameters(parameters[1:] if method else parameters))})"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    by_name = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not by_name:
            yield "*"
        by_name = by_name or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        yield f"{star}{each.name}{_default(each.default)}"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    plain = isinstance(value, _PLAIN) or (isinstance(value, tuple) and len(repr(value)) < 20)
    return f"={value!r}" if plain else "=..."


def _first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring as one line of a table."""
    text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=\.) ", text)[0].rstrip(".:")
    return sentence.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(generate(), "utf-8")
