"""frame: a deep-learning graph compiler that generates native code at run time."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os.path
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what __getattr__ below loads at the first use
    from frame import blueprint as blueprint
    from frame import core as core
    from frame import frontend as frontend
    from frame import nn as nn
    from frame import ops as ops
    from frame import runtime as runtime
    from frame._version import __version__ as __version__
    from frame.compiler.autodiff import custom_vjp as custom_vjp
    from frame.compiler.autodiff import grad as grad
    from frame.compiler.autodiff import value_and_grad as value_and_grad
    from frame.core.devices import Device as Device
    from frame.core.dtypes import DType as DType
    from frame.core.tensors import Tensor as Tensor
    from frame.core.tensors import from_dlpack as from_dlpack
    from frame.core.tensors import from_numpy as from_numpy
    from frame.ops import stop_gradient as stop_gradient
    from frame.runtime.jit import jit as jit
    from frame.runtime.model import compile as compile
    from frame.runtime.specs import spec as spec
    from frame.runtime.tracing import trace as trace

# os.path and not pathlib, which alone would double the time of `import frame`
_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
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
        location = os.path.join(_ROOT, folder)
        return importlib.util.spec_from_file_location(
            name, os.path.join(location, "__init__.py"), submodule_search_locations=[location]
        )


def _is_checkout() -> bool:
    project = os.path.join(_ROOT, "pyproject.toml")
    if not os.path.isfile(project):
        return False
    with open(project, encoding="utf-8") as file:
        return 'name = "frame-compiler"' in file.read()


if _is_checkout():
    sys.meta_path.insert(0, _CheckoutFinder)

# public name -> (module, attribute); loaded at the first use, so that `import frame` stays quick
_EXPORTS: dict[str, tuple[str, str | None]] = {
    "compile": ("frame.runtime.model", "compile"),
    "load": ("frame.runtime.framefile", "load"),
    "jit": ("frame.runtime.jit", "jit"),
    "trace": ("frame.runtime.tracing", "trace"),
    "spec": ("frame.runtime.specs", "spec"),
    "eager": ("frame.runtime.eager", "eager"),
    "grad": ("frame.compiler.autodiff", "grad"),
    "value_and_grad": ("frame.compiler.autodiff", "value_and_grad"),
    "custom_vjp": ("frame.compiler.autodiff", "custom_vjp"),
    "stop_gradient": ("frame.ops", "stop_gradient"),
    "Tensor": ("frame.core.tensors", "Tensor"),
    "from_numpy": ("frame.core.tensors", "from_numpy"),
    "from_dlpack": ("frame.core.tensors", "from_dlpack"),
    "Device": ("frame.core.devices", "Device"),
    "DType": ("frame.core.dtypes", "DType"),
    "nn": ("frame.nn", None),
    "blueprint": ("frame.blueprint", None),
    "ops": ("frame.ops", None),
    "data": ("frame.data", None),
    "frontend": ("frame.frontend", None),
    "train": ("frame.train", None),
    "runtime": ("frame.runtime", None),
    "core": ("frame.core", None),
    "__version__": ("frame._version", "__version__"),
}

__all__ = tuple(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Load a public name on demand (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'frame' has no attribute {name!r}")
    import importlib

    module, attribute = _EXPORTS[name]
    loaded = importlib.import_module(module)
    if module == "frame.core.tensors":
        importlib.import_module("frame.runtime")  # it brings the copies between devices
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*_EXPORTS, *(name for name in globals() if name.startswith("__"))})
