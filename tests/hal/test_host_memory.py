"""Memory of the host: arrays in one block."""

from __future__ import annotations

import pytest

from frame.core.dtypes import bfloat16, bool_, float32, int64
from frame.core.errors import OutOfMemoryError
from frame.hal.host import arrays_together
from frame.ir.graph import Layout, TensorType

TYPES = (
    TensorType(float32, (3, 5)),
    TensorType(int64, ()),
    TensorType(bfloat16, (7,)),
    TensorType(bool_, (0, 4)),
    TensorType(float32, (4, 20), Layout((1, 0), ((1, 16),))),
    TensorType(float32, (1 << 19,)),
)


def test_arrays_together_are_apart_and_begin_lines():
    arrays = arrays_together(TYPES)
    for number, (array, type_) in enumerate(zip(arrays, TYPES, strict=True)):
        assert array.shape == type_.storage_shape
        assert array.dtype == type_.dtype.numpy
        assert array.flags.writeable and array.ctypes.data % 64 == 0
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == array.dtype.type(number)).all()


def test_no_array_takes_a_block():
    assert arrays_together([]) == []


def test_too_much_memory_is_an_error_of_ours():
    with pytest.raises(OutOfMemoryError, match="could not allocate"):
        arrays_together([TensorType(float32, (1 << 59,))])
