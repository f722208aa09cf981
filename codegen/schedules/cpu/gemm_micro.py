"""Micro-kernels of matrix products: a tile of the result, held in registers over the inner axis.

    for p in depth                         carried: rows x vectors accumulators
      load `vectors` vectors of row p of b
      for r in rows                        unrolled
        broadcast a[r, p]
        accumulator[r, v] += a[r, p] * b[p, v]

Kernels are functions that every product of a module shares: all strides are arguments, so one
kernel reads packed panels and plain matrices alike.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Call, Expr, Kernel, Type, Var, View
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.targets import TargetDescription

NOTE = __doc__.split("\n\n")[1]


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one micro-kernel: `rows` x (`vectors` of `lanes` elements).

    A `masked` kernel reads no column of b at or beyond its argument `columns`. Without `fused` the
    target has no fused multiply-add.
    """

    dtype: DType
    rows: int
    vectors: int
    lanes: int
    fused: bool
    masked: bool = False

    @property
    def columns(self) -> int:
        """How many columns the tile has."""
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        """The name of the kernel, the same for equal tiles only."""
        parts = ("product", self.dtype, f"{self.rows}x{self.vectors}x{self.lanes}")
        flags = ("masked" if self.masked else "", "" if self.fused else "unfused")
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

    Its buffers are c, a and b; its scalars the depth, the strides of a row and of a column of a, of
    a row of b, of a row of c, whether to add to c, and the columns to read where it is masked.
    """
    depth, a_row, a_column, b_row, c_row, add, columns = (
        Var(name)
        for name in ("depth", "a_row", "a_column", "b_row", "c_row", "accumulate", "columns")
    )
    dtype = tile.dtype
    c = Buffer("c", dtype, (tile.rows, tile.columns), (c_row, 1))
    a = Buffer("a", dtype, (tile.rows, depth), (a_row, a_column))
    right = Buffer("b", dtype, (depth, tile.columns), (b_row, 1))
    body = b.Body()
    masks = _masks(body, tile, columns)
    places = [b.ramp(v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
    zero = b.const(0.0, Type(dtype, tile.lanes))
    with body.fold(depth, [zero] * (tile.rows * tile.vectors), "p") as folding:
        p, values, following = folding.index, folding.values, []
        row = [
            body.let("b", b.load(right, [p, place], mask))
            for place, mask in zip(places, masks, strict=True)
        ]
        for r in range(tile.rows):
            factor = body.let("a", b.broadcast(b.load(a, [r, p]), tile.lanes))
            for v in range(tile.vectors):
                value = values[r * tile.vectors + v]
                following.append(body.let("acc", multiply_add(tile.fused, factor, row[v], value)))
        folding.next = following
    targets = [(b.index(r), place) for r in range(tile.rows) for place in places]
    with body.when(b.eq(add, 0)):
        for target, result in zip(targets, folding.results, strict=True):
            body.store(c, target, result)
    with body.otherwise():
        for target, result in zip(targets, folding.results, strict=True):
            body.store(c, target, b.add(b.load(c, target), result))
    scalars = (depth, a_row, a_column, b_row, c_row, add)
    return Kernel(
        tile.name,
        (c, a, right),
        (*scalars, columns) if tile.masked else scalars,
        body.block(),
        NOTE,
    )


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


def call_product(tile: Tile, c: View, a: View, right: View, scalars: Sequence[b.Operand]) -> Call:
    """Return a call of the micro-kernel of a tile; `scalars` are those of `product_kernel`."""
    return Call(tile.name, (c, a, right), tuple(b.as_index(scalar) for scalar in scalars))
