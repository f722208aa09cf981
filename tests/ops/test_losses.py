from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ops.interpreter import interpret
from frame.ops.record import Trait
from frame.ops.registry import lookup
from tests.ops.checking import check_gradient, gradients, run, trace, value_of

BATCH = Dim.symbol("batch")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_mse_loss():
    p, t = random(3, 4), random(3, 4, seed=1)
    np.testing.assert_allclose(run(ops.mse_loss, p, t)[0], ((p - t) ** 2).mean(), rtol=1e-14)
    slope, other = run(gradients(ops.mse_loss), p, t)
    np.testing.assert_allclose(slope, 2 * (p - t) / 12, rtol=1e-14)
    np.testing.assert_array_equal(other, -slope)


def test_mse_loss_of_a_symbolic_batch_divides_at_run_time():
    with GraphBuilder() as builder:
        operands = value_of((BATCH, 2), "float64"), value_of((BATCH, 2), "float64")
        for value in gradients(ops.mse_loss)(*operands):
            builder.output(value)
    p, t = random(5, 2), random(5, 2, seed=1)
    np.testing.assert_allclose(interpret(builder.finish(), [p, t])[0], (p - t) / 5, rtol=1e-14)


def test_mse_loss_does_not_broadcast():
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match="of one shape"):
        ops.mse_loss(value_of((3, 1)), value_of((3,)))


def test_cross_entropy_and_its_gradient():
    logits, labels = random(4, 5), np.array([0, 4, 2, 2])
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    (loss,) = run(ops.softmax_cross_entropy, logits, labels)
    np.testing.assert_allclose(loss, -np.log(probability[np.arange(4), labels]), rtol=1e-13)
    (slope,) = run(gradients(ops.softmax_cross_entropy, 0), logits, labels)
    np.testing.assert_allclose(slope, probability - np.eye(5)[labels], rtol=1e-12, atol=1e-14)


def test_cross_entropy_of_extreme_logits():
    logits = np.array([[1e4, 0.0], [0.0, 1e4], [-np.inf, 0.0]])
    (loss,) = run(ops.softmax_cross_entropy, logits, np.array([0, 0, 0]))
    assert loss.tolist() == [0.0, 1e4, np.inf]
    (slope,) = run(gradients(ops.softmax_cross_entropy, 0), logits[:2], np.array([0, 0]))
    assert slope.tolist() == [[0.0, 0.0], [-1.0, 1.0]]


@pytest.mark.parametrize(("label", "dtype"), [(3, np.int64), (-1, np.int32), (200, np.uint8)])
def test_labels_out_of_range_are_named(label, dtype):
    logits, labels = random(4, 3), np.array([0, 1, label, label], dtype)
    with pytest.raises(
        InvalidArgumentError, match=rf"softmax_cross_entropy.*position 2 is {label}"
    ):
        run(ops.softmax_cross_entropy, logits, labels)


@pytest.mark.parametrize("label", [3, -1])
def test_the_decomposition_and_the_gradient_check_labels_too(label):
    """Whatever becomes of the forward op: what is left reads no class that there isn't."""
    record = lookup("softmax_cross_entropy")
    logits, labels = random(3, 3), np.array([0, label, 1])
    with pytest.raises(InvalidArgumentError, match=rf"{label} at position 1"):
        run(lambda x, y: record.decomposition((x, y), {}), logits, labels)
    built = trace(gradients(ops.softmax_cross_entropy, 0), logits, labels)
    live = [node for node in built.nodes if node.op != "softmax_cross_entropy"]
    assert any(Trait.CHECKED in lookup(node.op).traits for node in live)


def test_narrow_labels_of_many_classes_select_one_class():
    logits, labels = random(2, 600), np.array([3, 255], np.uint8)
    (slope,) = run(gradients(ops.softmax_cross_entropy, 0), logits, labels)
    assert (slope < 0).sum(-1).tolist() == [1, 1]
    check_gradient(lambda x: ops.softmax_cross_entropy(x, np.array([1, 0], np.int8)), random(2, 3))


@pytest.mark.parametrize(
    ("logits", "labels"), [((3, 4), (4,)), ((3, 4), (3, 4)), ((), ()), ((2, 3, 4), (2,))]
)
def test_shapes_must_fit(logits, labels):
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match="one label for each row"):
        ops.softmax_cross_entropy(value_of(logits), value_of(labels, "int64"))


def test_labels_are_integers():
    with GraphBuilder(), pytest.raises(InvalidArgumentError, match="of kind int or uint"):
        ops.softmax_cross_entropy(value_of((2, 3)), value_of((2,)))
