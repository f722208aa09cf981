"""Metrics: sums over samples, checked against what they are given."""

from __future__ import annotations

import numpy as np
import pytest

from frame.core.errors import InvalidArgumentError
from frame.train import METRICS, evaluate
from tests.train.support import classes, classifier

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.0, 0.4, 0.6]], np.float32)


def test_accuracy_counts_rows() -> None:
    assert METRICS["accuracy"](SCORES, np.array([1, 0, 0])) == 2
    images = np.stack([SCORES, SCORES])  # [2, 3, classes]: a label a position
    assert METRICS["accuracy"](images, np.array([[1, 0, 0], [1, 0, 2]])) == pytest.approx(5 / 3)


def test_top5_accuracy_counts_the_values_above_the_label() -> None:
    scores = np.arange(8, dtype=np.float32)[None].repeat(3, 0)
    assert METRICS["top5_accuracy"](scores, np.array([7, 3, 2])) == 2


def test_errors_are_means_over_a_sample_and_sums_over_samples() -> None:
    outputs, targets = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 4.0], [0.0, 4.0]])
    assert METRICS["squared_error"](outputs, targets) == pytest.approx(2.0 + 4.5)
    assert METRICS["absolute_error"](outputs, targets) == pytest.approx(1.0 + 1.5)


@pytest.mark.parametrize("name", METRICS)
def test_batches_add_up(name: str) -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(12, 7))
    counts = METRICS[name] in (METRICS["accuracy"], METRICS["top5_accuracy"])
    targets = rng.integers(0, 7, 12) if counts else rng.normal(size=(12, 7))
    parts = sum(METRICS[name](outputs[k : k + 5], targets[k : k + 5]) for k in (0, 5, 10))
    assert parts == pytest.approx(METRICS[name](outputs, targets))


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "message"),
    [
        ("accuracy", SCORES, np.zeros(3, np.float32), "integer labels"),
        ("accuracy", SCORES, np.zeros(4, int), r"labels int64\[4\]"),
        ("accuracy", SCORES, np.zeros((3, 3), int), "integer labels"),
        ("accuracy", np.zeros(3), np.zeros((), int), "outputs"),
        ("squared_error", SCORES, np.zeros(3), "shape of the outputs"),
        ("absolute_error", SCORES, np.zeros((3, 1)), "shape of the outputs"),
        ("accuracy", (SCORES, SCORES), np.zeros(3, int), "several outputs"),
    ],
)
def test_what_does_not_fit_is_an_error(name, outputs, targets, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        METRICS[name](outputs, targets)


def test_evaluate_weights_batches_by_their_samples() -> None:
    model = classifier()
    x, y = classes(10)
    parts = [(x[:7], y[:7]), (x[7:], y[7:])]
    whole = evaluate(model, [(x, y)], ("loss", "accuracy"))
    assert evaluate(model, parts, ("loss", "accuracy")) == pytest.approx(whole, rel=1e-6)
    assert evaluate(model, parts) == {"loss": pytest.approx(whole["loss"], rel=1e-6)}


def test_evaluate_runs_as_in_inference() -> None:
    model = classifier(dropout=0.9)
    batch = classes(30)
    first = evaluate(model, [batch], ("loss",))
    assert first == evaluate(model.train(), [batch], ("loss",))
    assert model.mode == "train" and not model.counter.words[1]


def test_evaluate_needs_samples() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one sample"):
        evaluate(classifier(), [])
    with pytest.raises(InvalidArgumentError, match="at least 1 target"):
        evaluate(classifier(), [(classes(4)[0],)], ("accuracy",))


@pytest.mark.parametrize("name", ["accuracy", "top5_accuracy"])
@pytest.mark.parametrize("label", [-100, 3])
def test_a_label_of_no_class_is_refused(name: str, label: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"labels from 0 to 2, received {label}"):
        METRICS[name](np.zeros((2, 3)), np.array([1, label]))
