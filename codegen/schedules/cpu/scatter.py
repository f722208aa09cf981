"""Scatter groups: slices are added into zeros, in the order of the indices.

parallel chunk                    check: every index against the size of the axis
parallel chunk                    (outer position, block of columns)
zeros
for i in indices                in order, so that sums are the same on any number of threads
vector for column in block    sums[index[i], column] += updates[i, column]
[store in the narrow dtype]
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import remaining, unflatten
from frame.codegen.schedules.cpu.copy_rows import cut, elements_of, with_views
from frame.codegen.schedules.cpu.gather_checks import check_indices, clamped
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core import config
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node

NOTE = __doc__.split("\n\n")[1]
_COLUMNS = 256  # columns of one chunk


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels: the check and the sums."""
    return (check_indices(group, checks(group.body)), _sums(group, _anchor(group.body)))


def _sums(group: Group, node: Node) -> KernelCall:
    updates, indices = node.operands
    axis = node.attributes["axis"]
    parts = cut(updates.shape, axis, indices.rank)
    target = cut(node.results[0].shape, axis)
    sizes = group.extents(indices.shape)
    group = with_views(group, updates, parts, target)
    element = elements_of(group, updates, parts)
    group, sums = _place_of_sums(group)
    outer, limit, columns = group.extents(target.sizes)
    count = group.extent(product(indices.shape))
    width = config.get("FRAME_GRAIN") or _COLUMNS
    blocks = b.ceil_div(columns, width)
    chunks = b.mul(outer, blocks)
    body = b.Body()
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        row, part = (body.let("at", i) for i in unflatten(chunk, [outer, blocks]))
        start = body.let("start", b.mul(part, width))
        extent = body.let("extent", remaining(columns, start, b.index(width)))

        def columns_loop() -> object:
            return body.loop(extent, "j", LoopKind.VECTOR)

        with body.loop(limit, "k") as k, columns_loop() as j:  # type: ignore[attr-defined]
            body.store(sums, [row, k, b.add(start, j)], b.const(0, sums.dtype))
        with body.loop(count, "i") as i:
            index = Reader(group, body).load(indices, unflatten(i, sizes))
            place = body.let("place", clamped(index, limit))
            with columns_loop() as j:  # type: ignore[attr-defined]
                column = b.add(start, j)
                update = element(body, row, i, column)
                total = b.add(b.load(sums, [row, place, column]), update)
                body.store(sums, [row, place, column], total)
        if sums is not group.outputs[0]:
            with body.loop(limit, "k") as k, columns_loop() as j:  # type: ignore[attr-defined]
                where: list[Expr] = [row, k, b.add(start, j)]
                value = b.cast(b.load(sums, where), group.outputs[0].dtype)
                body.store(group.outputs[0], where, value)
    lanes = group.target.lanes(sums.dtype)
    return group.call("", vectorise_loops(body.block(), lanes), chunks, NOTE)


def _place_of_sums(group: Group) -> tuple[Group, Buffer]:
    """Return where the sums are: in the result, or beside it where its dtype is too narrow."""
    output = group.outputs[0]
    if not group.workspaces:
        return group, output
    dtype = compute_dtype(output.dtype)
    sums = Buffer(group.workspaces[0].name, dtype, output.shape, (), Scope.WORKSPACE)
    return group.with_buffers(workspaces=(sums,)), sums


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of sums that are wider than the result."""
    (result,) = _anchor(body).results
    dtype = compute_dtype(result.dtype)
    return () if dtype == result.dtype else (product(result.shape) * dtype.itemsize,)


def checks(body: Graph) -> tuple[tuple[Node, Size], ...]:
    """Return the one check: the node, and the size of the axis."""
    node = _anchor(body)
    return ((node, node.attributes["shape"][node.attributes["axis"]]),)


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "scatter_add")
