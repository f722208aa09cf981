"""Finding the line of the user's own source that declares a node."""

from __future__ import annotations

import os
import sys

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
