"""What the op table says of a node, asked in one place by parser and verifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError
from frame.ir.graph import ROW_MAJOR, Attribute, Node, OpSchema, TensorType, op_table


def find_schema(op: str) -> OpSchema:
    """Return the schema of an op.

    Raises:
        InvalidArgumentError: there is no such op.
    """
    try:
        return op_table().lookup(op)
    except NotFoundError as error:
        raise InvalidArgumentError(str(error)) from error


def infer(
    schema: OpSchema, operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> tuple[Mapping[str, Attribute], tuple[TensorType, ...]]:
    """Return the normal attributes and the result types that the op gives for its operands.

    Raises:
        InvalidArgumentError: the op refuses them. A type rule that stumbles over absurd attributes
            (a wrong number of entries, say) counts as a refusal: texts come from outside.
    """
    try:
        return schema.check(operands, attributes)
    except FrameError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{schema.name} does not take these operands and attributes: its type rule failed "
            f"with {type(error).__name__}: {error}"
        ) from error


def check_node(node: Node) -> None:
    """Check that a node's attributes are normal and its types are those that its op infers.

    Shape rules never read layouts or devices, so a stated layout may differ from the inferred one
    where the op does not fix it.

    Nodes are immutable: one that was sound stays so as long as its op is the same.

    Raises:
        InvalidArgumentError: they are not; the message does not name the node.
    """
    schema = find_schema(node.op)
    if node.sound is schema:
        return
    types = tuple(operand.type for operand in node.operands)
    normal, inferred = infer(schema, types, node.attributes)
    if dict(normal) != dict(node.attributes):
        raise InvalidArgumentError(_difference(normal, node.attributes))
    check_types(inferred, tuple(result.type for result in node.results))
    node.found(schema)


def check_types(inferred: tuple[TensorType, ...], stated: tuple[TensorType, ...]) -> None:
    """Check that stated result types agree with the inferred ones.

    Raises:
        InvalidArgumentError: they don't; the message names the result and both types.
    """
    if len(inferred) != len(stated):
        raise InvalidArgumentError(
            f"the op gives {len(inferred)} results, the node states {len(stated)}"
        )
    for index, (expected, found) in enumerate(zip(inferred, stated, strict=True)):
        same = (expected.dtype, expected.shape) == (found.dtype, found.shape)
        if not same or expected.layout not in (ROW_MAJOR, found.layout):
            raise InvalidArgumentError(
                f"result {index} must have the type {expected}, the node states {found}"
            )


def _difference(normal: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    for name in sorted(normal.keys() | given.keys()):
        if name not in given:
            return f"the attribute {name!r} is missing"
        if name not in normal:
            return f"the attribute {name!r} is unknown"
        if normal[name] != given[name]:
            return (
                f"the attribute {name!r} must be in its canonical form {normal[name]!r}, "
                f"received {given[name]!r}"
            )
    return "the attributes are not in canonical form"
