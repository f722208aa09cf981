"""Building a graph from a Python function: `frame.trace`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role, Value
from frame.ops.registry import lookup
from frame.ops.weak import as_operands
from frame.runtime.specs import as_spec


@dataclass(frozen=True, slots=True)
class Structure:
    """The nest of tuples, lists and dicts that a function returned; leaves are output positions."""

    kind: type | None
    items: tuple[Structure, ...] = ()
    keys: tuple[str, ...] = ()

    def build(self, leaves: Iterator[Any]) -> Any:
        """Return the nest with its leaves taken from an iterator, in order."""
        if self.kind is None:
            return next(leaves)
        children = [item.build(leaves) for item in self.items]
        if self.kind is dict:
            return dict(zip(self.keys, children, strict=True))
        return self.kind(children)


LEAF = Structure(None)


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a nest of tuples, lists and dicts, and its structure."""
    if isinstance(value, dict):
        keys = tuple(value)
        parts = [flatten(value[key]) for key in keys]
        structure = Structure(dict, tuple(part[1] for part in parts), keys)
    elif isinstance(value, (tuple, list)):
        parts = [flatten(item) for item in value]
        structure = Structure(type(value), tuple(part[1] for part in parts))
    else:
        return [value], LEAF
    return [leaf for part in parts for leaf in part[0]], structure


def trace(function: Callable[..., Any], *specs: Any, name: str = "") -> Graph:
    """Return the graph that a function builds from values of the given specs.

    Args:
        function: takes one value a spec; its result is a value or a nest of tuples, lists and
            dicts of values and Python scalars.
        specs: `frame.spec(...)`, arrays, or shapes.
        name: the name of the graph; the function's by default.

    Raises:
        InvalidArgumentError: the function takes other arguments, or returns something else.
    """
    return trace_structure(function, specs, name)[0]


def trace_structure(
    function: Callable[..., Any], specs: Sequence[Any], name: str = ""
) -> tuple[Graph, Structure]:
    """Return the graph of a function and the structure of its result."""
    names = _argument_names(function, len(specs))
    with GraphBuilder(name or getattr(function, "__name__", "graph").strip("<>")) as builder:
        values = [
            builder.input(as_spec(spec), Role.INPUT, argument)
            for argument, spec in zip(names, specs, strict=True)
        ]
        leaves, structure = flatten(function(*values))
        for leaf in leaves:
            builder.output(as_value(leaf))
        return builder.finish(), structure


def as_value(leaf: Any) -> Value:
    """Return a leaf of the result of a traced function as a value; scalars become constants.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(leaf, Value):
        return leaf
    try:
        if leaf is None:
            raise InvalidArgumentError("a function without a return statement")
        return as_operands(lookup("stop_gradient"), (leaf,))[0]
    except InvalidArgumentError:
        raise InvalidArgumentError(
            "a traced function must return values of the graph (or a nest of tuples, lists and "
            f"dicts of them), received {type(leaf).__name__}"
        ) from None


def arguments(function: Callable[..., Any], specs: Mapping[str, Any]) -> list[Any]:
    """Return specs that are given by name in the order of the function's arguments.

    Raises:
        InvalidArgumentError: a name is not that of an argument.
    """
    names = _argument_names(function, len(specs))
    if unknown := [name for name in specs if name not in names]:
        raise InvalidArgumentError(
            f"{getattr(function, '__name__', function)!r} takes the arguments {', '.join(names)}, "
            f"received a spec for {unknown[0]!r}"
        )
    return [specs[name] for name in names]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return one name an argument, from the signature where it has one."""
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return [f"arg{position}" for position in range(count)]
    names: list[str] = []
    required = 0
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{k}" for k in range(count - len(names))]
        elif parameter.kind in _POSITIONAL:
            names.append(parameter.name)
            required += parameter.default is inspect.Parameter.empty
    if not required <= count <= len(names):
        takes = f"{required} to {len(names)}" if required < len(names) else f"{required}"
        raise InvalidArgumentError(
            f"{getattr(function, '__name__', function)!r} takes {takes} arguments "
            f"({', '.join(names)}), received {count} specs"
        )
    return names[:count]
