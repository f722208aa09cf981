"""The openvino wheel: imported at the first use, one Core a process."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from functools import cache
from typing import Any

from frame.core.errors import DeviceError

OPSET = "openvino.opset16"  # opset17 of release 2026 holds two ops only
MISSING = (
    "the backend intel_npu needs the openvino wheel, which is not installed: run "
    "`pip install openvino` (2025.1 or later)"
)


def installed_version() -> str:
    """Return the version of the openvino wheel, or `missing`; imports nothing."""
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return "missing"


@cache
def openvino() -> Any:
    """Return the module `openvino`.

    Raises:
        DeviceError: the wheel is not installed, or does not load.
    """
    return _load("openvino")


@cache
def opset() -> Any:
    """Return the module with the functions that make nodes.

    Raises:
        DeviceError: the wheel is not installed, or too old for the opset.
    """
    return _load(OPSET)


@cache
def core() -> Any:
    """Return the one Core of this process, which holds OpenVINO's device plug-ins."""
    return openvino().Core()


def device_names() -> tuple[str, ...]:
    """Return OpenVINO's names of the devices of this machine: `CPU`, perhaps `NPU`."""
    return tuple(core().available_devices)


def _load(name: str) -> Any:
    if importlib.util.find_spec("openvino") is None:
        raise DeviceError(MISSING)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(f"the openvino wheel does not load: {error}; {MISSING}") from error
