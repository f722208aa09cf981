"""Frontends: models that are declared in files. Here: model specs in JSON.

`load` reads and checks a spec, `train` trains what it declares. The tables that check are also what
the JSON Schema files beside this module are made of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from frame.frontend.document import NOTHING, parse_document, read_document, wrong
from frame.frontend.plan import Plan
from frame.frontend.run import Result, check_data, compile_plan, train

__all__ = [
    "VERSIONS",
    "Plan",
    "Result",
    "check_data",
    "compile_plan",
    "emit",
    "load",
    "loads",
    "train",
]


def _version0(document: Mapping[str, Any], folder: Path, outside: bool) -> Plan:
    from frame.frontend.version0 import plan_of

    return plan_of(document)


def _version1(document: Mapping[str, Any], folder: Path, outside: bool) -> Plan:
    from frame.frontend.version1 import plan_of

    return plan_of(document, folder, outside)


VERSIONS: Mapping[int, Callable[[Mapping[str, Any], Path, bool], Plan]] = {
    0: _version0,
    1: _version1,
}
"""What reads each version of the schema."""


def load(path: str | os.PathLike[str], *, outside: bool = False) -> Plan:
    """Return the plan of a spec file, checked.

    Args:
        path: the JSON file.
        outside: whether the data may lie outside of the folder of the file.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the spec is wrong; the message names the file and the field.
    """
    return _planned(read_document(path), Path(path).resolve().parent, outside)


def loads(text: str, folder: str | os.PathLike[str] = ".", *, outside: bool = False) -> Plan:
    """Return the plan of a spec text, whose data files lie in `folder`; otherwise as `load`."""
    return _planned(parse_document(text), Path(folder).resolve(), outside)


def _planned(document: Mapping[str, Any], folder: Path, outside: bool) -> Plan:
    known = ", ".join(map(str, VERSIONS))
    version = document.get("schema_version", NOTHING)
    if isinstance(version, bool) or not isinstance(version, int) or version not in VERSIONS:
        hint = "add it" if version is NOTHING else "this frame reads no other"
        wrong("schema_version", f"a version of the schema ({known})", version, hint)
    return VERSIONS[version](document, folder, outside)


def emit(
    plan: Plan, folder: str | os.PathLike[str], *, train: bool = True, rows: int | None = None
) -> tuple[str, ...]:
    """Write the C99 project of a plan and return its files; see `emission.project`."""
    from frame.frontend.emission import emit_project

    return emit_project(plan, folder, train=train, rows=rows)
