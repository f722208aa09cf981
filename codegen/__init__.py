"""Code generation: loop IR, schedules, the math library and the emitters."""

from __future__ import annotations

# public name -> its module; loaded at the first use
_EXPORTS = {
    "register_scalar_rule": "frame.codegen.schedules.scalar_rules",
    "unregister_scalar_rule": "frame.codegen.schedules.scalar_rules",
    "unregister_schedule": "frame.codegen.schedules.registry",
    "register_schedule": "frame.codegen.schedules.registry",
}


def __getattr__(name: str) -> object:
    """Load a public name on demand (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'frame.codegen' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_EXPORTS)
