"""The runtime: backends, compilation in stages, programs, caches and compiled models."""

from __future__ import annotations

from typing import Any

from frame.core.devices import Device
from frame.core.lazy import attribute
from frame.core.tensors import Tensor, set_transfer

# public name -> module; loaded at the first use, so that importing the runtime stays quick
_EXPORTS = {
    "CompiledModel": "frame.runtime.model",
    "backend": "frame.runtime.backends",
    "backend_names": "frame.runtime.backends",
    "compile_stats": "frame.runtime.statistics",
    "default_cache": "frame.runtime.cache",
    "fallback_stats": "frame.runtime.fallback",
    "register_backend": "frame.runtime.backends",
    "reset_fallback_stats": "frame.runtime.fallback",
    "unregister_backend": "frame.runtime.backends",
}

__all__ = tuple(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Load a public name on demand (PEP 562)."""
    # Not kept: some names are those of submodules, which the import system sets here.
    return attribute(__name__, _EXPORTS, name, keep=False)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_EXPORTS)


def _transfer(tensor: Tensor, device: Device) -> Tensor:
    from frame.runtime.transfer import transfer

    return transfer(tensor, device)


set_transfer(_transfer)
