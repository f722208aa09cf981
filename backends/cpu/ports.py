"""How the inputs and outputs of a piece are checked, and what is said when one does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from frame.backends.cpu.frames import FFI
from frame.core.errors import InvalidArgumentError, OutOfMemoryError
from frame.core.shapes import Dim
from frame.hal.interfaces import Port
from frame.hal.ports import described, place_of, require_array, require_shape
from frame.ir.graph import TensorType


def _cast(array: np.ndarray) -> Any:
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    return FFI.cast("void *", array.ctypes.data)


class PortCheck:
    """How one input or output is checked and turned into a pointer."""

    __slots__ = ("buffered", "dtype", "name", "shape", "static", "type")

    def __init__(self, port: Port) -> None:
        self.name = port.name
        self.type: TensorType = port.type
        self.dtype = np.dtype(port.type.dtype.numpy)
        self.shape = port.type.storage_shape
        self.static = all(isinstance(size, int) for size in self.shape)
        self.buffered = self.dtype.kind in "fiub" and not port.type.dtype.name.startswith("bf")

    @property
    def pointer(self) -> Callable[[np.ndarray], Any]:
        """What makes the pointer word of an array. It refuses one that is not contiguous."""
        direct = cast("Callable[[np.ndarray], Any]", FFI.from_buffer)
        return direct if self.buffered else _cast

    def bound_shape(self, bindings: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape under the bindings of a call."""
        if self.static:
            return self.shape  # type: ignore[return-value]
        return tuple(
            size.evaluate(bindings) if isinstance(size, Dim) else size for size in self.shape
        )

    def require(self, array: Any, position: int, bindings: dict[str, int], updated: bool) -> None:
        """Check an array and bind symbols by its shape; nothing is copied."""
        where = place_of(position, self.name)
        require_array(array, self.type, where)
        require_shape(array.shape, self.type, where, bindings)
        if updated:
            _require_writable(array, where)

    def row_major(self, array: np.ndarray, position: int) -> np.ndarray:
        """Return an array that `require` took row-major and native; itself where it is so."""
        return _row_major(array, self.dtype, place_of(position, self.name))

    def require_target(self, array: Any, position: int, bindings: Mapping[str, int]) -> None:
        """Check an array that the caller wants an output written into."""
        where = f"output {position} ({self.name!r})"
        shape = self.bound_shape(bindings)
        fits = isinstance(array, np.ndarray) and array.dtype == self.dtype and array.shape == shape
        if not fits:
            raise InvalidArgumentError(
                f"{where}: expected an array of {self.type.dtype}{list(shape)}, received "
                f"{described(array)}"
            )
        _require_writable(array, where)


def _row_major(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    flags = array.flags
    if type(array) is np.ndarray and array.dtype is dtype and flags.c_contiguous and flags.aligned:
        return array
    try:
        made = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
        return made if made.flags.aligned else made.copy()
    except (MemoryError, ValueError) as error:
        raise OutOfMemoryError(
            f"{where}: could not get memory for a row-major copy of {dtype.name}"
            f"{list(array.shape)}: {error}; use a smaller batch"
        ) from error


def _require_writable(array: np.ndarray, where: str) -> None:
    if not (array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        raise InvalidArgumentError(
            f"{where} is written in place: expected a writable, row-major array in native byte "
            "order; pass numpy.ascontiguousarray(...) or a copy"
        )
