from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from frame.core.devices import Device
from frame.core.dtypes import bfloat16, float32
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.tensors import Tensor, from_numpy
from frame.data import DataLoader, Dataset, TensorDataset, digits

PREFETCHES = [0, 1, 3]


def dataset(rows: int = 10) -> TensorDataset:
    return TensorDataset([np.arange(rows * 2.0).reshape(rows, 2), np.arange(rows)])


def labels(loader: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("frame-data")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 30
    while prefetch_threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.005)
    assert prefetch_threads() == []


# --- TensorDataset --------------------------------------------------------------------------------


def test_dataset_shares_memory_and_gives_rows() -> None:
    column = np.arange(6, dtype=np.float32).reshape(3, 2)
    data = TensorDataset([column, from_numpy(np.arange(3)), [5, 6, 7]])
    assert len(data) == 3 and np.shares_memory(data.columns[0], column)
    batch = data.batch(np.array([2, 0]))
    assert [part.tolist() for part in batch] == [[[4, 5], [0, 1]], [2, 0], [7, 5]]
    assert isinstance(data, Dataset) and data[1][2] == 6
    assert repr(data) == "TensorDataset(3 rows: float32[3, 2], int64[3], int64[3])"


def test_dataset_takes_strided_and_bfloat16_columns() -> None:
    data = TensorDataset([np.arange(12.0).reshape(3, 4).T, np.ones((4, 0), bfloat16.numpy)])
    batch = data.batch(np.array([3]))
    assert batch[0].tolist() == [[3, 7, 11]] and batch[0].flags.c_contiguous
    assert batch[1].dtype == bfloat16.numpy and batch[1].shape == (1, 0)


class FarStorage:
    device = Device("fake")
    nbytes = 8


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "at least one column"),
        ([np.zeros(3), np.zeros(4)], r"received columns of \[3, 4\] rows"),
        ([np.zeros((0, 3))], "at least one row"),
        ([np.float32(1)], "column 0: expected rows along axis 0"),
        ([np.zeros(2), Tensor(FarStorage(), (2,), float32)], r"column 1: .* on fake:0"),
        ([np.array(["a"])], "dtypes"),
        (np.zeros((2, 3)), r"TensorDataset\(\[images, labels\]\), received one ndarray"),
    ],
)
def test_bad_datasets(columns: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TensorDataset(columns)


def test_subset_and_split() -> None:
    data = dataset(10)
    assert data.subset([3, 1]).columns[1].tolist() == [3, 1]
    first, second = data.split(0.7, seed=1)
    assert len(first) == 7 and len(second) == 3
    assert sorted([*first.columns[1], *second.columns[1]]) == list(range(10))
    assert data.split(0.7, seed=1)[1].columns[1].tolist() == second.columns[1].tolist()
    assert (first.columns[0][:, 0] == 2 * first.columns[1]).all()
    for bad in ([], [-1], [10], [0.5], [[1]]):
        with pytest.raises(InvalidArgumentError, match="row indices"):
            data.subset(bad)
    for fraction in (0, 1, 0.01, -1):
        with pytest.raises(InvalidArgumentError, match="both sides"):
            data.split(fraction)


# --- DataLoader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", PREFETCHES)
@pytest.mark.parametrize(
    ("rows", "size", "drop_last", "expected"),
    [
        (5, 2, True, [[0, 1], [2, 3]]),
        (5, 2, False, [[0, 1], [2, 3], [4]]),
        (10, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        (10, 4, True, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 2, False, [[0, 1], [2, 3]]),
        (2, 5, False, [[0, 1]]),
    ],
)
def test_batch_boundaries(
    rows: int, size: int, drop_last: bool, expected: list[list[int]], prefetch: int
) -> None:
    loader = DataLoader(dataset(rows), size, drop_last=drop_last, prefetch=prefetch)
    assert labels(loader) == expected and len(loader) == len(expected)


def test_shuffle_depends_on_seed_and_epoch_alone() -> None:
    runs = [
        [
            labels(DataLoader(dataset(50), 8, shuffle=True, seed=seed, prefetch=prefetch))
            for prefetch in PREFETCHES
        ]
        for seed in (0, 1)
    ]
    assert runs[0][0] == runs[0][1] == runs[0][2] and runs[0][0] != runs[1][0]
    assert sorted(row for batch in runs[0][0] for row in batch) == list(range(50))
    loader = DataLoader(dataset(50), 8, shuffle=True)
    epochs = [labels(loader) for _ in range(3)]
    assert epochs[0] == runs[0][0] and epochs[0] != epochs[1] != epochs[2] and loader.epoch == 3
    loader.set_epoch(1)
    assert labels(loader) == epochs[1] and labels(loader) == epochs[2]
    loader.set_epoch(1, batch=3)
    assert labels(loader) == epochs[1][3:] and labels(loader) == epochs[2]


def test_rows_stay_together_and_batches_own_their_memory() -> None:
    data = dataset(20)
    for x, y in DataLoader(data, 6, shuffle=True):
        assert (x[:, 0] == 2 * y).all() and x.flags.c_contiguous
        assert not np.shares_memory(x, data.columns[0])


def test_concurrent_iterations_are_separate_epochs() -> None:
    loader = DataLoader(dataset(20), 4, shuffle=True)
    pairs = list(zip(loader, loader, strict=True))
    first = [a[1].tolist() for a, _ in pairs]
    second = [b[1].tolist() for _, b in pairs]
    loader.set_epoch(0)
    assert labels(loader) == first and labels(loader) == second


class Failing:
    def __init__(self, rows: int, bad: int) -> None:
        self.rows, self.bad, self.calls = rows, bad, 0

    def __len__(self) -> int:
        return self.rows

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        self.calls += 1
        if self.bad in indices:
            raise OSError(f"row {self.bad} can't be read")
        return (indices, indices)


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_errors_arrive_at_their_batch_and_end_the_iteration(prefetch: int) -> None:
    iterator = iter(DataLoader(Failing(10, 5), 2, prefetch=prefetch))
    assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="row 5"):
        next(iterator)
    if prefetch:
        assert list(iterator) == []
        wait_for_no_threads()


def test_at_most_prefetch_batches_are_made_ahead() -> None:
    data = Failing(100, -1)
    iterator = iter(DataLoader(data, 1, prefetch=3))
    next(iterator)
    deadline = time.monotonic() + 30
    while data.calls < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert data.calls == 4
    del iterator
    wait_for_no_threads()


def test_threads_end_with_the_iteration() -> None:
    loader = DataLoader(Failing(100, -1), 1, prefetch=2)
    for _ in loader:
        break
    for _ in range(5):
        list(loader)
    held = iter(loader)
    next(held)
    assert len(prefetch_threads()) >= 1
    held.close()  # type: ignore[attr-defined]
    assert list(held) == []
    wait_for_no_threads()


def test_small_batches_of_arrays_take_no_thread() -> None:
    rows = np.arange(40 * 8192, dtype=np.float32).reshape(40, 8192)  # 32 KiB a row
    for batch, threads in ((2, 0), (3, 1)):
        iterator = iter(DataLoader(TensorDataset([rows]), batch))
        assert np.array_equal(next(iterator)[0], rows[:batch])
        assert len(prefetch_threads()) == threads
        del iterator
        wait_for_no_threads()


def test_an_abandoned_iteration_does_not_hang_the_exit() -> None:
    code = (
        "import numpy as np; from frame.data import *\n"
        "kept = iter(DataLoader(TensorDataset([np.zeros((9, 9000))]), 1, prefetch=4)); next(kept)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stderr=subprocess.STDOUT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_iteration_that_was_begun_before_a_fork_says_so() -> None:
    code = (
        "import os, numpy as np; from frame.data import *\n"
        "from frame.core.errors import InvalidArgumentError\n"
        "loader = DataLoader(TensorDataset([np.zeros((10, 9000))]), 1)\n"
        "kept = iter(loader); next(kept)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: next(kept)\n"
        "    except InvalidArgumentError: os._exit(7 if len(list(loader)) == 10 else 1)\n"
        "    os._exit(2)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size to be an integer of at least 1, received 0"),
        ({"batch_size": -2}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"prefetch": -1}, "prefetch"),
        ({"batch_size": 11, "drop_last": True}, "10 rows are fewer than batch_size 11"),
    ],
)
def test_bad_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        DataLoader(dataset(10), **arguments)


def test_bad_loaders() -> None:
    with pytest.raises(InvalidArgumentError, match="received .*a ndarray"):
        DataLoader(np.zeros(3), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="0 rows"):
        DataLoader(Failing(0, 0), 1)
    loader = DataLoader(dataset(10), 4)
    for epoch, batch in ((-1, 0), (0, 4), (0.5, 0)):
        with pytest.raises(InvalidArgumentError):
            loader.set_epoch(epoch, batch)  # type: ignore[arg-type]
    assert "batch_size=4" in repr(loader)


# --- digits ---------------------------------------------------------------------------------------


def test_digits() -> None:
    data = digits()
    assert data.train_images.shape == (1437, 1, 8, 8) and data.test_images.shape == (360, 1, 8, 8)
    for images, numbers in (data[:2], data[2:]):
        assert images.dtype == np.float32 and numbers.dtype == np.int64
        assert images.min() == 0 and images.max() == 1
        assert sorted(set(numbers.tolist())) == list(range(10)) and len(images) == len(numbers)
    # The file starts with the digits 0, 1, 2, ... in order; every fifth row is a test row.
    assert data.test_labels[:2].tolist() == [0, 5]
    assert data.train_labels[:8].tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert digits().test_labels.tolist() == data.test_labels.tolist()


def test_missing_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(sys.modules["frame.data.bundled"], "_FILE", tmp_path / "digits.npz")
    with pytest.raises(NotFoundError, match="digits"):
        digits()


def test_small_batches_are_those_of_the_dataset_and_nobody_elses() -> None:
    """They are cut from larger copies: writing to one changes neither another nor the rows."""
    rows = np.arange(700, dtype=np.float32).reshape(100, 7)
    data = TensorDataset((rows, np.arange(100)))
    loader = DataLoader(data, 8, shuffle=True, seed=3)
    want = [data.batch(part) for part in loader._index_parts(0)]
    for (x, y), (wx, wy) in zip(loader, want, strict=True):
        assert np.array_equal(x, wx) and np.array_equal(y, wy) and x.flags.c_contiguous
        x[:] = -1
    assert rows.min() == 0
    loader.set_epoch(0, 5)
    assert len([*loader]) == len(want) - 5
