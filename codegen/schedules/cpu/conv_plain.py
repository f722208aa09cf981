"""Convolution groups whose sizes are not known, or that have no element: a plain nest.

parallel chunk                         rows of the result
for column
for channel, row, column of window, under the bounds of x
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, anchor_of
from frame.codegen.schedules.cpu.gemm_epilogue import Columns, write_epilogue
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.ir.graph import Node

NOTE = __doc__.split("\n\n")[1]


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the one kernel of a convolution group."""
    node, body = anchor_of(group.body), b.Body()
    extents = group.extents(node.results[0].shape)
    chunks = b.mul(b.mul(extents[0], extents[1]), extents[2])
    with body.loop(chunks, "row", LoopKind.PARALLEL) as flat:
        image, channel, row = (body.let("at", i) for i in unflatten(flat, extents[:3]))
        write_epilogue(
            group,
            body,
            node.results[0],
            Columns(b.index(0), extents[3], 1),
            lambda column: (image, channel, row, column),
            lambda column: _sum(group, body, node, (image, channel, row, column)),
        )
    return (group.call("", body.block(), chunks, NOTE),)


def write_zeros(group: Group, plan: ConvPlan) -> KernelCall:
    """Return the kernel of the outputs of a phase that no element of x reaches."""
    node, body = plan.node, b.Body()
    rows = (plan.batch, plan.groups * plan.outputs, plan.height.positions)
    extents = group.extents(rows)
    chunks = b.mul(b.mul(extents[0], extents[1]), extents[2])
    zero = b.const(0.0, plan.dtype)
    with body.loop(chunks, "row", LoopKind.PARALLEL) as flat:
        image, channel, row = (body.let("at", i) for i in unflatten(flat, extents))
        write_epilogue(
            group,
            body,
            node.results[0],
            Columns(b.index(0), b.index(plan.width.positions), plan.lanes),
            plan.indexer(image, channel, row),
            lambda column: b.broadcast(zero, column.type.lanes),
        )
    return group.call(plan.name, body.block(), chunks, "zeros, where nothing is added up")


def _sum(group: Group, body: b.Body, node: Node, index: Index) -> Expr:
    """Write the loops over the window of one output."""
    _, w = node.operands
    dtype = compute_dtype(node.results[0].dtype)
    outputs = b.max_(b.div(group.extent(w.shape[0]), node.attributes["groups"]), 1)
    channels, height, width = group.extents(w.shape[1:])
    first = body.let("first", b.mul(b.div(index[1], outputs), channels))
    with body.fold(channels, [b.const(0.0, dtype)], "c") as over_channels:
        with body.fold(height, over_channels.values, "i") as over_rows:
            with body.fold(width, over_rows.values, "j") as over_columns:
                k = (over_channels.index, over_rows.index, over_columns.index)
                value = _entry(group, body, node, index, k, first)
                weight = Reader(group, body).load(w, (index[1], *k))
                total = multiply_add(group.target.fma, value, weight, over_columns.values[0])
                over_columns.next = [total]
            over_rows.next = over_columns.results
        over_channels.next = over_rows.results
    return over_channels.results[0]


def _entry(
    group: Group,
    body: b.Body,
    node: Node,
    index: Index,
    k: tuple[Expr, Expr, Expr],
    first: Expr,
) -> Expr:
    """Return the element of x that meets a point of the window, zero outside of x."""
    x = node.operands[0]
    values = node.attributes
    places: list[Expr] = []
    inside: Expr = b.boolean(True)
    for axis in range(2):
        spread, low = values["input_dilation"][axis], values["padding"][2 * axis]
        at = b.mul(index[2 + axis], values["strides"][axis])
        at = b.add(at, b.sub(b.mul(k[1 + axis], values["dilation"][axis]), low))
        last = b.sub(group.extent(x.shape[2 + axis]), 1)
        place = b.div(b.max_(at, 0), spread)
        inside = b.and_(inside, b.and_(b.ge(at, 0), b.le(place, last)))
        if spread > 1:
            inside = b.and_(inside, b.eq(b.rem(b.max_(at, 0), spread), 0))
        places.append(b.max_(b.min_(place, last), 0))
    found = Reader(group, body).load(x, (index[0], b.add(first, k[0]), *places))
    return b.select(inside, found, b.like(0.0, found))
