"""Indexing a graph value with ints, slices, Ellipsis, None and one tensor of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, Size, shape_text
from frame.ir.graph import Value
from frame.ops.parts import steps_between
from frame.ops.registry import python_form


@python_form
def getitem(x: Value, key: Any) -> Value:
    """Return `x[key]` with the meaning that numpy gives it.

    The key may hold integers, slices with any step but 0, Ellipsis, None (a new axis), and at most
    one tensor or array of integer positions, which then takes no integers beside it. On an axis of
    symbolic size, a bound counts from the end when it is negative and is not clipped to the size.

    Raises:
        InvalidArgumentError: an index is out of range, there are too many, or the kind is unknown.
    """
    entries = _expand_ellipsis(x, key if isinstance(key, tuple) else (key,))
    position, spread = _tensor_index(entries)
    if spread is not None:
        return _gather(x, entries, position, spread)
    return _plain(x, entries)


@python_form
def unpack(x: Value) -> list[Value]:
    """Return the slices of `x` along its first axis, which must have a known size.

    Raises:
        InvalidArgumentError: `x` is a scalar, or the size is symbolic.
    """
    if not x.rank or isinstance(x.shape[0], Dim):
        raise InvalidArgumentError(
            f"can't iterate over a tensor of shape {shape_text(x.shape)}: the size of its first "
            "axis must be known; frame.ops.scan loops over a symbolic one"
        )
    return [getitem(x, index) for index in range(x.shape[0])]


def _is_index(entry: Any) -> bool:
    return isinstance(entry, (int, np.integer, Dim)) and not isinstance(entry, (bool, np.bool_))


def _expand_ellipsis(x: Value, key: tuple[Any, ...]) -> list[Any]:
    places = [place for place, entry in enumerate(key) if entry is Ellipsis]
    used = sum(entry is not None and entry is not Ellipsis for entry in key)
    if len(places) > 1 or used > x.rank:
        raise InvalidArgumentError(
            f"a tensor of shape {shape_text(x.shape)} takes at most {x.rank} indices and one "
            f"Ellipsis, received {used} and {len(places)}"
        )
    filler = [slice(None)] * (x.rank - used)
    place = places[0] if places else len(key)
    return [*key[:place], *filler, *key[place + 1 :]]


def _tensor_index(entries: list[Any]) -> tuple[int, Any]:
    found = [
        (place, entry)
        for place, entry in enumerate(entries)
        if isinstance(entry, (Value, np.ndarray, list))
    ]
    if not found:
        return 0, None
    if len(found) > 1 or any(_is_index(entry) for entry in entries):
        raise InvalidArgumentError(
            "an index takes one tensor of positions, and slices, Ellipsis and None beside it; "
            "apply frame.ops.gather once for each axis instead"
        )
    return found[0]


def _gather(x: Value, entries: list[Any], place: int, indices: Any) -> Value:
    kind = indices.dtype if isinstance(indices, Value) else np.asarray(indices).dtype
    if str(kind) == "bool":
        raise InvalidArgumentError(
            "a mask as index gives a tensor whose shape depends on its values; "
            "frame.ops.where keeps the shape"
        )
    rest = [*entries[:place], slice(None), *entries[place + 1 :]]
    # No entry is an integer, so each one makes one axis, and the tensor indexes axis `place`.
    return ops.gather(_plain(x, rest), indices, axis=place)


def _plain(x: Value, entries: list[Any]) -> Value:
    starts: list[Size] = []
    stops: list[Size] = []
    steps: list[int] = []
    reversed_axes: list[int] = []
    shape: list[Size] = []
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        axis = len(starts)
        start, stop, step = _bounds(x, axis, entry)
        if step < 0:
            reversed_axes.append(axis)
        starts.append(start)
        stops.append(stop)
        steps.append(abs(step))
        if not _is_index(entry):
            shape.append(steps_between(start, stop, abs(step)))
    whole = tuple(stops) == x.shape and not any(start != 0 for start in starts)
    y = x if whole and set(steps) <= {1} else ops.slice(x, starts, stops, steps)
    y = ops.flip(y, reversed_axes) if reversed_axes else y
    return y if y.shape == tuple(shape) else ops.reshape(y, tuple(shape))


def _bounds(x: Value, axis: int, entry: Any) -> tuple[Size, Size, int]:
    """Return start, stop and step of one axis; a negative step keeps its sign for flip."""
    size = x.shape[axis]
    if _is_index(entry):
        index = _absolute(int(entry) if not isinstance(entry, Dim) else entry, size)
        if isinstance(index, int) and (index < 0 or (isinstance(size, int) and index >= size)):
            raise InvalidArgumentError(
                f"index {entry} is out of range for axis {axis} of a tensor of shape "
                f"{shape_text(x.shape)}"
            )
        return index, index + 1, 1
    if isinstance(entry, slice):
        return _slice_bounds(x, axis, entry)
    raise InvalidArgumentError(
        "an index must be an integer, a slice, Ellipsis, None or a tensor of integers, received "
        f"{entry!r:.80} of type {type(entry).__name__}"
    )


def _absolute(index: Size, size: Size) -> Size:
    return index + size if isinstance(index, int) and index < 0 else index


def _slice_bounds(x: Value, axis: int, entry: slice) -> tuple[Size, Size, int]:
    size, step = x.shape[axis], 1 if entry.step is None else entry.step
    if not _is_index(step) or isinstance(step, Dim) or step == 0:
        raise InvalidArgumentError(
            f"the step of a slice must be an integer other than 0, received {entry.step!r}"
        )
    for bound in (entry.start, entry.stop):
        if bound is not None and not _is_index(bound):
            raise InvalidArgumentError(
                f"the bounds of a slice must be integers or sizes, received {bound!r:.80}; "
                "frame.ops.gather reads at positions that are known at run time"
            )
    if (
        isinstance(size, int)
        and not isinstance(entry.start, Dim)
        and not isinstance(entry.stop, Dim)
    ):
        return _known(range(*entry.indices(size)))
    return _symbolic(entry, size, int(step))


def _known(taken: range) -> tuple[int, int, int]:
    """Turn the indices that a slice takes into ascending bounds."""
    if not taken:
        return 0, 0, 1
    low, high = min(taken[0], taken[-1]), max(taken[0], taken[-1])
    return low, high + 1, taken.step


def _symbolic(entry: slice, size: Size, step: int) -> tuple[Size, Size, int]:
    if step > 0:
        start = 0 if entry.start is None else _absolute(entry.start, size)
        stop = size if entry.stop is None else _absolute(entry.stop, size)
        return start, stop, step
    first = size - 1 if entry.start is None else _absolute(entry.start, size)
    behind = -1 if entry.stop is None else _absolute(entry.stop, size)
    # Ascending: the element that the walk reaches last comes first.
    count = steps_between(0, first - behind, -step)
    return first + (count - 1) * step, first + 1, step
