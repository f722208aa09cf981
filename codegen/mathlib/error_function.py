"""erf: an odd polynomial near zero, 1 - exp(-p) beyond, with p near-minimax for -log(erfc).

The scheme is that of the CUDA math library as N. Juffa described it; erfc itself never appears, so
its relative error near zero does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.common import copy_sign, hexadecimal, polynomial
from frame.codegen.mathlib.exponential import exp_in_range
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, float32, float64


@dataclass(frozen=True, slots=True)
class Pieces:
    """erf(x) / x - 1 in x**2 below `edge`; `decay` is -log(erfc(x)) up to `end`, then erf is 1."""

    near: tuple[float, ...]
    edge: float
    end: float
    decay: Callable[[Expr], Expr]


# Relative error 2**-29.5 on [0, 0.928]; (-log(erfc(x)) - x) / x: error 2**-30.3 of erf up to 4.
NEAR_SINGLE = (
    0.12837916612625122,
    -0.3761262893676758,
    0.11283625662326813,
    -0.02685573324561119,
    0.005192406941205263,
    -0.000804974464699626,
    7.996286149136722e-05,
)
DECAY_SINGLE = (
    0.12865278124809265,
    0.6351338624954224,
    0.10626579821109772,
    -0.023787030950188637,
    0.003654296277090907,
    -0.0003257243661209941,
    1.152417462435551e-05,
)

# Relative error 2**-56.3 on [0, 1]; -log(erfc(2 + u)), error 2**-56.5 of erf for u in [-1, 4].
NEAR_DOUBLE = hexadecimal(
    "0x1.06eba8214db69p-3",
    "-0x1.812746b0379e7p-2",
    "0x1.ce2f21a042bddp-4",
    "-0x1.b82ce31288991p-6",
    "0x1.565bcd0e648e5p-8",
    "-0x1.c02db3fed288ep-11",
    "0x1.f9a326becdf35p-14",
    "-0x1.f4d255cb2a040p-17",
    "0x1.b9e64b98bf904p-20",
    "-0x1.5f6d5b0063640p-23",
    "0x1.fc401cab990fcp-27",
    "-0x1.4e50f684c181cp-30",
    "0x1.7eb0263270690p-34",
    "-0x1.28e23ee31bbd9p-38",
)
DECAY_DOUBLE = hexadecimal(
    "0x1.575b329b1f515p+2",
    "0x1.1ac3258a8dc29p+2",
    "0x1.d8f5dece92578p-1",
    "0x1.0dc3b5fb262fap-6",
    "-0x1.d406b3744d153p-9",
    "0x1.7ffcfb277953dp-11",
    "-0x1.1bc3a63ec8113p-13",
    "0x1.5b657eab8aeadp-16",
    "-0x1.0603fc42544eap-19",
    "-0x1.b557f3f74b963p-23",
    "0x1.73dc1ba552012p-23",
    "-0x1.f06e059001789p-25",
    "0x1.e0b35adbf4344p-27",
    "-0x1.5d4152010d95cp-29",
    "0x1.17fa41077fbb2p-32",
    "0x1.8d2956971c5adp-35",
    "-0x1.1c5fe8db43762p-35",
    "0x1.3f48495398a72p-37",
    "-0x1.a2d0c4771e045p-40",
    "0x1.34782d0e45983p-43",
    "-0x1.8a1b3a56a9071p-48",
)

PIECES: Mapping[DType, Pieces] = {
    float32: Pieces(NEAR_SINGLE, 0.9275, 4.0, lambda a: b.fma(a, polynomial(a, DECAY_SINGLE), a)),
    float64: Pieces(NEAR_DOUBLE, 1.0, 6.0, lambda a: polynomial(b.sub(a, 2.0), DECAY_DOUBLE)),
}


def erf(x: Expr) -> Expr:
    """The error function."""
    pieces = PIECES[x.type.dtype]
    a = b.absolute(x)
    near = b.fma(a, polynomial(b.mul(a, a), pieces.near), a)
    decay = pieces.decay(b.min_(b.like(pieces.end, x), a))
    far = b.sub(1.0, exp_in_range(b.neg(decay)))
    return copy_sign(b.select(b.lt(a, pieces.edge), near, far), x)
