"""The epilogue of a product: what follows it in the group, over columns of finished sums.

for v in vectors of the columns     every output is computed, then stored
for j in what is left over          the same, element by element
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.access import INDEX_RULES, Reader, captures_below
from frame.codegen.schedules.group import Group, Index
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.core.dataclass import dataclass
from frame.ir.graph import Graph, Value

_ANCHORS = ("matmul", "conv2d", "conv2d_filter_grad")


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns `start` .. `start + count - 1` of the result, taken `lanes` at a time."""

    start: Expr
    count: Expr
    lanes: int


def write_epilogue(
    group: Group,
    body: b.Body,
    result: Value,
    columns: Columns,
    index: Callable[[Expr], Index],
    sums: Callable[[Expr], Expr],
) -> None:
    """Write all outputs of a group for the columns of one row.

    `index` gives the index of the result at a column, `sums` the finished sum at a column counted
    from `columns.start`. Both take vectors of columns too.
    """
    lanes, count = columns.lanes, columns.count
    full = b.div(count, lanes)
    if b.constant_value(full) != 0:
        with body.loop(full, "v") as v:
            place = b.ramp(b.mul(v, lanes), lanes)
            write_outputs(group, body, result, index(_moved(columns, place)), sums(place))
    done = b.mul(full, lanes)
    if b.constant_value(b.sub(count, done)) != 0:
        with body.loop(b.sub(count, done), "j") as j:
            place = body.let("column", b.add(done, j))
            write_outputs(group, body, result, index(_moved(columns, place)), sums(place))


def _moved(columns: Columns, place: Expr) -> Expr:
    return b.add(place, b.broadcast(columns.start, place.type.lanes))


def write_outputs(group: Group, body: b.Body, result: Value, index: Index, value: Expr) -> None:
    """Write all outputs of a group at one index (or a vector of them) of a finished sum."""
    reader, values = finish_outputs(group, body, result, index, value)
    for position, output in enumerate(values):
        reader.store(position, index, output)


def finish_outputs(
    group: Group, body: b.Body, result: Value, index: Index, value: Expr
) -> tuple[Reader, list[Expr]]:
    """Return all outputs of a group at an index of a finished sum, and what stores them."""
    finished = body.let("sum", b.cast(value, compute_dtype(result.dtype)))
    reader = Reader(group, body, {result: lambda _: finished})
    return reader, [body.let("y", reader.load(output, index)) for output in group.body.outputs]


def overwritable(body: Graph) -> tuple[tuple[int, int], ...]:
    """Return the (output, capture) pairs that may share memory.

    The capture is read by the epilogue alone, at the index of the output, and has its type.
    """
    anchor = next(node for node in body.nodes if node.op in _ANCHORS)
    elsewhere = captures_below(
        value
        for node in body.nodes
        if node is anchor or node.op in INDEX_RULES
        for value in node.operands
    )
    return tuple(
        (o, c)
        for o, output in enumerate(body.outputs)
        for c, entry in enumerate(body.inputs)
        if entry.value.type == output.type and entry.value not in elsewhere
    )
