"""Relayout groups: the elements of a tensor in another order in memory.

parallel chunk                      some outer positions of the new order
  for row in chunk
    for j in innermost dimension    the element there, or zero in the padding of a block
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind
from frame.codegen.schedules.cpu.chunks import flat_extent, grain, lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.cpu.winograd import weights_call
from frame.codegen.schedules.group import Group, Index, KernelCall
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Shape, Size
from frame.ir.graph import Layout, Node, Value

NOTE = __doc__.split("\n\n")[1]


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the one kernel of a relayout."""
    (node,) = (n for n in group.body.nodes if n.op == "relayout")
    (source,), (result,) = node.operands, node.results
    if result.type.layout.winograd:
        return (_transformed(group, node),)
    before, after = source.type.layout, result.type.layout
    group = group.with_buffers(
        captures=(_stored(group, group.captures[0], source),),
        outputs=(_stored(group, group.outputs[0], result),),
    )
    *outer, inner = (*group.extents(result.type.storage_shape), b.index(1))[
        : max(1, len(result.type.storage_shape))
    ]
    rows, body = flat_extent(outer), b.Body()
    count = b.max_(b.div(b.index(grain(group.body)), b.max_(inner, 1)), 1)
    chunks = b.ceil_div(rows, count)
    # Blocks of the old order make indices that no vector of elements follows.
    serial = bool(before.blocks) or not result.shape
    kind = LoopKind.SERIAL if serial else LoopKind.VECTOR
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, count))
        with body.loop(remaining(rows, first, count), "row") as row:
            lead = [body.let("i", i) for i in unflatten(b.add(first, row), outer)]
            with body.loop(inner, "j", kind) as j:
                stored = (*lead, j)[: len(result.type.storage_shape)]
                place, inside = logical_index(group, result.shape, after, stored)
                source_index = storage_index(before, place)
                mask = None if _always(inside) else inside
                body.store(group.outputs[0], stored, b.load(group.captures[0], source_index, mask))
    block = vectorise_loops(body.block(), lanes_of(group), group.target)
    return (group.call("", block, chunks, NOTE),)


def _transformed(group: Group, node: Node) -> KernelCall:
    """Return the kernel of a relayout to the transforms that `conv_winograd` reads."""
    (result,) = node.results
    target, layout = _stored(group, group.outputs[0], result), result.type.layout
    if (layout.permutation, [axis for axis, _ in layout.blocks]) != ((2, 3, 1, 0), [1, 0]):
        raise InvalidArgumentError(
            f"the cpu stores transforms of weights by channels and outputs, received {layout}"
        )
    return weights_call(group, node.operands[0], target)


def _always(inside: Expr) -> bool:
    return b.constant_value(inside) is True


def _stored(group: Group, memory: Buffer, value: Value) -> Buffer:
    shape = b.buffer("shape", memory.dtype, group.extents(value.type.storage_shape)).shape
    return Buffer(memory.name, memory.dtype, shape)


def _order(layout: Layout, rank: int) -> tuple[int, ...]:
    return layout.permutation or tuple(range(rank))


def logical_index(group: Group, shape: Shape, layout: Layout, stored: Index) -> tuple[Index, Expr]:
    """Return the logical index of a stored one, and whether it lies inside of the shape."""
    place: list[Expr] = [b.index(0)] * len(shape)
    for axis, i in zip(_order(layout, len(shape)), stored, strict=False):
        place[axis] = i
    for (axis, size), i in zip(layout.blocks, stored[len(shape) :], strict=True):
        place[axis] = b.add(b.mul(place[axis], size), i)
    inside: Expr = b.boolean(True)
    for axis, _ in layout.blocks:
        if _is_padded(shape[axis], layout, axis):
            inside = b.and_(inside, b.lt(place[axis], group.extent(shape[axis])))
    return tuple(place), inside


def _is_padded(size: Size, layout: Layout, axis: int) -> bool:
    step = 1
    for other, block in layout.blocks:
        step *= block if other == axis else 1
    return isinstance(size, int) and size % step != 0


def storage_index(layout: Layout, place: Index) -> Index:
    """Return where the element at a logical index is stored."""
    rest = list(place)
    blocks: list[Expr] = []
    for position, (axis, size) in enumerate(layout.blocks):
        later = 1
        for other, block in layout.blocks[position + 1 :]:
            later *= block if other == axis else 1
        unit = rest[axis] if later == 1 else b.div(rest[axis], later)
        blocks.append(b.rem(unit, size))
    for axis in range(len(place)):
        step = 1
        for other, block in layout.blocks:
            step *= block if other == axis else 1
        if step != 1:
            rest[axis] = b.div(rest[axis], step)
    return (*(rest[axis] for axis in _order(layout, len(place))), *blocks)
