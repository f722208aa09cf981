"""Elementwise groups: one sweep over the domain.

parallel chunk                    rows of the domain, or blocks of a long row
for row in chunk                outer loops, flattened
vector for j in row           every output is computed, then stored

Groups that read a capture across its rows stand in transpose.py.
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import INDEX_RULES, Reader, captures_below
from frame.codegen.schedules.cpu import transpose
from frame.codegen.schedules.cpu.chunks import (
    flat_extent,
    grain,
    is_streamed,
    lanes_of,
    remaining,
    unflatten,
)
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.nest import Nest, make_nest
from frame.ir.graph import Graph, Value

NOTE = __doc__.split("\n\n")[1]


BeforeRow = Callable[[Nest, b.Body, Expr], None]
"""What is written before each row: it gets the nest, the body and the number of the row."""


def lower(group: Group, before_row: BeforeRow | None = None) -> tuple[KernelCall, ...]:
    """Return the one kernel of an elementwise group."""
    nest = make_nest(group, group.body.outputs[0].shape)
    if not nest.runs:
        return (_scalar_kernel(nest),)
    crossing = transpose.find_crossing(nest)
    if crossing is not None:
        return transpose.lower(crossing)
    body = b.Body()
    extents = [group.extent(run.size) for run in nest.runs]
    rows = flat_extent(extents[:-1])
    if _is_long(nest):
        chunks = _write_blocks(nest, body, extents, rows)
    else:
        chunks = _write_rows(nest, body, extents, rows, before_row)
    block = vectorise_loops(body.block(), lanes_of(group), group.target)
    return (nest.group.call("", block, chunks, NOTE),)


def _is_long(nest: Nest) -> bool:
    """Whether one row alone is worth several chunks."""
    inner = nest.runs[-1].size
    if len(nest.runs) == 1:
        return True
    return isinstance(inner, int) and inner >= 2 * grain(nest.group.body)


def _write_blocks(nest: Nest, body: b.Body, extents: list[Expr], rows: Expr) -> Expr:
    """Chunks are blocks of a row."""
    size = grain(nest.group.body)
    inner = extents[-1]
    blocks = b.ceil_div(inner, size)
    with body.loop(b.mul(rows, blocks), "chunk", LoopKind.PARALLEL) as chunk:
        row, part = (b.index(0), chunk) if len(extents) == 1 else unflatten(chunk, [rows, blocks])
        start = body.let("start", b.mul(part, size))
        outer = [body.let("i", i) for i in unflatten(row, extents[:-1])]
        with body.loop(remaining(inner, start, size), "j", LoopKind.VECTOR) as j:
            _write_elements(nest, body, [*outer, b.add(start, j)])
    return b.mul(rows, blocks)


def _write_rows(
    nest: Nest, body: b.Body, extents: list[Expr], rows: Expr, before_row: BeforeRow | None
) -> Expr:
    """Chunks are blocks of rows."""
    count = b.max_(b.div(b.index(grain(nest.group.body)), b.max_(extents[-1], 1)), 1)
    chunks = b.ceil_div(rows, count)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, count))
        with body.loop(remaining(rows, first, count), "row") as row:
            number = b.add(first, row)
            if before_row is not None:
                before_row(nest, body, number)
            outer = [body.let("i", i) for i in unflatten(number, extents[:-1])]
            with body.loop(extents[-1], "j", LoopKind.VECTOR) as j:
                _write_elements(nest, body, [*outer, j])
    return chunks


def _write_elements(nest: Nest, body: b.Body, loops: list[Expr]) -> None:
    """Compute all outputs at one index before storing any: an output may overwrite a capture."""
    index = nest.index(dict(zip(nest.runs, loops, strict=True)))
    reader = Reader(nest.group, body)
    outputs = nest.group.body.outputs
    values = [body.let("y", reader.load(output, index)) for output in outputs]
    for position, value in enumerate(values):
        reader.store(position, index, value, streamed=is_streamed(nest.group, outputs[position]))


def _scalar_kernel(nest: Nest) -> KernelCall:
    """The domain is a single element."""
    body = b.Body()
    _write_elements(nest, body, [])
    return nest.group.call("", body.block(), b.index(1), NOTE)


def overwritable(body: Graph) -> tuple[tuple[int, int], ...]:
    """Return the (output, capture) pairs that may share memory: the capture is read at the index
    of the output alone, and has its shape and dtype."""
    moved = _read_elsewhere(body)
    return tuple(
        (o, c)
        for o, output in enumerate(body.outputs)
        for c, entry in enumerate(body.inputs)
        if entry.value.type == output.type and entry.value not in moved
    )


def _read_elsewhere(body: Graph) -> set[Value]:
    """Captures that views, or broadcasts that change their shape, read at another index."""
    moved = (node for node in body.nodes if node.op in INDEX_RULES)
    return captures_below(operand for node in moved for operand in node.operands)
