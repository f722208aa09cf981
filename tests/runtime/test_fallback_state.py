"""State on devices: training steps, load programs and sizes on the recording backend."""

from __future__ import annotations

import math
from weakref import WeakSet

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.compiler.optimizers import SGD, Adam
from frame.core.devices import HOST
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import ROW_MAJOR, Role
from frame.runtime import bound_entry
from frame.runtime.entry import Entry
from frame.runtime.loading import Declared
from frame.runtime.parameters import ParameterStore
from tests.runtime.support import forget_programs, numbers, watched
from tests.support.recorder import names, recorder

# What a step is cut at: nothing, an op in its middle (whose code is the cpu's), the loss, the
# optimizer.
CUTS = {
    "whole": (),
    "middle": ("erf",),
    "loss": ("log_softmax", "exp", "log", "gather"),
    "update": ("sub",),
}


@nn.module
def bump(self, x):
    return ops.erf(x)


def classifier():
    return nn.Sequential("net", [nn.Linear(5, 6), bump, nn.Linear(6, 3)])


def trained(backend: str, optimizer=None, batch="batch", **options):
    return frame.compile(
        classifier(),
        [frame.spec((batch, 5))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((batch,), "int64")],
        optimizer=optimizer or SGD(momentum=0.9),
        backend=backend,
        **options,
    )


def batch(seed: int, rows: int = 8):
    return numbers(rows, 5, seed=seed), np.arange(rows) % 3


def values(model) -> dict[str, np.ndarray]:
    return {name: model.store[name] for name in model.store}


def same_state(one, other) -> None:
    for name, want in values(other).items():
        np.testing.assert_allclose(one.store[name], want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("donation", [True, False])
def test_training_steps_are_those_of_the_cpu(cut: str, donation: bool) -> None:
    with recorder(refuse=CUTS[cut], donation=donation) as device:
        model, reference = trained("recorder"), trained("cpu")
        for step in range(4):
            x, y = batch(step)
            got = model.train_step(x, y, learning_rate=0.1)
            want = reference.train_step(x, y, learning_rate=0.1)
            np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        pieces = model.entry("train_step").loaded.run.pieces
        assert (len(pieces) == 1) == (cut == "whole") and names(device)
        same_state(model, reference)
        x, _ = batch(9)
        np.testing.assert_allclose(model(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("donation", [True, False])
def test_state_stays_on_the_device_that_updates_it(donation: bool) -> None:
    with recorder(donation=donation) as device:
        model = trained("recorder", Adam())
        x, y = batch(0)
        model.train_step(x, y, learning_rate=0.01)
        model(x)
        device.log.clear()
        live = device.machine.live_bytes
        for _ in range(3):
            model.train_step(x, y, learning_rate=0.01)
            model(x)
        moved = [op.name for op in device.log if op.name in ("upload", "download")]
        runs = len(model.entry("train_step").inputs), len(model.entry("infer").inputs)
        rate = len(model.entry("train_step").hyperparameters)
        assert moved.count("upload") == 3 * (sum(runs) + rate)
        assert moved.count("download") == 3 * (2 + 1)  # loss and output; output
        assert device.machine.live_bytes == live
        before = {n: model.store.arrays[n].copy() for n in model.params}
        assert any(not np.array_equal(model.params[n], before[n]) for n in before)
        assert all(np.array_equal(model.params[n], model.store.arrays[n]) for n in before)


def test_parameters_can_be_read_written_saved_between_steps(tmp_path) -> None:
    with recorder(refuse={"erf"}):
        model, reference = trained("recorder"), trained("cpu")
        for step in range(3):
            x, y = batch(step)
            for each in (model, reference):
                each.train_step(x, y, learning_rate=0.1)
                name = next(n for n in each.params if n.endswith("0.bias"))
                each.load_params({name: each.params[name] / 2})
        same_state(model, reference)
        model.save(tmp_path / "net.frame")
        again = frame.load(tmp_path / "net.frame")
        for name, value in values(model).items():
            assert np.array_equal(again.store[name], value)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("donation", [True, False])
def test_a_bad_label_changes_nothing(cut: str, donation: bool) -> None:
    with recorder(refuse=CUTS[cut], donation=donation) as device:
        model = trained("recorder")
        x, y = batch(0)
        model.train_step(x, y, learning_rate=0.1)
        before, live = values(model), device.machine.live_bytes
        bad = y.copy()
        bad[3] = 3
        with pytest.raises(InvalidArgumentError, match="3"):
            model.train_step(x, bad, learning_rate=0.1)
        assert device.machine.live_bytes == live
        for name, value in values(model).items():
            assert np.array_equal(value, before[name]), name
        model.train_step(x, y, learning_rate=0.1)


class Watched(WeakSet):
    """Buffers of a machine, and the most bytes of them that lived at once."""

    def __init__(self, machine) -> None:
        super().__init__(machine.buffers)
        self.machine, self.peak = machine, 0

    def add(self, item) -> None:
        super().add(item)
        if hasattr(self, "peak"):
            self.peak = max(self.peak, self.machine.live_bytes)


def test_a_cut_step_holds_each_state_once() -> None:
    """Until its last piece it keeps gradients, a third of Adam's state, and no new values."""
    net = nn.Sequential("net", [nn.Linear(32, 96), bump, nn.Linear(96, 48)])
    for refuse in (CUTS["middle"], CUTS["loss"]):
        with recorder(refuse=refuse) as device:
            model = frame.compile(
                net,
                [frame.spec((2, 32))],
                loss=nn.CrossEntropyLoss(),
                targets=[frame.spec((2,), "int64")],
                optimizer=Adam(),
                backend="recorder",
            )
            x, y = numbers(2, 32), np.arange(2)
            model.train_step(x, y, learning_rate=0.1)
            pieces = model.entry("train_step").loaded.manifest.run.pieces
            updated = {pieces[-1].signature.inputs[k].name for k in pieces[-1].signature.updates}
            assert len(pieces) > 1 and updated == set(model.store)
            watched = device.machine.buffers = Watched(device.machine)
            model.train_step(x, y, learning_rate=0.1)
            state = sum(value.nbytes for value in values(model).values())
            assert state < watched.peak < 1.5 * state


@nn.module(inner=nn.param((5, 5), nn.normal()), outer=nn.param((5, 3), nn.normal()))
def recurrent(self, x):
    def step(h, now):
        h = ops.tanh(h @ self.inner + now)
        return h, h

    last, _ = ops.scan(step, x[0] * 0.0, ops.erf(x))
    return ops.erf(last) @ self.outer


def test_a_loop_and_its_gradient_lie_between_cuts_or_are_cut_out() -> None:
    def made(backend: str):
        specs, targets = [frame.spec((4, 3, 5))], [frame.spec((3,), "int64")]
        options = {"loss": nn.CrossEntropyLoss(), "targets": targets, "optimizer": SGD(0.9)}
        return frame.compile(recurrent, specs, backend=backend, **options)

    x, y = numbers(4, 3, 5), np.arange(3)
    for refuse in ({"erf"}, {"tanh"}):
        with recorder(refuse=refuse):
            model, reference = made("recorder"), made("cpu")
            assert len(model.entry("train_step").loaded.run.pieces) > 1
            for _ in range(2):
                got = model.train_step(x, y, learning_rate=0.1)
                want = reference.train_step(x, y, learning_rate=0.1)
                np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
            same_state(model, reference)


def built(build, names: str, **settings):
    """Return the entry and the store of a graph over states of two zeros, then ones, ..."""
    with GraphBuilder("states") as builder:
        build(builder, [builder.input(frame.spec((2,)), Role.BUFFER, n) for n in names])
    start = {name: np.float32([k, k]) for k, name in enumerate(names)}
    store = ParameterStore({n: frame.spec((2,)) for n in names}, start)
    return Entry(Declared(builder.finish(), "recorder", **settings), store), store


def test_a_state_is_not_changed_before_an_earlier_piece_has_ended_well() -> None:
    """The update reads nothing of the piece that refuses the index, which a device runs late."""

    def build(builder, states) -> None:
        index = builder.input(frame.spec((3,), "int64"), name="index")
        builder.output(ops.gather(ops.exp(states[0]), index), "found")
        builder.update(states[0], ops.sub(states[0], 1.0))

    with recorder(refuse={"sub"}):
        entry, store = built(build, "a")
        plan = entry.loaded.manifest.run
        assert [str(piece.device) for piece in plan.pieces] == ["recorder:0", "cpu:0"]
        assert plan.pieces[-1].signature.updates
        for index, want in (([0, 1, 1], -1), ([0, 2, 1], -1), ([1, 1, 1], -2)):
            try:
                entry(np.array(index))
            except InvalidArgumentError:
                assert 2 in index
            assert store["a"].tolist() == [want, want]


def test_an_old_state_that_is_returned_or_becomes_another_one_is_kept() -> None:
    def build(builder, states) -> None:
        a, b = states
        x = builder.input(frame.spec((2,)), name="x")
        builder.output(a, "before")
        builder.output(ops.erf(x) * 2.0 + b, "sum")
        builder.update(a, a + 1.0)
        builder.update(b, a)

    for refuse in ({"erf"}, {"add"}, {"mul"}):
        with recorder(refuse=refuse):
            entry, store = built(build, "ab")
            found = [[r[0] for r in entry(np.zeros(2, np.float32))] for _ in range(3)]
            assert found == [[0, 1], [1, 0], [2, 1]]
            assert [store[n][0] for n in "ab"] == [3, 2]


@pytest.mark.parametrize("kind", ["plain", "strided", "big-endian"])
def test_a_cut_program_updates_arrays_of_the_caller(kind: str) -> None:
    def build(builder, states) -> None:
        x = builder.input(frame.spec((2,)), name="x")
        builder.output(ops.exp(x), "y")
        builder.update(states[0], ops.sub(states[0], ops.exp(x)))

    with recorder(refuse={"sub"}):
        entry, _ = built(build, "a")
        a = np.float32([5, 0, 6, 0])[::2] if kind == "strided" else np.float32([5, 6])
        a = a.astype(">f4") if kind == "big-endian" else a
        given = {"a": a, "x": np.zeros(2, np.float32)}
        (y,) = entry.loaded.run.run([given[port.name] for port in entry.signature.inputs])
        assert y.tolist() == [1, 1] and a.tolist() == [4, 5]


def test_states_that_swap_and_share_a_value() -> None:
    """Each new value is there before the first state changes."""

    def build(builder, states) -> None:
        x = builder.input(frame.spec((2,)), name="x")
        total = ops.erf(x) + 1.0
        builder.output(ops.add(total, states[0]), "sum")
        for state, value in zip(states, (states[1], states[0], total, total), strict=True):
            builder.update(state, value)

    for settings in ({"donation": False}, {"refuse": {"erf"}}, {"refuse": {"add"}}):
        with recorder(**settings):
            entry, store = built(build, "abcd")
            x = np.zeros(2, np.float32)
            found = [entry(x)[0] for _ in range(3)]
            assert found == [1.0, 2.0, 1.0]
            assert [store[n][0] for n in "abcd"] == [1.0, 0.0, 1.0, 1.0]


# --- the load program -----------------------------------------------------------------------------


def test_a_cut_graph_computes_what_depends_on_weights_once() -> None:
    """Part of it on the device, part of it on the cpu."""

    @nn.module(weight=nn.param((3, 3), nn.normal()))
    def scaled(self, x):
        return ops.erf(x @ ops.exp(ops.erf(self.weight)))

    with recorder(refuse={"erf"}) as device:
        model = frame.compile(scaled, [frame.spec(("n", 3))], backend="recorder")
        loaded = model.entry("infer").loaded
        assert loaded.load is not None
        assert [p.device.backend for p in loaded.load.pieces] == ["cpu", "recorder"]

        def run() -> None:
            x = numbers(2, 3)
            weight = model.params["weight"].astype(np.float64)
            erf = np.vectorize(math.erf)
            np.testing.assert_allclose(model(x), erf(x @ np.exp(erf(weight))), rtol=1e-5)

        for _ in range(4):
            run()
        assert names(device).count("exp") == 1
        model.load_params({"weight": np.ones((3, 3), np.float32)})
        for _ in range(2):
            run()
        assert names(device).count("exp") == 2


def test_refused_products_read_weights_that_the_cpu_has_packed() -> None:
    """The load program packs them, once; new weights are packed again."""

    @nn.module(first=nn.param((96, 64), nn.normal()), second=nn.param((64, 48), nn.normal()))
    def two(self, x):
        return ops.relu(ops.relu(x) @ self.first) @ self.second

    with recorder(refuse={"matmul"}):
        model = frame.compile(two, [frame.spec(("n", 96))], backend="recorder")
        loaded = model.entry("infer").loaded
        assert loaded.load is not None
        assert [p.device.backend for p in loaded.load.pieces] == ["cpu"]
        derived = [p for p in loaded.run.signature.inputs if p.role is Role.DERIVED]
        assert len(derived) == 2 and all(p.type.layout != ROW_MAJOR for p in derived)
        x = numbers(64, 96)
        for scale in (1.0, 0.5):
            values = {name: value * np.float32(scale) for name, value in model.params.items()}
            model.load_params(values)
            first, second = (values[name].astype(np.float64) for name in ("first", "second"))
            want = np.maximum(np.maximum(x, 0) @ first, 0) @ second
            np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


# --- sizes ----------------------------------------------------------------------------------------


def test_a_backend_without_symbols_is_compiled_once_for_each_size() -> None:
    with recorder(symbols=False) as device:
        model = frame.compile(nn.Linear(3, 2), [frame.spec(("n", 3))], backend="recorder")
        assert not device.compiled
        weights = [model.params[n].astype(np.float64) for n in ("weight", "bias")]
        for rows in (1, 2, 3, 1, 2, 3):
            x = numbers(rows, 3)
            want = x @ (weights[0] if weights[0].shape == (3, 2) else weights[0].T) + weights[1]
            np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-6)
        entry = model.entry("infer")
        assert entry.compiles == 3
        assert all(not piece.graph.symbols for piece in device.compiled)
        with pytest.raises(InvalidArgumentError, match=r"x: float32\[n, 3\]"):
            model(numbers(2, 4))
        assert entry.compiles == 3


def test_bindings_are_bounded_and_come_back_from_the_cache(monkeypatch) -> None:
    monkeypatch.setattr(bound_entry, "KEPT_BINDINGS", 2)
    with recorder(symbols=False):
        model = frame.compile(lambda x: ops.tanh(x), [frame.spec(("n", 3))], backend="recorder")
        for rows in (1, 2, 3):
            model(numbers(rows, 3))
        entry = model.entry("infer")
        assert len(entry._bound) == 2 and entry.compiles == 3
        forget_programs()
        with watched() as found:
            model(numbers(1, 3))
        assert found.stats.manifests == 1 and not found.stats.passes


def test_training_jit_and_files_of_a_backend_without_symbols(tmp_path) -> None:
    with recorder(symbols=False, refuse={"erf"}):
        model, reference = trained("recorder"), trained("cpu")
        for step, rows in enumerate((4, 6, 4)):
            x, y = batch(step, rows)
            model.train_step(x, y, learning_rate=0.1)
            reference.train_step(x, y, learning_rate=0.1)
        same_state(model, reference)
        assert model.entry("train_step").compiles == 2
        x, _ = batch(5)
        want = model(x)
        assert model.profile(x).rows and "matmul" in model.source()["graph"]
        model.save(tmp_path / "net.frame")
        again = frame.load(tmp_path / "net.frame", trust=True)
        assert np.array_equal(again(x), want)

        twice = frame.jit(lambda x: x * 2.0, backend="recorder")
        for rows in (1, 2, 3):
            assert twice(np.ones((rows, 2), np.float32)).sum() == 4 * rows


# --- copies ---------------------------------------------------------------------------------------


def test_tensors_move_between_devices() -> None:
    with recorder(count=2) as device:
        x = numbers(2, 3)
        there = frame.from_numpy(x).to("recorder:0").to("recorder:1")
        assert str(there.device) == "recorder:1"
        assert np.array_equal(there.to(HOST).numpy(), x)
        assert "copy" in [op.name for op in device.log]
        model = frame.compile(lambda x: x * 2.0, [frame.spec((2, 3))], backend="recorder")
        result = model(there)
        assert isinstance(result, frame.Tensor) and np.array_equal(result.numpy(), x * 2)
