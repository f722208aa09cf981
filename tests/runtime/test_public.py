"""What a user calls beside compile: jit, eager, grad, trace, profile, summary, and HTML views."""

from __future__ import annotations

import copy
import json
import pickle
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.blueprint import ArchPlan, InputSpec, fc, seq
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.ir.graph import Role
from frame.ops.interpreter import interpret
from frame.train import SGD, AdamW, EpochRecord, History
from tests.runtime.support import numbers

X = numbers(4, 6)


# --- jit and eager --------------------------------------------------------------------------------


def _nested(data, scale, *, power=1, mode="sum"):
    total = data["x"] * scale + data["pair"][0] ** float(power)
    reduced = ops.sum(total) if mode == "sum" else ops.mean(total)
    return {"total": total, "pair": (reduced, [data["pair"][1]])}


DATA = {"x": X, "pair": (X + 3, np.arange(3))}


@pytest.mark.parametrize("make", [frame.jit, frame.eager], ids=["jit", "eager"])
def test_nests_keywords_and_kinds_of_results(make: Any) -> None:
    function = make(_nested)
    found = function(DATA, 2.0, power=2, mode="mean")
    want = X * 2 + (X + 3) ** 2
    assert set(found) == {"total", "pair"} and isinstance(found["pair"], tuple)
    np.testing.assert_allclose(found["total"], want, rtol=1e-5)
    np.testing.assert_allclose(found["pair"][0], want.mean(), rtol=1e-5)
    assert found["pair"][1][0].tolist() == [0, 1, 2] and found["total"].dtype == np.float32
    np.testing.assert_allclose(function(DATA, 2.0)["pair"][0], (X * 3 + 3).sum(), rtol=1e-5)
    tensors = function({"x": frame.from_numpy(X), "pair": DATA["pair"]}, np.float32(1))
    assert isinstance(tensors["total"], frame.Tensor)
    assert function.__name__ == "_nested"


def test_jit_compiles_once_for_each_structure_and_type() -> None:
    function = frame.jit(_nested)
    for k, call in enumerate(
        (
            lambda: function(DATA, 2.0),
            lambda: function(DATA, 2.0, power=3),
            lambda: function({**DATA, "pair": [X, np.arange(3)]}, 2.0),  # a list, not a tuple
            lambda: function(DATA, np.float64(2).astype(np.float32)),  # the type of the first
        )
    ):
        call()
        call()
        assert function.compiles == min(k + 1, 3)


def test_jit_decorates_with_options_and_inlines_into_other_graphs() -> None:
    @frame.jit(backend="cpu", target="native")
    def half(x):
        return x * 0.5

    @frame.jit
    def quarter(x):
        return half(half(x))

    assert np.array_equal(quarter(X), X * 0.25)
    assert (half.compiles, quarter.compiles) == (0, 1)  # a part of the graph of the other
    assert half.function(8) == 4.0
    for wrong, message in (
        (lambda: frame.jit(speed=3)(abs), "frame.jit takes backend.*'speed'"),
        (lambda: frame.jit(3), "compiles a function, received 3"),
        (lambda: half(X, mode=[1]), "'mode' is a list"),
        (lambda: half("text"), "argument 0: expected one of the dtypes .* received dtype"),
        (lambda: quarter(None), "argument 0: expected one of the dtypes .* received dtype"),
        (lambda: frame.jit(lambda x: "text")(X), "must return values of the graph"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            wrong()


def test_constants_that_python_calls_equal_give_graphs_of_their_own() -> None:
    ones = np.ones(2, np.float32)
    function = frame.jit(lambda x, *, by: x / by[0])
    assert np.array_equal(function(ones, by=(0.0,)), [np.inf, np.inf])
    assert np.array_equal(function(ones, by=(-0.0,)), [-np.inf, -np.inf])
    assert np.array_equal(function(ones, by=(np.float32(-0.0),)), [-np.inf, -np.inf])
    for _ in range(2):  # a NaN equals nothing, and is the same constant all the same
        assert np.isnan(function(ones, by=(float("nan"),))).all()
    assert function.compiles == 4
    whole = frame.jit(lambda x, *, by: x + by)
    assert whole(np.ones(2, np.int32), by=1).tolist() == [2, 2]
    with pytest.raises(InvalidArgumentError, match="1.0, which int32 can't hold"):
        whole(np.ones(2, np.int32), by=1.0)


def test_a_function_has_no_mode_of_training_and_stays_as_it_is() -> None:
    model = frame.compile(lambda x: x * 2.0, [frame.spec((2,))])
    with pytest.raises(NotFoundError, match="no entry 'train'.*made of a Module"):
        model.train()
    assert model.mode == "infer" and model(np.ones(2, np.float32)).tolist() == [2, 2]


def test_a_graph_with_parameters_takes_their_values(tmp_path) -> None:
    specs = [frame.spec((4, 6))]
    graph = nn.build_graph(nn.Sequential("net", [nn.Linear(6, 2), nn.BatchNorm1d(2)]), specs)
    values = {
        entry.name: numbers(*entry.value.shape)
        for entry in graph.inputs
        if entry.role in (Role.PARAMETER, Role.BUFFER)
    }
    values["net.1.running_var"] = np.array([1.0, 4.0], np.float32)
    model = frame.compile(graph, params=values)
    wanted = interpret(graph, [X, *values.values()])[0]
    np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-6)
    assert list(model.params) == list(values)
    model.save(tmp_path / "net.frame")
    again = frame.load(tmp_path / "net.frame")
    assert np.array_equal(again(X), model(X))
    view = again._repr_html_()  # heads of parameters, whose paths are moved in by nothing
    assert "<th" in view and ">dtype</th>" in view and ">own parameters</th>" not in view
    assert "padding-left" not in view and "padding-left" in frame.compile(_net(), [X])._repr_html_()
    model.load_params({"net.0.bias": values["net.0.bias"] + 1})
    assert not np.array_equal(frame.load(tmp_path / "net.frame")(X), model(X))
    for wrong, message in (
        (lambda: frame.compile(graph), "the graph net has 6 parameters.*none for net.0.weight, "),
        (
            lambda: frame.compile(graph, params={**values, "more": X}),
            "no parameter named 'more'; known: net.0.weight, .*net.1.running_var$",
        ),
        (lambda: frame.compile(graph, [(4, 7)], params=values), "has its own inputs.*leave out"),
    ):
        with pytest.raises((InvalidArgumentError, NotFoundError), match=message):
            wrong()


def test_a_branch_on_a_traced_value_says_what_to_use() -> None:
    def absolute(x):
        return x if ops.sum(x) > 0.0 else -x

    with pytest.raises(InvalidArgumentError, match="cond|where"):
        frame.jit(absolute)(X)
    with pytest.raises(InvalidArgumentError, match="cond|where"):
        frame.trace(absolute, (3,))


def test_eager_values_show_their_numbers_and_watch_finds_the_first_nan() -> None:
    shown, first = [], []

    def function(x):
        y = x * 2.0
        shown.append((repr(y), y.numpy().tolist(), np.asarray(y).sum(), ops.sum(y).item()))
        z = ops.log(y)
        return ops.sum(z * 0.0) + 1.0

    def watch(node, results):
        if not first and any(np.isnan(r).any() for r in results if r.dtype.kind == "f"):
            first.append(node.op)

    run = frame.eager(function, watch=watch)
    assert np.isnan(run(np.array([1, -1], np.float32)))
    text, listed, total, item = shown[0]
    assert text == "float32[2] [ 2. -2.]" and listed == [2, -2] and total == item == 0
    assert first == ["log"]
    decorated = frame.eager(watch=watch)(function)
    assert decorated(np.array([1.0, 1.0], np.float32)) == 1


def test_eager_runs_what_jit_compiles_and_refuses_values_of_bodies() -> None:
    @frame.jit
    def power(x):
        return ops.scan(lambda carry, _: (carry * x, carry), x * 0.0 + 1.0, None, length=3)[0]

    two = np.full((2,), 2, np.float32)
    assert frame.eager(power)(two).tolist() == power(two).tolist() == [8, 8]

    def peeks(x):
        return ops.cond(ops.sum(x) > 0.0, lambda: x + float(np.asarray(x * 2.0)[0]), lambda: x)

    with pytest.raises(InvalidArgumentError, match="no elements"):
        frame.eager(peeks)(two)


# --- trace and gradients --------------------------------------------------------------------------


def test_trace_names_inputs_after_arguments_and_compiles_to_the_same() -> None:
    def build(weights, *rest, bias=0.0):
        return {"y": rest[0] @ weights + bias, "n": ops.size(rest[0], 0)}

    graph = frame.trace(build, (6, 2), ("rows", 6), name="product")
    assert graph.name == "product" and graph.symbols == ("rows",)
    assert [entry.name for entry in graph.inputs] == ["weights", "rest0"]
    y, n = frame.compile(graph)(np.ones((6, 2), np.float32), X)
    np.testing.assert_allclose(y[:, 0], X.sum(1), rtol=1e-5)
    assert n == 4


def test_gradients_run_natively_through_jit() -> None:
    def loss(w, x):
        return ops.mean((ops.tanh(x @ w) - 1.0) ** 2.0)

    w = numbers(6, 3, seed=2) / 3
    value, slope = frame.jit(lambda w, x: frame.value_and_grad(loss)(w, x))(w, X)
    hidden = np.tanh(X.astype(float) @ w)
    np.testing.assert_allclose(value, ((hidden - 1) ** 2).mean(), rtol=1e-5)
    want = X.T @ ((hidden - 1) * 2 * (1 - hidden**2) / hidden.size)
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-6)
    second = frame.jit(frame.grad(lambda x: ops.sum(frame.grad(lambda y: ops.sum(y**3.0))(x))))
    np.testing.assert_allclose(second(X), 6 * X, rtol=1e-5)


def test_stop_gradient_and_custom_vjp_run_natively() -> None:
    double_back = frame.custom_vjp(lambda x: (ops.round(x), x), lambda x, g: (g * 2.0 * x,))
    function = frame.jit(frame.grad(lambda x: ops.sum(double_back(x) + frame.stop_gradient(x) * x)))
    np.testing.assert_allclose(function(X), 3 * X, rtol=1e-5)
    assert np.array_equal(frame.jit(double_back)(X), np.round(X))


# --- profile and summary --------------------------------------------------------------------------


def _net() -> nn.Module:
    block = nn.Sequential("block", [nn.Linear(64, 96), nn.GELU()])
    return nn.Sequential("net", [nn.Linear(6, 64), block, nn.Linear(96, 3)])


def _model(**options: Any) -> frame.runtime.CompiledModel:
    return frame.compile(_net(), [frame.spec(("rows", 6))], **options)


def test_a_profile_tells_time_work_and_module_of_each_launch() -> None:
    model = _model()
    profile = model.profile(X)
    assert profile.name == model.graph.name and len(profile) == len(list(profile)) > 0
    assert profile.seconds == pytest.approx(sum(row.seconds for row in profile)) and (
        profile.seconds > 0
    )
    assert sum(row.share for row in profile) == pytest.approx(1)
    # 4 rows through 6x64, 64x96 and 96x3, two operations a product: the profile's own count may
    # hold biases and the activation besides.
    products = 2 * 4 * (6 * 64 + 64 * 96 + 96 * 3)
    assert products <= profile.flops <= products * 1.5
    modules = " ".join(profile.by_module())
    assert all(path in modules for path in ("net.0", "net.block", "net.2"))
    assert list(profile.by_module().values()) == sorted(profile.by_module().values())[::-1]
    heavy = max(profile, key=lambda row: row.flops)
    assert "net.block" in heavy.module
    assert heavy.gflops == pytest.approx(heavy.flops / heavy.seconds * 1e-9)
    assert heavy.gigabytes > 0 and heavy.bytes >= 64 * 96 * 4
    data = json.loads(profile.to_json())
    assert data["name"] == profile.name and len(data["rows"]) == len(profile)
    lines = str(profile).splitlines()
    assert lines[0].split()[:4] == ["kernel", "module", "time", "share"]
    assert len(lines) == len(profile) + 2 and "launches" in lines[-1]
    double = model.profile(np.concatenate([X, X]))
    assert double.flops == pytest.approx(2 * profile.flops, rel=0.05)


def test_a_profile_of_several_runs_is_the_one_of_median_time(monkeypatch) -> None:
    model = _model()
    entry = model.entry("infer")
    seconds = iter([3e-6, 1e-6, 9e-6, 2e-6, 4e-6])
    real = entry.profile

    def slowed(*inputs: Any, **named: Any) -> list[Any]:
        total = next(seconds)
        times = real(*inputs, **named)
        return [replace(each, seconds=total / len(times)) for each in times]

    monkeypatch.setattr(entry, "profile", slowed)
    profile = model.profile(X, runs=5)
    assert profile.seconds == pytest.approx(3e-6) and profile.runs == 5
    assert str(profile).endswith("the median of 5 runs") and next(seconds, None) is None
    for wrong in (0, -1, True, 1.5, "3"):
        with pytest.raises(InvalidArgumentError, match="runs to be an integer of at least 1"):
            model.profile(X, runs=wrong)


def test_code_with_clock_reads_is_compiled_once(monkeypatch) -> None:
    from frame.backends.cpu import compiling

    model, compiled = _model(), []
    real = compiling.compile_parts
    monkeypatch.setattr(
        compiling, "compile_parts", lambda *given: compiled.append(given) or real(*given)
    )
    model.profile(X, runs=3)
    count = len(compiled)
    assert model.profile(X).flops > 0 and len(compiled) == count


def test_a_profile_of_a_training_step_changes_nothing_and_takes_its_inputs() -> None:
    model = _model(
        loss=nn.CrossEntropyLoss(), targets=[frame.spec(("rows",), "int64")], optimizer=SGD()
    )
    labels = np.array([0, 1, 2, 0])
    before = {name: model.store[name].tobytes() for name in model.store}
    profile = model.profile(X, labels, entry="train_step", learning_rate=0.5)
    assert before == {name: model.store[name].tobytes() for name in model.store}
    assert profile.flops > model.profile(X).flops * 2
    with pytest.raises(NotFoundError, match="no entry 'backward'"):
        model.profile(X, entry="backward")
    with pytest.raises(InvalidArgumentError, match="rows, 6"):
        model.profile(X[:, :2])


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), AdamW()], ids=["sgd", "adamw"])
def test_every_launch_of_a_training_step_has_its_module(optimizer: Any) -> None:
    """The loss is called `loss`, an update is its parameter's module; none has an empty path."""
    model = _model(
        loss=nn.CrossEntropyLoss(), targets=[frame.spec(("rows",), "int64")], optimizer=optimizer
    )
    rows = list(model.profile(X, np.array([0, 1, 2, 0]), entry="train_step", learning_rate=0.5))
    assert [row.kernel for row in rows if not row.module] == []
    parts = [set(row.module.split(", ")) for row in rows]
    known = {"net.0", "net.block.0", "net.block.1", "net.2", "loss", "optimizer"}
    assert set().union(*parts) <= known | {"net.*", "net.block.*", "*"}
    assert {"loss"} in parts and {"net.0"} in parts
    forward = [row.module for row in model.profile(X)]
    assert "loss" not in " ".join(forward)


def test_a_named_loss_keeps_its_name() -> None:
    model = _model(
        loss=nn.MseLoss(name="error"), targets=[frame.spec(("rows", 3))], optimizer=SGD()
    )
    rows = model.profile(X, numbers(4, 3), entry="train_step", learning_rate=0.5)
    assert any("error" in row.module for row in rows)


def test_jit_compiles_anew_for_sizes_that_do_not_fit_a_symbol_together(caplog) -> None:
    function = frame.jit(lambda x, y: ops.concat([x, y], axis=0))
    for rows, others in ((3, 3), (5, 5), (3, 5), (7, 2), (9, 9)):
        x, y = numbers(rows, 4), numbers(others, 4)
        with caplog.at_level("INFO", logger="frame.jit"):
            assert np.array_equal(function(x, y), np.concatenate([x, y]))
    assert function.compiles == 4 and "do not fit float32[n, 4], float32[n, 4]" in caplog.text


def test_a_summary_counts_every_parameter_under_its_module() -> None:
    model = _model()
    text = model.summary()
    total = 6 * 64 + 64 + 64 * 96 + 96 + 96 * 3 + 3  # 6,979
    assert f"{total:,} parameters" in text and "27.3 KiB" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("net")}
    assert {"net", "net.0", "net.block", "net.block.0", "net.block.1", "net.2"} <= set(rows)
    assert rows["net.block.0"].rstrip().endswith(f"{64 * 96 + 96:,}")
    assert "inputs: " in text and "float32[rows, 6]" in text and "float32[rows, 3]" in text
    assert f"{total:,}" in repr(model) and "infer" in repr(model)


# --- HTML -----------------------------------------------------------------------------------------


class _Balanced(HTMLParser):
    """Fails for tags that are not closed in order; collects text and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in ("br", "hr", "img", "col", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        self.text += data


def _html(thing: Any) -> _Balanced:
    parser = _Balanced()
    parser.feed(thing._repr_html_())
    parser.close()
    assert parser.open == [] and "script" not in parser.tags
    return parser


def _things() -> dict[str, Any]:
    model = _model()
    return {
        "tensor": (frame.from_numpy(np.arange(600.0).reshape(3, 10, 20)), "float64"),
        "empty tensor": (frame.from_numpy(np.zeros((0, 2), np.int8)), "int8"),
        "module": (_net(), "net.block.0"),
        "graph": (model.graph, "matmul"),
        "model": (model, "6,979"),
        "profile": (model.profile(X), "launches"),
        "memory": (model.memory(sizes={"rows": 4}), "activations"),
        "plan": (ArchPlan.from_blueprint(seq(fc(3, True)), InputSpec.of((6,))), "parameters"),
        "history": (History((EpochRecord(0, 0.5, {"accuracy": 0.75}, {}, 1.0, 4, 16),)), "0.7500"),
    }


def test_every_html_view_is_sound_and_says_what_it_shows() -> None:
    for name, (thing, expected) in _things().items():
        text = _html(thing).text
        assert expected in text, name
        assert len(text) < 20_000, f"{name} is too long for a notebook"


def test_every_view_tells_parameters_from_buffers_and_names_the_folded_product() -> None:
    net = nn.Sequential("cnn", [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()])
    model = frame.compile(net, inputs=[frame.spec((2, 1, 6, 6))])
    said = "cnn: 48 parameters, 8 elements of buffers"
    for text in (_html(net).text, _html(model).text, model.summary(), repr(model)):
        assert said in text
    profile = model.profile(np.zeros((2, 1, 6, 6), np.float32))
    assert any(row.module == "cnn.0, cnn.1, cnn.2" for row in profile)


HOSTILE = "<script>alert(1)</script>&\"'"


def test_names_of_the_user_are_escaped_in_every_view() -> None:
    graph = frame.trace(lambda x: ops.relu(x @ np.ones((6, 2), np.float32)), (4, 6), name=HOSTILE)
    made = frame.compile(graph)
    for thing in (graph, made, made.profile(X)):
        parsed = _html(thing)
        assert re.search(r"<script>alert", parsed.text), "shown as text"


def test_numpy_can_not_take_a_value_of_a_graph_for_an_array() -> None:
    for misuse in (np.asarray, np.sort, lambda x: np.concatenate([x, x])):
        with pytest.raises(InvalidArgumentError, match="no elements while.*frame.ops in place"):
            frame.trace(misuse, (3,))


def test_arrays_on_the_left_of_operators_build_ops() -> None:
    row = np.array([3, 2, 5], np.float32)

    def function(x, n):
        bits = np.array([6, 5, 3])
        yield from (row + x, row - x, row * x, row / x, row // x, row % x, row**x, row @ x)
        yield from (row < x, row <= x, row > x, row >= x, row == x, row != x)
        yield from (bits & n, bits | n, bits ^ n, bits << n, bits >> n, np.float32(7) - x)

    x, n = np.array([1, 2, 3], np.float32), np.array([1, 2, 3])
    wanted = list(function(x, n))
    for found, expected in zip(frame.jit(lambda *a: list(function(*a)))(x, n), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert found.dtype == expected.dtype and found.shape == expected.shape


def test_what_only_arrays_can_do_says_what_to_use() -> None:
    def added_in_place(x):
        total = np.zeros(3, np.float32)
        total += x
        return total

    for misuse, op in ((np.exp, "exp"), (np.add.reduce, "add"), (added_in_place, "add")):
        with pytest.raises(InvalidArgumentError, match=f"in place of numpy, .*frame.ops.{op}\\b"):
            frame.trace(misuse, (3,))
    for misuse, op in ((lambda x: x.sum(), "sum"), (lambda x: x.T, "transpose")):
        with pytest.raises(AttributeError, match=f"use frame.ops.{op}$"):
            frame.trace(misuse, (3,))
    with pytest.raises(AttributeError, match="^a graph value has no attribute 'colour'$"):
        frame.trace(lambda x: x.colour, (3,))


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickles_and_copies_of_a_model_are_refused(take: Any) -> None:
    model = frame.compile(nn.Linear(3, 2), [frame.spec((2, 3))])
    with pytest.raises(UnimplementedError, match=r"model\.save\(path\)"):
        take(model)


def test_jit_refuses_to_be_a_method() -> None:
    class Layer:
        scale = 2.0

        @frame.jit
        def apply(self, x):
            return x * self.scale

        @staticmethod
        @frame.jit
        def double(x):
            return x * 2.0

    assert np.array_equal(Layer().double(X), X * 2) and Layer.apply.compiles == 0
    with pytest.raises(InvalidArgumentError, match=r"received the method apply.*frame.jit\(func"):
        Layer().apply(X)
