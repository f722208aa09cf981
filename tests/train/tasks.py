"""Small tasks for the tests of `DeepLearningTask`."""

from __future__ import annotations

from typing import Any

from frame import nn
from frame.data import digits
from frame.train import AdamW, CosineAnnealingLR, CrossEntropyLoss, DeepLearningTask, History
from tests.train.support import CLASSES, FEATURES, classes


def net(dropout: float = 0.2) -> nn.Module:
    """Return a classifier of FEATURES numbers."""
    return nn.Sequential(
        "net", [nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)]
    )


def task(rows: int = 40, epochs: int = 3, batch: int = 8, **options: Any) -> DeepLearningTask:
    """Return a task of few steps with validation rows."""
    return (
        DeepLearningTask()
        .model(net(options.pop("dropout", 0.2)))
        .data(classes(rows), classes(15, seed=7), batch_size=batch, **options)
        .loss(CrossEntropyLoss(label_smoothing=0.1))
        .optimizer(AdamW())
        .scheduler(CosineAnnealingLR(base_lr=0.02, warmup=1))
        .total_epochs(epochs)
        .manual_seed(3)
    )


def digits_task(rows: int = 200) -> DeepLearningTask:
    """Return a short task on the digits whose network has a dropout and a normalisation."""
    data = digits()
    layers = [nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2)]
    return (
        DeepLearningTask()
        .model(nn.Sequential("mlp", [*layers, nn.Linear(48, 10)]))
        .data((data.train_images[:rows], data.train_labels[:rows]), batch_size=40)
        .loss(CrossEntropyLoss())
        .scheduler(CosineAnnealingLR(base_lr=0.1, warmup=1))
        .total_epochs(3)
    )


def weights(history: History) -> dict[str, bytes]:
    """Return everything that the model of a run holds, as bytes."""
    store = history.model.store
    return {name: store[name].tobytes() for name in store}
