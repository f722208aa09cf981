"""Copies of the operands of products into the order in which micro-kernels read them.

The right operand becomes panels [panel][depth][columns of a tile], padded with zeros; the left one
a plain row-major matrix, where it is not one already.

    panel:  for p in depth, for v in vectors      columns are contiguous in memory
            store v of row p
    panel:  for blocks of lanes x lanes           depth is contiguous: transposed in registers
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr

Load = Callable[[Expr, Expr], Expr]
"""The element, or vector of elements, of a matrix at (row, column)."""

Save = Callable[[Expr, Expr, Expr], None]
"""Writes a value, or a vector of values, at (row, column)."""


def transposed(body: b.Body, vectors: list[Expr]) -> list[Expr]:
    """Return the columns of a square of vectors (as many as each has lanes)."""
    lanes, step = len(vectors), 1
    while step < lanes:
        low = [j if not j & step else lanes + j - step for j in range(lanes)]
        high = [j + step if not j & step else lanes + j for j in range(lanes)]
        following = list(vectors)
        for i in range(lanes):
            if not i & step:
                pair = vectors[i], vectors[i + step]
                following[i] = body.let("t", b.shuffle(*pair, low))
                following[i + step] = body.let("t", b.shuffle(*pair, high))
        vectors, step = following, 2 * step
    return vectors


def write_transposed(
    body: b.Body, load: Load, save: Save, rows: Expr, columns: Expr, lanes: int
) -> None:
    """Copy a matrix whose columns are contiguous into one whose rows are.

    Squares of vectors are transposed in registers; what is left over goes element by element.
    """
    full_rows = body.let("full", b.mul(b.div(rows, lanes), lanes))
    full_columns = body.let("full", b.mul(b.div(columns, lanes), lanes))
    with (
        body.loop(b.div(rows, lanes), "rows") as i,
        body.loop(b.div(columns, lanes), "columns") as j,
    ):
        first = body.let("r", b.mul(i, lanes))
        start = body.let("c", b.mul(j, lanes))
        square = [
            body.let("s", load(b.ramp(first, lanes), b.add(start, lane))) for lane in range(lanes)
        ]
        for lane, vector in enumerate(transposed(body, square)):
            save(b.add(first, lane), b.ramp(start, lanes), vector)
    _write_elements(body, load, save, (b.index(0), rows), (full_columns, columns))
    _write_elements(body, load, save, (full_rows, rows), (b.index(0), full_columns))


def _write_elements(
    body: b.Body, load: Load, save: Save, rows: tuple[Expr, Expr], columns: tuple[Expr, Expr]
) -> None:
    if any(b.constant_value(b.sub(end, start)) == 0 for start, end in (rows, columns)):
        return
    with (
        body.loop(b.sub(columns[1], columns[0]), "j") as j,
        body.loop(b.sub(rows[1], rows[0]), "i") as i,
    ):
        row, column = b.add(rows[0], i), b.add(columns[0], j)
        save(row, column, load(row, column))


def write_row(body: b.Body, load: Load, save: Save, row: Expr, columns: Expr, lanes: int) -> None:
    """Copy one row, vectors first and then what is left over."""
    full = body.let("full", b.mul(b.div(columns, lanes), lanes))
    with body.loop(b.div(columns, lanes), "j") as j:
        place = b.ramp(b.mul(j, lanes), lanes)
        save(row, place, load(row, place))
    if b.constant_value(b.sub(columns, full)) == 0:
        return
    with body.loop(b.sub(columns, full), "j") as j:
        column = b.add(full, j)
        save(row, column, load(row, column))


def write_padding(body: b.Body, panel: Buffer, prefix: tuple[Expr, ...], columns: Expr) -> None:
    """Fill the columns of a panel row from `columns` on with zeros."""
    width = panel.shape[-1]
    if b.constant_value(columns) == width:
        return
    with body.loop(b.sub(b.as_index(width), columns), "j") as j:
        body.store(panel, [*prefix, b.add(columns, j)], 0.0)
