"""Code generation: loop IR, schedules, the math library and the emitters."""

from __future__ import annotations

from frame.core.lazy import attribute

# public name -> its module; loaded at the first use
_EXPORTS = {
    "register_scalar_rule": "frame.codegen.schedules.scalar_rules",
    "unregister_scalar_rule": "frame.codegen.schedules.scalar_rules",
    "unregister_schedule": "frame.codegen.schedules.registry",
    "register_schedule": "frame.codegen.schedules.registry",
}


def __getattr__(name: str) -> object:
    """Load a public name on demand (PEP 562)."""
    return attribute(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_EXPORTS)
