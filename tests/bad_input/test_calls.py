"""What a compiled model says to inputs that do not fit, and what it computes from odd arrays.

Every message says what was expected and what was received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import ops
from frame.core.errors import InvalidArgumentError, OutOfMemoryError

X = np.arange(24, dtype=np.float32).reshape(3, 8)
Y = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(scope="module")
def product() -> Any:
    specs = {"x": frame.spec(("n", 8)), "y": frame.spec((8, 4))}
    return frame.compile(lambda x, y: x @ y, specs)


READ_ONLY = np.zeros((3, 4), np.float32)
READ_ONLY.flags.writeable = False

CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda m: m(X[:, :5], Y), r"'x'.*expected float32\[n, 8\], received shape \[3, 5\]"),
    "rank": (lambda m: m(X[0], Y), r"'x'.*expected float32\[n, 8\], received shape \[8\]"),
    "dtype": (lambda m: m(X.astype(int), Y), r"'x'.*expected float32.*received dtype int64"),
    "complex": (lambda m: m(X.astype(complex), Y), "expected float32.*received dtype complex128"),
    "records": (lambda m: m(np.zeros((3, 8), "f4,f4"), Y), "expected float32.*received dtype void"),
    "dates": (lambda m: m(np.zeros((3, 8), "M8[s]"), Y), "expected float32.*received dtype dateti"),
    "objects": (lambda m: m(np.array([object()]), Y), "expected float32.*received dtype object"),
    "none": (lambda m: m(None, Y), "expected float32.*received dtype object"),
    "text": (lambda m: m("abc", Y), "expected float32.*received dtype str"),
    "scalar": (lambda m: m(1.0, Y), r"'x'.*expected float32\[n, 8\], received shape \[\]"),
    "ragged": (lambda m: m([[1.0], [2, 3]], Y), "'x'.*expected an array of float32.*received list"),
    "too few": (lambda m: m(X), r"needs the input 'y'; it takes x: .*y: "),
    "none at all": (lambda m: m(), "needs the input .x.; it takes x: "),
    "too many": (lambda m: m(X, Y, Y), "takes x: .*, y: .*, received 3 positional inputs"),
    "misnamed": (lambda m: m(X, z=Y), r"received 'z' which it does not take; it takes x.*y"),
    "twice": (lambda m: m(X, Y, x=X), "received 'x' twice"),
    "output shape": (
        lambda m: m(X, Y, out=[np.zeros((3, 5), np.float32)]),
        r"expected an array of float32\[3, 4\], received float32\[3, 5\]",
    ),
    "output read-only": (lambda m: m(X, Y, out=[READ_ONLY]), "expected a writable, row-major"),
    "output count": (lambda m: m(X, Y, out=[]), "expected 1 output arrays, received 0"),
    "output bare": (lambda m: m(X, Y, out=READ_ONLY), "expected a list of 1.*received ndarray"),
    "output number": (lambda m: m(X, Y, out=3), "expected a list of 1 arrays.*received int"),
    "output text": (lambda m: m(X, Y, out=["a"]), "expected an array of float32.*received str"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_does_not_fit(product: Any, name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(InvalidArgumentError, match=message):
        call(product)
    np.testing.assert_allclose(product(X, Y), X @ Y)  # and the model goes on


class _Subclass(np.ndarray):
    pass


def _unaligned() -> np.ndarray:
    array = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
    array[:] = X
    return array


def _read_only() -> np.ndarray:
    array = X.copy()
    array.flags.writeable = False
    return array


ARRAYS: dict[str, Callable[[], Any]] = {
    "column-major": lambda: np.asfortranarray(X),
    "every second": lambda: np.repeat(X, 2, 1)[:, ::2],
    "backwards": lambda: X[::-1].copy()[::-1],
    "big-endian": lambda: X.astype(">f4"),
    "big-endian, strided": lambda: np.repeat(X, 2, 0).astype(">f4")[::2],
    "read-only": _read_only,
    "unaligned": _unaligned,
    "subclass": lambda: X.view(_Subclass),
    "memory map view": lambda: memoryview(X),
    "tensor": lambda: frame.from_numpy(X),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_odd_arrays_give_the_right_result(product: Any, name: str) -> None:
    given = ARRAYS[name]()
    for _ in range(2):  # the second call takes the way of shapes that are known
        np.testing.assert_allclose(np.asarray(product(given, Y)), X @ Y, rtol=1e-6)


def test_a_broadcast_array_of_stride_zero(product: Any) -> None:
    given = np.broadcast_to(np.float32(2), (5, 8))
    np.testing.assert_allclose(product(given, Y), given @ Y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int16", "uint64"])
@pytest.mark.parametrize("order", ["native", "swapped"])
def test_byte_order_and_strides_of_every_kind(dtype: str, order: str) -> None:
    spec = frame.spec((4,), dtype)
    if dtype == "bfloat16" and order == "swapped":
        pytest.skip("numpy has no other byte order of it")
    model = frame.compile(lambda x: x + x, [spec])
    values = np.arange(8).astype(spec.dtype.numpy)
    given = values.astype(values.dtype.newbyteorder()) if order == "swapped" else values
    expected = (values + values)[::2]
    assert model(given[::2]).tobytes() == expected.tobytes()


def test_sizes_of_zero_and_no_dimensions(product: Any) -> None:
    assert product(X[:0], Y).shape == (0, 4)
    empty = frame.compile(lambda x, y: (x @ y, ops.sum(x, (1,))), [(3, 0), (0, 4)])
    outer, sums = empty(np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32))
    assert np.array_equal(outer, np.zeros((3, 4))) and np.array_equal(sums, np.zeros(3))
    single = frame.compile(lambda x: x * x, [()])
    for given in (3, 3.0, np.float64(3), np.array(3, np.float32)):
        assert single(given).shape == () and single(given) == 9


def test_masked_elements_are_refused_and_a_mask_of_nothing_is_not(product: Any) -> None:
    """An array whose mask is dropped in silence would give results of what was masked out."""
    masked = np.ma.masked_array(X, X > 20)
    plain = np.ma.masked_array(X, np.zeros(X.shape, bool))
    times = frame.jit(lambda x, y: x @ y)
    debug = frame.eager(lambda x, y: x @ y)
    for call in (product, times, debug):
        message = r"without masked elements, received float32\[3, 8\] with 3.*\.filled"
        with pytest.raises(InvalidArgumentError, match=message):
            call(masked, Y)
        for _ in range(2):
            np.testing.assert_allclose(call(plain, Y), X @ Y, rtol=1e-6)


@pytest.mark.parametrize("calls_before", [0, 3])
def test_masked_elements_do_not_hide_results(product: Any, calls_before: int) -> None:
    out = np.ma.masked_array(np.zeros((3, 4), np.float32), [[True, False, False, False]] * 3)
    for _ in range(calls_before):
        product(X, Y, out=[np.empty(out.shape, out.dtype)])
    with pytest.raises(InvalidArgumentError, match="output 0 is a masked array"):
        product(X, Y, out=[out])
    assert not out.data.any()
    product(X, Y, out=[out.data])
    np.testing.assert_allclose(out.data, X @ Y, rtol=1e-6)


SCALARS = [
    ("int8", 1000), ("int8", np.int64(-129)), ("uint8", -1), ("int32", 1.5),
    ("int32", float("nan")), ("int64", 2**70), ("bool", 2), ("float32", 10**400),
    ("float32", 1e300), ("float32", np.complex64(1 + 2j)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value"), SCALARS, ids=str)
def test_a_number_that_the_dtype_can_not_hold_is_refused(dtype: str, value: Any) -> None:
    model = frame.compile(lambda x: ops.stop_gradient(x), [frame.spec((), dtype)])
    with pytest.raises(InvalidArgumentError, match=f"'x': expected a number that {dtype} can hold"):
        model(value)


def test_numbers_that_fit_are_taken() -> None:
    for dtype, value in (("int8", -128), ("uint8", np.int64(255)), ("int32", 2.0), ("bool", 1)):
        model = frame.compile(lambda x: ops.stop_gradient(x), [frame.spec((), dtype)])
        assert model(value) == value
    model = frame.compile(lambda x: x + 0.0, [()])
    assert np.isnan(model(float("nan"))) and np.isinf(model(float("inf")))


INDICES = [
    ([5], 0, 5), ([-1], 0, -1), ([0, 4, 2**62], 2, 2**62), ([0, -(2**63)], 1, -(2**63)),
    ([4, 3, 9, -4], 2, 9),
]  # fmt: skip


@pytest.mark.parametrize(("indices", "position", "value"), INDICES, ids=str)
def test_an_index_out_of_range_names_op_position_and_value(
    indices: list[int], position: int, value: int
) -> None:
    model = frame.compile(
        lambda x, i: ops.gather(x, i, 0), [(5, 3), frame.spec(("n",), "int64")]
    )  # fmt: skip
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    message = f"gather.*position {position} is {value}, expected a value from 0 to 4"
    with pytest.raises(InvalidArgumentError, match=message):
        model(table, np.array(indices))
    assert np.array_equal(model(table, np.array([4, 0])), table[[4, 0]])


def test_an_empty_table_takes_no_index() -> None:
    model = frame.compile(
        lambda x, i: ops.gather(x, i, 0), [(0, 3), frame.spec(("n",), "int64")]
    )  # fmt: skip
    table = np.zeros((0, 3), np.float32)
    assert model(table, np.zeros(0, np.int64)).shape == (0, 3)
    with pytest.raises(InvalidArgumentError, match="expected none, as the axis is empty"):
        model(table, np.array([0]))


def test_indices_of_scatter_add() -> None:
    model = frame.compile(
        lambda u, i: ops.scatter_add(u, i, shape=(4, 2)),
        [("n", 2), frame.spec(("n",), "int32")],
    )
    updates = np.ones((3, 2), np.float32)
    with pytest.raises(
        InvalidArgumentError, match="position 1 is -1, expected a value from 0 to 3"
    ):
        model(updates, np.array([0, -1, 9], np.int32))
    with pytest.raises(InvalidArgumentError, match=r"expected int32\[n\].*other inputs have n = 3"):
        model(updates, np.array([0], np.int32))
    assert model(updates, np.array([0, 0, 3], np.int32))[:, 0].tolist() == [2, 0, 0, 1]


def test_results_beyond_all_memory_are_an_error_and_no_crash() -> None:
    outer = frame.compile(lambda x: x @ ops.transpose(x, (1, 0)), [("n", 1)])
    with pytest.raises(OutOfMemoryError, match="could not get memory for an output of float32"):
        outer(np.broadcast_to(np.float32(1), (2**22, 1)))
    with pytest.raises(OutOfMemoryError, match="'x'.*could not get memory for a row-major copy"):
        outer(np.broadcast_to(np.float32(1), (2**44, 1)))
    assert outer(np.ones((2, 1), np.float32)).tolist() == [[1, 1], [1, 1]]


def test_intermediate_values_beyond_all_memory() -> None:
    rows, columns = 2**22, 2**22

    def build(x: Any) -> Any:
        return ops.sum(ops.expand(x, (rows, columns)) @ ops.expand(x, (columns, 3)))

    model = frame.compile(build, [(1, 1)])
    with pytest.raises(OutOfMemoryError, match="bytes for intermediate values"):
        model(np.ones((1, 1), np.float32))


def test_outputs_that_share_memory_are_refused_and_stay_as_they_are() -> None:
    model = frame.compile(lambda x: (x + 1.0, x + 2.0), [frame.spec((4,))])
    memory = np.zeros(6, np.float32)
    for out in ([memory[:4], memory[:4]], [memory[:4], memory[2:]]):
        with pytest.raises(InvalidArgumentError, match="outputs 0 and 1 share memory"):
            model(np.ones(4, np.float32), out=out)
    assert not memory.any()
    apart = np.zeros(8, np.float32)
    model(np.ones(4, np.float32), out=[apart[:4], apart[4:]])
    assert apart.tolist() == [2.0] * 4 + [3.0] * 4


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_masked_array_is_refused_and_not_computed_with(product: Any, calls_before: int) -> None:
    for _ in range(calls_before):
        product(X, Y)
    masked = np.ma.masked_array(X, mask=X > 20)
    expected = r"'x': expected an array without masked elements, received float32\[3, 8\] with 3 "
    for call in (lambda: product(masked, Y), lambda: product(x=masked, y=Y)):
        with pytest.raises(InvalidArgumentError, match=expected):
            call()
    np.testing.assert_array_equal(product(masked.filled(0), Y), np.where(X > 20, 0, X) @ Y)
    whole = np.ma.masked_array(X)
    np.testing.assert_array_equal(product(whole, Y), X @ Y)
