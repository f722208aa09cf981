"""Copies of the operands of products into the order in which micro-kernels read them.

The right operand becomes panels [panel][depth][columns of a tile], padded with zeros; the left one
panels [tile][depth][rows of a tile].

    right:  for p in depth, for v in vectors      columns are contiguous in memory
              store v of row p
    right:  for squares of lanes x lanes          depth is contiguous: transposed in registers
    left:   for p in depth, by lanes              depth is contiguous: transposed in registers
    left:   for p in depth                        rows are contiguous
              store vectors of rows               the next row of the panel covers what is too much
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.core.dataclass import dataclass

Load = Callable[[Expr, Expr], Expr]
"""The element, or vector of elements, of a matrix at (row, column)."""

Save = Callable[[Expr, Expr, Expr], None]
"""Writes a value, or a vector of values, at (row, column)."""


def transposed(body: b.Body, vectors: list[Expr]) -> list[Expr]:
    """Return the columns of a square of vectors: as many as each has lanes, or words of lanes."""
    lanes, step = len(vectors), 1
    unit = vectors[0].type.lanes // lanes
    while step < lanes:
        low = _lanes_of([j if not j & step else lanes + j - step for j in range(lanes)], unit)
        high = _lanes_of([j + step if not j & step else lanes + j for j in range(lanes)], unit)
        following = list(vectors)
        for i in range(lanes):
            if not i & step:
                pair = vectors[i], vectors[i + step]
                following[i] = body.let("t", b.shuffle(*pair, low))
                following[i + step] = body.let("t", b.shuffle(*pair, high))
        vectors, step = following, 2 * step
    return vectors


def _lanes_of(words: list[int], unit: int) -> list[int]:
    return [unit * word + lane for word in words for lane in range(unit)]


def write_transposed(
    body: b.Body,
    load: Load,
    save: Save,
    rows: Expr,
    columns: Expr,
    lanes: int,
    whole: Expr | None = None,
) -> None:
    """Copy a matrix whose columns are contiguous into one whose rows are.

    Squares of vectors are transposed in registers; what is left over goes element by element. A
    vector may read the first `whole` of the rows, all by default.
    """
    whole = rows if whole is None else whole
    full_rows = body.let("full", b.mul(b.div(whole, lanes), lanes))
    full_columns = body.let("full", b.mul(b.div(columns, lanes), lanes))
    with (
        body.loop(b.div(whole, lanes), "rows") as i,
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


def write_row(
    body: b.Body,
    load: Callable[[Expr], Expr],
    save: Callable[[Expr, Expr], None],
    columns: Expr,
    lanes: int,
) -> None:
    """Copy one row, vectors first and then what is left over."""
    full = b.div(columns, lanes)
    with body.loop(full, "j") as j:
        place = b.ramp(b.mul(j, lanes), lanes)
        save(place, load(place))
    done = b.mul(full, lanes)
    if b.constant_value(b.sub(columns, done)) == 0:
        return
    with body.loop(b.sub(columns, done), "j") as j:
        column = b.add(done, j)
        save(column, load(column))


def write_left_panel(
    body: b.Body, load: Load, save: Callable[[Expr, Expr], None], shape: PanelShape
) -> None:
    """Pack a panel from an operand that is contiguous along depth.

    `load` reads at (row of the tile, depth); `save` writes at a place of the panel.
    """
    lanes, rows = shape.lanes, shape.rows
    groups = -(-rows // lanes)
    blocks = b.div(shape.whole, lanes)
    with body.loop(blocks, "p") as position:
        first = body.let("p", b.mul(position, lanes))
        columns: list[list[Expr]] = []
        for group in range(groups):
            lines = [min(group * lanes + lane, rows - 1) for lane in range(lanes)]
            square: dict[int, Expr] = {}
            for line in lines:
                if line not in square:
                    value = load(b.index(line), b.ramp(first, lanes))
                    square[line] = body.let("s", value)
            columns.append(transposed(body, [square[line] for line in lines]))
        # In order: what a vector has too much is overwritten by the next one.
        for lane in range(lanes):
            for group in range(groups):
                place = b.add(b.mul(b.add(first, lane), rows), group * lanes)
                save(b.ramp(place, lanes), columns[group][lane])
    done = b.mul(blocks, lanes)
    rest = b.sub(shape.depth, done)
    if b.constant_value(rest) == 0:
        return
    with body.loop(rest, "p") as position:
        p = body.let("p", b.add(done, position))
        for row in range(rows):
            save(b.add(b.mul(p, rows), row), load(b.index(row), p))


def write_left_rows(
    body: b.Body, load: Load, save: Callable[[Expr, Expr], None], shape: PanelShape
) -> None:
    """Pack a panel from an operand that is contiguous along rows; `load` stops at its end."""
    lanes, rows = shape.lanes, shape.rows
    with body.loop(shape.depth, "p") as p:
        for group in range(-(-rows // lanes)):
            place = b.add(b.mul(p, rows), group * lanes)
            save(b.ramp(place, lanes), load(b.ramp(group * lanes, lanes), p))


@dataclass(frozen=True, slots=True)
class PanelShape:
    """A panel of the left operand: rows of a tile, depth, and the lanes of a vector.

    A vector along depth may read `whole` of it.
    """

    rows: int
    depth: Expr
    whole: Expr
    lanes: int
