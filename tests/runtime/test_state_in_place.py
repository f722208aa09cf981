"""A training step writes parameters and states where they are: which copies are left at its end."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.cpu.compiling import group_info
from frame.core.dtypes import float32
from frame.core.tolerances import compare
from frame.runtime.planning import plan, simplified
from frame.train import SGD, AdamW


def mlp() -> nn.Module:
    return nn.Sequential("net", [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)])


def cnn() -> nn.Module:
    stem = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        "net", [*stem, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
    )


@nn.module(table=nn.param((11, 6), nn.normal()))
def embed(self, tokens):
    return ops.gather(self.table, tokens)


@nn.module(small=nn.param((7, 6), nn.normal()))
def embed_again(self, tokens):
    return ops.gather(self.small, tokens)


@nn.module(embed=embed, again=embed_again)
def embed_twice(self, tokens):
    return self.embed(tokens) + self.again(tokens)


def train(net: nn.Module, shape: tuple[int, ...], optimizer, dtype: str = "float32"):
    return frame.compile(
        net,
        [frame.spec(shape, dtype)],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((shape[0],), "int64")],
        optimizer=optimizer,
    )


def copied(model) -> list[str]:
    """Return the states of a training step that are copied at its end."""
    declared = model.declaration("train_step")
    (piece,) = plan(declared, simplified(declared)).run.pieces
    inputs = {str(copy.target): copy for copy in piece.plan.copies}
    return [e.name for i, e in enumerate(piece.graph.inputs) if f"input {i}" in inputs]


def test_a_step_of_a_perceptron_copies_nothing() -> None:
    assert copied(train(mlp(), (8, 16), SGD(momentum=0.9))) == []


@nn.module
def masked(self, logits, labels):
    """A loss whose labels are changed before they are looked up, and have an axis too many."""
    flat = ops.reshape(labels, (8,))
    chosen = ops.where(flat < 0, 0, flat)
    return ops.mean(ops.softmax_cross_entropy(logits, chosen) * ops.cast(flat >= 0, "float32"))


@pytest.mark.parametrize("labels", ["plain", "masked"])
def test_a_step_of_a_convolutional_network_copies_nothing(labels: str) -> None:
    """The labels are checked first: else a bad one would come when the forward pass has written
    the new running statistics."""
    if labels == "plain":
        model = train(cnn(), (8, 1, 14, 14), AdamW())
    else:
        targets, specs = [frame.spec((8, 1), "int64")], [frame.spec((8, 1, 14, 14))]
        model = frame.compile(cnn(), specs, loss=masked, targets=targets, optimizer=SGD())
    assert copied(model) == []


def test_a_check_of_what_the_network_computes_holds_its_statistics_back() -> None:
    """What it looks up is not known before, so the new statistics wait and are copied."""

    @nn.module(table=nn.param((3, 10), nn.normal()), net=cnn())
    def chosen(self, x):
        return ops.gather(self.table, ops.argmax(self.net(x), -1))

    model = train(chosen, (8, 1, 14, 14), SGD())
    assert copied(model) == ["net.1.running_mean", "net.1.running_var"]
    x = np.random.default_rng(0).normal(size=(8, 1, 14, 14)).astype(np.float32)
    before = {name: np.array(value) for name, value in model.store.items()}
    with pytest.raises(ValueError, match="from 0 to 2"):
        model.train_step(x, np.arange(8), learning_rate=0.1)
    for name, value in model.store.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_an_index_that_was_checked_in_the_forward_pass_holds_no_update_back() -> None:
    """The gradient of an embedding checks the tokens again, as the last kernel but one."""
    net = nn.Sequential("net", [embed, nn.Flatten(), nn.Linear(24, 3)])
    model = train(net, (4, 4), AdamW(), "int64")
    assert copied(model) == []
    losses = [
        float(model.train_step(np.eye(4, dtype=np.int64), np.arange(4) % 3, learning_rate=0.05)[0])
        for _ in range(20)
    ]
    assert losses[-1] < losses[0] / 2
    before = {name: np.array(value) for name, value in model.params.items()}
    with pytest.raises(ValueError, match="11"):
        model.train_step(np.full((4, 4), 11), np.arange(4) % 3, learning_rate=0.05)
    for name, value in model.params.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_check_against_another_limit_is_a_check_of_its_own() -> None:
    net = nn.Sequential("net", [embed_twice, nn.Flatten(), nn.Linear(24, 3)])
    model = train(net, (4, 4), SGD(), "int64")
    before = {name: np.array(value) for name, value in model.params.items()}
    with pytest.raises(ValueError, match="9"):
        model.train_step(np.full((4, 4), 9), np.arange(4) % 3, learning_rate=0.05)
    for name, value in model.params.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_bad_label_changes_nothing() -> None:
    model = train(cnn(), (8, 1, 14, 14), AdamW())
    x = np.random.default_rng(0).normal(size=(8, 1, 14, 14)).astype(np.float32)
    model.train_step(x, np.arange(8), learning_rate=0.1)
    before = {name: np.array(value) for name, value in model.params.items()}
    with pytest.raises(ValueError, match="11"):
        model.train_step(x, np.full(8, 11), learning_rate=0.1)
    for name, value in model.params.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_sums_write_over_a_capture_of_their_epilogue_alone() -> None:
    """The left addend is read by the sweep at the index of other axes, though of equal type."""

    def both(x, left, right):
        return ops.sum(x + left, axes=(2,)) + right

    specs = [frame.spec((8, 8, 8)), frame.spec((8, 8)), frame.spec((8, 8))]
    model = frame.compile(frame.trace(both, *specs))
    declared = model.declaration("infer")
    (piece,) = plan(declared, simplified(declared)).run.pieces
    (group,) = piece.graph.nodes
    assert group.attributes["anchor"] == "reduction"
    (right,) = (i for i, v in enumerate(group.operands) if v is piece.graph.inputs[2].value)
    assert group_info(group, declared.target).overwritable == ((0, right),)
    random = np.random.default_rng(1)
    arrays = [random.normal(size=s).astype(np.float32) for s in ((8, 8, 8), (8, 8), (8, 8))]
    exact = (arrays[0].astype(float) + arrays[1]).sum(2) + arrays[2]
    compare(model(*arrays), exact, float32, np.full_like(exact, 64))
