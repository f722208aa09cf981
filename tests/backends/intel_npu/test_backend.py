"""Nets through `frame.compile(..., backend="intel_npu")`, beside the cpu backend."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.intel_npu import create_backend, sdk
from frame.backends.intel_npu.executable import Artifact
from frame.cli.demo import cnn, mlp
from frame.compiler.optimizers import SGD
from frame.compiler.passes.backend_lowering import signature_of
from frame.core import config
from frame.core.devices import Device
from frame.core.dtypes import bfloat16, float32
from frame.core.errors import DeviceError, InvalidArgumentError, NotFoundError
from frame.core.tolerances import GRADIENTS, compare
from frame.data.bundled import digits
from frame.hal.interfaces import Backend, Executable, Piece
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from frame.runtime.backends import backend
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, load
from frame.runtime.partition import cut
from tests.support.compile import NoStore

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="the openvino wheel is not installed"
)
IMAGE = ("batch", 1, 8, 8)


@pytest.fixture(autouse=True)
def _no_cache():
    with config.override(FRAME_CACHE="0"):
        yield


def images(count: int) -> np.ndarray:
    return np.random.default_rng(3).random((count, 1, 8, 8), np.float32)


def executable_of(graph, options=None):
    owner = create_backend()
    piece = Piece(graph, None, signature_of(graph))
    return owner.compile(piece, owner.target("openvino-cpu"), options or {}, NoStore())


# --- the digits nets ------------------------------------------------------------------------------


@needs_openvino
@pytest.mark.parametrize("make", [mlp, cnn])
def test_digits_net_is_one_piece_and_equals_the_cpu(make) -> None:
    host = frame.compile(make(), [frame.spec(IMAGE)])
    model = frame.compile(make(), [frame.spec(IMAGE)], backend="intel_npu")
    (piece,) = model.entry("infer").loaded.run.pieces
    assert piece.device.backend == "intel_npu" and not model.host_steps
    real = np.asarray(digits()[0][:37])
    for batch in (real.reshape(-1, 1, 8, 8).astype(np.float32), images(1), images(5)):
        expected, got = host(batch), model(batch)
        # Chains of ten ops, as the table of gradients allows; the terms of a logit are the scale.
        scale = np.abs(expected).max()
        compare(got, expected.astype(np.float64), float32, scale, table=GRADIENTS)


@needs_openvino
def test_symbolic_batch_compiles_once(monkeypatch) -> None:
    owner = backend("intel_npu")
    compiled, counted = type(owner).compile, []
    monkeypatch.setattr(
        type(owner), "compile", lambda *a: counted.append(1) or compiled(*a), raising=True
    )
    model = frame.compile(mlp(), [frame.spec(IMAGE)], backend="intel_npu")
    for count in range(1, 12):
        assert model(images(count)).shape == (count, 10)
    assert len(counted) == 1
    with pytest.raises(InvalidArgumentError, match="batch = 0"):
        model(images(0))


@needs_openvino
def test_known_43_a_target_without_symbols_gets_one_model_for_each_size(monkeypatch, caplog):
    """What an NPU needs, on OpenVINO's CPU device: the runtime binds a batch before it compiles."""
    owner = backend("intel_npu")
    static = replace(owner.target("openvino-cpu"), symbols=False)
    compiled, seen = type(owner).compile, []
    monkeypatch.setattr(
        type(owner), "compile", lambda *a: seen.append(a[1].graph) or compiled(*a), raising=True
    )
    host = frame.compile(mlp(), [frame.spec(IMAGE)])
    with caplog.at_level(logging.WARNING, "frame.fallback"):
        model = frame.compile(mlp(), [frame.spec(IMAGE)], backend="intel_npu", target=static)
        for count in (1, 3, 1, 3, 3):
            expected, got = host(images(count)), model(images(count))
            scale = np.abs(expected).max()
            compare(got, expected.astype(np.float64), float32, scale, table=GRADIENTS)
    assert len(seen) == 2 and all(graph.symbols == () for graph in seen)
    assert not caplog.records and not model.host_steps, "nothing was left to another backend"


@needs_openvino
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        pytest.param(mlp, None, id="mlp"),
        pytest.param(cnn, {"batch": 6}, id="cnn-6"),
        pytest.param(mlp, {"batch": 6}, id="mlp-6", marks=pytest.mark.slow),
        pytest.param(cnn, None, id="cnn", marks=pytest.mark.slow),
    ],
)
def test_training_step_equals_the_cpu(make, sizes) -> None:
    """Dropout's random numbers come from the cpu; state is written back by the runtime."""
    models = [
        frame.compile(
            make(),
            [frame.spec(IMAGE)],
            backend=name,
            loss=nn.CrossEntropyLoss(),
            targets=[frame.spec(("batch",), "int64")],
            optimizer=SGD(momentum=0.9),
            sizes=sizes,
        )
        for name in ("cpu", "intel_npu")
    ]
    x, labels = images(6), np.array([0, 9, 3, 3, 1, 7])
    for _ in range(3):
        losses = [model.train_step(x, labels, learning_rate=0.1)[0] for model in models]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    host, other = (model.params for model in models)
    for name in host:
        np.testing.assert_allclose(other[name], host[name], rtol=1e-4, atol=1e-5)
    before = {name: other[name] for name in other}
    with pytest.raises(InvalidArgumentError, match="position 1 is 10"):
        models[1].train_step(x, np.array([0, 10, 3, 3, 1, 7]), learning_rate=0.1)
    assert all(np.array_equal(before[name], other[name]) for name in before)


# --- symbols, pieces, checks ----------------------------------------------------------------------


def symbolic_graph():
    with GraphBuilder("symbolic") as builder:
        x = builder.input(frame.spec(("n", 3, "m")), name="x")
        flat = ops.reshape(x, (-1, 3))
        mean = ops.mean(ops.mul(flat, 2.0), axes=(0,))
        count = ops.cast(ops.size(x, axis=2), float32)
        builder.output(ops.expand(ops.add(mean, count), (x.shape[0], 3)))
        builder.output(ops.add(x, ops.iota(shape=(x.shape[2],), axis=0, dtype=float32)))
    return builder.finish()


@needs_openvino
def test_symbols_reach_shapes_counts_and_sizes() -> None:
    graph = symbolic_graph()
    executable = executable_of(graph)
    for shape in ((2, 3, 4), (5, 3, 1), (1, 3, 7)):
        x = np.random.default_rng(1).random(shape, np.float32)
        for got, want in zip(executable.run([x]), interpret(graph, [x]), strict=True):
            compare(got, want, float32, np.abs(want).max(initial=1.0))


def test_a_piece_reads_an_input_for_a_symbol_that_nothing_else_binds() -> None:
    """Random numbers of a symbolic batch read a counter only."""
    with GraphBuilder("noise") as builder:
        x = builder.input(frame.spec(("batch", 3)), name="x")
        counter = builder.input(frame.spec((2,), "uint64"), name="counter")
        noise = ops.uniform(counter, shape=x.shape, stream=1)
        builder.output(ops.add(x, noise))
    graph = builder.finish()
    devices = {node: Device("intel_npu" if node.op == "add" else "cpu") for node in graph.nodes}
    partition = cut(graph, devices)
    names = [[entry.name for entry in piece.graph.inputs] for piece in partition.pieces]
    assert names[0] == ["counter", "x"]
    for piece in partition.pieces:
        verify(piece.graph)


@needs_openvino
def test_a_frame_file_keeps_the_compiled_model(tmp_path) -> None:
    model = frame.compile(mlp(), [frame.spec(IMAGE)], backend="intel_npu")
    x = images(3)
    model.save(tmp_path / "net.frame")
    again = frame.load(tmp_path / "net.frame", trust=True)
    assert np.array_equal(again(x), model(x))
    entry = again.entry("infer")
    assert entry.loaded.hit and entry.declared.backend == "intel_npu"


@needs_openvino
def test_a_refused_op_runs_on_the_cpu_in_pieces(caplog) -> None:
    def net(x):
        return ops.relu(ops.erf(ops.mul(x, 2.0)))

    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    with caplog.at_level(logging.WARNING, "frame.fallback"):
        model = frame.compile(net, [frame.spec((3, 5))], backend="intel_npu")
    places = [piece.device.backend for piece in model.entry("infer").loaded.run.pieces]
    assert places == ["intel_npu", "cpu", "intel_npu"] and not model.host_steps
    assert "op erf can't run on intel_npu" in caplog.text
    want = interpret(model.graph, [x])[0]
    compare(model(x), want, float32, 1.0)


@needs_openvino
def test_indices_are_checked_before_and_inside() -> None:
    with GraphBuilder("take") as builder:
        x = builder.input(TensorType(float32, (4, 2)), name="x")
        i = builder.input(frame.spec((3,), "int32"), name="i")
        builder.output(ops.gather(x, i, axis=0))
        builder.output(ops.gather(x, ops.add(i, 1), axis=0))
    executable = executable_of(builder.finish())
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    first, second = executable.run([x, np.array([0, 2, 1], np.int32)])
    assert np.array_equal(first, x[[0, 2, 1]]) and np.array_equal(second, x[[1, 3, 2]])
    with pytest.raises(InvalidArgumentError, match="position 2 is -1, expected a value from 0 to"):
        executable.run([x, np.array([0, 2, -1], np.int32)])
    with pytest.raises(InvalidArgumentError, match="position 0 is 4"):
        executable.run([x, np.array([3, 2, 1], np.int32)])


@needs_openvino
def test_a_large_int64_index_is_not_cut_to_32_bits() -> None:
    with GraphBuilder("take") as builder:
        x = builder.input(frame.spec((4,)), name="x")
        builder.output(ops.gather(x, builder.input(frame.spec((1,), "int64"), name="i"), axis=0))
    executable = executable_of(builder.finish())
    with pytest.raises(InvalidArgumentError, match=str(2**32 + 1)):
        executable.run([np.zeros(4, np.float32), np.array([2**32 + 1])])


@needs_openvino
def test_inputs_of_any_strides_and_wrong_ones() -> None:
    with GraphBuilder("twice") as builder:
        builder.output(ops.add(*[builder.input(frame.spec((2, 3)), name="x")] * 2))
    executable = executable_of(builder.finish())
    x = np.arange(6, dtype=">f4").reshape(3, 2).T
    assert np.array_equal(executable.run([x])[0], 2 * x)
    out = np.zeros((2, 3), np.float32)
    assert executable.run([x], [out])[0] is out and np.array_equal(out, 2 * x)
    with pytest.raises(InvalidArgumentError, match=r"'x'.*received shape \[3, 2\]"):
        executable.run([x.T])
    with pytest.raises(InvalidArgumentError, match="float64"):
        executable.run([x.astype(np.float64)])
    with pytest.raises(InvalidArgumentError, match="expected 1 inputs"):
        executable.run([])
    for wrong in ([out, out], [out.T], [out.astype(int)], [list(out)]):
        with pytest.raises(InvalidArgumentError, match="out"):
            executable.run([x], wrong)


@needs_openvino
def test_results_are_not_overwritten_and_runs_may_be_concurrent() -> None:
    model = frame.compile(mlp(), [frame.spec(IMAGE)], backend="intel_npu")
    batches = [images(4) * k for k in range(1, 9)]
    expected = [model(batch).copy() for batch in batches]
    found: list = [None] * len(batches)

    def work(k: int) -> None:
        found[k] = model(batches[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


# --- cache ----------------------------------------------------------------------------------------


@needs_openvino
def test_warm_start_runs_no_pass_and_compiles_nothing(tmp_path, monkeypatch) -> None:
    with GraphBuilder("net") as builder:
        x = builder.input(frame.spec(("n", 4)), name="x")
        w = builder.input(frame.spec((4, 3), "bfloat16"), name="w")
        y = ops.softmax(ops.matmul(x, ops.cast(w, float32)))
        builder.output(y)
        builder.output(ops.cast(y, bfloat16))
    declared = Declared(builder.finish(), "intel_npu")
    first = load(declared, Cache(tmp_path, remembered=0))
    owner = backend("intel_npu")
    monkeypatch.setattr(type(owner), "compile", lambda *a: pytest.fail("compiled again"))
    second = load(declared, Cache(tmp_path, remembered=0))
    assert second.hit and not first.hit
    arrays = [np.ones((2, 4), np.float32), np.full((4, 3), 0.3, bfloat16.numpy)]
    for a, b in zip(first.run.run(arrays), second.run.run(arrays), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@needs_openvino
def test_known_precision_survives_serialization() -> None:
    """A CPU with bfloat16 computes in it by default, and again after an import without the hint."""
    graph = symbolic_graph()
    executable = executable_of(graph)
    data = executable.serialize()
    assert Artifact.from_bytes(data)[0].config["INFERENCE_PRECISION_HINT"] == "f32"
    again = create_backend().deserialize(data, executable.signature, NoStore())
    x = np.random.default_rng(1).random((2, 3, 4), np.float32)
    for a, b in zip(executable.run([x]), again.run([x]), strict=True):
        assert np.array_equal(a, b)
    assert str(again._compiled.get_property("INFERENCE_PRECISION_HINT")).count("float32") == 1


@needs_openvino
@pytest.mark.parametrize("data", [b"", b"FRCPU1\0\0abcdefgh", b"FRNPU1\0\0" + b"\xff" * 40])
def test_foreign_artifacts_are_rejected(data) -> None:
    with pytest.raises(InvalidArgumentError, match="artefact"):
        create_backend().deserialize(data, None, NoStore())


@needs_openvino
def test_a_torn_artifact_is_rejected() -> None:
    data = executable_of(symbolic_graph()).serialize()
    with pytest.raises(InvalidArgumentError, match="artefact"):
        create_backend().deserialize(data[: len(data) // 2], None, NoStore())


# --- the backend ----------------------------------------------------------------------------------


def test_targets_and_options() -> None:
    owner = create_backend()
    assert isinstance(owner, Backend)
    cpu, npu = owner.target("openvino-cpu"), owner.target("openvino-npu")
    assert owner.capabilities(cpu).symbols and not owner.capabilities(npu).symbols
    assert not owner.capabilities(cpu).anchors and not owner.capabilities(cpu).donation
    with pytest.raises(NotFoundError, match="openvino-npu, openvino-cpu"):
        owner.target("openvino-gpu")


@needs_openvino
def test_options_source_profile_doctor() -> None:
    with GraphBuilder("mul") as builder:
        x = builder.input(frame.spec((64, 64)), name="x")
        builder.output(ops.matmul(x, x))
    graph = builder.finish()
    executable = executable_of(graph, {"inference_precision": "bf16"})
    assert isinstance(executable, Executable)
    assert "MatMul(x, x)" in executable.source()["openvino"]
    times = executable.profile([np.ones((64, 64), np.float32)])
    assert any("matmul_0" in row.kernel and row.seconds > 0 for row in times)
    with pytest.raises(InvalidArgumentError, match="inference_precision must be one of"):
        executable_of(graph, {"inference_precision": "int4"})
    facts = create_backend().doctor()
    assert facts["device used"] in facts["devices"].split()


def test_a_missing_wheel_is_named_and_breaks_no_listing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(sdk, "installed_version", lambda: "missing")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for function in (sdk.openvino, sdk.opset, sdk.core):
        function.cache_clear()
    owner = create_backend()
    try:
        assert owner.devices() == () and "pip install openvino" in owner.doctor()["problem"]
        assert owner.target().name == "openvino-cpu" and owner.source_hash()
        with pytest.raises(DeviceError, match=r"`pip install openvino`"):
            executable_of(symbolic_graph())
    finally:
        for function in (sdk.openvino, sdk.opset, sdk.core):
            function.cache_clear()


def test_the_backend_loads_without_importing_openvino() -> None:
    text = "import sys, frame.backends.intel_npu as b; b.create_backend().devices()"
    check = f"{text}; sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
