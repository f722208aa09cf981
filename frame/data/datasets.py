"""Datasets: what a DataLoader takes batches from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from frame.core.devices import HOST
from frame.core.errors import InvalidArgumentError
from frame.core.philox import permutation
from frame.core.tensors import Tensor, as_tensor

Array: TypeAlias = np.ndarray[Any, Any]
Batch: TypeAlias = tuple[Array, ...]

_SPLIT_STREAM = 0x73706C74  # "splt": apart from the streams of a model with the same seed


@runtime_checkable
class Dataset(Protocol):
    """Rows that can be fetched by index. Implement it to read or augment data in your own way.

    `batch` is called from the prefetch thread, one call at a time. A dataset whose last column is
    integer labels may have them all as an array `labels`: a task then checks them before it begins.
    """

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the rows at `indices`: one array a column, the rows along axis 0."""


class TensorDataset:
    """Columns in host memory whose rows belong together, such as images and labels.

    Columns are numpy arrays, host Tensors or anything else `frame.core.as_tensor` takes; their
    memory is shared, not copied.

    Raises:
        InvalidArgumentError: there is no column or no row, a column has rank 0, lies on another
            device, or has another number of rows than the first.
    """

    def __init__(self, columns: Iterable[Any]) -> None:
        single = isinstance(columns, (np.ndarray, Tensor, str, bytes))
        if single or not isinstance(columns, Iterable):
            raise InvalidArgumentError(
                "expected a sequence of columns, such as TensorDataset([images, labels]), "
                f"received one {type(columns).__name__}: {columns!r:.80}"
            )
        self._columns = tuple(
            _checked_column(position, column) for position, column in enumerate(columns)
        )
        if not self._columns:
            raise InvalidArgumentError("expected at least one column, received none")
        rows = [len(column) for column in self._columns]
        if len(set(rows)) != 1:
            raise InvalidArgumentError(
                f"expected columns with equal numbers of rows, received columns of {rows} rows"
            )
        if rows[0] == 0:
            raise InvalidArgumentError("expected a dataset of at least one row, received 0 rows")

    @property
    def columns(self) -> Batch:
        """The columns as numpy arrays."""
        return self._columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return tuple(column[row] for column in self._columns)

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.dtype}{list(column.shape)}" for column in self._columns)
        return f"TensorDataset({len(self)} rows: {columns})"

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return copies of the rows at `indices`, dense, one array a column."""
        return tuple(np.take(column, indices, axis=0) for column in self._columns)

    def subset(self, indices: Any) -> TensorDataset:
        """Return a dataset of copies of the rows at `indices`.

        Raises:
            InvalidArgumentError: there is no index, or one is not an integer in [0, rows).
        """
        return TensorDataset(self.batch(checked_rows(indices, len(self))))

    def split(self, fraction: float, seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
        """Return two datasets of randomly chosen rows, the first with `fraction` of them.

        Raises:
            InvalidArgumentError: one of the two would be empty.
        """
        first, second = random_halves(len(self), fraction, seed)
        return self.subset(first), self.subset(second)


Rows: TypeAlias = npt.NDArray[np.int64]


def checked_rows(indices: Any, count: int) -> Rows:
    """Return the indices of some of `count` rows.

    Raises:
        InvalidArgumentError: there is no index, or one is not an integer in [0, count).
    """
    rows = np.asarray(indices)
    if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"expected a list of row indices, received {rows.dtype}{list(rows.shape)}"
        )
    if rows.min() < 0 or rows.max() >= count:
        raise InvalidArgumentError(
            f"expected row indices from 0 to {count - 1}, received {rows.min()} to {rows.max()}"
        )
    return rows.astype(np.int64)


def random_halves(rows: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Return the indices of `fraction` of the rows, randomly chosen, and those of the others.

    Raises:
        InvalidArgumentError: one of the two would be empty.
    """
    count = round(fraction * rows)
    if not 0 < count < rows:
        raise InvalidArgumentError(
            f"expected a fraction that leaves rows on both sides, received {fraction} of "
            f"{rows} rows"
        )
    order = permutation(seed, _SPLIT_STREAM, rows)
    return np.sort(order[:count]), np.sort(order[count:])


def _checked_column(position: int, column: Any) -> Array:
    tensor = as_tensor(column)
    if tensor.device != HOST:
        raise InvalidArgumentError(
            f"column {position}: expected host memory, received a tensor on {tensor.device}; "
            "call .to('cpu') first"
        )
    if tensor.ndim == 0:
        raise InvalidArgumentError(
            f"column {position}: expected rows along axis 0, received a scalar"
        )
    return tensor.numpy()
