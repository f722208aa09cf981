"""Augmentation in the graph: what each image may become, in training and in inference."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

import frame
from frame import nn
from frame.core import philox
from frame.core.errors import InvalidArgumentError
from frame.data import digits
from frame.nn.module import build_graph
from frame.ops.interpreter import interpret
from frame.train import ImageAugmentation, Views
from tests.train.tasks import digits_task, weights

IMAGES = np.random.default_rng(0).uniform(1, 2, (120, 2, 5, 4)).astype(np.float32)


def _model(augmentation: ImageAugmentation, images=IMAGES, seed: int = 0):
    module = augmentation.around(nn.Sequential("net", [nn.Flatten()]))
    return frame.compile(module, [frame.spec(("n", *images.shape[1:]))], seed=seed)


def _graph(augmentation: ImageAugmentation, images: np.ndarray):
    """Return the graph in training, of images alone."""
    module = augmentation.around(nn.Sequential("net", []))
    return build_graph(module, [frame.spec(images.shape)], "train")


def _moved(down: int, right: int, mirrored: bool, fill: float) -> np.ndarray:
    """Return images [N, C, H, W] whose pixel (r, c) is that at (r + down, c + right)."""
    rows, columns = IMAGES.shape[2:]
    edges = ((0, 0), (0, 0), (9, 9), (9, 9))
    padded = np.pad(IMAGES[..., ::-1] if mirrored else IMAGES, edges, constant_values=fill)
    right = -right if mirrored else right
    return padded[..., 9 + down : 9 + down + rows, 9 + right : 9 + right + columns]


@pytest.mark.parametrize(
    ("layout", "shift", "flip"),
    [("NCHW", 1, 0.5), ("NCHW", 4, 0.0), ("NHWC", 1, 0.0), ("NHWC", 0, 1.0)],
)
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


# --- against a reference in numpy, one pixel after another ----------------------------------------

COLOURS = np.random.default_rng(1).uniform(0, 1, (5, 3, 6, 7)).astype(np.float32)
LUMA = np.array([0.299, 0.587, 0.114])
YIQ = np.array([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


class Drawn:
    """The numbers of each image, as Philox gives them for the streams of the graph, in order."""

    def __init__(self, graph, counter: np.ndarray, rows: int) -> None:
        nodes = [node for node in graph.nodes if node.op == "uniform"]
        self._streams = [node.attributes["stream"] for node in nodes]
        self._seed, self._step = (int(word) for word in counter)
        self._rows = rows

    def __call__(self, low: float, high: float) -> np.ndarray:
        stream = self._streams.pop(0)
        raw = philox.uniform(self._seed, stream, self._rows, iteration=self._step)
        return raw.astype(np.float64) * (high - low) + low

    def whole(self, reach: int) -> np.ndarray:
        return np.minimum(np.floor(self(0, 2 * reach + 1)), 2 * reach) - reach

    def factor(self, reach: float) -> np.ndarray:
        return self(max(0, 1 - reach), 1 + reach) if reach else np.ones(self._rows)

    def left(self) -> int:
        return len(self._streams)


def _origins(options: ImageAugmentation, drawn: Drawn, shape: tuple[int, ...]) -> np.ndarray:
    """Return where the pixels [rows, height, width] come from, (row, column) along axis 0."""
    rows, _, height, width = shape
    each = (rows, 1, 1)
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    y, x = np.broadcast_to(y, (rows, height, width)), np.broadcast_to(x, (rows, height, width))
    if options.crop:
        pixels = drawn(*options.crop) * height * width
        aspect = np.exp(drawn(*np.log(options.ratio)))
        tall = np.minimum(np.sqrt(pixels / aspect), height)
        broad = np.minimum(np.sqrt(pixels * aspect), width)
        down = (drawn(0, 1) * (height - tall)).reshape(each)
        right = (drawn(0, 1) * (width - broad)).reshape(each)
        y = (y + 0.5) * tall.reshape(each) / height - 0.5 + down
        x = (x + 0.5) * broad.reshape(each) / width - 0.5 + right
    if options.rotate:
        turn = np.deg2rad(drawn(-options.rotate, options.rotate)).reshape(each)
        dy, dx = y - (height - 1) / 2, x - (width - 1) / 2
        y = np.cos(turn) * dy - np.sin(turn) * dx + (height - 1) / 2
        x = np.sin(turn) * dy + np.cos(turn) * dx + (width - 1) / 2
    if options.flip:
        x = np.where((drawn(0, 1) < options.flip).reshape(each), width - 1 - x, x)
    y = y + drawn.whole(options.shift).reshape(each)
    return np.stack([y, x + drawn.whole(options.shift).reshape(each)])


def _pixel(image: np.ndarray, y: float, x: float, fill: float) -> np.ndarray:
    """Return the channels of an image [C, H, W] at a place."""
    height, width = image.shape[1:]
    if not (-0.5 <= y <= height - 0.5 and -0.5 <= x <= width - 0.5):
        return np.full(len(image), fill)
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    top, left = int(y), int(x)
    below, beside = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[:, top, left] * (1 - (x - left)) + image[:, top, beside] * (x - left)
    lower = image[:, below, left] * (1 - (x - left)) + image[:, below, beside] * (x - left)
    return upper * (1 - (y - top)) + lower * (y - top)


def _recoloured(options: ImageAugmentation, drawn: Drawn, moved: np.ndarray, images: np.ndarray):
    """Return images [N, C, H, W] in the colours drawn for them, step by step."""
    rows = len(images)
    light, contrast = drawn.factor(options.brightness), drawn.factor(options.contrast)
    strength = drawn.factor(options.saturation)
    turn = 2 * np.pi * drawn(-options.hue, options.hue) if options.hue else np.zeros(rows)
    found = np.empty_like(moved)
    for n in range(rows):
        mean = (images[n] * (LUMA if len(images[n]) == 3 else np.ones(1))[:, None, None]).sum(0)
        value = moved[n] * light[n]
        value = contrast[n] * value + (1 - contrast[n]) * light[n] * mean.mean()
        if options.saturation or options.hue:
            grey = np.tensordot(LUMA, value, 1)
            value = grey + strength[n] * (value - grey)
            sine, cosine = np.sin(turn[n]), np.cos(turn[n])
            quarter = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
            value = np.tensordot(np.linalg.inv(YIQ) @ quarter @ YIQ, value, 1)
        found[n] = value
    return found


PLACES = ImageAugmentation(shift=1, flip=0.5, rotate=40, crop=(0.2, 0.9), fill=0.25)
JITTER = ImageAugmentation(brightness=0.4, contrast=0.5, saturation=0.6, hue=0.2)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "options",
    [
        PLACES,
        ImageAugmentation(rotate=180.0, fill=-1.0),
        ImageAugmentation(crop=(0.1, 0.1), ratio=(3.0, 3.0)),
        JITTER,
        replace(PLACES, brightness=0.4, contrast=0.5, saturation=0.6, hue=0.2),
        ImageAugmentation(flip=0.5, contrast=0.5),
    ],
    ids=["places", "rotation", "crop", "jitter", "all", "copies"],
)
def test_pixels_are_those_of_the_reference(options: ImageAugmentation, layout: str) -> None:
    axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    images = np.ascontiguousarray(COLOURS.transpose(axes))
    counter, whole = np.array([3, 5], np.uint64), replace(options, layout=layout)
    graph = _graph(whole, images)
    drawn = Drawn(graph, counter, len(images))
    (found,) = interpret(graph, [images, counter])
    found = found.transpose((0, 3, 1, 2)) if layout == "NHWC" else found
    moved, sure = COLOURS.astype(np.float64), np.ones(COLOURS.shape, bool)
    if options.shift or options.flip or options.rotate or options.crop:
        places = _origins(options, drawn, COLOURS.shape)
        pixels = [
            [[_pixel(image, *place, options.fill) for place in line.T] for line in lines]
            for image, lines in zip(COLOURS, places.transpose(1, 2, 0, 3), strict=True)
        ]
        moved = np.array(pixels).transpose(0, 3, 1, 2)
        edges = np.array([COLOURS.shape[2:]]).T[..., None, None] - 0.5
        near = (np.abs(places + 0.5) < 1e-4) | (np.abs(places - edges) < 1e-4)
        sure = ~near.any(0)[:, None] & sure
    exact = _recoloured(options, drawn, moved, COLOURS)
    assert drawn.left() == 0 and sure.mean() > 0.8
    np.testing.assert_allclose(np.where(sure, found, 0), np.where(sure, exact, 0), atol=2e-5)


def test_compiled_pixels_are_those_of_the_graph() -> None:
    everything = replace(PLACES, brightness=0.4, contrast=0.5, hue=0.2)
    model = _model(everything, COLOURS, seed=3)
    apply = model.train()
    apply(COLOURS)  # the second step, so that the counter is not zero
    counter = model.counter.words.copy()
    (exact,) = interpret(_graph(everything, COLOURS), [COLOURS, counter])
    np.testing.assert_allclose(apply(COLOURS).reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


def _passes(options: ImageAugmentation, layout: str = "NCHW") -> list[str]:
    """Return the kernels of the training graph that touch whole images, by name."""
    axes = tuple("NCHW".index(axis) for axis in layout)
    images = np.ascontiguousarray(COLOURS.transpose(axes))
    whole = replace(options, layout=layout, mean=(0.5,) * 3, std=(0.2,) * 3)
    module = whole.around(nn.Sequential("net", []))
    model = frame.compile(module, [frame.spec(images.shape)])
    kernels = model.train().source()["loop"].split("\nkernel ")[1:]
    return [kernel.split()[0] for kernel in kernels if _reads_pixels(kernel, images.size)]


def _reads_pixels(kernel: str, pixels: int) -> bool:
    shapes = re.findall(r"^  buffer .*\[(.*)\]$", kernel, re.MULTILINE)
    return any(math.prod(map(int, shape.split(", "))) >= pixels for shape in shapes if shape)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_all_that_happens_to_a_pixel_is_one_pass(layout: str) -> None:
    everything = replace(PLACES, brightness=0.4, saturation=0.5, hue=0.2)
    assert _passes(everything, layout) == ["affine_sample_sub_mul"]
    # contrast is around the mean of the image, which has to be known before its first pixel is made
    *before, last = _passes(replace(everything, contrast=0.5), layout)
    assert last == "affine_sample_sub_mul"
    assert len(before) == 1 and before[0].startswith("sum")


def test_a_crop_of_all_changes_nothing() -> None:
    options = ImageAugmentation(crop=(1.0, 1.0), ratio=(7 / 6, 7 / 6))
    (found,) = interpret(_graph(options, COLOURS), [COLOURS, np.zeros(2, np.uint64)])
    np.testing.assert_allclose(found, COLOURS, atol=1e-6)


def test_grey_images_have_contrast() -> None:
    options, grey = ImageAugmentation(contrast=0.9, brightness=0.5), COLOURS[:, :1]
    counter, graph = np.array([1, 2], np.uint64), _graph(options, grey)
    drawn = Drawn(graph, counter, len(grey))
    (found,) = interpret(graph, [grey, counter])
    exact = _recoloured(options, drawn, grey.astype(np.float64), grey)
    np.testing.assert_allclose(found, exact, atol=1e-5)


# --- views ----------------------------------------------------------------------------------------


def _views(images: np.ndarray, mirror: bool, shift: int) -> list[tuple[float, np.ndarray]]:
    """Return weighted views of images NCHW."""
    edges = ((0, 0), (0, 0), (shift, shift), (shift, shift))
    padded, size = np.pad(images, edges, mode="edge"), images.shape[2:]
    found = [(1.0, images)]
    if shift:
        moved = [padded[..., at : at + size[0], at : at + size[1]] for at in (2 * shift, 0)]
        found = [(0.5, images), (0.25, moved[0]), (0.25, moved[1])]
    if not mirror:
        return found
    return [(w / 2, each[..., :: (1, -1)[k]]) for k in (0, 1) for w, each in found]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("mirror", "shift"), [(True, 0), (False, 2), (True, 1)])
def test_the_answer_is_the_mean_over_views(layout: str, mirror: bool, shift: int) -> None:
    axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    net = nn.Sequential("net", [nn.Flatten(), nn.Linear(126, 4), nn.Tanh()])
    shape = ("n", *(COLOURS.shape[axis] for axis in axes[1:]))
    plain = frame.compile(net, [frame.spec(shape)], seed=2)
    seen = frame.compile(Views(mirror, shift, layout).around(net), [frame.spec(shape)], seed=2)
    exact = sum(
        weight * plain(np.ascontiguousarray(view.transpose(axes)))
        for weight, view in _views(COLOURS, mirror, shift)
    )
    images = np.ascontiguousarray(COLOURS.transpose(axes))
    np.testing.assert_allclose(seen(images), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(seen.train()(images), plain(images))
    assert seen.params.keys() == plain.params.keys()


def test_a_task_validates_by_views() -> None:
    net = nn.Sequential("net", [nn.Flatten(), nn.Linear(64, 10)])
    rows = digits()
    images, labels = rows.test_images[:50], rows.test_labels[:50]
    training = rows.train_images[:80], rows.train_labels[:80]
    task = digits_task(80).model(net).data(training, (images, labels), batch_size=40)
    task = task.total_epochs(1).augment(ImageAugmentation(mean=(0.3,), std=(0.4,)))
    plain, seen = task.run(), task.tta(Views(shift=1)).run()
    assert weights(plain) == weights(seen)
    scores = sum(w * plain.model(np.ascontiguousarray(v)) for w, v in _views(images, True, 1))
    # the views are of normalised images, whose border pixels are repeated as they are
    np.testing.assert_allclose(seen.model(images), scores, rtol=1e-4, atol=1e-4)
    top1 = np.mean(np.argmax(scores, 1) == labels)
    assert seen.column("val_top1")[0] == pytest.approx(top1)
    assert seen.column("val_loss") != plain.column("val_loss")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mirror": False}, "mirror or a shift above 0"),
        ({"shift": -1}, "shift to be an integer of at least 0"),
        ({"mirror": 1}, "mirror to be True or False"),
        ({"layout": "CHW"}, "layout to be one of"),
    ],
)
def test_options_of_views_are_checked(options, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=f"test time: expected {expected}"):
        Views(**options)


def test_views_need_images_and_rows() -> None:
    flat = nn.Sequential("net", [nn.Flatten(), nn.Linear(126, 4)])
    with pytest.raises(InvalidArgumentError, match="expected images NCHW of known height"):
        frame.compile(Views().around(flat), [frame.spec(("n", 126))])

    @nn.module
    def total(self, x):
        return frame.ops.sum(x)

    with pytest.raises(InvalidArgumentError, match="float outputs with a row an image"):
        frame.compile(Views().around(total), [frame.spec(("n", 3, 6, 7))])


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
        ({"rotate": -1}, "rotate to be from 0 to 180 degrees"),
        ({"crop": (0.0, 1.0)}, r"crop to be \(\) or \(least, most\) in \(0, 1\]"),
        ({"crop": (0.5, 1.1)}, "crop"),
        ({"crop": 0.5}, "crop"),
        ({"ratio": (2.0, 1.0)}, r"ratio to be \(least, most\) above 0"),
        ({"brightness": -0.1}, "brightness to be a number of 0 or more"),
        ({"hue": 0.6}, r"hue to be in \[0, 0.5\]"),
    ],
)
def test_options_are_checked(options, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        ImageAugmentation(**options)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="3 channels for saturation and hue"):
        _model(ImageAugmentation(hue=0.1)).train()(IMAGES)
    with pytest.raises(InvalidArgumentError, match="expected float images NCHW"):
        _model(ImageAugmentation(1), np.zeros((3, 4), np.float32)).train()(np.zeros((3, 4)))
    with pytest.raises(InvalidArgumentError, match="images of 1 channels"):
        _model(ImageAugmentation(mean=(0.5,), std=(1.0,)))
