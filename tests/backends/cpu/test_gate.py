"""Calls through gates and calls through Python: both keep the same promises."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu import gate
from frame.backends.cpu.pool import get_pool, set_num_threads
from frame.backends.cpu.prepared import PreparedCall
from frame.core.dtypes import float32
from frame.core.errors import BadIndexError, InvalidArgumentError
from frame.core.tensors import Tensor, from_numpy

X = np.arange(16, dtype=np.float32)
Y = np.full(16, 0.5, np.float32)
LARGE = 1 << 15  # elements of an output that is recycled


@pytest.fixture(params=["gate", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With gates, and where there are none."""
    if request.param == "python":
        monkeypatch.setattr(gate, "_methods", lambda: None)
    return str(request.param)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every call fail that is checked as a first one is."""

    def refuse(self: object, inputs: object, outputs: object) -> None:
        raise AssertionError("the call was checked again")

    return lambda: monkeypatch.setattr(PreparedCall, "_run_checked", refuse)


def _sum(*shape: int | str) -> Any:
    specs = {"x": frame.spec(shape), "y": frame.spec(shape)}
    return frame.compile(lambda x, y: x + y, specs)


def _prepared(model: Any) -> PreparedCall:
    call = model.entry("infer")._call()
    assert isinstance(call, PreparedCall)
    return call


def _warm(model: Any, *inputs: Any) -> Any:
    for _ in range(3):
        result = model(*inputs)
    return result


def test_there_are_gates_here_and_calls_take_them(unchecked: Callable[[], None]) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    unchecked()
    assert type(_prepared(model).quick) is type(len)
    np.testing.assert_array_equal(_prepared(model).quick(X, Y), X + Y)
    np.testing.assert_array_equal(model(X, Y), X + Y)


def test_results_are_fresh_and_right(way: str) -> None:
    model = _sum(16)
    first = _warm(model, X, Y)
    second = model(Y, Y)
    assert first is not second and not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, X + Y)
    np.testing.assert_array_equal(second, Y + Y)
    assert first.dtype == np.float32 and first.flags.owndata and first.flags.writeable


def test_names_lists_and_tensors(way: str, unchecked: Callable[[], None]) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    unchecked()
    for result in (model(y=Y, x=X), model(X, y=Y), model(list(X), Y)):
        np.testing.assert_array_equal(result, X + Y)
    for result in (model(from_numpy(X), Y), model(x=from_numpy(X), y=Y)):
        assert isinstance(result, Tensor)
        assert (result.shape, result.dtype, str(result.device)) == ((16,), float32, "cpu:0")
        np.testing.assert_array_equal(result.numpy(), X + Y)


def test_tensors_of_odd_memory_give_several_tensors(way: str, unchecked) -> None:
    model = frame.compile(lambda x: (x < 1.0, ops.cast(x, "bfloat16")), [frame.spec((16,))])
    _warm(model, X)
    unchecked()
    for make in ODD.values():
        small, cast = model(from_numpy(make()))
        assert isinstance(small, Tensor) and isinstance(cast, Tensor)
        assert [str(t.dtype) for t in (small, cast)] == ["bool", "bfloat16"]
        np.testing.assert_array_equal(small.numpy(), make() < 1)
        np.testing.assert_array_equal(cast.numpy().astype(np.float32), model(make())[1])


def _unaligned() -> np.ndarray:
    return np.frombuffer(bytes(1) + X.tobytes(), np.uint8)[1:].view(np.float32)


class _Subclass(np.ndarray):
    pass


ODD: dict[str, Callable[[], np.ndarray]] = {
    "strided": lambda: np.repeat(X, 2)[::2],
    "reversed": lambda: X[::-1].copy()[::-1],
    "big-endian": lambda: X.astype(">f4"),
    "unaligned": _unaligned,
    "read-only": lambda: np.frombuffer(X.tobytes(), np.float32),
    "subclass": lambda: X.view(_Subclass),
    "unpickled": lambda: pickle.loads(pickle.dumps(X)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays(way: str, name: str, unchecked: Callable[[], None]) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    unchecked()
    result = model(ODD[name](), Y)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, X + Y)


def test_an_unpickled_dtype_is_another_object_and_passes_the_gate() -> None:
    array = ODD["unpickled"]()
    other = np.dtype(np.float32).newbyteorder("=")
    model = _sum(16)
    _warm(model, X, Y)
    for value in (array, X.view(other)):
        np.testing.assert_array_equal(_prepared(model).quick(value, Y), X + Y)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda m: m(X[:8], Y), r"input 0 \('x'\): expected float32\[16\].* shape \[8\]"),
    "rank": (lambda m: m(X, Y[None]), r"input 1 \('y'\): expected float32\[16\].*\[1, 16\]"),
    "dtype": (lambda m: m(X, Y.astype(int)), r"input 1 \('y'\).*received dtype int64"),
    "same size": (lambda m: m(X.view(np.int32), Y), r"input 0 \('x'\).*received dtype int32"),
    "more": (lambda m: m(X, Y, X), "received 3 positional inputs"),
    "more, no outputs": (lambda m: m(X, Y, X, out=[]), "received 3 positional inputs"),
    "fewer, more outputs": (lambda m: m(X, out=[Y, Y]), "needs the input 'y'"),
    "misnamed": (lambda m: m(X, z=Y), "received 'z' which it does not take"),
    "twice": (lambda m: m(X, x=Y), "received 'x' twice"),
    "read-only": (lambda m: m(X, Y, out=[ODD["read-only"]()]), "expected a writable"),
    "strided": (lambda m: m(X, Y, out=[ODD["strided"]()]), "expected a writable, row-major"),
    "int": (lambda m: m(X, Y, out=[np.empty(16, int)]), r"float32\[16\], received int64\[16\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_after_calls_that_did(way: str, name: str) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    model(X, Y, out=[np.empty(16, np.float32)])
    before = X.copy(), Y.copy()
    call, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        call(model)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(Y, before[1])
    np.testing.assert_array_equal(model(X, Y), X + Y)


def test_arrays_to_write_into(way: str) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    out = np.zeros(16, np.float32)
    assert model(X, Y, out=[out]) is out
    np.testing.assert_array_equal(out, X + Y)
    assert model(x=X, y=Y, out=(out,)) is out


def test_a_large_input_that_is_also_the_output(way: str) -> None:
    # A reversed sum would read what it has written, were it not for a copy.
    model = frame.compile(lambda x, y: ops.flip(x, 0) + y, {"x": (LARGE,), "y": (LARGE,)})
    x, y = np.arange(LARGE, dtype=np.float32), np.ones(LARGE, np.float32)
    _warm(model, x, y)
    expected = x[::-1] + y
    assert model(x, y, out=[x]) is x
    np.testing.assert_array_equal(x, expected)


def test_outputs_that_share_memory_with_each_other_or_with_parameters(way: str) -> None:
    model = frame.compile(lambda x: (x + 1.0, x * 2.0), [frame.spec((16,))])
    _warm(model, X)
    memory = np.zeros(24, np.float32)
    with pytest.raises(InvalidArgumentError, match="outputs 0 and 1 share memory"):
        model(X, out=[memory[:16], memory[8:]])
    assert not memory.any()
    two = [memory[:16].copy(), memory[:16].copy()]
    first, second = model(X, out=two)
    assert first is two[0] and second is two[1]
    np.testing.assert_array_equal(first, X + 1)
    np.testing.assert_array_equal(second, X * 2)


def test_a_fixed_input_is_not_written_over(way: str) -> None:
    model = _sum(16)
    model(X, Y)
    fixed = Y.copy()
    call = model.entry("infer").loaded.run.prepare({1: fixed})
    for _ in range(3):
        call.run([X])
    (result,) = call.run([X], [fixed])
    np.testing.assert_array_equal(result, X + Y)
    if way == "gate":
        assert call.into(X, fixed) is None
        assert call.into(X, np.zeros_like(X)) is not None


def test_several_results_are_a_tuple(way: str) -> None:
    model = frame.compile(lambda x: (x + 1.0, x * 2.0, -x), [frame.spec((16,))])
    results = _warm(model, X)
    assert type(results) is tuple and len({id(result) for result in results}) == 3
    for result, expected in zip(results, (X + 1, X * 2, -X), strict=True):
        np.testing.assert_array_equal(result, expected)


CHANGES: dict[str, Callable[[np.ndarray], None]] = {
    "read-only": lambda array: array.setflags(write=False),
    "dtype": lambda array: setattr(array, "dtype", np.int32),
    "shape": lambda array: setattr(array, "shape", (2, LARGE // 2)),
    "size": lambda array: array.resize(16, refcheck=False),
    "strides": lambda array: setattr(array, "strides", (0,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_a_result_that_was_changed_in_place_is_not_given_out_again(way: str, name: str) -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((LARGE,))])
    x = np.arange(LARGE, dtype=np.float32)
    for _ in range(8):
        result = _warm(model, x)
        CHANGES[name](result)
        del result
        result = model(x)
        assert result.flags.writeable and result.flags.c_contiguous
        np.testing.assert_array_equal(result, x + 1)
        assert result.dtype == np.float32 and result.shape == x.shape


def test_a_large_result_is_reused_when_nobody_holds_it_and_only_then(way: str) -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((LARGE,))])
    x = np.zeros(LARGE, np.float32)
    view = _warm(model, x)[5:]
    addresses = {view.ctypes.data - 20}
    for value in range(1, 9):
        x[:] = value
        result = model(x)
        addresses.add(result.ctypes.data)
        assert (view == 1).all() and (result == value + 1).all()
    assert len(addresses) <= 3  # the one of the view, and two that take turns


def test_a_result_that_is_held_weakly_does_not_change(way: str) -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((LARGE,))])
    x = np.zeros(LARGE, np.float32)
    _warm(model, x)
    results: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
    for value in range(12):
        x[:] = value
        results[value] = model(x)
        for earlier, result in results.items():
            assert (result == earlier + 1).all()
            del result


def test_a_bad_index_names_its_place_and_leaves_the_next_call_alone(way: str) -> None:
    specs = {"x": frame.spec((5,)), "i": frame.spec((3,), "int64")}
    model = frame.compile(lambda x, i: ops.gather(x, i), specs)
    x, good = X[:5].copy(), np.array([0, 1, 2])
    _warm(model, x, good)
    for position in range(3):
        bad = good.copy()
        bad[position] = 9
        with pytest.raises(BadIndexError, match=f"gather.*position {position} is 9"):
            model(x, bad)
        np.testing.assert_array_equal(model(x, good), x[:3])


def test_sizes_that_take_turns(way: str, unchecked: Callable[[], None]) -> None:
    model = _sum("n", 4)
    inputs = [np.full((n, 4), n, np.float32) for n in range(5)]
    for x in inputs:
        _warm(model, x, x)
    unchecked()
    for x in inputs * 3:
        np.testing.assert_array_equal(model(x, x), 2 * x)


def test_sizes_beyond_those_that_are_kept(way: str) -> None:
    model = _sum("n")
    for n in [*range(80), *range(80)]:
        x = np.full(n, n, np.float32)
        np.testing.assert_array_equal(model(x, x), 2 * x)
    frames = [known.frame for known in _prepared(model)._known.values()]
    assert len(frames) == 64 and sum(frame is not None for frame in frames) <= 8


def test_sizes_with_large_arenas_share_one() -> None:
    """Else each would keep its arena for good, whose pages are not given back."""
    model = frame.compile(
        lambda x: ops.softmax(ops.transpose(ops.sin(x), (1, 0)) @ x), [frame.spec((512, "n"))]
    )
    rows = [np.ones((512, n), np.float32) for n in (600, 601, 3, 4)]
    for x in rows * 3:
        model(x)
    knowns = list(_prepared(model)._known.values())
    assert [known.frame is not None for known in knowns] == [False, False, True, True]
    assert [known.binding.arena_size > 1 << 20 for known in knowns] == [True, True, False, False]


def test_threads_with_sizes_of_their_own(way: str) -> None:
    model = frame.compile(
        lambda x, w: ops.softmax(x @ w), {"x": frame.spec(("n", 64)), "w": frame.spec((64, 64))}
    )
    generator = np.random.default_rng(0)
    w = generator.standard_normal((64, 64)).astype(np.float32)
    inputs = [generator.standard_normal((n, 64)).astype(np.float32) for n in (1, 7, 40, 200)]
    expected = [model(x, w) for x in inputs]
    wrong: list[int] = []

    def call(k: int) -> None:
        for turn in range(150):
            position = k if turn % 3 else (k + turn) % 4
            if not np.array_equal(model(inputs[position], w), expected[position]):
                wrong.append(position)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_while_another_one_is_on_the_frame(unchecked: Callable[[], None]) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    call = _prepared(model)
    (known,) = call._known.values()
    unchecked()
    assert known.gate.claim() is not None
    assert known.gate.claim() is None
    assert call.quick(X, Y) is None
    np.testing.assert_array_equal(model(X, Y), X + Y)
    known.frame.context[gate.BUSY] = 0
    assert call.quick(X, Y) is not None


def test_a_claim_of_the_parent_does_not_bind_a_forked_child() -> None:
    code = """
import os, sys, numpy as np, frame
from frame.backends.cpu import gate
model = frame.compile(lambda x: x + 1.0, [frame.spec((16,))])
x = np.ones(16, np.float32)
for _ in range(3): model(x)
call = model.entry("infer")._call()
(known,) = call._known.values()
assert known.gate.claim() is not None
child = os.fork()
if child == 0:
    assert call.quick(x) is None  # no workers yet
    assert (model(x) == 2).all()
    os._exit(0 if (call.quick(x) == 2).all() else 3)
assert call.quick(x) is None
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr


def test_threads_that_call_while_the_process_ends() -> None:
    code = """
import threading, time, numpy as np, frame
model = frame.compile(lambda x: x + 1.0, [frame.spec((16,))])
x = np.ones(16, np.float32)
def call():
    while True: model(x)
for _ in range(3): model(x)
for _ in range(4): threading.Thread(target=call, daemon=True).start()
time.sleep(0.2)
print("end")
"""
    done = _python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ
    )


def test_other_numbers_of_threads(way: str) -> None:
    model = _sum(16)
    _warm(model, X, Y)
    try:
        for count in (1, 3):
            set_num_threads(count)
            np.testing.assert_array_equal(model(X, Y), X + Y)
    finally:
        set_num_threads(None)


def test_new_parameters_are_seen_by_the_next_call(way: str) -> None:
    model = frame.compile(frame.nn.Linear(16, 4), [frame.spec((1, 16))])
    x = X[None].copy()
    _warm(model, x)
    weights = {name: np.full_like(array, 2) for name, array in model.params.items()}
    model.load_params(weights)
    np.testing.assert_array_equal(_warm(model, x), np.full((1, 4), 2 * X.sum() + 2))


def test_nothing_is_kept_or_lost(way: str) -> None:
    model = frame.compile(lambda x, y: (x + y, x - y), {"x": X.shape, "y": X.shape})
    x, y = X.copy(), Y.copy()
    out = [np.empty(16, np.float32), np.empty(16, np.float32)]
    wrong = x[:3].copy()

    def calls() -> None:
        model(x, y)
        model(x, y, out=out)
        with pytest.raises(InvalidArgumentError):
            model(wrong, y)

    things = [x, y, wrong, *out, x.dtype]
    calls()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(100):
        calls()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    assert after[:-1] == before[:-1]
    assert abs(after[-1] - before[-1]) < 50  # the dtype: other arrays of the process come and go


def test_a_model_goes_with_its_last_holder(way: str) -> None:
    model = _sum("n")
    for n in (3, 16):
        _warm(model, X[:n].copy(), Y[:n].copy())
    gone = weakref.ref(model.entry("infer").loaded.run.single)
    assert gone() is not None
    del model
    gc.collect()
    assert gone() is None


def test_a_gate_outlives_what_it_was_made_of() -> None:
    model = _sum(16)
    _warm(model, X, Y)
    quick = _prepared(model).quick
    del model
    gc.collect()
    np.testing.assert_array_equal(quick(X, Y), X + Y)


@pytest.mark.parametrize(
    "change",
    [
        ("ARRAY", {**gate.ARRAY, "data": 24}),
        ("ARRAY", {**gate.ARRAY, "weak": 80}),
        ("LIST", {**gate.LIST, "items": 32}),
        ("ELEMENT", {**gate.ELEMENT, "number": 32}),
        ("_NUMPY_ABI", 3),
        ("_PYTHON", {**gate._PYTHON, "call": "PyObject_NoSuchFunction"}),
    ],
    ids=lambda change: change[0],
)
def test_another_layout_means_no_gates_one_warning_and_right_results(
    change: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate, *change)
    gate._methods.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "frame"):
            for _ in range(2):
                model = _sum(16)
                np.testing.assert_array_equal(_warm(model, X, Y), X + Y)
                assert type(_prepared(model).quick) is not type(len)
        assert len(caplog.records) == 1
        assert "longer way through Python" in caplog.text
    finally:
        gate._methods.cache_clear()


def test_the_pool_says_natively_whether_it_is_ready() -> None:
    pool = get_pool()
    word = gate.ctypes.c_int64.from_address(pool.epoch_address)
    assert pool.ready and word.value > 0
