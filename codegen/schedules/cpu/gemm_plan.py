"""The sizes of the loops of a matrix product: tiles, blocks and chunks, and what is packed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.codegen.schedules.cpu.gemm_operand import Matrix, Product
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.shapes import Dim, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Layout

_SYMBOLIC = 64  # what a symbolic size counts as in a decision
_DEPTH = 1024  # elements of the inner axis that one pass takes
_SHORT = 256  # depth up to which a left operand is read against its grain
_LEAST_FLOPS, _GOOD_FLOPS = 1 << 18, 1 << 22  # of a chunk: at least; enough for many threads
_FEW_CHUNKS, _MANY_CHUNKS = 16, 128
_FEW_ROWS = 16  # rows below which packing does not pay
_PACKED_TOGETHER = 4  # panels that one chunk of a packing kernel fills


class Source(StrEnum):
    """Where micro-kernels find the panels of the right operand."""

    PLACE = "place"  # in the operand itself
    LAYOUT = "layout"  # in the operand, which has the packed layout
    CHUNK = "chunk"  # packed by each chunk for itself
    SHARED = "shared"  # packed by a kernel before


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Every decision about the loops of a product. Sizes are elements.

    Tiles are `rows` x (`vectors` x `lanes`); a pass over the inner axis takes `depth`; a chunk has
    `tiles` tiles down and `panels` across.
    """

    product: Product
    rows: int
    vectors: int
    lanes: int
    depth: int
    tiles: int
    panels: int
    copy_left: bool
    source: Source

    @property
    def columns(self) -> int:
        """The columns of a tile: the width of a panel."""
        return self.vectors * self.lanes

    @property
    def left_stride(self) -> Size:
        """The row stride of a copied left operand, off the powers of two that share cache sets."""
        depth = self.product.depth
        spare = isinstance(depth, int) and depth % 256 == 0
        return depth + 16 if spare else depth

    def workspaces(self) -> tuple[Size, ...]:
        """Return the bytes of the copied left operand and of the packed right one, if any."""
        made, sizes = self.product, []
        if self.copy_left:
            batch = product(made.left.batch) if not made.merged else 1
            sizes.append(batch * made.rows * self.left_stride * made.dtype.itemsize)
        if self.source is Source.SHARED:
            padded = made.columns + self.columns - 1
            if isinstance(padded, int):
                padded = padded // self.columns * self.columns
            sizes.append(product(made.right.batch) * padded * made.depth * made.dtype.itemsize)
        return tuple(sizes)


def make_plan(made: Product, target: TargetDescription) -> GemmPlan:
    """Decide how a product is computed on a target."""
    rows, vectors = register_tile(target)
    lanes = target.lanes(made.dtype)
    width = vectors * lanes
    tile_count = -(-static(made.rows, _SYMBOLIC) // rows)
    panel_count = max(1, -(-static(made.columns, _SYMBOLIC) // width))
    depth = min(static(made.depth, _DEPTH), _DEPTH)
    tiles = _tiles_of_block(target, made, rows, depth)
    batch = max(1, static(product(made.batch), 8))
    chunks = _wanted_chunks(made, batch)
    blocks = -(-tile_count // tiles)
    source = _source(made, target, blocks, width)
    panels = max(1, panel_count * blocks * batch // chunks)
    if panels == 1 and panel_count * batch < chunks:
        blocks = max(blocks, min(tile_count, -(-chunks // (panel_count * batch))))
    tiles = max(1, -(-tile_count // max(1, blocks)))
    if config.get("FRAME_GRAIN"):
        tiles = panels = 1
    return GemmPlan(
        made,
        rows,
        vectors,
        lanes,
        max(1, depth),
        tiles,
        min(panels, panel_count),
        _copies_left(made),
        source,
    )


def _tiles_of_block(target: TargetDescription, made: Product, rows: int, depth: int) -> int:
    """How many tiles of the left operand stay in the second-level cache, some room left."""
    share = (target.l2 or target.l1) * 3 // 4
    return max(2, share // max(1, rows * depth * made.dtype.itemsize))


def _wanted_chunks(made: Product, batch: int) -> int:
    sizes = (made.rows, made.columns, made.depth)
    flops = 2 * batch * int(product(static(size, _SYMBOLIC) for size in sizes))
    few = min(_FEW_CHUNKS, flops // _LEAST_FLOPS)
    return max(1, few, min(_MANY_CHUNKS, flops // _GOOD_FLOPS))


def _source(made: Product, target: TargetDescription, blocks: int, width: int) -> Source:
    right = made.right
    if right.layout == packed_layout(right, width):
        return Source.LAYOUT
    if _reads_in_place(made, target):
        return Source.PLACE
    return Source.CHUNK if blocks == 1 and not isinstance(made.rows, Dim) else Source.SHARED


def _reads_in_place(made: Product, target: TargetDescription) -> bool:
    right = made.right
    if right.view is None or right.value.dtype != made.dtype or not _runs_along(right, True):
        return False
    size = static(made.columns, _SYMBOLIC) * static(made.depth, _DEPTH) * made.dtype.itemsize
    return size <= target.l1 or static(made.rows, _SYMBOLIC) <= _FEW_ROWS


def _runs_along(matrix: Matrix, column: bool) -> bool:
    """Whether the elements of a view along rows (or columns) are next to each other."""
    axis = matrix.axis(column)
    if axis is None or matrix.view is None:
        return axis is None
    origin, value = matrix.view.axes[axis], matrix.value
    while value.node is not None:
        value = value.node.operands[0]
    return origin is not None and all(size == 1 for size in value.shape[origin + 1 :])


def runs_along_depth(matrix: Matrix) -> bool:
    """Whether a matrix is a view that is contiguous along the inner axis."""
    return matrix.view is not None and _runs_along(matrix, matrix.is_left)


def runs_across_depth(matrix: Matrix) -> bool:
    """Whether a matrix is a view that is contiguous along the outer axis."""
    return matrix.view is not None and _runs_along(matrix, not matrix.is_left)


def _copies_left(made: Product) -> bool:
    left = made.left
    if left.view is None or left.value.dtype != made.dtype:
        return True
    short = isinstance(made.depth, int) and made.depth <= _SHORT
    return not (runs_along_depth(left) or (short and runs_across_depth(left)))


def packed_layout(right: Matrix, width: int) -> Layout:
    """Return the layout of a right operand [depth, columns] that is stored as panels."""
    if right.flipped:
        return Layout((0, 1), ((0, width),))
    return Layout((1, 0), ((1, width),))
