"""The cache, symbolic batches, the parameter store, fallback and bad input, end to end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.cpu.pool import get_pool
from frame.core import config
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.ir.graph import Graph
from frame.runtime.cache import Cache
from frame.runtime.fallback import fallback_stats, reset_fallback_stats
from frame.runtime.loading import Declared, load
from frame.runtime.model import CompiledModel
from frame.train import SGD

ROOT = Path(__file__).resolve().parents[2]


def _graph() -> Graph:
    return frame.trace(lambda x, w: ops.relu(x @ w) + 1.0, frame.spec(("n", 8)), frame.spec((8, 4)))


def _inputs(rows: int = 3) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(s).astype(np.float32) for s in ((rows, 8), (8, 4))]


def _expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype(np.float64) @ w, 0) + 1


def test_a_hit_builds_the_program_from_the_cache_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = load(Declared(_graph()), cache)
    again = load(Declared(_graph()), Cache(tmp_path))
    assert (first.hit, again.hit) == (False, True)
    x, w = _inputs()
    np.testing.assert_allclose(again.run.run([x, w])[0], _expected(x, w), rtol=1e-5)


@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
def test_known_6_torn_files_are_made_again(tmp_path: Path, keep: float) -> None:
    get_pool()  # its code is read once a process: here it would be torn and not made again
    load(Declared(_graph()), Cache(tmp_path))
    for entry in Cache(tmp_path).entries():
        data = entry.path.read_bytes()
        end = int(len(data) * keep) if keep == 0.5 else int(keep)
        entry.path.write_bytes(data[:end])
    found = load(Declared(_graph()), Cache(tmp_path))
    x, w = _inputs()
    np.testing.assert_allclose(found.run.run([x, w])[0], _expected(x, w), rtol=1e-5)
    assert not found.hit
    assert Cache(tmp_path).verify()[1] == ()
    assert load(Declared(_graph()), Cache(tmp_path)).hit


def test_known_18_a_planted_file_is_never_run(tmp_path: Path) -> None:
    load(Declared(_graph()), Cache(tmp_path))
    for entry in Cache(tmp_path).entries():
        data = bytearray(entry.path.read_bytes())
        data[-1] ^= 0xFF
        entry.path.write_bytes(bytes(data))
    assert not load(Declared(_graph()), Cache(tmp_path)).hit


def test_known_16_an_unwritable_cache_is_bypassed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with config.override(FRAME_CACHE_DIR=str(blocked / "inside")), caplog.at_level(logging.WARNING):
        model = frame.compile(lambda x: x + 1.0, [frame.spec((3,))])
    assert np.array_equal(model(np.zeros(3, np.float32)), np.ones(3, np.float32))
    assert any("cache" in record.getMessage() for record in caplog.records)


_SECOND = """
import numpy as np, sys, frame
model = frame.compile(lambda x: frame.ops.softmax(x * 2.0), [frame.spec(("n", 5))])
y = model(np.ones((2, 5), np.float32))
assert np.allclose(y, 0.2)
print(model.entry("infer").loaded.hit, "llvmlite" in sys.modules)
"""


def test_known_14_the_second_process_hits(tmp_path: Path) -> None:
    environment = {**os.environ, "FRAME_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    lines = [
        subprocess.run(
            [sys.executable, "-c", _SECOND], env=environment, capture_output=True, text=True,
            check=True, timeout=120,
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert lines == ["False True", "True False"]


def test_known_29_one_compile_serves_every_batch(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    program = load(Declared(_graph()), cache).run
    for rows in range(1, 33):
        x, w = _inputs(rows)
        np.testing.assert_allclose(program.run([x, w])[0], _expected(x, w), rtol=1e-5, atol=1e-5)
    assert cache.counters.writes["manifest"] == 1


def test_known_38_repeated_calls_give_the_same_bits() -> None:
    model = frame.compile(lambda x: ops.sum(ops.exp(x), 0), [frame.spec((1000, 7))])
    x = np.random.default_rng(1).standard_normal((1000, 7)).astype(np.float32)
    assert len({model(x).tobytes() for _ in range(5)}) == 1


def _trainer() -> CompiledModel:
    net = nn.Sequential("net", [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)])
    return frame.compile(
        net,
        [frame.spec(("batch", 6))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=SGD(momentum=0.9),
    )


def test_train_and_infer_share_the_parameters() -> None:
    model = _trainer()
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    labels = np.array([0, 1, 2, 0])
    for _ in range(2):
        before = model(x)
        loss = model.train_step(x, labels, learning_rate=np.float32(0.1))[0]
        weights = [model.params[f"net.{k}.{n}"] for k in (0, 2) for n in ("weight", "bias")]
        hidden = np.maximum(x @ weights[0] + weights[1], 0)
        np.testing.assert_allclose(model(x), hidden @ weights[2] + weights[3], rtol=1e-4, atol=1e-5)
        assert np.isfinite(loss) and not np.array_equal(before, model(x))


def test_a_bad_label_changes_nothing() -> None:
    model = _trainer()
    x = np.ones((4, 6), np.float32)
    model.train_step(x, np.array([0, 1, 2, 0]), learning_rate=np.float32(0.1))
    state = {name: model.store[name].tobytes() for name in model.store}
    with pytest.raises(InvalidArgumentError, match="position 2 is 7"):
        model.train_step(x, np.array([0, 1, 7, 0]), learning_rate=np.float32(0.1))
    assert state == {name: model.store[name].tobytes() for name in model.store}


def test_reading_parameters_copies_and_loading_is_all_or_nothing() -> None:
    model = _trainer()
    taken = model.params["net.0.bias"]
    taken[:] = 5
    assert not np.array_equal(model.params["net.0.bias"], taken)
    with pytest.raises(InvalidArgumentError, match="received"):
        model.load_params({"net.0.bias": taken, "net.2.bias": np.zeros(4, np.float32)})
    assert not np.array_equal(model.params["net.0.bias"], taken)
    with pytest.raises(NotFoundError, match="nothing"):
        model.load_params({"nothing": taken})


@pytest.mark.parametrize("load", ["load_params", "params="])
def test_loaded_arrays_are_copied_in_any_order(load: str) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    read_only = values.copy()
    read_only.flags.writeable = False
    kinds = (values.copy(), np.asfortranarray(values), values[::-1].copy()[::-1], read_only,
             values.astype(">f4"), frame.from_numpy(values.copy()))  # fmt: skip
    net, spec = nn.Linear(3, 4, bias=False, name="net"), frame.spec(("rows", 3))
    model = frame.compile(net, [spec])
    for given in kinds:
        if load == "params=":
            model = frame.compile(net, [spec], params={"net.weight": given})
        else:
            model.load_params({"net.weight": given})
        array = np.asarray(given)
        if array.flags.writeable:
            array[:] = -1
        assert np.array_equal(model.params["net.weight"], values)
        assert np.array_equal(model(np.eye(3, dtype=np.float32)), values)


def test_arrays_of_any_order_and_byte_order_are_taken() -> None:
    model = frame.compile(lambda x: x * 2.0, [frame.spec((3, 4))])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    read_only = x.copy()
    read_only.flags.writeable = False
    for given in (x, np.asfortranarray(x), x.astype(">f4"), read_only, x[::-1][::-1]):
        assert np.array_equal(model(given), x * 2)
    for wrong in (x.T, x.astype(np.float64), x[:2]):
        with pytest.raises(InvalidArgumentError, match="expected"):
            model(wrong)


def test_empty_batches_and_names_of_inputs() -> None:
    model = frame.compile(lambda x: ops.softmax(x), [frame.spec(("n", 3))])
    assert model(np.zeros((0, 3), np.float32)).shape == (0, 3)
    with pytest.raises(InvalidArgumentError):
        model()
    with pytest.raises(InvalidArgumentError, match="other"):
        model(other=np.zeros((1, 3), np.float32))


def test_a_result_that_is_held_is_never_overwritten() -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((256, 256))])
    x = np.zeros((256, 256), np.float32)
    first = model(x)
    view = first[:1]
    del first
    for value in range(6):
        model(np.full_like(x, value))
    assert np.array_equal(view, np.ones_like(view))


def test_an_op_without_code_runs_as_a_host_step() -> None:
    from frame.ops.record import NoGradient, OpDef, Operand, Sample
    from frame.ops.registry import register, unregister

    reset_fallback_stats()
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
    try:
        model = frame.compile(lambda x: ops.reversed_rows(x + 1.0) * 2.0, [frame.spec((3, 2))])
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        assert np.array_equal(model(x), (x + 1)[::-1] * 2)
        assert model.host_steps == ("reversed_rows",)
        assert [row.op for row in fallback_stats()] == ["reversed_rows"]
    finally:
        unregister("reversed_rows")


def test_jit_makes_the_leading_dimension_symbolic_at_the_second_size() -> None:
    @frame.jit
    def double(x: object) -> object:
        return {"twice": x * 2.0}

    for rows in (3, 4, 5, 6):
        x = np.ones((rows, 2), np.float32)
        assert np.array_equal(double(x)["twice"], x * 2)
    assert double.compiles == 2
