"""Elementary functions as loop IR: expressions in, an expression out, no calls and no tables.

`exp(x)` takes any float expression and follows its lanes; float16 and bfloat16 are computed in
float32. `BOUNDS` states the error of every function in units in the last place of the result (the
spacing of floats there; of the smallest normal number below it), against the exact value: 0.5 is
correct rounding. Results at NaN, infinities, zeros and denormals are those of C99, annex F, as in
numpy. Bounds hold where Fma rounds once, which every emitter guarantees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib import (
    error_function,
    exponential,
    inverse,
    logarithm,
    trigonometric,
)
from frame.codegen.mathlib.common import dispatch, through_float64
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, float32, float64


@dataclass(frozen=True, slots=True)
class Function:
    """One function: its versions for float32 and float64, and their bounds in ULP."""

    single: Callable[..., Expr]
    double: Callable[..., Expr]
    single_bound: float
    double_bound: float
    operands: int = 1


def _same(function: Callable[..., Expr], single: float, double: float) -> Function:
    return Function(function, function, single, double)


def _through(function: Callable[..., Expr], double: float, operands: int = 1) -> Function:
    return Function(through_float64(function), function, 0.51, double, operands)


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "exp": _same(exponential.exp, 1.0, 1.0),
        "expm1": _same(exponential.expm1, 1.5, 1.7),
        "log": _same(logarithm.log, 0.9, 0.9),
        "log1p": _through(logarithm.log1p, 1.0),
        "log2": _through(logarithm.log2, 1.0),
        "tanh": _same(exponential.tanh, 1.5, 1.5),
        "sigmoid": _same(exponential.sigmoid, 1.6, 1.6),
        "erf": _same(error_function.erf, 1.1, 1.5),
        "sin": Function(trigonometric.sin_single, trigonometric.sin_double, 0.51, 0.9),
        "cos": Function(trigonometric.cos_single, trigonometric.cos_double, 0.51, 0.9),
        "tan": Function(trigonometric.tan_single, trigonometric.tan_double, 0.51, 2.2),
        "asin": _through(inverse.asin, 1.0),
        "acos": _through(inverse.acos, 1.0),
        "atan": _through(inverse.atan, 2.0),
        "atan2": _through(inverse.atan2, 2.0, operands=2),
        "sinh": _through(exponential.sinh, 2.0),
        "cosh": _through(exponential.cosh, 1.5),
        "pow": Function(
            through_float64(logarithm.pow_single), logarithm.pow_double, 0.51, 1.0, operands=2
        ),
        "rsqrt": _same(inverse.rsqrt, 1.5, 1.5),
    }
)
"""Every function of the library by name."""

BOUNDS: Mapping[str, Mapping[DType, float]] = MappingProxyType(
    {
        name: MappingProxyType({float32: row.single_bound, float64: row.double_bound})
        for name, row in FUNCTIONS.items()
    }
)
"""The greatest error of each function in ULP, by name and dtype; the tests hold them to it."""


def _public(name: str) -> Callable[..., Expr]:
    return dispatch(name, FUNCTIONS[name].single, FUNCTIONS[name].double)


exp = _public("exp")
expm1 = _public("expm1")
log = _public("log")
log1p = _public("log1p")
log2 = _public("log2")
tanh = _public("tanh")
sigmoid = _public("sigmoid")
erf = _public("erf")
sin = _public("sin")
cos = _public("cos")
tan = _public("tan")
asin = _public("asin")
acos = _public("acos")
atan = _public("atan")
atan2 = _public("atan2")
sinh = _public("sinh")
cosh = _public("cosh")
pow = _public("pow")
rsqrt = _public("rsqrt")

__all__ = ["BOUNDS", "FUNCTIONS", "Function", *FUNCTIONS]
