"""One compiled entry of a model (infer, train step, ...): a program bound to a parameter store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core import forks
from frame.core.devices import HOST
from frame.core.dtypes import dtype
from frame.core.errors import BadIndexError, InvalidArgumentError
from frame.core.forks import cached_property
from frame.core.tensors import HostStorage, Tensor, from_numpy, over_result
from frame.hal.host import arrays_together
from frame.hal.interfaces import KernelTime, Port, Signature
from frame.hal.ports import require_array, require_shape
from frame.ir.graph import Location, Role
from frame.runtime.loading import Declared, Loaded, fresh, load
from frame.runtime.parameters import ParameterStore
from frame.runtime.program import Program
from frame.runtime.residence import Resident

if TYPE_CHECKING:
    from frame.hal.source import Source

STATE = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE})
_FREE = frozenset({Role.INPUT, Role.HYPERPARAMETER, Role.COUNTER})
_SCALARS = (bool, int, float, np.generic)
_AT_LEAST = {"learning_rate": 0.0}  # hyper-parameters that must be finite, and their least value


class Counter:
    """The random counter of a model: (seed, step), shared by its entries."""

    def __init__(self, seed: int = 0) -> None:
        self.words = np.array([seed % (1 << 64), 0], np.uint64)
        self._lock = forks.lock()

    def advance(self) -> None:
        """Go to the next step."""
        with self._lock:
            self.words[1] += np.uint64(1)

    def take(self) -> np.ndarray:
        """Return the words of this step and go to the next one."""
        with self._lock:
            words = self.words.copy()
            self.words[1] += np.uint64(1)
            return words


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
        self._free = tuple(port for port in self._ports if port.role in _FREE)
        self._plain = self._free == self.inputs  # the user's inputs are those of a prepared call
        self._random = any(port.role is Role.COUNTER for port in self._ports)
        self._updates = bool(self.signature.updates)
        self._direct = self.loaded.run.is_direct
        load_program = self.loaded.load
        self._reads_host = self._direct or (load_program is not None and load_program.is_direct)
        self._updated = tuple(self._ports[k].name for k in self.signature.updates if self._direct)
        self._pure = self._plain and not self._updates
        self._derived: tuple[Mapping[str, np.ndarray], int, tuple[np.ndarray, ...]] | None = None
        self._prepared: tuple[Any, Any, Any] | None = None
        self._quick: tuple[Any, Any] | None = None
        self._names = tuple(port.name for port in self.inputs)
        self._results = tuple(port.type.dtype for port in self.signature.outputs)
        self._lock = forks.recursive_lock()
        if self._updates:
            store.updated_in_place()

    def __call__(self, *inputs: Any, out: Sequence[np.ndarray] | None = None, **named: Any) -> Any:
        """Run on arrays or Tensors; return one result or a tuple of them, in the kind given.

        Raises:
            InvalidArgumentError: an input is missing, unknown or does not fit; an index in the
                data is out of range (nothing was changed then).
        """
        return self.call(inputs, named, out)

    def call(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        out: Sequence[np.ndarray] | None = None,
    ) -> Any:
        """Do what calling the entry does, on arguments that are packed already."""
        quick, store = self._quick, self.store
        if quick is not None and quick[0] is store.arrays and not store.in_place:
            try:
                if named or out is not None:
                    result = self._attempt(quick[1], inputs, named, out)
                else:
                    result = quick[1].quick(*inputs)
                    if result is None:
                        result = self._again(quick[1], inputs)
            except BadIndexError as error:
                raise self._located(error) from None
            if result is not None:
                return result
        if any(isinstance(value, Tensor) for value in (*inputs, *named.values())):
            return self._call_tensors(inputs, named, out)
        results = self.run(inputs, named, out)
        return results[0] if len(results) == 1 else tuple(results)

    def _again(self, call: Any, inputs: Sequence[Any]) -> Any:
        """Run on what `quick` has refused: arrays of other shapes or strides, and Tensors."""
        arrays, tensors = [], False
        for value in inputs:
            if type(value) is Tensor:
                storage, tensors = value.storage, True
                if type(storage) is not HostStorage:
                    return None
                arrays.append(storage.array)
            elif type(value) is np.ndarray:
                arrays.append(value)
            else:
                return None
        if not tensors:
            return call.again(inputs)
        result = call.quick(*arrays)
        if result is None and (result := call.again(arrays)) is None:
            return None
        if type(result) is not tuple:
            return over_result(result, self._results[0])
        return tuple(map(over_result, result, self._results))

    def _attempt(
        self,
        call: Any,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        out: Sequence[np.ndarray] | None,
    ) -> Any:
        """Run on arrays like those of the call before, or return None: nothing ran then."""
        if named:
            rest = self._names[len(inputs) :]
            if len(rest) != len(named):
                return None
            try:
                inputs = (*inputs, *[named[name] for name in rest])
            except KeyError:
                return None
        if out is None:
            return call.quick(*inputs)
        if type(out) not in (list, tuple) or len(out) != len(self.signature.outputs):
            return None
        return call.into(*inputs, *out)

    def _call_tensors(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        out: Sequence[np.ndarray] | None,
    ) -> Any:
        """Call with the memory of Tensors in place of them, and return Tensors."""
        inputs = [_memory(value) for value in inputs]
        named = {name: _memory(value) for name, value in named.items()}
        if any(isinstance(value, Tensor) for value in (*inputs, *named.values())):
            results: Sequence[Any] = self.run(inputs, named, out)  # some are on a device
        else:
            result = self.call(inputs, named, out)
            results = result if isinstance(result, tuple) else (result,)
        made = [from_numpy(array) for array in results]
        return made[0] if len(made) == 1 else tuple(made)

    def run(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        out: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Run and return the results as a list."""
        if not self._plain or named or len(inputs) != len(self.inputs):
            inputs = self._ordered(self._given(inputs, named or {}))
        elif not _all_arrays(inputs):
            home = self.declared.backend
            rows = zip(inputs, self.inputs, strict=True)
            inputs = [as_host_array(value, port, home) for value, port in rows]
        try:
            return self._run_update(inputs, out) if self._updates else self._run_plain(inputs, out)
        except BadIndexError as error:
            raise self._located(error) from None

    def _run_plain(
        self, inputs: Sequence[Any], out: Sequence[np.ndarray] | None
    ) -> list[np.ndarray]:
        if self._random:
            inputs = self._with_counter(inputs, self.counter.take())
        if not self.store.in_place:
            return self._call().run(inputs, out)  # type: ignore[no-any-return]
        with self.store.reading():
            return self._call().run(inputs, out)  # type: ignore[no-any-return]

    def _located(self, error: BadIndexError) -> BadIndexError:
        """Return the error with the op as it was declared, and where.

        The code knows the number of the declared node alone: models that are equal but for names
        and lines share their code.
        """
        places = self.declared.graph.locations
        known = error.origin is not None and 0 <= error.origin < len(places)
        place = places[error.origin] if known else Location()  # type: ignore[index]
        return error.located(place.op, str(place))

    def _run_update(
        self, inputs: Sequence[Any], out: Sequence[np.ndarray] | None
    ) -> list[np.ndarray]:
        with self.store.writing():
            call = self._call()
            if self._random:
                inputs = self._with_counter(inputs, self.counter.words.copy())
            # Before the run, so that an interrupt after it finds it noted.
            self.store.touched(self._updated)
            results: list[np.ndarray] = call.run(inputs, out)
            if self._random:
                self.counter.advance()
            return results

    def _call(self) -> Any:
        """Return the call with all state in place, made anew when the store has new arrays."""
        arrays = self.store.arrays
        if self._reads_host and self.store.in_place:
            self.store.bring_home()
        derived = () if self.loaded.load is None else self._derived_arrays(arrays)
        current = self._prepared
        if current is not None and current[0] is arrays and current[1] is derived:
            return current[2]
        made = iter(derived)
        fixed = {
            i: self._fixed(next(made) if port.role is Role.DERIVED else None, port, arrays)
            for i, port in enumerate(self._ports)
            if port.role not in _FREE
        }
        call = self.loaded.run.prepare(fixed)
        self._prepared = (arrays, derived, call)
        if self._pure and hasattr(call, "quick"):
            self._quick = (arrays, call)
        return call

    def _fixed(
        self, derived: np.ndarray | None, port: Port, arrays: Mapping[str, np.ndarray]
    ) -> np.ndarray | Resident:
        """Return what a prepared call keeps: an array, or one that may stay on devices."""
        if derived is not None:
            return derived if self._direct else Resident(derived)
        return self._state(port.name, arrays, self.loaded.run)

    def _state(
        self, name: str, arrays: Mapping[str, np.ndarray], program: Program
    ) -> np.ndarray | Resident:
        """Return an array of a table of the store in the form that a program takes."""
        return arrays[name] if program.is_direct else self.store.resident(name, arrays)

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops that run in numpy, in order."""
        return self.loaded.run.host_steps

    def profile(self, *inputs: Any, **named: Any) -> list[KernelTime]:
        """Run once and return the time of each kernel launch."""
        program = self._inspectable.run
        return program.profile(self._arrays(inputs, named))

    def source(self, node: Any = None) -> Source:
        """Return the generated code by stage: all of it, or that of one node, kernel or module.

        Raises:
            NotFoundError: there is no such node, or no kernel computes it.
        """
        from frame.runtime.inspection import program_source

        return program_source(self.declared, self._inspectable, node)

    @cached_property
    def _inspectable(self) -> Loaded:
        """Programs that can show their code: those from the cache are compiled once more."""
        return self.loaded if self.loaded.inspectable else fresh(self.declared)

    def current_derived(self) -> tuple[np.ndarray, ...]:
        """Return the results of the load program for the weights as they are."""
        return self._derived_arrays(self.store.arrays)

    def adopt_derived(self, arrays: Sequence[np.ndarray]) -> None:
        """Take results that the same load program made earlier from the same weights.

        Arrays of other types than the program has are left aside.
        """
        ports = [port for port in self._ports if port.role is Role.DERIVED]
        if [(dtype(a.dtype), a.shape) for a in arrays] == [
            (port.type.dtype, port.type.storage_shape) for port in ports
        ]:
            made = tuple(map(np.array, arrays))
            self._derived = (self.store.arrays, self.store.version, made)

    def _arrays(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[np.ndarray]:
        """Return copies of all inputs of the program, for a run beside the usual ones."""
        free = self._ordered(self._given(inputs, named))
        if self._random:
            free = self._with_counter(free, self.counter.words.copy())
        with self.store.reading():
            arrays = self.store.arrays
            derived, given = iter(self._derived_arrays(arrays)), iter(free)
            return [
                next(given)
                if port.role in _FREE
                else np.array(next(derived) if port.role is Role.DERIVED else arrays[port.name])
                for port in self._ports
            ]

    def _ordered(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the user's values in the order of a prepared call; the counter's place is None."""
        return [
            None if port.role is Role.COUNTER else self._from_user(port, given)
            for port in self._free
        ]

    def _with_counter(self, inputs: Sequence[Any], words: np.ndarray) -> list[Any]:
        pairs = zip(self._free, inputs, strict=True)
        return [words if port.role is Role.COUNTER else value for port, value in pairs]

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

    def _from_user(self, port: Port, given: Mapping[str, Any]) -> np.ndarray:
        if port.name not in given:
            raise InvalidArgumentError(
                f"{self.declared.graph.name} needs the input {port.name!r}; it takes "
                f"{self._describe()}"
            )
        array = as_host_array(given[port.name], port, self.declared.backend)
        if port.role is Role.HYPERPARAMETER:  # given by name, so no position is told
            require_array(array, port.type, f"input {port.name!r}")
            require_shape(array.shape, port.type, f"input {port.name!r}", {})
            if port.name in _AT_LEAST:
                _require_at_least(array, port)
        return array

    def _derived_arrays(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the results of the load program for a table of arrays as it is now.

        The table is the one that the caller runs on, so that a call whose arrays are replaced
        meanwhile never sees old ones beside what was made from new ones.
        """
        if self.loaded.load is None:
            return ()
        version, current = self.store.version, self._derived
        if current is not None and current[0] is arrays and current[1] == version:
            return current[2]
        # The caller reads or writes the store, unless nobody updates its arrays in place.
        with self._lock:
            program = self.loaded.load
            made = program.run(
                [self._state(port.name, arrays, program) for port in program.signature.inputs],
                _memory_of_results(program.signature),
            )
            results = tuple(np.asarray(made[index]) for index in self.loaded.manifest.derived)
            self._derived = (arrays, version, results)
            return results


def _memory_of_results(signature: Signature) -> list[np.ndarray] | None:
    """Return arrays for the results of a load program, which every call reads: in huge pages."""
    types = [port.type for port in signature.outputs]
    known = all(isinstance(size, int) for type_ in types for size in type_.shape)
    return arrays_together(types) if known else None


def _all_arrays(values: Sequence[Any]) -> bool:
    # A loop, as a generator costs more than a whole call of the native code.
    for value in values:  # noqa: SIM110
        if type(value) is not np.ndarray:
            return False
    return True


def _memory(value: Any) -> Any:
    """Return the array of a Tensor on the host, and other values as they are."""
    if isinstance(value, Tensor) and isinstance(value.storage, HostStorage):
        return value.storage.array
    return value


def _scalar(value: Any, port: Port) -> np.ndarray:
    """Return a number in the dtype of a port, which must be able to hold it."""
    wanted = port.type.dtype
    try:
        if isinstance(value, np.complexfloating):
            raise TypeError("complex numbers have no dtype here")
        with np.errstate(all="ignore"):
            array = np.asarray(value, dtype=wanted.numpy)
            kept = bool(array == value) if not wanted.is_float else _same_class(array, value)
    except (TypeError, ValueError, OverflowError):
        kept = False
    if not kept:
        raise InvalidArgumentError(
            f"input {port.name!r}: expected a number that {wanted} can hold, received {value!r:.80}"
        )
    return array


def _require_at_least(array: np.ndarray, port: Port) -> None:
    """Refuse a rate that would make every parameter NaN, or walk uphill."""
    least = _AT_LEAST[port.name]
    if array.shape == () and array.dtype.kind == "f" and not least <= array < math.inf:
        raise InvalidArgumentError(
            f"input {port.name!r}: expected a finite number of at least {least:g}, received "
            f"{array!s}; nothing was changed by this run"
        )


def _same_class(array: np.ndarray, value: Any) -> bool:
    """Whether a number is finite, infinite or not a number as before."""
    return bool(np.isfinite(array) == np.isfinite(float(value)))


def as_host_array(value: Any, port: Port, home: str = HOST.backend) -> np.ndarray:
    """Return an input of the user as a host array, without a copy where the memory allows it.

    Arrays must have the dtype of the port; Python scalars take it. A Tensor may be on the host or
    on a device of the backend `home` that the code is for.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray) and hasattr(value, "mask") and np.ma.is_masked(value):
        raise InvalidArgumentError(
            f"input {port.name!r}: expected an array without masked elements, received "
            f"{value.dtype.name}{list(value.shape)} with {int(np.sum(value.mask))} of them; call "
            ".filled(value) on it first"
        )
    if isinstance(value, Tensor):
        if value.device.backend not in (HOST.backend, home):
            raise InvalidArgumentError(
                f"input {port.name!r}: expected a tensor on {HOST}"
                f"{f' or a device of {home}' if home != HOST.backend else ''}, received one on "
                f"{value.device}; copy it there with .to({str(HOST)!r})"
            )
        return value.numpy()
    if isinstance(value, _SCALARS):
        return _scalar(value, port)
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
