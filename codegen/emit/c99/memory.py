"""Loads, stores and addresses of buffers in C."""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.emit.c99.writer import CWriter, literal
from frame.codegen.emit.sharing import contiguous_axis
from frame.codegen.loops.ir import INDEX, Buffer, Expr, Load
from frame.core.errors import InternalError

ZERO, ONE = literal(INDEX.dtype, 0), literal(INDEX.dtype, 1)


def offset(writer: CWriter, buffer: Buffer, indices: Sequence[str]) -> str:
    """Return the element offset of indices; `l` in it is the lane where an index is a vector."""
    memory = writer.memories.get(buffer)
    if memory is None:
        raise InternalError(f"expected a buffer in scope, received {buffer.name}")
    terms = [
        text if stride == ONE else f"{text} * {stride}"
        for index, stride in zip(indices, memory.strides, strict=True)
        if (text := writer.at(index, "l")) != ZERO
    ]
    return " + ".join(terms) or ZERO


def pointer(writer: CWriter, buffer: Buffer, indices: Sequence[str]) -> str:
    """Return the address of an element."""
    base = writer.memories[buffer].pointer
    if not indices or (place := offset(writer, buffer, indices)) == ZERO:
        return base
    scale = "" if buffer.lanes == 1 else f" * {buffer.lanes}"
    return f"{base} + ({place}){scale}"


def element(writer: CWriter, buffer: Buffer, exprs: Sequence[Expr], indices: Sequence[str]) -> str:
    """Return the C expression of the element that lane `l` accesses."""
    place = offset(writer, buffer, indices)
    if buffer.lanes > 1:
        place = f"({place}) * {buffer.lanes} + l"
    elif contiguous_axis(buffer, exprs) is not None:
        place = f"{place} + l"
    return f"{writer.memories[buffer].pointer}[{place}]"


def load(writer: CWriter, expr: Load, operands: Sequence[str]) -> str:
    """Emit a load; where the mask is false nothing is read and the result is zero."""
    rank = len(expr.indices)
    text = element(writer, expr.buffer, expr.indices, operands[:rank])
    if expr.type.dtype.is_bool:
        text = f"(uint8_t)({text} != 0)"
    if len(operands) > rank:
        text = f"{writer.at(operands[rank], 'l')} ? {text} : 0"
    if expr.type.lanes == 1:
        return writer.scalar(expr.type.dtype, text)
    return writer.array(expr.type, text)
