"""How much of a training step goes into its input: waiting for batches, and augmenting them.

    python benchmarks/input_pipeline.py [--epochs N] [--case digits_mlp|digits_cnn|cifar|resnet18]

One JSON line a case. `waiting` is the share of the time of the epochs that the loop spent in the
loader (the first batch of each epoch included, which nothing can hide); `augmenting` is that of
the kernels of the augmentation in one step. The digits go through the networks of `frame demo`.
What is shaped like CIFAR is random bytes: through a small CNN, whose step is short, and through
ResNet-18.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.networks import resnet
from frame import nn
from frame.cli.demo import RECIPES
from frame.data import DataLoader, Dataset, ImageDataset, TensorDataset, digits
from frame.train import SGD, ConstantLR, CrossEntropyLoss, DeepLearningTask, ImageAugmentation

_MARK = "affine_sample"


@dataclass
class Clock:
    """The seconds that were spent in a loader."""

    seconds: float = field(default=0.0)


class TimedLoader(DataLoader):
    """A loader that notes how long each batch is waited for."""

    clock = Clock()

    def __iter__(self) -> Iterator[Any]:
        start = time.perf_counter()
        batches = super().__iter__()
        while True:
            batch = next(batches, None)
            self.clock.seconds += time.perf_counter() - start
            if batch is None:
                return
            yield batch
            start = time.perf_counter()


@dataclass(frozen=True)
class Case:
    """A network, its data, and how they are augmented."""

    network: nn.Module
    data: Dataset
    augmentation: ImageAugmentation
    batch: int


def digits_case(name: str) -> Case:
    """Return the digits through a network of the demo, moved by up to a pixel."""
    (recipe,) = (each for each in RECIPES if each.name == name)
    rows = digits()
    data = TensorDataset((rows.train_images, rows.train_labels))
    return Case(recipe.make(), data, ImageAugmentation(shift=1), recipe.batch)


def cifar_case(make: Callable[[], nn.Module], rows: int, batch: int) -> Case:
    """Return bytes shaped like CIFAR, with all that can happen to an image."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (rows, 3, 32, 32), np.uint8)
    data = ImageDataset(images, random.integers(0, 10, rows))
    augmentation = ImageAugmentation(
        shift=4,
        flip=0.5,
        rotate=15,
        crop=(0.6, 1.0),
        brightness=0.2,
        contrast=0.2,
        saturation=0.2,
        hue=0.05,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )
    return Case(make(), data, augmentation, batch)


def small_cnn() -> nn.Module:
    """Return two convolutions for images of 3 x 32 x 32."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential("small", [*layers, nn.Flatten(), nn.Linear(4096, 10)])


CASES: dict[str, Callable[[], Case]] = {
    "digits_mlp": lambda: digits_case("mlp"),
    "digits_cnn": lambda: digits_case("cnn"),
    "cifar": lambda: cifar_case(small_cnn, 4096, 128),
    "resnet18": lambda: cifar_case(lambda: resnet(18, 10, small=True), 320, 32),
}


def measure(name: str, epochs: int) -> dict[str, object]:
    """Return the shares of one case."""
    case = CASES[name]()
    loader = TimedLoader(case.data, case.batch, shuffle=True, drop_last=True)
    task = (
        DeepLearningTask()
        .model(case.network)
        .data(loader)
        .augment(case.augmentation)
        .loss(CrossEntropyLoss())
        .optimizer(SGD(momentum=0.9))
        .scheduler(ConstantLR(base_lr=0.01))
        .metrics()
        .total_epochs(epochs)
    )
    task.total_epochs(1).run()  # threads and caches are warm after this
    TimedLoader.clock.seconds = 0.0
    history = task.run()
    batch = case.data.batch(np.arange(case.batch))
    profile = history.model.profile(*batch, entry="train_step", learning_rate=0.01, runs=3)
    total = sum(row.seconds for row in profile.rows)
    augmented = sum(row.seconds for row in profile.rows if _MARK in row.kernel)
    return {
        "case": name,
        "step_ms": history.seconds / history.steps * 1e3,
        "waiting": TimedLoader.clock.seconds / history.seconds,
        "augmenting": augmented / total,
    }


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a case (default: 3)")
    parser.add_argument("--case", choices=CASES, help="one case alone")
    arguments = parser.parse_args()
    for name in CASES:
        if arguments.case in (None, name):
            print(json.dumps(measure(name, arguments.epochs)), flush=True)


if __name__ == "__main__":
    main()
