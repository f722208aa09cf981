"""Checking the arrays of a call against a signature, for programs that are not one host call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frame.core.errors import InvalidArgumentError
from frame.core.shapes import match_shapes, shape_text
from frame.core.tensors import require_apart
from frame.hal.interfaces import Port, Signature
from frame.runtime.residence import Resident


def bind(signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the inputs, in native byte order, and the symbols that their shapes bind.

    Raises:
        InvalidArgumentError: the count, a dtype or a shape does not fit, or an array that the run
            updates is read-only.
    """
    ports = signature.inputs
    if len(inputs) != len(ports):
        names = ", ".join(port.name for port in ports)
        raise InvalidArgumentError(
            f"expected {len(ports)} inputs ({names}), received {len(inputs)}"
        )
    arrays = [_checked(*row) for row in zip(range(len(ports)), ports, inputs, strict=True)]
    for position in signature.updates:
        array = inputs[position]
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise InvalidArgumentError(
                f"input {position} ({ports[position].name!r}) is overwritten by the run, received "
                "a read-only array; pass a copy"
            )
    return arrays, bindings_of(signature, arrays)


def bindings_of(signature: Signature, inputs: Sequence[Any]) -> dict[str, int]:
    """Return the values that the shapes of arrays give to the symbols of a signature.

    Raises:
        InvalidArgumentError: a shape does not fit.
    """
    bindings: dict[str, int] = {}
    rows = [
        (port.type.storage_shape, np.shape(value.array if _is_state(value) else value))
        for port, value in zip(signature.inputs, inputs, strict=True)
    ]
    if not match_shapes(rows, bindings):
        expected = ", ".join(f"{port.name}: {port.type}" for port in signature.inputs)
        received = ", ".join(shape_text(shape) for _, shape in rows)
        raise InvalidArgumentError(
            f"expected the inputs {expected}, received the shapes {received}"
        )
    return bindings


def copy_results(
    signature: Signature, results: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Copy results into the arrays of the caller.

    Raises:
        InvalidArgumentError: there are more or fewer arrays, or one is of another type.
    """
    if len(outputs) != len(results):
        raise InvalidArgumentError(
            f"expected {len(results)} output arrays, received {len(outputs)}"
        )
    for port, result, output in zip(signature.outputs, results, outputs, strict=True):
        wanted = (result.dtype, result.shape)
        if not isinstance(output, np.ndarray) or (output.dtype, output.shape) != wanted:
            raise InvalidArgumentError(
                f"out for {port.name!r}: expected {result.dtype.name}{list(result.shape)}, "
                f"received {_described(output)}"
            )
        if not output.flags.writeable:
            raise InvalidArgumentError(f"out for {port.name!r}: the array is read-only")
    require_apart(outputs)
    for result, output in zip(results, outputs, strict=True):
        np.copyto(output, result)


def _checked(position: int, port: Port, value: Any) -> Any:
    if _is_state(value):
        return value
    where, wanted = f"input {position} ({port.name!r})", port.type.dtype.numpy
    if not isinstance(value, np.ndarray):
        raise InvalidArgumentError(
            f"{where}: expected an array of {port.type}, received {type(value).__name__}"
        )
    sizes = port.type.storage_shape
    fits = len(sizes) == value.ndim and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(sizes, value.shape, strict=True)
    )
    if value.dtype.newbyteorder("=") != wanted or not fits:
        raise InvalidArgumentError(f"{where}: expected {port.type}, received {_described(value)}")
    return np.asarray(value, dtype=wanted)


def _is_state(value: Any) -> bool:
    return isinstance(value, Resident)


def _described(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    return f"{value.dtype.name}{list(value.shape)}"
