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
    "ops": ("frame.ops", None),
    "data": ("frame.data", None),
    "train": ("frame.train", None),
    "runtime": ("frame.runtime", None),
    "core": ("frame.core", None),
    "__version__": ("frame._version", "__version__"),
}


def __getattr__(name: str) -> object:
    """Load a public name on demand (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'frame' has no attribute {name!r}")
    import importlib

    module, attribute = _EXPORTS[name]
    loaded = importlib.import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *_EXPORTS})
