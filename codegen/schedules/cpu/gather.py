"""Gather groups: a check of all indices, then a sweep like an elementwise one.

parallel chunk                    check: every index against the size of the axis
parallel chunk                    rows of the result
vector for j in row             table[..., index, ...], then the epilogue
"""

from __future__ import annotations

from frame.codegen.loops.ir import Expr, fresh
from frame.codegen.schedules.access import INDEX_RULES, Reader
from frame.codegen.schedules.cpu import elementwise
from frame.codegen.schedules.cpu.gather_checks import check_indices, clamped
from frame.codegen.schedules.group import Group, Index, KernelCall
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


INDEX_RULES["gather"] = _gather


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels of a gather group: the check and the sweep."""
    return (check_indices(group, checks(group.body)), *elementwise.lower(group))


def checks(body: Graph) -> tuple[tuple[Node, Size], ...]:
    """Return the one check: the gather, and the size of its axis."""
    node = _anchor(body)
    return ((node, node.operands[0].shape[node.attributes["axis"]]),)


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "gather")
