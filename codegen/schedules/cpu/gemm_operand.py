"""The operands of a matrix product: where their elements are, through views of captures."""

from __future__ import annotations

from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr
from frame.codegen.schedules.access import Reader, aligned
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.group import Group, Index
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, bfloat16
from frame.core.shapes import Dim, Shape, Size
from frame.ir.graph import ROW_MAJOR, Graph, Layout, Node, Value


@dataclass(frozen=True, slots=True)
class Strided:
    """A value that is a view of a capture: for each of its axes, the axis of the capture or None
    where the view repeats one element."""

    capture: int
    axes: tuple[int | None, ...]

    def place(self, rank: int, index: Index) -> Index:
        """Return the index into the capture of `rank` axes for an index of the value."""
        place: list[Expr] = [b.index(0)] * rank
        for axis, i in zip(self.axes, index, strict=True):
            if axis is not None:
                place[axis] = i
        return tuple(place)

    def stride(self, memory: Buffer, axis: int) -> int | Expr:
        """Return the elements between neighbours along an axis of the value."""
        origin = self.axes[axis]
        return 0 if origin is None else b.strides_of(memory)[origin]


def resolve(body: Graph, value: Value) -> Strided | None:
    """Return a value as a view of a capture, None where it is computed."""
    axes: list[int | None] = list(range(value.rank))
    while value.node is not None:
        step = _VIEWS.get(value.node.op)
        if step is None:
            return None
        axes = step(value.node, axes)
        value = value.node.operands[0]
    return Strided(body.input_values.index(value), tuple(axes))


def _through_expand(node: Node, axes: list[int | None]) -> list[int | None]:
    source = node.operands[0]
    added = node.results[0].rank - source.rank
    below = [axis if source.shape[axis] != 1 else None for axis in range(source.rank)]
    moved: list[int | None] = [*[None] * added, *below]
    return [None if axis is None else moved[axis] for axis in axes]


def _through_reshape(node: Node, axes: list[int | None]) -> list[int | None]:
    """A reshape in a body only adds or drops axes of size 1."""
    kept = [axis for axis, size in enumerate(node.operands[0].shape) if size != 1]
    rest = iter(kept)
    moved = [next(rest) if size != 1 else None for size in node.results[0].shape]
    return [None if axis is None else moved[axis] for axis in axes]


_VIEWS = {
    "expand": _through_expand,
    "reshape": _through_reshape,
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of a product as a batch of matrices [*batch, rows, columns].

    `flipped` says that memory holds columns before rows; `is_vector` that the operand has rank 1
    and that its missing axis is the row (of a left operand) or the column (of a right one).
    """

    value: Value
    flipped: bool
    is_vector: bool
    is_left: bool
    view: Strided | None

    @property
    def batch(self) -> Shape:
        """The sizes of its own batch axes."""
        return self.value.shape[:-2]

    @property
    def dtype(self) -> DType:
        """The element type that the product computes with."""
        return compute_dtype(self.value.dtype)

    @property
    def layout(self) -> Layout:
        """The layout of the capture behind the operand."""
        return self.value.type.layout if self.value.node is None else ROW_MAJOR

    def axis(self, column: bool) -> int | None:
        """Return the axis of the value that rows (or columns) run along, None if it has none."""
        if self.is_vector:
            return 0 if column == self.is_left else None
        last = self.value.rank - 1
        return last if column != self.flipped else last - 1

    def index(self, batch: Index, row: Expr, column: Expr) -> Index:
        """Return the index of the value for an index of the batch of the result."""
        if self.is_vector:
            return (column,) if self.is_left else (row,)
        last = (column, row) if self.flipped else (row, column)
        return (*self.own_batch(batch), *last)

    def own_batch(self, batch: Index) -> Index:
        """Return the index of its own batch axes for one of the product.

        The index is empty where the axes of the product have joined the rows. The one matrix that
        these rows meet may still have batch axes, all of size 1.
        """
        if not batch:
            return tuple(b.index(0) for _ in self.batch)
        return aligned(self.batch, batch)

    def stride(self, memory: Buffer, column: bool) -> int | Expr:
        """Return the stride of rows (or columns) of an operand that is a view."""
        axis = self.axis(column)
        return 0 if axis is None or self.view is None else self.view.stride(memory, axis)


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product [*batch, rows, depth] @ [*batch, depth, columns] of a group.

    With `merged` axes, that many batch axes and the rows of the left operand run as one row axis,
    which is how a matrix meets a batch of rows. `meets_matrices` says that the epilogue reads
    captures as large as the result. With `pairs` micro-kernels read bfloat16, two neighbours of the
    inner axis in a step.
    """

    node: Node
    left: Matrix
    right: Matrix
    batch: Shape
    rows: Size
    columns: Size
    depth: Size
    meets_matrices: bool = False
    merged: Shape = ()
    pairs: bool = False

    @property
    def dtype(self) -> DType:
        """The element type of the sums."""
        return self.left.dtype

    @property
    def stored(self) -> DType:
        """The element type of what micro-kernels read."""
        return bfloat16 if self.pairs else self.dtype

    @property
    def unit(self) -> int:
        """The elements of the inner axis that one step of a micro-kernel takes.

        Together they are as wide as one element of the sums.
        """
        return 2 if self.pairs else 1

    @property
    def steps(self) -> Size:
        """The steps over the inner axis; for a symbolic one, as many as it may be at most."""
        if isinstance(self.depth, Dim):
            return self.depth
        return -(-self.depth // self.unit)

    def split_row(self, group: Group, batch: Index, row: Expr, body: b.Body) -> tuple[Index, Expr]:
        """Return the batch index and the row of the left operand for a row of the product."""
        if not self.merged:
            return batch, row
        parts = [body.let("m", i) for i in unflatten(row, group.extents(self.merged))]
        return tuple(parts[:-1]), parts[-1]

    def result_index(self, batch: Index, row: Expr, column: Expr) -> Index:
        """Return the index of the result for a batch index, a row and a column."""
        rows = () if self.left.is_vector else (row,)
        columns = () if self.right.is_vector else (column,)
        return (*batch, *rows, *columns)


def product_of(body: Graph) -> Product:
    """Return the product of a contraction group."""
    node = next(n for n in body.nodes if n.op == "matmul")
    flags = (node.attributes["transpose_a"], node.attributes["transpose_b"])
    left, right = (
        Matrix(value, flag, value.rank == 1, position == 0, resolve(body, value))
        for position, (value, flag) in enumerate(zip(node.operands, flags, strict=True))
    )
    result = node.results[0].shape
    spare = (not left.is_vector) + (not right.is_vector)
    batch = result[: len(result) - spare]
    row_axis, column_axis, depth_axis = left.axis(False), right.axis(True), left.axis(True)
    rows = 1 if row_axis is None else left.value.shape[row_axis]
    columns = 1 if column_axis is None else right.value.shape[column_axis]
    inner_axis = 0 if depth_axis is None else depth_axis
    others = (v for v in body.input_values if v not in node.operands)
    meets = any(value.shape == result for value in others)
    depth = left.value.shape[inner_axis]
    made = Product(node, left, right, batch, rows, columns, depth, meets)
    return _merge_rows(made)


def _merge_rows(made: Product) -> Product:
    """Let the batch axes join the rows where the right operand is one matrix for all of them."""
    left, right = made.left, made.right
    alone = all(size == 1 for size in right.batch)
    if not made.batch or not alone or left.flipped or left.is_vector:
        return made
    if left.batch != made.batch or left.view is None:
        return made
    if left.view.axes != tuple(range(left.value.rank)):
        return made
    merged = (*made.batch, made.rows)
    rows = product(merged)
    if rows == 1:  # a single row keeps its batch axes of size 1
        return made
    return replace(made, batch=(), rows=rows, merged=merged)


def element(reader: Reader, matrix: Matrix, batch: Index, row: Expr, column: Expr) -> Expr:
    """Return an element, or a vector of elements, of an operand."""
    return reader.load(matrix.value, matrix.index(batch, row, column))
