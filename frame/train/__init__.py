"""Training: `DeepLearningTask`, `fit`, `evaluate`, optimizers, schedulers, metrics, callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frame.core.lazy import attribute

if TYPE_CHECKING:  # what __getattr__ below loads at the first use
    from frame.compiler.optimizers import LARS as LARS
    from frame.compiler.optimizers import SGD as SGD
    from frame.compiler.optimizers import Adam as Adam
    from frame.compiler.optimizers import AdamW as AdamW
    from frame.compiler.optimizers import Ema as Ema
    from frame.compiler.optimizers import Freeze as Freeze
    from frame.compiler.optimizers import Lion as Lion
    from frame.compiler.optimizers import LossScale as LossScale
    from frame.compiler.optimizers import ParameterGroup as ParameterGroup
    from frame.compiler.optimizers import Swa as Swa
    from frame.nn.losses import CrossEntropyLoss as CrossEntropyLoss
    from frame.nn.losses import MseLoss as MseLoss
    from frame.train.augment import ImageAugmentation as ImageAugmentation
    from frame.train.callbacks import Callback as Callback
    from frame.train.callbacks import CsvLog as CsvLog
    from frame.train.callbacks import JsonLinesLog as JsonLinesLog
    from frame.train.callbacks import TensorBoardLog as TensorBoardLog
    from frame.train.evaluation import evaluate as evaluate
    from frame.train.fitting import fit as fit
    from frame.train.initialiser import Initializer as Initializer
    from frame.train.metrics import METRICS as METRICS
    from frame.train.metrics import accuracy as accuracy
    from frame.train.records import EarlyStop as EarlyStop
    from frame.train.records import EpochRecord as EpochRecord
    from frame.train.records import History as History
    from frame.train.report import HtmlReport as HtmlReport
    from frame.train.schedules import SCHEDULERS as SCHEDULERS
    from frame.train.schedules import WSDLR as WSDLR
    from frame.train.schedules import ConstantLR as ConstantLR
    from frame.train.schedules import CosineAnnealingLR as CosineAnnealingLR
    from frame.train.schedules import (
        CosineAnnealingWithWarmRestartsLR as CosineAnnealingWithWarmRestartsLR,
    )
    from frame.train.schedules import ExponentialLR as ExponentialLR
    from frame.train.schedules import MultiStepLR as MultiStepLR
    from frame.train.schedules import PolynomialLR as PolynomialLR
    from frame.train.schedules import StepLR as StepLR
    from frame.train.schedules import constant as constant
    from frame.train.schedules import cosine as cosine
    from frame.train.task import DeepLearningTask as DeepLearningTask
    from frame.train.views import Views as Views

_PLACES = {
    "frame.compiler.optimizers": (
        "LARS",
        "SGD",
        "Adam",
        "AdamW",
        "Ema",
        "Freeze",
        "Lion",
        "LossScale",
        "ParameterGroup",
        "Swa",
    ),
    "frame.nn.losses": ("CrossEntropyLoss", "MseLoss"),
    "frame.train.augment": ("ImageAugmentation",),
    "frame.train.callbacks": ("Callback", "CsvLog", "JsonLinesLog", "TensorBoardLog"),
    "frame.train.evaluation": ("evaluate",),
    "frame.train.fitting": ("fit",),
    "frame.train.task": ("DeepLearningTask",),
    "frame.train.initialiser": ("Initializer",),
    "frame.train.metrics": ("METRICS", "accuracy"),
    "frame.train.records": ("EarlyStop", "EpochRecord", "History"),
    "frame.train.report": ("HtmlReport",),
    "frame.train.schedules": (
        "SCHEDULERS",
        "ConstantLR",
        "CosineAnnealingLR",
        "CosineAnnealingWithWarmRestartsLR",
        "ExponentialLR",
        "MultiStepLR",
        "PolynomialLR",
        "StepLR",
        "WSDLR",
        "constant",
        "cosine",
    ),
    "frame.train.views": ("Views",),
}
_EXPORTS = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, so that importing the package costs nothing."""
    return attribute(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
