"""Loads, stores and addresses of buffers."""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.emit.llvm.writer import (
    FunctionWriter,
    Memory,
    add,
    llvm_type,
    mangled,
    memory_type,
    multiply,
    vector,
)
from frame.codegen.emit.sharing import contiguous_axis
from frame.codegen.loops.ir import Buffer, Expr, Load, Type
from frame.core.dtypes import int64
from frame.core.errors import InternalError

_STREAMED = 16  # the alignment that stores past the caches need at least, in bytes


def memory_of(writer: FunctionWriter, buffer: Buffer) -> Memory:
    """Return where a buffer is in this function."""
    try:
        return writer.memories[buffer]
    except KeyError:
        message = f"expected a buffer in scope, received {buffer.name}"
        raise InternalError(message) from None


def row_major(writer: FunctionWriter, sizes: Sequence[str]) -> tuple[str, ...]:
    """Return the strides of a row-major buffer whose extents are the operands `sizes`."""
    strides = ["1"]
    for size in reversed(sizes[1:]):
        strides.append(multiply(writer, strides[-1], size))
    return tuple(reversed(strides[: len(sizes)]))


def element_type(buffer: Buffer) -> str:
    """Return the LLVM type of one element in memory."""
    return vector(memory_type(buffer.dtype), buffer.lanes)


def _scalar_address(
    writer: FunctionWriter, buffer: Buffer, indices: Sequence[str], masked: bool
) -> str:
    """The address of an element; behind a mask it may be out of bounds, so it isn't poison."""
    memory, flags = memory_of(writer, buffer), "" if masked else " nsw"
    offset = "0"
    for index, stride in zip(indices, memory.strides, strict=True):
        offset = add(writer, offset, multiply(writer, index, stride, flags), flags)
    if offset == "0":
        return memory.pointer
    inbounds = "" if masked else " inbounds"
    element = element_type(buffer)
    return writer.value(f"getelementptr{inbounds} {element}, ptr {memory.pointer}, i64 {offset}")


def pointer(writer: FunctionWriter, buffer: Buffer, indices: Sequence[str]) -> str:
    """Return the address of an element that need not exist (the start of an empty view)."""
    return _scalar_address(writer, buffer, indices, masked=True)


def _vector_address(
    writer: FunctionWriter, buffer: Buffer, indices: Sequence[tuple[Type, str]], lanes: int
) -> str:
    """The addresses of a gather or scatter."""
    memory, text = memory_of(writer, buffer), llvm_type(Type(int64, lanes))
    offset = ""
    scalars = "0"
    for (type_, index), stride in zip(indices, memory.strides, strict=True):
        if type_.lanes == 1:
            scalars = add(writer, scalars, multiply(writer, index, stride, ""), "")
            continue
        if stride != "1":
            index = writer.value(f"mul {text} {index}, {_splat(writer, stride, lanes)}")
        offset = writer.value(f"add {text} {offset}, {index}") if offset else index
    element = memory_type(buffer.dtype)
    base = memory.pointer
    if scalars != "0":
        base = writer.value(f"getelementptr {element}, ptr {base}, i64 {scalars}")
    return writer.value(f"getelementptr {element}, ptr {base}, {text} {offset}")


def _splat(writer: FunctionWriter, operand: str, lanes: int) -> str:
    if not operand.startswith("%"):
        return f"splat (i64 {operand})"
    text = llvm_type(Type(int64, lanes))
    single = writer.value(f"insertelement {text} poison, i64 {operand}, i32 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return writer.value(f"shufflevector {text} {single}, {text} poison, {zeros}")


def _from_memory(writer: FunctionWriter, type_: Type, operand: str) -> str:
    if not type_.dtype.is_bool:
        return operand
    return writer.value(f"icmp ne {vector('i8', type_.lanes)} {operand}, zeroinitializer")


def _to_memory(writer: FunctionWriter, type_: Type, operand: str) -> str:
    if not type_.dtype.is_bool:
        return operand
    return writer.value(f"zext {llvm_type(type_)} {operand} to {vector('i8', type_.lanes)}")


def load(writer: FunctionWriter, expr: Load, operands: Sequence[str]) -> str:
    """Emit a load; the operands are those of `sharing.operands_of`."""
    buffer, lanes = expr.buffer, expr.type.lanes
    indices, mask = operands[: len(expr.indices)], operands[len(expr.indices) :]
    text = vector(memory_type(buffer.dtype), lanes)
    if lanes == buffer.lanes or contiguous_axis(buffer, expr.indices) is not None:
        raw = _plain_load(writer, buffer, indices, text, mask)
    else:
        types = [index.type for index in expr.indices]
        pointers = _vector_address(writer, buffer, list(zip(types, indices, strict=True)), lanes)
        raw = _gather(writer, buffer, pointers, lanes, mask)
    return _from_memory(writer, expr.type, raw)


def _plain_load(
    writer: FunctionWriter, buffer: Buffer, indices: Sequence[str], text: str, mask: Sequence[str]
) -> str:
    address = _scalar_address(writer, buffer, indices, bool(mask))
    plain = f"load {text}, ptr {address}, align {buffer.dtype.itemsize}"
    if not mask:
        return writer.value(plain)
    if not text.startswith("<"):
        return _guarded_load(writer, plain, text, mask[0])
    lanes = text[1:].split(" ")[0]
    arguments = [
        ("ptr", address),
        ("i32", str(buffer.dtype.itemsize)),
        (f"<{lanes} x i1>", mask[0]),
        (text, "zeroinitializer"),
    ]
    return writer.call(text, f"llvm.masked.load.{mangled(text)}.p0", arguments)


def _guarded_load(writer: FunctionWriter, plain: str, text: str, mask: str) -> str:
    before, inside, after = writer.label, writer.new_label("read"), writer.new_label("after")
    writer.branch_if(mask, inside, after)
    writer.open_block(inside)
    found = writer.value(plain)
    writer.branch(after)
    writer.open_block(after)
    zero = "0.0" if text in ("float", "double") else "0"
    return writer.value(f"phi {text} [ {found}, %{inside} ], [ {zero}, %{before} ]")


def _gather(
    writer: FunctionWriter, buffer: Buffer, pointers: str, lanes: int, mask: Sequence[str]
) -> str:
    text = vector(memory_type(buffer.dtype), lanes)
    arguments = [
        (f"<{lanes} x ptr>", pointers),
        ("i32", str(buffer.dtype.itemsize)),
        (f"<{lanes} x i1>", mask[0] if mask else "splat (i1 true)"),
        (text, "zeroinitializer"),
    ]
    name = f"llvm.masked.gather.{mangled(text)}.v{lanes}p0"
    return writer.call(text, name, arguments)


def store(
    writer: FunctionWriter,
    buffer: Buffer,
    indices: Sequence[tuple[Expr, str]],
    value: tuple[Type, str],
    mask: str | None,
    streamed: bool = False,
) -> None:
    """Emit a store. `indices` pair each index expression with its operand (`address_operands`)."""
    type_, lanes = value[0], value[0].lanes
    raw = _to_memory(writer, type_, value[1])
    exprs = [expr for expr, _ in indices]
    texts = [text for _, text in indices]
    if lanes == buffer.lanes or contiguous_axis(buffer, exprs) is not None:
        found = (vector(memory_type(type_.dtype), lanes), raw)
        if streamed and mask is None and lanes * type_.dtype.itemsize % _STREAMED == 0:
            _streamed_store(writer, buffer, texts, found)
        else:
            _plain_store(writer, buffer, texts, found, mask)
        return
    pairs = [(expr.type, text) for expr, text in indices]
    pointers = _vector_address(writer, buffer, pairs, lanes)
    text = vector(memory_type(type_.dtype), lanes)
    arguments = [
        (text, raw),
        (f"<{lanes} x ptr>", pointers),
        ("i32", str(buffer.dtype.itemsize)),
        (f"<{lanes} x i1>", mask or "splat (i1 true)"),
    ]
    writer.call("void", f"llvm.masked.scatter.{mangled(text)}.v{lanes}p0", arguments)


def _plain_store(
    writer: FunctionWriter,
    buffer: Buffer,
    indices: Sequence[str],
    value: tuple[str, str],
    mask: str | None,
) -> None:
    address = _scalar_address(writer, buffer, indices, mask is not None)
    text, raw = value
    plain = f"store {text} {raw}, ptr {address}, align {buffer.dtype.itemsize}"
    if mask is None:
        writer.line(plain)
    elif not text.startswith("<"):
        _guarded_store(writer, plain, mask)
    else:
        arguments = [
            (text, raw),
            ("ptr", address),
            ("i32", str(buffer.dtype.itemsize)),
            (f"<{text[1:].split(' ')[0]} x i1>", mask),
        ]
        writer.call("void", f"llvm.masked.store.{mangled(text)}.p0", arguments)


def _streamed_store(
    writer: FunctionWriter, buffer: Buffer, indices: Sequence[str], value: tuple[str, str]
) -> None:
    """Write past the caches where the address allows it, which memory from malloc always does."""
    address = _scalar_address(writer, buffer, indices, False)
    text, raw = value
    number = writer.value(f"ptrtoint ptr {address} to i64")
    low = writer.value(f"and i64 {number}, {_STREAMED - 1}")
    aligned, plain, after = map(writer.new_label, ("stream", "store", "after"))
    writer.branch_if(writer.value(f"icmp eq i64 {low}, 0"), aligned, plain)
    writer.open_block(aligned)
    writer.line(f"store {text} {raw}, ptr {address}, align {_STREAMED}, !nontemporal !2")
    writer.branch(after)
    writer.open_block(plain)
    writer.line(f"store {text} {raw}, ptr {address}, align {buffer.dtype.itemsize}")
    writer.branch(after)
    writer.open_block(after)


def _guarded_store(writer: FunctionWriter, plain: str, mask: str) -> None:
    inside, after = writer.new_label("write"), writer.new_label("after")
    writer.branch_if(mask, inside, after)
    writer.open_block(inside)
    writer.line(plain)
    writer.branch(after)
    writer.open_block(after)
