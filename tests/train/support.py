"""Small models and data for the tests of training."""

from __future__ import annotations

from typing import Any

import numpy as np

import frame
from frame import nn
from frame.data import DataLoader, TensorDataset
from frame.runtime.model import CompiledModel
from frame.train import SGD, AdamW

FEATURES, CLASSES = 6, 3


def classes(rows: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points [rows, FEATURES] around one centre a class, and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    centres = np.random.default_rng(99).normal(size=(CLASSES, FEATURES)) * 2
    points = centres[labels] + rng.normal(size=(rows, FEATURES)) * 0.3
    return points.astype(np.float32), labels.astype(np.int64)


def classifier(seed: int = 0, optimizer: Any = None, dropout: float = 0.2, **options: Any):
    """Return a compiled classifier of FEATURES numbers with dropout."""
    net = nn.Sequential(
        "net",
        [nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)],
    )
    return frame.compile(
        net,
        [frame.spec(("batch", FEATURES))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=optimizer or AdamW(),
        seed=seed,
        **options,
    )


def regressor(seed: int = 0) -> CompiledModel:
    """Return a compiled linear model of two inputs, whose target is a vector."""

    @nn.module(weight=nn.param((3, 2)), other=nn.param((4, 2)))
    def two_inputs(self, x, y):
        return x @ self.weight + y @ self.other

    return frame.compile(
        two_inputs,
        {"x": frame.spec(("batch", 3)), "y": frame.spec(("batch", 4))},
        loss=nn.MseLoss(),
        targets=[frame.spec(("batch", 2))],
        optimizer=SGD(momentum=0.9),
        seed=seed,
    )


def loader(rows: int = 40, batch: int = 8, seed: int = 0, **options: Any) -> DataLoader:
    """Return shuffled batches of `classes`."""
    return DataLoader(TensorDataset(classes(rows)), batch, shuffle=True, seed=seed, **options)


def weights(model: CompiledModel) -> dict[str, bytes]:
    """Return everything that a step can change, as bytes."""
    return {name: model.store[name].tobytes() for name in model.store}
