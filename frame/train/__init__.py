"""Training: `fit`, `evaluate`, metrics, learning-rate schedules and early stopping."""

from frame.compiler.optimizers import SGD, Adam, AdamW
from frame.train.evaluate import evaluate
from frame.train.fit import fit
from frame.train.metrics import METRICS, accuracy
from frame.train.records import EarlyStop, EpochRecord, History
from frame.train.schedules import constant, cosine

__all__ = [
    "METRICS",
    "SGD",
    "Adam",
    "AdamW",
    "EarlyStop",
    "EpochRecord",
    "History",
    "accuracy",
    "constant",
    "cosine",
    "evaluate",
    "fit",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
