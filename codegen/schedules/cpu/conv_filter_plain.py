"""Gradients by weights whose sizes are not known, or too large for local memory: a plain nest.

parallel chunk                         (output, channel)
for point of window
for image, row, column of the cotangent, under the bounds of x
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.cpu.conv_filter_plan import anchor_of
from frame.codegen.schedules.cpu.gemm_epilogue import write_outputs
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype

NOTE = __doc__.split("\n\n")[1]


def lower(group: Group) -> KernelCall:
    """Return the one kernel of a gradient."""
    node, body = anchor_of(group.body), b.Body()
    outputs, channels, height, width = group.extents(node.results[0].shape)
    chunks = b.mul(outputs, channels)
    with body.loop(chunks, "pair", LoopKind.PARALLEL) as flat:
        output, channel = (body.let("at", i) for i in unflatten(flat, [outputs, channels]))
        with body.loop(height, "ky") as row, body.loop(width, "kx") as column:
            index = (output, channel, row, column)
            write_outputs(group, body, node.results[0], index, _sum(group, body, index))
    return group.call("", body.block(), chunks, NOTE)


def _sum(group: Group, body: b.Body, index: Index) -> Expr:
    """Write the loops over the pixels of one output."""
    node = anchor_of(group.body)
    _, cotangent = node.operands
    dtype = compute_dtype(node.results[0].dtype)
    batch, _, height, width = group.extents(cotangent.shape)
    with body.fold(batch, [b.const(0.0, dtype)], "n") as images:
        with body.fold(height, images.values, "row") as rows:
            with body.fold(width, rows.values, "column") as columns:
                at = (images.index, rows.index, columns.index)
                place = (at[0], index[0], at[1], at[2])
                factor = Reader(group, body).load(cotangent, place)
                value = _entry(group, body, index, at)
                total = multiply_add(group.target.fma, value, factor, columns.values[0])
                columns.next = [total]
            rows.next = columns.results
        images.next = rows.results
    return images.results[0]


def _entry(group: Group, body: b.Body, index: Index, at: tuple[Expr, Expr, Expr]) -> Expr:
    """Return the element of x that a pixel meets at a point of the window, zero outside of x."""
    node = anchor_of(group.body)
    x, values = node.operands[0], node.attributes
    places: list[Expr] = []
    inside: Expr = b.boolean(True)
    for axis in range(2):
        start = b.mul(at[1 + axis], values["strides"][axis])
        moved = b.mul(index[2 + axis], values["dilation"][axis])
        place = b.sub(b.add(start, moved), values["padding"][2 * axis])
        last = b.sub(group.extent(x.shape[2 + axis]), 1)
        inside = b.and_(inside, b.and_(b.ge(place, 0), b.le(place, last)))
        places.append(b.max_(b.min_(place, last), 0))
    found = Reader(group, body).load(x, (at[0], index[1], *places))
    return b.select(inside, found, b.like(0.0, found))
