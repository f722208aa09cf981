"""Expressions of the loop IR as C: one row a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frame.codegen.emit.c99.helpers import c_type
from frame.codegen.emit.c99.memory import load
from frame.codegen.emit.c99.writer import CWriter, literal
from frame.codegen.loops import ir
from frame.codegen.loops.ir import BinaryOp, CompareOp, Expr, UnaryOp
from frame.core.dtypes import DType, float32, float64
from frame.core.errors import InternalError

Row = Callable[[CWriter, Any, Sequence[str]], str]


def evaluate(writer: CWriter, expr: Expr) -> str:
    """Emit `expr` where the writer stands, reusing what is known there, and return its operand."""
    return writer.sharing.evaluate(
        expr, lambda part, operands: EXPRESSIONS[type(part)](writer, part, operands)
    )


def is_half(dtype: DType) -> bool:
    """Tell whether a dtype is a float of 16 or 8 bits, which are integers in C."""
    return dtype.is_float and dtype.bits <= 16


def _wide(writer: CWriter, dtype: DType, text: str) -> str:
    return f"{writer.use(f'frame_widen_{dtype}')}({text})" if is_half(dtype) else text


def _narrow(writer: CWriter, dtype: DType, text: str) -> str:
    return f"{writer.use(f'frame_narrow_{dtype}')}({text})" if is_half(dtype) else text


# Templates by kind: {0} {1} operands, {f} the suffix of a float function, {t} the type, {u} its
# unsigned counterpart of at least 32 bits (signed overflow is undefined in C, unsigned wraps).
UNARY: Mapping[UnaryOp, Mapping[str, str]] = {
    UnaryOp.NEG: {"float": "-{0}", "integer": "({t})(0u - ({u}){0})"},
    UnaryOp.ABS: {
        "float": "fabs{f}({0})",
        "int": "({t})({0} < 0 ? 0u - ({u}){0} : ({u}){0})",
        "uint": "{0}",
    },
    UnaryOp.SQRT: {"float": "sqrt{f}({0})"},
    UnaryOp.FLOOR: {"float": "floor{f}({0})"},
    UnaryOp.CEIL: {"float": "ceil{f}({0})"},
    UnaryOp.ROUND: {"float": "rint{f}({0})"},
    UnaryOp.TRUNC: {"float": "trunc{f}({0})"},
    UnaryOp.NOT: {"integer": "({t})~({u}){0}", "bool": "(uint8_t)!{0}"},
}

# Half values keep their bits where no arithmetic is needed: a NaN stays the same NaN.
HALF_UNARY: Mapping[UnaryOp, str] = {
    UnaryOp.NEG: "(uint16_t)({0} ^ 0x8000u)",
    UnaryOp.ABS: "(uint16_t)({0} & 0x7fffu)",
}

BINARY: Mapping[BinaryOp, Mapping[str, str]] = {
    BinaryOp.ADD: {"float": "{0} + {1}", "integer": "({t})(({u}){0} + ({u}){1})"},
    BinaryOp.SUB: {"float": "{0} - {1}", "integer": "({t})(({u}){0} - ({u}){1})"},
    BinaryOp.MUL: {"float": "{0} * {1}", "integer": "({t})(({u}){0} * ({u}){1})"},
    BinaryOp.DIV: {"float": "{0} / {1}", "integer": "({t})({0} / {1})"},
    BinaryOp.REM: {"float": "fmod{f}({0}, {1})", "integer": "({t})({0} % {1})"},
    BinaryOp.MIN: {"any": "({0} < {1} ? {0} : {1})"},
    BinaryOp.MAX: {"any": "({0} > {1} ? {0} : {1})"},
    BinaryOp.MINIMUM: {
        "float": "({0} < {1} || {0} != {0} ? {0} : {1})",
        "any": "({0} < {1} ? {0} : {1})",
    },
    BinaryOp.MAXIMUM: {
        "float": "({0} > {1} || {0} != {0} ? {0} : {1})",
        "any": "({0} > {1} ? {0} : {1})",
    },
    BinaryOp.AND: {"integer": "({t})({0} & {1})", "bool": "(uint8_t)({0} & {1})"},
    BinaryOp.OR: {"integer": "({t})({0} | {1})", "bool": "(uint8_t)({0} | {1})"},
    BinaryOp.XOR: {"integer": "({t})({0} ^ {1})", "bool": "(uint8_t)({0} ^ {1})"},
    BinaryOp.SHL: {"integer": "({t})(({u}){0} << {1})"},
    BinaryOp.SHR: {"uint": "({t})({0} >> {1})", "int": "({t})({s})"},
}
# The arithmetic shift of a negative number is implementation-defined in C; this form is not.
_ARITHMETIC_SHIFT = "{0} < 0 ? ~(~{0} >> {1}) : {0} >> {1}"

COMPARE: Mapping[CompareOp, str] = {
    CompareOp.EQ: "==",
    CompareOp.NE: "!=",
    CompareOp.LT: "<",
    CompareOp.LE: "<=",
    CompareOp.GT: ">",
    CompareOp.GE: ">=",
}


def _template(table: Mapping[Any, Mapping[str, str]], op: Any, dtype: DType) -> str:
    """Return the template of an operator on a dtype, with everything but the operands filled in."""
    row = table[op]
    kinds = (dtype.kind, "integer" if dtype.is_integer else "", "any")
    text = next((row[kind] for kind in kinds if kind in row), None)
    if text is None:
        raise InternalError(f"expected an operator of {dtype}, received {op}")
    wide = f"uint{max(dtype.bits, 32)}_t"
    suffix = "" if dtype == float64 else "f"
    for key, value in (("{t}", c_type(dtype)), ("{u}", wide), ("{f}", suffix)):
        text = text.replace(key, value)
    return text.replace("{s}", _ARITHMETIC_SHIFT)


def _unary(writer: CWriter, expr: ir.Unary, operands: Sequence[str]) -> str:
    dtype = expr.type.dtype
    if is_half(dtype):
        if expr.op in HALF_UNARY:
            return writer.lanewise(expr.type, HALF_UNARY[expr.op], operands[0])
        text = _template(UNARY, expr.op, float32).replace("{0}", _wide(writer, dtype, "{0}"))
        return writer.lanewise(expr.type, _narrow(writer, dtype, text), operands[0])
    return writer.lanewise(expr.type, _template(UNARY, expr.op, dtype), operands[0])


EXTREMES = frozenset({BinaryOp.MIN, BinaryOp.MAX, BinaryOp.MINIMUM, BinaryOp.MAXIMUM})


def binary_text(writer: CWriter, op: BinaryOp, dtype: DType) -> str:
    """Return the template of a binary operator."""
    if not is_half(dtype):
        return _template(BINARY, op, dtype)
    text = _template(BINARY, op, float32)
    if op in EXTREMES:  # compare values, choose bits
        test, _, choice = text.rpartition("?")
        for place in ("{0}", "{1}"):
            test = test.replace(place, _wide(writer, dtype, place))
        return f"{test}?{choice}"
    for place in ("{0}", "{1}"):
        text = text.replace(place, _wide(writer, dtype, place))
    return _narrow(writer, dtype, text)


def _binary(writer: CWriter, expr: ir.Binary, operands: Sequence[str]) -> str:
    return writer.lanewise(expr.type, binary_text(writer, expr.op, expr.type.dtype), *operands)


def _compare(writer: CWriter, expr: ir.Compare, operands: Sequence[str]) -> str:
    dtype = expr.a.type.dtype
    left, right = _wide(writer, dtype, "{0}"), _wide(writer, dtype, "{1}")
    return writer.lanewise(expr.type, f"(uint8_t)({left} {COMPARE[expr.op]} {right})", *operands)


def _select(writer: CWriter, expr: ir.Select, operands: Sequence[str]) -> str:
    return writer.lanewise(expr.type, "{0} ? {1} : {2}", *operands)


def _constant(writer: CWriter, expr: ir.Const, operands: Sequence[str]) -> str:
    return literal(expr.type.dtype, expr.value)


def _variable(writer: CWriter, expr: ir.Var, operands: Sequence[str]) -> str:
    operand = writer.variables.get(expr)
    if operand is None:
        raise InternalError(f"expected a variable bound before its use, received {expr.name}")
    return operand


def _fma(writer: CWriter, expr: ir.Fma, operands: Sequence[str]) -> str:
    suffix = "" if expr.type.dtype == float64 else "f"
    return writer.lanewise(expr.type, f"fma{suffix}({{0}}, {{1}}, {{2}})", *operands)


def _pair_dot(writer: CWriter, expr: ir.PairDot, operands: Sequence[str]) -> str:
    a, b, c = operands
    if expr.type.lanes > 1:
        c = writer.at(c, "l")
    places = ("0", "1") if expr.type.lanes == 1 else ("2 * l", "2 * l + 1")
    wide = writer.use("frame_widen_bfloat16")
    low, high = (
        f"{wide}({writer.at(a, place)}), {wide}({writer.at(b, place)})" for place in places
    )
    text = f"fmaf({low}, fmaf({high}, {c}))"
    if expr.type.lanes == 1:
        return writer.scalar(expr.type.dtype, text)
    return writer.array(expr.type, text)


def _cast(writer: CWriter, expr: ir.Cast, operands: Sequence[str]) -> str:
    source, target = expr.x.type.dtype, expr.dtype
    if source == target:
        return operands[0]
    return writer.lanewise(expr.type, cast_text(writer, source, target), operands[0])


def cast_text(writer: CWriter, source: DType, target: DType) -> str:
    """Return the template of a conversion."""
    value = _wide(writer, source, _FROM_FOUR[source.kind] if source.bits == 4 else "{0}")
    if target.is_bool:
        return f"(uint8_t)({value} != 0)"
    if is_half(target):
        return _narrow(writer, target, _to_single(writer, source, value))
    if source.is_float and target.is_integer:
        value = f"{writer.use(f'frame_saturate_{target}')}({value})"
    if target.bits == 4:
        return f"(uint8_t)((uint32_t){value} & 15u)"
    return f"({c_type(target)}){value}"


# A four-bit integer stands in the low half of its byte; the high half is zero.
_FROM_FOUR = {"int": "(int8_t)((int)(({0} & 15) ^ 8) - 8)", "uint": "({0} & 15)"}


def _to_single(writer: CWriter, source: DType, value: str) -> str:
    """Bring a value to float so that narrowing it rounds as if once."""
    if source.is_integer and source.bits == 64:
        return f"{writer.use('frame_odd')}({writer.use(f'frame_odd_{source.kind}')}({value}))"
    if source.bits >= 32 and source != float32:
        return f"{writer.use('frame_odd')}({value})"
    return f"(float){value}"


def _bitcast(writer: CWriter, expr: ir.Bitcast, operands: Sequence[str]) -> str:
    source, target = c_type(expr.x.type.dtype), c_type(expr.dtype)
    if source == target:
        return operands[0]
    name = writer.use(f"frame_bits_{_plain(expr.x.type.dtype)}_{_plain(expr.dtype)}")
    return writer.lanewise(expr.type, f"{name}({{0}})", operands[0])


def _plain(dtype: DType) -> str:
    """The name of a dtype whose C type is the same: narrow floats are held as integers."""
    return f"uint{dtype.bits}" if is_half(dtype) else dtype.name


def _multiply_high(writer: CWriter, expr: ir.MulHigh, operands: Sequence[str]) -> str:
    return writer.lanewise(expr.type, "(uint32_t)(((uint64_t){0} * {1}) >> 32)", *operands)


def _broadcast(writer: CWriter, expr: ir.Broadcast, operands: Sequence[str]) -> str:
    return operands[0]


def _ramp(writer: CWriter, expr: ir.Ramp, operands: Sequence[str]) -> str:
    if expr.lanes == 1:
        return operands[0]
    return writer.array(expr.type, f"({c_type(expr.type.dtype)})({operands[0]} + l)")


def _shuffle(writer: CWriter, expr: ir.Shuffle, operands: Sequence[str]) -> str:
    lanes = expr.a.type.lanes
    chosen = [writer.at(operands[place >= lanes], place % lanes) for place in expr.pattern]
    if len(chosen) == 1:
        return writer.scalar(expr.type.dtype, chosen[0])
    name = writer.empty(expr.type)
    for lane, text in enumerate(chosen):
        writer.line(f"{name}[{lane}] = {text};")
    return name


def _extract(writer: CWriter, expr: ir.Extract, operands: Sequence[str]) -> str:
    return writer.scalar(expr.type.dtype, writer.at(operands[0], expr.lane))


def _reduce(writer: CWriter, expr: ir.Reduce, operands: Sequence[str]) -> str:
    type_, lanes = expr.x.type, expr.x.type.lanes
    if lanes == 1:
        return operands[0]
    rest = writer.array(type_, writer.at(operands[0], "l"))
    text = binary_text(writer, expr.op, type_.dtype).format(f"{rest}[l]", f"{rest}[l + half]")
    loop = f"for (int half = {lanes // 2}; half >= 1; half /= 2)"
    writer.line(f"{loop} for (int l = 0; l < half; ++l) {rest}[l] = {text};")
    return writer.scalar(type_.dtype, f"{rest}[0]")


EXPRESSIONS: Mapping[type[Expr], Row] = {
    ir.Const: _constant,
    ir.Var: _variable,
    ir.Unary: _unary,
    ir.Binary: _binary,
    ir.Compare: _compare,
    ir.Select: _select,
    ir.Fma: _fma,
    ir.PairDot: _pair_dot,
    ir.Cast: _cast,
    ir.Bitcast: _bitcast,
    ir.MulHigh: _multiply_high,
    ir.Broadcast: _broadcast,
    ir.Ramp: _ramp,
    ir.Shuffle: _shuffle,
    ir.Extract: _extract,
    ir.Reduce: _reduce,
    ir.Load: load,
}
"""One row an expression class: (writer, expression, operands) -> operand."""


def index(value: int) -> str:
    """Return the literal of an index."""
    return literal(ir.INDEX.dtype, value)
