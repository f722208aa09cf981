"""The intel_npu backend: whole graphs as `openvino.Model`, on an Intel NPU or OpenVINO's CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frame.backends.intel_npu.backend import IntelNpuBackend


def create_backend() -> IntelNpuBackend:
    """Return the backend; the entry point `intel_npu` of the group `frame.backends`.

    It loads without the openvino wheel, so that listings can say that the wheel is missing.
    """
    from frame.backends.intel_npu.backend import IntelNpuBackend

    return IntelNpuBackend()
