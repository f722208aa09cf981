"""What a case is: a network declared once, its inputs, and how close the peers must agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import frame
from benchmarks.suite.plan import Plan, Step, contraction_flops, read_plan
from frame import nn
from frame.ir.graph import Role, TensorType

LEARNING_RATE, MOMENTUM = 0.01, 0.9
"""Of every training step: stochastic gradient descent with momentum, as torch.optim.SGD does it."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input: normal float32 numbers, or whole numbers from 0 up to `below` as int64."""

    shape: tuple[int, ...]
    below: int = 0
    scale: float = 1.0
    low: float | None = None  # uniform from `low` to `low + scale` in place of normal numbers

    @property
    def spec(self) -> TensorType:
        """The type of the input."""
        return frame.spec(self.shape, "int64" if self.below else "float32")

    def array(self, seed: int) -> np.ndarray:
        """Return the values, which depend on the seed alone."""
        random = np.random.default_rng(seed)
        if self.below:
            return random.integers(0, self.below, self.shape)
        if self.low is not None:
            return random.uniform(self.low, self.low + self.scale, self.shape).astype(np.float32)
        return (random.standard_normal(self.shape) * self.scale).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A network and its inputs.

    Attributes:
        module: the network, or a function of values as a module without parameters.
        inputs: what it takes.
        target: what the loss takes beside the output; None for inference. Whole numbers are labels
            of a softmax cross entropy, floats the target of a mean squared error.
        family: what kernels written by hand know the case by.
        idiom: an op that stands for the whole network where a peer has it, such as `lstm`.
    """

    module: nn.Module
    inputs: tuple[Input, ...]
    target: Input | None = None
    family: str = ""
    idiom: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: `declare(*sizes)`; `declare(*tiny)` is the same in small, for tests.

    `tolerance` is the largest difference between a peer and frame, relative to the largest
    magnitude of the output. `heavy`: it takes many seconds to prepare.
    """

    name: str
    group: str
    declare: Callable[..., Declaration]
    sizes: tuple[Any, ...]
    tiny: tuple[Any, ...]
    tolerance: float = 1e-3
    heavy: bool = False

    def instance(self, small: bool = False) -> Instance:
        """Return the case with its numbers."""
        return Instance(self, self.declare(*(self.tiny if small else self.sizes)))


class Instance:
    """A case with arrays for its inputs and parameters, the same for every peer."""

    def __init__(self, case: Case, declaration: Declaration) -> None:
        self.case = case
        self.declaration = declaration
        self.arrays = [entry.array(seed) for seed, entry in enumerate(declaration.inputs)]
        self.specs = [entry.spec for entry in declaration.inputs]
        target = declaration.target
        self.target = None if target is None else target.array(len(self.arrays))
        self.classes = target is not None and bool(target.below)

    @property
    def training(self) -> bool:
        """Whether the case is a training step."""
        return self.target is not None

    @cached_property
    def values(self) -> Mapping[str, np.ndarray]:
        """The parameters and buffers by name."""
        return {
            spec.name: _statistic(spec) if spec.role is Role.BUFFER else nn.materialize(spec)
            for spec in self.declaration.module.parameters()
        }

    @cached_property
    def plan(self) -> Plan:
        """The declared graph for the peers."""
        mode = "train" if self.training else "infer"
        return read_plan(self.declaration.module, self.specs, self.values, mode)

    def idiom_plan(self) -> Plan:
        """Return the plan in which one op stands for the whole network, where it has a name."""
        plan, name = self.plan, self.declaration.idiom
        if not name:
            return plan
        operands = (*plan.inputs, *plan.trainable)
        step = Step(name, operands, {}, plan.outputs)
        return Plan(
            plan.inputs, (step,), plan.outputs, plan.shapes, plan.parameters, plan.trainable
        )

    @cached_property
    def flops(self) -> int:
        """The floating-point operations of products and convolutions in one call."""
        return contraction_flops(self.plan, self.training)

    @cached_property
    def traffic(self) -> int:
        """The bytes of all inputs, parameters and outputs."""
        arrays = [*self.arrays, *self.plan.parameters.values()]
        written = sum(4 * math.prod(self.plan.shapes[slot]) for slot in self.plan.outputs)
        return sum(array.nbytes for array in arrays) + written


def _statistic(spec: nn.ParamSpec) -> np.ndarray:
    """Return running statistics that are neither 0 nor 1, so that a peer can't leave them out."""
    name = spec.name.rsplit(".", 1)[-1]
    random = np.random.default_rng(sum(map(ord, spec.name)))
    if name == "running_var":
        return random.uniform(0.8, 1.2, spec.shape).astype(np.float32)
    return (0.1 * random.standard_normal(spec.shape)).astype(np.float32)


def of_function(function: Callable[..., Any]) -> nn.Module:
    """Return a function of values as a module without parameters."""

    def build(self: nn.Scope, *values: Any) -> Any:
        return function(*values)

    return nn.module(build)


def normal(*shapes: Sequence[int]) -> tuple[Input, ...]:
    """Return one input of normal numbers a shape."""
    return tuple(Input(tuple(shape)) for shape in shapes)
