"""Casts, rounding to integers and fused multiply-add, without library calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frame.codegen.emit.llvm.helpers import call_helper
from frame.codegen.emit.llvm.small_floats import Lanes, float64_to_float32_odd, narrow, widen
from frame.codegen.emit.llvm.writer import FunctionWriter, constant, llvm_type, mangled, vector
from frame.codegen.loops.ir import Type, UnaryOp
from frame.core.dtypes import DType, bool_, float32, float64


def cast(writer: FunctionWriter, x: str, source: Type, target: DType) -> str:
    """Emit a conversion of an operand of `source`, with the semantics of `ir.Cast`."""
    result = Type(target, source.lanes)
    if source.dtype == target:
        return x
    if source.dtype.bits == 4:
        x = _from_four_bits(writer, x, source)
    return CASTS[_class(source.dtype), _class(target)](writer, x, source, result)


def _class(dtype: DType) -> str:
    if dtype.is_float:
        return "half" if dtype.bits <= 16 else "float"
    return "bool" if dtype.is_bool else "integer"


def _instruction(writer: FunctionWriter, name: str, x: str, source: Type, target: Type) -> str:
    return writer.value(f"{name} {llvm_type(source)} {x} to {llvm_type(target)}")


def _half_to(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    return cast(writer, widen(writer, x, source), Type(float32, source.lanes), target.dtype)


def _to_half(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    if source.dtype.bits <= 16:
        return narrow(writer, cast(writer, x, source, float32), target)
    if source.dtype.bits == 64:
        x = _rounded_to_odd_at_bit_11(writer, x, source)
    wide = cast(writer, x, source, float64)
    return _float_to_half(writer, wide, Type(float64, source.lanes), target)


def _rounded_to_odd_at_bit_11(writer: FunctionWriter, x: str, type_: Type) -> str:
    """Make an integer of 2**53 or more exact in float64, so that only the last rounding counts."""
    lanes = Lanes(writer, type_.lanes)
    low = lanes.integer("and", x, 0x7FF, type_)
    lost = lanes.choose(lanes.integer("icmp ne", low, 0, type_), constant(type_, 0x800), 0, type_)
    odd = lanes.integer("or", lanes.integer("and", x, ~0x7FF, type_), lost, type_)
    high = lanes.integer("ashr" if type_.dtype.kind == "int" else "lshr", x, 53, type_)
    fits = lanes.integer("icmp ult", lanes.integer("add", high, 1, type_), 2, type_)
    return lanes.choose(fits, x, odd, type_)


def _float_to_half(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    if source.dtype == float64:
        x = float64_to_float32_odd(writer, x, source.lanes)
    return narrow(writer, x, target)


def _float_to_float(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "fpext" if source.dtype.bits < target.dtype.bits else "fptrunc"
    return _instruction(writer, name, x, source, target)


def _float_to_integer(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "llvm.fptosi.sat" if target.dtype.is_signed else "llvm.fptoui.sat"
    exact, wide = vector(f"i{target.dtype.bits}", source.lanes), llvm_type(source)
    result = writer.call(exact, f"{name}.{mangled(exact)}.{mangled(wide)}", [(wide, x)])
    if target.dtype.bits >= 8:
        return result
    return writer.value(f"zext {exact} {result} to {llvm_type(target)}")


def _float_to_bool(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    return writer.value(f"fcmp une {llvm_type(source)} {x}, zeroinitializer")


def _integer_to_float(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "sitofp" if source.dtype.kind == "int" else "uitofp"
    return _instruction(writer, name, x, source, target)


def _integer_to_integer(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    if source.dtype.itemsize > target.dtype.itemsize:
        x = _instruction(writer, "trunc", x, source, target)
    elif source.dtype.itemsize < target.dtype.itemsize:
        name = "sext" if source.dtype.kind == "int" else "zext"
        x = _instruction(writer, name, x, source, target)
    if target.dtype.bits == 4:
        return _low_four_bits(writer, x, target)
    return x


def _low_four_bits(writer: FunctionWriter, x: str, type_: Type) -> str:
    """A four-bit integer stands in the low half of its byte; the high half is zero."""
    return writer.value(f"and {llvm_type(type_)} {x}, {_byte(type_, 15)}")


def _from_four_bits(writer: FunctionWriter, x: str, type_: Type) -> str:
    if type_.dtype.kind == "uint":
        return _low_four_bits(writer, x, type_)
    text, four = llvm_type(type_), _byte(type_, 4)
    raised = writer.value(f"shl {text} {x}, {four}")
    return writer.value(f"ashr {text} {raised}, {four}")


def _byte(type_: Type, value: int) -> str:
    return str(value) if type_.lanes == 1 else f"splat (i8 {value})"


def _integer_to_bool(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    return writer.value(f"icmp ne {llvm_type(source)} {x}, zeroinitializer")


def _bool_to_integer(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    return _instruction(writer, "zext", x, source, target)


CastRow = Callable[[FunctionWriter, str, Type, Type], str]

CASTS: Mapping[tuple[str, str], CastRow] = {
    ("half", "half"): _half_to,
    ("half", "float"): _half_to,
    ("half", "integer"): _half_to,
    ("half", "bool"): _half_to,
    ("float", "half"): _float_to_half,
    ("float", "float"): _float_to_float,
    ("float", "integer"): _float_to_integer,
    ("float", "bool"): _float_to_bool,
    ("integer", "half"): _to_half,
    ("integer", "float"): _integer_to_float,
    ("integer", "integer"): _integer_to_integer,
    ("integer", "bool"): _integer_to_bool,
    ("bool", "half"): _to_half,
    ("bool", "float"): _integer_to_float,
    ("bool", "integer"): _bool_to_integer,
}
"""How each class of dtype becomes each other one."""


ROUND_CALLS: Mapping[UnaryOp, str] = {
    UnaryOp.FLOOR: "llvm.floor",
    UnaryOp.CEIL: "llvm.ceil",
    UnaryOp.ROUND: "llvm.roundeven",
    UnaryOp.TRUNC: "llvm.trunc",
}


def _has_rounding(writer: FunctionWriter) -> bool:
    """Whether rounding is an instruction: AArch64, or x86 from SSE4.1 on (which FMA implies)."""
    target = writer.target
    names = {feature.lstrip("+") for feature in target.features}
    return not target.triple.startswith("x86") or target.fma or bool({"sse4.1", "avx"} & names)


def round_float(writer: FunctionWriter, op: UnaryOp, type_: Type, x: str) -> str:
    """Emit floor, ceil, round-half-even or trunc of float32 or float64."""
    if not _has_rounding(writer):
        return _round_by_addition(writer, op, type_, x)
    text = llvm_type(type_)
    return writer.call(text, f"{ROUND_CALLS[op]}.{mangled(text)}", [(text, x)])


def _round_by_addition(writer: FunctionWriter, op: UnaryOp, type_: Type, x: str) -> str:
    """Adding 2**23 (2**52) rounds to an integer; a comparison then corrects the direction."""
    lanes, text = Lanes(writer, type_.lanes), llvm_type(type_)
    magic = 2.0**23 if type_.dtype == float32 else 2.0**52
    suffix = mangled(text)
    absolute = writer.call(text, f"llvm.fabs.{suffix}", [(text, x)])
    raised = lanes.real("fadd", absolute, magic, type_)
    nearest = lanes.real("fsub", raised, magic, type_)
    if op is UnaryOp.TRUNC:
        over = lanes.real("fcmp ogt", nearest, absolute, type_)
        lower = lanes.real("fsub", nearest, 1.0, type_)
        nearest = lanes.choose(over, lower, nearest, type_)
    copysign = f"llvm.copysign.{suffix}"
    result = writer.call(text, copysign, [(text, nearest), (text, x)])
    if op in (UnaryOp.FLOOR, UnaryOp.CEIL):
        wrong, step = ("fcmp ogt", -1.0) if op is UnaryOp.FLOOR else ("fcmp olt", 1.0)
        moved = lanes.real("fadd", result, step, type_)
        corrected = lanes.choose(lanes.real(wrong, result, x, type_), moved, result, type_)
        result = writer.call(text, copysign, [(text, corrected), (text, x)])
    small = lanes.real("fcmp olt", absolute, magic, type_)
    return lanes.choose(small, result, x, type_)


def fused_multiply_add(writer: FunctionWriter, type_: Type, operands: Sequence[str]) -> str:
    """Emit `a * b + c` with one rounding; without the instruction it is emulated exactly."""
    text = llvm_type(type_)
    if writer.target.fma:
        return writer.call(
            text, f"llvm.fma.{mangled(text)}", [(text, operand) for operand in operands]
        )
    if type_.dtype == float32:
        return _float32_fma(writer, type_.lanes, operands)
    return call_helper(writer, "frame.fma", type_, operands)


def _float32_fma(writer: FunctionWriter, count: int, operands: Sequence[str]) -> str:
    """The product is exact in float64; the sum is rounded to odd there, then to float32."""
    lanes = Lanes(writer, count)
    wide = lanes.float64
    a, b, c = (lanes.convert("fpext", x, lanes.float32, wide) for x in operands)
    product = lanes.real("fmul", a, b, wide)
    total = lanes.real("fadd", product, c, wide)
    part = lanes.real("fsub", total, product, wide)
    left = lanes.real("fsub", product, lanes.real("fsub", total, part, wide), wide)
    error = lanes.real("fadd", left, lanes.real("fsub", c, part, wide), wide)
    bits = lanes.convert("bitcast", total, wide, lanes.int64)
    error_bits = lanes.convert("bitcast", error, wide, lanes.int64)
    signs = lanes.integer(
        "ashr", lanes.integer("xor", bits, error_bits, lanes.int64), 63, lanes.int64
    )
    step = lanes.integer("or", signs, 1, lanes.int64)  # +1 away from zero, -1 toward it
    even = lanes.integer("icmp eq", lanes.integer("and", bits, 1, lanes.int64), 0, lanes.int64)
    inexact = lanes.real("fcmp one", error, 0.0, wide)
    adjust = lanes.integer("and", even, inexact, Type(bool_, count))
    moved = lanes.integer("add", bits, step, lanes.int64)
    odd = lanes.choose(adjust, moved, bits, lanes.int64)
    result = lanes.convert("bitcast", odd, lanes.int64, wide)
    return lanes.convert("fptrunc", result, wide, lanes.float32)
