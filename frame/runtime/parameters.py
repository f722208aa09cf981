"""The parameter store: the arrays that all executables of one model share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from frame.core.dtypes import dtype
from frame.core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from frame.core.tensors import Tensor
from frame.ir.graph import TensorType


class ParameterStore(Mapping[str, np.ndarray]):
    """Named state arrays: parameters, buffers, optimizer state. Reading copies, `write` replaces.

    `version` counts writes; what was derived from the arrays records the version it was made from.
    """

    def __init__(self, types: Mapping[str, TensorType], arrays: Mapping[str, np.ndarray]) -> None:
        self._types = dict(types)
        self._arrays: dict[str, np.ndarray] = {}
        self.lock = threading.RLock()
        self.version = 0
        for name, type_ in self._types.items():
            self._arrays[name] = _fitting(name, arrays[name], type_)

    def __getitem__(self, name: str) -> np.ndarray:
        self._require(name)
        with self.lock:
            return self._arrays[name].copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def type_of(self, name: str) -> TensorType:
        """Return the type of an array; raise NotFoundError for an unknown name."""
        self._require(name)
        return self._types[name]

    def array(self, name: str) -> np.ndarray:
        """Return the array itself, for executables; nobody else may keep or change it."""
        return self._arrays[name]

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace arrays, all or none of them.

        Raises:
            NotFoundError: a name is unknown.
            InvalidArgumentError: an array has another shape or dtype.
        """
        ready = {}
        for name, value in values.items():
            self._require(name)
            ready[name] = _fitting(name, value, self._types[name])
        with self.lock:
            for name, array in ready.items():
                np.copyto(self._arrays[name], array)
            self.version += 1

    def add(self, name: str, type_: TensorType, value: np.ndarray) -> None:
        """Add an array, such as the state of an optimizer; raise AlreadyExistsError for a name
        that is taken."""
        if name in self._types:
            raise AlreadyExistsError(f"the store has an array named {name!r} already")
        self._arrays[name] = _fitting(name, value, type_)
        self._types[name] = type_

    def touched(self) -> None:
        """Note that an executable has updated arrays in place."""
        self.version += 1

    def _require(self, name: str) -> None:
        if name not in self._types:
            near = ", ".join(list(self._types)[:8])
            raise NotFoundError(f"there is no parameter named {name!r}; known: {near}, ...")


def _fitting(name: str, value: Any, type_: TensorType) -> np.ndarray:
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    fits = dtype(array.dtype) == type_.dtype if array.dtype.isnative else False
    if not fits or array.shape != type_.shape:
        raise InvalidArgumentError(
            f"parameter {name!r} has the type {type_}, received "
            f"{array.dtype.name}{list(array.shape)}"
        )
    return np.array(array, order="C", copy=True)
