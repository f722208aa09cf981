"""Micro-kernels of matrix products: a tile of the result, held in registers over the inner axis.

    for p in depth                         carried: rows x vectors accumulators
      load `vectors` vectors of row p of b
      [prefetch a line of the rows ahead]  once in some steps
      [prefetch a row of a following panel]  once in some steps
      for r in rows                        unrolled
        broadcast a[r, p]
        accumulator[r, v] += a[r, p] * b[p, v]

Kernels are functions that every product of a module shares: all strides are arguments, so one
kernel reads packed panels and plain matrices alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Call, Expr, Kernel, Type, Var, View
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, bfloat16
from frame.core.targets import TargetDescription

_LINE = 64  # bytes that one prefetch brings, at least
MOST_STEPS = 4
"""The most steps that are unrolled, also between two prefetches."""

NOTE = __doc__.split("\n\n")[1]


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one micro-kernel: `rows` x (`vectors` of `lanes` elements).

    A `masked` kernel reads no column of b at or beyond its argument `columns`. Without `fused` the
    target has no fused multiply-add. With `ahead` the kernel prefetches that many rows of a that
    are read later, with `following` one row in `MOST_STEPS` of a panel that is read later. Without
    them, `steps` of them are one trip of the loop. With `pairs` each element of a and b is two of
    bfloat16, whose dot product a step adds.
    """

    dtype: DType
    rows: int
    vectors: int
    lanes: int
    fused: bool
    masked: bool = False
    ahead: int = 0
    steps: int = 1
    pairs: bool = False
    following: bool = False

    @property
    def columns(self) -> int:
        """How many columns the tile has."""
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        """The name of the kernel, the same for equal tiles only."""
        stored = bfloat16 if self.pairs else self.dtype
        parts = ("product", stored, f"{self.rows}x{self.vectors}x{self.lanes}")
        ahead = f"ahead{self.ahead}" if self.ahead else ""
        steps = f"by{self.steps}" if self.steps > 1 else ""
        following = "following" if self.following else ""
        masked, unfused = "masked" if self.masked else "", "" if self.fused else "unfused"
        flags = (masked, unfused, ahead, following, steps)
        return "_".join(str(part) for part in (*parts, *flags) if part)


def register_tile(target: TargetDescription) -> tuple[int, int]:
    """Return the rows and vectors of the tile that keeps the multiply-add units of a target busy.

    Accumulators, the vectors of one row of b and one broadcast fill the registers. Two vectors
    across are enough to hide the loads, and keep panels narrow: AVX2 6x16, AVX-512 14x32.
    """
    vectors = 2 if target.vector_registers >= 9 else 1
    return max(1, (target.vector_registers - 1 - vectors) // vectors), vectors


@functools.cache
def product_kernel(tile: Tile) -> Kernel:
    """Return the micro-kernel c (+)= a @ b of a tile.

    Its buffers are c, a and b, then the rows ahead and rows of a following panel if there are any;
    its scalars the depth, the strides of a row and of a column of a, of a row of b, of a row of c,
    whether to add to c, and the columns to read where it is masked.
    """
    depth, a_row, a_column, b_row, c_row, add, columns = (
        Var(name)
        for name in ("depth", "a_row", "a_column", "b_row", "c_row", "accumulate", "columns")
    )
    dtype = tile.dtype
    c = Buffer("c", dtype, (tile.rows, tile.columns), (c_row, 1))
    a, right, ahead = _operands(tile, depth, (a_row, a_column), b_row)
    body = b.Body()
    masks = _masks(body, tile, columns)
    places = [b.ramp(v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
    if tile.pairs:
        step = functools.partial(_step_of_pairs, body, tile, (a, right))
    else:
        reads = list(zip(places, masks, strict=True))
        step = functools.partial(_step, body, tile, (a, right), reads)
    zero = b.const(0.0, Type(dtype, tile.lanes))
    sums: Sequence[Expr] = [zero] * (tile.rows * tile.vectors)
    done: Expr = b.index(0)
    following = _following(tile, depth, b_row)
    if tile.ahead or tile.following:
        lines = _Lines(ahead if tile.ahead else None, following if tile.following else None)
        done, sums = _fold_ahead(body, lines, depth, step, sums)
    elif tile.steps > 1:
        done, sums = _fold_groups(body, tile.steps, depth, step, sums)
    with body.fold(b.sub(depth, done), sums, "p") as folding:
        folding.next = step(b.add(done, folding.index), folding.values)
    targets = [(b.index(r), place) for r in range(tile.rows) for place in places]
    if tile.ahead or tile.following:  # of products of one pass alone
        for target, result in zip(targets, folding.results, strict=True):
            body.store(c, target, result)
    else:
        _store_or_add(body, c, add, list(zip(targets, folding.results, strict=True)))
    scalars = (depth, a_row, a_column, b_row, c_row, add)
    prefetched = [*([ahead] if tile.ahead else []), *([following] if tile.following else [])]
    return Kernel(
        tile.name,
        (c, a, right, *prefetched),
        (*scalars, columns) if tile.masked else scalars,
        body.block(),
        NOTE,
    )


def _operands(
    tile: Tile, depth: Var, a_strides: tuple[Var, Var], b_row: Var
) -> tuple[Buffer, Buffer, Buffer]:
    """Return the buffers a, b, and the rows ahead; the pairs of a step are next to each other."""
    if not tile.pairs:
        a = Buffer("a", tile.dtype, (tile.rows, depth), a_strides)
        right = Buffer("b", tile.dtype, (depth, tile.columns), (b_row, 1))
        return a, right, Buffer("ahead", tile.dtype, (tile.ahead, depth), a_strides)
    a = Buffer("a", bfloat16, (tile.rows, depth, 2), (*a_strides, 1))
    right = Buffer("b", bfloat16, (depth, 2 * tile.columns), (b_row, 1))
    return a, right, Buffer("ahead", bfloat16, (tile.ahead, depth), a_strides)


def _store_or_add(
    body: b.Body, c: Buffer, add: Var, sums: Sequence[tuple[tuple[Expr, Expr], Expr]]
) -> None:
    """Store the sums of the first pass, add those of the others."""
    with body.when(b.eq(add, 0)):
        for target, result in sums:
            body.store(c, target, result)
    with body.otherwise():
        for target, result in sums:
            body.store(c, target, b.add(b.load(c, target), result))


def _step(
    body: b.Body,
    tile: Tile,
    operands: tuple[Buffer, Buffer],
    places: Sequence[tuple[Expr, Expr | None]],
    p: Expr,
    sums: Sequence[Expr],
) -> list[Expr]:
    """Write one step of the inner axis and return the sums after it."""
    a, right = operands
    row = [body.let("b", b.load(right, [p, place], mask)) for place, mask in places]
    following = []
    for r in range(tile.rows):
        factor = body.let("a", b.broadcast(b.load(a, [r, p]), tile.lanes))
        for v in range(tile.vectors):
            value = sums[r * tile.vectors + v]
            following.append(body.let("acc", multiply_add(tile.fused, factor, row[v], value)))
    return following


def _step_of_pairs(
    body: b.Body, tile: Tile, operands: tuple[Buffer, Buffer], p: Expr, sums: Sequence[Expr]
) -> list[Expr]:
    """Write one step that takes a pair of the inner axis, and return the sums after it."""
    a, right = operands
    wide = 2 * tile.lanes
    row = [body.let("b", b.load(right, [p, b.ramp(v * wide, wide)])) for v in range(tile.vectors)]
    following = []
    for r in range(tile.rows):
        pair = b.load(a, [r, p, b.ramp(0, 2)])
        factor = body.let("a", b.shuffle(pair, pair, (0, 1) * tile.lanes))
        for v in range(tile.vectors):
            value = sums[r * tile.vectors + v]
            following.append(body.let("acc", b.pair_dot(factor, row[v], value)))
    return following


def _fold_groups(
    body: b.Body,
    size: int,
    depth: Expr,
    step: Callable[[Expr, Sequence[Expr]], list[Expr]],
    sums: Sequence[Expr],
) -> tuple[Expr, Sequence[Expr]]:
    """Write groups of `size` steps; return how many steps they are, and the sums after them."""
    count = b.div(depth, size)
    with body.fold(count, sums, "group") as folding:
        p = body.let("p", b.mul(folding.index, size))
        values: Sequence[Expr] = folding.values
        for i in range(size):
            values = step(b.add(p, i), values)
        folding.next = values
    return body.let("done", b.mul(count, size)), folding.results


@dataclass(frozen=True, slots=True)
class _Lines:
    """What a kernel prefetches: rows of a, rows of a panel of b."""

    ahead: Buffer | None
    following: Buffer | None


def _following(tile: Tile, depth: Expr, b_row: Var) -> Buffer:
    """Return the rows of a following panel that one call prefetches."""
    return Buffer("following", tile.dtype, (b.div(depth, MOST_STEPS), tile.columns), (b_row, 1))


def _fold_ahead(
    body: b.Body,
    lines: _Lines,
    depth: Expr,
    step: Callable[[Expr, Sequence[Expr]], list[Expr]],
    sums: Sequence[Expr],
) -> tuple[Expr, Sequence[Expr]]:
    """Write groups of steps, each of which prefetches some lines.

    Returns how many steps they are, and the sums after them.
    """
    group = MOST_STEPS
    if lines.ahead is not None and lines.following is None:
        group = _steps_of_line(lines.ahead)
    count = b.div(depth, group)
    with body.fold(count, sums, "group") as folding:
        p = body.let("p", b.mul(folding.index, group))
        if lines.ahead is not None:
            _prefetch_ahead(body, lines.ahead, depth, p)
        if lines.following is not None:
            _prefetch_row(body, lines.following, folding.index)
        values: Sequence[Expr] = folding.values
        for i in range(group):
            values = step(b.add(p, i), values)
        folding.next = values
    return body.let("done", b.mul(count, group)), folding.results


def _prefetch_ahead(body: b.Body, ahead: Buffer, depth: Expr, p: Expr) -> None:
    """Prefetch the line of the rows ahead that is due in a step.

    A step reads the size of an element of each row. The rows are taken one after the other:
    hardware follows one run of lines better than several.
    """
    rows = int(ahead.shape[0])  # type: ignore[arg-type]
    element = body.let("element", b.mul(p, rows))
    row: Expr = b.index(0)
    column: Expr = element
    for r in range(1, rows):
        begun = b.ge(element, b.mul(depth, r))
        row = b.select(begun, b.index(r), row)
        column = b.select(begun, b.sub(element, b.mul(depth, r)), column)
    body.prefetch(ahead, [row, column])


def _prefetch_row(body: b.Body, panel: Buffer, row: Expr) -> None:
    """Prefetch all lines of a row of a panel."""
    columns = int(panel.shape[1])  # type: ignore[arg-type]
    for column in range(0, columns, max(1, _LINE // panel.dtype.itemsize)):
        body.prefetch(panel, [row, b.index(column)])


def _steps_of_line(ahead: Buffer) -> int:
    """In how many steps a line of the rows ahead is due: a power of two, few enough to unroll."""
    steps = _LINE // ahead.dtype.itemsize // int(ahead.shape[0])  # type: ignore[arg-type]
    return min(MOST_STEPS, 1 << max(0, steps.bit_length() - 1))


def multiply_add(fused: bool, x: Expr, y: Expr, z: Expr) -> Expr:
    """Return x * y + z, with one rounding where the target can."""
    return b.fma(x, y, z) if fused else b.add(b.mul(x, y), z)


def _masks(body: b.Body, tile: Tile, columns: Var) -> list[Expr | None]:
    """Which lanes of each vector of b are read."""
    if not tile.masked:
        return [None] * tile.vectors
    return [
        body.let("inside", b.lt(b.ramp(v * tile.lanes, tile.lanes), columns))
        for v in range(tile.vectors)
    ]


def call_product(tile: Tile, views: Sequence[View], scalars: Sequence[b.Operand]) -> Call:
    """Return a call of the micro-kernel of a tile; the arguments are those of `product_kernel`."""
    return Call(tile.name, tuple(views), tuple(b.as_index(scalar) for scalar in scalars))
