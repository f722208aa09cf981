"""The arrays of a call against a signature, without any backend."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame.core.errors import InvalidArgumentError
from frame.hal.interfaces import Port, Signature
from frame.hal.ports import bind_inputs, copy_results

SIGNATURE = Signature(
    (Port("x", frame.spec(("2*n", 3))), Port("y", frame.spec(("n",), "int64"))),
    (Port("z", frame.spec(("n",))),),
    ("n",),
    updates=(0,),
)
X, Y = np.ones((4, 3), np.float32), np.arange(2)


def test_inputs_are_native_and_bind_symbols() -> None:
    arrays, bindings = bind_inputs(SIGNATURE, [X.astype(">f4"), Y])
    assert bindings == {"n": 2} and arrays[1] is Y
    assert arrays[0].dtype.isnative and np.array_equal(arrays[0], X)


def _read_only() -> np.ndarray:
    array = X.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([X], r"expected 2 inputs \(x, y\), received 1"),
        ([X, [0, 1]], r"input 1 \('y'\): expected an array of int64\[n\], received list"),
        ([X, Y.astype(np.int32)], r"input 1 \('y'\).*received dtype int32 with shape \[2\]; conv"),
        ([X[:, :2], Y], r"input 0 \('x'\).*received shape \[4, 2\]"),
        ([X, np.arange(3)], r"input 1 \('y'\).*received shape \[3\].*the other inputs have n = 2"),
        ([_read_only(), Y], r"input 0 \('x'\) is overwritten by the run.*pass a copy"),
    ],
)
def test_what_does_not_fit_is_named(inputs: list[object], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        bind_inputs(SIGNATURE, inputs)


def test_results_go_into_arrays_of_their_type_alone() -> None:
    result, memory = np.arange(2, dtype=np.float32), np.zeros(4, np.float32)
    copy_results(SIGNATURE, [result], [memory[::2]])
    assert memory.tolist() == [0, 0, 1, 0]
    locked = np.zeros(2, np.float32)
    locked.flags.writeable = False
    for wrong, expected in (
        ([], "expected 1 output arrays, received 0"),
        ([memory], r"out for 'z': expected float32\[2\], received float32\[4\]"),
        ([None], "received NoneType"),
        ([locked], "the array is read-only"),
    ):
        with pytest.raises(InvalidArgumentError, match=expected):
            copy_results(SIGNATURE, [result], wrong)
