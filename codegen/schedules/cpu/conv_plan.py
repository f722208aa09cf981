"""The sizes of the loops of a convolution, and which copies of its operands it needs.

Vectors run along one of two axes. Neighbours in a vector are cut into pieces of a power of two, so
that a row shorter than a vector shares it with the next row.

    pixels   vectors of output columns; the inner loops run over channels and window. For images.
    window   vectors of window columns, added up at the end; a few outputs at a time. For filter
             gradients, whose windows are images and whose outputs are filters.

Where x is spread (a transposed convolution, or the gradient of a strided one), most points of a
window meet a zero. Outputs at a distance of `spread` meet the same points, so each of these phases
is a plain convolution by some of the points, with results at every `spread`-th place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.access import AxisPart
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.codegen.schedules.group import Index
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

_SYMBOLIC = 32  # what a symbolic batch, or number of channels, counts as in a decision
_LEAST_FLOPS, _GOOD_FLOPS = 1 << 18, 1 << 22  # of a chunk
_FEW_CHUNKS, _MANY_CHUNKS = 16, 128
_PIECE_COST = 0.25
_MANY_PLANES, _LINES = 32, 128  # channels, and bytes: two cache lines
_MOST_SPREAD = 4  # phases along an axis that are kernels of their own
_WINDOW_COST = 1.25  # how much dearer a multiply-add is where vectors run along the window


@dataclass(frozen=True, slots=True)
class Extent:
    """One spatial axis: sizes in elements, all known.

    Position t is output `first + step * t`, and point k of the window is `tap + tap_step * k` of
    the weights.
    """

    size: int
    window: int
    positions: int
    stride: int
    low: int
    dilation: int
    spread: int
    first: int = 0
    step: int = 1
    tap: int = 0
    tap_step: int = 1

    @property
    def reach(self) -> int:
        """How many elements of the padded, spread axis the windows touch."""
        return (self.positions - 1) * self.stride + (self.window - 1) * self.dilation + 1

    def phases(self) -> tuple[Extent, ...]:
        """Return convolutions without spreading whose outputs are, together, those of this one."""
        if self.spread == 1:
            return (self,)
        count = self.spread // math.gcd(self.stride, self.spread)
        return tuple(self._phase(first, count) for first in range(min(count, self.positions)))

    def _phase(self, first: int, count: int) -> Extent:
        start = first * self.stride - self.low
        step = self.spread // math.gcd(self.dilation, self.spread)
        taps = [k for k in range(self.window) if (start + k * self.dilation) % self.spread == 0]
        tap = taps[0] if taps else 0
        return Extent(
            size=self.size,
            window=len(taps),
            positions=-(-(self.positions - first) // count),
            stride=count * self.stride // self.spread,
            low=-((start + tap * self.dilation) // self.spread),
            dilation=step * self.dilation // self.spread,
            spread=1,
            first=first,
            step=count,
            tap=tap,
            tap_step=step,
        )

    @property
    def is_partial(self) -> bool:
        """Whether these are some of the outputs only, or some points of the window only."""
        return self.step > 1 or self.tap > 0 or self.tap_step > 1

    def is_plain(self) -> bool:
        """Whether every element that is touched is one of x, without padding or spreading."""
        return self.spread == 1 and self.low <= 0 and self.reach - self.low <= self.size


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """Every decision about the loops of a convolution.

    `piece` neighbours are contiguous; a tile is `rows` output channels by `vectors` vectors of
    pixels, or by `vectors` outputs. The padded copy of x is [batch, channels, padded_rows, phases,
    padded_columns]: column t lies at (t % phases, t // phases).
    """

    node: Node
    dtype: DType
    height: Extent
    width: Extent
    along_window: bool
    lanes: int
    piece: int
    rows: int
    vectors: int
    panels: int  # panels of a chunk
    tiles: int  # tiles of output channels of a chunk
    tiles_outside: bool  # whether the loop over tiles is outside of the one over panels
    copy_x: bool
    copy_w: bool
    flat: bool = False  # whether the rows of an image are one row, the only position of `height`

    @property
    def is_phase(self) -> bool:
        """Whether the results are some of the outputs only, or sums over some of the weights.

        There is one phase, of all outputs, where the stride is a multiple of the spread.
        """
        return self.height.is_partial or self.width.is_partial

    @property
    def name(self) -> str:
        """What tells the kernels of a phase from those of the others."""
        return f"phase{self.height.first}{self.width.first}" if self.is_phase else ""

    def indexer(self, image: Expr, channel: Expr, line: Expr) -> Callable[[Expr], Index]:
        """Return what gives the index of the result in a column of a line of positions."""
        height, width = self.height, self.width
        row = b.add(b.mul(line, height.step), height.first)
        return lambda j: self.index(image, channel, row, _moved(width, j))

    def index(self, image: Expr, channel: Expr, row: Expr, column: Expr) -> Index:
        """Return the index of an element of an image."""
        if self.flat:
            return in_order(image, channel, column)
        return (image, channel, row, column)

    @property
    def is_empty(self) -> bool:
        """Whether no point of the window meets x: then all sums are zero."""
        return self.height.window * self.width.window == 0

    @property
    def batch(self) -> Size:
        """The number of images."""
        return self.node.results[0].shape[0]

    @property
    def groups(self) -> int:
        """Independent slices of the channels."""
        groups: int = self.node.attributes["groups"]
        return groups

    @property
    def channels(self) -> Size:
        """The input channels of a group; of a filter gradient, whose batch they are, any size."""
        return self.node.operands[1].shape[1]

    @property
    def outputs(self) -> int:
        """The output channels of a group."""
        return int(self.node.operands[1].shape[0]) // self.groups  # type: ignore[arg-type]

    @property
    def pieces_of_vector(self) -> int:
        """How many pieces make a vector."""
        return self.lanes // self.piece

    @property
    def pieces_of_row(self) -> int:
        """How many pieces cover a row of what vectors run along."""
        length = self.width.window if self.along_window else self.width.positions
        return -(-length // self.piece)

    @property
    def pieces_of_panel(self) -> int:
        """How many pieces, or outputs, one tile is wide."""
        return self.vectors if self.along_window else self.vectors * self.pieces_of_vector

    @property
    def phases(self) -> int:
        """What the columns of the padded copy are split by, so that vectors are contiguous."""
        return self.width.dilation if self.along_window else self.width.stride

    @property
    def padded(self) -> tuple[int, int, int]:
        """Rows, phases and columns of the padded copy."""
        width, covered = self.width, self.pieces_of_row * self.piece
        if self.along_window:
            columns = (width.positions - 1) * width.stride // width.dilation + covered
        else:
            columns = (width.window - 1) * width.dilation // width.stride + covered
        area = self.height.reach * self.phases
        return self.height.reach, self.phases, columns + self.crowds(area * columns)

    def crowds(self, plane: int) -> bool:
        """Whether planes of so many elements put their lines into few sets of a cache."""
        many = static(self.channels, _SYMBOLIC) >= _MANY_PLANES
        return many and plane * self.dtype.itemsize % _LINES == 0

    @property
    def steps(self) -> int:
        """Vectors of a whole window of one channel, where vectors run along it."""
        return self.height.window * self.width.window // self.lanes

    @property
    def weight_row(self) -> Size:
        """Elements of the weights of one output channel."""
        return self.channels * (self.height.window * self.width.window)

    def workspaces(self) -> tuple[Size, ...]:
        """Return the bytes of the padded copy of x and of the copy of the weights, if any."""
        sizes: list[Size] = []
        if self.copy_x:
            planes = self.batch * self.channels * self.groups
            sizes.append(planes * (math.prod(self.padded) * self.dtype.itemsize))
        if self.copy_w:
            sizes.append(self.weight_row * (self.groups * self.outputs * self.dtype.itemsize))
        return tuple(sizes)


def in_order(image: Expr, channel: Expr, place: Expr) -> Index:
    """Return the index of an element of an image whose rows are joined."""
    parts = (AxisPart("part", run=place, position=i, count=2) for i in range(2))
    return (image, channel, *parts)


def anchor_of(body: Graph) -> Node:
    """Return the convolution of a group."""
    return next(node for node in body.nodes if node.op == "conv2d")


def make_plans(body: Graph, target: TargetDescription) -> tuple[ConvPlan, ...]:
    """Decide how the convolution of a group runs: one plan for each phase of its outputs.

    No plan where a size is unknown that is neither the batch nor the channels, which only loops
    count.
    """
    node = anchor_of(body)
    x, w = node.operands
    known = (*x.shape[2:], w.shape[0], *w.shape[2:], *node.results[0].shape[1:])
    if not all(isinstance(size, int) and size > 0 for size in known) or w.shape[1] == 0:
        return ()
    lanes = target.lanes(compute_dtype(x.dtype))
    if lanes < 2:
        return ()
    height, width = _extents(node)
    if is_flat(body):
        area = height.size * width.size
        height = Extent(1, 1, 1, 1, 0, 1, 1)
        return (_make_plan(node, target, height, Extent(area, 1, area, 1, 0, 1, 1), True),)
    if max(height.spread, width.spread) > _MOST_SPREAD:
        return (_make_plan(node, target, height, width),)
    return tuple(
        _make_plan(node, target, rows, columns)
        for rows in height.phases()
        for columns in width.phases()
    )


def is_flat(body: Graph) -> bool:
    """Whether a convolution by single points and all that is fused with it walks images in order.

    Then an image is one row: a product of matrices, without a rest at the end of each row.
    """
    node = anchor_of(body)
    x, w = node.operands
    plain = w.shape[2:] == (1, 1) and node.results[0].shape[2:] == x.shape[2:]
    if any(node.attributes["padding"]) or node.attributes["strides"] != (1, 1):
        return False
    return plain and images_in_order(body, True) is not None


def images_in_order(body: Graph, with_x: bool) -> set[Value] | None:
    """Return the captures that a group reads as images in order, their rows as one row.

    None where it does not, or does not write its results so. How the convolution itself reads x
    counts only `with_x`.
    """
    node = anchor_of(body)
    image = node.results[0].shape[2:]
    known = all(isinstance(n, int) and n > 1 for n in image)
    if not known or any(output.shape[-2:] != image for output in body.outputs):
        return None
    found: set[Value] = set()
    pending = [*body.outputs, *(node.operands[:1] if with_x else ())]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        below = _read_in_order(value, node, image)
        if below is None:
            return None
        pending.extend(below)
        if value.node is None and value.shape[-2:] == image:
            found.add(value)
    return found


def _read_in_order(value: Value, anchor: Node, image: Shape) -> Sequence[Value] | None:
    """Return the values that are read to read one along images, None where it has no such order.

    A reshape to single points, such as that of a bias, reads its operand at no place of an image.
    """
    ends, node = ((1, 1) + value.shape)[-2:], value.node
    if ends not in (image, (1, 1)):
        return None
    if node is None or node is anchor or (node.op == "reshape" and ends == (1, 1)):
        return ()
    in_order = node.op in ("constant", "expand") or Trait.ELEMENTWISE in lookup(node.op).traits
    return node.operands if in_order else None


def _moved(axis: Extent, position: Expr) -> Expr:
    return b.add(b.mul(position, axis.step), axis.first)


def _make_plan(
    node: Node, target: TargetDescription, height: Extent, width: Extent, flat: bool = False
) -> ConvPlan:
    x, w = node.operands
    dtype = compute_dtype(x.dtype)
    lanes = target.lanes(dtype)
    along = _along_window(height, width, lanes)
    outputs = int(w.shape[0]) // node.attributes["groups"]  # type: ignore[arg-type]
    rows, vectors = _tile(target, outputs, width, along)
    piece = _piece(width.positions, lanes)
    if along:
        piece = min(lanes, factor_of_two(width.window))
    elif flat and factor_of_two(width.positions) >= lanes // 2:
        piece = min(lanes, factor_of_two(width.positions))
    plan = ConvPlan(
        node,
        dtype,
        height,
        width,
        along_window=along,
        lanes=lanes,
        piece=piece,
        rows=rows,
        vectors=vectors,
        panels=1,
        tiles=1,
        tiles_outside=False,
        copy_x=True,
        copy_w=True,
        flat=flat,
    )
    return plan if plan.is_empty else _with_chunks(plan, target)


def _extents(node: Node) -> tuple[Extent, Extent]:
    x, w = node.operands
    result, values = node.results[0], node.attributes
    first, second = (
        Extent(
            int(x.shape[2 + i]),  # type: ignore[arg-type]
            int(w.shape[2 + i]),  # type: ignore[arg-type]
            int(result.shape[2 + i]),  # type: ignore[arg-type]
            values["strides"][i],
            values["padding"][2 * i],
            values["dilation"][i],
            values["input_dilation"][i],
        )
        for i in range(2)
    )
    return first, second


def _piece(length: int, lanes: int) -> int:
    """Return the piece for rows of a length: the power of two above it, at most a vector."""
    return min(lanes, max(2, 1 << (length - 1).bit_length()))


def factor_at_most(number: int, most: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    return next(n for n in range(min(number, most), 0, -1) if number % n == 0)


def factor_of_two(number: int) -> int:
    """Return the largest power of two that divides a number."""
    return number & -number


def _along_window(height: Extent, width: Extent, lanes: int) -> bool:
    """Whether vectors run along the window, which they must fill without a rest.

    A lane that is left over would multiply elements that are not part of the window by zero, and
    one of them may be infinite.
    """
    factor = min(lanes, factor_of_two(width.window))
    if height.is_partial or width.is_partial:
        return False
    if factor < 2 or height.window * width.window % lanes:
        return False
    piece = _piece(width.positions, lanes)
    waste = -(-width.positions // piece) * piece / width.positions
    # A piece shorter than a vector costs a load of its own.
    across = waste * (1.0 + _PIECE_COST * (lanes // piece - 1))
    return _WINDOW_COST * (1.0 + _PIECE_COST * (lanes // factor - 1)) < across


def _tile(target: TargetDescription, outputs: int, width: Extent, along: bool) -> tuple[int, int]:
    """Return the most rows of a tile, and its vectors of pixels (or its outputs)."""
    if along:
        vectors = min(width.positions, 3)
        rows = max(1, (target.vector_registers - 1) // (vectors + 1))
        return min(rows, outputs), vectors
    rows, vectors = register_tile(target)
    if outputs <= 2 and target.vector_registers >= 16:
        return outputs, 4
    return rows, vectors


def _with_chunks(plan: ConvPlan, target: TargetDescription) -> ConvPlan:
    batch = max(1, static(plan.batch, _SYMBOLIC))
    lines = batch * plan.height.positions
    width = -(-plan.width.positions // plan.vectors) if plan.along_window else plan.pieces_of_row
    count = lines * width
    panels = count if plan.along_window else -(-count // plan.pieces_of_panel)
    tiles = -(-plan.outputs // plan.rows)
    depth = static(plan.channels, _SYMBOLIC) * plan.height.window * plan.width.window
    pixels = lines * plan.width.positions
    flops = 2 * pixels * plan.groups * plan.outputs * depth
    wanted = max(
        1, min(_FEW_CHUNKS, flops // _LEAST_FLOPS), min(_MANY_CHUNKS, flops // _GOOD_FLOPS)
    )
    heavy = plan.outputs * depth * plan.dtype.itemsize > target.l2 // 2
    blocks = max(1, min(panels, -(-wanted // plan.groups)))
    tile_blocks = max(1, min(tiles, -(-wanted // (plan.groups * blocks))))
    if config.get("FRAME_GRAIN"):
        blocks, tile_blocks = panels, tiles
    w = plan.node.operands[1]
    return replace(
        plan,
        panels=max(1, panels // blocks),
        tiles=-(-tiles // tile_blocks),
        tiles_outside=heavy,
        copy_x=copies_x(plan, again=True),
        copy_w=plan.is_phase or w.node is not None or w.dtype != plan.dtype,
    )


def copies_x(plan: ConvPlan, again: bool) -> bool:
    """Whether vectors can't read x itself: not at all, or less well where it is read `again`.

    Planes that crowd a cache hurt where they are read again and again, not in a copy of panels.
    """
    x = plan.node.operands[0]
    if plan.is_phase or x.node is not None or x.dtype != plan.dtype:
        return True
    if not plan.height.is_plain() or not plan.width.is_plain() or plan.phases != 1:
        return True
    length = plan.width.window if plan.along_window else plan.width.positions
    crowded = again and plan.crowds(plan.height.size * plan.width.size)
    return length % plan.piece != 0 or crowded


def shared_workspaces(plans: Sequence[ConvPlan]) -> tuple[Size, ...]:
    """Return the bytes of the copies that plans make one after the other, in the same memory."""
    rows = [plan.workspaces() for plan in plans if not plan.is_empty]
    return tuple(max(sizes, key=_comparable) for sizes in zip(*rows, strict=True))


def _comparable(size: Size) -> int:
    """The factor of what all phases of a convolution have in common, which may be symbols."""
    return size if isinstance(size, int) else sum(factor for _, factor in size.terms)
