"""The arrays of a call against a signature: checks that every program and backend on the host makes
in one way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, match_shape, match_shapes, shape_symbols
from frame.core.tensors import require_targets
from frame.hal.interfaces import Port, Signature
from frame.ir.graph import TensorType


def bind_inputs(
    signature: Signature, inputs: Sequence[Any]
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return the inputs in native byte order, and the symbols that their shapes bind.

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
    for position, (port, value) in enumerate(zip(ports, inputs, strict=True)):
        require_array(value, port.type, place_of(position, port.name))
    bindings = _bind_shapes(ports, [value.shape for value in inputs])
    for position in signature.updates:
        if not inputs[position].flags.writeable:
            raise InvalidArgumentError(
                f"{place_of(position, ports[position].name)} is overwritten by the run, received "
                "a read-only array; pass a copy"
            )
    pairs = zip(ports, inputs, strict=True)
    return [np.asarray(value, dtype=port.type.dtype.numpy) for port, value in pairs], bindings


def copy_results(
    signature: Signature, results: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Copy results into the arrays of the caller.

    Raises:
        InvalidArgumentError: there are more or fewer arrays, one is of another type or read-only,
            or two share memory.
    """
    if len(outputs) != len(results):
        raise InvalidArgumentError(
            f"expected {len(results)} output arrays, received {len(outputs)}"
        )
    for port, result, output in zip(signature.outputs, results, outputs, strict=True):
        wanted = (result.dtype, result.shape)
        if not isinstance(output, np.ndarray) or (output.dtype, output.shape) != wanted:
            raise InvalidArgumentError(
                f"out for {port.name!r}: expected {described(result)}, received {described(output)}"
            )
        if not output.flags.writeable:
            raise InvalidArgumentError(f"out for {port.name!r}: the array is read-only")
    require_targets(outputs)
    for result, output in zip(results, outputs, strict=True):
        np.copyto(output, result)


def place_of(position: int, name: str) -> str:
    """Return how a message names an input."""
    return f"input {position} ({name!r})"


def described(value: Any) -> str:
    """Return the dtype and shape of an array, or the type of anything else."""
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    return f"{value.dtype.name}{list(value.shape)}"


def require_array(value: Any, type_: TensorType, where: str) -> None:
    """Raise InvalidArgumentError for what is no array of the dtype, in any byte order."""
    if not isinstance(value, np.ndarray):
        raise InvalidArgumentError(
            f"{where}: expected an array of {type_}, received {type(value).__name__}"
        )
    if value.dtype.newbyteorder("=") != type_.dtype.numpy:
        numbers = value.dtype.kind not in "OSUmM"
        raise InvalidArgumentError(
            f"{where}: expected {type_}, received dtype {value.dtype.name} with shape "
            f"{list(value.shape)}"
            + (f"; convert with .astype({type_.dtype.name!r})" if numbers else "")
        )


def require_shape(
    shape: tuple[int, ...], type_: TensorType, where: str, bindings: dict[str, int]
) -> None:
    """Bind symbols by the shape of an array; raise InvalidArgumentError for one that does not fit,
    with the values that the symbols have from other inputs."""
    sizes: tuple[Size, ...] = type_.storage_shape
    known = _known(sizes, bindings)
    problem = ""
    try:
        if match_shape(sizes, shape, bindings):
            return
    except InvalidArgumentError as error:
        problem = f": {error}"
    if known:
        values = ", ".join(f"{name} = {value}" for name, value in sorted(known.items()))
        problem += f"; the other inputs have {values}"
    raise InvalidArgumentError(f"{where}: expected {type_}, received shape {list(shape)}{problem}")


def _known(sizes: tuple[Size, ...], bindings: Mapping[str, int]) -> dict[str, int]:
    return {name: bindings[name] for name in shape_symbols(sizes) if name in bindings}


def bind_together(
    pairs: Sequence[tuple[Sequence[Size], tuple[int, ...]]], bindings: dict[str, int]
) -> None:
    """Bind symbols by all shapes at once: one may need what a later one tells.

    A mismatch is left to the checks one by one, which name the input.
    """
    try:
        match_shapes(pairs, bindings)
    except InvalidArgumentError:
        return


def _bind_shapes(ports: Sequence[Port], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    bindings: dict[str, int] = {}
    rows = list(zip(ports, shapes, strict=True))
    bind_together([(port.type.storage_shape, shape) for port, shape in rows], bindings)
    for position, (port, shape) in enumerate(rows):
        require_shape(shape, port.type, place_of(position, port.name), bindings)
    return bindings
