"""Optimizers: records that declare their state and build the update of a parameter."""

from frame.compiler.optimizers.adam import Adam, AdamW
from frame.compiler.optimizers.lars import LARS
from frame.compiler.optimizers.lion import Lion
from frame.compiler.optimizers.recipe import Ema, Freeze, ParameterGroup, Recipe, Swa
from frame.compiler.optimizers.record import Optimizer, RunTime, StateSpec
from frame.compiler.optimizers.scaling import LossScale
from frame.compiler.optimizers.sgd import SGD
from frame.compiler.optimizers.training import build_training_graph, training_states

__all__ = [
    "LARS",
    "SGD",
    "Adam",
    "AdamW",
    "Ema",
    "Freeze",
    "Lion",
    "LossScale",
    "Optimizer",
    "ParameterGroup",
    "Recipe",
    "RunTime",
    "StateSpec",
    "Swa",
    "build_training_graph",
    "training_states",
]
