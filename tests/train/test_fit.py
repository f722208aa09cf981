"""`fit`: what it trains, what it records, and what stops it."""

from __future__ import annotations

import math
import signal
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data import DataLoader, TensorDataset
from frame.frontend.catalogue import losses
from frame.runtime.model import EVALUATE
from frame.train import (
    SGD,
    EarlyStop,
    EpochRecord,
    History,
    accuracy,
    constant,
    cosine,
    evaluate,
    fit,
)
from tests.train.support import classes, classifier, loader, regressor, weights


def test_a_classifier_learns() -> None:
    model = classifier()
    history = fit(model, loader(90), epochs=30, learning_rate=0.02, metrics=("accuracy",))
    held_out = [classes(60, seed=5)]
    assert evaluate(model, held_out, ("accuracy",))["accuracy"] > 0.95
    assert history.epochs[-1].loss < history.epochs[0].loss / 2


def test_the_history_counts_epochs_steps_and_samples() -> None:
    seen = []
    history = fit(classifier(), loader(40, 8), epochs=3, learning_rate=0.01, on_epoch=seen.append)
    assert [each.epoch for each in history.epochs] == [0, 1, 2] and tuple(seen) == history.epochs
    assert [(each.steps, each.samples) for each in history.epochs] == [(5, 40)] * 3
    assert history.steps == 15 and history.seconds > 0 and history.stopped == ""
    assert history.column("loss") == [each.loss for each in history.epochs]
    assert history.to_data()[2]["samples"] == 40


def test_the_loss_and_metrics_of_an_epoch_are_means_over_its_samples() -> None:
    """With a rate of 0 the model never changes, so an epoch's means can be computed at once."""
    model = classifier(dropout=0.0)
    x, y = classes(20)
    batches = [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    record = fit(model, batches, epochs=1, learning_rate=0.0, metrics=("accuracy",)).epochs[0]
    expected = evaluate(model, [(x, y)], ("loss", "accuracy"))
    assert record.loss == pytest.approx(expected["loss"], rel=1e-6)
    assert record.metrics["accuracy"] == pytest.approx(expected["accuracy"])
    assert record.samples == 20


def test_batches_count_by_what_their_labels_weigh() -> None:
    """Rows of an ignored label are no rows of the mean, and classes weigh what the loss says."""
    model = frame.compile(
        nn.Linear(6, 3),
        [frame.spec(("batch", 6))],
        loss=nn.CrossEntropyLoss(weight=(1.0, 4.0, 0.25), ignore_index=-1),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=SGD(),
    )
    x, y = classes(24)
    y[:7] = y[8:16] = -1
    batches = [(x[rows], y[rows]) for rows in (slice(0, 8), slice(8, 16), slice(16, 24))]
    expected = evaluate(model, [(x, y)])["loss"]
    assert evaluate(model, batches)["loss"] == pytest.approx(expected, rel=1e-6)
    record = fit(model, [batches[0], batches[2]], epochs=1, learning_rate=0.0).epochs[0]
    assert record.loss == pytest.approx(expected, rel=1e-6)
    assert math.isnan(evaluate(model, batches[1:2])["loss"])


LOSSES = {
    **{f"{kind} {reduction}": (kind, {"reduction": reduction})
       for kind in sorted(losses()) for reduction in ("mean", "sum")},
    "smoothing": ("CrossEntropyLoss", {"label_smoothing": 0.2}),
    "weights": ("CrossEntropyLoss", {"weight": (1.0, 4.0, 0.25)}),
    "ignored": ("CrossEntropyLoss", {"ignore_index": 1, "label_smoothing": 0.1}),
    "all": ("CrossEntropyLoss", {
        "weight": (1.0, 4.0, 0.25), "ignore_index": 1, "label_smoothing": 0.3}),
    "summed": ("CrossEntropyLoss", {"reduction": "sum", "weight": (1.0, 4.0, 0.25)}),
}  # fmt: skip
"""Every loss of the library by reflection, and the options of the one that has some."""


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_an_epoch_is_that_of_all_its_rows(name: str) -> None:
    """Batches of 9, 9 and 2 rows, in training and in validation; a sum as a mean over rows."""
    kind, options = LOSSES[name]
    loss = getattr(nn, kind)(**options)
    labelled = kind in ("CrossEntropyLoss", "NLLLoss")
    rng = np.random.default_rng(2)
    x = rng.uniform(0.1, 0.9, (20, 3)).astype(np.float32)
    labels = np.arange(20) % 3  # so that no batch is ignored as a whole
    y = labels if labelled else rng.uniform(0.1, 0.9, (20, 3)).astype(np.float32)
    target = frame.spec(("batch",), "int64") if labelled else frame.spec(("batch", 3))

    @nn.module(scale=nn.param((3,), nn.ones()))
    def net(self, x):
        return x * self.scale

    rows = [frame.spec(("batch", 3))]
    model = frame.compile(net, rows, loss=loss, targets=[target], optimizer=SGD())
    batches = [(x[a:b], y[a:b]) for a, b in ((0, 9), (9, 18), (18, 20))]
    whole = float(model.entry(EVALUATE).run((x, y))[0])
    expected = whole / 20 if dict(loss.options)["reduction"] == "sum" else whole
    assert evaluate(model, batches)["loss"] == pytest.approx(expected, rel=1e-5)
    if name in ("all", "summed"):
        record = fit(model, batches, epochs=1, learning_rate=0.0, validation=batches).epochs[0]
        assert record.loss == pytest.approx(expected, rel=1e-5)
        assert record.validation["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_short_last_batch_is_a_step() -> None:
    x, y = classes(11)
    model, other = (classifier(optimizer=SGD(), dropout=0.0) for _ in range(2))
    history = fit(model, DataLoader(TensorDataset([x, y]), 4), epochs=1, learning_rate=0.1)
    assert (history.steps, history.epochs[0].samples) == (3, 11)
    for rows in (slice(0, 4), slice(4, 8), slice(8, 11)):
        other.train_step(x[rows], y[rows], learning_rate=np.float32(0.1))
    assert weights(model) == weights(other)


def test_a_short_last_batch_does_not_fit_a_fixed_size() -> None:
    model = classifier(sizes={"batch": 4})
    with pytest.raises(InvalidArgumentError, match=r"expected float32\[4, 6\], received shape \[3"):
        fit(model, loader(11, 4), epochs=1, learning_rate=0.1)
    assert fit(model, loader(11, 4, drop_last=True), epochs=2, learning_rate=0.1).steps == 4


def test_schedules_see_the_step_and_the_number_of_steps() -> None:
    seen = []

    def schedule(step: int, steps: int) -> float:
        seen.append((step, steps))
        return 0.01 * step

    history = fit(classifier(), loader(16, 8), epochs=2, learning_rate=schedule)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [each.learning_rate for each in history.epochs] == pytest.approx([0.01, 0.03])


def test_the_rate_reaches_the_update() -> None:
    """SGD without momentum moves a weight by the rate times the gradient."""
    x, y = classes(8)
    moved = []
    for rate in (0.1, 0.2):
        model = classifier(optimizer=SGD(), dropout=0.0)
        before = model.params["net.0.weight"]
        fit(model, [(x, y)], epochs=1, learning_rate=rate)
        moved.append(model.params["net.0.weight"] - before)
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-3, atol=1e-7)


def test_several_inputs_and_a_target_of_numbers() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(64, n)).astype(np.float32) for n in (3, 4))
    target = (x @ np.ones((3, 2)) - y @ np.ones((4, 2))).astype(np.float32)
    model = regressor()
    batches = DataLoader(TensorDataset([x, y, target]), 16, shuffle=True)
    metrics = ("squared_error", "absolute_error")
    fit(model, batches, epochs=60, learning_rate=0.05, metrics=metrics)
    found = evaluate(model, [(x, y, target)], ("loss", *metrics))
    assert found["loss"] == pytest.approx(found["squared_error"], rel=1e-4) and found["loss"] < 1e-4
    np.testing.assert_allclose(model.params["weight"], np.ones((3, 2)), atol=0.02)


def test_several_outputs_and_targets_reach_a_metric_as_tuples() -> None:
    @nn.module(weight=nn.param((6, 3)))
    def twice(self, x):
        return x @ self.weight, x

    @nn.module
    def loss(self, scores, x, labels, wanted):
        first = frame.ops.mean(frame.ops.softmax_cross_entropy(scores, labels))
        return first + frame.ops.mse_loss(x, wanted)

    specs = [frame.spec(("n",), "int64"), frame.spec(("n", 6))]
    model = frame.compile(twice, [frame.spec(("n", 6))], loss=loss, targets=specs, optimizer=SGD())
    x, y = classes(12)
    kinds = []

    def first_right(outputs, targets) -> float:
        kinds.append((len(outputs), len(targets)))
        return accuracy(outputs[0], targets[0])

    record = fit(
        model,
        [(x, y, x)],
        epochs=1,
        learning_rate=0.1,
        metrics=[first_right],
        validation=[(x, y, x)],
    ).epochs[0]
    assert kinds == [(2, 2), (2, 2)]
    assert 0 <= record.metrics["first_right"] <= 1 and "first_right" in record.validation
    with pytest.raises(InvalidArgumentError, match="several outputs or targets"):
        fit(model, [(x, y, x)], epochs=1, learning_rate=0.1, metrics=("accuracy",))


# --- validation and early stopping ----------------------------------------------------------------


def test_validation_does_not_change_the_training() -> None:
    plain, watched = classifier(), classifier()
    held_out = [classes(9, seed=3)]
    fit(plain, loader(), epochs=3, learning_rate=0.02)
    history = fit(
        watched, loader(), epochs=3, learning_rate=0.02, validation=held_out, metrics=["accuracy"]
    )
    assert weights(plain) == weights(watched)
    assert set(history.epochs[0].validation) == {"loss", "accuracy"}
    last = evaluate(watched, held_out, ("loss", "accuracy"))
    assert dict(history.epochs[-1].validation) == last


def test_early_stopping_ends_the_training_and_says_why() -> None:
    history = fit(
        classifier(), loader(), epochs=50, learning_rate=0.0, early_stop=EarlyStop("loss", 2, 10.0)
    )
    assert len(history.epochs) == 3 and history.best == 0
    assert "loss has not been better than" in history.stopped and "2 epochs" in history.stopped


def test_early_stopping_can_restore_the_best_parameters() -> None:
    """The rate grows until it ruins the model, so the best epoch is not the last one."""
    model, states = classifier(optimizer=SGD(), dropout=0.0), []
    history = fit(
        model,
        loader(),
        epochs=12,
        learning_rate=lambda step, steps: 0.02 if step < 15 else 30.0,
        early_stop=EarlyStop("loss", patience=2, restore=True),
        on_epoch=lambda record: states.append({n: a.tobytes() for n, a in model.params.items()}),
    )
    assert history.stopped and history.best == min(
        range(len(history.epochs)), key=lambda k: history.epochs[k].loss
    )
    restored = {name: array.tobytes() for name, array in model.params.items()}
    assert restored == states[history.best] != states[-1]


@pytest.mark.parametrize(
    ("value", "new", "best", "better"),
    [
        ("loss", 1.0, 2.0, True),
        ("val_loss", 2.0, 1.0, False),
        ("squared_error", 1.0, 2.0, True),
        ("accuracy", 0.9, 0.8, True),
        ("val_accuracy", 0.8, 0.9, False),
        ("accuracy", 0.805, 0.8, False),
        ("loss", float("nan"), 1.0, False),
    ],
)
def test_what_counts_as_better(value: str, new: float, best: float, better: bool) -> None:
    assert EarlyStop(value, least=0.01).improved(new, best) is better


def test_early_stopping_on_an_unknown_value_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match="no value 'val_loss'; they have loss, accuracy"):
        fit(
            classifier(),
            loader(),
            epochs=2,
            learning_rate=0.01,
            metrics=("accuracy",),
            early_stop=EarlyStop("val_loss"),
        )


# --- what must not go wrong -----------------------------------------------------------------------


def test_a_bad_label_changes_nothing() -> None:
    model = classifier()
    x, y = classes(16)
    fit(model, [(x, y)], epochs=2, learning_rate=0.01)
    before, counter = weights(model), model.counter.words.copy()
    bad = y.copy()
    bad[5] = 3
    with pytest.raises(InvalidArgumentError, match="position 5 is 3"):
        fit(model, [(x, bad)], epochs=1, learning_rate=0.01)
    assert weights(model) == before and (model.counter.words == counter).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_an_error(value: float) -> None:
    x, y = classes(16)
    x[3, 2] = value
    with pytest.raises(InvalidArgumentError, match="the loss is nan at step 1 of 1.*data"):
        fit(classifier(), [(x, y)], epochs=1, learning_rate=0.25)


class _Interrupting:
    """Batches; the interrupt signal arrives before one of them."""

    def __init__(self, batches: list, at: int) -> None:
        self.batches, self.at = batches, at

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == self.at:
                signal.raise_signal(signal.SIGINT)
            yield batch


def test_an_interrupt_leaves_whole_steps() -> None:
    batches = list(loader(40, 8))
    model, other = classifier(), classifier()
    with pytest.raises(KeyboardInterrupt):
        fit(model, _Interrupting(batches, 3), epochs=2, learning_rate=0.01)
    for batch in batches[:3]:
        other.train_step(*batch, learning_rate=np.float32(0.01))
    assert weights(model) == weights(other)
    assert fit(model, batches, epochs=1, learning_rate=0.01).steps == 5


def test_an_interrupt_right_after_a_step_is_seen_by_inference(monkeypatch) -> None:
    """Inference keeps packed weights; they must be made again though the step did not return."""
    model = classifier()
    x, y = classes(8)
    old = model(x)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.counter, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.train_step(x, y, learning_rate=np.float32(0.5))
    fresh = classifier(params=dict(model.params))
    assert not np.array_equal(model(x), old)
    np.testing.assert_array_equal(model(x), fresh(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs to be an integer of at least 1, received 0"),
        ({"epochs": 1.5}, "received 1.5"),
        ({"epochs": True}, "received True"),
        ({"learning_rate": -0.1}, "received -0.1"),
        ({"learning_rate": float("nan")}, "received nan"),
        ({"learning_rate": "fast"}, "received 'fast'"),
        ({"learning_rate": lambda step, steps: float("inf")}, "schedule at step 0 of 5"),
        ({"learning_rate": lambda step, steps: None}, "schedule at step 0 of 5.*None"),
        ({"loader": []}, "at least one batch"),
        ({"loader": iter(())}, "loader with a length"),
        ({"loader": [np.zeros((8, 6), np.float32)]}, "received a ndarray"),
        ({"loader": [(np.zeros((8, 6), np.float32),)]}, r"1 input\(s\) \(x\) and 1 target"),
        ({"loader": [(np.zeros((8, 6), np.float32), np.zeros(8, int), 1)]}, r"received 3 array"),
        ({"loader": [(np.zeros((8, 5), np.float32), np.zeros(8, int))]}, r"received shape \[8, 5"),
        ({"loader": [(np.zeros((8, 6), np.float32), np.zeros(7, int))]}, "batch = 8"),
        ({"metrics": [3]}, "each a name or a function"),
        ({"metrics": ("accuracy", "accuracy")}, "given twice"),
        ({"validation": []}, "at least one sample"),
    ],
)
def test_mistakes_are_named(changes: dict, message: str) -> None:
    arguments = {"loader": loader(), "epochs": 1, "learning_rate": 0.01, **changes}
    with pytest.raises(InvalidArgumentError, match=message):
        fit(classifier(), arguments.pop("loader"), **arguments)


def test_unknown_metrics_and_models_without_a_training_step() -> None:
    with pytest.raises(NotFoundError, match="no metric 'acuracy'; known: accuracy"):
        fit(classifier(), loader(), epochs=1, learning_rate=0.1, metrics=("acuracy",))
    plain = frame.compile(nn.Linear(6, 3), [frame.spec(("n", 6))])
    with pytest.raises(NotFoundError, match="needs loss= and optimizer="):
        fit(plain, loader(), epochs=1, learning_rate=0.1)
    with pytest.raises(NotFoundError, match="needs loss= and optimizer="):
        evaluate(plain, [classes(8)], ("loss",))
    assert 0 <= evaluate(plain, [classes(8)], ("accuracy",))["accuracy"] <= 1


def test_a_loss_of_several_numbers_is_refused_when_the_model_is_compiled() -> None:
    with pytest.raises(InvalidArgumentError, match=r"a loss of one number.*\[batch\]"):
        frame.compile(
            nn.Linear(6, 3),
            [frame.spec(("batch", 6))],
            loss=nn.CrossEntropyLoss(reduction="none"),
            targets=[frame.spec(("batch",), "int64")],
            optimizer=SGD(),
        )


@pytest.mark.parametrize("wanted", [None, False])
def test_nothing_is_written_where_there_is_no_terminal(capfd, wanted: bool | None) -> None:
    fit(classifier(), loader(), epochs=1, learning_rate=0.01, progress=wanted)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


def test_a_bar_can_be_asked_for(capfd) -> None:
    fit(classifier(), loader(), epochs=2, learning_rate=0.01, progress=True)
    captured = capfd.readouterr()
    assert captured.out == "" and "loss" in captured.err and "10/10" in captured.err


def test_the_history_in_a_notebook() -> None:
    history = fit(
        classifier(), loader(), epochs=2, learning_rate=0.01, metrics=("accuracy",),
        validation=[classes(9)],
    )  # fmt: skip
    text = history._repr_html_()
    assert (
        text.count("<tr") == 3
        and "val_accuracy" in text
        and f"{history.epochs[1].loss:.4f}" in text
    )


def test_schedules() -> None:
    half = cosine(1.0, warmup=4, final=0.1)
    assert [half(step, 24) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert half(4, 24) == 1.0 and half(14, 24) == pytest.approx(0.55)
    assert half(24, 24) == pytest.approx(0.1) and half(30, 24) == pytest.approx(0.1)
    assert constant(0.3)(7, 9) == 0.3
    for wrong in (-1.0, float("inf"), "1"):
        with pytest.raises(InvalidArgumentError, match="learning rate"):
            cosine(wrong)
    with pytest.raises(InvalidArgumentError, match="warmup"):
        cosine(1.0, warmup=-1)


def _history(epochs: int, **facts: Any) -> History:
    rows = (
        EpochRecord(k, 1 / (k + 1), {"accuracy": 0.5}, {"loss": 2.0} if k % 2 else {}, 0.25, 4, 8)
        for k in range(epochs)
    )
    return History(tuple(rows), **facts)


def test_a_history_prints_as_a_table() -> None:
    text = str(_history(3, stopped="it was enough", best=1))
    assert text.splitlines() == [
        "epoch    loss  accuracy  val_loss  seconds",
        "    1  1.0000    0.5000               0.25",
        "    2  0.5000    0.5000    2.0000     0.25",
        "    3  0.3333    0.5000               0.25",
        "3 epochs, 12 steps in 0.75 s; best epoch 2; it was enough",
    ]
    assert str(_history(0)).splitlines()[-1] == "0 epochs, 0 steps in 0.00 s"
    assert repr(_history(3)) == "History(3 epochs, loss=0.3333, accuracy=0.5)"
    assert repr(_history(0)) == "History(0 epochs)"


@pytest.mark.parametrize("epochs", [19, 20, 21, 100])
def test_a_long_history_leaves_out_the_middle(epochs: int) -> None:
    head, *rows, end = str(_history(epochs)).splitlines()
    shown = [int(row.split()[0]) for row in rows if "more" not in row]
    left_out = sum(int(row.split()[0].lstrip("(")) for row in rows if "more" in row)
    assert len(rows) <= 20 and len(shown) + left_out == epochs
    assert shown[0] == 1 and shown[-1] == epochs and end.startswith(f"{epochs} epochs")
    assert {len(row) for row in rows if "more" not in row} == {len(head)}
