"""What a call owns: its frame until the status is read, its outputs until it drops them."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
import pytest

import frame
from frame.backends.cpu import frames
from frame.core.errors import BadIndexError


class _TakenAtOnce(deque):
    """A free list from which another call takes each frame at once, and clears its status."""

    def append(self, frame_) -> None:
        for word in range(4):
            frame_.status[word] = 0
        super().append(frame_)


@pytest.mark.parametrize("calls_before", [0, 2], ids=["checked", "usual"])
def test_a_bad_index_is_read_before_another_call_may_take_the_frame(calls_before: int) -> None:
    model = frame.compile(
        lambda x, i: frame.ops.gather(x, i),
        {"x": frame.spec((5,)), "i": frame.spec((3,), "int64")},
    )
    x, good = np.arange(5, dtype=np.float32), np.array([0, 1, 2])
    for _ in range(calls_before):
        model(x, good)
    prepared = model.entry("infer")._call()
    prepared._executable.frames = prepared._frames = _TakenAtOnce()
    with pytest.raises(BadIndexError, match="index at position 1 is 9"):
        model(x, np.array([0, 9, 2]))


def test_a_recycled_array_is_given_out_again_only_when_nobody_holds_it() -> None:
    recycler, float32 = frames.Recycler([]), np.dtype(np.float32)
    first = recycler.take((4,), float32)
    second = recycler.take((4,), float32)
    assert second is not first
    address = first.ctypes.data
    view = first[1:]
    del first
    assert recycler.take((4,), float32).ctypes.data != address  # the view still holds it
    del view
    assert recycler.take((4,), float32).ctypes.data == address


def test_the_count_of_one_holder_is_measured_and_not_a_number_of_one_release(monkeypatch) -> None:
    class Interpreter:
        """Python 3.14, where the argument of getrefcount is borrowed."""

        @staticmethod
        def getrefcount(thing: object) -> int:
            return sys.getrefcount(thing) - 2  # this call's own two

    monkeypatch.setattr(frames, "sys", Interpreter)
    monkeypatch.setattr(frames, "_COUNT_OF_ONE_HOLDER", frames._count_of_one_holder())
    recycler, float32 = frames.Recycler([]), np.dtype(np.float32)
    first = recycler.take((4,), float32)
    assert recycler.take((4,), float32) is not first
    address = first.ctypes.data
    del first
    assert recycler.take((4,), float32).ctypes.data == address
