"""Many threads at once: one compile, whole versions of parameters, and every result right."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.train import SGD, Adam
from tests.runtime.support import at_once, numbers


@contextmanager
def _meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do something again and again in another thread; raise what it raised."""
    stop, problems = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            try:
                work()
            except Exception as problem:  # noqa: BLE001 - raised again in the test's own thread
                problems.append(problem)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive(), "a thread hangs"
    if problems:
        raise problems[0]


def test_jit_that_threads_call_first_together_compiles_once() -> None:
    traced = []

    @frame.jit
    def scaled(x, y):
        traced.append(threading.get_ident())
        return ops.tanh(x) * y

    x, y = numbers(40, 7), numbers(7, seed=1)
    found = at_once(8, lambda k: scaled(x, y).tobytes())
    assert len(set(found)) == 1 and len(traced) == scaled.compiles == 1


def test_jit_that_threads_call_with_other_sizes_and_dtypes() -> None:
    @frame.jit
    def doubled(x):
        return x + x

    def work(k: int) -> bool:
        kind = np.float32 if k % 2 else np.float64
        return all(
            np.array_equal(doubled(np.full((rows, 3), k, kind)), np.full((rows, 3), 2 * k))
            for rows in range(1, 20)
        )

    assert at_once(8, work) == [True] * 8
    assert doubled.compiles <= 4  # for each dtype a first size, and one symbol for all others


def test_the_first_use_of_an_entry_by_many_threads_compiles_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Sequential("net", [nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)])
    model = frame.compile(net, [frame.spec(("n", 6))])
    compiled, plain = [], model._compile
    monkeypatch.setattr(model, "_compile", lambda name: compiled.append(name) or plain(name))
    entries = at_once(8, lambda k: model.entry("train"))
    assert len({id(entry) for entry in entries}) == 1 and compiled == ["train"]


def test_eager_runs_in_many_threads() -> None:
    def function(x, scale):
        _, rows = ops.scan(lambda c, row: (c + row, c * 2.0), x[0] * 0.0, x)
        return ops.sum(rows) * scale + ops.cond(scale > 0.0, lambda: scale, lambda: -scale)

    run, compiled = frame.eager(function), frame.jit(function)
    x = numbers(6, 4)

    def work(k: int) -> bool:
        return all(
            np.allclose(run(x, np.float32(k + turn)), compiled(x, np.float32(k + turn)), rtol=1e-5)
            for turn in range(5)
        )

    assert at_once(8, work) == [True] * 8


def test_tracing_in_many_threads_gives_each_its_own_graph() -> None:
    def work(k: int) -> str:
        def build(x):
            for _ in range(20 + k):
                x = ops.exp(-x) + float(k)
            return ops.scan(lambda c, row: (c + row, row), x[0], x)[0]

        return str(frame.trace(build, frame.spec((4, k + 1)), name="same"))

    together = at_once(8, work)
    assert together == [work(k) for k in range(8)] and len(set(together)) == 8


def test_profiles_during_calls_disturb_nobody() -> None:
    model = frame.compile(lambda x, w: ops.softmax(x @ w), [("n", 64), (64, 80)])
    x, w = numbers(70, 64), numbers(64, 80, seed=1)
    want = model(x, w).tobytes()
    model.profile(x, w)
    with _meanwhile(lambda: model.profile(x, w)):
        for _ in range(60):
            assert model(x, w).tobytes() == want
    assert model.profile(x, w).seconds > 0


def _mixed_versions(model: frame.runtime.CompiledModel, width: int, trained: bool) -> None:
    """Write parameters that are all `v` while others call: each call must see one v alone.

    Every weight is v, so the output is v * v * width + v; a mixture of versions is another number.
    The weights of the first layer are packed ahead, its bias is not.
    """
    names = [name for name in model.params if name.startswith("net")]
    versions = [1.0, 2.0, 3.0, 4.0, 5.0]
    sets = [{n: np.full_like(model.params[n], v) for n in names} for v in versions]
    x = np.ones((3, width), np.float32)

    def outcome() -> float:
        found = np.unique(model(x))
        assert len(found) == 1, f"rows of one call saw {found}"
        return float(found[0])

    allowed = {}
    for v, values in zip(versions, sets, strict=True):
        model.load_params(values)
        allowed[outcome()] = v
    assert len(allowed) == len(versions)
    turn = iter(range(10**9))
    with _meanwhile(lambda: model.load_params(sets[next(turn) % len(sets)])):
        seen = at_once(3, lambda k: {outcome() for _ in range(300)})
    found = set().union(*seen)
    assert found <= set(allowed), "a call mixed two versions of the parameters"
    assert trained or len(found) > 1, "no call met another version: the test shows nothing"


def _net(width: int) -> nn.Module:
    return nn.Sequential("net", [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16)])


def test_each_call_sees_one_version_of_the_parameters() -> None:
    model = frame.compile(_net(96), [frame.spec(("n", 96))])
    assert model.entry("infer").loaded.load is not None, "nothing is derived from the weights"
    _mixed_versions(model, 96, False)


def test_each_call_sees_one_version_of_parameters_that_are_trained_too() -> None:
    model = frame.compile(
        _net(96),
        [frame.spec(("n", 96))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("n",), "int64")],
        optimizer=SGD(),
    )
    _mixed_versions(model, 96, True)


def test_what_is_derived_is_made_from_the_arrays_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The race itself, step by step: parameters change just before the load program runs."""
    model = frame.compile(_net(96), [frame.spec(("n", 96))])
    x = np.ones((2, 96), np.float32)
    names = list(model.params)
    ones, twos = ({n: np.full_like(model.params[n], v) for n in names} for v in (1.0, 2.0))
    model.load_params(twos)
    wanted = {model(x).tobytes()}
    model.load_params(ones)
    wanted.add(model(x).tobytes())
    entry = model.entry("infer")
    plain = entry._derived_arrays

    def late(*arguments: object) -> object:
        monkeypatch.setattr(entry, "_derived_arrays", plain)
        model.load_params(twos)
        return plain(*arguments)

    monkeypatch.setattr(entry, "_derived_arrays", late)
    assert model(x).tobytes() in wanted
    assert model(x).tobytes() in wanted


def _trainer(seed: int = 0) -> frame.runtime.CompiledModel:
    net = nn.Sequential("net", [nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)])
    return frame.compile(
        net,
        [frame.spec(("n", 6))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("n",), "int64")],
        optimizer=Adam(),
        seed=seed,
    )


def test_a_file_saved_during_training_holds_one_step(tmp_path: Path) -> None:
    """Every file is a state that the training went through: parameters, moments, counter alike."""
    x, labels = numbers(5, 6), np.array([0, 1, 2, 0, 1])
    model, twin = _trainer(), _trainer()
    paths: list[Path] = []

    def save() -> None:
        path = tmp_path / f"{len(paths)}.frame"
        model.save(path, objects=False)
        paths.append(path)

    save()
    steps = 0
    with _meanwhile(save):
        while len(paths) < 8:
            model.train_step(x, labels, learning_rate=0.01)
            steps += 1
    saved = {}
    for path in paths:
        loaded = frame.load(path)
        state = {name: loaded.store[name].tobytes() for name in loaded.store}
        saved.setdefault(int(loaded.counter.words[1]), state)
    assert len(saved) > 2, "no file was written between two steps: the test shows nothing"
    for step in range(max(saved) + 1):
        if step in saved:
            assert {name: twin.store[name].tobytes() for name in twin.store} == saved[step]
        twin.train_step(x, labels, learning_rate=0.01)


def test_threads_that_train_one_model_take_turns() -> None:
    model, twin = _trainer(1), _trainer(1)
    x, labels = numbers(5, 6), np.array([0, 1, 2, 0, 1])
    at_once(4, lambda k: [model.train_step(x, labels, learning_rate=0.01) for _ in range(10)])
    for _ in range(40):
        twin.train_step(x, labels, learning_rate=0.01)
    for name in model.store:
        assert model.store[name].tobytes() == twin.store[name].tobytes(), name
    assert model.counter.words.tolist() == twin.counter.words.tolist()
