"""What a training step refuses: labels and rates. Then nothing that it could change has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.cpu.pool import set_num_threads
from frame.core import config
from frame.core.errors import BadIndexError, InvalidArgumentError
from frame.runtime.model import CompiledModel
from frame.train import SGD, Adam, AdamW

OPTIMIZERS = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": Adam(weight_decay=1e-2),
    "adamw": AdamW(),
}


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests here, which train the same few models again and again."""
    with config.override(FRAME_CACHE_DIR=str(tmp_path_factory.mktemp("cache")), FRAME_CACHE="1"):
        yield


def _network() -> nn.Module:
    layers = [
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(4 * 36, 40), nn.ReLU(), nn.Linear(40, 5),
    ]  # fmt: skip
    return nn.Sequential("net", layers)


def _trained(optimizer: Any, steps: int = 2) -> CompiledModel:
    model = frame.compile(
        _network(),
        [frame.spec(("batch", 1, 6, 6))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=optimizer,
        seed=3,
    )
    for step in range(steps):
        model.train_step(*_batch(step), learning_rate=0.05)
    return model


def _batch(seed: int = 0, rows: int = 37) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, 1, 6, 6)).astype(np.float32)
    return x, generator.integers(0, 5, rows)


def _everything(model: CompiledModel) -> dict[str, bytes]:
    """All that a step can change: parameters, running statistics, optimizer state, counter."""
    state = {name: model.store[name].tobytes() for name in model.store}
    return {**state, "counter": model.counter.words.tobytes()}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    set_num_threads(request.param)
    yield request.param
    set_num_threads(None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_label_changes_nothing_at_all(name: str, threads: int) -> None:
    model, twin = _trained(OPTIMIZERS[name]), _trained(OPTIMIZERS[name])
    before = _everything(model)
    kinds = {key.split(".")[0] for key in before}
    assert {"net", "counter"} <= kinds and ("optimizer" in kinds) == (name != "sgd")
    assert any("running" in key or "mean" in key for key in before), "running statistics"
    x, labels = _batch(9)
    for position, value in ((0, -1), (36, 5), (20, 2**40), (5, -(2**63))):
        bad = labels.copy()
        bad[position] = value
        with pytest.raises(
            BadIndexError, match=f"position {position} is {value}, expected.*0 to 4"
        ):
            model.train_step(x, bad, learning_rate=0.05)
        assert _everything(model) == before
    # And the next step is the one that a model without bad batches takes.
    ours = model.train_step(x, labels, learning_rate=0.05)
    theirs = twin.train_step(x, labels, learning_rate=0.05)
    assert [a.tobytes() for a in ours] == [a.tobytes() for a in theirs]
    assert _everything(model) == _everything(twin) != before


def test_a_bad_label_is_reported_as_the_op_that_the_user_wrote() -> None:
    model = _trained(SGD(), steps=0)
    x, labels = _batch()
    labels[3] = 9
    with pytest.raises(InvalidArgumentError) as caught:
        model.train_step(x, labels, learning_rate=0.1)
    assert str(caught.value).startswith("softmax_cross_entropy, in its gather (")
    assert "test_training.py" in str(caught.value), "the line of the user"


def _lookup(x: Any, i: Any) -> Any:
    return ops.gather(x, i, 0)


def _again(x: Any, i: Any) -> Any:
    return ops.gather(x, i, 0)


def test_equal_models_share_code_and_still_name_their_own_lines() -> None:
    """The second model's code comes from the cache, where the first one's lines do not matter."""
    specs = [(5, 3), frame.spec((2,), "int64")]
    table = np.zeros((5, 3), np.float32)
    for function in (_lookup, _again):
        model = frame.compile(function, specs)
        line = function.__code__.co_firstlineno + 1
        with pytest.raises(BadIndexError, match=rf"^gather \(.*test_training\.py:{line}\)"):
            model(table, np.array([0, 5]))


def test_an_index_in_a_scan_names_the_scan() -> None:
    def build(x: Any, i: Any) -> Any:
        step = lambda carry, at: (carry + ops.gather(x, at, 0), carry)  # noqa: E731
        return ops.scan(step, ops.gather(x, i[0], 0) * 0.0, i)[0]

    model = frame.compile(build, [(5, 3), frame.spec((4,), "int64")])
    table = np.ones((5, 3), np.float32)
    assert model(table, np.array([0, 1, 2, 3])).tolist() == [4, 4, 4]
    with pytest.raises(BadIndexError, match="^scan, in its gather .*is 7, expected a value from 0"):
        model(table, np.array([0, 1, 7, 3]))


RATES = [
    float("nan"), float("inf"), -float("inf"), -0.1, -1e-30, np.float32("nan"),
    np.array(np.nan, np.float32), np.array(-1, np.float32),
    frame.from_numpy(np.array(-1, np.float32)),
]  # fmt: skip


@pytest.mark.parametrize("rate", RATES, ids=repr)
def test_a_rate_that_would_spoil_the_parameters_is_refused(rate: Any) -> None:
    """As torch.optim refuses rates below 0; NaN and infinity would make all parameters NaN."""
    model = _trained(Adam(), steps=1)
    before = _everything(model)
    message = "'learning_rate': expected a finite number of at least 0, received .*nothing was chan"
    with pytest.raises(InvalidArgumentError, match=message):
        model.train_step(*_batch(), learning_rate=rate)
    assert _everything(model) == before


def test_a_rate_of_zero_and_odd_kinds_of_rates() -> None:
    model = _trained(SGD(), steps=0)
    before = model.params["net.0.weight"]
    model.train_step(*_batch(), learning_rate=0)
    assert np.array_equal(model.params["net.0.weight"], before)
    for rate, message in (
        (None, "^input 'learning_rate': expected float32"),
        ("0.1", "^input 'learning_rate': expected float32"),
        (0.1j, "^input 'learning_rate': expected float32"),
        ([0.1, 0.2], "^input 'learning_rate': expected float32"),
        (np.ones(2, np.float32), "^input 'learning_rate': expected float32.*shape \\[2\\]"),
        (10**60, "'learning_rate'.*expected a number that float32 can hold"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            model.train_step(*_batch(), learning_rate=rate)
    with pytest.raises(InvalidArgumentError, match="needs the input 'learning_rate'"):
        model.train_step(*_batch())


def test_a_batch_that_is_all_stride_zero_is_refused_by_its_shape_first() -> None:
    """512 GiB in four bytes: nobody may copy them before the labels are seen not to fit."""
    model = _trained(SGD(), steps=0)
    before = _everything(model)
    absurd = np.broadcast_to(np.float32(1), (2**32, 1, 6, 6))
    with pytest.raises(
        InvalidArgumentError, match=r"int64\[batch\], received shape \[3\].*batch ="
    ):
        model.train_step(absurd, np.zeros(3, np.int64), learning_rate=0.1)
    with pytest.raises(InvalidArgumentError, match=r"expected float32\[batch, 1, 6, 6\], received"):
        model.train_step(
            np.broadcast_to(np.float32(1), (2**40, 1, 5, 6)),
            np.zeros(3, np.int64),
            learning_rate=0.1,
        )
    assert _everything(model) == before


def test_shapes_are_compared_before_anything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from frame.backends.cpu import ports

    copied = []
    plain = ports._row_major
    monkeypatch.setattr(
        ports, "_row_major", lambda a, d, w: copied.append(a.shape) or plain(a, d, w)
    )
    model = frame.compile(lambda x, y: x + y, [("n", 4), ("n", 4)])
    wide = np.broadcast_to(np.float32(1), (10**6, 4))
    for other in (np.ones((3, 4), np.float32), np.ones((10**6, 4)), "no array", None):
        with pytest.raises(InvalidArgumentError):
            model(wide, other)
    assert copied == []
    assert model(wide, wide)[0, 0] == 2 and len(copied) == 2


def test_a_model_with_an_interrupted_step_goes_on() -> None:
    with config.override(FRAME_NUM_THREADS="2"):
        model = _trained(AdamW())
        x, labels = _batch()
        losses = []
        for step in range(20):
            if step % 3 == 1:
                with pytest.raises(BadIndexError):
                    model.train_step(x, np.full_like(labels, 5), learning_rate=0.01)
            losses.append(float(model.train_step(x, labels, learning_rate=0.01)[0]))
    assert losses[-1] < losses[0] / 2
