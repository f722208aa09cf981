"""The adapters: peer -> how it makes a case ready. Modules are imported at the first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.suite.peers.base import NotSupportedError, Prepare

ADAPTERS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "frame": ("frame_peer", "prepare", "frame-compiler"),
        "torch": ("torch_peer", "prepare_eager", "torch"),
        "torch_cl": ("torch_peer", "prepare_channels_last", "torch"),
        "torch_compile": ("torch_peer", "prepare_compiled", "torch"),
        "torch_compile_cl": ("torch_peer", "prepare_compiled_channels_last", "torch"),
        "jax": ("jax_peer", "prepare", "jax"),
        "onnxruntime": ("onnxruntime_peer", "prepare", "onnxruntime"),
        "openvino": ("openvino_peer", "prepare", "openvino"),
        "numpy": ("numpy_peer", "prepare", "numpy"),
        "numba": ("numba_peer", "prepare", "numba"),
        "tinygrad": ("tinygrad_peer", "prepare", "tinygrad"),
    }
)
"""Peer -> (module, function, distribution)."""


def adapter(peer: str) -> Prepare:
    """Return the adapter of a peer.

    Raises:
        NotSupportedError: the peer is not installed.
    """
    module, function, distribution = ADAPTERS[peer]
    try:
        loaded = importlib.import_module(f"benchmarks.suite.peers.{module}")
    except ImportError as error:
        raise NotSupportedError(f"{distribution} can't be imported: {error}") from error
    found: Prepare = getattr(loaded, function)
    return found
