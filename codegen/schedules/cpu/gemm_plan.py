"""The sizes of the loops of a matrix product: tiles, blocks and chunks, and what is packed."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from frame.codegen.schedules.cpu.gemm_operand import Matrix, Product
from frame.codegen.schedules.cpu.gemm_pairs import in_pairs, tile_of
from frame.codegen.schedules.sizes import product, static
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.shapes import Dim, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Layout

_SYMBOLIC = 64  # what a symbolic size counts as in a decision
_DEPTH = 256  # what a symbolic depth counts as
_LOCAL = 1 << 17  # bytes of local memory of a chunk, for sums and for packed panels each
_SHORT = 256  # depth up to which a left operand is read against its grain
_LEAST_FLOPS, _GOOD_FLOPS = 1 << 18, 1 << 25  # of a chunk: at least; enough for many threads
_FEW_CHUNKS, _MANY_CHUNKS = 16, 128
_REUSE, _LARGE = 8, 1 << 14  # panels, and elements of the left operand, for packing to pay
_OFTEN = 16  # panels for which packing rows pays that could be read in place
_DEEP = 8  # a panel of one deep pass takes at most this part of the second-level cache
_KEPT, _KEPT_BYTES = 4, 1 << 18  # panels that a chunk keeps, and bytes of its local memory
_ENOUGH_ROWS, _MANY_ROWS = 1 << 8, 1 << 11  # of a chunk that packs: packing costs 10 %, 2 %
_PAGE, _PAGES = 1 << 12, 64  # bytes of a page, and pages that a CPU translates at once
_LEAST_TILES = 4  # of a chunk: fewer would read panels from the third-level cache too often
_SHALLOW = 128  # depth up to which a result is written about as fast as computed
_FEW_ROWS = 16  # rows below which packing does not pay
_MOST_AHEAD = 3  # rows that the call for one panel prefetches: more would take too long


class Source(StrEnum):
    """Where micro-kernels find the panels of the right operand."""

    PLACE = "place"  # in the operand itself
    LAYOUT = "layout"  # in the operand, which has the packed layout
    CHUNK = "chunk"  # packed by each chunk for itself
    SHARED = "shared"  # packed by a kernel before


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Every decision about the loops of a product. Sizes are elements of the sums.

    Tiles are `rows` x (`vectors` x `lanes`); a pass over the inner axis takes `depth` steps; a
    chunk has `tiles` tiles down and `panels` across. Each call of a micro-kernel prefetches `ahead`
    rows of the left operand; where it `follows`, a part of the panel that the chunk of the next
    columns reads, too.
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
    keeps_panels: bool = False
    ahead: int = 0
    follows: bool = False

    @property
    def columns(self) -> int:
        """The columns of a tile: the width of a panel."""
        return self.vectors * self.lanes

    @property
    def is_single_pass(self) -> bool:
        """Whether one pass takes the whole inner axis."""
        depth = self.product.steps
        return isinstance(depth, int) and depth <= self.depth

    @property
    def holds_sums(self) -> bool:
        """Whether the sums of all panels of a chunk are kept until the last pass.

        An epilogue that reads matrices then runs along whole rows of them, not line by line.
        """
        return not self.is_single_pass or self.product.meets_matrices

    @property
    def sums(self) -> tuple[int, int, int]:
        """The panels, rows and columns of sums that a chunk holds at a time."""
        held = self.panels if self.holds_sums else 1
        tiles = 1 if self.keeps_panels else self.tiles
        return held, tiles * self.rows, self.columns

    @property
    def height(self) -> int:
        """The most rows that a tile has once all tiles are about as high."""
        rows = self.product.rows
        if not isinstance(rows, int):
            return self.rows
        return -(-rows // max(1, -(-rows // self.rows)))

    def workspaces(self) -> tuple[Size, ...]:
        """Return the bytes of the copied left operand and of the packed right one, if any."""
        made, sizes = self.product, []
        if self.copy_left:
            batch = product(made.left.batch) if not made.merged else 1
            tiles = made.rows if isinstance(made.rows, Dim) else -(-made.rows // self.rows)
            panel = made.steps * self.height + self.lanes
            sizes.append(batch * tiles * panel * made.dtype.itemsize)
        if self.source is Source.SHARED:
            padded = made.columns + self.columns - 1
            if isinstance(padded, int):
                padded = padded // self.columns * self.columns
            sizes.append(product(made.right.batch) * padded * made.steps * made.dtype.itemsize)
        return tuple(sizes)


def make_plan(made: Product, target: TargetDescription) -> GemmPlan:
    """Decide how a product is computed on a target."""
    made = in_pairs(made, target)
    rows, vectors, lanes = tile_of(made, target)
    row_bytes = vectors * lanes * made.dtype.itemsize
    depth = _depth_of_pass(made, target, row_bytes)
    tile_count = max(1, -(-static(made.rows, _SYMBOLIC) // rows))
    panel_count = max(1, -(-static(made.columns, _SYMBOLIC) // (vectors * lanes)))
    blocks = -(-tile_count // _most_tiles(target, made, rows, depth))
    if blocks > 1 and _fits_one_pass(made, target, row_bytes):
        depth = static(made.steps, depth)
        blocks = -(-tile_count // _tiles_of_deep_pass(target, made, rows, row_bytes))
    source = _source(made, target, blocks, vectors * lanes)
    tiles, panels = _chunk_shape(made, tile_count, panel_count, blocks)
    if config.get("FRAME_GRAIN"):
        tiles = panels = 1
    plan = GemmPlan(
        made,
        rows,
        vectors,
        lanes,
        depth,
        tiles,
        panels,
        _copies_left(made, panel_count, blocks),
        source,
    )
    if _is_shallow(plan, target):
        return _by_rows(plan, tile_count, panel_count)
    if _keeps_panels(plan, target):
        return _with_kept_panels(plan, target, tile_count, panel_count)
    return replace(plan, panels=max(1, min(plan.panels, _most_panels(plan))))


def _is_shallow(plan: GemmPlan, target: TargetDescription) -> bool:
    """Whether all packed panels of a product stay in the second-level cache.

    Chunks then write whole rows: panel by panel, each line of the result and of what the epilogue
    reads would be on a page of its own, which costs more than the panels do the less deep they are
    (1024 x 128 x 512 takes 15 % less by rows, 1024 x 32 x 1024 with an epilogue a third; AVX2).
    """
    made = plan.product
    sizes = (made.rows, made.columns, made.steps)
    if plan.source is not Source.LAYOUT or not all(isinstance(size, int) for size in sizes):
        return False
    panels = made.columns * made.steps * made.dtype.itemsize
    sums = plan.rows * made.columns * made.dtype.itemsize
    many = made.rows >= _ENOUGH_ROWS and made.steps <= _SHALLOW  # type: ignore[operator]
    return many and 2 * panels <= target.l2 and sums <= _LOCAL  # type: ignore[operator]


def _by_rows(plan: GemmPlan, tile_count: int, panel_count: int) -> GemmPlan:
    """Return the plan with chunks of whole rows."""
    made = plan.product
    batch = max(1, static(product(made.batch), 8))
    blocks = min(tile_count, max(1, -(-_MANY_CHUNKS // 4 // batch)))
    return replace(
        plan,
        depth=static(made.steps, plan.depth),
        tiles=1 if config.get("FRAME_GRAIN") else -(-tile_count // blocks),
        panels=panel_count,
        copy_left=_copies_left(made, panel_count, blocks),
        keeps_panels=True,
    )


def _keeps_panels(plan: GemmPlan, target: TargetDescription) -> bool:
    """Whether chunks keep some deep panels, packed by themselves, while all their rows pass by.

    Then no kernel packs before, and no thread reads what another one has packed. Rows of the left
    operand come from the third-level cache: two panels at least must share each of them. Panels
    of a packed layout are kept where rows are few, or panels too deep for the first-level cache
    (with constant weights, 512 x 512 x 512 takes 11 % less, 1024 x 1024 x 1024 6 %; AVX2).
    """
    made = plan.product
    keeps = plan.source in (Source.CHUNK, Source.SHARED)
    if plan.source is Source.LAYOUT and isinstance(made.rows, int):
        row_bytes = plan.columns * made.dtype.itemsize
        keeps = made.rows <= _ENOUGH_ROWS or _depth_of_pass(made, target, row_bytes) != made.steps
    return keeps and isinstance(made.steps, int) and _kept_panels(plan, target) >= 2


def _kept_panels(plan: GemmPlan, target: TargetDescription) -> int:
    """How many deep panels take three eighths of the second-level cache: two may take half of it.

    (2048 x 2048 x 2048 takes 5 % less than in passes; AVX2.) Where the rows of the left operand are
    few enough to stay near too, two deep panels leave them room (197 x 768 x 768 takes 7 % less).
    """
    made = plan.product
    depth = max(1, static(made.steps, plan.depth))
    row_bytes = plan.columns * made.dtype.itemsize
    panel = depth * row_bytes
    left = static(made.rows, _SYMBOLIC) * depth * made.dtype.itemsize
    is_near = 2 * left <= 3 * target.l2 and _depth_of_pass(made, target, row_bytes) < depth
    two = 2 if 4 * panel <= target.l2 else 1
    fit = two if is_near else max(two, target.l2 * 3 // 8 // panel)
    packed = _KEPT if plan.source is Source.LAYOUT else _KEPT_BYTES // panel
    return min(_KEPT, fit, packed)


def _with_kept_panels(
    plan: GemmPlan, target: TargetDescription, tile_count: int, panel_count: int
) -> GemmPlan:
    """Return the plan with chunks that keep panels."""
    grid = _stored_grid if plan.source is Source.LAYOUT else _packing_grid
    tiles, panels = grid(plan, _kept_panels(plan, target), tile_count, panel_count)
    grain = bool(config.get("FRAME_GRAIN"))
    kept = replace(
        plan,
        depth=static(plan.product.steps, plan.depth),
        tiles=1 if grain else tiles,
        panels=1 if grain else panels,
        copy_left=_copies_left(plan.product, panel_count, 2),
        source=plan.source if plan.source is Source.LAYOUT else Source.CHUNK,
        keeps_panels=True,
    )
    return replace(kept, ahead=_rows_ahead(kept), follows=_follows(kept, panel_count))


def _follows(plan: GemmPlan, panel_count: int) -> bool:
    """Whether calls of micro-kernels prefetch the panels of the next columns.

    Weights of a network are larger than the caches near a core: each panel is new when its first
    tile reads it, one line in fewer cycles than memory takes, across pages that hardware does not
    follow. Each call takes a quarter of a panel, so that four tiles of a chunk take all of it.
    Where rows are many, a panel is read so often that its first tile does not matter.
    """
    made = plan.product
    few = isinstance(made.rows, int) and made.rows <= _ENOUGH_ROWS
    enough = plan.tiles >= _LEAST_TILES and plan.panels < panel_count
    return plan.source is Source.LAYOUT and not made.pairs and few and enough


def _packing_grid(plan: GemmPlan, kept: int, tile_count: int, panel_count: int) -> tuple[int, int]:
    """Return tiles and panels of chunks of enough rows for the packing of their panels to pay."""
    made, rows = plan.product, tile_count * plan.rows
    batch = max(1, static(product(made.batch), 8))
    wanted = -(-_few_chunks(made, batch) // batch)
    across = -(-panel_count // kept)
    blocks = max(rows // _MANY_ROWS, min(-(-wanted // across), rows // _ENOUGH_ROWS), 1)
    across = max(across, min(panel_count, -(-wanted // blocks)))
    return -(-tile_count // blocks), -(-panel_count // across)


def _stored_grid(plan: GemmPlan, kept: int, tile_count: int, panel_count: int) -> tuple[int, int]:
    """Return tiles and panels of chunks that read stored panels.

    They are enough chunks if that can be, of about the same size, that read the least: each column
    of chunks reads the left operand once, each row of them the right one.
    """
    made = plan.product
    batch = max(1, static(product(made.batch), 8))
    wanted = -(-_wanted_chunks(made, batch) // batch)
    found = []
    for most in range(kept, 0, -1):
        across = -(-panel_count // most)
        blocks = max(1, min(-(-wanted // across), tile_count // _LEAST_TILES))
        tiles, panels = -(-tile_count // blocks), -(-panel_count // across)
        read = across * tile_count * plan.rows + blocks * panel_count * plan.columns
        uneven = across * panels * blocks * tiles / (panel_count * tile_count)
        found.append((-min(wanted, across * blocks), read * uneven, -panels, tiles))
    _, _, panels, tiles = min(found)
    return tiles, -panels


def _rows_ahead(plan: GemmPlan) -> int:
    """How many rows of the next tile the call for each panel prefetches.

    Their lines come from the third-level cache, six rows of as many pages at a time: more than
    hardware follows. Prefetched, a product of 1024 x 1024 x 1024 takes 10 to 20 % less (AVX2).
    """
    rows, left = plan.product.rows, plan.product.left
    if plan.copy_left or not isinstance(rows, int) or not runs_along_depth(left):
        return 0
    each = -(-plan.height // plan.panels)
    return each if each <= _MOST_AHEAD and rows > plan.height else 0


def _depth_of_pass(made: Product, target: TargetDescription, row_bytes: int) -> int:
    """Return the depth of equal passes whose panels stay in the first-level cache."""
    most = max(64, target.l1 * 3 // 4 // row_bytes)
    if isinstance(made.steps, Dim):
        return most // 8 * 8
    passes = max(1, -(-made.steps // most))
    depth = -(-made.steps // passes)
    return max(1, depth if passes == 1 else -(-depth // 8) * 8)


def _most_tiles(target: TargetDescription, made: Product, rows: int, depth: int) -> int:
    """How many tiles of the left operand take two thirds of the second-level cache."""
    return max(2, (target.l2 or target.l1) * 2 // 3 // (rows * depth * made.dtype.itemsize))


def _fits_one_pass(made: Product, target: TargetDescription, row_bytes: int) -> bool:
    """Whether one pass over the whole depth beats several that stay in the first-level cache.

    Sums are then written once and never read; panels stream from the second-level cache.
    """
    return isinstance(made.steps, int) and made.steps * row_bytes * _DEEP <= target.l2


def _tiles_of_deep_pass(target: TargetDescription, made: Product, rows: int, row_bytes: int) -> int:
    """How many tiles of the left operand take two fifths of the second-level cache.

    They are read in place, so their rows, and those of the result, lie on pages of their own. Where
    these and a panel are more pages than a first-level TLB holds, fewer tiles were measured to be
    faster; that the TLB is the cause was not measured.
    """
    depth = max(1, static(made.steps, _DEPTH))
    left_row = depth * made.dtype.itemsize
    result_row = min(_PAGE, static(made.columns, _SYMBOLIC) * made.dtype.itemsize)
    cached = target.l2 * 2 // 5 // (rows * left_row)
    translated = (_PAGES * _PAGE - depth * row_bytes) // (rows * (left_row + result_row))
    return max(2, min(cached, max(_LEAST_TILES, translated)))


def _most_panels(plan: GemmPlan) -> int:
    """How many panels of sums, and of packed columns, fit into the local memory of a chunk."""
    size = plan.columns * plan.product.dtype.itemsize
    sums = plan.panels
    if plan.holds_sums:
        sums = _LOCAL // (plan.sums[1] * size)
    packed = _LOCAL // (plan.depth * size) if plan.source is Source.CHUNK else plan.panels
    return min(sums, packed)


def _chunk_shape(made: Product, tiles: int, panels: int, blocks: int) -> tuple[int, int]:
    """Return the tiles and the panels of a chunk."""
    batch = max(1, static(product(made.batch), 8))
    chunks = _wanted_chunks(made, batch)
    across = max(1, min(panels, -(-chunks // (blocks * batch))))
    if across == panels and 2 * panels * batch < chunks:  # half as many will do: rows stay whole
        blocks = max(blocks, min(tiles, -(-chunks // (panels * batch))))
    return -(-tiles // blocks), -(-panels // across)


def _wanted_chunks(made: Product, batch: int) -> int:
    return max(_few_chunks(made, batch), min(_MANY_CHUNKS, _flops(made, batch) // _GOOD_FLOPS))


def _few_chunks(made: Product, batch: int) -> int:
    return max(1, min(_FEW_CHUNKS, _flops(made, batch) // _LEAST_FLOPS))


def _flops(made: Product, batch: int) -> int:
    sizes = (made.rows, made.columns, made.steps)
    return 2 * batch * math.prod(static(size, _SYMBOLIC) for size in sizes)


def _source(made: Product, target: TargetDescription, blocks: int, width: int) -> Source:
    right = made.right
    if right.layout == packed_layout(made, width):
        return Source.LAYOUT
    if _reads_in_place(made, target):
        return Source.PLACE
    return Source.CHUNK if blocks == 1 and not isinstance(made.rows, Dim) else Source.SHARED


def _reads_in_place(made: Product, target: TargetDescription) -> bool:
    right = made.right
    if (
        made.pairs
        or right.view is None
        or right.value.dtype != made.dtype
        or not _runs_along(right, True)
    ):
        return False
    return not strides_far(made, target) or static(made.rows, _SYMBOLIC) <= _FEW_ROWS


def strides_far(made: Product, target: TargetDescription) -> bool:
    """Whether the rows of a right operand, read in place, lie too far apart for the caches.

    Each row of a panel is then a line of its own in few sets of the first-level cache, and soon a
    page of its own. A packed operand is read in order.
    """
    size = static(made.columns, _SYMBOLIC) * static(made.steps, _DEPTH) * made.dtype.itemsize
    return size > max(target.l1, target.l2 // 8)


def _runs_along(matrix: Matrix, column: bool) -> bool:
    """Whether the elements of a view along rows (or columns) are next to each other."""
    axis, value = matrix.axis(column), matrix.value
    origin = None if axis is None or matrix.view is None else matrix.view.axes[axis]
    while value.node is not None:
        value = value.node.operands[0]
    return origin is not None and all(size == 1 for size in value.shape[origin + 1 :])


def runs_along_depth(matrix: Matrix) -> bool:
    """Whether a matrix is a view that is contiguous along the inner axis."""
    return matrix.view is not None and _runs_along(matrix, matrix.is_left)


def runs_across_depth(matrix: Matrix) -> bool:
    """Whether a matrix is a view that is contiguous along the outer axis."""
    return matrix.view is not None and _runs_along(matrix, not matrix.is_left)


def _copies_left(made: Product, panels: int, blocks: int) -> bool:
    """Whether to pack the left operand.

    Rows that are contiguous along depth are packed where one block of them meets many panels, each
    of which reads them again; otherwise they are read in place. Columns are read in place if they
    are short, or not read often.
    """
    left = made.left
    if left.view is None or left.value.dtype != made.stored:
        return True
    if made.pairs and not _has_pairs_in_rows(made):
        return True
    rows, depth = static(made.rows, _SYMBOLIC), static(made.steps, _DEPTH)
    if runs_along_depth(left):
        return blocks == 1 and panels >= _OFTEN and rows * depth >= _LARGE
    often = panels >= _REUSE and rows * depth >= _LARGE
    return often or depth > _SHORT or not runs_across_depth(left)


def _has_pairs_in_rows(made: Product) -> bool:
    """Whether the left operand, read in place, holds the elements of each step side by side."""
    whole = isinstance(made.depth, int) and made.depth % made.unit == 0
    return whole and runs_along_depth(made.left)


def packed_layout(made: Product, width: int) -> Layout:
    """Return the layout of a right operand [depth, columns] that is stored as panels."""
    column, row = (0, 1) if made.right.flipped else (1, 0)
    pairs = ((row, made.unit),) if made.pairs else ()
    return Layout((column, row), ((column, width), *pairs))
