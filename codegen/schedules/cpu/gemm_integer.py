"""Products of integers: a plain nest, vectors over the columns.

parallel chunk                         rows of the result
vector for column
for p in depth                     sum += a[row, p] * b[p, column]
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_operand import Product, element
from frame.codegen.schedules.group import Group, KernelCall

NOTE = __doc__.split("\n\n")[1]
_MOST_LANES = 16


def lower(group: Group, made: Product) -> tuple[KernelCall, ...]:
    """Return the one kernel of a product of integers."""
    body = b.Body()
    rows, columns = group.extent(made.rows), group.extent(made.columns)
    extents = [*group.extents(made.batch), rows]
    chunks = extents[0]
    for extent in extents[1:]:
        chunks = b.mul(chunks, extent)
    lanes = min(_MOST_LANES, group.target.lanes(made.dtype))
    with body.loop(chunks, "row", LoopKind.PARALLEL) as flat:
        *batch, row = (body.let("at", i) for i in unflatten(flat, extents))
        place, inner = made.split_row(group, tuple(batch), row, body)

        def total(column: Expr) -> Expr:
            zero = b.broadcast(b.const(0, made.dtype), column.type.lanes)
            with body.fold(group.extent(made.depth), [zero], "p") as folding:
                reader = Reader(group, body)
                left = element(reader, made.left, place, inner, folding.index)
                right = element(reader, made.right, place, folding.index, column)
                folding.next = [b.add(folding.values[0], b.mul(left, right))]
            return folding.results[0]

        write_epilogue(
            group,
            body,
            made.node.results[0],
            Columns(b.index(0), columns, lanes),
            lambda column: made.result_index(place, inner, column),
            total,
        )
    return (group.call("", body.block(), chunks, NOTE),)
