"""What a user's function is, as text: its code, constants, defaults, closure and what it calls.

A key that covers a function by its name alone would find results of its old body. Line numbers and
file names do not count, so moving a function changes nothing.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), Enum)
_OWN = ("frame.", "numpy.", "builtins", "math", "collections", "functools", "itertools", "typing")
_DEPTH = 32


class Fingerprint:
    """Collects things that decide a result. `exact` is false once one of them can't be told.

    A thing that can't be told enters by its identity: such a text is good for this process alone,
    and only as long as somebody holds the thing.
    """

    def __init__(self) -> None:
        self.exact = True
        self.held: list[Any] = []
        self._parts: list[str] = []
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def text(self) -> str:
        """Return the digest of everything added so far; empty if that is nothing."""
        joined = "\x1f".join(self._parts)
        return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest() if joined else ""

    def add(self, thing: Any, depth: int = 0) -> None:
        """Add a value, function, class, module or a collection of these."""
        if isinstance(thing, _PLAIN):
            self._parts.append(f"{type(thing).__name__}:{thing!r}")
            return
        if id(thing) in self._seen:
            self._parts.append(f"seen:{self._seen[id(thing)]}")
            return
        self._seen[id(thing)] = len(self._seen)
        self._kept.append(thing)  # an id must not be used again meanwhile
        writer = next((row for kind, row in _WRITERS if isinstance(thing, kind)), None)
        if writer is None or depth > _DEPTH:
            writer = Fingerprint._object if depth <= _DEPTH else Fingerprint._unknown
        writer(self, thing, depth + 1)

    def _all(self, things: Any, depth: int) -> None:
        for thing in things:
            self.add(thing, depth)

    def _sequence(self, thing: Any, depth: int) -> None:
        self._parts.append(f"{type(thing).__name__}[{len(thing)}]")
        self._all(thing, depth)

    def _set(self, thing: Any, depth: int) -> None:
        self._parts.append(f"set[{len(thing)}]")
        self._all(sorted(thing, key=repr), depth)

    def _mapping(self, thing: Mapping[Any, Any], depth: int) -> None:
        self._parts.append(f"mapping[{len(thing)}]")
        for key, value in thing.items():
            self.add(key, depth)
            self.add(value, depth)

    def _array(self, thing: Any, depth: int) -> None:
        if thing.dtype.hasobject:
            self._unknown(thing, depth)
            return
        digest = hashlib.sha256(np.ascontiguousarray(thing).tobytes()).hexdigest()
        self._parts.append(f"array:{thing.dtype.str}{thing.shape}{digest}")

    def _function(self, thing: types.FunctionType, depth: int) -> None:
        own = _is_own(thing.__module__)
        if own:
            self._parts.append(f"own:{thing.__module__}.{thing.__qualname__}")
        if not own or "<" in thing.__qualname__:  # a lambda has no name of its own
            self._code(thing.__code__, depth)
            self._all((thing.__defaults__, thing.__kwdefaults__), depth)
        for cell in thing.__closure__ or ():
            try:
                self.add(cell.cell_contents, depth)
            except ValueError:
                self._parts.append("empty cell")
        if not own:
            self._globals(thing, depth)

    def _globals(self, thing: types.FunctionType, depth: int) -> None:
        for name in sorted(_global_names(thing.__code__)):
            if name in thing.__globals__:
                self._parts.append(name)
                self.add(thing.__globals__[name], depth)

    def _code(self, thing: types.CodeType, depth: int) -> None:
        self._parts.append(f"code:{thing.co_code.hex()}")
        self._all((thing.co_names, thing.co_varnames, thing.co_freevars), depth)
        self._parts.append(f"{thing.co_argcount},{thing.co_kwonlyargcount},{thing.co_flags}")
        for constant in thing.co_consts:
            self.add(constant, depth)

    def _method(self, thing: types.MethodType, depth: int) -> None:
        self._all((thing.__func__, thing.__self__), depth)

    def _partial(self, thing: Any, depth: int) -> None:
        self._all((thing.func, thing.args, dict(thing.keywords)), depth)

    def _builtin(self, thing: Any, depth: int) -> None:
        owner = getattr(thing, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._all((thing.__name__, owner), depth)
        else:
            self._parts.append(f"builtin:{thing.__module__}.{thing.__qualname__}")

    def _named(self, thing: Any, depth: int) -> None:
        self._parts.append(f"named:{thing!r}")

    def _module(self, thing: types.ModuleType, depth: int) -> None:
        # What a function takes from a module is not followed; the module's file is.
        self._parts.append(f"module:{thing.__name__}{getattr(thing, '__version__', '')}")
        path = getattr(thing, "__file__", None)
        if path and not _is_own(thing.__name__) and not hasattr(thing, "__version__"):
            self._file(path, thing, depth)

    def _file(self, path: str, thing: Any, depth: int) -> None:
        try:
            with open(path, "rb") as file:
                self._parts.append(hashlib.sha256(file.read()).hexdigest())
        except OSError:
            self._unknown(thing, depth)

    def _class(self, thing: type, depth: int) -> None:
        self._parts.append(f"class:{thing.__module__}.{thing.__qualname__}")
        if _is_own(thing.__module__):
            return
        self._all(thing.__bases__, depth)
        ignored = _IGNORED
        if is_dataclass(thing):
            ignored = _IGNORED | _GENERATED
            self._all((f.name for f in fields(thing)), depth)
        for name, value in sorted(vars(thing).items()):
            if name not in ignored:
                self._parts.append(name)
                self.add(value, depth)

    def _property(self, thing: Any, depth: int) -> None:
        if isinstance(thing, property):
            self._all((thing.fget, thing.fset, thing.fdel), depth)
        else:
            self.add(thing.__func__, depth)

    def _object(self, thing: Any, depth: int) -> None:
        cls = type(thing)
        if is_dataclass(thing):
            self.add(cls, depth)
            self._all((getattr(thing, f.name) for f in fields(thing)), depth)
        elif cls.__module__ == "frame.ir.graph" and cls.__name__ == "Constant":
            self._parts.append(thing.digest)
        elif cls.__module__ == "frame.core.shapes":
            self._parts.append(str(thing))
        elif cls.__module__ in ("_abc", "types", "builtins"):
            self._parts.append(f"{cls.__qualname__}:{getattr(thing, '__qualname__', '')}")
        elif hasattr(thing, "__dict__") and not _is_own(cls.__module__):
            self.add(cls, depth)
            self._mapping(vars(thing), depth)
        else:
            self._unknown(thing, depth)

    def _unknown(self, thing: Any, depth: int) -> None:
        self.exact = False
        self.held.append(thing)
        self._parts.append(f"identity:{id(thing)}")


_IGNORED = frozenset(
    {
        *("__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__firstlineno__"),
        *("__annotations__", "__annotate__", "__abstractmethods__", "_abc_impl", "__slots__"),
        *("__dataclass_params__", "__dataclass_fields__", "__match_args__", "__parameters__"),
        *("__static_attributes__", "__orig_bases__"),
    }
)
# What dataclass generates follows from the fields and their defaults.
_GENERATED = frozenset(
    {
        *("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"),
        *("__lt__", "__le__", "__gt__", "__ge__", "__getstate__", "__setstate__", "__replace__"),
    }
)
_WRITERS: tuple[tuple[Any, Callable[..., None]], ...] = (
    ((tuple, list), Fingerprint._sequence),
    ((set, frozenset), Fingerprint._set),
    ((dict, types.MappingProxyType), Fingerprint._mapping),
    (np.ndarray, Fingerprint._array),
    (np.generic, Fingerprint._named),
    (np.dtype, Fingerprint._named),
    (np.ufunc, Fingerprint._named),
    (types.FunctionType, Fingerprint._function),
    (types.CodeType, Fingerprint._code),
    (types.MethodType, Fingerprint._method),
    (partial, Fingerprint._partial),
    (types.BuiltinFunctionType, Fingerprint._builtin),
    (types.ModuleType, Fingerprint._module),
    ((property, staticmethod, classmethod), Fingerprint._property),
    (type, Fingerprint._class),
)


def _is_own(module: str | None) -> bool:
    """Whether a module is covered by versions that every key holds."""
    name = module or ""
    return name in ("frame", "numpy") or name.startswith(_OWN)


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
