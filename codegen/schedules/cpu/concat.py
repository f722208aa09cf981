"""Concat groups: one copy an operand.

parallel chunk                    rows, or blocks of a long row
for row in chunk
vector for j in row           result[row, offset + j] = operand[row, j]
"""

from __future__ import annotations

from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind, Var
from frame.codegen.schedules.cpu.chunks import remaining
from frame.codegen.schedules.cpu.copy_rows import Parts, elements_of, with_views
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, KernelCall, Part, Ref
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.shapes import Size
from frame.ir.graph import Node, TensorType, Value

NOTE = __doc__.split("\n\n")[1]
_OFFSET = "offset"
_CHUNK = 1 << 14  # elements that one chunk copies


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return a call an operand; captures of one type share a kernel."""
    (node,) = (n for n in group.body.nodes if n.op == "concat")
    captures = {value: place for place, value in enumerate(group.body.input_values)}
    kernels: dict[TensorType, KernelCall] = {}
    calls: list[KernelCall] = []
    axis = node.attributes["axis"]
    offset: Size = 0
    for position, operand in enumerate(node.operands):
        start = group.extent(offset * product(operand.shape[axis + 1 :]))
        made = kernels.get(operand.type) if operand in captures else None
        if made is None:
            call = _copy(group, node, operand, position, start)
        else:
            call = _moved(made, captures[operand], start)
        if operand in captures:
            kernels[operand.type] = call
        calls.append(call)
        offset = offset + operand.shape[axis]  # type: ignore[operator]
    return tuple(calls)


def _moved(call: KernelCall, capture: int, start: Expr) -> KernelCall:
    """Return a call whose kernel reads another capture and writes from another place on."""
    operands = (
        Ref(Part.CAPTURE, capture) if ref.part is Part.CAPTURE else ref for ref in call.operands
    )
    scalars = (
        start if var.name == _OFFSET else value
        for var, value in zip(call.kernel.scalars, call.scalars, strict=True)
    )
    return replace(call, operands=tuple(operands), scalars=tuple(scalars))


def _copy(group: Group, node: Node, operand: Value, position: int, start: Expr) -> KernelCall:
    axis = node.attributes["axis"]
    source, target = _rows(operand.shape, axis), _rows(node.results[0].shape, axis)
    group = with_views(group, operand, source, target)
    element = elements_of(group, operand, source)
    rows, _, length = source.sizes
    offset = Var(_OFFSET)  # a scalar, so that operands of one type share a kernel
    body = b.Body()
    lines, block = _chunk_shape(rows, length)
    extents = group.extent(rows), group.extent(length)
    blocks = b.ceil_div(extents[1], block)
    chunks = b.mul(b.ceil_div(extents[0], lines), blocks)
    zero = b.index(0)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        known = b.constant_value(blocks)
        part = zero if known in (0, 1) else body.let("part", b.rem(chunk, blocks))
        line = chunk if known in (0, 1) else b.div(chunk, blocks)
        first = body.let("first", b.mul(line, lines))
        begin = body.let("begin", b.mul(part, block))
        with body.loop(remaining(extents[0], first, b.index(lines)), "row") as row:
            place = body.let("row", b.add(first, row))
            extent: Expr = remaining(extents[1], begin, b.index(block))
            with body.loop(extent, "j", LoopKind.VECTOR) as j:
                column = b.add(begin, j)
                value = element(body, place, zero, column)
                output = group.outputs[0]
                where = [place, zero, b.add(offset, column)]
                body.store(output, where, b.cast(value, output.dtype))
    lanes = group.target.lanes(node.results[0].dtype)
    copy = vectorise_loops(body.block(), lanes)
    return group.call(f"part{position}", copy, chunks, NOTE, arguments={offset: start})


def _rows(shape: tuple[Size, ...], axis: int) -> Parts:
    """Rows are what lies before the axis; the axis and what lies behind it make one row."""
    return Parts(shape[:axis], (), shape[axis:])


def _chunk_shape(rows: Size, length: Size) -> tuple[int, int]:
    """Return the rows of a chunk, and the elements of each row that it copies."""
    if config.get("FRAME_GRAIN"):
        return 1, 16
    size = static(length, 1 << 10)
    if size > _CHUNK:
        return 1, _CHUNK
    lines = max(1, _CHUNK // max(1, size))
    return min(lines, max(1, static(rows, lines))), max(1, size) if isinstance(
        length, int
    ) else _CHUNK
