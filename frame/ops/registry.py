"""The table of op records, and the one helper that makes nodes."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from frame.core import plugins
from frame.core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from frame.ir.builder import current_builder
from frame.ir.graph import Attribute, Value
from frame.ops.record import OpDef

_NAME = re.compile(r"^[a-z][a-z0-9_]{0,63}$")
_RESERVED = frozenset({"input", "return", "update", "graph"})
_records: dict[str, OpDef] = {}
_built_in: dict[str, OpDef] = {}
_forms: dict[str, Callable[..., Any]] = {}
_deferred: dict[str, str] = {}  # name of an op or form -> the module that brings it

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def register(record: OpDef) -> OpDef:
    """Add an op to the table and return it.

    Raises:
        InvalidArgumentError: when the name is not a lower-case identifier, or is reserved.
        AlreadyExistsError: when the table has an op of that name.
    """
    if not _NAME.match(record.name) or record.name in _RESERVED:
        raise InvalidArgumentError(
            f"an op name must match {_NAME.pattern} and not be one of "
            f"{', '.join(sorted(_RESERVED))}, received {record.name!r}"
        )
    if _arrive(record.name):
        _built_in[record.name] = record
    elif record.name in _records or record.name in _deferred:
        raise AlreadyExistsError(f"an op named {record.name!r} is registered already")
    _records[record.name] = record
    return record


def defer(families: Mapping[str, tuple[str, ...]]) -> None:
    """Note modules whose ops and forms are registered when one of their names is asked for.

    Args:
        families: for each module, the public names that its import brings.
    """
    _deferred.update({name: module for module, names in families.items() for name in names})


def load_deferred(name: str | None = None) -> bool:
    """Import the module that brings `name`, or all of them; tell whether there was one."""
    wanted = list(_deferred.values()) if name is None else [_deferred.get(name)]
    modules = [module for module in dict.fromkeys(wanted) if module is not None]
    for module in modules:
        importlib.import_module(module)
    return bool(modules)


def _arrive(name: str) -> bool:
    """Note that a deferred name is there now; tell whether its own module brought it."""
    module = _deferred.get(name)
    if module is None or module not in sys.modules:
        return False
    del _deferred[name]
    return True


def unregister(name: str) -> None:
    """Remove an op that a user registered; raise NotFoundError if there is none."""
    lookup(name)
    del _records[name]


def lookup(name: str) -> OpDef:
    """Return the record of op `name`; raise NotFoundError with the nearest names.

    The plug-ins of the group `frame.ops` are loaded for the first name that is not known.
    """
    try:
        return _records[name]
    except KeyError:
        if load_deferred(name) and name in _records:
            return _records[name]
        if plugins.load_group(plugins.OPS) and name in _records:
            return _records[name]
        import difflib  # only a misspelt name needs it

        near = difflib.get_close_matches(name, _records, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise NotFoundError(f"there is no op named {name!r}{hint}") from None


def seal_built_in() -> None:
    """Note that every op registered so far is frame's own; `frame.ops` calls this once."""
    _built_in.update(_records)


def foreign_records() -> tuple[OpDef, ...]:
    """Return the records that are not frame's own: registered or replaced by users, plug-ins."""
    return tuple(r for name, r in _records.items() if _built_in.get(name) is not r)


def is_built_in(name: str) -> bool:
    """Tell whether frame has an op of this name of its own."""
    return name in _built_in or name in _deferred


def records() -> Iterator[OpDef]:
    """Iterate over all records in order of registration; this loads every family."""
    load_deferred()
    return iter(loaded_records())


def create_node(
    name: str, operands: tuple[Value, ...], attributes: Mapping[str, Attribute]
) -> tuple[Value, ...]:
    """Append an op to the active builder: normalise attributes, infer types, return the results.

    Raises:
        InvalidArgumentError: when the operands or attributes don't fit the op.
        NotFoundError: when there is no such op.
    """
    record = lookup(name)
    builder = current_builder()
    normal, types = record.check(tuple(operand.type for operand in operands), attributes)
    results = builder.add(name, operands, normal, types)
    if results and results[0].node is not None:
        results[0].node.found(record)
    return results


def apply(name: str, *operands: Any, **attributes: Attribute) -> Any:
    """Apply an op to values (weak Python scalars allowed); return its result or results."""
    from frame.ops.weak import as_operands

    results = create_node(name, as_operands(lookup(name), operands), attributes)
    return results[0] if len(results) == 1 else results


def loaded_records() -> tuple[OpDef, ...]:
    """Return the records of the families that are loaded, in order of registration."""
    return tuple(_records.values())


def known_names() -> frozenset[str]:
    """Return the names of all ops and handwritten builders, loaded or not."""
    return frozenset((*_records, *_forms, *_deferred))


def python_form(function: AnyFunction) -> AnyFunction:
    """Expose a handwritten builder as `frame.ops.<its name>`, in place of a generated one.

    A trailing underscore of the name is dropped (`slice_` becomes `frame.ops.slice`).
    """
    name = function.__name__.rstrip("_")
    _arrive(name)
    _forms[name] = function
    return function


def python_forms() -> Mapping[str, Callable[..., Any]]:
    """Return the handwritten builders by name, of the families that are loaded."""
    return MappingProxyType(_forms)
