"""`training.resolution` of a spec: sizes of images by epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frame
from frame import frontend, nn
from frame.compiler.optimizers import SGD
from frame.core.errors import InvalidArgumentError, UnimplementedError

PIXELS = np.random.default_rng(4).integers(0, 17, (8, 1, 8, 8)).astype(np.float32) / 16
LABELS = np.arange(8) % 3


def _small(images: np.ndarray) -> np.ndarray:
    """Return images of half the size, as the middle between four pixels."""
    return images.reshape(-1, 1, 4, 2, 4, 2).mean((3, 5), dtype=np.float32)


def _spec(folder: Path, images: np.ndarray = PIXELS, **training: Any) -> frontend.Plan:
    np.savez(folder / "data.npz", images=images, labels=LABELS)
    made = {
        "schema_version": 1,
        "model": {"name": "net"},
        "inputs": [{"name": "x", "shape": list(images.shape[1:])}],
        "layers": [
            {"name": "conv", "kind": "Conv2d", "input": "x", "in_channels": 1, "out_channels": 3,
             "kernel_size": 3, "padding": 1},
            {"name": "bent", "kind": "ReLU", "input": "conv"},
            {"name": "mean", "kind": "GlobalAvgPool", "input": "bent"},
            {"name": "head", "kind": "Linear", "input": "mean", "in_features": 3,
             "out_features": 3},
        ],
        "loss": {"kind": "CrossEntropyLoss", "target_dtype": "int64"},
        "optimizer": {"kind": "sgd", "learning_rate": 0.5},
        "training": {"epochs": 2, "batch_size": 4, "seed": 1, "shuffle": False, **training},
        "data": {
            "x": {"kind": "npz", "path": "data.npz", "array": "images"},
            "target": {"kind": "npz", "path": "data.npz", "array": "labels"},
        },
    }  # fmt: skip
    return frontend.loads(json.dumps(made), folder)


FIRST = {"from_epoch": 0, "size": 4}
GROWS = {"train": [FIRST, {"from_epoch": 2, "size": [8, 8]}], "validate": 4}


def test_a_spec_trains_on_sizes_by_epochs(tmp_path: Path) -> None:
    """First as on images that were halved by hand, then with these weights on those of the data."""
    found = frontend.train(_spec(tmp_path, epochs=4, resolution=GROWS))
    small = frontend.train(_spec(tmp_path, _small(PIXELS)))
    np.testing.assert_allclose(found.losses[:4], small.losses, rtol=1e-5)
    plan = _spec(tmp_path)
    model = frame.compile(
        plan.module,
        dict(plan.inputs),
        loss=nn.CrossEntropyLoss(),
        targets=[plan.target],
        optimizer=SGD(),
        params=dict(small.model.params),
    )
    for place, loss in enumerate(found.losses[4:]):
        rows = slice(4 * (place % 2), 4 * (place % 2) + 4)
        own, _ = model.train_step(PIXELS[rows], LABELS[rows], learning_rate=np.float32(0.5))
        assert loss == pytest.approx(float(own), rel=1e-5)
    own = frame.compile(plan.module, [frame.spec((8, 1, 4, 4))], params=dict(model.params))
    np.testing.assert_allclose(found.model(PIXELS), own(_small(PIXELS)), rtol=1e-4, atol=1e-6)


def test_a_size_that_no_step_reaches_is_a_warning(tmp_path: Path, caplog: Any) -> None:
    frontend.train(_spec(tmp_path, resolution=GROWS))
    assert "8 x 8 pixels begin after 2 epochs, and the training ends after 2" in caplog.text


FAULTS: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "training.resolution: expected train, validate or both"),
    "a key": ({"size": 4}, "training.resolution.size: expected no such key"),
    "zero": (
        {"validate": 0},
        "training.resolution.validate: expected a number of pixels.*received 0",
    ),
    "three": (
        {"validate": [4, 4, 4]},
        "training.resolution.validate: expected .*height, width.*4, 4, 4",
    ),
    "late": ({"train": [{"from_epoch": 1, "size": 4}]}, "training.resolution.train: .*first 0"),
    "falling": ({"train": [FIRST, FIRST]}, "training.resolution.train: .*rising from_epoch"),
    "empty": ({"train": []}, "training.resolution.train: expected an array of 1 to 64"),
    "tiny": ({"train": [{"from_epoch": 0, "size": True}]}, r"train\[0\].size: expected"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_their_field(tmp_path: Path, name: str) -> None:
    found, message = FAULTS[name]
    with pytest.raises(InvalidArgumentError, match=message):
        _spec(tmp_path, resolution=found)


def test_what_takes_no_sizes_is_refused(tmp_path: Path) -> None:
    flat = PIXELS.reshape(8, 8, 8)
    with pytest.raises(InvalidArgumentError, match=r"training.resolution: .*images NCHW"):
        _spec(tmp_path, flat, resolution=GROWS)
    plan = _spec(tmp_path, resolution=GROWS)
    with pytest.raises(UnimplementedError, match="training.resolution.train: expected one size"):
        frontend.emit(plan, tmp_path / "out")
