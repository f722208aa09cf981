"""Declaring the inputs of a model: `frame.spec(("batch", 784))`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from frame.core.dtypes import DTypeLike, dtype, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, Shape, Size, as_shape, as_size, parse_dim, shape_symbols
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


def named_specs(inputs: Any) -> dict[str, TensorType]:
    """Return the specs of a model's inputs by name; a single one without a name is `x`.

    Raises:
        InvalidArgumentError: the inputs are neither a list nor a mapping of specs.
    """
    if isinstance(inputs, Mapping):
        return {name: as_spec(value) for name, value in inputs.items()}
    if not isinstance(inputs, (tuple, list)):
        raise InvalidArgumentError(
            "inputs must be a list of specs such as [frame.spec(('batch', 784))], received "
            f"{inputs!r:.80}"
        )
    stem = "x" if len(inputs) == 1 else None
    return {stem or f"x{k}": as_spec(value) for k, value in enumerate(inputs)}


def check_sizes(sizes: Mapping[str, Any], specs: Iterable[TensorType]) -> dict[str, int]:
    """Return the sizes of symbols as integers.

    Raises:
        InvalidArgumentError: a name is not a symbol of the specs, or a size is no number >= 0.
    """
    known = sorted({symbol for spec in specs for symbol in shape_symbols(spec.shape)})
    if unknown := [name for name in sizes if name not in known]:
        raise InvalidArgumentError(
            f"sizes names {unknown[0]!r}, the symbols of the inputs and targets are "
            f"{', '.join(known) or 'none'}"
        )
    checked = {name: as_size(value) for name, value in sizes.items()}
    if symbolic := [name for name, size in checked.items() if isinstance(size, Dim)]:
        raise InvalidArgumentError(
            f"sizes: expected a number for {symbolic[0]!r}, received {sizes[symbolic[0]]!r}"
        )
    return {name: size for name, size in checked.items() if not isinstance(size, Dim)}


def with_sizes(spec: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Return a spec with numbers in place of the symbols in `sizes`."""
    return replace(spec, shape=tuple(_with_sizes(size, sizes) for size in spec.shape))


def _with_sizes(size: Size, sizes: Mapping[str, int]) -> Size:
    if not isinstance(size, Dim):
        return size
    total: Size = 0
    for monomial, coefficient in size.terms:
        product: Size = coefficient
        for name in monomial:
            product = product * sizes.get(name, Dim.symbol(name))
        total = total + product
    return total
