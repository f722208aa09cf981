"""Finding the line of the user's own source that declares a node."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from traceback import FrameSummary

    from frame.core.errors import FrameError

_FRAME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_BESIDE = os.path.dirname(_FRAME)  # where a checkout keeps the two packages that are mapped
OWN_FOLDERS = tuple(
    path + os.sep
    for path in (_FRAME, os.path.join(_BESIDE, "codegen"), os.path.join(_BESIDE, "backends"))
)
"""The folders of frame's own source, each with a separator at its end."""


def user_source() -> str:
    """Return `file:line` of the innermost caller outside frame, or an empty string."""
    caller = sys._getframe(1)
    while caller is not None:
        if not caller.f_code.co_filename.startswith(OWN_FOLDERS):
            return f"{caller.f_code.co_filename}:{caller.f_lineno}"
        caller = caller.f_back  # type: ignore[assignment]
    return ""


def source_of(error: BaseException) -> str:
    """Return `file:line: code` of the innermost line of an error that is the user's.

    That is neither one of frame nor of a library. Empty if there is none below the place where the
    error was caught; what an error was made from is looked into first.
    """
    import traceback  # only an error needs it

    if error.__cause__ is not None and (inner := source_of(error.__cause__)):
        return inner
    return _innermost(traceback.extract_tb(error.__traceback__))


def add_source(error: FrameError) -> None:
    """Let the message of an error end with the line of the user that it comes from."""
    import traceback

    where = source_of(error) or _innermost(traceback.extract_stack())
    if where:
        error.args = (f"{error.message}\nat {where}",)


def _innermost(lines: Sequence[FrameSummary]) -> str:
    import sysconfig

    libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts"))
    folders = (*OWN_FOLDERS, *libraries, "<")
    for place in reversed(lines):
        if not place.filename.startswith(folders):
            return f"{place.filename}:{place.lineno}: {place.line}"
    return ""
