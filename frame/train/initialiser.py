"""Initial weights by the kind of a parameter, in place of those that the layers declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frame.compiler.optimizers.recipe import checked_patterns, matches
from frame.core.arguments import settle
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from frame.nn.module import Module, build_graph
from frame.nn.parameters import Full, Initialiser, ParamSpec, materialize
from frame.train.zero_gamma import NORMALISATIONS, residual_gains


@dataclass(frozen=True, slots=True)
class Initializer:
    """How weights begin.

    Attributes:
        conv: for weights of three axes and more, such as `nn.kaiming_normal()`; None keeps what the
            layers declare.
        linear: for weights of two axes, such as `nn.xavier_uniform()`.
        zero: patterns of parameters that begin with zeros.
        zero_gamma: whether the gains of the normalisations that end residual branches begin with
            zeros, so that each block begins as its shortcut: Goyal et al., arXiv 1706.02677,
            section 5.1. The branches are found in the graph, see `residual_gains`.

    Raises:
        InvalidArgumentError: one is no initialiser, a pattern no text, or zero_gamma no bool.
    """

    conv: Initialiser | None = None
    linear: Initialiser | None = None
    zero: tuple[str, ...] = ()
    zero_gamma: bool = False

    def __post_init__(self) -> None:
        for name in ("conv", "linear"):
            value = getattr(self, name)
            if value is not None and not hasattr(value, "values"):
                raise InvalidArgumentError(
                    f"initializer: expected {name} as an initialiser such as nn.kaiming_normal(), "
                    f"received {value!r:.80}"
                )
        settle("initializer", self)
        if self.zero != ():
            object.__setattr__(self, "zero", checked_patterns("initializer", self.zero, "zero"))

    def values(
        self, module: Module, seed: int, inputs: Sequence[TensorType] = ()
    ) -> dict[str, np.ndarray]:
        """Return the initial values that differ from the declared ones, by path.

        `inputs` are the types of the module's inputs, which zero_gamma needs.

        Raises:
            InvalidArgumentError: no parameter matches a pattern, or zero_gamma finds no residual
                branch that ends in a normalisation.
        """
        specs = [spec for spec in module.parameters() if spec.trainable]
        for pattern in self.zero:
            if not any(matches(spec.name, (pattern,)) for spec in specs):
                raise InvalidArgumentError(
                    f"initializer: no parameter matches the pattern {pattern!r}"
                )
        gains = self._gains(module, inputs) if self.zero_gamma else ()
        chosen = {spec: Full(0.0) if spec.name in gains else self._chosen(spec) for spec in specs}
        return {
            spec.name: materialize(replace(spec, init=init), seed)
            for spec, init in chosen.items()
            if init is not None
        }

    def _gains(self, module: Module, inputs: Sequence[TensorType]) -> list[str]:
        found = residual_gains(build_graph(module, inputs, "train"))
        if not found:
            raise InvalidArgumentError(
                "initializer: zero_gamma found no residual branch that ends in a normalisation "
                f"with a gain ({', '.join(sorted(NORMALISATIONS))}); name parameters by zero=(...)"
            )
        return found

    def _chosen(self, spec: ParamSpec) -> Initialiser | None:
        if matches(spec.name, self.zero):
            return Full(0.0)
        if len(spec.shape) < 2:
            return None
        return self.linear if len(spec.shape) == 2 else self.conv
