"""The parameter store: the arrays that all executables of one model share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from frame.core.devices import HOST
from frame.core.dtypes import dtype
from frame.core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from frame.core.tensors import Tensor
from frame.ir.graph import TensorType
from frame.runtime.residence import Resident
from frame.runtime.turns import Turns

_NAMED = 8  # how many names a message lists


class ParameterStore(Mapping[str, np.ndarray]):
    """Named state arrays: parameters, buffers, optimizer state. Reading copies, `write` replaces.

    `version` counts changes; what was derived from the arrays records the version it was made from.
    `arrays` is replaced by a new table whenever an array is: a run that is under way keeps the old
    ones. Only an executable that updates its inputs changes arrays in place, inside `writing`.
    """

    def __init__(
        self,
        types: Mapping[str, TensorType],
        arrays: Mapping[str, np.ndarray],
        owned: bool = False,
    ) -> None:
        """Keep copies of arrays of these types; `owned` says that nobody else has the arrays."""
        self._types = dict(types)
        self.arrays: Mapping[str, np.ndarray] = {
            name: _fitting(name, arrays[name], type_, copy=not owned)
            for name, type_ in self._types.items()
        }
        self.version = 0
        self.in_place = False
        self._residents: dict[str, Resident] = {}
        self._turns = Turns()

    def __getitem__(self, name: str) -> np.ndarray:
        self._require(name)
        with self.reading():
            return self.array(name).copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def type_of(self, name: str) -> TensorType:
        """Return the type of an array; raise NotFoundError for an unknown name."""
        self._require(name)
        return self._types[name]

    def array(self, name: str) -> np.ndarray:
        """Return the array itself, for executables; nobody else may keep or change it.

        Where a device holds a newer copy, that is copied back first.
        """
        state = self._residents.get(name)
        return self.arrays[name] if state is None else state.host()

    def resident(self, name: str, arrays: Mapping[str, np.ndarray]) -> Resident:
        """Return an array of a table as something that programs may keep on devices."""
        with self._turns.condition:
            if arrays is not self.arrays:  # replaced a moment ago: the caller's run keeps its own
                return Resident(arrays[name])
            return self._residents.setdefault(name, Resident(arrays[name]))

    def bring_home(self) -> None:
        """Copy back what is newer on a device; called inside `reading` or `writing`."""
        for state in tuple(self._residents.values()):
            state.host()

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace arrays, all or none of them.

        Raises:
            NotFoundError: a name is unknown.
            InvalidArgumentError: an array has another shape or dtype.
        """
        if not isinstance(values, Mapping):
            raise InvalidArgumentError(
                f"expected parameters as a mapping from names to arrays, received {values!r:.80}"
            )
        ready = {}
        for name, value in values.items():
            self._require(name)
            ready[name] = _fitting(name, value, self._types[name])
        with self.writing():
            with self._turns.condition:
                self.arrays = {**self.arrays, **ready}
                for name in ready:  # runs that are under way keep what they have
                    self._residents.pop(name, None)
            self.version += 1

    def add(self, name: str, type_: TensorType, value: np.ndarray) -> None:
        """Add an array, such as the state of an optimizer; raise AlreadyExistsError for a name
        that is taken."""
        if name in self._types:
            raise AlreadyExistsError(f"the store has an array named {name!r} already")
        fitting = _fitting(name, value, type_)
        with self.writing():
            self.arrays = {**self.arrays, name: fitting}
            self._types[name] = type_

    def touched(self, on_host: Sequence[str] = ()) -> None:
        """Note that an executable updates arrays in place; called inside `writing`.

        `on_host` are those whose host array it writes itself; programs note others as they go.
        """
        self.version += 1
        if self._residents:
            for name in on_host:
                if state := self._residents.get(name):
                    state.changed(HOST)

    def updated_in_place(self) -> None:
        """Note that an executable will update arrays in place: readers take turns from now on."""
        self.in_place = True

    def reading(self) -> AbstractContextManager[None]:
        """Keep executables from updating arrays in place; any number of readers at once."""
        return self._turns.reading()

    def writing(self) -> AbstractContextManager[None]:
        """Keep everyone else from reading and writing."""
        return self._turns.writing()

    def _require(self, name: str) -> None:
        if name not in self._types:
            more = ", ..." if len(self._types) > _NAMED else ""
            near = ", ".join(list(self._types)[:_NAMED]) or "none"
            raise NotFoundError(f"there is no parameter named {name!r}; known: {near}{more}")


def _fitting(name: str, value: Any, type_: TensorType, copy: bool = True) -> np.ndarray:
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    if dtype(array.dtype) != type_.dtype or array.shape != type_.shape:
        raise InvalidArgumentError(
            f"parameter {name!r} has the type {type_}, received "
            f"{array.dtype.name}{list(array.shape)}"
        )
    if copy or not (array.flags.c_contiguous and array.flags.writeable):
        return np.array(array, type_.dtype.numpy, order="C", copy=True)
    return array
