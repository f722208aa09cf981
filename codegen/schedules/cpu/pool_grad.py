"""The gradient of max pooling: each plane gets the cotangents at the positions of its maxima.

parallel chunk                    check: every position against the size of the plane
parallel chunk                    planes
vector: zeros
for window in plane             sums[position] += cotangent, in the order of the windows
vector: epilogue, stores
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import lanes_of, remaining, unflatten
from frame.codegen.schedules.cpu.gather_checks import check_indices, clamped
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node

NOTE = __doc__.split("\n\n")[1]
_CHUNK = 1 << 14  # elements of the planes of one chunk


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the kernels: the check and the sums."""
    return (check_indices(group, checks(group.body)), _planes(group, _anchor(group.body)))


def _planes(group: Group, node: Node) -> KernelCall:
    body = b.Body()
    (result,) = node.results
    dtype = compute_dtype(result.dtype)
    extents = group.extents(result.shape)
    planes, area = b.mul(extents[0], extents[1]), b.mul(extents[2], extents[3])
    sums = Buffer(
        group.workspaces[0].name,
        dtype,
        b.buffer("sums", dtype, (planes, area)).shape,
        (),
        Scope.WORKSPACE,
    )
    group = group.with_buffers(workspaces=(sums,))
    count = _planes_of_chunk(result.shape)
    chunks = b.ceil_div(planes, count)
    with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
        first = body.let("first", b.mul(chunk, count))
        with body.loop(remaining(planes, first, b.index(count)), "plane") as position:
            plane = body.let("plane", b.add(first, position))
            with body.loop(area, "j", LoopKind.VECTOR) as j:
                body.store(sums, [plane, j], b.const(0.0, dtype))
            image, channel = unflatten(plane, extents[:2])
            image, channel = body.let("n", image), body.let("c", channel)
            _write_sums(group, body, node, sums, (plane, image, channel))
            _write_epilogue(group, body, node, sums, (plane, image, channel))
    block = vectorise_loops(body.block(), lanes_of(group))
    return group.call("", block, chunks, NOTE)


def _planes_of_chunk(shape: tuple[Size, ...]) -> int:
    if config.get("FRAME_GRAIN"):
        return 1
    area = static(product(shape[2:]), 1 << 10)
    return max(1, _CHUNK // max(1, area))


def _write_sums(
    group: Group, body: b.Body, node: Node, sums: Buffer, at: tuple[Expr, Expr, Expr]
) -> None:
    cotangent, index = node.operands
    plane, image, channel = at
    rows, columns = group.extents(cotangent.shape[2:])
    area = b.as_index(sums.shape[1])
    with body.loop(rows, "row") as row, body.loop(columns, "column") as column:
        place = (image, channel, row, column)
        reader = Reader(group, body)
        target = body.let("position", clamped(reader.load(index, place), area))
        total = b.add(b.load(sums, [plane, target]), reader.load(cotangent, place))
        body.store(sums, [plane, target], total)


def _write_epilogue(
    group: Group, body: b.Body, node: Node, sums: Buffer, at: tuple[Expr, Expr, Expr]
) -> None:
    (result,) = node.results
    plane, image, channel = at
    rows, columns = group.extents(result.shape[2:])
    with body.loop(rows, "row") as row, body.loop(columns, "j", LoopKind.VECTOR) as column:
        element = b.load(sums, [plane, b.add(b.mul(row, columns), column)])
        reader = Reader(group, body, {result: lambda _: element})
        index = (image, channel, row, column)
        outputs = group.body.outputs
        values = [body.let("y", reader.load(output, index)) for output in outputs]
        for position, value in enumerate(values):
            reader.store(position, index, value)


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the sums."""
    (result,) = _anchor(body).results
    return (product(result.shape) * compute_dtype(result.dtype).itemsize,)


def checks(body: Graph) -> tuple[tuple[Node, Size], ...]:
    """Return the one check: the node, and the elements of a plane."""
    node = _anchor(body)
    return ((node, product(node.attributes["input_shape"][2:])),)


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "max_pool2d_grad")
