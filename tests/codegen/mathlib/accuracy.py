"""Measure the functions of the library: compiled kernels, references, errors in ULP.

`python -m tests.codegen.mathlib.accuracy exp log` runs all 2**32 float32 arguments of each function
named (minutes each) and prints the greatest error beside the stated bound.
"""

import sys

import numpy as np

from frame.codegen import mathlib
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.core import dtypes as dt
from tests.codegen.native import Native, module_of

LANES = {2: 8, 4: 8, 8: 4}


def kernel_of(name, dtype):
    """A kernel result[i] = function(x0[i], ...) over `n` elements, n a multiple of 8."""
    n, lanes = b.fresh("n"), LANES[dtype.itemsize]
    count = mathlib.FUNCTIONS[name].operands
    sources = [b.buffer(f"x{i}", dtype, [n]) for i in range(count)]
    result, body = b.buffer("result", dtype, [n]), b.Body()
    with body.loop(b.div(n, lanes)) as i:
        at = b.ramp(b.mul(i, lanes), lanes)
        function = getattr(mathlib, name)
        body.store(result, [at], function(*(b.load(source, [at]) for source in sources)))
    return ir.Kernel(name, (*sources, result), (n,), body.block())


class Library:
    """Functions compiled for one dtype."""

    def __init__(self, dtype, names=tuple(mathlib.FUNCTIONS), target=None):
        self.dtype = dtype
        self.native = Native(module_of(*(kernel_of(name, dtype) for name in names)), target)

    def __call__(self, name, *arrays):
        result = np.empty_like(arrays[0])
        self.native.kernel(name, [*arrays, result], [len(result)])
        return result


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, np.ones_like(x)) / (1 + e)


def erf(x):
    """A series of positive terms, exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!, in long double."""
    with np.errstate(invalid="ignore"):
        wide = np.asarray(x, np.longdouble)
    a = np.minimum(np.abs(wide), np.longdouble(7))
    term, square = a.copy(), 2 * a * a
    total = a.copy()
    for n in range(1, 300):
        term = term * (square / (2 * n + 1))
        total = total + term
    root = np.sqrt(4 * np.arctan(np.longdouble(1)))
    return np.copysign(np.minimum(2 / root * np.exp(-a * a) * total, 1), wide)


REFERENCES = {
    "sigmoid": sigmoid,
    "erf": erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.power,
}


def reference(name, *arrays):
    """The value in a wider type: float64 for float32, long double for float64."""
    wide = np.float64 if arrays[0].dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        return REFERENCES.get(name, getattr(np, name, None))(*(a.astype(wide) for a in arrays))


def errors(got, exact):
    """Errors in ULP of the dtype of `got`; infinite for a wrong special value or sign of zero."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        info = np.finfo(got.dtype)
        magnitude = np.maximum(np.abs(rounded), info.tiny)
        exponent = np.frexp(magnitude)[1]
        spacing = np.ldexp(np.ones_like(exact), exponent - (info.nmant + 1))
        result = (np.abs(got.astype(exact.dtype) - exact) / spacing).astype(np.float64)
    # An infinite result where the exact value is a little above the largest number is right.
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    equal = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    result = np.where(special, np.where(equal, 0.0, np.inf), result)
    lost_sign = (rounded == 0) & (got == 0) & (np.signbit(got) != np.signbit(rounded))
    return np.where(lost_sign, np.inf, result)


def exhaustive(name, step=1 << 22):
    """The greatest error over all float32 arguments, and where it is."""
    library = Library(dt.float32, (name,))
    wide = Library(dt.float64, (name,)) if name == "erf" else None
    worst, where = 0.0, 0.0
    for start in range(0, 1 << 32, step):
        x = np.arange(start, start + step, dtype=np.uint64).astype(np.uint32).view(np.float32)
        exact = wide(name, x.astype(np.float64)) if wide else reference(name, x)
        found = errors(library(name, x), exact)
        at = int(np.argmax(found))
        if found[at] > worst:
            worst, where = float(found[at]), float(x[at])
    return worst, where


def main(names):
    for name in names:
        worst, where = exhaustive(name)
        bound = mathlib.BOUNDS[name][dt.float32]
        sys.stdout.write(f"{name}: {worst:.4f} ULP at {where!r}, stated {bound}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:] or [n for n, row in mathlib.FUNCTIONS.items() if row.operands == 1])
