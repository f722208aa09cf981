"""Checks of indices: a kernel that looks at all of them before any is used."""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, LoopKind
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import flat_extent, remaining, unflatten
from frame.codegen.schedules.group import Group, KernelCall
from frame.core import config
from frame.core.dtypes import int64
from frame.core.shapes import Size
from frame.ir.graph import Node

NOTE = "every index is compared with its limit; the first bad one is reported"
_BLOCK = 1 << 14  # indices of one chunk


def check_indices(group: Group, checks: Sequence[tuple[Node, Size]]) -> KernelCall:
    """Return the kernel of the one check of a group: (node, limit) as its schedule declares it.

    It reports every index, the second operand of the node, outside of [0, limit) under the site
    of the group.
    """
    ((node, limit),) = checks
    indices = node.operands[1]
    body = b.Body()
    extents = group.extents(indices.shape)
    total = flat_extent(extents)
    bound = group.extent(limit)
    size = config.get("FRAME_GRAIN") or _BLOCK
    chunks = b.ceil_div(total, size)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, size))
        with body.loop(remaining(total, first, b.index(size)), "i") as i:
            position = body.let("position", b.add(first, i))
            place = unflatten(position, extents)
            value = body.let("index", b.cast(Reader(group, body).load(indices, place), int64))
            with body.when(b.or_(b.lt(value, 0), b.ge(value, bound))):
                body.fail(group.site, position, value)
    return group.call("check", body.block(), chunks, NOTE)


def clamped(value: Expr, limit: Expr) -> Expr:
    """Return an index as int64, inside [0, limit) whatever it holds."""
    return b.max_(b.min_(b.cast(value, int64), b.sub(limit, 1)), 0)
