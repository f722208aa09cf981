"""Fallback in pieces, on the recording backend: who runs what, warnings, waits, numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.core.dtypes import float32
from frame.core.errors import DeviceError, InvalidArgumentError, UnimplementedError
from frame.core.tolerances import compare
from frame.ir.builder import GraphBuilder
from frame.ir.graph import ROW_MAJOR, Layout, Role, TensorType
from frame.ops.interpreter import interpret
from frame.ops.record import NoGradient, OpDef, Operand, Sample
from frame.ops.registry import register, unregister
from frame.runtime.fallback import fallback_stats
from frame.runtime.steps import RunStep, TransferStep
from tests.runtime.support import forget_programs, numbers, watched
from tests.support.recorder import HazardError, names, recorder


@pytest.fixture
def reversed_rows() -> Iterator[None]:
    """An op that has a reference and no code."""
    register(
        OpDef(
            "reversed_rows",
            "Reverse the rows.",
            (Operand("x"),),
            lambda operands, attributes: operands[0],
            lambda operands, attributes: operands[0][::-1],
            NoGradient("a test"),
            samples=lambda: (Sample("one", (np.zeros((2, 2)),)),),
        )
    )
    yield
    unregister("reversed_rows")


def middle(x):
    return ops.relu(ops.erf(ops.mul(x, 2.0)))


def on_recorder(function, *shapes, **options) -> frame.runtime.model.CompiledModel:
    specs = [frame.spec(shape) for shape in shapes]
    return frame.compile(function, specs, backend="recorder", **options)


def places(model) -> list[str]:
    return [piece.device.backend for piece in model.entry("infer").loaded.run.pieces]


def check(model, *inputs) -> None:
    """Compare with the float64 reference."""
    got = model(*inputs)
    for result, want in zip(
        got if isinstance(got, tuple) else (got,), interpret(model.graph, inputs), strict=True
    ):
        compare(result, want, float32, np.abs(want).max(initial=1.0))


# --- pieces ---------------------------------------------------------------------------------------


def test_a_refused_op_in_the_middle_goes_to_generated_code(caplog) -> None:
    with recorder(refuse={"erf"}) as device, caplog.at_level(logging.WARNING, "frame.fallback"):
        model = on_recorder(middle, ("batch", 3))
        assert places(model) == ["recorder", "cpu", "recorder"]
        kinds = [type(step) for step in model.entry("infer").loaded.run.steps]
        assert kinds == [TransferStep, RunStep] * 3 + [TransferStep]
        for rows in (1, 4):
            check(model, numbers(rows, 3))
        assert names(device) == ["mul", "relu"] * 2
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "op erf can't run on recorder (it refuses this op): it runs on cpu:0"
    )
    assert [(s.op, s.backend, s.count) for s in fallback_stats()] == [("erf", "recorder", 1)]
    assert model.host_steps == ()


def test_equal_hops_are_one_warning_and_all_are_counted(caplog) -> None:
    def three(x):
        return ops.erf(ops.erf(ops.erf(x) + 1.0) * 2.0)

    with recorder(refuse={"erf"}), caplog.at_level(logging.WARNING, "frame.fallback"):
        check(on_recorder(three, (2, 3)), numbers(2, 3))
    assert [r.getMessage().endswith("it runs on cpu:0, 3 nodes") for r in caplog.records] == [True]
    assert fallback_stats()[0].count == 3


def test_an_op_without_code_runs_in_numpy(reversed_rows, caplog) -> None:
    def net(x):
        return ops.reversed_rows(ops.erf(x) + 1.0) * 2.0

    refuse = {"reversed_rows", "erf"}
    with recorder(refuse=refuse), caplog.at_level(logging.WARNING, "frame.fallback"):
        model = on_recorder(net, (3, 2))
        assert places(model) == ["cpu", "recorder", "recorder"]
        assert model.host_steps == ("reversed_rows",)
        check(model, numbers(3, 2))
    found = [record.getMessage().rpartition(" ")[2] for record in caplog.records]
    assert found == ["cpu:0", "numpy:0"]


def test_a_cut_of_the_cpu_packs_what_its_pieces_read_and_nothing_for_numpy(reversed_rows) -> None:
    @nn.module(weight=nn.param((96, 96), nn.normal()))
    def net(self, x):
        return (
            ops.relu(ops.reversed_rows(x @ self.weight)) @ self.weight
            + ops.reversed_rows(self.weight)[0]
        )

    model = frame.compile(net, [frame.spec(("n", 96))])
    loaded = model.entry("infer").loaded
    derived = [p for p in loaded.run.signature.inputs if p.role is Role.DERIVED]
    assert sorted(p.type.layout != ROW_MAJOR for p in derived) == [False, True]
    x, weight = numbers(64, 96), model.params["weight"].astype(np.float64)
    want = np.maximum((x @ weight)[::-1], 0) @ weight + weight[-1]
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_a_refused_composite_is_decomposed_for_the_cpu() -> None:
    def net(x, y):
        return ops.mse_loss(x * 2.0, y)

    with recorder(refuse={"mse_loss"}, composites={"mse_loss"}):
        model = on_recorder(net, (4, 3), (4, 3))
        assert places(model) == ["recorder", "cpu"] and model.host_steps == ()
        check(model, numbers(4, 3), numbers(4, 3, seed=1))


def test_pieces_are_as_few_as_the_order_allows() -> None:
    """The refused op is ready first, or last: two pieces of the device would be one too many."""

    def late(x, y):
        return ops.add(ops.tanh(x), ops.mul(ops.erf(y), 2.0))

    def early(x, y):
        return ops.add(ops.erf(y), ops.tanh(ops.mul(x, 3.0)))

    with recorder(refuse={"erf"}):
        for net in (late, early):
            model = on_recorder(net, (2, 3), (2, 3))
            assert sorted(places(model)) == ["cpu", "recorder"]
            check(model, numbers(2, 3), numbers(2, 3, seed=1))


def test_constants_inputs_and_repeated_values_as_results() -> None:
    def net(x):
        y = ops.erf(x)
        return x, y, y, ops.constant(np.float32([1, 2]))

    with recorder(refuse={"erf"}):
        model = on_recorder(net, (2,))
        x = numbers(2)
        same, first, second, constant = model(x)
        assert np.array_equal(same, x) and not np.shares_memory(same, x)
        assert np.array_equal(first, second) and not np.shares_memory(first, second)
        assert constant.tolist() == [1, 2]


def test_the_cache_gives_the_pieces_back_and_warns_again(caplog) -> None:
    x = numbers(2, 3)
    with recorder(refuse={"erf"}) as device, caplog.at_level(logging.WARNING, "frame.fallback"):
        want = on_recorder(middle, (2, 3))(x)
        forget_programs()
        with watched() as found:
            again = on_recorder(middle, (2, 3))
        assert found.stats.passes == found.stats.compiled == 0
        assert found.stats.artifacts == 3 and len(device.compiled) == 2
        assert np.array_equal(again(x), want)
    assert len(caplog.records) == 2


def test_a_change_of_the_cpu_backend_makes_cut_programs_anew(monkeypatch) -> None:
    from frame.runtime.backends import backend

    with recorder(refuse={"erf"}):
        on_recorder(middle, (2, 3))
        forget_programs()
        monkeypatch.setattr(backend("cpu"), "source_hash", lambda: "another version")
        with watched() as found:
            on_recorder(middle, (2, 3))
        assert not found.stats.manifests and found.stats.compiled == 3


def test_options_go_to_the_backend_that_was_asked_for() -> None:
    with recorder(refuse={"erf"}) as device:
        with pytest.raises(InvalidArgumentError, match="recorder has no option 'level'"):
            on_recorder(middle, (2, 3), options={"level": 3})
        plain = device.compile
        device.compile = lambda piece, target, options, store: plain(piece, target, {}, store)
        check(on_recorder(middle, (2, 3), options={"level": 3}), numbers(2, 3))


# --- errors of compile ----------------------------------------------------------------------------


def test_nodes_that_compile_can_not_do_join_the_refused_ones(caplog) -> None:
    with recorder(refuse={"erf"}, reject={"relu"}) as device:
        with caplog.at_level(logging.WARNING, "frame.fallback"):
            model = on_recorder(middle, (2, 3))
        assert places(model) == ["recorder", "cpu"]
        check(model, numbers(2, 3))
        assert names(device) == ["mul"]
    found = {record.getMessage() for record in caplog.records}
    assert len(caplog.records) == 2 and found == {
        "op erf can't run on recorder (it refuses this op): it runs on cpu:0",
        "op relu can't run on recorder (recorder can't compile relu): it runs on cpu:0",
    }


def test_the_cut_is_repeated_once(monkeypatch, caplog) -> None:
    with recorder() as device:
        plain = device.compile

        def compile(piece, *rest):  # one more op is found at each try
            device._reject = {"tanh"} if not device.compiled else {"tanh", "relu"}
            device.compiled.append(piece)
            return plain(piece, *rest)

        monkeypatch.setattr(device, "compile", compile)
        with pytest.raises(UnimplementedError, match="can't compile relu"):
            on_recorder(lambda x: ops.relu(ops.tanh(x) * 2.0), (2, 3))
    assert not caplog.records and not fallback_stats()


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("the driver is gone"),
        InvalidArgumentError("no"),
        NotImplementedError("not ours"),
        UnimplementedError("it does not say of which node"),
    ],
)
def test_no_other_error_starts_the_fallback(error: Exception, monkeypatch, caplog) -> None:
    def fail(*_):
        raise error

    with recorder() as device:
        monkeypatch.setattr(device, "compile", fail)
        with pytest.raises(type(error)) as caught:
            on_recorder(middle, (2, 3))
    assert caught.value is error and not caplog.records


# --- waits ----------------------------------------------------------------------------------------


def test_a_missing_wait_between_streams_is_caught(monkeypatch) -> None:
    """The pieces read what the copy stream brings: without the event it is a race."""
    from frame_recorder.device import Stream

    with recorder(refuse={"erf"}):
        model = on_recorder(middle, (2, 3))
        x = numbers(2, 3)
        model(x)
        with monkeypatch.context() as patch:
            patch.setattr(Stream, "wait", lambda self, event: None)
            with pytest.raises(HazardError, match="nothing made it wait"):
                model(x)
        check(model, x)


def test_a_missing_wait_of_the_host_is_caught(monkeypatch) -> None:
    from frame_recorder.device import Event

    with recorder(refuse={"erf"}):
        model = on_recorder(middle, (2, 3))
        with monkeypatch.context() as patch:
            patch.setattr(Event, "synchronize", lambda self: None)
            with pytest.raises(HazardError, match="without waiting for it"):
                model(numbers(2, 3))
        check(model, numbers(2, 3))


def test_work_is_late_and_memory_is_given_back() -> None:
    with recorder(refuse={"erf"}) as device:
        model = on_recorder(middle, ("n", 3))
        for rows in range(1, 40):
            check(model, numbers(rows, 3))
        assert device.machine.live_bytes == 0
        streams = {operation.stream for operation in device.log}
        assert len(streams) == 2  # they are used again


def test_a_failed_run_leaves_nothing_behind() -> None:
    def net(x, i):
        return ops.erf(ops.gather(x, i, axis=0)) * 2.0

    with recorder(refuse={"erf"}) as device:
        model = frame.compile(
            net, [frame.spec((4, 2)), frame.spec((3,), "int64")], backend="recorder"
        )
        x = numbers(4, 2)
        with pytest.raises(InvalidArgumentError, match="gather"):
            model(x, np.array([0, 4, 1]))
        assert device.machine.live_bytes == 0
        check(model, x, np.array([0, 3, 1]))


# --- one piece ------------------------------------------------------------------------------------


def test_a_program_of_one_piece_gets_its_transfers() -> None:
    with recorder() as device:
        model = on_recorder(lambda x, y: (ops.tanh(x) @ y, x + 1.0), ("n", 3), (3, 2))
        x, y = numbers(5, 3), numbers(3, 2, seed=1)
        check(model, x, y)
        assert [op.name for op in device.log].count("upload") == 2
        check(model, x[::-1], np.asfortranarray(y))
        check(model, x.astype(">f4"), y)
        out = np.zeros((5, 2), np.float32), np.zeros((5, 3), np.float32)
        first, second = model(x, y, out=out)
        assert first is out[0] and second is out[1]
        compare(first, np.tanh(x.astype(float)) @ y, float32, 3.0)
        frozen = np.zeros((5, 2), np.float32)
        frozen.flags.writeable = False
        for wrong in (out[:1], (out[0], out[0]), (out[0].astype(float), out[1]), (frozen, out[1])):
            with pytest.raises(InvalidArgumentError, match="out"):
                model(x, y, out=wrong)
        with pytest.raises(InvalidArgumentError, match=r"input 0 .'arg0'|input 0 .'x'"):
            model(x.astype(np.float64), y)
        with pytest.raises(InvalidArgumentError, match="expected"):
            model(x, numbers(4, 2))


def test_weights_are_uploaded_once() -> None:
    with recorder() as device:
        model = frame.compile(nn.Linear(3, 2), [frame.spec(("n", 3))], backend="recorder")
        for rows in (1, 2, 3):
            check_model(model, numbers(rows, 3))
        assert [op.name for op in device.log].count("upload") == 2 + 3
        model.load_params({"bias": np.ones(2, np.float32)})
        check_model(model, numbers(2, 3))
        assert [op.name for op in device.log].count("upload") == 2 + 3 + 2


def check_model(model, x) -> None:
    values = [x if e.name == "x" else model.params[e.name] for e in model.graph.inputs]
    want = interpret(model.graph, values)[0]
    compare(model(x), want, float32, np.abs(want).max(initial=1.0))


def test_a_profile_shows_pieces_copies_and_numpy(reversed_rows) -> None:
    def net(x):
        return ops.reversed_rows(ops.relu(x) * 2.0) + 1.0

    with recorder(refuse={"reversed_rows"}):
        model = on_recorder(net, (3, 2))
        kernels = [row.kernel for row in model.profile(numbers(3, 2))]
    assert kernels == [
        "copy cpu:0 to recorder:0", "relu", "mul", "copy recorder:0 to cpu:0",
        "numpy reversed_rows", "copy cpu:0 to recorder:0", "add", "copy recorder:0 to cpu:0",
    ]  # fmt: skip


def test_sources_of_all_pieces() -> None:
    with recorder(refuse={"erf"}):
        sources = on_recorder(middle, (2, 3)).source()
    assert "relu" in sources["graph"] and "erf" in sources["loop"]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_other_layouts_than_that_of_arrays_stay_inside(kind: str) -> None:
    with GraphBuilder("g") as builder:
        layout = Layout((1, 0)) if kind == "input" else ROW_MAJOR
        x = builder.input(TensorType(float32, (2, 3), layout), name="x")
        y = ops.relayout(x, permutation=() if kind == "input" else (1, 0))
        builder.output(y, "y")
    with pytest.raises(
        InvalidArgumentError, match=rf"the {kind} '[xy]' of g is float32\[2, 3\]<1,0"
    ):
        frame.compile(builder.finish())


def test_outputs_that_share_memory_are_refused_and_stay_as_they_are() -> None:
    with recorder(refuse={"erf"}):
        model = on_recorder(lambda x: (ops.relu(ops.erf(x)), middle(x)), (4,))
        x = np.ones(4, np.float32)
        expected = model(x)
        memory = np.zeros(6, np.float32)
        for out in ([memory[:4], memory[:4]], [memory[:4], memory[2:]]):
            with pytest.raises(InvalidArgumentError, match="outputs 0 and 1 share memory"):
                model(x, out=out)
        assert not memory.any()
        apart = np.zeros(8, np.float32)
        model(x, out=[apart[:4], apart[4:]])
        np.testing.assert_array_equal(apart, np.concatenate(expected))
