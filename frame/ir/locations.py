"""Finding the line of the user's own source that declares a node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OWN = tuple(
    str(Path(__file__).resolve().parents[depth] / name) + os.sep
    for depth, name in ((1, ""), (2, "codegen"), (2, "backends"))
)


def user_source() -> str:
    """Return `file:line` of the innermost caller outside frame, or an empty string."""
    caller = sys._getframe(1)
    while caller is not None:
        if not caller.f_code.co_filename.startswith(_OWN):
            return f"{caller.f_code.co_filename}:{caller.f_lineno}"
        caller = caller.f_back  # type: ignore[assignment]
    return ""
