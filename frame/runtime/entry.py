"""One compiled entry of a model (infer, train step, ...): a program bound to a parameter store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from frame.core.dtypes import dtype
from frame.core.errors import InvalidArgumentError
from frame.core.tensors import Tensor
from frame.hal.interfaces import KernelTime, Port, Signature
from frame.ir.graph import Role
from frame.runtime.parameters import ParameterStore
from frame.runtime.stages import Declared, Loaded, fresh, load

STATE = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE})
_SCALARS = (bool, int, float, np.generic)


class Counter:
    """The random counter of a model: (seed, step), shared by its entries."""

    def __init__(self, seed: int = 0) -> None:
        self.words = np.array([seed % (1 << 64), 0], np.uint64)

    def advance(self) -> None:
        """Go to the next step."""
        self.words[1] += np.uint64(1)


class Entry:
    """A program whose state inputs come from a parameter store.

    Calling it takes the plain inputs by position or name and the hyper-parameters by name. Derived
    inputs are made by the load program and made again when the store has been written.
    """

    def __init__(
        self,
        declared: Declared,
        store: ParameterStore,
        counter: Counter | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        self.declared = declared
        self.store = store
        self.counter = counter or Counter()
        self.loaded = loaded or load(declared)
        self.signature: Signature = self.loaded.run.signature
        self._ports = self.signature.inputs
        self.inputs = tuple(port for port in self._ports if port.role is Role.INPUT)
        self.hyperparameters = tuple(p for p in self._ports if p.role is Role.HYPERPARAMETER)
        self._random = any(port.role is Role.COUNTER for port in self._ports)
        self._updates = bool(self.signature.updates)
        self._derived: tuple[int, tuple[np.ndarray, ...]] | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any, out: Sequence[np.ndarray] | None = None, **named: Any) -> Any:
        """Run on arrays or Tensors; return one result or a tuple of them, in the kind given.

        Raises:
            InvalidArgumentError: an input is missing, unknown or does not fit; an index in the
                data is out of range (nothing was changed then).
        """
        results: list[Any] = self.run(inputs, named, out)
        if any(isinstance(value, Tensor) for value in inputs):
            from frame.core.tensors import from_numpy

            results = [from_numpy(result) for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    def run(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        out: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Run and return the results as a list."""
        if not self._updates:
            return list(self.loaded.run.run(self._arrays(inputs, named or {}), out))
        with self.store.lock:
            arrays = self._arrays(inputs, named or {})
            self.store.touched()  # before the run, so that an interrupt after it finds it noted
            results = self.loaded.run.run(arrays, out)
            if self._random:
                self.counter.advance()
            return list(results)

    def profile(self, *inputs: Any, **named: Any) -> list[KernelTime]:
        """Run once and return the time of each kernel launch."""
        program = self._inspectable.run
        return program.profile(self._arrays(inputs, named))

    def source(self) -> Mapping[str, str]:
        """Return the generated code by stage."""
        return self._inspectable.run.source()

    @cached_property
    def _inspectable(self) -> Loaded:
        """Programs that can show their code: those from the cache are compiled once more."""
        return self.loaded if self.loaded.inspectable else fresh(self.declared)

    def current_derived(self) -> tuple[np.ndarray, ...]:
        """Return the results of the load program for the weights as they are."""
        return self._derived_arrays()

    def adopt_derived(self, arrays: Sequence[np.ndarray]) -> None:
        """Take results that the same load program made earlier from the same weights.

        Arrays of other types than the program has are left aside.
        """
        ports = [port for port in self._ports if port.role is Role.DERIVED]
        if [(dtype(a.dtype), a.shape) for a in arrays] == [
            (port.type.dtype, port.type.storage_shape) for port in ports
        ]:
            self._derived = (self.store.version, tuple(map(np.array, arrays)))

    def _arrays(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[np.ndarray]:
        given = self._given(inputs, named)
        derived = iter(self._derived_arrays())
        return [_SOURCES[port.role](self, port, given, derived) for port in self._ports]

    def _given(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the user's values by input name."""
        if len(inputs) > len(self.inputs):
            raise InvalidArgumentError(
                f"{self.declared.graph.name} takes {self._describe()}, received {len(inputs)} "
                "positional inputs"
            )
        given = {port.name: value for port, value in zip(self.inputs, inputs, strict=False)}
        for name, value in named.items():
            if name in given or not self._takes(name):
                problem = "twice" if name in given else "which it does not take"
                raise InvalidArgumentError(
                    f"{self.declared.graph.name} received {name!r} {problem}; it takes "
                    f"{self._describe()}"
                )
            given[name] = value
        return given

    def _takes(self, name: str) -> bool:
        return any(port.name == name for port in (*self.inputs, *self.hyperparameters))

    def _describe(self) -> str:
        ports = (*self.inputs, *self.hyperparameters)
        return ", ".join(f"{port.name}: {port.type}" for port in ports) or "no inputs"

    def _from_user(self, port: Port, given: Mapping[str, Any], derived: Any) -> np.ndarray:
        if port.name not in given:
            raise InvalidArgumentError(
                f"{self.declared.graph.name} needs the input {port.name!r}; it takes "
                f"{self._describe()}"
            )
        return as_host_array(given[port.name], port)

    def _from_store(self, port: Port, given: Mapping[str, Any], derived: Any) -> np.ndarray:
        return self.store.array(port.name)

    def _from_counter(self, port: Port, given: Mapping[str, Any], derived: Any) -> np.ndarray:
        return self.counter.words.copy()

    def _from_load(self, port: Port, given: Mapping[str, Any], derived: Any) -> np.ndarray:
        array: np.ndarray = next(derived)
        return array

    def _derived_arrays(self) -> tuple[np.ndarray, ...]:
        """Return the results of the load program for the current version of the store."""
        if self.loaded.load is None:
            return ()
        current = self._derived
        if current is not None and current[0] == self.store.version:
            return current[1]
        with self._lock, self.store.lock:
            version = self.store.version
            program = self.loaded.load
            arrays = [self.store.array(port.name) for port in program.signature.inputs]
            made = [np.array(result) for result in program.run(arrays)]
            results = tuple(made[index] for index in self.loaded.manifest.derived)
            self._derived = (version, results)
            return results


_SOURCES: Mapping[Role, Callable[..., np.ndarray]] = {
    Role.INPUT: Entry._from_user,
    Role.HYPERPARAMETER: Entry._from_user,
    Role.PARAMETER: Entry._from_store,
    Role.BUFFER: Entry._from_store,
    Role.OPTIMIZER_STATE: Entry._from_store,
    Role.COUNTER: Entry._from_counter,
    Role.DERIVED: Entry._from_load,
}


def as_host_array(value: Any, port: Port) -> np.ndarray:
    """Return an input of the user as a host array, without a copy where the memory allows it.

    Arrays must have the dtype of the port; Python scalars take it.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, Tensor):
        return value.numpy() if value.device.backend != "cpu" else np.asarray(value)
    if isinstance(value, _SCALARS):
        return np.asarray(value, dtype=port.type.dtype.numpy)
    if hasattr(value, "__dlpack__"):
        from frame.core.tensors import from_dlpack

        return np.asarray(from_dlpack(value))
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"input {port.name!r}: expected an array of {port.type}, received "
            f"{type(value).__name__}: {error}"
        ) from None
