"""The functions of `frame.ops`: one a record, generated from its schema."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any

from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Attribute, Value
from frame.ops import registry
from frame.ops.record import AttributeSpec, OpDef, Operand


def names() -> tuple[str, ...]:
    """Return the names of all public builders, sorted.

    An op whose name is a Python keyword (`while`) has its handwritten form only.
    """
    return tuple(sorted(n for n in registry.known_names() if not keyword.iskeyword(n)))


def function(name: str) -> Callable[..., Any]:
    """Return the public builder of a name: the handwritten form where there is one.

    Raises:
        NotFoundError: there is no such op.
    """
    registry.load_deferred(name)
    form = registry.python_forms().get(name)
    if form is None:
        return builder(registry.lookup(name))
    if not form.__doc__ and registry.is_built_in(name):
        form.__doc__ = docstring(registry.lookup(name))
    return form


def builder(record: OpDef) -> Callable[..., Any]:
    """Return the function that appends a node of this op to the active builder.

    It takes the operands by position or name, then the attributes by position or name.
    """

    def function(*positional: Any, **named: Any) -> Any:
        operands, attributes = _bind(record, positional, named)
        return registry.apply(record.name, *operands, **attributes)

    function.__name__ = function.__qualname__ = record.name
    function.__module__ = "frame.ops"
    function.__doc__ = docstring(record)
    function.__signature__ = signature(record)  # type: ignore[attr-defined]
    return function


def _bind(
    record: OpDef, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Attribute]]:
    if record.operands and record.operands[0].variadic:
        operands, rest = _variadic(positional)
    else:
        count = len(positional) if _open_ended(record) else len(record.operands)
        operands, rest = list(positional[:count]), positional[count:]
    if len(rest) > len(record.attributes):
        raise InvalidArgumentError(
            f"{record.name}{signature(record)} received {len(positional)} positional arguments"
        )
    attributes = dict(zip((spec.name for spec in record.attributes), rest, strict=False))
    for name, value in named.items():
        if name in attributes:
            raise InvalidArgumentError(f"{record.name} received the attribute {name!r} twice")
        if not _place(record, operands, name, value):
            attributes[name] = value
    return operands, attributes


def _open_ended(record: OpDef) -> bool:
    return bool(record.operands) and record.operands[-1].variadic


def _variadic(positional: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    if positional and isinstance(positional[0], (list, tuple)):
        return list(positional[0]), positional[1:]
    return list(positional), ()


def _place(record: OpDef, operands: list[Any], name: str, value: Any) -> bool:
    """Put an operand that was given by name into its place; False if `name` is no operand."""
    for position, operand in enumerate(record.operands):
        if operand.name != name or operand.variadic:
            continue
        if position < len(operands) and operands[position] is not None:
            raise InvalidArgumentError(f"{record.name} received the operand {name!r} twice")
        operands.extend([None] * (position + 1 - len(operands)))
        operands[position] = value
        return True
    return False


# attribute kind -> the annotation that its parameter has
ANNOTATIONS: Mapping[str, str] = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "dtype": "DTypeLike",
    "size": "Size",
    "ints": "int | Sequence[int]",
    "floats": "float | Sequence[float]",
    "shape": "Size | Sequence[Size]",
    "graph": "Graph",
    "constant": "Constant | np.ndarray",
}


def signature(record: OpDef) -> inspect.Signature:
    """Return the signature of the function of a record."""
    parameters = [_operand_parameter(operand) for operand in record.operands]
    ordered = tuple(sorted(record.attributes, key=lambda spec: not spec.required))
    optional = any(operand.optional or operand.variadic for operand in record.operands)
    by_name = optional or ordered != record.attributes
    kind = inspect.Parameter.KEYWORD_ONLY if by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.extend(_attribute_parameter(spec, kind) for spec in ordered)
    results = "Value" if len(record.results) == 1 else "tuple[Value, ...]"
    return inspect.Signature(parameters, return_annotation=results)


def _operand_parameter(operand: Operand) -> inspect.Parameter:
    if operand.variadic:
        star = inspect.Parameter.VAR_POSITIONAL
        annotation = "Operand | Sequence[Operand]"
        return inspect.Parameter(operand.name, star, annotation=annotation)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if operand.optional:
        return inspect.Parameter(operand.name, kind, default=None, annotation="Operand | None")
    return inspect.Parameter(operand.name, kind, annotation="Operand")


def _attribute_parameter(spec: AttributeSpec, kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if spec.required else spec.default
    annotation = ANNOTATIONS[spec.kind] + (" | None" if default is None else "")
    return inspect.Parameter(spec.name, kind, default=default, annotation=annotation)


def docstring(record: OpDef) -> str:
    """Return the docstring of the function of a record: its text, operands and attributes."""
    lines = [record.doc.strip(), ""]
    entries = [*map(_operand_line, record.operands), *map(_attribute_line, record.attributes)]
    if entries:
        lines += ["Args:", *entries, ""]
    lines += ["Raises:", "    InvalidArgumentError: an operand or attribute does not fit."]
    return "\n".join(lines)


def _operand_line(operand: Operand) -> str:
    marks = " (optional)" if operand.optional else " (any number)" if operand.variadic else ""
    text = operand.doc or "a tensor"
    return f"    {operand.name}{marks}: {text} of kind {' or '.join(operand.kinds)}."


def _attribute_line(spec: AttributeSpec) -> str:
    choices = f" One of {', '.join(spec.choices)}." if spec.choices else ""
    return f"    {spec.name}: {spec.doc or spec.kind}.{choices}"


class Table:
    """The op table that the IR uses: schemas, and the Python operators of Value."""

    def lookup(self, name: str) -> OpDef:
        """Return the record of op `name`."""
        return registry.lookup(name)

    def operator(self, name: str, *operands: Any) -> Value:
        """Apply a Python operator to values and weak scalars."""
        form = registry.python_forms().get(name)
        if form is not None:
            return form(*operands)
        return registry.apply(name, *operands)
