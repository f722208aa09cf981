"""Gather groups: a check of all indices, then a sweep like an elementwise one.

parallel chunk                    check: every index against the size of the axis
parallel chunk                    rows of the result
[prefetch a row of the table]   the one that some rows later is copied
vector for j in row             table[..., index, ...], then the epilogue
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, fresh
from frame.codegen.schedules.access import INDEX_RULES, Reader
from frame.codegen.schedules.cpu import elementwise
from frame.codegen.schedules.cpu.gather_checks import check_indices, clamped
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.codegen.schedules.nest import Nest
from frame.core.shapes import Size
from frame.ir.graph import Graph, Node


def _gather(reader: Reader, node: Node, index: Index) -> Expr:
    """The element of the table at a position that is loaded first."""
    table, indices = node.operands
    axis = node.attributes["axis"]
    end = axis + indices.rank
    position = reader.load(indices, index[axis:end])
    if reader.trace is not None:
        place: Expr = fresh("position")
    else:
        place = reader.body.let(
            "position", clamped(position, reader.group.extent(table.shape[axis]))
        )
    return reader.load(table, (*index[:axis], place, *index[end:]))


_ROWS_AHEAD = 4  # how far ahead a row of the table is asked for
_MOST_LINES = 64  # of a row of the table: longer ones are followed by hardware

INDEX_RULES["gather"] = _gather


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a gather group: the check and the sweep."""
    return (check_indices(group, checks(group.body)), *elementwise.lower(group, _look_ahead))


def _look_ahead(nest: Nest, body: b.Body, row: Expr) -> None:
    """Prefetch a row of the table that is read later: nothing else could tell where it is."""
    node, captures = _anchor(nest.group.body), nest.group.body.input_values
    if node.attributes["axis"] != 0 or len(nest.runs) != 2 or not set(node.operands) <= {*captures}:
        return
    table, indices = (nest.group.captures[captures.index(value)] for value in node.operands)
    if len(table.shape) != 2 or len(indices.shape) != 1:
        return
    limit, length = table.shape
    line = max(1, nest.group.target.cache_line // table.dtype.itemsize)
    if not isinstance(length, int) or not 2 * line <= length <= _MOST_LINES * line:
        return
    last = b.sub(b.as_index(indices.shape[0]), 1)
    index = b.load(indices, [b.min_(b.add(row, _ROWS_AHEAD), last)])
    place = body.let("ahead", clamped(index, b.as_index(limit)))
    with body.loop(b.index(-(-length // line)), "line") as number:
        body.prefetch(table, [place, b.mul(number, line)])


def checks(body: Graph) -> tuple[tuple[Node, Size], ...]:
    """Return the one check: the gather, and the size of its axis."""
    node = _anchor(body)
    return ((node, node.operands[0].shape[node.attributes["axis"]]),)


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "gather")
