"""A network whose channels come last trains as the one whose channels come second."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.runtime.planning import simplified
from frame.train import SGD

LAST, SECOND = (0, 2, 3, 1), (0, 3, 1, 2)
SHAPES = {
    "first": nn.param((4, 2, 3, 3), nn.normal(0.0, 0.3)),
    "bias": nn.param((4,), nn.normal()),
    "second": nn.param((3, 4, 3, 3), nn.normal(0.0, 0.3)),
}


@nn.module(**SHAPES)
def channels_second(self, x):
    y = ops.relu(ops.conv2d(x, self.first) + ops.reshape(self.bias, (4, 1, 1)))
    y = y / (1.0 + ops.sum(y * y, axes=(1,), keepdims=True))
    return ops.mean(ops.tanh(ops.conv2d(y, self.second)), axes=(2, 3))


@nn.module(**SHAPES)
def channels_last(self, x):
    y = ops.relu(ops.transpose(ops.conv2d(x, self.first), LAST) + self.bias)
    y = y / (1.0 + ops.sum(y * y, axes=(3,), keepdims=True))
    z = ops.transpose(ops.conv2d(ops.transpose(y, SECOND), self.second), LAST)
    return ops.mean(ops.tanh(z), axes=(1, 2))


def trainer(net):
    return frame.compile(
        net,
        [frame.spec((5, 2, 8, 9))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((5,), "int64")],
        optimizer=SGD(momentum=0.9),
    )


def transposes(model, entry: str) -> int:
    graph = simplified(model.declaration(entry)).graph
    return sum(node.op == "transpose" for node in graph.nodes)


@pytest.mark.parametrize("entry", ["infer", "train_step"])
def test_no_transpose_is_left_that_the_other_network_has_not(entry: str) -> None:
    assert transposes(trainer(channels_last), entry) == transposes(trainer(channels_second), entry)


def test_both_learn_the_same() -> None:
    one, other = trainer(channels_second), trainer(channels_last)
    other.load_params({name: np.array(value) for name, value in one.params.items()})
    random = np.random.default_rng(3)
    for _ in range(4):
        x = random.normal(size=(5, 2, 8, 9)).astype(np.float32)
        labels = random.integers(0, 3, 5)
        losses = [m.train_step(x, labels, learning_rate=0.1)[0] for m in (one, other)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    for name, value in one.params.items():
        np.testing.assert_allclose(other.params[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
