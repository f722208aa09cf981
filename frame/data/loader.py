"""Batches of a dataset, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from frame.core.arguments import flag, whole
from frame.core.errors import InvalidArgumentError
from frame.core.philox import permutation
from frame.data.datasets import Batch, Dataset, TensorDataset

_AT_ONCE = 1 << 16
"""Bytes of a batch of a TensorDataset that is made when it is asked for: copying so few takes some
10 us, handing a batch over from another thread takes 50 to 90."""

_BLOCK = 1 << 20
"""Bytes of such batches that are copied at once: twenty copies of one batch take thrice as long."""

_SHUFFLE_STREAM = 0x73687566  # "shuf": apart from the streams of a model with the same seed


class DataLoader:
    """Iterates over a dataset in batches: one iteration is one epoch, the next is the next epoch.

    A batch is a tuple of numpy arrays, one a column, the rows along axis 0. Without `drop_last`
    the last batch may be shorter. With `shuffle` the order is that of Philox for (seed, epoch).
    `prefetch` batches are made ahead on one thread, which ends with the iteration, also when the
    iteration is abandoned; 0 makes each batch when it is asked for, and so are small batches of a
    TensorDataset, which take less time than a thread.

    Raises:
        InvalidArgumentError: an argument is out of its range, the dataset is empty, or `drop_last`
            leaves no batch at all.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int = 1,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise InvalidArgumentError(
                "expected a dataset with __len__ and batch(indices), such as "
                f"TensorDataset([x, y]), received {dataset!r:.80} (a {type(dataset).__name__})"
            )
        self.dataset = dataset
        self.batch_size = whole("DataLoader", "batch_size", batch_size, 1)
        self.shuffle = flag("DataLoader", "shuffle", shuffle)
        self.seed = whole("DataLoader", "seed", seed, 0, 2**64 - 1)
        self.drop_last = flag("DataLoader", "drop_last", drop_last)
        self.prefetch = whole("DataLoader", "prefetch", prefetch, 0)
        self._epoch = self._skipped = 0
        if len(dataset) == 0:
            raise InvalidArgumentError("expected a dataset of at least one row, received 0 rows")
        if len(self) == 0:
            raise InvalidArgumentError(
                f"drop_last leaves no batch: {len(dataset)} rows are fewer than batch_size "
                f"{batch_size}"
            )

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iteration will be."""
        return self._epoch

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Resume: the next iteration is `epoch`, from its batch number `batch` on.

        Raises:
            InvalidArgumentError: the epoch is negative, or it has no such batch.
        """
        epoch, batch = (
            whole("DataLoader", "epoch", epoch, 0),
            whole("DataLoader", "batch", batch, 0),
        )
        if batch > len(self):
            raise InvalidArgumentError(f"expected a batch from 0 to {len(self)}, received {batch}")
        self._epoch, self._skipped = epoch, batch

    def __len__(self) -> int:
        rows = len(self.dataset)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        parts = self._index_parts(self._epoch)[self._skipped :]
        self._epoch, self._skipped = self._epoch + 1, 0
        if self._is_quick():
            return self._from_blocks(parts)
        if self.prefetch == 0:
            return map(self.dataset.batch, parts)
        return _PrefetchingIterator(self.dataset, parts, self.prefetch)

    def _is_quick(self) -> bool:
        """Whether a batch takes less time than handing it over from a thread."""
        # A subclass may have a `batch` of its own, for which a batch is a unit.
        return type(self.dataset) is TensorDataset and self._batch_bytes() <= _AT_ONCE

    def _batch_bytes(self) -> int:
        first = self.dataset.batch(np.zeros(1, np.int64))
        return sum(column.nbytes for column in first) * self.batch_size

    def _from_blocks(self, parts: list[npt.NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield batches of a TensorDataset as views of blocks that nothing else refers to."""
        many = max(1, _BLOCK // max(1, self._batch_bytes()))
        for first in range(0, len(parts), many):
            group = parts[first : first + many]
            block = self.dataset.batch(np.concatenate(group))
            end = 0
            for part in group:
                start, end = end, end + len(part)
                yield tuple(column[start:end] for column in block)

    def _index_parts(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Return the row indices of each batch of an epoch."""
        rows = len(self.dataset)
        if self.shuffle:
            order = permutation(self.seed, _SHUFFLE_STREAM, rows, iteration=epoch)
        else:
            order = np.arange(rows, dtype=np.int64)
        starts = range(0, len(self) * self.batch_size, self.batch_size)
        return [order[start : start + self.batch_size] for start in starts]

    def __repr__(self) -> str:
        return (
            f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle}, "
            f"seed={self.seed}, drop_last={self.drop_last}, prefetch={self.prefetch})"
        )


class _PrefetchingIterator:
    """One epoch whose next batches are made on a thread of its own.

    The thread never refers to this object, so that an abandoned iteration is collected, and its
    finalizer (which the interpreter's exit runs too) ends the thread.
    """

    def __init__(self, dataset: Dataset, parts: list[npt.NDArray[np.int64]], prefetch: int) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="frame-data")
        self._stop = weakref.finalize(
            self, self._executor.shutdown, wait=False, cancel_futures=True
        )
        self._dataset = dataset
        self._parts = iter(parts)
        self._pending: collections.deque[Future[Batch]] = collections.deque()
        self._process = os.getpid()
        for _ in range(prefetch):
            self._submit()

    def _submit(self) -> None:
        part = next(self._parts, None)
        if part is not None:
            self._pending.append(self._executor.submit(self._dataset.batch, part))

    def __iter__(self) -> _PrefetchingIterator:
        return self

    def __next__(self) -> Batch:
        if self._process != os.getpid():
            raise InvalidArgumentError(
                "this iteration began before the process was forked, and its prefetch thread is in "
                "the parent; iterate over the DataLoader again"
            )
        if not self._pending:
            self.close()
            raise StopIteration
        try:
            batch = self._pending.popleft().result()
        except BaseException:
            self.close()
            raise
        self._submit()
        return batch

    def close(self) -> None:
        """End the iteration and its thread; a batch that is being made is finished first."""
        self._pending.clear()
        self._parts = iter(())
        self._stop()
