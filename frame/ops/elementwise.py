"""Elementwise arithmetic and functions, with full numpy broadcasting.

Integers wrap around. What numpy or C leave undefined is defined here, the same for every backend:
`x // 0`, `x % 0` and `x ** -n` of integers, shifts by the width or more, the smallest integer
divided by -1, and casts of floats that the target can't hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DType
from frame.core.shapes import broadcast_shapes
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops import samples
from frame.ops.gradients import (
    BinaryRule,
    UnaryRule,
    binary_gradient,
    unary_gradient,
    unbroadcast,
)
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import register

FLOATS = ("float",)
NUMBERS = ("float", "int", "uint")
INTEGERS = ("int", "uint")
BITS = ("int", "uint", "bool")
BOOLS = ("bool",)

_STEP = NoGradient("it is piecewise constant, so its derivative is zero almost everywhere", True)
_DISCRETE = NoGradient("its operands are discrete", True)


def elementwise_types(
    operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
) -> TensorType:
    """Infer the type of a broadcasting op whose result has the dtype of its last operand."""
    shape = broadcast_shapes(*(operand.shape for operand in operands))
    return TensorType(operands[-1].dtype, shape)


def _reference(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda operands, attributes: function(*operands)


def _unary(
    name: str,
    doc: str,
    reference: Callable[[np.ndarray], Any],
    gradient: UnaryRule | NoGradient,
    domain: tuple[float, float] = (-2.0, 2.0),
    kinds: tuple[str, ...] = FLOATS,
    expensive: bool = False,
    autocast: Autocast = Autocast.FOLLOW,
) -> None:
    def cases() -> Iterable[Sample]:
        smooth = not isinstance(gradient, NoGradient)
        floats = samples.unary(*domain, gradient=smooth) if "float" in kinds else ()
        whole = samples.unary_integers() if "int" in kinds else ()
        flags = samples.unary_bools() if "bool" in kinds else ()
        return chain(floats, whole, flags)

    traits = {Trait.ELEMENTWISE} | ({Trait.EXPENSIVE} if expensive else set())
    register(
        OpDef(
            name=name,
            doc=doc,
            operands=(Operand("x", kinds),),
            infer=elementwise_types,
            reference=_reference(reference),
            gradient=gradient if isinstance(gradient, NoGradient) else unary_gradient(gradient),
            traits=frozenset(traits),
            autocast=autocast,
            samples=cases,
        )
    )


def _binary(
    name: str,
    doc: str,
    reference: Callable[[np.ndarray, np.ndarray], Any],
    gradient: tuple[BinaryRule, BinaryRule] | NoGradient,
    left: tuple[float, float] = (-2.0, 2.0),
    right: tuple[float, float] = (-2.0, 2.0),
    kinds: tuple[str, ...] = NUMBERS,
    traits: tuple[Trait, ...] = (),
    autocast: Autocast = Autocast.FOLLOW,
    integer_right: Iterable[int] | None = None,
) -> None:
    def cases() -> Iterable[Sample]:
        smooth = not isinstance(gradient, NoGradient)
        floats = samples.binary(left, right, smooth) if "float" in kinds else ()
        whole = samples.binary_integers(integer_right) if "int" in kinds else ()
        flags = samples.binary_bools() if "bool" in kinds else ()
        return chain(floats, whole, flags)

    register(
        OpDef(
            name=name,
            doc=doc,
            operands=(Operand("a", kinds), Operand("b", kinds)),
            infer=elementwise_types,
            reference=_reference(reference),
            gradient=gradient if isinstance(gradient, NoGradient) else binary_gradient(*gradient),
            traits=frozenset({Trait.ELEMENTWISE, *traits}),
            autocast=autocast,
            samples=cases,
        )
    )


# --- arithmetic -----------------------------------------------------------------------------------


def integer_power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Raise integers to integers by squaring, wrapping around.

    A negative exponent gives the truncated value: 0, but 1 for the base 1 and +-1 for the base -1;
    the base 0 gives 0.
    """
    base, exponent = np.broadcast_arrays(base, exponent)
    one = np.ones((), base.dtype)
    result, square, rest = np.full(base.shape, one), base.copy(), np.maximum(exponent, 0)
    while np.any(rest):
        result = np.where(rest & one, result * square, result)
        square, rest = square * square, rest >> one
    odd = (exponent & one).astype(bool)
    signed = np.where(odd, base, base * base)
    inverse = np.where((base == 1) | (base * base == 1) & (base + one == 0), signed, 0)
    return np.where(exponent < 0, inverse, result).astype(base.dtype)


def _power(base: np.ndarray, exponent: np.ndarray) -> Any:
    if base.dtype.kind == "f":
        return np.power(base, exponent)
    return integer_power(base, exponent)


def _power_base(g: Value, a: Value, b: Value, y: Value) -> Value:
    # The inner where keeps 0 ** -1 out, whose infinity times the factor 0 would be NaN.
    return g * b * ops.pow(a, ops.where(ops.equal(b, 0), 1, b - 1))


def _power_exponent(g: Value, a: Value, b: Value, y: Value) -> Value:
    return g * y * ops.log(ops.where(ops.equal(a, 0), 1, a))


def _pick(
    loses: Callable[[Value, Value], Value],
) -> tuple[BinaryRule, BinaryRule]:
    """Return the rules of maximum or minimum: a tie is shared evenly; NaN passes to both."""

    def share(g: Value, mine: Value, other: Value) -> Value:
        tied = ops.where(ops.equal(mine, other), g * 0.5, g)
        return ops.where(loses(mine, other), 0, tied)

    return (lambda g, a, b, y: share(g, a, b), lambda g, a, b, y: share(g, b, a))


_COMMUTES = (Trait.COMMUTATIVE,)

_binary(
    "add", "Return a + b.", np.add, (lambda g, a, b, y: g, lambda g, a, b, y: g), traits=_COMMUTES
)
_binary("sub", "Return a - b.", np.subtract, (lambda g, a, b, y: g, lambda g, a, b, y: -g))
_binary(
    "mul",
    "Return a * b.",
    np.multiply,
    (lambda g, a, b, y: g * b, lambda g, a, b, y: g * a),
    traits=_COMMUTES,
)
_binary(
    "div",
    "Return a / b for floats, as IEEE 754 divides; cast integers, or use floor_div.",
    np.divide,
    (lambda g, a, b, y: g / b, lambda g, a, b, y: -(g * y) / b),
    right=(0.5, 2.0),
    kinds=FLOATS,
)
_binary(
    "floor_div",
    "Return the floor of a / b, as Python and numpy do.\n\n"
    "For integers x // 0 is 0, and the smallest integer // -1 wraps around to itself.",
    np.floor_divide,
    _STEP,
    right=(0.5, 2.0),
)
_binary(
    "mod",
    "Return the remainder of floor division, with the sign of b: a - floor_div(a, b) * b.\n\n"
    "For integers x % 0 is 0. For floats a zero result has the sign of b, and x % 0.0 is NaN.",
    np.remainder,
    (lambda g, a, b, y: g, lambda g, a, b, y: -(g * ops.floor_div(a, b))),
    left=(0.1, 0.9),
    right=(1.0, 2.0),
)
_binary(
    "pow",
    "Return a ** b, for floats as C's pow.\n\n"
    "Integers wrap around; a negative exponent gives the truncated value: 1 for the base 1, "
    "+-1 for the base -1, and else 0 (for the base 0 too).",
    _power,
    (_power_base, _power_exponent),
    left=(0.3, 2.0),
    traits=(Trait.EXPENSIVE,),
    autocast=Autocast.FLOAT32,
)
_binary(
    "maximum",
    "Return the larger of a and b; NaN if either is NaN.\n\n"
    "Of two zeros of different sign either may be the result. Its gradient shares a tie evenly.",
    np.maximum,
    _pick(lambda mine, other: mine < other),
    traits=_COMMUTES,
)
_binary(
    "minimum",
    "Return the smaller of a and b; NaN if either is NaN.\n\n"
    "Of two zeros of different sign either may be the result. Its gradient shares a tie evenly.",
    np.minimum,
    _pick(lambda mine, other: mine > other),
    traits=_COMMUTES,
)
_binary(
    "atan2",
    "Return the angle of the point (b, a) in radians, from -pi to pi.",
    np.arctan2,
    (
        lambda g, a, b, y: g * b / (a * a + b * b),
        lambda g, a, b, y: -(g * a) / (a * a + b * b),
    ),
    right=(0.5, 2.0),
    kinds=FLOATS,
    traits=(Trait.EXPENSIVE,),
)

# --- unary functions ------------------------------------------------------------------------------


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def sigmoid_array(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow and without cancellation."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.where(x <= 0, np.zeros((), x.dtype), x)


_LOG2 = math.log(2.0)
_ERF_SLOPE = 2.0 / math.sqrt(math.pi)

_unary(
    "neg",
    "Return -x; unsigned integers wrap around.",
    np.negative,
    lambda g, x, y: -g,
    kinds=NUMBERS,
)
_unary(
    "abs",
    "Return |x|; the smallest integer wraps around to itself. The gradient at 0 is 0.",
    np.abs,
    lambda g, x, y: g * ops.sign(x),
    domain=(0.1, 2.0),
    kinds=NUMBERS,
)
_unary("sign", "Return -1, 0 or 1; 0.0 for -0.0, NaN for NaN.", np.sign, _STEP, kinds=NUMBERS)
_unary("square", "Return x * x.", np.square, lambda g, x, y: g * (x + x), kinds=NUMBERS)
_unary(
    "relu",
    "Return 0 where x <= 0, else x (so NaN stays NaN). The gradient at 0 is 0.",
    _relu,
    lambda g, x, y: ops.where(y <= 0, 0, g),
    kinds=NUMBERS,
)
_unary(
    "reciprocal", "Return 1 / x.", np.reciprocal, lambda g, x, y: -(g * y * y), domain=(0.5, 2.0)
)
_unary("sqrt", "Return the square root.", np.sqrt, lambda g, x, y: g * 0.5 / y, domain=(0.3, 3.0))
_unary(
    "rsqrt",
    "Return 1 / sqrt(x): inf for 0.0, -inf for -0.0, NaN below zero.",
    lambda x: 1.0 / np.sqrt(x),
    lambda g, x, y: g * -0.5 * y * y * y,
    domain=(0.3, 3.0),
    autocast=Autocast.FLOAT32,
)

# name, what it returns, reference, gradient rule, domain of the smooth samples
_FUNCTIONS: tuple[tuple[str, str, Callable[[np.ndarray], Any], UnaryRule, tuple[float, float]], ...]
_FUNCTIONS = (
    ("exp", "e ** x", np.exp, lambda g, x, y: g * y, (-2, 2)),
    ("expm1", "exp(x) - 1, exact near 0", np.expm1, lambda g, x, y: g * (y + 1), (-2, 2)),
    ("log", "the natural logarithm", np.log, lambda g, x, y: g / x, (0.3, 3)),
    ("log1p", "log(1 + x), exact near 0", np.log1p, lambda g, x, y: g / (x + 1), (-0.7, 3)),
    ("log2", "the logarithm to base 2", np.log2, lambda g, x, y: g / (x * _LOG2), (0.3, 3)),
    ("sin", "the sine of x radians", np.sin, lambda g, x, y: g * ops.cos(x), (-4, 4)),
    ("cos", "the cosine of x radians", np.cos, lambda g, x, y: -(g * ops.sin(x)), (-4, 4)),
    ("tan", "the tangent of x radians", np.tan, lambda g, x, y: g * (y * y + 1), (-1.2, 1.2)),
    ("asin", "the arc sine", np.arcsin, lambda g, x, y: g * ops.rsqrt(1 - x * x), (-0.9, 0.9)),
    ("acos", "the arc cosine", np.arccos, lambda g, x, y: -g * ops.rsqrt(1 - x * x), (-0.9, 0.9)),
    ("atan", "the arc tangent", np.arctan, lambda g, x, y: g / (x * x + 1), (-3, 3)),
    ("sinh", "the hyperbolic sine", np.sinh, lambda g, x, y: g * ops.cosh(x), (-2, 2)),
    ("cosh", "the hyperbolic cosine", np.cosh, lambda g, x, y: g * ops.sinh(x), (-2, 2)),
    ("tanh", "the hyperbolic tangent", np.tanh, lambda g, x, y: g * (1 - y * y), (-2, 2)),
    ("sigmoid", "1 / (1 + exp(-x))", sigmoid_array, lambda g, x, y: g * y * (1 - y), (-3, 3)),
    (
        "erf",
        "the error function",
        _erf,
        lambda g, x, y: g * _ERF_SLOPE * ops.exp(-(x * x)),
        (-2, 2),
    ),
)
_FOLLOWING = frozenset({"tanh", "sigmoid", "sin", "cos", "erf", "atan"})

for _name, _text, _function, _rule, _domain in _FUNCTIONS:
    _unary(
        _name,
        f"Return {_text}.",
        _function,
        _rule,
        _domain,
        expensive=True,
        autocast=Autocast.FOLLOW if _name in _FOLLOWING else Autocast.FLOAT32,
    )

_unary("floor", "Return the largest whole number <= x.", np.floor, _STEP)
_unary("ceil", "Return the smallest whole number >= x.", np.ceil, _STEP)
_unary("round", "Return the nearest whole number; halves go to the even one.", np.rint, _STEP)
_unary("trunc", "Return x without its fraction.", np.trunc, _STEP)

# --- bits and truth values ------------------------------------------------------------------------

_binary("logical_and", "Return a and b.", np.logical_and, _DISCRETE, kinds=BOOLS, traits=_COMMUTES)
_binary("logical_or", "Return a or b.", np.logical_or, _DISCRETE, kinds=BOOLS, traits=_COMMUTES)
_binary("logical_xor", "Return a xor b.", np.logical_xor, _DISCRETE, kinds=BOOLS, traits=_COMMUTES)
_unary("logical_not", "Return not x.", np.logical_not, _DISCRETE, kinds=BOOLS)
_binary("bitwise_and", "Return a & b.", np.bitwise_and, _DISCRETE, kinds=BITS, traits=_COMMUTES)
_binary("bitwise_or", "Return a | b.", np.bitwise_or, _DISCRETE, kinds=BITS, traits=_COMMUTES)
_binary("bitwise_xor", "Return a ^ b.", np.bitwise_xor, _DISCRETE, kinds=BITS, traits=_COMMUTES)
_unary("bitwise_not", "Return ~x; for bool, not x.", np.invert, _DISCRETE, kinds=BITS)


def _shift(function: Callable[[Any, Any], Any], fill_sign: bool) -> Callable[[Any, Any], Any]:
    def shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < width)
        filled = np.where(a < 0, -1, 0) if fill_sign else np.zeros((), np.int64)
        return np.where(inside, function(a, np.where(inside, b, 0)), filled.astype(a.dtype))

    return shift


_SHIFTS = (0, 1, 3, 7, 8, 15, 31, 63, 64, 127)
_binary(
    "shift_left",
    "Return a << b. A shift by the width or more, or by a negative number, gives 0.",
    _shift(np.left_shift, False),
    _DISCRETE,
    kinds=INTEGERS,
    integer_right=_SHIFTS,
)
_binary(
    "shift_right",
    "Return a >> b, which keeps the sign. A shift by the width or more, or by a negative number, "
    "gives 0, or -1 where a < 0.",
    _shift(np.right_shift, True),
    _DISCRETE,
    kinds=INTEGERS,
    integer_right=_SHIFTS,
)

# --- where, clamp, cast ---------------------------------------------------------------------------


def _where_gradient(context: GradientContext) -> list[Value | None]:
    condition, x, y = context.operands
    if not x.dtype.is_float:
        return [None, None, None]
    (g,) = context.cotangents
    return [
        None,
        unbroadcast(ops.where(condition, g, 0), x.shape) if context.needed[1] else None,
        unbroadcast(ops.where(condition, 0, g), y.shape) if context.needed[2] else None,
    ]


def _where_samples() -> Iterable[Sample]:
    smooth, flags = samples.smooth, np.arange(15).reshape(3, 5) % 2 == 0
    yield Sample("same", (flags, smooth((3, 5)), smooth((3, 5), seed=1)))
    yield Sample("rank0", (np.array(True), smooth(()), smooth((), seed=1)))
    yield Sample("broadcast", (flags[:, :1], smooth((5,)), smooth((2, 1, 1), seed=1)))
    yield Sample("scalar", (flags, smooth((3, 5)), smooth(())))
    yield Sample("empty", (flags[:0], smooth((0, 5)), smooth((5,))))
    yield Sample(
        "edges", (flags, samples.FLOAT_EDGES.reshape(3, 5), smooth((3, 5))), gradient=False
    )
    for dtype in samples.INTEGER_DTYPES:
        edges = samples.integer_edges(dtype)
        mask = np.arange(edges.size) % 2 == 0
        yield Sample(f"edges_{dtype}", (mask, edges, edges[::-1].copy()), gradient=False)
    yield Sample("bool", (samples.BOOLS, samples.BOOLS, np.array(True)), gradient=False)


register(
    OpDef(
        name="where",
        doc="Return x where the condition holds, else y. A NaN that is not chosen has no effect.",
        operands=(Operand("condition", BOOLS, "C"), Operand("x"), Operand("y")),
        infer=elementwise_types,
        reference=_reference(np.where),
        gradient=_where_gradient,
        traits=frozenset({Trait.ELEMENTWISE}),
        samples=_where_samples,
    )
)


def _clamp_gradient(context: GradientContext) -> list[Value | None]:
    x, low, high = context.operands
    if not x.dtype.is_float:
        return [None, None, None]
    (g,) = context.cotangents
    needed = context.needed
    inside = ops.logical_not(ops.logical_or(x < low, x > high))
    lower = ops.logical_and(x < low, low <= high)
    upper = ops.maximum(x, low) > high
    return [
        unbroadcast(ops.where(mask, g, 0), operand.shape) if wanted else None
        for mask, operand, wanted in zip(
            (inside, lower, upper), (x, low, high), needed, strict=True
        )
    ]


def _clamp_samples() -> Iterable[Sample]:
    smooth = samples.smooth
    low, high = np.array(-0.6), np.array(0.7)
    yield Sample("same", (smooth((3, 5)), smooth((3, 5), -2, -1), smooth((3, 5), 1, 2)))
    yield Sample("scalars", (smooth((3, 5)), low, high))
    yield Sample("rank0", (smooth(()), low, high))
    yield Sample("broadcast", (smooth((5,)), smooth((3, 1), -1, 0), smooth((2, 1, 1), 1, 2)))
    yield Sample("crossed", (smooth((7,)), high, low))
    yield Sample("empty", (smooth((0, 3)), low, high))
    yield Sample("edges", (samples.FLOAT_EDGES, low, high), gradient=False)
    yield Sample("nan_bound", (smooth((4,)), np.array(np.nan), high), gradient=False)
    for dtype in samples.INTEGER_DTYPES:
        bounds = (np.array(1, dtype.numpy), np.array(5, dtype.numpy))
        yield Sample(f"edges_{dtype}", (samples.integer_edges(dtype), *bounds), gradient=False)


register(
    OpDef(
        name="clamp",
        doc="Return minimum(maximum(x, low), high): NaN in any operand gives NaN, and where "
        "low > high the result is high. At a bound the gradient goes to x.",
        operands=(Operand("x", NUMBERS), Operand("low", NUMBERS), Operand("high", NUMBERS)),
        infer=elementwise_types,
        reference=_reference(lambda x, low, high: np.minimum(np.maximum(x, low), high)),
        gradient=_clamp_gradient,
        traits=frozenset({Trait.ELEMENTWISE}),
        decomposition=lambda operands, attributes: ops.minimum(
            ops.maximum(operands[0], operands[1]), operands[2]
        ),
        samples=_clamp_samples,
    )
)


def saturate(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert floats to an integer dtype: truncate, saturate; NaN gives 0."""
    bits = dtype.bits - dtype.is_signed
    low, above = (-(2.0**bits) if dtype.is_signed else 0.0), 2.0**bits
    whole = np.trunc(x)
    inside = (whole >= low) & (whole < above)
    wide = np.uint64 if dtype.kind == "uint" else np.int64
    converted = np.where(inside, whole, 0.0).astype(wide)
    largest, smallest = wide(2**bits - 1), wide(int(low))
    result = np.where(whole >= above, largest, np.where(whole < low, smallest, converted))
    return result.astype(dtype.numpy)


def _cast(operands: list[np.ndarray], attributes: Mapping[str, Attribute]) -> np.ndarray:
    (x,), target = operands, attributes["dtype"]
    if target.is_bool:
        return x != 0
    if target.is_integer and x.dtype.kind == "f":
        return saturate(x, target)
    return x.astype(np.float64 if target.is_float else target.numpy)


def _cast_gradient(context: GradientContext) -> list[Value | None]:
    (x,), (g,) = context.operands, context.cotangents
    differentiable = x.dtype.is_float and g.dtype.is_float
    return [ops.cast(g, x.dtype) if differentiable else None]


def _cast_samples() -> Iterable[Sample]:
    from frame.core.dtypes import DTYPES, float32, float64

    floats = np.concatenate(
        [samples.FLOAT_EDGES, [127.9, -128.9, 255.5, 3e9, -3e9, 1e10, 2.0**63, -(2.0**63), 2.0**64]]
    )
    for target in DTYPES.values():
        if target.storage_only:
            continue
        attributes = {"dtype": target}
        yield Sample(f"float_to_{target}", (floats,), attributes, gradient=False)
        for source in samples.INTEGER_DTYPES:
            edges = samples.integer_edges(source)
            name = f"{source}_to_{target}"
            yield Sample(name, (edges,), attributes, gradient=False)
        yield Sample(f"bool_to_{target}", (samples.BOOLS,), attributes, gradient=False)
    yield Sample("rank0", (samples.smooth(()),), {"dtype": float64})
    yield Sample("matrix", (samples.smooth((3, 5)),), {"dtype": float64})
    yield Sample("narrower", (samples.smooth((7,)),), {"dtype": float32})
    yield Sample("empty", (samples.smooth((0, 3)),), {"dtype": float32}, gradient=False)


register(
    OpDef(
        name="cast",
        doc="Convert the elements to another dtype.\n\n"
        "Float to integer truncates and saturates, NaN gives 0. Integer to integer wraps around. "
        "Float to float rounds to nearest even; beyond the range lies infinity, or NaN where the "
        "dtype has none. To bool: whether x != 0 (NaN is true).",
        operands=(Operand("x", storage=True),),
        attributes=(AttributeSpec("dtype", "dtype", doc="the dtype of the result"),),
        infer=lambda operands, attributes: TensorType(attributes["dtype"], operands[0].shape),
        reference=_cast,
        gradient=_cast_gradient,
        traits=frozenset({Trait.ELEMENTWISE}),
        samples=_cast_samples,
    )
)
