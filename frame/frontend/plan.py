"""What every version of the spec becomes: a model, its data and how to train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from frame.nn.module import Module

if TYPE_CHECKING:
    from frame.compiler.optimizers import Optimizer
    from frame.train.resolution import Resolution
    from frame.train.schedules import Schedule

ScheduleOf: TypeAlias = "Callable[[int], Schedule]"
"""Makes the schedule of training for epochs of so many steps."""

BATCH = "batch"
"""The symbol of the batch axis of specs that leave its size open."""

SHOWN = 64
"""How many predictions `frame train` and emitted programs print."""

TARGET = "target"
"""The name of the target among the data."""


@dataclass(frozen=True, slots=True)
class Training:
    """How long to train, and on how many rows at once.

    `resolution` is what images are scaled to, by epochs; None for what they have.
    `steps` or `epochs` is given, the other one is None. `batch_size` is None where each step takes
    all the data. `validation` is the share of the rows that are kept for validation.
    """

    steps: int | None
    epochs: int | None = None
    batch_size: int | None = None
    seed: int = 0
    log_every: int = 0
    shuffle: bool = False
    drop_last: bool = False
    validation: float = 0.0
    resolution: Resolution | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A checked spec.

    Attributes:
        version: the version of the schema.
        name: the name of the model, any text.
        module: the model.
        loss: a module of (output, target), without parameters.
        inputs: the types of the inputs of the model, by name.
        target: the type of the target.
        optimizer: how a step updates the parameters.
        schedule: makes the learning rates of the steps.
        training: how long to train.
        columns: makes the data: one array an input, then the target.
        values: makes initial parameters by path; the declared initialisers make the others.
        backend: where to train; None for the usual one.
        save: the `.frame` file that training writes; empty for none.
    """

    version: int
    name: str
    module: Module
    loss: Module
    inputs: Mapping[str, TensorType]
    target: TensorType
    optimizer: Optimizer
    schedule: ScheduleOf
    training: Training
    columns: Callable[[], tuple[np.ndarray, ...]]
    values: Callable[[], Mapping[str, np.ndarray]]
    backend: str | None = None
    save: str = ""

    def trained(self, epoch: int | None = None) -> Module:
        """Return the model with the scaling of its images, in an epoch or the last ones."""
        rule = self.training.resolution
        if rule is None:
            return self.module
        from frame.train.augment import ImageAugmentation

        look = rule.last if epoch is None else rule.at(epoch)
        return rule.around(self.module, ImageAugmentation(layout=rule.layout), look)

    @property
    def has_symbols(self) -> bool:
        """Whether the size of the batch is open."""
        return any(not isinstance(size, int) for t in self.types for size in t.shape)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the inputs, then of the target."""
        return (*self.inputs.values(), self.target)


def rows_of(plan: Plan, columns: tuple[np.ndarray, ...]) -> int:
    """Return the number of rows of the data; raise InvalidArgumentError if columns differ."""
    names = (*plan.inputs, TARGET)
    counts = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(counts.values())) > 1:
        texts = ", ".join(f"data.{name} {count}" for name, count in counts.items())
        raise InvalidArgumentError(
            f"data: expected equal numbers of rows, received {texts}; a row of each is a sample"
        )
    return next(iter(counts.values()))
