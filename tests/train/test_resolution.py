"""Progressive resolution: what a network sees in each epoch, and that the run stays one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frame
from frame import blueprint, nn
from frame.core.errors import InvalidArgumentError
from frame.data import DataLoader, TensorDataset
from frame.runtime.model import TRAIN_STEP, CompiledModel
from frame.train import (
    SGD,
    ConstantLR,
    CrossEntropyLoss,
    DeepLearningTask,
    ImageAugmentation,
    evaluate,
)
from frame.train.resolution import Resolution
from frame.train.warp import Affine, Look
from tests.train.tasks import task as plain_task
from tests.train.tasks import weights
from tests.train.test_checkpoints import Interrupt

STEPS = 3  # an epoch
GROWS = {0: 4, 2: 8}


def _images(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images [rows, 1, 8, 8] of sixteenths, whose resize to half is exact, and classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    pixels = rng.integers(0, 17, (rows, 1, 8, 8)) + 8 * labels[:, None, None, None]
    return (pixels / 16).astype(np.float32), labels


def _net() -> nn.Module:
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.GlobalAvgPool(), nn.Linear(3, 3)]
    return nn.Sequential("net", layers)


def _task(network: object = None) -> DeepLearningTask:
    return (
        DeepLearningTask()
        .model(network or _net())
        .data(_images(12), _images(6, seed=1), batch_size=4)
        .loss(CrossEntropyLoss())
        .optimizer(SGD(momentum=0.9))
        .scheduler(ConstantLR(base_lr=0.1))
        .total_epochs(4)
        .manual_seed(5)
    )


def _resized(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return images [..., H, W] read between their pixels at the middles of larger or smaller."""
    for axis, count in ((-2, height), (-1, width)):
        size = images.shape[axis]
        at = np.clip((np.arange(count) + 0.5) * size / count - 0.5, 0, size - 1)
        first = at.astype(int)
        low, high = (
            np.take(images, each, axis) for each in (first, np.minimum(first + 1, size - 1))
        )
        share = (at - first).reshape((count, 1) if axis == -2 else (count,))
        images = low + share * (high - low)
    return images


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, CompiledModel]]:
    """Return what is compiled during a test."""
    seen: list[tuple[str, CompiledModel]] = []
    original = CompiledModel._compile

    def counted(self: CompiledModel, name: str) -> object:
        seen.append((name, self))
        return original(self, name)

    monkeypatch.setattr(CompiledModel, "_compile", counted)
    return seen


def test_a_run_is_a_loop_over_resized_images(compiled: list[tuple[str, CompiledModel]]) -> None:
    """To the bit: resized by hand, trained by variants of one model; each step compiled once."""
    history = _task().train_resolution(GROWS).val_resolution(4).run()
    steps = [model for name, model in compiled if name == TRAIN_STEP]
    assert len(steps) == len(set(map(id, steps))) == 2
    images, labels = _images(12)
    options = {"loss": CrossEntropyLoss(), "optimizer": SGD(momentum=0.9), "seed": 5}
    targets, sizes = [frame.spec(("batch",), "int64")], {"batch": 4}
    large = frame.compile(
        _net(), [frame.spec(("batch", 1, 8, 8))], targets=targets, sizes=sizes, **options
    )
    small = large.variant([frame.spec(("batch", 1, 4, 4))], sizes=sizes)
    halves = _resized(images, 4, 4).astype(np.float32)
    small_loader, large_loader = (
        DataLoader(TensorDataset((each, labels)), 4, shuffle=True, seed=5)
        for each in (halves, images)
    )
    for epoch, (model, loader) in enumerate(
        [(small, small_loader), (small, small_loader), (large, large_loader), (large, large_loader)]
    ):
        loader.set_epoch(epoch)
        for batch in loader:
            model.train_step(*batch, learning_rate=np.float32(0.1))
    assert weights(history) == {n: large.store[n].tobytes() for n in large.store}
    held_out, classes = _images(6, seed=1)
    seen = (_resized(held_out, 4, 4).astype(np.float32), classes)
    batches = [tuple(column[rows] for column in seen) for rows in (slice(4), slice(4, 6))]
    assert history.column("val_loss")[-1] == evaluate(small, batches)["loss"]
    np.testing.assert_array_equal(history.model(held_out), small(seen[0]))


@pytest.mark.parametrize("at", [4, 6, 8])
def test_a_run_goes_on_across_the_boundary(tmp_path: Path, at: int) -> None:
    base = _task().train_resolution(GROWS).augment(ImageAugmentation(shift=1, flip=0.5))
    saved = base.checkpoints(tmp_path, every_steps=2)
    with pytest.raises(KeyboardInterrupt):
        saved.callback(Interrupt(at)).run()
    resumed, whole = saved.run(), base.run()
    assert weights(resumed) == weights(whole)
    assert resumed.column("loss") == whole.column("loss")
    assert resumed.model.counter.words.tolist() == whole.model.counter.words.tolist()
    with pytest.raises(InvalidArgumentError, match="of another task: their resolution is"):
        saved.train_resolution({0: 4, 3: 8}).run()


def test_one_size_of_the_data_changes_nothing() -> None:
    plain = _task().total_epochs(1)
    assert weights(plain.input_resolution(8).run()) == weights(plain.run())


def test_a_blueprint_has_the_weights_of_its_last_size() -> None:
    """A network that reads an image of one size is trained on larger data."""
    made = blueprint.seq(blueprint.flatten(), blueprint.fc(3, True))
    images, labels = _images(12)
    rows = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    base = _task(made).data((rows, labels), batch_size=4).total_epochs(1)
    model = base.input_resolution((4, 2)).run().model
    assert model is not None and model(rows).shape == (12, 3)
    assert (8, 3) in [model.params[name].shape for name in model.params]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("size", [(3, 9), (8, 5), (16, 8)])
def test_images_are_read_between_their_pixels(layout: str, size: tuple[int, int]) -> None:
    """In training behind a mirror, and in validation; normalised after it."""
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(np.float32)
    axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    change = ImageAugmentation(flip=1.0, mean=(1, 2, 3), std=(2, 2, 4), layout=layout)
    rule = Resolution(((0, size),), size, layout)
    given = np.ascontiguousarray(images.transpose(axes))
    module = rule.around(nn.Sequential("net", []), change, rule.last)
    model = frame.compile(module, [frame.spec(given.shape)])
    scale = np.reshape([2.0, 2.0, 4.0], (3, 1, 1))
    for mode, source in ((model.infer(), images), (model.train(), images[..., ::-1])):
        resized = _resized(source.astype(np.float64), *size)
        expected = (resized - np.reshape([1.0, 2.0, 3.0], (3, 1, 1))) / scale
        found = mode.infer()(given) if source is images else mode.train()(given)
        np.testing.assert_allclose(found, expected.transpose(axes), rtol=1e-5, atol=1e-6)


def test_a_map_is_that_of_the_scaled_place() -> None:
    """The middle of a pixel of the result is the same point of the image."""
    turned = Affine().rotated(0.8, 0.6, (3.5, 2.5)).moved(2.0, -1.0)
    small = turned.resized((8, 6), (4, 9))
    for i, j in ((0, 0), (3, 8), (2, 5)):
        y, x = (i + 0.5) * 8 / 4 - 0.5, (j + 0.5) * 6 / 9 - 0.5
        for before, after in ((turned.rows, small.rows), (turned.columns, small.columns)):
            assert np.dot(after, (i, j, 1)) == pytest.approx(np.dot(before, (y, x, 1)))


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda t: t.train_resolution(0), "train_resolution: expected size as a number of pixels"),
        (
            lambda t: t.train_resolution({0: 4, 2: (8, 8, 8)}),
            r"\(height, width\), at least 1, received \(8, 8, 8\)",
        ),
        (lambda t: t.train_resolution({1: 4}), r"with 0 among them, received \{1: 4\}"),
        (lambda t: t.train_resolution({}), r"with 0 among them, received \{\}"),
        (lambda t: t.train_resolution({0: 4, -2: 8}), "integers of at least 0"),
        (lambda t: t.val_resolution("8"), "val_resolution: expected size as .*, received '8'"),
        (lambda t: t.input_resolution(4.0), "input_resolution: expected size as .*, received 4.0"),
        (lambda t: t.progressive_crop(4, 0), "progressive_crop: expected end as .*, received 0"),
        (lambda t: t.progressive_resize(True, 4), "progressive_resize: expected begin as .*True"),
        (
            lambda t: t.train_resolution(4, layout="CHW"),
            "layout to be one of NCHW, NHWC, or None, received 'CHW'",
        ),
    ],
)
def test_what_is_not_a_resolution(declare: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        declare(DeepLearningTask())


def test_a_network_of_one_size_is_refused_before_it_trains() -> None:
    """With the module, and the sizes that do not meet."""
    flat = _task(nn.Sequential("net", [nn.Flatten(), nn.Linear(64, 3)]))
    said = r"training at 4 x 4 pixels: in module net.1 \(Linear\): .*\(batch, 16\) and \(64, 3\)"
    with pytest.raises(InvalidArgumentError, match=said):
        flat.train_resolution(GROWS).compile()
    with pytest.raises(InvalidArgumentError, match=r"validation at 5 x 4 pixels: in module net.1"):
        flat.train_resolution(8).val_resolution((5, 4)).compile()
    with pytest.raises(InvalidArgumentError, match="validation at the size of the data: in module"):
        _task(nn.Sequential("net", [nn.Flatten(), nn.Linear(16, 3)])).train_resolution(4).compile()
    with pytest.raises(
        InvalidArgumentError, match="layout of the augmentation, NHWC, received 'NCHW"
    ):
        _task().augment(ImageAugmentation(layout="NHWC")).train_resolution(
            4, layout="NCHW"
        ).compile()
    with pytest.raises(InvalidArgumentError, match="expected .*images NCHW"):
        plain_task().train_resolution(4).compile()


# --- windows --------------------------------------------------------------------------------------


def _seen(change: ImageAugmentation, rule: Resolution, images: np.ndarray, epoch: int) -> Any:
    """Return what the network gets in a step of an epoch."""
    module = rule.around(nn.Sequential("net", []), change, rule.at(epoch))
    return frame.compile(module, [frame.spec(images.shape)]).train()(images)


def test_a_window_of_the_size_of_the_network_copies_pixels() -> None:
    """Every place occurs, the window is whole, and each image has a place of its own."""
    images = np.arange(64 * 30, dtype=np.float32).reshape(64, 1, 6, 5)
    rule = Resolution(((0, (4, 3)), (5, (6, 5))), None, "NCHW", crops=((4, 3), (6, 5)))
    found = np.asarray(_seen(ImageAugmentation(), rule, images, 4))
    places = set()
    for image, window in zip(images[:, 0], found[:, 0], strict=True):
        down, right = divmod(int(window[0, 0] - image[0, 0]), 5)
        np.testing.assert_array_equal(window, image[down : down + 4, right : right + 3])
        places.add((down, right))
    assert places == {(down, right) for down in range(3) for right in range(3)}
    np.testing.assert_array_equal(_seen(ImageAugmentation(), rule, images, 5), images)


def test_a_window_is_cut_of_the_scaled_image_and_scaled_again() -> None:
    """8 x 8 pixels to 4 x 4, a window of 3 x 3 of them, and that to 6 x 6: one reading."""
    images = np.random.default_rng(1).normal(size=(8, 1, 8, 8)).astype(np.float32)
    rule = Resolution(
        ((0, (6, 6)), (1, (8, 8))), None, "NCHW", ((4, 4), (8, 8)), crops=((3, 3), (8, 8))
    )
    found = np.asarray(_seen(ImageAugmentation(), rule, images, 0))
    assert rule.at(0) == Look((6, 6), (4, 4), (3, 3)) and rule.at(0).text() == "6x6"
    for image, seen in zip(images[:, 0], found[:, 0], strict=True):
        choices = [_read(image, down, right) for down in range(2) for right in range(2)]
        assert min(np.abs(choice - seen).max() for choice in choices) < 1e-5


def _read(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return 6 x 6 places of a window of 3 x 3 out of 4 x 4, read once in 8 x 8 pixels."""
    places = (np.arange(6) + 0.5) * 3 / 6 - 0.5
    rows, columns = (((places + start) + 0.5) * 8 / 4 - 0.5 for start in (down, right))
    return _between(_between(image, rows, 0), columns, 1)


def _between(image: np.ndarray, at: np.ndarray, axis: int) -> np.ndarray:
    at = np.clip(at, 0, image.shape[axis] - 1)
    first = at.astype(int)
    low = np.take(image, first, axis)
    high = np.take(image, np.minimum(first + 1, image.shape[axis] - 1), axis)
    share = (at - first).reshape((-1, 1) if axis == 0 else (1, -1))
    return low + share * (high - low)


def test_a_task_crops_by_epochs_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    """The records say what was seen; an interrupted run ends with the same weights."""
    base = _task().progressive_crop(4, 6).train_resolution({0: 4, 2: 8})
    history = base.run()
    assert [record.resolution for record in history.epochs] == ["4x4", "4x4", "8x8", "8x8"]
    assert history.to_data()[3]["resolution"] == "8x8"
    saved = base.checkpoints(tmp_path, every_steps=2)
    with pytest.raises(KeyboardInterrupt):
        saved.callback(Interrupt(5)).run()
    resumed = saved.run()
    assert weights(resumed) == weights(history)
    assert [each.resolution for each in resumed.epochs] == ["4x4", "4x4", "8x8", "8x8"]
    with pytest.raises(InvalidArgumentError, match="another task"):
        saved.progressive_crop(4, 7).run()


def test_windows_need_one_boundary_and_room() -> None:
    base = _task().progressive_crop(4, 6)
    said = r"progressive_crop: expected train_resolution\(\{0: begin, boundary: end\}\)"
    for task in (base, base.train_resolution(4), base.train_resolution({0: 4, 1: 5, 2: 6})):
        with pytest.raises(InvalidArgumentError, match=said):
            task.compile()
    with pytest.raises(InvalidArgumentError, match=r"windows of at most 8 x 8 pixels.*\(9, 9\)"):
        base.progressive_crop(4, 9).train_resolution(GROWS).compile()
    with pytest.raises(InvalidArgumentError, match="progressive_resize: expected progressive_crop"):
        _task().progressive_resize(5, 6).train_resolution(GROWS).compile()
    with pytest.raises(InvalidArgumentError, match=r"windows of at most 5 x 5 pixels"):
        base.progressive_resize(5, 5).train_resolution(GROWS).compile()


def test_a_size_that_is_never_reached_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    late = _task().train_resolution({0: 4, 9: 8})
    late.run()
    assert "8 x 8 pixels begin after 9 epochs, and the training ends after 4" in caplog.text
    caplog.clear()
    late.train_resolution({0: 4, 3: 8}).stop_at("loss", 100.0).run()
    assert "8 x 8 pixels begin after 3 epochs, and the training ends after 1" in caplog.text
    caplog.clear()
    late.train_resolution(GROWS).run()
    assert "never reached" not in caplog.text
