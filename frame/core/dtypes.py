"""Element types as a table: adding a dtype is adding a row.

`storage_only` rows (float8, int4) may be stored, copied and cast, never computed in.
There is no implicit promotion anywhere in frame, so there is no promotion table.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """One element type: its name, width in bits and kind ("float", "int", "uint" or "bool")."""

    name: str
    bits: int
    kind: str
    storage_only: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in memory (a 4-bit element takes a whole byte)."""
        return (self.bits + 7) // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype in native byte order; ml_dtypes supplies what numpy lacks."""
        return _numpy_dtype(self.name)

    @property
    def is_float(self) -> bool:
        """True for the floating-point types."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; a bool is not an integer."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        """True where negative values exist: floats and signed integers."""
        return self.kind in ("float", "int")

    @property
    def is_bool(self) -> bool:
        """True for bool alone."""
        return self.kind == "bool"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, DType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"frame.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype, (self.name,))


float64 = DType("float64", 64, "float")
float32 = DType("float32", 32, "float")
float16 = DType("float16", 16, "float")
bfloat16 = DType("bfloat16", 16, "float")
int8 = DType("int8", 8, "int")
int16 = DType("int16", 16, "int")
int32 = DType("int32", 32, "int")
int64 = DType("int64", 64, "int")
uint8 = DType("uint8", 8, "uint")
uint16 = DType("uint16", 16, "uint")
uint32 = DType("uint32", 32, "uint")
uint64 = DType("uint64", 64, "uint")
bool_ = DType("bool", 8, "bool")
float8_e4m3fn = DType("float8_e4m3fn", 8, "float", storage_only=True)
float8_e5m2 = DType("float8_e5m2", 8, "float", storage_only=True)
int4 = DType("int4", 4, "int", storage_only=True)
uint4 = DType("uint4", 4, "uint", storage_only=True)

DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        row.name: row
        for row in (
            *(float64, float32, float16, bfloat16),
            *(int8, int16, int32, int64, uint8, uint16, uint32, uint64),
            bool_,
            *(float8_e4m3fn, float8_e5m2, int4, uint4),
        )
    }
)
"""Every dtype by name, in the canonical order."""

_FROM_ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"})

DTypeLike: TypeAlias = "DType | str | np.dtype[Any] | type[Any]"
"""What `dtype` accepts."""


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    # ml_dtypes is imported only when one of its types is needed: `import frame` stays cheap.
    source = importlib.import_module("ml_dtypes") if name in _FROM_ML_DTYPES else None
    return np.dtype(getattr(source, name)) if source is not None else np.dtype(name)


def dtype(value: DTypeLike) -> DType:
    """Return the DType of a DType, a name, a numpy dtype of any byte order, or a scalar type.

    Python's `bool`, `int` and `float` mean bool, int64 and float64, as in numpy.

    Raises:
        InvalidArgumentError: frame has no such element type.
    """
    if isinstance(value, DType):
        return value
    found = DTYPES.get(_name_of(value))
    if found is None:
        raise InvalidArgumentError(
            f"expected one of the dtypes {', '.join(DTYPES)}, received {value!r}"
        )
    return found


def _name_of(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (np.dtype, type)) and value is not object:
        return _numpy_name(value)
    return ""


@functools.lru_cache(maxsize=256)
def _numpy_name(value: np.dtype | type) -> str:
    """Return the name of an element type, which numpy makes anew, in microseconds, each time."""
    try:
        return np.dtype(value).name
    except TypeError:
        return ""
