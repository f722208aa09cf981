"""Declaring the inputs of a model: `frame.spec(("batch", 784))`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frame.core.dtypes import DTypeLike, dtype, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Shape, as_shape, parse_dim
from frame.ir.graph import TensorType


def spec(shape: Sequence[int | str | Any], dtype_: DTypeLike = float32) -> TensorType:
    """Return the type of an input.

    Args:
        shape: sizes; a string is a symbol (`"batch"`) or a size in symbols (`"2*batch + 1"`).
        dtype_: the element type, float32 by default.

    Raises:
        InvalidArgumentError: a size is negative, absurd or not a size.
    """
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise InvalidArgumentError(
            f"expected a sequence of sizes such as ('batch', 784), received {shape!r}"
        )
    sizes = tuple(parse_dim(size) if isinstance(size, str) else size for size in shape)
    return TensorType(dtype(dtype_), as_shape(sizes))


def as_spec(value: Any) -> TensorType:
    """Return the spec of a spec, an array, a Tensor or a shape tuple."""
    if isinstance(value, TensorType):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return TensorType(dtype(value.dtype), tuple(value.shape))
    shape: Shape | None = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return TensorType(dtype(value.dtype), tuple(shape))
    if isinstance(value, (tuple, list)):
        return spec(value)
    raise InvalidArgumentError(
        f"expected a spec such as frame.spec(('batch', 784)), an array or a shape, received "
        f"{value!r}"
    )
