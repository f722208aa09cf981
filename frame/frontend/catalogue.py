"""What a spec of version 1 can name, read from the signatures of what it makes.

Layers and losses are the factories of `frame.nn`, optimizers the closed table of the runtime,
schedules that of `frame.train`. A new factory there is a new kind here, without a line in between:
its parameters become fields by their annotations.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Union, get_args, get_origin

from frame import nn
from frame.core import dtypes
from frame.core.dataclass import dataclass
from frame.core.dtypes import DTYPES, DType
from frame.core.errors import InternalError, InvalidArgumentError
from frame.frontend.document import joined
from frame.frontend.kinds import (
    AnyOf,
    Boolean,
    Choice,
    Field,
    Integer,
    Kind,
    ListOf,
    Named,
    Null,
    Number,
    Tagged,
    Text,
)
from frame.nn.module import Module, Shared

MOST_COUNT = 2**53
"""Integers of options: what every JSON reader keeps exactly."""

# The public names of frame.nn that make initialisers; each takes numbers and texts alone.
INITIALISERS = (
    *("zeros", "ones", "full", "uniform", "normal"),
    *("kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal"),
)

UNNAMED: Mapping[str, str] = {}
"""Factories of frame.nn that a spec can't name, each with the reason; a test wants no other."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Something that a spec names by its kind: what makes it, and its fields."""

    name: str
    make: Callable[..., Any]
    fields: tuple[Field, ...]
    doc: str = ""

    def made(self, values: Mapping[str, Any], path: str) -> Any:
        """Return what the checked fields of an entry declare.

        Raises:
            InvalidArgumentError: the factory refuses them; with the path of the field or entry.
        """
        given = {field.name: values[field.name] for field in self.fields}
        chosen = {key: value for key, value in given.items() if value is not UNSET}
        arguments = {key: built(value, joined(path, key)) for key, value in chosen.items()}
        try:
            return self.make(**arguments)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self._place(str(error), path)}: {error}") from error

    def _place(self, message: str, path: str) -> str:
        """Return the path of the field that a message begins with, or that of the entry."""
        known = {field.name for field in self.fields}
        first = next((word for word in message.replace(",", " ").split()[:6] if word in known), "")
        return joined(path, first) if first else path


class _Unset:
    """An option that a spec leaves out: the factory's own default counts."""

    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


@dataclass(frozen=True, slots=True)
class Nested:
    """A checked entry whose value a maker makes, inside another entry."""

    maker: Maker
    values: Mapping[str, Any]


def built(value: Any, path: str) -> Any:
    """Return a checked value with the nested entries in it made."""
    if isinstance(value, Nested):
        made = value.maker.made(value.values, path)
        name = value.values.get("name")
        return made.named(name) if name else made
    if isinstance(value, tuple):
        return tuple(built(each, f"{path}[{place}]") for place, each in enumerate(value))
    return value


@dataclass(frozen=True, slots=True)
class Entry:
    """An object with a kind that becomes a `Nested`."""

    makers: Callable[[], Mapping[str, Maker]]
    common: tuple[Field, ...] = ()

    def _tagged(self) -> Tagged:
        makers = self.makers()
        docs = {name: maker.doc for name, maker in makers.items()}
        return Tagged({name: maker.fields for name, maker in makers.items()}, self.common, docs)

    def check(self, value: Any, path: str) -> Nested:
        """Return the entry, checked."""
        values = self._tagged().check(value, path)
        return Nested(self.makers()[values["kind"]], values)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""
        return self._tagged().schema()


# --- annotations ----------------------------------------------------------------------------------

_DTYPE = Choice(tuple(name for name, row in DTYPES.items() if not row.storage_only))

NAME = Text(1, 64, "[A-Za-z_][A-Za-z0-9_]*")
_OWN_NAME = Field("name", NAME, "the name in the parent; its position if left out", False, "")


# The tables below need these kinds, which hold entries of the tables: they are looked up late.
def _late_layers() -> Mapping[str, Maker]:
    return layers()


def _late_initialisers() -> Mapping[str, Maker]:
    return initialisers()


INITIALISER_ENTRY = Named("initialiser", lambda: Entry(_late_initialisers))
NESTED_LAYER = Named("module", lambda: Entry(_late_layers, (_OWN_NAME,)))

# annotation -> kind; a type that is not here has no form in JSON.
_KINDS: Mapping[Any, Kind] = {
    bool: Boolean(),
    int: Integer(-MOST_COUNT, MOST_COUNT),
    float: Number(),
    str: Text(0, 256),
    types.NoneType: Null(),
    DType: _DTYPE,
    nn.Initialiser: INITIALISER_ENTRY,
    Module: NESTED_LAYER,
}

_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    types.NoneType: "null",
    DType: "the name of a dtype",
    nn.Initialiser: "an initialiser",
    Module: "a layer",
}

# Python forms of a dtype beside its name, and shared parameters: neither is a value in JSON.
_NO_JSON = (Shared, type)


def kind_of(annotation: Any) -> Kind | None:
    """Return the kind of the values of an annotation; None where JSON has no form for them."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    parts = _parts(annotation)
    if DType in parts:
        return _DTYPE
    found = [(part, kind) for part in parts if (kind := _single(part)) is not None]
    if not any(part is not types.NoneType for part, _ in found):
        return None
    if len(found) == 1:
        return found[0][1]
    # An integer is tried before a float, so that it stays one.
    found.sort(key=lambda pair: pair[0] is float)
    words = " or ".join(_word(part) for part, _ in found)
    return AnyOf(tuple(kind for _, kind in found), words)


def _parts(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for part in get_args(annotation) for inner in _parts(part))
    return (annotation,)


def _single(annotation: Any) -> Kind | None:
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Sequence, list, tuple) and inner:
        item = kind_of(inner[0])
        if item is None:
            return None
        if origin is tuple and Ellipsis not in inner:
            return ListOf(item, len(inner), len(inner))
        return ListOf(item, 1, 1024)
    return None


def _word(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    return f"an array ({_word(get_args(annotation)[0])} each)"


# --- factories ------------------------------------------------------------------------------------


def _maker(name: str, factory: Callable[..., Any]) -> Maker | None:
    """Return the maker of a factory; None where it needs what has no form in JSON."""
    # The annotation of dtypes is a text that names things of its own module.
    hints = typing.get_type_hints(factory, localns=vars(dtypes))
    made = []
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.name == "name" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        required = parameter.default is parameter.empty
        kind = kind_of(hints.get(parameter.name))
        if kind is not None:
            made.append(Field(parameter.name, kind, "", required, UNSET))
        elif required:
            return None
    return Maker(name, factory, tuple(made), _first_line(factory))


def _first_line(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").split("\n", 1)[0]


def _makers(names: Sequence[str]) -> dict[str, Maker]:
    """Return the makers of public names of frame.nn, without those that have no form."""
    found = ((name, _maker(name, getattr(nn, name))) for name in names)
    return {name: maker for name, maker in found if maker is not None}


def factories() -> tuple[str, ...]:
    """Return the names of the factories of frame.nn that make Modules."""
    return tuple(
        name
        for name in sorted(nn.__all__)
        if name[0].isupper() and inspect.isfunction(getattr(nn, name))
    )


def _is_loss(name: str) -> bool:
    return name.endswith("Loss")


@cache
def layers() -> Mapping[str, Maker]:
    """Return the layers by kind: the factories of frame.nn that are no losses."""
    return _makers([name for name in factories() if not _is_loss(name)])


@cache
def losses() -> Mapping[str, Maker]:
    """Return the losses by kind."""
    return _makers([name for name in factories() if _is_loss(name)])


@cache
def initialisers() -> Mapping[str, Maker]:
    """Return the initialisers by kind."""
    return _makers(INITIALISERS)


@cache
def optimizers() -> Mapping[str, Maker]:
    """Return the optimizers by kind: their options, without the learning rate."""
    from frame.runtime.training import OPTIMIZERS

    return {name: _of_record(name, cls) for name, cls in sorted(OPTIMIZERS.items())}


@cache
def schedules() -> Mapping[str, Maker]:
    """Return the learning-rate schedules by kind."""
    from frame.train.schedules import SCHEDULERS

    return {name: _of_record(name, cls, required=("base_lr",)) for name, cls in SCHEDULERS.items()}


def _of_record(name: str, cls: Any, required: Sequence[str] = ()) -> Maker:
    """Return the maker of a dataclass: one field an option."""
    hints = typing.get_type_hints(cls)
    made = []
    for each in fields(cls):
        kind = kind_of(hints[each.name])
        needed = each.name in required or (
            each.default is MISSING and each.default_factory is MISSING
        )
        if kind is not None:
            made.append(Field(each.name, kind, "", needed, UNSET))
        elif needed:
            raise InternalError(f"{name}: its option {each.name} has no form in JSON")
    return Maker(name, cls, tuple(made), _first_line(cls))
