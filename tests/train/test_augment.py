"""Augmentation in the graph: what each image may become, in training and in inference."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import InvalidArgumentError
from frame.train import ImageAugmentation
from tests.train.tasks import digits_task, weights

IMAGES = np.random.default_rng(0).uniform(1, 2, (120, 2, 5, 4)).astype(np.float32)


def _model(augmentation: ImageAugmentation, images=IMAGES, seed: int = 0):
    module = augmentation.around(nn.Sequential("net", [nn.Flatten()]))
    return frame.compile(module, [frame.spec(("n", *images.shape[1:]))], seed=seed)


def _moved(down: int, right: int, mirrored: bool, fill: float) -> np.ndarray:
    """Return images [N, C, H, W] whose pixel (r, c) is that at (r + down, c + right)."""
    rows, columns = IMAGES.shape[2:]
    edges = ((0, 0), (0, 0), (9, 9), (9, 9))
    padded = np.pad(IMAGES[..., ::-1] if mirrored else IMAGES, edges, constant_values=fill)
    right = -right if mirrored else right
    return padded[..., 9 + down : 9 + down + rows, 9 + right : 9 + right + columns]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("shift", "flip"), [(1, 0.0), (1, 0.5), (0, 1.0), (4, 0.0)])
def test_each_image_is_moved_by_its_own_distance(layout: str, shift: int, flip: float) -> None:
    axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    images = np.ascontiguousarray(IMAGES.transpose(axes))
    model = _model(ImageAugmentation(shift, flip, fill=7.0, layout=layout), images)
    found = model.train()(images).reshape(images.shape)
    found = found.transpose((0, 3, 1, 2)) if layout == "NHWC" else found
    reach = range(-shift, shift + 1)
    options = [
        (down, right, mirrored)
        for down in reach
        for right in reach
        for mirrored in (False, True)
        if flip not in (0.0, 1.0) or mirrored == bool(flip)
    ]
    fits = np.array([(_moved(*o, fill=7.0) == found).all((1, 2, 3)) for o in options])
    assert fits.any(0).all(), "an image is none of those that it may become"
    assert np.count_nonzero(fits.any(1)) > len(options) * 0.6
    np.testing.assert_array_equal(model.infer()(images).reshape(images.shape), images)


def test_steps_and_seeds_draw_other_numbers() -> None:
    model, again = (_model(ImageAugmentation(2)).train() for _ in range(2))
    first, second = model(IMAGES), model(IMAGES)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(again(IMAGES), first)
    assert not np.array_equal(_model(ImageAugmentation(2), seed=1).train()(IMAGES), first)


def test_normalisation_is_there_in_inference_too() -> None:
    model = _model(ImageAugmentation(mean=(1.0, 1.5), std=(0.5, 0.25)))
    exact = (IMAGES - np.array([1, 1.5]).reshape(2, 1, 1)) / np.array([0.5, 0.25]).reshape(2, 1, 1)
    for mode in (model.infer(), model.train()):
        np.testing.assert_allclose(mode(IMAGES).reshape(IMAGES.shape), exact, rtol=1e-6, atol=1e-6)


def test_a_task_augments_and_keeps_the_paths() -> None:
    net = nn.Sequential("net", [nn.Flatten(), nn.Linear(64, 10)])
    task = digits_task(80).model(net).total_epochs(1)
    plain, shifted = (t.run() for t in (task, task.augment(ImageAugmentation(1))))
    assert weights(plain).keys() == weights(shifted).keys() and weights(plain) != weights(shifted)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shift": -1}, "shift to be an integer of at least 0, received -1"),
        ({"shift": 1.0}, "shift"),
        ({"flip": 1.5}, r"flip to be in \[0, 1\]"),
        ({"fill": float("nan")}, "fill"),
        ({"mean": (0.5,)}, "the same channels"),
        ({"mean": (0.5,), "std": (0.0,)}, "std above 0"),
        ({"mean": 0.5, "std": 1.0}, "mean to be finite numbers"),
        ({"layout": "CHW"}, "layout to be one of NCHW, NHWC"),
    ],
)
def test_options_are_checked(options, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        ImageAugmentation(**options)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected float images NCHW"):
        _model(ImageAugmentation(1), np.zeros((3, 4), np.float32)).train()(np.zeros((3, 4)))
    with pytest.raises(InvalidArgumentError, match="images of 1 channels"):
        _model(ImageAugmentation(mean=(0.5,), std=(1.0,)))
