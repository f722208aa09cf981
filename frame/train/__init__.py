"""Training: `fit`, metrics, learning-rate schedules and early stopping."""

from frame.compiler.optimizers import SGD, Adam, AdamW
from frame.train.fit import EarlyStop, EpochRecord, History, evaluate, fit
from frame.train.metrics import METRICS, accuracy
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
