"""What a cached result depends on beside its inputs: the code of the compiler and its plug-ins."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from frame._version import __version__

# The folders under frame/ whose code decides what a declaration compiles to.
_SOURCES = ("core", "ir", "ops", "compiler", "hal", "runtime")


@cache
def compiler_hash() -> str:
    """Return a digest of frame's version and of the sources of the compiler."""
    digest = hashlib.sha256(__version__.encode())
    root = Path(__file__).resolve().parents[1]
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
