"""`frame.jit`: compile a Python function for the shapes it is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from frame.core import forks
from frame.core.dataclass import dataclass
from frame.core.dtypes import dtype
from frame.core.errors import InvalidArgumentError
from frame.core.logs import Logger
from frame.core.shapes import Dim, match_shapes
from frame.core.tensors import Tensor, from_numpy
from frame.ir.builder import active_builder
from frame.ir.graph import TensorType, Value
from frame.runtime.backends import backend, target_of, tuning_of
from frame.runtime.bound_entry import make_entry
from frame.runtime.entry import Entry
from frame.runtime.loading import Declared
from frame.runtime.parameters import ParameterStore
from frame.runtime.tracing import Structure, flatten, trace_structure

_LOG = Logger("frame.jit")
_SYMBOL = "n"
_OPTIONS = frozenset({"target", "passes", "options", "tune"})
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Compiled:
    """One compiled form of the function."""

    entry: Entry
    structure: Structure
    types: tuple[TensorType, ...]
    symbolic: bool

    def fits(self, types: Sequence[TensorType]) -> bool:
        """Whether arguments of these types run on this form."""
        return all(map(_fits, self.types, types)) and (
            not self.symbolic or _bind(self.types, types)
        )


def _bind(mine: Sequence[TensorType], given: Sequence[TensorType]) -> bool:
    """Whether one size for each symbol makes all types fit: two arguments may share a symbol."""
    pairs = zip(mine, given, strict=True)
    return match_shapes([(m.shape, cast("tuple[int, ...]", g.shape)) for m, g in pairs], {})


def _fits(mine: TensorType, given: TensorType) -> bool:
    return (
        mine.dtype == given.dtype
        and len(mine.shape) == len(given.shape)
        and all(isinstance(a, Dim) or a == b for a, b in zip(mine.shape, given.shape, strict=True))
    )


class Jitted:
    """A function that is traced and compiled when it is called with new types.

    At the second size of a leading dimension that dimension becomes a symbol, and the same code
    serves every size from then on; if the function can't be built with a symbol there, each size
    is compiled on its own. Recompiles are logged with their reason.
    """

    def __init__(
        self, function: Callable[..., Any], backend: str | None = None, **options: Any
    ) -> None:
        if unknown := set(options) - _OPTIONS:
            raise InvalidArgumentError(
                f"frame.jit takes backend, {', '.join(sorted(_OPTIONS))}; received "
                f"{sorted(unknown)[0]!r}"
            )
        if not callable(function):
            raise InvalidArgumentError(f"frame.jit compiles a function, received {function!r:.80}")
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", "function").strip("<>") or "function"
        self.function = function
        self.backend = backend
        self.options = options
        self.compiles = 0
        self._forms: dict[Key, list[_Compiled]] = {}
        self._lock = forks.lock()

    def __call__(self, *arguments: Any, **static: Any) -> Any:
        """Run on arrays, Tensors or scalars; keyword arguments are constants of the trace.

        Called on values while a graph is being built, the function becomes a part of that graph.
        """
        if active_builder() is not None and any(
            isinstance(a, Value) for a in flatten(arguments)[0]
        ):
            return self.function(*arguments, **static)
        leaves, layout = flatten(arguments)
        arrays = [_as_array(leaf) for leaf in leaves]
        types = [_type_of(array, k) for k, array in enumerate(arrays)]
        key = (layout, _hashable(static))
        form = self._find(key, types) or self._add(key, layout, types, static)
        results: list[Any] = form.entry.run(arrays)
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            results = [from_numpy(result) for result in results]
        return form.structure.build(iter(results))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the function itself for a class; what a method would be refuses to be called."""
        if instance is None:
            return self

        def refuse(*arguments: Any, **static: Any) -> Any:
            raise InvalidArgumentError(
                f"frame.jit compiles a function of values, received the method {self.__name__}: "
                "what it reads of its object would be frozen at the first call; write "
                "self.f = frame.jit(function) with a function that takes all it reads"
            )

        return refuse

    def _find(self, key: Key, types: Sequence[TensorType]) -> _Compiled | None:
        return next((form for form in self._forms.get(key, ()) if form.fits(types)), None)

    def _add(
        self, key: Key, layout: Structure, types: Sequence[TensorType], static: dict[str, Any]
    ) -> _Compiled:
        with self._lock:
            found = self._find(key, types)
            if found is not None:
                return found
            known = self._forms.get(key, [])
            if self.compiles:
                _LOG.info("%s is compiled again: %s", self.__name__, _reason(types, known))
            general = _generalised(types, known)
            form = None
            if general is not None:
                form = self._try(layout, general, static)
            form = form or self._compile(layout, types, static)
            self._forms[key] = [*known, form]  # a new list, as other threads read without the lock
            return form

    def _try(
        self, layout: Structure, types: Sequence[TensorType], static: dict[str, Any]
    ) -> _Compiled | None:
        try:
            form = self._compile(layout, types, static)
        except InvalidArgumentError as error:
            _LOG.info("%s can't take a symbolic size: %s", self.__name__, error)
            return None
        shapes = ", ".join(map(str, types))
        _LOG.info("%s was called with a second size and is symbolic now: %s", self.__name__, shapes)
        return form

    def _compile(
        self, layout: Structure, types: Sequence[TensorType], static: dict[str, Any]
    ) -> _Compiled:
        self.compiles += 1
        _LOG.debug("%s is compiled for %s", self.__name__, ", ".join(map(str, types)))

        def build(*values: Value) -> Any:
            return self.function(*layout.build(iter(values)), **static)

        graph, structure = trace_structure(build, list(types), self.__name__)
        owner = backend(self.backend)
        settings = {
            **self.options,
            "target": target_of(owner, self.options.get("target")),
            "tune": tuning_of(owner, self.options.get("tune")),
        }
        declared = Declared(graph, owner.name, **settings)
        entry = make_entry(declared, ParameterStore({}, {}))
        symbolic = any(isinstance(size, Dim) for type_ in types for size in type_.shape)
        return _Compiled(entry, structure, tuple(types), symbolic)


def _reason(types: Sequence[TensorType], known: Sequence[_Compiled]) -> str:
    """Return what the forms that are compiled do not take; of the last one, the first argument."""
    if not known:
        return "its arguments have another structure, or its keyword arguments other values"
    last = known[-1].types
    pairs = enumerate(zip(last, types, strict=True))
    alone = (f"argument {k} is {new}, not {old}" for k, (old, new) in pairs if not _fits(old, new))
    texts = [", ".join(map(str, each)) for each in (types, last)]
    return next(alone, f"its arguments are {texts[0]}, which do not fit {texts[1]} together")


def _hashable(static: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the keyword arguments of a call as a part of a key."""
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            raise InvalidArgumentError(
                f"keyword arguments are constants of the trace and must be hashable; {name!r} is "
                f"a {type(value).__name__}: pass arrays and lists by position"
            ) from None
    return tuple((name, _exact(static[name])) for name in sorted(static))


def _exact(value: Any) -> Any:
    """Return a key that tells apart what Python calls equal: 1, 1.0 and True, or 0.0 and -0.0.

    Each gives another graph. A NaN, which equals nothing, has one key, too.
    """
    if isinstance(value, tuple):
        return type(value), tuple(map(_exact, value))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(_exact, value))
    if isinstance(value, np.generic):
        return type(value), value.dtype, value.tobytes()
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def _generalised(
    types: Sequence[TensorType], known: Sequence[_Compiled]
) -> list[TensorType] | None:
    """Return the types with leading dimensions as a symbol, if only those differ from before."""
    for form in known:
        rows = list(zip(form.types, types, strict=True))
        if not all(_same_but_leading(old, new) for old, new in rows):
            continue
        sizes = {new.shape[0] for old, new in rows if old.shape != new.shape}
        olds = {old.shape[0] for old, new in rows if old.shape != new.shape}
        if len(sizes) == 1 and len(olds) == 1:
            symbol = Dim.symbol(_SYMBOL)
            return [
                TensorType(new.dtype, (symbol, *new.shape[1:])) if old.shape != new.shape else new
                for old, new in rows
            ]
    return None


def _same_but_leading(old: TensorType, new: TensorType) -> bool:
    return (
        old.dtype == new.dtype
        and len(old.shape) == len(new.shape)
        and old.shape[1:] == new.shape[1:]
        and not any(isinstance(size, Dim) for size in old.shape)
    )


def _as_array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    if isinstance(leaf, Tensor):
        return np.asarray(leaf)
    if isinstance(leaf, float):
        return np.asarray(leaf, np.float32)
    return np.asarray(leaf)


def _type_of(array: np.ndarray, position: int) -> TensorType:
    try:
        return TensorType(dtype(array.dtype), array.shape)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"argument {position}: {error}") from None


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function of values; use as `@frame.jit` or `@frame.jit(backend="cpu")`.

    Args:
        function: builds a graph from values; its arguments and result may be nests of tuples,
            lists and dicts.
        options: `backend`, `target`, `passes` as in `frame.compile`.
    """
    if function is None:
        return lambda decorated: Jitted(decorated, **options)
    return Jitted(function, **options)
