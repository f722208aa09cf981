"""Methods of the fluent API that other systems declare and do not have: what each does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from frame import blueprint, nn
from frame.core.errors import InvalidArgumentError
from frame.train import (
    SGD,
    Callback,
    ConstantLR,
    CrossEntropyLoss,
    DeepLearningTask,
    Ema,
    EpochRecord,
    fit,
)
from frame.train.feed import make_feed
from frame.train.task import first_layer
from tests.train.support import CLASSES, FEATURES, classes
from tests.train.tasks import net, task, weights
from tests.train.test_checkpoints import Interrupt


def _plain() -> DeepLearningTask:
    return task(dropout=0.0).optimizer(SGD()).scheduler(ConstantLR(base_lr=0.3)).total_epochs(3)


def test_switch_ema_goes_on_from_the_average() -> None:
    """As by hand: an average over each epoch's updates, which then are the weights."""
    found = _plain().use_sema().sema_decay(0.75).run()
    model = _plain().average(Ema(0.75, warm=False)).compile()
    loader = make_feed(classes(40), None, 8, True, False, 1).train_loader(3)
    names = [name for name in model.store if name.startswith("average.")]
    assert names
    for _ in range(3):
        fit(model, loader, epochs=1, learning_rate=0.3)
        model.store.write({name.removeprefix("average."): model.store[name] for name in names})
    assert found.model is not None
    for name, value in model.params.items():
        np.testing.assert_array_equal(found.model.params[name], value)
    assert not any(name.startswith("val_average_") for name in found.epochs[0].values())


def test_switch_ema_resumes_and_is_another_task(tmp_path: Path) -> None:
    switched = _plain().use_sema()
    saved = switched.checkpoints(tmp_path, every_steps=2)
    with pytest.raises(KeyboardInterrupt):
        saved.callback(Interrupt(8)).run()
    assert weights(saved.run()) == weights(switched.run()) != weights(_plain().run())
    with pytest.raises(InvalidArgumentError, match="another task"):
        _plain().average(Ema(0.9, warm=False)).checkpoints(tmp_path).run()
    base = _plain()
    assert base.use_sema().use_sema(False) == base != base.use_sema()
    kept = base.average(Ema(0.99))
    assert kept.use_sema().use_sema(False) == kept
    with pytest.raises(InvalidArgumentError, match="decay to be a number from 0 to below 1"):
        _plain().sema_decay(1.0)


def test_running_statistics_are_averaged_too() -> None:
    """What validates the averaged weights must be statistics of such weights."""
    layers = [nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)]
    base = task().model(nn.Sequential("net", layers)).average(Ema(0.75, warm=False))
    model, x, y = base.compile(), *classes(8)
    name = "net.1.running_mean"
    mean = None
    for _ in range(4):
        model.train_step(x, y, learning_rate=np.float32(0.5))
        own = model.store[name]
        mean = own if mean is None else mean + 0.25 * (own - mean)
    np.testing.assert_allclose(model.store[f"average.{name}"], mean, rtol=1e-5)
    assert not np.allclose(model.store[name], mean)


def test_the_first_layer_freezes_after_an_epoch() -> None:
    """Momentum and decay, too; the other layers move on."""
    base = task(epochs=3).optimizer(SGD(momentum=0.9, weight_decay=0.1), decay_all=True)
    seen: list[dict[str, bytes]] = []

    class Look(Callback):
        def on_epoch(self, run, record: EpochRecord) -> None:  # type: ignore[no-untyped-def]
            seen.append({name: run.model.params[name].tobytes() for name in run.model.params})

    base.freeze_first_layer_after(1).callback(Look()).run()
    first, second, third = seen
    assert {name for name in first if first[name] == second[name] == third[name]} == {
        "net.0.weight",
        "net.0.bias",
    }
    always = base.freeze_first_layer_after(0)
    start = always.compile().params
    end = always.run().model.params  # type: ignore[union-attr]
    same = [name for name in start if np.array_equal(start[name], end[name])]
    assert same == ["net.0.weight", "net.0.bias"]


def test_the_first_layer_of_a_blueprint_freezes() -> None:
    plan = blueprint.seq(blueprint.fc(8, True), blueprint.relu(), blueprint.fc(3, True))
    base = task(epochs=1).model(plan).freeze_first_layer_after(0)
    start, end = base.compile().params, base.run().model.params  # type: ignore[union-attr]
    same = [name for name in start if np.array_equal(start[name], end[name])]
    assert len(same) == 2 and len(start) == 4


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (nn.Linear(2, 3), ("weight", "bias")),
        (nn.models.vit(8, 4, 1, 8, 2, 3), ("embed.weight", "embed.bias")),
        (
            nn.Sequential(
                "net",
                [nn.models.bert(1, 8, 2, 8, 9, 4), nn.Flatten(), nn.Linear(32, 3)],
            ),
            ("net.0.words.weight",),
        ),
        (nn.Sequential([nn.BatchNorm1d(2), nn.Linear(2, 3)]), ("0.gamma", "0.beta")),
        (nn.ReLU(), ()),
    ],
)
def test_the_first_layer_is_one_owner_of_parameters(
    network: nn.Module, names: tuple[str, ...]
) -> None:
    assert first_layer(network) == names


def test_a_declaration_builds_no_network() -> None:
    """A window for two sizes is told by its name when the task is compiled, and not before."""
    plan = blueprint.seq(blueprint.conv(4, 3), blueprint.gap_fc(3, True))
    images = np.zeros((16, 8, 8, 1), np.float32), np.zeros(16, np.int64)
    base = task().model(plan).data(images, batch_size=8).freeze_first_layer_after(1)
    made = base.train_resolution({0: 4, 1: 5, 2: 6}).progressive_crop(4, 6).accumulate(2)
    for try_it in (made.compile, made.run, made.dry_run):
        with pytest.raises(InvalidArgumentError, match="progressive_crop: expected .* boundary"):
            try_it()


def test_clipping_needs_a_limit() -> None:
    with pytest.raises(InvalidArgumentError, match="grad_clip: expected max_abs, norm or both"):
        task().grad_clip()


def test_the_number_of_classes_is_compared() -> None:
    assert task().num_classes(3).compile()
    said = "num_classes: expected a model with outputs of 4 classes, received 3"
    with pytest.raises(InvalidArgumentError, match=said):
        task().num_classes(4).compile()


def test_an_automatic_seed_can_be_repeated() -> None:
    first = task(epochs=1).auto_seed()
    assert len({task().auto_seed().seed_value for _ in range(4)}) > 1
    assert weights(first.run()) == weights(task(epochs=1).manual_seed(first.seed_value).run())


def test_a_dry_run_tries_everything_and_leaves_nothing(tmp_path: Path) -> None:
    """Steps of both sizes, and a validation: but no file, no callback, no early end."""
    called: list[EpochRecord] = []
    full = (
        task(rows=44, epochs=50)
        .early_stop("val_loss", 1)
        .stop_at("loss", 1e9)
        .checkpoints(tmp_path / "c")
        .save_best_model(tmp_path / "best.npz")
        .callback(called.append)
    )
    history = full.dry_run()
    assert [record.steps for record in history.epochs] == [2]
    assert history.epochs[0].samples == 12 and "val_top1" in history.epochs[0].values()
    assert not called and not list(tmp_path.iterdir())
    with pytest.raises(InvalidArgumentError, match="no value 'val_top9'"):
        full.early_stop("val_top9").dry_run()
    with pytest.raises(InvalidArgumentError, match="from 1 to 50, the total_epochs, received 99"):
        full.save_model_at_epoch(99, tmp_path / "late.npz").dry_run()


def test_a_dry_run_updates_with_accumulation() -> None:
    found = task(rows=44, epochs=9).accumulate(3).dry_run()
    assert found.model is not None
    untrained = task(rows=44, epochs=9).accumulate(3).compile()
    assert any(np.any(untrained.params[k] != v) for k, v in found.model.params.items())


def test_a_task_of_these_methods_is_one_expression() -> None:
    """The order of the calls says nothing."""
    one = DeepLearningTask().model(net()).num_classes(3).manual_seed(1).loss(CrossEntropyLoss())
    other = DeepLearningTask().loss(CrossEntropyLoss()).manual_seed(1).num_classes(3)
    assert one.class_count == other.class_count and one.seed_value == other.seed_value == 1


def test_the_bar_has_loss_rate_speed_and_what_is_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    history = task(epochs=2).progress(True).run()
    shown = capfd.readouterr().err
    rate = f"{history.epochs[-1].learning_rate:.3g}"
    assert re.search(rf"epoch 2/2  loss \d+\.\d{{4}}  rate {re.escape(rate)}", shown)
    assert "10/10" in shown and "steps/s" in shown
    assert re.search(r"\d:\d\d:\d\d|-:--:--", shown)
