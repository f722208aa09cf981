"""Optimizers: records that declare their state and build the update of a parameter."""

from frame.compiler.optimizers.adam import Adam, AdamW
from frame.compiler.optimizers.record import Optimizer, RunTime, StateSpec
from frame.compiler.optimizers.sgd import SGD
from frame.compiler.optimizers.training import build_training_graph, training_states

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RunTime",
    "StateSpec",
    "build_training_graph",
    "training_states",
]
