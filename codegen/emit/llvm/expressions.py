"""Expressions of the loop IR as LLVM instructions: one row a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frame.codegen.emit.llvm.conversions import cast, fused_multiply_add, round_float
from frame.codegen.emit.llvm.helpers import call_helper
from frame.codegen.emit.llvm.memory import load
from frame.codegen.emit.llvm.pairs import pair_dot, repeated_pair
from frame.codegen.emit.llvm.small_floats import narrow, widen
from frame.codegen.emit.llvm.writer import (
    FunctionWriter,
    constant,
    llvm_type,
    mangled,
    register_type,
)
from frame.codegen.loops import ir
from frame.codegen.loops.ir import BinaryOp, CompareOp, Expr, Type, UnaryOp
from frame.core.dtypes import DType, bool_, float32, float64, uint64
from frame.core.errors import InternalError

Row = Callable[[FunctionWriter, Any, Sequence[str]], str]


def evaluate(writer: FunctionWriter, expr: Expr) -> str:
    """Emit `expr` where the writer stands, reusing what is known there, and return its operand."""
    return writer.sharing.evaluate(
        expr, lambda part, operands: EXPRESSIONS[type(part)](writer, part, operands)
    )


def _is_half(type_: Type) -> bool:
    return type_.dtype.is_float and type_.dtype.bits == 16


def _widened(writer: FunctionWriter, type_: Type, operands: Sequence[str]) -> list[str]:
    return [widen(writer, operand, type_) for operand in operands]


def _kind(type_: Type) -> str:
    return "half" if _is_half(type_) else type_.dtype.kind


# Templates: {t} LLVM type, {0} {1} operands, {m} the all-ones constant.
UNARY: Mapping[tuple[UnaryOp, str], str] = {
    (UnaryOp.NEG, "float"): "fneg {t} {0}",
    (UnaryOp.NEG, "int"): "sub {t} zeroinitializer, {0}",
    (UnaryOp.NEG, "uint"): "sub {t} zeroinitializer, {0}",
    (UnaryOp.NOT, "int"): "xor {t} {0}, {m}",
    (UnaryOp.NOT, "uint"): "xor {t} {0}, {m}",
    (UnaryOp.NOT, "bool"): "xor {t} {0}, {m}",
}

UNARY_CALLS: Mapping[tuple[UnaryOp, str], str] = {
    (UnaryOp.ABS, "float"): "llvm.fabs",
    (UnaryOp.SQRT, "float"): "llvm.sqrt",
}

ROUNDINGS = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})

HALF_BITS: Mapping[UnaryOp, str] = {
    UnaryOp.NEG: "xor {t} {x}, {sign}",
    UnaryOp.ABS: "and {t} {x}, {rest}",
}


def unary(writer: FunctionWriter, op: UnaryOp, type_: Type, x: str) -> str:
    """Emit a unary operator on an operand of `type_`."""
    kind, text = _kind(type_), llvm_type(type_)
    if kind == "half":
        return _half_unary(writer, op, type_, x)
    if kind == "float" and op in ROUNDINGS:
        return round_float(writer, op, type_, x)
    if op is UnaryOp.ABS and kind in ("int", "uint", "bool"):
        return _integer_abs(writer, type_, x)
    if (op, kind) in UNARY_CALLS:
        name = f"{UNARY_CALLS[op, kind]}.{mangled(text)}"
        return writer.call(text, name, [(text, x)])
    if (op, kind) not in UNARY:
        raise InternalError(f"expected an operator of {type_}, received {op}")
    ones = constant(type_, -1)
    return writer.value(UNARY[op, kind].format(x, t=text, m=ones))


def _integer_abs(writer: FunctionWriter, type_: Type, x: str) -> str:
    if type_.dtype.kind != "int":
        return x
    text = llvm_type(type_)
    return writer.call(text, f"llvm.abs.{mangled(text)}", [(text, x), ("i1", "false")])


def _half_unary(writer: FunctionWriter, op: UnaryOp, type_: Type, x: str) -> str:
    if op in HALF_BITS:
        signs = {"sign": _bits(type_, 0x8000), "rest": _bits(type_, 0x7FFF)}
        return writer.value(HALF_BITS[op].format(t=llvm_type(type_), x=x, **signs))
    wide = unary(writer, op, Type(float32, type_.lanes), widen(writer, x, type_))
    return narrow(writer, wide, type_)


def _bits(type_: Type, value: int) -> str:
    return str(value) if type_.lanes == 1 else f"splat (i16 {value})"


def _unary(writer: FunctionWriter, expr: ir.Unary, operands: Sequence[str]) -> str:
    return unary(writer, expr.op, expr.x.type, operands[0])


BINARY: Mapping[tuple[BinaryOp, str], str] = {
    (BinaryOp.ADD, "float"): "fadd",
    (BinaryOp.SUB, "float"): "fsub",
    (BinaryOp.MUL, "float"): "fmul",
    (BinaryOp.DIV, "float"): "fdiv",
    **{(BinaryOp.ADD, kind): "add" for kind in ("int", "uint")},
    **{(BinaryOp.SUB, kind): "sub" for kind in ("int", "uint")},
    **{(BinaryOp.MUL, kind): "mul" for kind in ("int", "uint")},
    **{(BinaryOp.SHL, kind): "shl" for kind in ("int", "uint")},
    **{(BinaryOp.AND, kind): "and" for kind in ("int", "uint", "bool")},
    **{(BinaryOp.OR, kind): "or" for kind in ("int", "uint", "bool")},
    **{(BinaryOp.XOR, kind): "xor" for kind in ("int", "uint", "bool")},
    (BinaryOp.DIV, "int"): "sdiv",
    (BinaryOp.DIV, "uint"): "udiv",
    (BinaryOp.REM, "int"): "srem",
    (BinaryOp.REM, "uint"): "urem",
    (BinaryOp.SHR, "int"): "ashr",
    (BinaryOp.SHR, "uint"): "lshr",
}

# The comparison under which `a` is chosen.
EXTREMES: Mapping[BinaryOp, CompareOp] = {
    BinaryOp.MIN: CompareOp.LT,
    BinaryOp.MAX: CompareOp.GT,
    BinaryOp.MINIMUM: CompareOp.LT,
    BinaryOp.MAXIMUM: CompareOp.GT,
}
# LLVM writes a float32 as the float64 of the same value.
ALL_BITS: Mapping[DType, str] = {float32: "0xFFFFFFFFE0000000", float64: "0xFFFFFFFFFFFFFFFF"}
NAN_WINS = frozenset({BinaryOp.MINIMUM, BinaryOp.MAXIMUM})


def binary(writer: FunctionWriter, op: BinaryOp, type_: Type, a: str, b: str) -> str:
    """Emit a binary operator on operands of `type_`."""
    if op in EXTREMES:
        return _extreme(writer, op, type_, a, b)
    if _is_half(type_):
        wide = Type(float32, type_.lanes)
        return narrow(writer, binary(writer, op, wide, *_widened(writer, type_, (a, b))), type_)
    if op is BinaryOp.REM and type_.dtype.is_float:
        return call_helper(writer, f"frame.remainder.{llvm_type(Type(type_.dtype))}", type_, (a, b))
    instruction = BINARY.get((op, type_.dtype.kind))
    if instruction is None:
        raise InternalError(f"expected an operator of {type_}, received {op}")
    return writer.value(f"{instruction} {llvm_type(type_)} {a}, {b}")


def _extreme(writer: FunctionWriter, op: BinaryOp, type_: Type, a: str, b: str) -> str:
    """Emit the smaller or larger of two operands: one instruction on most machines.

    Where a NaN wins, a NaN in `b` comes through that instruction. One in `a` sets all bits, which
    is a NaN too: machines or the comparison into the result instead of choosing by it.
    """
    chosen = Type(bool_, type_.lanes), compare(writer, EXTREMES[op], type_, a, b)
    result = select(writer, type_, chosen, a, b)
    if op not in NAN_WINS or not type_.dtype.is_float:
        return result
    is_nan = Type(bool_, type_.lanes), compare(writer, CompareOp.NE, type_, a, a)
    return select(writer, type_, is_nan, _all_bits(type_, a), result)


def _all_bits(type_: Type, otherwise: str) -> str:
    """Return the constant with all bits set; `otherwise` for 16-bit floats, held as integers."""
    if type_.dtype not in ALL_BITS:
        return otherwise
    text = ALL_BITS[type_.dtype]
    return text if type_.lanes == 1 else f"splat ({register_type(type_.dtype)} {text})"


def _binary(writer: FunctionWriter, expr: ir.Binary, operands: Sequence[str]) -> str:
    return binary(writer, expr.op, expr.type, operands[0], operands[1])


COMPARE: Mapping[CompareOp, tuple[str, str, str]] = {  # float, signed, unsigned
    CompareOp.EQ: ("fcmp oeq", "icmp eq", "icmp eq"),
    CompareOp.NE: ("fcmp une", "icmp ne", "icmp ne"),
    CompareOp.LT: ("fcmp olt", "icmp slt", "icmp ult"),
    CompareOp.LE: ("fcmp ole", "icmp sle", "icmp ule"),
    CompareOp.GT: ("fcmp ogt", "icmp sgt", "icmp ugt"),
    CompareOp.GE: ("fcmp oge", "icmp sge", "icmp uge"),
}
_COMPARE_COLUMN = {"float": 0, "int": 1, "uint": 2, "bool": 2}


def compare(writer: FunctionWriter, op: CompareOp, type_: Type, a: str, b: str) -> str:
    """Emit a comparison of operands of `type_`; the result is i1 in every lane."""
    if _is_half(type_):
        wide = Type(float32, type_.lanes)
        return compare(writer, op, wide, *_widened(writer, type_, (a, b)))
    instruction = COMPARE[op][_COMPARE_COLUMN[type_.dtype.kind]]
    return writer.value(f"{instruction} {llvm_type(type_)} {a}, {b}")


def _compare(writer: FunctionWriter, expr: ir.Compare, operands: Sequence[str]) -> str:
    return compare(writer, expr.op, expr.a.type, operands[0], operands[1])


def select(writer: FunctionWriter, type_: Type, condition: tuple[Type, str], a: str, b: str) -> str:
    """Emit a choice between two operands of `type_`."""
    text, condition_text = llvm_type(type_), llvm_type(condition[0])
    return writer.value(f"select {condition_text} {condition[1]}, {text} {a}, {text} {b}")


def _select(writer: FunctionWriter, expr: ir.Select, operands: Sequence[str]) -> str:
    condition = (expr.condition.type, operands[0])
    return select(writer, expr.type, condition, operands[1], operands[2])


def _constant(writer: FunctionWriter, expr: ir.Const, operands: Sequence[str]) -> str:
    return constant(expr.type, expr.value)


def _variable(writer: FunctionWriter, expr: ir.Var, operands: Sequence[str]) -> str:
    operand = writer.variables.get(expr)
    if operand is None:
        raise InternalError(f"expected a variable bound before its use, received {expr.name}")
    return operand


def _fma(writer: FunctionWriter, expr: ir.Fma, operands: Sequence[str]) -> str:
    return fused_multiply_add(writer, expr.type, operands)


def _pair_dot(writer: FunctionWriter, expr: ir.PairDot, operands: Sequence[str]) -> str:
    return pair_dot(writer, expr.type.lanes, operands)


def _cast(writer: FunctionWriter, expr: ir.Cast, operands: Sequence[str]) -> str:
    return cast(writer, operands[0], expr.x.type, expr.dtype)


def _bitcast(writer: FunctionWriter, expr: ir.Bitcast, operands: Sequence[str]) -> str:
    source, result = llvm_type(expr.x.type), llvm_type(expr.type)
    if source == result:
        return operands[0]
    return writer.value(f"bitcast {source} {operands[0]} to {result}")


def _multiply_high(writer: FunctionWriter, expr: ir.MulHigh, operands: Sequence[str]) -> str:
    narrow_type, wide_type = llvm_type(expr.type), Type(uint64, expr.type.lanes)
    wide = llvm_type(wide_type)
    a, b = (writer.value(f"zext {narrow_type} {operand} to {wide}") for operand in operands)
    product = writer.value(f"mul {wide} {a}, {b}")
    high = writer.value(f"lshr {wide} {product}, {constant(wide_type, 32)}")
    return writer.value(f"trunc {wide} {high} to {narrow_type}")


def broadcast(writer: FunctionWriter, type_: Type, x: str) -> str:
    """Emit a scalar operand in every lane of a vector of `type_`."""
    if type_.lanes == 1:
        return x
    text, element = llvm_type(type_), llvm_type(Type(type_.dtype))
    if not x.startswith("%"):
        return f"splat ({element} {x})"
    single = writer.value(f"insertelement {text} poison, {element} {x}, i32 0")
    zeros = f"<{type_.lanes} x i32> zeroinitializer"
    return writer.value(f"shufflevector {text} {single}, {text} poison, {zeros}")


def _broadcast(writer: FunctionWriter, expr: ir.Broadcast, operands: Sequence[str]) -> str:
    return broadcast(writer, expr.type, operands[0])


def _ramp(writer: FunctionWriter, expr: ir.Ramp, operands: Sequence[str]) -> str:
    base = broadcast(writer, expr.type, operands[0])
    if expr.lanes == 1:
        return base
    element = llvm_type(Type(expr.type.dtype))
    steps = ", ".join(f"{element} {lane}" for lane in range(expr.lanes))
    return writer.value(f"add {llvm_type(expr.type)} {base}, <{steps}>")


def _as_vector(writer: FunctionWriter, type_: Type, operand: str) -> tuple[str, str]:
    """Return the vector type and operand of a value; a scalar becomes a vector of one lane."""
    if type_.lanes > 1:
        return llvm_type(type_), operand
    element = llvm_type(type_)
    text = f"<1 x {element}>"
    return text, writer.value(f"insertelement {text} poison, {element} {operand}, i32 0")


def shuffle(writer: FunctionWriter, type_: Type, a: str, b: str, pattern: Sequence[int]) -> str:
    """Emit lanes chosen from two operands of `type_`; one lane gives a scalar."""
    text, left = _as_vector(writer, type_, a)
    _, right = _as_vector(writer, type_, b)
    lanes = ", ".join(f"i32 {position}" for position in pattern)
    mask = f"<{len(pattern)} x i32> <{lanes}>"
    result = writer.value(f"shufflevector {text} {left}, {text} {right}, {mask}")
    if len(pattern) > 1:
        return result
    return writer.value(f"extractelement <1 x {llvm_type(Type(type_.dtype))}> {result}, i32 0")


def _shuffle(writer: FunctionWriter, expr: ir.Shuffle, operands: Sequence[str]) -> str:
    pair = repeated_pair(writer, expr, operands[0])
    if pair is not None:
        return pair
    return shuffle(writer, expr.a.type, operands[0], operands[1], expr.pattern)


def _extract(writer: FunctionWriter, expr: ir.Extract, operands: Sequence[str]) -> str:
    if expr.x.type.lanes == 1:
        return operands[0]
    return writer.value(f"extractelement {llvm_type(expr.x.type)} {operands[0]}, i32 {expr.lane}")


def _reduce(writer: FunctionWriter, expr: ir.Reduce, operands: Sequence[str]) -> str:
    dtype, lanes, rest = expr.type.dtype, expr.x.type.lanes, operands[0]
    while lanes > 1:
        half = lanes // 2
        whole = Type(dtype, lanes)
        low = shuffle(writer, whole, rest, rest, range(half))
        high = shuffle(writer, whole, rest, rest, range(half, lanes))
        rest, lanes = binary(writer, expr.op, Type(dtype, half), low, high), half
    return rest


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
