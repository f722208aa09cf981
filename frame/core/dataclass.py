"""`dataclass` as in the standard library, for frozen classes that cost little to declare.

`dataclasses.dataclass` compiles six methods a class, about a millisecond: of some hundred classes
that is a tenth of a second before a process does anything. Here a method is compiled when it is
first looked up, `__init__` when a class turns out to have many objects, and those that need not be
fast are closures. Fields, `replace`, `asdict`, pickles, patterns and inheritance are those of the
standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from frame.core.forks import cached_property

if TYPE_CHECKING:  # a type checker sees the decorator that it knows
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a dataclass of a class: `dataclasses.dataclass`, with the same options.

        Classes that are not frozen, inherit from a dataclass or use options beyond `eq`, `repr`
        and `slots` are left to the standard library.

        Raises:
            TypeError: a field has `kw_only=True`.
        """
        if cls is None:
            return lambda decorated: dataclass(decorated, **options)
        if not _is_plain(cls, options):
            return dataclasses.dataclass(cls, **options)
        return _frozen(cls, **options)


_PLAIN = frozenset({"frozen", "eq", "repr", "slots"})


def _is_plain(cls: type, options: dict[str, bool]) -> bool:
    inherits = any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
    return bool(options.get("frozen")) and options.keys() <= _PLAIN and not inherits


def _frozen(
    cls: type, frozen: bool, eq: bool = True, repr: bool = True, slots: bool = False
) -> Any:
    own = dict(vars(cls))
    # The standard library would write the signature here, and look at every annotation for it.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = _with_fields(cls, slots)
    fields = dataclasses.fields(made)
    if any(field.kw_only for field in fields):
        raise TypeError(f"{cls.__name__} has keyword-only fields: use dataclasses.dataclass")
    methods = _guards(made, frozenset(field.name for field in fields))
    methods["__init__"] = _LateInitialiser(made, "__init__", _initialiser)
    if slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    if repr:
        methods["__repr__"] = _representation(tuple(f.name for f in fields if f.repr))
    if eq:
        methods |= {name: _Late(made, name, write) for name, write in _COMPARISON.items()}
    for name, method in methods.items():
        if own.get(name) is None:  # Python puts None as __hash__ where a class defines __eq__
            setattr(made, name, method)
    made.__dataclass_params__.frozen = frozen
    return made


_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")


def _with_fields(cls: type, slots: bool) -> Any:
    """Let the standard library find the fields of a class, and make its slots.

    It searches the text of each annotation for special forms, which takes half of its time. Where
    there are none it is shown a class in place of each text.
    """
    annotations = vars(cls).get("__annotations__", {})
    texts = dict(annotations)
    if not any(word in str(text) for text in texts.values() for word in _SPECIAL):
        annotations.update(dict.fromkeys(texts, object))
    try:
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    finally:
        annotations.update(texts)
    for field in dataclasses.fields(made):
        field.type = texts.get(field.name, field.type)
    return made


class _Late:
    """A method that is compiled when it is first looked up: by a call, `inspect` or `help`."""

    def __init__(self, cls: type, name: str, write: Callable[[type], Any]) -> None:
        self._class, self._name, self._write = cls, name, write

    def __get__(self, instance: object, owner: type) -> Any:
        method = vars(self._class)[self._name]
        if method is self:
            method = self._write(self._class)
            setattr(self._class, self._name, method)
        return method.__get__(instance, owner)


_INTERPRETED = 24  # objects of a class; making so many without compiled code costs less than that


class _LateInitialiser(_Late):
    """`__init__`, which is compiled for a class that has many objects, or on a wrong call."""

    def __init__(self, cls: type, name: str, write: Callable[[type], Any]) -> None:
        super().__init__(cls, name, write)
        self._left = _INTERPRETED

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None or self._left <= 0:
            return super().__get__(instance, owner)
        self._left -= 1
        return partial(self._set_fields, instance)

    def _set_fields(self, instance: Any, /, *arguments: Any, **named: Any) -> None:
        fields, names, required, finish = self._plan
        values = dict(zip(names, arguments, strict=False)) | named
        once = len(values) == len(arguments) + len(named)
        if not (once and required <= values.keys() and named.keys() <= set(names)):
            super().__get__(instance, self._class)(*arguments, **named)  # says what is wrong
            return
        for name, default, factory in fields:
            if name in values:
                object.__setattr__(instance, name, values[name])
            elif factory is not dataclasses.MISSING:
                object.__setattr__(instance, name, factory())
            elif default is not dataclasses.MISSING:
                object.__setattr__(instance, name, default)
        if finish:
            instance.__post_init__()

    @cached_property
    def _plan(self) -> tuple[list[tuple[str, Any, Any]], list[str], set[str], bool]:
        """The fields with defaults and factories, the parameters, those that must be given, and
        whether something follows."""
        fields = dataclasses.fields(self._class)  # type: ignore[arg-type]
        names = [field.name for field in fields if field.init]
        free = {
            field.name
            for field in fields
            if not (field.default is field.default_factory is dataclasses.MISSING)
        }
        rows = [(field.name, field.default, field.default_factory) for field in fields]
        return rows, names, set(names) - free, hasattr(self._class, "__post_init__")


def _compiled(cls: type, head: str, lines: Sequence[str], names: Mapping[str, Any]) -> Any:
    """Return the method of a class with this head and body, which uses these names."""
    space = {**names, "__name__": cls.__module__}
    exec(f"def {head}:\n " + "\n ".join(lines), space)
    made = space[head.partition("(")[0]]
    made.__qualname__ = f"{cls.__qualname__}.{made.__name__}"
    return made


def _initialiser(cls: Any) -> Callable[..., None]:
    """Return the function that sets the fields of a new object and calls `__post_init__`."""
    fields = dataclasses.fields(cls)
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": _Factory()}
    parameters, lines = ["self"], []
    for field in fields:
        parameter, value, default = _argument(field)
        names[f"_default_{field.name}"] = default
        parameters += [parameter] if field.init else []
        lines += [f"_set(self, {field.name!r}, {value})"] if value else []
    lines += (
        ["self.__post_init__()"] if hasattr(cls, "__post_init__") else [] if lines else ["pass"]
    )
    made: Callable[..., None] = _compiled(cls, f"__init__({', '.join(parameters)})", lines, names)
    taken = {field.name: field.type for field in fields if field.init}
    made.__annotations__ = {**taken, "return": None}
    return made


def _argument(field: dataclasses.Field[Any]) -> tuple[str, str, Any]:
    """Return a field's parameter, the text of its value, and its default or factory."""
    name, default = field.name, f"_default_{field.name}"
    if field.default_factory is not dataclasses.MISSING:
        made = f"{default}()" + (f" if {name} is _absent else {name}" if field.init else "")
        return f"{name}=_absent", made, field.default_factory
    if field.default is not dataclasses.MISSING:
        return f"{name}={default}", name if field.init else default, field.default
    return name, name if field.init else "", None


class _Factory:
    """Stands for an argument that is left to the field's factory."""

    def __repr__(self) -> str:
        return "<factory>"


def _guards(cls: type, names: frozenset[str]) -> dict[str, Any]:
    """Return the methods that keep fields as they are; other attributes are a subclass's own."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _representation(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({told})"

    return recursive_repr()(__repr__)


def _tuple_of(cls: Any, owner: str) -> str:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    return "(" + "".join(f"{owner}.{name}, " for name in names) + ")"


def _equality(cls: type) -> Callable[[Any, object], Any]:
    same = f"return {_tuple_of(cls, 'self')} == {_tuple_of(cls, 'other')}"
    lines = [f"if other.__class__ is self.__class__: {same}", "return NotImplemented"]
    made: Callable[[Any, object], Any] = _compiled(cls, "__eq__(self, other)", lines, {})
    return made


def _hash(cls: type) -> Callable[[Any], int]:
    line = f"return hash({_tuple_of(cls, 'self')})"
    made: Callable[[Any], int] = _compiled(cls, "__hash__(self)", [line], {})
    return made


_COMPARISON: Mapping[str, Callable[[type], Any]] = {"__eq__": _equality, "__hash__": _hash}


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
