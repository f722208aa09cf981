"""Statements of the loop IR as C: one row a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frame.codegen.emit.c99.expressions import evaluate, index
from frame.codegen.emit.c99.helpers import c_type
from frame.codegen.emit.c99.memory import ONE, ZERO, element, pointer
from frame.codegen.emit.c99.writer import CWriter, Memory
from frame.codegen.emit.sharing import address_operands, element_count
from frame.codegen.loops import ir
from frame.codegen.loops.ir import Block, Buffer, Expr, LoopKind
from frame.core.errors import InternalError

Row = Callable[[CWriter, Any], None]


def emit_block(writer: CWriter, block: Block) -> None:
    """Emit statements in order."""
    writer.sharing.run(block, lambda statement: STATEMENTS[type(statement)](writer, statement))


def place_buffer(writer: CWriter, buffer: Buffer, address: str) -> None:
    """Record where a buffer is, with its strides."""
    sizes = [
        index(size) if isinstance(size, int) else evaluate(writer, size)
        for size in buffer.strides or buffer.shape
    ]
    writer.memories[buffer] = Memory(address, tuple(sizes if buffer.strides else _row_major(sizes)))


def _row_major(sizes: Sequence[str]) -> list[str]:
    strides = [ONE]
    for size in reversed(sizes[1:]):
        strides.append(size if strides[-1] == ONE else f"({strides[-1]} * {size})")
    return strides[: len(sizes)][::-1]


def _all(writer: CWriter, exprs: Sequence[Expr]) -> list[str]:
    return [evaluate(writer, expr) for expr in exprs]


def _let(writer: CWriter, statement: ir.Let) -> None:
    writer.variables[statement.var] = evaluate(writer, statement.value)


def _store(writer: CWriter, statement: ir.Store) -> None:
    buffer = statement.buffer
    operands = _all(writer, address_operands(buffer, statement.indices))
    value = evaluate(writer, statement.value)
    mask = None if statement.mask is None else evaluate(writer, statement.mask)
    target = element(writer, buffer, statement.indices, operands)
    text = f"{target} = {writer.at(value, 'l')};"
    if mask is not None:
        text = f"if ({writer.at(mask, 'l')}) {text}"
    lanes = statement.value.type.lanes
    writer.line(text if lanes == 1 else f"for (int l = 0; l < {lanes}; ++l) {text}")


def _prefetch(writer: CWriter, statement: ir.Prefetch) -> None:
    address = pointer(writer, statement.buffer, _all(writer, statement.indices))
    writer.line(f"{writer.use('frame_prefetch')}({address});")


def _alloc(writer: CWriter, statement: ir.Alloc) -> None:
    buffer = statement.buffer
    name = writer.name("m")
    count = element_count(buffer) * buffer.lanes
    writer.line(f"{c_type(buffer.dtype)} {name}[{max(count, 1)}];")
    place_buffer(writer, buffer, name)


def _for(writer: CWriter, statement: ir.For) -> None:
    if statement.kind is LoopKind.PARALLEL:
        writer.variables[statement.var] = "chunk"
        emit_block(writer, statement.body)
        return
    if statement.kind is LoopKind.VECTOR:
        raise InternalError("expected no loop of kind vector at emission: vectorise it before")
    extent = evaluate(writer, statement.extent)
    for carried in statement.carried:
        init = evaluate(writer, carried.init)
        name = writer.empty(carried.var.type)
        writer.copy(carried.var.type, name, init)
        writer.variables[carried.var] = writer.variables[carried.result] = name
    var = writer.name("i")
    writer.variables[statement.var] = var
    with writer.block(f"for (int64_t {var} = 0; {var} < {extent}; ++{var})"):
        emit_block(writer, statement.body)
        _advance(writer, statement.carried)
    writer.sharing.statement.clear()


def _advance(writer: CWriter, carried: Sequence[ir.Carried]) -> None:
    """Compute all next values, then assign them: one may be the present value of another."""
    following = []
    for value in carried:
        operand = evaluate(writer, value.next)
        name = writer.empty(value.var.type)
        writer.copy(value.var.type, name, operand)
        following.append(name)
    for value, name in zip(carried, following, strict=True):
        writer.copy(value.var.type, writer.variables[value.var], name)


def _if(writer: CWriter, statement: ir.If) -> None:
    condition = evaluate(writer, statement.condition)
    with writer.block(f"if ({condition})"):
        emit_block(writer, statement.then)
    if statement.otherwise:
        with writer.block("else"):
            emit_block(writer, statement.otherwise)


def _while(writer: CWriter, statement: ir.While) -> None:
    condition = writer.memories[statement.condition].pointer
    with writer.block(f"while ({condition}[0] != 0)"):
        emit_block(writer, statement.body)


def _view(writer: CWriter, view: ir.View) -> str:
    return pointer(writer, view.buffer, _all(writer, view.indices))


def _typed_view(writer: CWriter, view: ir.View, type_: str) -> str:
    """Return an address as a kernel takes it: a workspace is bytes in the entry alone."""
    text = _view(writer, view)
    return text if c_type(view.buffer.dtype) == type_ else f"({type_} *)(void *)({text})"


def _copy(writer: CWriter, statement: ir.Copy) -> None:
    extents = _all(writer, statement.extents)
    names = [writer.name("i") for _ in extents]
    places = []
    for view in (statement.target, statement.source):
        strides = writer.memories[view.buffer].strides
        terms = [f"{name} * {stride}" for name, stride in zip(names, strides, strict=True)]
        places.append(f"({_view(writer, view)})[{' + '.join(terms) or ZERO}]")
    for name, extent in zip(names, extents, strict=True):
        writer.line(f"for (int64_t {name} = 0; {name} < {extent}; ++{name})")
    writer.line(f"    {places[0]} = {places[1]};")


def _call(writer: CWriter, statement: ir.Call) -> None:
    writer.line(f"{_call_text(writer, statement, ZERO)};")


def _call_text(writer: CWriter, statement: ir.Call | ir.Launch, chunk: str) -> str:
    info: Any = writer.kernels[statement.kernel]
    views = zip(statement.buffers, info.types, strict=True)
    arguments = [_typed_view(writer, view, type_) for view, type_ in views]
    arguments += _all(writer, statement.scalars)
    arguments += [chunk, *(["status"] if info.fails else [])]
    return f"{info.symbol}({', '.join(arguments)})"


def _launch(writer: CWriter, statement: ir.Launch) -> None:
    chunks = evaluate(writer, statement.chunks)
    text = _call_text(writer, statement, "chunk")
    writer.line(f"for (int64_t chunk = 0; chunk < {chunks}; ++chunk) {text};")


def _fail(writer: CWriter, statement: ir.Fail) -> None:
    position, value = _all(writer, (statement.position, statement.value))
    name = writer.use("frame_fail")
    writer.line(f"{name}(status, {statement.site}, {position}, {value});")


def _return(writer: CWriter, statement: ir.Return) -> None:
    writer.line("if (status[0] != 0) return 1;")


STATEMENTS: Mapping[type[ir.Stmt], Row] = {
    ir.Let: _let,
    ir.For: _for,
    ir.If: _if,
    ir.While: _while,
    ir.Alloc: _alloc,
    ir.Store: _store,
    ir.Copy: _copy,
    ir.Prefetch: _prefetch,
    ir.Call: _call,
    ir.Fail: _fail,
    ir.Launch: _launch,
    ir.Return: _return,
}
"""One row a statement class."""
