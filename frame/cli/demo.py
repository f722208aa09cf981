"""The main job: train on the handwritten digits, save, and start again from the cache.

The recipes (nets, epochs, rates) were chosen by the accuracy on a part of the training rows, those
with index % 5 == 1 among them; the test rows had no say.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import frame
from frame import nn
from frame.cli.words import CommandError
from frame.codegen.schedules.work import node_flops
from frame.core.dataclass import dataclass
from frame.core.errors import DeviceError, NotFoundError
from frame.data import DataLoader, Digits, TensorDataset
from frame.nn.module import Module
from frame.runtime.model import TRAIN_STEP, CompiledModel
from frame.train import AdamW, History, cosine, evaluate, fit

FILE = "digits.frame"
IMAGE = ("batch", 1, 8, 8)
LABEL_SMOOTHING = 0.1
WARMUP_STEPS = 20
QUICK_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and how it is trained: AdamW under half a cosine, after a short warm-up."""

    name: str
    make: Callable[[], Module]
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float = 1e-2


def mlp() -> Module:
    """Return a perceptron of two hidden layers."""
    layers = [nn.Flatten()]
    for inputs, outputs in ((64, 256), (256, 128)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential("mlp", [*layers, nn.Linear(128, 10)])


def cnn() -> Module:
    """Return two convolutions, a pooling and two dense layers."""
    convolutions = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    dense = [nn.Dropout(0.25), nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    return nn.Sequential("cnn", [*convolutions, nn.Flatten(), *dense])


RECIPES = (
    Recipe("mlp", mlp, epochs=80, batch=64, learning_rate=3e-3),
    Recipe("cnn", cnn, epochs=30, batch=32, learning_rate=2e-3),
)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained network and how it went."""

    recipe: Recipe
    model: CompiledModel
    history: History
    compile_seconds: float
    from_cache: bool
    accuracy: float
    flops: int

    @property
    def seconds_per_step(self) -> float:
        """The time of a step, the making of the batch included."""
        return self.history.seconds / self.history.steps

    def to_data(self) -> dict[str, Any]:
        """Return the facts as plain data; times in seconds."""
        return {
            "name": self.recipe.name,
            "parameters": sum(array.size for array in self.model.params.values()),
            "compile_seconds": self.compile_seconds,
            "from_cache": self.from_cache,
            "epochs": len(self.history.epochs),
            "steps": self.history.steps,
            "batch": self.recipe.batch,
            "training_seconds": self.history.seconds,
            "seconds_per_step": self.seconds_per_step,
            "flops_per_step": self.flops,
            "gflops": self.flops / self.seconds_per_step * 1e-9,
            "training_loss": self.history.epochs[-1].loss,
            "test_accuracy": self.accuracy,
            "host_steps": list(self.model.host_steps),
        }


def compiled(recipe: Recipe, seed: int) -> CompiledModel:
    """Return the network with its training step compiled; inference takes any number of images."""
    return frame.compile(
        recipe.make(),
        [frame.spec(IMAGE)],
        loss=nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=AdamW(weight_decay=recipe.weight_decay),
        sizes={"batch": recipe.batch},
        seed=seed,
    )


def train(
    recipe: Recipe, data: Digits, seed: int, quick: bool = False, progress: bool | None = None
) -> Trained:
    """Compile a network, train it, and count how many test images it gets right."""
    start = time.perf_counter()
    model = compiled(recipe, seed)
    seconds = time.perf_counter() - start
    rows = TensorDataset([data.train_images, data.train_labels])
    history = fit(
        model,
        DataLoader(rows, recipe.batch, shuffle=True, seed=seed, drop_last=True),
        epochs=min(recipe.epochs, QUICK_EPOCHS) if quick else recipe.epochs,
        learning_rate=cosine(recipe.learning_rate, WARMUP_STEPS),
        metrics=("accuracy",),
        progress=progress,
    )
    test = [(data.test_images, data.test_labels)]
    accuracy = evaluate(model, test, ("accuracy",))["accuracy"]
    hit = model.entry(TRAIN_STEP).loaded.hit
    return Trained(recipe, model, history, seconds, hit, accuracy, step_flops(model))


def step_flops(model: CompiledModel) -> int:
    """Return the floating-point operations of a training step; a multiply-add counts two."""
    declared = model.entry(TRAIN_STEP).declared
    transform = declared.transform
    graph = declared.graph if transform is None else transform.apply(declared.graph)
    return int(sum(node_flops(node) for node in graph.nodes))  # type: ignore[arg-type, misc]


def checked_output(path: str) -> Path:
    """Return where the file goes; a folder stands for `digits.frame` in it.

    The folder is written to for a moment: who can't save the network must know before it is
    trained.

    Raises:
        NotFoundError: the folder does not exist.
        CommandError: the name does not end in `.frame`.
        OSError: nothing can be written there.
    """
    place = Path(path)
    place = place / FILE if place.is_dir() else place
    if place.suffix != ".frame":
        raise CommandError(f"--out {path}: expected a folder or a name that ends in .frame")
    if not place.parent.is_dir():
        raise NotFoundError(f"--out {path}: there is no folder {place.parent}")
    try:
        with tempfile.TemporaryFile(dir=place.parent):
            return place
    except OSError as error:
        raise OSError(error.errno, f"--out can't be written: {error.strerror}", path) from error


@dataclass(frozen=True, slots=True)
class Reload:
    """What a new process did with the file. `statistics` are those of `frame run --stats`."""

    seconds: float
    statistics: dict[str, Any]
    predictions: np.ndarray
    accuracy: float
    same_scores: bool

    def to_data(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {
            "process_seconds": self.seconds,
            **self.statistics,
            "test_accuracy": self.accuracy,
            "same_scores": self.same_scores,
        }


def reload(file: Path, expected: np.ndarray, data: Digits) -> Reload:
    """Let a new process of frame load the file and score the test images.

    `expected` are the scores of this process; equal means equal bit for bit.

    Raises:
        DeviceError: the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        images, scores = Path(folder, "images.npy"), Path(folder, "scores.npy")
        np.save(images, data.test_images)
        words = ["run", str(file), "--input", str(images), "-o", str(scores), "--stats", "--json"]
        start = time.perf_counter()
        report = _frame_process(words)
        seconds = time.perf_counter() - start
        found = np.load(scores, allow_pickle=False)
    predictions = found.argmax(axis=1)
    accuracy = float(np.mean(predictions == data.test_labels))
    same = found.tobytes() == expected.tobytes()
    return Reload(seconds, report["statistics"], predictions, accuracy, same)


def _frame_process(words: list[str]) -> dict[str, Any]:
    """Run `frame` in a new process and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "frame", *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise DeviceError(f"frame {words[0]} failed with code {done.returncode}:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report
