"""`DeepLearningTask`: what it trains, what it measures, when it stops, what it refuses."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from frame import blueprint, nn
from frame.backends.cpu.pool import set_num_threads
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data import DataLoader, ImageDataset, TensorDataset
from frame.train import (
    SCHEDULERS,
    SGD,
    Callback,
    ConstantLR,
    CrossEntropyLoss,
    DeepLearningTask,
    Ema,
    Freeze,
    Initializer,
    MseLoss,
    ParameterGroup,
    Swa,
    evaluate,
    fit,
)
from frame.train.feed import check_labels, make_feed
from tests.project import checkout
from tests.train.support import classes, classifier, loader
from tests.train.support import weights as model_weights
from tests.train.tasks import digits_task, net, task, weights


def test_a_task_learns_and_keeps_its_history() -> None:
    history = task(90, epochs=20).metrics("top1", "top5").run()
    assert [record.epoch for record in history.epochs] == list(range(20))
    assert history.column("val_top1")[-1] > 0.95
    assert evaluate(history.model, [classes(60, seed=5)], ("top1",))["top1"] > 0.95
    assert set(history.epochs[0].validation) == {"loss", "top1", "top5"}
    assert history.epochs[0].learning_rate == pytest.approx(0.01)


def test_a_task_is_fit_by_another_name() -> None:
    """The same model, seeds, batches and rates give the same weights bit for bit."""
    history = (
        DeepLearningTask()
        .model(net())
        .data(loader(40, 8, seed=0))
        .loss(CrossEntropyLoss())
        .optimizer(SGD(momentum=0.9))
        .scheduler(ConstantLR(base_lr=0.02))
        .total_epochs(2)
        .run()
    )
    model = classifier(optimizer=SGD(momentum=0.9))
    fit(model, loader(40, 8, seed=0), epochs=2, learning_rate=0.02)
    assert weights(history) == model_weights(model)


def test_a_task_is_a_value() -> None:
    first = task()
    second = first.total_epochs(9).manual_seed(5)
    assert (first.epochs, first.seed_value) == (3, 3) and (second.epochs, second.seed_value) == (
        9,
        5,
    )
    assert weights(first.run()) == weights(first.run()) != weights(first.manual_seed(4).run())


def test_the_weights_do_not_depend_on_the_threads() -> None:
    found = []
    try:
        for count in (1, 2, 3):
            set_num_threads(count)
            found.append(weights(digits_task().grad_clip(norm=1.0).average(Ema()).run()))
    finally:
        set_num_threads(None)
    assert found[0] == found[1] == found[2] and len(found[0]) > 12


def test_a_blueprint_is_trained() -> None:
    x, y = classes(30)
    history = (
        (
            task().model(
                blueprint.seq(blueprint.fc(8, True), blueprint.relu(), blueprint.fc(3, True))
            )
        )
        .data((x, y), batch_size=10)
        .total_epochs(12)
        .run()
    )
    assert history.epochs[-1].loss < history.epochs[0].loss


def test_numbers_as_targets() -> None:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = x @ np.arange(8, dtype=np.float32).reshape(4, 2)
    trained = (
        DeepLearningTask()
        .model(nn.Linear(4, 2))
        .data((x, y), batch_size=16)
        .loss(MseLoss())
        .scheduler(ConstantLR(base_lr=0.05))
        .metrics("squared_error")
        .total_epochs(120)
        .run()
    )
    assert trained.epochs[-1].loss < 1e-3
    assert trained.column("squared_error")[-1] == pytest.approx(trained.epochs[-1].loss, rel=1e-3)


@pytest.mark.parametrize("cls", SCHEDULERS.values(), ids=lambda cls: cls.name)
def test_the_rate_of_each_epoch_is_that_of_the_scheduler(cls) -> None:
    options = {"milestones": (2,)} if cls.name == "multi_step" else {}
    scheduler = cls(base_lr=0.02, warmup=1, **options)
    history = task(16, epochs=4).scheduler(scheduler).run()
    assert history.to_data()[0]["learning_rate"] == scheduler.rate(0, 4)
    assert [r.learning_rate for r in history.epochs] == scheduler.rates(4)


# --- when it validates and stops ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rhythm", "epochs"),
    [((1, 0), [1, 2, 3, 4, 5]), ((2, 0), [2, 4, 5]), ((2, 1), [1, 3, 5]), ((9, 0), [5])],
)
def test_validation_has_an_interval_and_an_offset(rhythm, epochs) -> None:
    history = task(16, epochs=5).validate_every(*rhythm).run()
    assert [r.epoch + 1 for r in history.epochs if r.validation] == epochs
    assert "val_loss" in history._repr_html_()


def test_early_stopping_restores_the_best_epoch() -> None:
    states = []

    class Keep(Callback):
        def on_epoch(self, run, record) -> None:
            states.append({n: a.tobytes() for n, a in run.model.params.items()})

    ruined = task(dropout=0.0, epochs=30).scheduler(ConstantLR(base_lr=2.0)).callback(Keep())
    history = ruined.early_stop("val_loss", patience=3, restore=True).run()
    assert history.stopped.startswith("val_loss has not been better")
    assert len(history.epochs) == history.best + 4
    assert {n: a.tobytes() for n, a in history.model.params.items()} == states[history.best]


def test_patience_waits_for_the_first_validation() -> None:
    history = task(16, epochs=6).validate_every(6).early_stop("val_loss", patience=2).run()
    assert len(history.epochs) == 6 and history.stopped == "" and history.best == 5


def test_a_threshold_stops_from_the_right_side() -> None:
    history = task(90, epochs=30).early_stop_by_top1(0.9).run()
    assert history.stopped.startswith("val_top1 has reached") and len(history.epochs) < 30
    assert history.column("val_top1")[-1] >= 0.9 > max([0, *history.column("val_top1")[:-1]])
    below = task(90, epochs=30).stop_at("loss", 0.9).run()
    assert below.column("loss")[-1] <= 0.9 < min([9, *below.column("loss")[:-1]])


def test_a_callback_sees_steps_and_can_stop() -> None:
    seen = []

    class Watcher(Callback):
        def on_start(self, run) -> None:
            seen.append("start")

        def on_step(self, run) -> None:
            seen.append(run.step)

        def on_epoch(self, run, record) -> None:
            run.stop("enough")

        def on_end(self, run, history) -> None:
            seen.append(history.stopped)

    history = task().callback(Watcher(), lambda record: seen.append(record.epoch)).run()
    assert seen == ["start", 1, 2, 3, 4, 5, 0, "enough"] and history.stopped == "enough"


# --- inside of the step ---------------------------------------------------------------------------


def test_frozen_parameters_stay_and_others_move() -> None:
    frozen = task().optimizer(SGD(momentum=0.9, weight_decay=0.1)).freeze("net.0.*")
    start, end = frozen.compile().params, frozen.run().model.params
    moved = {name for name in start if start[name].tobytes() != end[name].tobytes()}
    assert moved == {"net.3.weight", "net.3.bias"}


def test_freezing_after_an_epoch() -> None:
    seen = []
    late = task(epochs=4).freeze("net.0.weight", after_epoch=2)

    class Keep(Callback):
        def on_epoch(self, run, record) -> None:
            seen.append(
                (run.model.params["net.0.weight"].tobytes(), run.model.params["net.3.bias"])
            )

    late.callback(Keep()).run()
    assert seen[0][0] != seen[1][0] == seen[2][0] == seen[3][0]
    assert seen[2][1].tobytes() != seen[3][1].tobytes()


def test_the_averages_are_measured_and_used() -> None:
    history = task(dropout=0.0).average(Swa(start=6)).run()
    names = set(history.epochs[-1].validation)
    assert {"average_loss", "average_top1"} <= names
    found = evaluate(history.model, [classes(15, seed=7)], ("loss",))["loss"]
    assert found == pytest.approx(history.column("val_average_loss")[-1], rel=1e-5)
    raw = task(dropout=0.0).average(Swa(start=6), use=False).run()
    found = evaluate(raw.model, [classes(15, seed=7)], ("loss",))["loss"]
    assert found == pytest.approx(history.column("val_loss")[-1], rel=1e-5)


def test_accumulation_is_a_larger_batch() -> None:
    """Without dropout the mean gradient of two halves is the gradient of the whole batch."""
    options = {"dropout": 0.0, "shuffle": False}
    whole = task(32, batch=16, **options).optimizer(SGD(momentum=0.9)).run()
    halves = task(32, batch=8, **options).optimizer(SGD(momentum=0.9)).accumulate(2).run()
    for name, value in whole.model.params.items():
        np.testing.assert_allclose(halves.model.params[name], value, rtol=2e-5, atol=2e-6)


def test_initial_weights_by_kind() -> None:
    start = Initializer(linear=nn.normal(0.0, 0.5), zero=("net.3.*",))
    begun = task().initializer(start).compile().params
    assert not begun["net.3.weight"].any() and abs(begun["net.0.weight"].std() - 0.5) < 0.15
    assert begun["net.0.bias"].tobytes() == task().compile().params["net.0.bias"].tobytes()
    for wrong in (lambda: Initializer(conv=0.1), lambda: task().initializer("kaiming")):
        with pytest.raises(InvalidArgumentError, match="nn.kaiming_normal"):
            wrong()
    with pytest.raises(InvalidArgumentError, match="no parameter matches the pattern 'bn"):
        task().initializer(Initializer(zero=("bn3.*",))).compile()


# --- what is refused ------------------------------------------------------------------------------

X, Y = classes(12)


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda t: t.model("mlp"), "model: expected a Module.*received 'mlp'"),
        (lambda t: t.model(np.zeros(3)), "model: expected a Module"),
        (lambda t: t.data(X), "expected train as arrays"),
        (lambda t: t.data((X, Y[:5])), "equal numbers of rows"),
        (lambda t: t.data((X[:0], Y[:0])), "at least one row"),
        (lambda t: t.data((X, Y), (X[:0], Y[:0])), "at least one row"),
        (lambda t: t.data((np.full_like(X, np.nan), Y)), "column 0 of train holds 72 value"),
        (lambda t: t.data((X, Y), (X * np.inf, Y)), "column 0 of validation"),
        (lambda t: t.data((X, Y), (X[:, :2], Y)), r"the same columns.*float32\[6\].*float32\[2\]"),
        (lambda t: t.data((X, Y), batch_size=0), "batch_size to be an integer of at least 1"),
        (lambda t: t.data((X, Y), batch_size=13, drop_last=True), "12 rows are fewer"),
        (lambda t: t.data((X, Y), targets=2), r"at least one input and 2 target\(s\)"),
        (lambda t: t.data(DataLoader(TensorDataset([X, Y]), 4), batch_size=4), "received both"),
        (lambda t: t.loss(lambda a, b: a), "loss: expected a Module"),
        (lambda t: t.loss(CrossEntropyLoss(label_smoothing=1.5)), r"label_smoothing must be in"),
        (lambda t: t.optimizer("sgd"), "optimizer: expected an optimizer"),
        (lambda t: t.optimizer(SGD(), ["net.*"]), "expected groups of ParameterGroup"),
        (
            lambda t: t.optimizer(SGD(), [ParameterGroup("net.*", options={"beta1": 0.5})]),
            "options of a group to be among momentum.*received 'beta1'",
        ),
        (lambda t: t.optimizer(SGD(), [ParameterGroup((), 2.0)]), "patterns of parameter paths"),
        (lambda t: t.scheduler(0.1), "scheduler: expected a scheduler"),
        (
            lambda t: t.total_epochs(0),
            "total_epochs: expected epochs to be an integer .*received 0",
        ),
        (lambda t: t.total_epochs(True), "total_epochs"),
        (lambda t: t.validate_every(0), "validate_every"),
        (lambda t: t.early_stop(patience=0), "patience"),
        (lambda t: t.early_stop_by_top1(98), r"a share in \(0, 1\], received 98"),
        (lambda t: t.stop_at("loss", "low"), "threshold to be a finite number"),
        (lambda t: t.metrics("top1", "top1"), "given twice"),
        (lambda t: t.manual_seed(-1), "seed to be an integer of at least 0"),
        (lambda t: t.grad_clip(0.0), "expected max_abs above 0, received 0.0"),
        (lambda t: t.grad_clip(norm=float("inf")), "norm to be a finite number"),
        (lambda t: t.accumulate(0), "accumulate: expected steps to be an integer of at least 1"),
        (lambda t: t.average(0.99), "average: expected Ema"),
        (lambda t: t.average(Ema(decay=1.0)), "decay"),
        (lambda t: t.average(Swa(start=0)), "start"),
        (lambda t: t.freeze(), "patterns of parameter paths"),
        (lambda t: t.checkpoints("here", keep=0), "checkpoints: expected keep"),
        (lambda t: t.save_best_model("best.pt"), "a path that ends in .safetensors"),
        (lambda t: t.callback(3), "expected callbacks, each a Callback"),
    ],
)
def test_arguments_are_checked_at_declaration(declare, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        declare(task())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: DeepLearningTask(), r"the task has no data: call .data\(\(x, y\)"),
        (lambda: DeepLearningTask().data((X, Y)), "the task has no model"),
        (
            lambda: task().data((X, Y + 3)),
            "labels from 0 to 2 in train, received [345] in row",
        ),
        (lambda: task().data((X, Y), (X, Y - 1)), "in validation, received -1 in row 0"),
        (lambda: task().data((X, Y * 0.5)), "expected integer labels"),
        (
            lambda: task().loss(CrossEntropyLoss(ignore_index=-1)).data((X, Y - 2)),
            "labels from 0 to 2 in train, received -2 in row",
        ),
        (lambda: task().loss(nn.NLLLoss()).data((X, Y + 1)), "labels from 0 to 2 in train"),
        (lambda: task().loss(nn.NLLLoss()).data((X, Y * 0.5)), "expected integer labels"),
        (lambda: task().freeze("body.*"), "no parameter matches the pattern 'body"),
        (lambda: task().freeze("*"), "there is nothing to train"),
        (lambda: task().early_stop("val_top9"), "no value 'val_top9'; they have loss"),
        (lambda: task().data((X, Y)).early_stop(), "no value 'val_loss'; they have loss"),
        (
            lambda: task().scheduler(ConstantLR(base_lr=1e30)).optimizer(SGD()),
            "the loss is (nan|inf) at step",
        ),
    ],
)
def test_what_a_run_refuses(build, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        build().run()


def test_unknown_metrics_and_folders_are_not_found() -> None:
    with pytest.raises(NotFoundError, match="no metric 'top9'"):
        task().metrics("top9")
    with pytest.raises(NotFoundError, match="folder"):
        task().save_best_model("/nowhere/at/all.safetensors")


def test_a_class_without_rows_is_a_warning(caplog) -> None:
    keep = Y != 1
    with caplog.at_level(logging.WARNING, "frame.train"):
        task().data((X[keep], Y[keep])).total_epochs(1).run()
    assert "no training row has the label 1" in caplog.text


def test_labels_of_images_are_checked_before_training() -> None:
    images = ImageDataset(np.zeros((4, 1, 2, 2), np.uint8), [0, 1, 2, 4])
    feed = make_feed(images, None, 2, True, False, 1)
    with pytest.raises(
        InvalidArgumentError, match="labels from 0 to 2 in train, received 4 in row 3"
    ):
        check_labels(feed, 3)
    with pytest.raises(InvalidArgumentError, match="in validation, received 4"):
        check_labels(
            make_feed((np.zeros((3, 1, 2, 2), np.float32), Y[:3]), images, 2, True, False, 1), 4
        )


def test_a_freeze_record_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="after to be an integer"):
        Freeze("a", after=-1)


def test_names_load_late_and_no_module_hides_one() -> None:
    """A module that has the name of a function would take its place once it is imported."""
    code = (
        "import pkgutil, sys, frame.train\n"
        "assert not [name for name in sys.modules if name.startswith('frame.train.')]\n"
        "modules = [module.name for module in pkgutil.iter_modules(frame.train.__path__)]\n"
        "assert not set(modules) & set(frame.train.__all__), modules\n"
        "assert all(callable(getattr(frame.train, name)) for name in ('evaluate', 'fit'))\n"
    )
    done = checkout.run_python("-c", code, folder=checkout.ROOT, path=checkout.ROOT)
    assert done.returncode == 0, done.stderr
