"""What a call owns: its frame until the status is read, its outputs until it drops them."""

from __future__ import annotations

import ctypes
import sys
import threading
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


class _Interface:
    """What knows an array by its interface alone, and holds it as the protocol asks."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


HOLDERS = {
    "the array": lambda array: array,
    "a view": lambda array: array[3:5],
    "a view of a view": lambda array: array.T[1:].reshape(-1, order="F"),
    "a memoryview": memoryview,
    "a part of a memoryview": lambda array: memoryview(array).cast("B")[8:400],
    "a DLPack capsule": lambda array: array.__dlpack__(),
    "an array from DLPack": np.from_dlpack,
    "a Tensor": frame.from_numpy,
    "a Tensor from DLPack": frame.from_dlpack,
    "an array of its bytes": lambda array: np.frombuffer(array, np.uint8),
    "an array of its interface": lambda array: np.asarray(_Interface(array)),
    "a pointer of ctypes": lambda array: array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
    "an iterator": lambda array: array.flat,
}


def _seen(holder: object) -> np.ndarray:
    """Return a copy of what a holder sees; a capsule is consumed for that."""
    if type(holder).__name__ == "PyCapsule":
        holder = frame.from_dlpack(holder)
    if isinstance(holder, np.flatiter):
        return holder.copy()
    if isinstance(holder, ctypes._Pointer):
        return np.ctypeslib.as_array(holder, (256 * 256,)).copy()
    return np.array(holder, copy=True)


@pytest.mark.parametrize("name", HOLDERS)
def test_what_holds_a_result_keeps_it(name: str) -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((256, 256))])
    x = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)
    wanted = _seen(HOLDERS[name](x + 1))
    holder = HOLDERS[name](model(x))
    for value in range(12):
        model(np.full_like(x, value))
    np.testing.assert_array_equal(_seen(holder), wanted)


def _transposed_in_place(array: np.ndarray) -> None:
    array.strides = array.strides[::-1]


def _other_dtype(array: np.ndarray) -> None:
    array.dtype = np.int32


def _other_byte_order(array: np.ndarray) -> None:
    array.dtype = array.dtype.newbyteorder()


CHANGES = {
    "read-only": lambda array: array.setflags(write=False),
    "transposed": _transposed_in_place,
    "another dtype": _other_dtype,
    "another byte order": _other_byte_order,
    "another shape": lambda array: array.resize((65536, 1), refcheck=False),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_a_result_that_was_changed_in_place_is_not_given_out_again(name: str) -> None:
    """A user may do to his array what he likes; the next results are as fresh ones."""
    model = frame.compile(lambda x: x + 1.0, [frame.spec((256, 256))])
    x = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)
    for _ in range(3):
        result = model(x)
        CHANGES[name](result)
        del result
    for _ in range(8):
        result = model(x)
        assert result.flags.writeable
        np.testing.assert_array_equal(result, x + 1, strict=True)


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


def test_native_calls_release_the_lock_of_the_interpreter() -> None:
    """Else no other thread runs between the beginning of a call and the line behind its end."""
    model = frame.compile(lambda x: x @ x @ x, [frame.spec((700, 700))])
    x = np.ones((700, 700), np.float32)
    model(x)

    def seen_during_a_call() -> bool:
        begun, ended = threading.Event(), []

        def call() -> None:
            begun.set()
            model(x)
            ended.append(True)

        thread = threading.Thread(target=call)
        thread.start()
        begun.wait()
        during = not ended
        thread.join()
        return during

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the thread gives the lock away in the native call or not at all
    try:
        assert any(seen_during_a_call() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)
