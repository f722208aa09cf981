"""Exchange with other programs: weight files; DLPack lives in `frame.core.tensors`."""

from __future__ import annotations

from frame.core.tensors import as_tensor, from_dlpack, from_numpy
from frame.interop.weights import (
    dump_safetensors,
    load_metadata,
    load_weights,
    parse_safetensors,
    save_weights,
)

__all__ = [
    "as_tensor",
    "dump_safetensors",
    "from_dlpack",
    "from_numpy",
    "load_metadata",
    "load_weights",
    "parse_safetensors",
    "save_weights",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
