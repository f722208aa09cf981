"""What a cached result depends on beside its inputs: the code of the compiler and its plug-ins."""

from __future__ import annotations

import os.path
from functools import cache

from frame._version import __version__
from frame.core.sources import tree_digest

# The folders under frame/ whose code decides what a declaration compiles to.
_SOURCES = ("core", "ir", "ops", "compiler", "hal", "runtime")


@cache
def compiler_hash() -> str:
    """Return a digest of frame's version and of the sources of the compiler."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return tree_digest((os.path.join(root, folder) for folder in _SOURCES), __version__)
