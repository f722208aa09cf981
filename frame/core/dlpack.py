"""DLPack for host arrays, the element types that numpy can't exchange included.

numpy knows nothing of bfloat16 and float8, so such arrays travel as unsigned integers of the same
width, and the type code in the capsule's struct is changed on the way. The struct belongs to the
capsule, and a capsule is handed over exactly once, so nobody else sees the change.

Source: dmlc/dlpack, include/dlpack/dlpack.h (versions 0.8, 1.0 and 1.1); the Python array API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from frame.core.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2

HOST_DEVICE = (1, 0)
"""(kDLCPU, 0): the DLPack device of ordinary memory."""

MAX_VERSION = (1, 0)
"""The version asked of a producer: the first one that can say that memory is read-only."""

_CODES: Mapping[DType, int] = MappingProxyType(
    {bfloat16: 4, float8_e4m3fn: 10, float8_e5m2: 12}  # kDLBfloat, kDLFloat8_*
)
_UNSIGNED = 1  # kDLUInt

# Byte offset of DLDataType (uint8 code, uint8 bits, uint16 lanes) in the capsule's struct, 64-bit.
_TYPE_OFFSET: Mapping[bytes, int] = MappingProxyType({b"dltensor": 20, b"dltensor_versioned": 52})

_name_of_capsule = ctypes.pythonapi.PyCapsule_GetName
_name_of_capsule.restype = ctypes.c_char_p
_name_of_capsule.argtypes = [ctypes.py_object]
_pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of_capsule.restype = ctypes.c_void_p
_pointer_of_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]


def export_array(
    array: np.ndarray[Any, Any],
    dtype: DType,
    max_version: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """Return a DLPack capsule of a host array.

    Raises:
        BufferError: the type has no DLPack code, or the array is read-only and the consumer's
            version can't be told so.
    """
    code = _CODES.get(dtype)
    if code is None:
        if dtype.storage_only:
            raise BufferError(f"DLPack can't describe elements of {dtype}; cast to int8 first")
        return array.__dlpack__(max_version=max_version, copy=copy)
    plain = array.view(np.dtype(f"u{dtype.itemsize}"))
    capsule = plain.__dlpack__(max_version=max_version, copy=copy)
    _element_type(capsule)[0] = code
    return capsule


def import_array(source: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """Return the host array that an object with `__dlpack__`, or a capsule, hands over.

    The array is read-only where the producer says so or is too old to say.

    Raises:
        BufferError: the memory is not host memory, or the producer or numpy can't exchange it.
    """
    device = _device_of(source)
    if device[0] != HOST_DEVICE[0]:
        raise BufferError(
            f"expected memory of the host (DLPack device {HOST_DEVICE}), received device {device}; "
            "move the array to the host first"
        )
    capsule, copied = _capsule_of(source, copy)
    dtype = _take_element_type(capsule)
    try:
        array = np.from_dlpack(_Handover(capsule))
    except (RuntimeError, TypeError, ValueError) as problem:
        raise BufferError(f"can't import through DLPack: {problem}") from problem
    array = array if dtype is None else array.view(dtype.numpy)
    return array.copy() if copy and not copied else array


class _Handover:
    """Gives numpy a capsule that was taken from its producer already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST_DEVICE


def _is_capsule(value: object) -> bool:
    return type(value).__name__ == "PyCapsule"


def _device_of(source: Any) -> tuple[int, int]:
    if _is_capsule(source):
        return HOST_DEVICE  # numpy reads the device from the struct and refuses other ones
    kind, index = source.__dlpack_device__()
    return int(kind), int(index)


def _capsule_of(source: Any, copy: bool | None) -> tuple[Any, bool]:
    """Return the producer's capsule, and whether the producer has been told about `copy`."""
    if _is_capsule(source):
        return source, False
    try:
        return source.__dlpack__(max_version=MAX_VERSION, copy=copy), True
    except TypeError:
        # A producer from before DLPack 1.0 knows neither keyword.
        return source.__dlpack__(), False


def _take_element_type(capsule: Any) -> DType | None:
    """Turn a type that numpy does not know into an unsigned integer; return which it was."""
    element = _element_type(capsule)
    for dtype, code in _CODES.items():
        if element[0] == code and element[1] == dtype.bits:
            element[0] = _UNSIGNED
            return dtype
    return None


def _element_type(capsule: Any) -> Any:
    """Return a writable view of (code, bits) in the struct of an unused capsule."""
    name = _name_of_capsule(capsule) if _is_capsule(capsule) else None
    offset = _TYPE_OFFSET.get(name or b"")
    if offset is None:
        raise BufferError(
            f"expected an unused DLPack capsule, received {capsule!r}; each can be consumed once"
        )
    return (ctypes.c_uint8 * 2).from_address(_pointer_of_capsule(capsule, name) + offset)
