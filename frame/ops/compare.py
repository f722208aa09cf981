"""Comparisons and tests: their result is bool, and gradients do not flow through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from frame.core.dtypes import bool_
from frame.core.shapes import broadcast_shapes
from frame.ir.graph import Attribute, TensorType
from frame.ops import samples
from frame.ops.record import NoGradient, OpDef, Operand, Sample, Trait
from frame.ops.registry import register

_NUMBERS = ("float", "int", "uint")
_ANY = ("float", "int", "uint", "bool")
_BOOLEAN = NoGradient("its result is a truth value", zero=True)


def _types(operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]) -> TensorType:
    return TensorType(bool_, broadcast_shapes(*(operand.shape for operand in operands)))


def _comparison(
    name: str, sign: str, function: Callable[..., Any], kinds: tuple[str, ...], symmetric: bool
) -> None:
    def cases() -> Iterable[Sample]:
        tied = np.array([[1.0, 2.0, 2.0], [0.0, -0.0, 5.0]])
        ties = [Sample("ties", (tied, tied[:, ::-1].copy()), gradient=False)]
        flags = samples.binary_bools() if "bool" in kinds else ()
        return chain(samples.binary(gradient=False), ties, samples.binary_integers(), flags)

    commutes = {Trait.COMMUTATIVE} if symmetric else set()
    unequal = "true" if name == "not_equal" else "false"
    register(
        OpDef(
            name=name,
            doc=f"Return whether a {sign} b, as bool; {unequal} where either is NaN.",
            operands=(Operand("a", kinds), Operand("b", kinds)),
            infer=_types,
            reference=lambda operands, attributes: function(*operands),
            gradient=_BOOLEAN,
            traits=frozenset({Trait.ELEMENTWISE} | commutes),
            samples=cases,
        )
    )


_comparison("equal", "==", np.equal, _ANY, True)
_comparison("not_equal", "!=", np.not_equal, _ANY, True)
_comparison("less", "<", np.less, _NUMBERS, False)
_comparison("less_equal", "<=", np.less_equal, _NUMBERS, False)
_comparison("greater", ">", np.greater, _NUMBERS, False)
_comparison("greater_equal", ">=", np.greater_equal, _NUMBERS, False)

for _name, _text, _function in (
    ("isnan", "NaN", np.isnan),
    ("isinf", "an infinity", np.isinf),
    ("isfinite", "neither an infinity nor NaN", np.isfinite),
):
    register(
        OpDef(
            name=_name,
            doc=f"Return whether x is {_text}, as bool.",
            operands=(Operand("x", ("float",)),),
            infer=_types,
            reference=lambda operands, attributes, function=_function: function(operands[0]),
            gradient=_BOOLEAN,
            traits=frozenset({Trait.ELEMENTWISE}),
            samples=lambda: samples.unary(gradient=False),
        )
    )
