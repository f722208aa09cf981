"""Measure the functions of the library: compiled kernels, references, errors in ULP.

`python -m tests.codegen.mathlib.accuracy exp log` tries all 2**32 float32 arguments of each
function named (half a minute each) and prints the greatest error beside the stated bound.
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


def search_kernel(name):
    """The greatest error of a float32 function against its float64 version, found natively.

    Arguments are start + step i as bit patterns; `worst` and `where` hold one result a lane.
    """
    lanes = 8
    start, step, count = b.fresh("start"), b.fresh("step"), b.fresh("count")
    worst, where = b.buffer("worst", dt.float64, [lanes]), b.buffer("where", dt.int64, [lanes])
    zero = b.const(0.0, ir.Type(dt.float64, lanes))
    body = b.Body()
    with body.fold(b.div(count, lanes), (zero, b.ramp(0, lanes))) as found:
        at = b.ramp(b.mul(found.index, lanes), lanes)
        pattern = b.add(b.mul(at, step), start)
        x = b.bitcast(b.cast(pattern, dt.uint32), dt.float32)
        exact = getattr(mathlib, name)(b.cast(x, dt.float64))
        error = body.let("error", error_of(getattr(mathlib, name)(x), exact))
        more = body.let("more", b.gt(error, found.values[0]))
        found.next = tuple(
            b.select(more, new, old)
            for new, old in zip((error, pattern), found.values, strict=True)
        )
    for buffer, value in zip((worst, where), found.results, strict=True):
        body.store(buffer, [b.ramp(0, lanes)], value)
    return ir.Kernel(name, (worst, where), (start, step, count), body.block())


def error_of(got, exact):
    """The error in ULP of float32 as an expression; infinite for a wrong special value."""
    rounded = b.cast(exact, dt.float32)
    exponent = b.shr(b.bitcast(b.absolute(rounded), dt.int32), 23)
    exponent = b.cast(b.max_(exponent, 1), dt.int64)
    scale = b.bitcast(b.shl(b.sub(1023 + 150, exponent), 52), dt.float64)
    error = b.mul(b.absolute(b.sub(b.cast(got, dt.float64), exact)), scale)
    equal = b.or_(b.eq(got, rounded), b.and_(b.ne(got, got), b.ne(rounded, rounded)))
    special = b.or_(
        b.not_(b.lt(b.absolute(got), np.inf)), b.not_(b.lt(b.absolute(rounded), np.inf))
    )
    wrong = b.select(equal, b.const(0.0, error.type), b.const(np.inf, error.type))
    return b.select(special, wrong, error)


def search(name, step=1, start=0):
    """The greatest error over every `step`-th float32, and where it is."""
    native = Native(module_of(search_kernel(name)))
    worst, where = np.zeros(8), np.zeros(8, np.int64)
    native.kernel(name, [worst, where], [start, step, (1 << 32) // step // 8 * 8])
    at = int(np.argmax(worst))
    return float(worst[at]), float(where[at : at + 1].astype(np.uint32).view(np.float32)[0])


def main(names):
    for name in names:
        worst, where = search(name)
        bound = mathlib.BOUNDS[name][dt.float32]
        sys.stdout.write(f"{name}: {worst:.4f} ULP at {where!r}, stated {bound}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:] or [n for n, row in mathlib.FUNCTIONS.items() if row.operands == 1])
