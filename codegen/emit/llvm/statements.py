"""Statements of the loop IR as LLVM blocks: one row a class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from frame.codegen.emit.llvm.expressions import evaluate
from frame.codegen.emit.llvm.memory import (
    element_type,
    memory_of,
    pointer,
    row_major,
    store,
)
from frame.codegen.emit.llvm.writer import (
    FunctionWriter,
    Memory,
    add,
    as_integer,
    llvm_type,
    memory_type,
    multiply,
    stack_slot,
    vector,
)
from frame.codegen.emit.sharing import address_operands
from frame.codegen.loops import ir
from frame.codegen.loops.ir import Block, Buffer, Expr, LoopKind
from frame.core.errors import InternalError

Row = Callable[[FunctionWriter, Any], None]


def emit_block(writer: FunctionWriter, block: Block) -> None:
    """Emit statements in order."""
    writer.sharing.run(block, lambda statement: STATEMENTS[type(statement)](writer, statement))


def place_buffer(writer: FunctionWriter, buffer: Buffer, address: str) -> None:
    """Record where a buffer is, with its strides (computed at the start of the function)."""
    with writer.in_prologue():
        sizes = buffer.strides or buffer.shape
        operands = tuple(str(x) if isinstance(x, int) else evaluate(writer, x) for x in sizes)
        strides = operands if buffer.strides else row_major(writer, operands)
    writer.memories[buffer] = Memory(address, strides)


def evaluate_all(writer: FunctionWriter, exprs: Sequence[Expr]) -> list[str]:
    """Emit several expressions and return their operands."""
    return [evaluate(writer, expr) for expr in exprs]


def view_pointer(writer: FunctionWriter, view: ir.View) -> str:
    """Emit the address of the first element of a view."""
    if not view.indices:
        return memory_of(writer, view.buffer).pointer
    return pointer(writer, view.buffer, evaluate_all(writer, view.indices))


def _let(writer: FunctionWriter, statement: ir.Let) -> None:
    writer.variables[statement.var] = evaluate(writer, statement.value)


def _store(writer: FunctionWriter, statement: ir.Store) -> None:
    operands = evaluate_all(writer, address_operands(statement.buffer, statement.indices))
    value = evaluate(writer, statement.value)
    mask = None if statement.mask is None else evaluate(writer, statement.mask)
    indices = list(zip(statement.indices, operands, strict=True))
    typed = (statement.value.type, value)
    store(writer, statement.buffer, indices, typed, mask, statement.streamed)


def _prefetch(writer: FunctionWriter, statement: ir.Prefetch) -> None:
    address = pointer(writer, statement.buffer, evaluate_all(writer, statement.indices))
    # Data, to be read, kept in the second-level cache: the first one has no room to spare.
    hint = (("ptr", address), ("i32", "0"), ("i32", "2"), ("i32", "1"))
    writer.call("void", "llvm.prefetch.p0", hint)


def _alloc(writer: FunctionWriter, statement: ir.Alloc) -> None:
    place_buffer(writer, statement.buffer, stack_slot(writer, statement.buffer))


def _for(writer: FunctionWriter, statement: ir.For) -> None:
    if statement.kind is LoopKind.PARALLEL:
        writer.variables[statement.var] = "%chunk"
        emit_block(writer, statement.body)
    elif statement.kind is LoopKind.VECTOR:
        raise InternalError("expected no loop of kind vector at emission: vectorise it before")
    else:
        _serial_loop(writer, statement)


UNROLL = "!llvm.loop !0"  # the module defines !0: unroll fully


def _serial_loop(writer: FunctionWriter, statement: ir.For) -> None:
    extent = evaluate(writer, statement.extent)
    inits = evaluate_all(writer, [carried.init for carried in statement.carried])
    hint = f", {UNROLL}" if statement.kind is LoopKind.UNROLL else ""
    with counted_loop(writer, extent, inits, statement, hint) as (index, phis):
        writer.variables[statement.var] = index
        emit_block(writer, statement.body)
        nexts = evaluate_all(writer, [carried.next for carried in statement.carried])
        phis.extend(nexts)
    for carried in statement.carried:
        writer.variables[carried.result] = writer.variables[carried.var]


@contextmanager
def counted_loop(
    writer: FunctionWriter,
    extent: str,
    inits: Sequence[str] = (),
    statement: ir.For | None = None,
    hint: str = "",
) -> Iterator[tuple[str, list[str]]]:
    """A loop from 0 to the operand `extent`. Yields the index and a list for the next operands of
    the carried values; the lines of the phis are completed when the body is there."""
    before, head, body, done = (writer.label, *map(writer.new_label, ("loop", "body", "done")))
    writer.branch(head)
    writer.open_block(head)
    index = f"%i{writer.new_label('')}"
    place = len(writer.body)
    carried = () if statement is None else statement.carried
    names = [f"%c{writer.new_label('')}" for _ in carried]
    writer.variables.update({c.var: name for c, name in zip(carried, names, strict=True)})
    writer.branch_if(writer.value(f"icmp slt i64 {index}, {extent}"), body, done)
    writer.open_block(body)
    nexts: list[str] = []
    with writer.sharing.scope():
        yield index, nexts
    step = writer.value(f"add nuw nsw i64 {index}, 1")
    latch = writer.label
    writer.line(f"br label %{head}{hint}")
    phis = [f"  {index} = phi i64 [ 0, %{before} ], [ {step}, %{latch} ]"]
    for value, name, init, following in zip(carried, names, inits, nexts, strict=True):
        text = llvm_type(value.var.type)
        phis.append(f"  {name} = phi {text} [ {init}, %{before} ], [ {following}, %{latch} ]")
    writer.body[place:place] = phis
    writer.open_block(done)
    writer.sharing.statement.clear()


def _if(writer: FunctionWriter, statement: ir.If) -> None:
    condition = evaluate(writer, statement.condition)
    then, otherwise, done = map(writer.new_label, ("then", "else", "end"))
    writer.branch_if(condition, then, otherwise if statement.otherwise else done)
    for label, block in ((then, statement.then), (otherwise, statement.otherwise)):
        if label == otherwise and not block:
            continue
        writer.open_block(label)
        with writer.sharing.scope():
            emit_block(writer, block)
        writer.branch(done)
    writer.open_block(done)


def _while(writer: FunctionWriter, statement: ir.While) -> None:
    head, body, done = map(writer.new_label, ("while", "body", "done"))
    writer.branch(head)
    writer.open_block(head)
    address = memory_of(writer, statement.condition).pointer
    byte = writer.value(f"load i8, ptr {address}, align 1")
    writer.branch_if(writer.value(f"icmp ne i8 {byte}, 0"), body, done)
    writer.open_block(body)
    with writer.sharing.scope():
        emit_block(writer, statement.body)
    writer.branch(head)
    writer.open_block(done)


def _copy(writer: FunctionWriter, statement: ir.Copy) -> None:
    extents = evaluate_all(writer, statement.extents)
    target = view_pointer(writer, statement.target), statement.target.buffer
    source = view_pointer(writer, statement.source), statement.source.buffer
    _copy_nest(writer, extents, target, source)


def _copy_nest(
    writer: FunctionWriter,
    extents: Sequence[str],
    target: tuple[str, Buffer],
    source: tuple[str, Buffer],
) -> None:
    """A loop a dimension; the innermost moves whole vectors where both sides are contiguous."""
    axis = len(target[1].shape) - len(extents)
    if not extents:
        _move(writer, target, source, element_type(target[1]))
        return
    strides = [memory_of(writer, side[1]).strides[axis] for side in (target, source)]
    done = "0"
    lanes = writer.target.vector_bits // (target[1].dtype.itemsize * 8)
    if len(extents) == 1 and strides == ["1", "1"] and lanes > 1:
        done = _copy_vectors(writer, extents[0], target, source, lanes)
    left = add(writer, extents[0], multiply(writer, done, "-1"))
    with counted_loop(writer, left) as (index, _):
        position = add(writer, index, done)
        inner = [
            (_advance(writer, side, multiply(writer, position, stride)), side[1])
            for side, stride in zip((target, source), strides, strict=True)
        ]
        _copy_nest(writer, extents[1:], inner[0], inner[1])


def _copy_vectors(
    writer: FunctionWriter,
    extent: str,
    target: tuple[str, Buffer],
    source: tuple[str, Buffer],
    lanes: int,
) -> str:
    """Copy whole vectors along a contiguous dimension; return how many elements were copied."""
    size = as_integer(extent)
    count = (
        str(max(size, 0) // lanes)
        if size is not None
        else writer.value(f"sdiv i64 {extent}, {lanes}")
    )
    text = vector(memory_type(target[1].dtype), lanes)
    with counted_loop(writer, count) as (index, _):
        offset = multiply(writer, index, str(lanes))
        sides = [(_advance(writer, side, offset), side[1]) for side in (target, source)]
        _move(writer, sides[0], sides[1], text)
    return multiply(writer, count, str(lanes))


def _advance(writer: FunctionWriter, side: tuple[str, Buffer], offset: str) -> str:
    if offset == "0":
        return side[0]
    return writer.value(f"getelementptr {element_type(side[1])}, ptr {side[0]}, i64 {offset}")


def _move(
    writer: FunctionWriter, target: tuple[str, Buffer], source: tuple[str, Buffer], text: str
) -> None:
    align = target[1].dtype.itemsize
    found = writer.value(f"load {text}, ptr {source[0]}, align {align}")
    writer.line(f"store {text} {found}, ptr {target[0]}, align {align}")


def _call(writer: FunctionWriter, statement: ir.Call) -> None:
    info: Any = writer.kernels[statement.kernel]
    buffers = [f"ptr {view_pointer(writer, view)}" for view in statement.buffers]
    scalars = [f"i64 {operand}" for operand in evaluate_all(writer, statement.scalars)]
    words = [f"ptr {writer.fail}", f"ptr {writer.status}"] if info.fails else []
    arguments = ", ".join((*buffers, *scalars, "i64 0", *words))
    writer.line(f"call void @{info.body}({arguments})")


def _fail(writer: FunctionWriter, statement: ir.Fail) -> None:
    position, value = evaluate_all(writer, (statement.position, statement.value))
    words = f"ptr {writer.status}, i64 {statement.site}, i64 {position}, i64 {value}"
    writer.line(f"call void {writer.fail}({words})")


def _launch(writer: FunctionWriter, statement: ir.Launch) -> None:
    info: Any = writer.kernels[statement.kernel]
    words = [("ptr", view_pointer(writer, view)) for view in statement.buffers]
    words += [("i64", operand) for operand in evaluate_all(writer, statement.scalars)]
    if info.fails:
        words += [("ptr", writer.fail), ("ptr", writer.status)]
    chunks = evaluate(writer, statement.chunks)
    for position, (type_, word) in enumerate(words):
        slot = _word(writer, "%args", position)
        writer.line(f"store {type_} {word}, ptr {slot}, align 8")
    started = writer.value("call i64 %clock()") if writer.profile else ""
    writer.line(f"call void %launch(ptr %pool, ptr @{info.thunk}, ptr %args, i64 {chunks})")
    if started:
        _record_time(writer, statement, started)


def _word(writer: FunctionWriter, base: str, position: int) -> str:
    return writer.value(f"getelementptr inbounds i64, ptr {base}, i64 {position}")


def _record_time(writer: FunctionWriter, statement: ir.Launch, started: str) -> None:
    """Add to the two words of this launch: nanoseconds, runs."""
    ended = writer.value("call i64 %clock()")
    elapsed = writer.value(f"sub i64 {ended}, {started}")
    site = writer.launches[statement]
    for position, amount in ((2 * site, elapsed), (2 * site + 1, "1")):
        slot = _word(writer, "%profile", position)
        so_far = writer.value(f"load i64, ptr {slot}, align 8")
        total = writer.value(f"add i64 {so_far}, {amount}")
        writer.line(f"store i64 {total}, ptr {slot}, align 8")


def bad_status(writer: FunctionWriter) -> str:
    """Emit the question whether a check has failed so far: the site word isn't 0."""
    site = writer.value(f"load i64, ptr {_word(writer, '%status', 1)}, align 8")
    return writer.value(f"icmp ne i64 {site}, 0")


def _return(writer: FunctionWriter, statement: ir.Return) -> None:
    leave_if(writer, bad_status(writer))


def leave_if(writer: FunctionWriter, condition: str) -> None:
    """Return 1 from a function of the entry under a condition."""
    leave, stay = map(writer.new_label, ("leave", "stay"))
    writer.branch_if(condition, leave, stay)
    writer.open_block(leave)
    writer.line("ret i64 1")
    writer.open_block(stay)


STATEMENTS: dict[type[ir.Stmt], Row] = {
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
"""One row a statement class; the entry adds its own."""
