"""One row an elementwise op: the scalar expression that computes it.

Operands arrive in the compute dtype of their element type: float16 and bfloat16 are computed in
float32, everything else in itself. The result is in the compute dtype of the op's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from frame.codegen import foreign, mathlib
from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, Type
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, bfloat16, float16, float32
from frame.core.errors import AlreadyExistsError, NotFoundError, UnimplementedError
from frame.ir.graph import Attribute, Node, TensorType

Rule = Callable[..., Expr]


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may ask beyond its operands."""

    attributes: Mapping[str, Attribute]
    operands: tuple[TensorType, ...]
    result: TensorType

    @property
    def dtype(self) -> DType:
        """The dtype that the result is computed in."""
        return compute_dtype(self.result.dtype)


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype that elements of `dtype` are computed in."""
    return float32 if dtype in (float16, bfloat16) else dtype


def _floats(dtype: DType) -> bool:
    return dtype.is_float


def _is_nan(x: Expr) -> Expr:
    return b.ne(x, x)


def _logical(x: Expr) -> Expr:
    return x if x.type.dtype.is_bool else b.ne(x, 0)


def _sign(ctx: RuleContext, x: Expr) -> Expr:
    one, zero = b.like(1, x), b.like(0, x)
    if not x.type.dtype.is_signed:
        return b.select(b.gt(x, zero), one, zero)
    neither = b.add(x, zero) if _floats(x.type.dtype) else zero  # 0.0 for -0.0, and NaN stays
    return b.select(b.gt(x, zero), one, b.select(b.lt(x, zero), b.like(-1, x), neither))


def _absolute(ctx: RuleContext, x: Expr) -> Expr:
    return b.absolute(x) if x.type.dtype.is_signed else x


def _floor_div(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
    if _floats(x.type.dtype):
        return _float_floor_div(x, y)
    quotient, remainder = _guarded_division(x, y)
    if not x.type.dtype.is_signed:
        return b.select(b.eq(y, 0), b.like(0, x), quotient)
    adjust = b.and_(b.ne(remainder, 0), b.lt(b.xor(remainder, y), 0))
    floored = b.select(adjust, b.sub(quotient, 1), quotient)
    floored = b.select(b.eq(y, -1), b.neg(x), floored)
    return b.select(b.eq(y, 0), b.like(0, x), floored)


def _guarded_division(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """The truncated quotient and remainder, with divisors 0 and -1 replaced by 1."""
    unsafe = b.eq(y, 0)
    if x.type.dtype.is_signed:
        unsafe = b.or_(unsafe, b.eq(y, -1))
    divisor = b.select(unsafe, b.like(1, y), y)
    return b.div(x, divisor), b.rem(x, divisor)


def _float_mod(x: Expr, y: Expr) -> Expr:
    """Numpy's mod: the sign of the divisor, through an exact truncated remainder."""
    remainder = b.rem(x, y)
    adjust = _signs_differ(remainder, y)
    signed_zero = b.mul(b.like(0.0, y), b.select(b.lt(y, 0.0), b.like(-1.0, y), b.like(1.0, y)))
    fixed = b.select(adjust, b.add(remainder, y), remainder)
    return b.select(b.eq(remainder, 0.0), signed_zero, fixed)


def _signs_differ(remainder: Expr, y: Expr) -> Expr:
    return b.and_(b.ne(remainder, 0.0), b.ne(b.lt(y, 0.0), b.lt(remainder, 0.0)))


def _float_floor_div(x: Expr, y: Expr) -> Expr:
    """Return numpy's floor_divide: the exact quotient without the remainder, one less
    where the remainder has the other sign, rounded to the nearest integer."""
    remainder = b.rem(x, y)
    quotient = b.div(b.sub(x, remainder), y)
    adjust = b.and_(b.ne(remainder, 0.0), b.ne(b.lt(y, 0.0), b.lt(remainder, 0.0)))
    quotient = b.select(adjust, b.sub(quotient, 1.0), quotient)
    floored = b.floor(quotient)
    nearest = b.select(b.gt(b.sub(quotient, floored), 0.5), b.add(floored, 1.0), floored)
    ratio = b.div(x, y)
    signed_zero = b.select(b.lt(ratio, 0.0), b.like(-0.0, x), b.like(0.0, x))
    nearest = b.select(b.eq(quotient, 0.0), signed_zero, nearest)
    return b.select(b.eq(y, 0.0), ratio, nearest)


def _mod(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
    if _floats(x.type.dtype):
        return _float_mod(x, y)
    _, remainder = _guarded_division(x, y)
    if x.type.dtype.is_signed:
        adjust = b.and_(b.ne(remainder, 0), b.lt(b.xor(remainder, y), 0))
        remainder = b.select(adjust, b.add(remainder, y), remainder)
        remainder = b.select(b.eq(y, -1), b.like(0, x), remainder)
    return b.select(b.eq(y, 0), b.like(0, x), remainder)


def _shift(left: bool) -> Rule:
    def rule(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
        bits = x.type.dtype.bits
        outside = b.ge(y, bits)
        if y.type.dtype.is_signed:
            outside = b.or_(outside, b.lt(y, 0))
        amount = b.select(outside, b.like(0, y), y)
        if left:
            return b.select(outside, b.like(0, x), b.shl(x, amount))
        filled = b.shr(x, b.like(bits - 1, x)) if x.type.dtype.is_signed else b.like(0, x)
        return b.select(outside, filled, b.shr(x, amount))

    return rule


def _integer_pow(x: Expr, y: Expr) -> Expr:
    """Square and multiply over the bits of the exponent; a negative one gives the truncated value:
    1 for the base 1, 1 or -1 for the base -1, else 0."""
    base, exponent = x, y
    result: Expr = b.like(1, x)
    for _ in range(x.type.dtype.bits):
        odd = b.ne(b.and_(exponent, 1), 0)
        result = b.select(odd, b.mul(result, base), result)
        base = b.mul(base, base)
        exponent = b.shr(exponent, b.like(1, exponent))
    if not x.type.dtype.is_signed:
        return result
    alternating = b.select(b.eq(b.and_(y, 1), 0), b.like(1, x), b.like(-1, x))
    truncated = b.select(b.eq(x, -1), alternating, b.like(0, x))
    truncated = b.select(b.eq(x, 1), b.like(1, x), truncated)
    return b.select(b.lt(y, 0), truncated, result)


def _pow(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
    if not _floats(x.type.dtype):
        return _integer_pow(x, y)
    exponent = b.constant_value(y)
    if exponent == 2.0:
        return b.mul(x, x)
    if exponent == 1.0:
        return x
    return mathlib.pow(x, y)


def _cast(ctx: RuleContext, x: Expr) -> Expr:
    return b.cast(x, ctx.dtype)


def _clamp(ctx: RuleContext, x: Expr, low: Expr, high: Expr) -> Expr:
    return b.minimum(b.maximum(x, low), high)


def _relu(ctx: RuleContext, x: Expr) -> Expr:
    return b.select(b.le(x, 0), b.like(0, x), x)  # 0.0 for -0.0 too


def _select(ctx: RuleContext, condition: Expr, x: Expr, y: Expr) -> Expr:
    return b.select(condition, x, y)


def _math(name: str) -> Rule:
    def rule(ctx: RuleContext, *operands: Expr) -> Expr:
        return getattr(mathlib, name)(*operands)

    return rule


def _plain(function: Callable[..., Expr]) -> Rule:
    def rule(ctx: RuleContext, *operands: Expr) -> Expr:
        return function(*operands)

    return rule


def _number(value: float) -> Callable[[Expr], Expr]:
    return lambda x: b.like(value, x)


def _infinite(x: Expr) -> Expr:
    return b.eq(b.absolute(x), b.like(np.inf, x))


def _finite(x: Expr) -> Expr:
    return b.lt(b.absolute(x), b.like(np.inf, x))


def _false_for_integers(function: Callable[[Expr], Expr], otherwise: bool) -> Rule:
    def rule(ctx: RuleContext, x: Expr) -> Expr:
        if _floats(x.type.dtype):
            return function(x)
        return b.const(otherwise, Type(ctx.dtype, x.type.lanes))

    return rule


def _rounding(function: Callable[[Expr], Expr]) -> Rule:
    return lambda ctx, x: function(x) if _floats(x.type.dtype) else x


def _multiply(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
    return b.and_(x, y) if x.type.dtype.is_bool else b.mul(x, y)


def _add(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
    return b.or_(x, y) if x.type.dtype.is_bool else b.add(x, y)


def _extreme(function: Callable[..., Expr], logical: Callable[..., Expr]) -> Rule:
    return lambda ctx, x, y: logical(x, y) if x.type.dtype.is_bool else function(x, y)


def _compare(function: Callable[..., Expr]) -> Rule:
    def rule(ctx: RuleContext, x: Expr, y: Expr) -> Expr:
        if x.type.dtype.is_bool:
            from frame.core.dtypes import uint8

            x, y = b.cast(x, uint8), b.cast(y, uint8)
        return function(x, y)

    return rule


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _plain(b.sub),
    "mul": _multiply,
    "div": _plain(b.div),
    "floor_div": _floor_div,
    "mod": _mod,
    "pow": _pow,
    "maximum": _extreme(b.maximum, b.or_),
    "minimum": _extreme(b.minimum, b.and_),
    "neg": _plain(b.neg),
    "abs": _absolute,
    "sign": _sign,
    "square": lambda ctx, x: _multiply(ctx, x, x),
    "reciprocal": lambda ctx, x: b.div(b.like(1.0, x), x),
    "sqrt": _plain(b.sqrt),
    "floor": _rounding(b.floor),
    "ceil": _rounding(b.ceil),
    "round": _rounding(b.round_even),
    "trunc": _rounding(b.trunc),
    "relu": _relu,
    "isnan": _false_for_integers(_is_nan, False),
    "isinf": _false_for_integers(_infinite, False),
    "isfinite": _false_for_integers(_finite, True),
    "logical_and": lambda ctx, x, y: b.and_(_logical(x), _logical(y)),
    "logical_or": lambda ctx, x, y: b.or_(_logical(x), _logical(y)),
    "logical_xor": lambda ctx, x, y: b.xor(_logical(x), _logical(y)),
    "logical_not": lambda ctx, x: b.not_(_logical(x)),
    "bitwise_and": _plain(b.and_),
    "bitwise_or": _plain(b.or_),
    "bitwise_xor": _plain(b.xor),
    "bitwise_not": _plain(b.not_),
    "shift_left": _shift(left=True),
    "shift_right": _shift(left=False),
    "equal": _compare(b.eq),
    "not_equal": _compare(b.ne),
    "less": _compare(b.lt),
    "less_equal": _compare(b.le),
    "greater": _compare(b.gt),
    "greater_equal": _compare(b.ge),
    "where": _select,
    "clamp": _clamp,
    "cast": _cast,
    "stop_gradient": lambda ctx, x: x,
    **{
        name: _math(name)
        for name in [
            "rsqrt",
            "exp",
            "expm1",
            "log",
            "log1p",
            "log2",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "erf",
            "sigmoid",
            "atan2",
        ]
    },
}


def scalar_rule(node: Node) -> Rule:
    """Return the rule of a node's op; raise UnimplementedError, carrying the node, without one."""
    rule = RULES.get(node.op)
    if rule is None:
        error = UnimplementedError(
            f"op {node.op} has no scalar rule: register one, give the op a decomposition, or "
            "register a schedule for it"
        )
        error.nodes = (node,)
        raise error
    return rule


def apply_rule(node: Node, operands: list[Expr]) -> Expr:
    """Return the expression of an elementwise node over the expressions of its operands."""
    types = tuple(operand.type for operand in node.operands)
    context = RuleContext(node.attributes, types, node.results[0].type)
    return scalar_rule(node)(context, *operands)


def register_scalar_rule(op: str, rule: Rule) -> None:
    """Let `rule(context, *operands) -> Expr` compute the elementwise op of that name.

    Raises:
        AlreadyExistsError: the op has a rule.
    """
    if op in RULES:
        raise AlreadyExistsError(
            f"the op {op!r} has a scalar rule already: give your op a name of its own, or remove "
            "the rule that you registered before with unregister_scalar_rule"
        )
    RULES[op] = foreign.RULES[op] = rule


def unregister_scalar_rule(op: str) -> None:
    """Remove a rule that a user registered; raise NotFoundError if there is none."""
    if op not in foreign.RULES:
        raise NotFoundError(f"there is no registered scalar rule for the op {op!r}")
    del RULES[op], foreign.RULES[op]
