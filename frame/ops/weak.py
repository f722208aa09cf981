"""Operands that are not values yet: Python scalars are weak, arrays become constants.

A Python or numpy scalar, or a list of numbers, takes the dtype of the other operands of its group
when that loses no kind: bool -> int -> float. A numpy array keeps the dtype that it has. Nothing
else is ever cast implicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frame.core.dtypes import DType, DTypeLike, bool_, dtype, float32, int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.graph import Constant, Value
from frame.ops import registry
from frame.ops.record import OpDef, Operand

_LEVELS = {"bool": 0, "uint": 1, "int": 1, "float": 2}
_DEFAULTS = (bool_, int64, float32)


def as_operands(record: OpDef, operands: Sequence[Any]) -> tuple[Value, ...]:
    """Return the operands as values; what is not a value becomes a `constant` node.

    Trailing None operands are absent ones.

    Raises:
        InvalidArgumentError: an operand is no value, number or array; a weak number does not fit
            the dtype of its group; an operand before the last one given is None.
    """
    given = list(operands)
    while given and given[-1] is None:
        given.pop()
    if all(type(operand) is Value for operand in given):
        return tuple(given)
    specs = [_spec(record, position) for position in range(len(given))]
    # The name of a group; operands of the empty group are each alone.
    groups = [spec.group or f"#{position}" for position, spec in enumerate(specs)]
    arrays = [_array(record, spec, value) for spec, value in zip(specs, given, strict=True)]
    dtypes = _group_dtypes(specs, groups, arrays)
    return tuple(
        operand if isinstance(operand, Value) else _constant(record, spec, operand, dtypes[group])
        for spec, group, operand in zip(specs, groups, arrays, strict=True)
    )


def constant_array(value: Any, target: DTypeLike | None = None) -> np.ndarray:
    """Return the array of a constant: of a number, a nested list of numbers, or an array.

    Raises:
        InvalidArgumentError: the value is not numeric, or `target` can't hold it.
    """
    record, spec = registry.lookup("constant"), Operand("value")
    array = _array(record, spec, value)
    if isinstance(array, Value):
        raise InvalidArgumentError(f"{value!r} is a value of the graph already, not a constant")
    if target is None and isinstance(array, np.ndarray):
        return array
    weak = array if isinstance(array, _Weak) else _Weak(array)
    settled = _default(spec, weak.level) if target is None else dtype(target)
    return _settle(record, spec, weak, settled)


class _Weak:
    """A number, or a nested list of numbers, whose dtype is still open."""

    __slots__ = ("array", "level")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.level = _LEVELS[dtype(array.dtype).kind]


def _spec(record: OpDef, position: int) -> Operand:
    if not record.operands:
        return Operand("operand", group="")
    return record.operands[min(position, len(record.operands) - 1)]


def _array(record: OpDef, spec: Operand, value: Any) -> Value | _Weak | np.ndarray:
    if isinstance(value, Value):
        return value
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return _native(np.asarray(value))
    if isinstance(value, Dim):
        raise InvalidArgumentError(
            f"operand {spec.name!r} of {record.name} is the symbolic size {value}; "
            "frame.ops.size(x, axis) gives a size as a value of the graph"
        )
    if isinstance(value, (bool, int, float, np.generic, list, tuple)):
        return _weak(record, spec, value)
    raise InvalidArgumentError(
        f"operand {spec.name!r} of {record.name} must be a graph value, a number or an array, "
        f"received {value!r:.80} of type {type(value).__name__}"
    )


def _weak(record: OpDef, spec: Operand, value: Any) -> _Weak:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.size == 0 and isinstance(value, (list, tuple)):
        array = array.astype(np.int64)
    if array.dtype.kind in "biuf" or array.dtype.name == "bfloat16":
        return _Weak(array)
    raise InvalidArgumentError(
        f"operand {spec.name!r} of {record.name} must be a graph value, a number or an array of "
        f"numbers, received {value!r:.80}"
    )


def _native(array: np.ndarray) -> np.ndarray:
    return array.astype(dtype(array.dtype).numpy, copy=False)


def _group_dtypes(
    specs: Sequence[Operand],
    groups: Sequence[str],
    operands: Sequence[Value | _Weak | np.ndarray],
) -> dict[str, DType]:
    strong: dict[str, DType] = {}
    weak: dict[str, DType] = {}
    for spec, group, operand in zip(specs, groups, operands, strict=True):
        if isinstance(operand, _Weak):
            default = _default(spec, operand.level)
            known = weak.setdefault(group, default)
            if _LEVELS[default.kind] > _LEVELS[known.kind]:
                weak[group] = default
        else:
            strong.setdefault(group, dtype(operand.dtype))
    return {**weak, **strong}


def _default(spec: Operand, level: int) -> DType:
    for candidate in _DEFAULTS[level:]:
        if candidate.kind in spec.kinds:
            return candidate
    return _DEFAULTS[level]


def _constant(record: OpDef, spec: Operand, operand: _Weak | np.ndarray, target: DType) -> Value:
    if isinstance(operand, _Weak):
        operand = _settle(record, spec, operand, target)
    return registry.create_node("constant", (), {"value": Constant(operand)})[0]


def _settle(record: OpDef, spec: Operand, weak: _Weak, target: DType) -> np.ndarray:
    shown = repr(weak.array.tolist())
    if weak.level > _LEVELS[target.kind]:
        raise InvalidArgumentError(
            f"{spec.name!r} of {record.name} is {shown:.80}, which {target} can't hold without "
            "changing its kind; frame.ops.cast converts a tensor to another dtype"
        )
    if target.is_integer and weak.array.size:
        limits = np.iinfo(target.numpy)
        low, high = int(weak.array.min()), int(weak.array.max())
        if low < limits.min or high > limits.max:
            raise InvalidArgumentError(
                f"{spec.name!r} of {record.name} is {shown:.80}, which {target} can't hold (it "
                f"holds {limits.min} to {limits.max})"
            )
    with np.errstate(over="ignore"):
        return weak.array.astype(target.numpy)
