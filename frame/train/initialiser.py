"""Initial weights by the kind of a parameter, in place of those that the layers declare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frame.compiler.optimizers.recipe import checked_patterns, matches
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.nn.module import Module
from frame.nn.parameters import Full, Initialiser, ParamSpec, materialize


@dataclass(frozen=True, slots=True)
class Initializer:
    """How weights begin.

    Attributes:
        conv: for weights of three axes and more, such as `nn.kaiming_normal()`; None keeps what the
            layers declare.
        linear: for weights of two axes, such as `nn.xavier_uniform()`.
        zero: patterns of parameters that begin with zeros: the gains of the last normalisation of
            each residual branch ("zero gamma": Goyal et al., arXiv 1706.02677, section 5.1).

    Raises:
        InvalidArgumentError: one is no initialiser, or a pattern no text.
    """

    conv: Initialiser | None = None
    linear: Initialiser | None = None
    zero: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("conv", "linear"):
            value = getattr(self, name)
            if value is not None and not hasattr(value, "values"):
                raise InvalidArgumentError(
                    f"initializer: expected {name} as an initialiser such as nn.kaiming_normal(), "
                    f"received {value!r:.80}"
                )
        if self.zero:
            object.__setattr__(self, "zero", checked_patterns("initializer", self.zero))

    def values(self, module: Module, seed: int) -> dict[str, np.ndarray]:
        """Return the initial values that differ from the declared ones, by path.

        Raises:
            InvalidArgumentError: no parameter matches a pattern.
        """
        specs = [spec for spec in module.parameters() if spec.trainable]
        for pattern in self.zero:
            if not any(matches(spec.name, (pattern,)) for spec in specs):
                raise InvalidArgumentError(
                    f"initializer: no parameter matches the pattern {pattern!r}"
                )
        chosen = {spec: self._chosen(spec) for spec in specs}
        return {
            spec.name: materialize(replace(spec, init=init), seed)
            for spec, init in chosen.items()
            if init is not None
        }

    def _chosen(self, spec: ParamSpec) -> Initialiser | None:
        if matches(spec.name, self.zero):
            return Full(0.0)
        if len(spec.shape) < 2:
            return None
        return self.linear if len(spec.shape) == 2 else self.conv
