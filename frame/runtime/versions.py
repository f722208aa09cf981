"""What a cached result depends on beside its inputs: the code of the compiler and its plug-ins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from frame._version import __version__

# The folders under frame/ whose code decides what a declaration compiles to.
_SOURCES = ("core", "ir", "ops", "compiler", "hal", "runtime")


@cache
def compiler_hash() -> str:
    """Return a digest of frame's version and of the sources of the compiler."""
    root = Path(__file__).resolve().parents[1]
    return tree_digest((root / folder for folder in _SOURCES), __version__)


def tree_digest(folders: Iterable[Path], start: str = "") -> str:
    """Return a digest of the Python files below folders: their names and contents."""
    digest = hashlib.sha256(start.encode())
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
