"""Casts, 16-bit floats, rounding to integers and fused multiply-add, without library calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frame.codegen.emit.llvm.helpers import call_helper
from frame.codegen.emit.llvm.writer import FunctionWriter, constant, llvm_type, mangled
from frame.codegen.loops.ir import Type, UnaryOp
from frame.core.dtypes import DType, bool_, float32, float64, int32, int64
from frame.core.errors import UnimplementedError


class _Lanes:
    """Short forms of instructions on values of one lane count."""

    def __init__(self, writer: FunctionWriter, lanes: int) -> None:
        self.writer = writer
        self.float32 = Type(float32, lanes)
        self.float64 = Type(float64, lanes)
        self.int32 = Type(int32, lanes)
        self.int64 = Type(int64, lanes)
        self.bits16 = llvm_type(Type(float32, lanes)).replace("float", "i16")

    def integer(self, instruction: str, a: str, b: str | int, type_: Type | None = None) -> str:
        """An integer instruction; an int operand is a splat."""
        type_ = type_ or self.int32
        second = constant(type_, b) if isinstance(b, int) else b
        return self.writer.value(f"{instruction} {llvm_type(type_)} {a}, {second}")

    def real(self, instruction: str, a: str, b: str | float, type_: Type | None = None) -> str:
        """A floating-point instruction; a float operand is a splat."""
        type_ = type_ or self.float32
        second = constant(type_, b) if isinstance(b, float) else b
        return self.writer.value(f"{instruction} {llvm_type(type_)} {a}, {second}")

    def choose(self, condition: str, a: str, b: str | int, type_: Type | None = None) -> str:
        """A select between values of `type_` (int32)."""
        type_ = type_ or self.int32
        text, mask = llvm_type(type_), llvm_type(Type(bool_, type_.lanes))
        second = constant(type_, b) if isinstance(b, int) else b
        return self.writer.value(f"select {mask} {condition}, {text} {a}, {text} {second}")

    def convert(self, instruction: str, x: str, source: Type | str, target: Type | str) -> str:
        """A conversion instruction."""
        from_text = source if isinstance(source, str) else llvm_type(source)
        to_text = target if isinstance(target, str) else llvm_type(target)
        return self.writer.value(f"{instruction} {from_text} {x} to {to_text}")


def widen(writer: FunctionWriter, x: str, type_: Type) -> str:
    """Emit float16 or bfloat16 to float32, which is exact."""
    lanes = _Lanes(writer, type_.lanes)
    if type_.dtype.name == "bfloat16":
        wide = lanes.convert("zext", x, lanes.bits16, lanes.int32)
        shifted = lanes.integer("shl", wide, 16)
        return lanes.convert("bitcast", shifted, lanes.int32, lanes.float32)
    if writer.target.half != "none":
        half = lanes.bits16.replace("i16", "half")
        return lanes.convert(
            "fpext", lanes.convert("bitcast", x, lanes.bits16, half), half, lanes.float32
        )
    return _float16_to_float32(lanes, x)


def _float16_to_float32(lanes: _Lanes, x: str) -> str:
    """Rebias the exponent; a float32 subtraction normalises the denormals."""
    wide = lanes.convert("zext", x, lanes.bits16, lanes.int32)
    shifted = lanes.integer("shl", lanes.integer("and", wide, 0x7FFF), 13)
    exponent = lanes.integer("and", shifted, 0x7C00 << 13)
    normal = lanes.integer("add", shifted, (127 - 15) << 23)
    special = lanes.integer("add", normal, (128 - 16) << 23)
    raised = lanes.convert(
        "bitcast", lanes.integer("add", normal, 1 << 23), lanes.int32, lanes.float32
    )
    lowered = lanes.real("fsub", raised, 2.0**-14)
    denormal = lanes.convert("bitcast", lowered, lanes.float32, lanes.int32)
    is_special = lanes.integer("icmp eq", exponent, 0x7C00 << 13)
    is_denormal = lanes.integer("icmp eq", exponent, 0)
    magnitude = lanes.choose(is_denormal, denormal, lanes.choose(is_special, special, normal))
    sign = lanes.integer("shl", lanes.integer("and", wide, 0x8000), 16)
    return lanes.convert(
        "bitcast", lanes.integer("or", magnitude, sign), lanes.int32, lanes.float32
    )


def narrow(writer: FunctionWriter, x: str, type_: Type) -> str:
    """Emit float32 to float16 or bfloat16, to nearest even; a NaN stays a (quiet) NaN."""
    lanes = _Lanes(writer, type_.lanes)
    if type_.dtype.name == "bfloat16":
        return _float32_to_bfloat16(lanes, x)
    if writer.target.half != "none":
        half = lanes.bits16.replace("i16", "half")
        rounded = lanes.convert("fptrunc", x, lanes.float32, half)
        return lanes.convert("bitcast", rounded, half, lanes.bits16)
    return _float32_to_float16(lanes, x)


def _float32_to_bfloat16(lanes: _Lanes, x: str) -> str:
    bits = lanes.convert("bitcast", x, lanes.float32, lanes.int32)
    odd = lanes.integer("and", lanes.integer("lshr", bits, 16), 1)
    rounded = lanes.integer("add", lanes.integer("add", bits, 0x7FFF), odd)
    quiet = lanes.integer("or", bits, 0x400000)
    is_nan = lanes.real("fcmp uno", x, 0.0)
    high = lanes.integer("lshr", lanes.choose(is_nan, quiet, rounded), 16)
    return lanes.convert("trunc", high, lanes.int32, lanes.bits16)


def _float32_to_float16(lanes: _Lanes, x: str) -> str:
    """Round the normal range by integer addition, the denormals by a float32 addition."""
    bits = lanes.convert("bitcast", x, lanes.float32, lanes.int32)
    magnitude = lanes.integer("and", bits, 0x7FFFFFFF)
    odd = lanes.integer("and", lanes.integer("lshr", magnitude, 13), 1)
    rebased = lanes.integer("add", magnitude, ((15 - 127) << 23) + 0xFFF)
    normal = lanes.integer("lshr", lanes.integer("add", rebased, odd), 13)
    absolute = lanes.convert("bitcast", magnitude, lanes.int32, lanes.float32)
    raised = lanes.convert("bitcast", lanes.real("fadd", absolute, 0.5), lanes.float32, lanes.int32)
    denormal = lanes.integer("sub", raised, 126 << 23)
    payload = lanes.integer("and", lanes.integer("lshr", magnitude, 13), 0x1FF)
    nan = lanes.integer("or", payload, 0x7E00)
    is_small = lanes.integer("icmp ult", magnitude, 113 << 23)
    is_large = lanes.integer("icmp uge", magnitude, (127 + 16) << 23)
    is_nan = lanes.integer("icmp ugt", magnitude, 255 << 23)
    finite = lanes.choose(is_small, denormal, normal)
    infinity = constant(lanes.int32, 0x7C00)
    result = lanes.choose(is_nan, nan, lanes.choose(is_large, infinity, finite))
    sign = lanes.integer("and", lanes.integer("lshr", bits, 16), 0x8000)
    return lanes.convert("trunc", lanes.integer("or", result, sign), lanes.int32, lanes.bits16)


def _float64_to_float32_odd(writer: FunctionWriter, x: str, count: int) -> str:
    """Round to odd, so that a second rounding to 16 bits is correct (Boldo and Melquiond 2008)."""
    lanes = _Lanes(writer, count)
    nearest = lanes.convert("fptrunc", x, lanes.float64, lanes.float32)
    back = lanes.convert("fpext", nearest, lanes.float32, lanes.float64)
    bits = lanes.convert("bitcast", nearest, lanes.float32, lanes.int32)
    inexact = lanes.real("fcmp one", back, x, lanes.float64)
    name, text = f"llvm.fabs.{mangled(llvm_type(lanes.float64))}", llvm_type(lanes.float64)
    absolute = [writer.call(text, name, [(text, value)]) for value in (back, x)]
    away = lanes.real("fcmp ogt", absolute[0], absolute[1], lanes.float64)
    toward = lanes.choose(away, lanes.integer("sub", bits, 1), bits)
    odd = lanes.choose(inexact, lanes.integer("or", toward, 1), bits)
    return lanes.convert("bitcast", odd, lanes.int32, lanes.float32)


def cast(writer: FunctionWriter, x: str, source: Type, target: DType) -> str:
    """Emit a conversion of an operand of `source`, with the semantics of `ir.Cast`."""
    result = Type(target, source.lanes)
    if source.dtype == target:
        return x
    for dtype in (source.dtype, target):
        if dtype.storage_only:
            raise UnimplementedError(
                f"expected a cast between computable dtypes, received {source.dtype} to {target}; "
                f"{dtype} is for storage only: decompose the cast before emission"
            )
    return CASTS[_class(source.dtype), _class(target)](writer, x, source, result)


def _class(dtype: DType) -> str:
    if dtype.is_float:
        return "half" if dtype.bits == 16 else "float"
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
    lanes = _Lanes(writer, type_.lanes)
    low = lanes.integer("and", x, 0x7FF, type_)
    lost = lanes.choose(lanes.integer("icmp ne", low, 0, type_), constant(type_, 0x800), 0, type_)
    odd = lanes.integer("or", lanes.integer("and", x, ~0x7FF, type_), lost, type_)
    high = lanes.integer("ashr" if type_.dtype.kind == "int" else "lshr", x, 53, type_)
    fits = lanes.integer("icmp ult", lanes.integer("add", high, 1, type_), 2, type_)
    return lanes.choose(fits, x, odd, type_)


def _float_to_half(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    if source.dtype == float64:
        x = _float64_to_float32_odd(writer, x, source.lanes)
    return narrow(writer, x, target)


def _float_to_float(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "fpext" if source.dtype.bits < target.dtype.bits else "fptrunc"
    return _instruction(writer, name, x, source, target)


def _float_to_integer(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "llvm.fptosi.sat" if target.dtype.is_signed else "llvm.fptoui.sat"
    texts = llvm_type(target), llvm_type(source)
    name = f"{name}.{mangled(texts[0])}.{mangled(texts[1])}"
    return writer.call(texts[0], name, [(texts[1], x)])


def _float_to_bool(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    return writer.value(f"fcmp une {llvm_type(source)} {x}, zeroinitializer")


def _integer_to_float(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    name = "sitofp" if source.dtype.kind == "int" else "uitofp"
    return _instruction(writer, name, x, source, target)


def _integer_to_integer(writer: FunctionWriter, x: str, source: Type, target: Type) -> str:
    if source.dtype.bits == target.dtype.bits:
        return x
    if source.dtype.bits > target.dtype.bits:
        return _instruction(writer, "trunc", x, source, target)
    name = "sext" if source.dtype.kind == "int" else "zext"
    return _instruction(writer, name, x, source, target)


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
    lanes, text = _Lanes(writer, type_.lanes), llvm_type(type_)
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
    lanes = _Lanes(writer, count)
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
