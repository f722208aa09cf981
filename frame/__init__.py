"""frame: a deep-learning graph compiler that generates native code at run time."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_MAPPED = {"frame.codegen": "codegen", "frame.backends": "backends"}


class _CheckoutFinder:
    """Find the two packages that setuptools maps from top-level folders.

    An installed frame holds them as sub-packages. A checkout that is imported in place does not,
    so this finder maps exactly these two names onto the folders that stand beside `frame/`.
    """

    @staticmethod
    def find_spec(
        name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a mapped package, or None for any other name."""
        folder = _MAPPED.get(name)
        if folder is None:
            return None
        location = _ROOT / folder
        return importlib.util.spec_from_file_location(
            name, location / "__init__.py", submodule_search_locations=[str(location)]
        )


def _is_checkout() -> bool:
    project = _ROOT / "pyproject.toml"
    return project.is_file() and 'name = "frame-compiler"' in project.read_text("utf-8")


if _is_checkout():
    sys.meta_path.insert(0, _CheckoutFinder)
