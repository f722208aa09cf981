"""Public names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def attribute(package: str, places: Mapping[str, str], name: str, keep: bool = True) -> Any:
    """Return a public name of a package from its module, for the package's `__getattr__`.

    Args:
        package: the name of the package.
        places: public name -> the module that defines it.
        name: what is asked for; AttributeError if `places` lacks it.
        keep: whether the package holds the value from now on. Not where a submodule has the name of
            what it defines: the import system sets the submodule there.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(places[name]), name)
    if keep:
        setattr(sys.modules[package], name, value)
    return value
