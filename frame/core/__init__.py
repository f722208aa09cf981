"""Vocabulary of every layer: dtypes, shapes, devices, tensors, errors, settings, random numbers.

Names load on first use, so that `import frame` stays cheap.
"""

# The imports below are for type checkers; at run time __getattr__ resolves the same names.
# ruff: noqa: F401
from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from frame.core.lazy import attribute

if TYPE_CHECKING:
    from frame.core.devices import HOST, Device
    from frame.core.dtypes import (
        DTYPES,
        DType,
        bfloat16,
        bool_,
        dtype,
        float8_e4m3fn,
        float8_e5m2,
        float16,
        float32,
        float64,
        int4,
        int8,
        int16,
        int32,
        int64,
        uint4,
        uint8,
        uint16,
        uint32,
        uint64,
    )
    from frame.core.errors import (
        AlreadyExistsError,
        DeviceError,
        FrameError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        OutOfMemoryError,
        UnimplementedError,
    )
    from frame.core.shapes import (
        Dim,
        Shape,
        Size,
        as_shape,
        as_size,
        bind_shape,
        broadcast_shapes,
        exact_divide,
        match_shape,
        match_shapes,
        normalize_axes,
        normalize_axis,
        numel,
        parse_dim,
        row_major_strides,
        shape_symbols,
        shape_text,
    )
    from frame.core.targets import TargetDescription
    from frame.core.tensors import (
        HostStorage,
        Storage,
        Tensor,
        as_tensor,
        from_dlpack,
        from_numpy,
        set_transfer,
    )

_MODULES = {
    "frame.core.devices": "HOST Device",
    "frame.core.dtypes": (
        "DTYPES DType bfloat16 bool_ dtype float8_e4m3fn float8_e5m2 float16 float32 float64 "
        "int4 int8 int16 int32 int64 uint4 uint8 uint16 uint32 uint64"
    ),
    "frame.core.errors": (
        "AlreadyExistsError DeviceError FrameError InternalError InvalidArgumentError "
        "NotFoundError OutOfMemoryError UnimplementedError"
    ),
    "frame.core.shapes": (
        "Dim Shape Size as_shape as_size bind_shape broadcast_shapes exact_divide match_shape "
        "match_shapes normalize_axes normalize_axis numel parse_dim row_major_strides "
        "shape_symbols shape_text"
    ),
    "frame.core.targets": "TargetDescription",
    "frame.core.tensors": (
        "HostStorage Storage Tensor as_tensor from_dlpack from_numpy set_transfer"
    ),
}
_HOME = MappingProxyType(
    {name: module for module, names in _MODULES.items() for name in names.split()}
)

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    return attribute(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_HOME)
