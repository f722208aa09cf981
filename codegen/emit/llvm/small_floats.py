"""Floats narrower than float32: kept as integers, computed in float32, converted without calls."""

from __future__ import annotations

from frame.codegen.emit.formats import SMALL_FORMATS, SmallFormat
from frame.codegen.emit.llvm.writer import FunctionWriter, constant, llvm_type, mangled, vector
from frame.codegen.loops.ir import Type
from frame.core.dtypes import bool_, float32, float64, int32, int64


class Lanes:
    """Short forms of instructions on values of one lane count."""

    def __init__(self, writer: FunctionWriter, lanes: int) -> None:
        self.writer = writer
        self.float32 = Type(float32, lanes)
        self.float64 = Type(float64, lanes)
        self.int32 = Type(int32, lanes)
        self.int64 = Type(int64, lanes)

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

    def as_bits(self, x: str) -> str:
        """The bits of a float32."""
        return self.convert("bitcast", x, self.float32, self.int32)

    def as_float(self, x: str) -> str:
        """The float32 that has these bits."""
        return self.convert("bitcast", x, self.int32, self.float32)

    def convert(self, instruction: str, x: str, source: Type | str, target: Type | str) -> str:
        """A conversion instruction."""
        from_text = source if isinstance(source, str) else llvm_type(source)
        to_text = target if isinstance(target, str) else llvm_type(target)
        return self.writer.value(f"{instruction} {from_text} {x} to {to_text}")


def widen(writer: FunctionWriter, x: str, type_: Type) -> str:
    """Emit a narrow float to float32, which is exact."""
    lanes, stored = Lanes(writer, type_.lanes), llvm_type(type_)
    if type_.dtype.name == "bfloat16":
        wide = lanes.convert("zext", x, stored, lanes.int32)
        shifted = lanes.integer("shl", wide, 16)
        return lanes.convert("bitcast", shifted, lanes.int32, lanes.float32)
    if type_.dtype.name == "float16" and writer.target.half != "none":
        half = vector("half", type_.lanes)
        return lanes.convert(
            "fpext", lanes.convert("bitcast", x, stored, half), half, lanes.float32
        )
    wide = lanes.convert("zext", x, stored, lanes.int32)
    return _widen_small(lanes, wide, SMALL_FORMATS[type_.dtype.name])


def _widen_small(lanes: Lanes, x: str, form: SmallFormat) -> str:
    """Rebias the exponent; a float32 subtraction normalises the denormals."""
    code = lanes.integer("and", x, form.sign - 1)
    shifted = lanes.integer("shl", code, form.shift)
    normal = lanes.integer("add", shifted, form.rebias)
    raised = lanes.integer("add", normal, 1 << 23)
    lowered = lanes.real("fsub", lanes.as_float(raised), form.least_normal)
    is_denormal = lanes.integer("icmp ult", code, 1 << form.fraction)
    is_special = lanes.integer("icmp uge", code, form.special)
    special = lanes.integer("or", shifted, 255 << 23)
    finite = lanes.choose(is_denormal, lanes.as_bits(lowered), normal)
    magnitude = lanes.choose(is_special, special, finite)
    sign = lanes.integer("shl", lanes.integer("and", x, form.sign), 32 - form.bits)
    return lanes.as_float(lanes.integer("or", magnitude, sign))


def narrow(writer: FunctionWriter, x: str, type_: Type) -> str:
    """Emit float32 to a narrow float, to nearest even; a NaN stays a (quiet) NaN."""
    lanes, stored = Lanes(writer, type_.lanes), llvm_type(type_)
    if type_.dtype.name == "bfloat16":
        return lanes.convert("trunc", _narrow_bfloat16(lanes, x), lanes.int32, stored)
    if type_.dtype.name == "float16" and writer.target.half != "none":
        half = vector("half", type_.lanes)
        rounded = lanes.convert("fptrunc", _fenced(writer, x, lanes), lanes.float32, half)
        return lanes.convert("bitcast", rounded, half, stored)
    code = _narrow_small(lanes, x, SMALL_FORMATS[type_.dtype.name])
    return lanes.convert("trunc", code, lanes.int32, stored)


def _fenced(writer: FunctionWriter, x: str, lanes: Lanes) -> str:
    """The float32 itself, which code generation may not merge with the rounding that made it: from
    float64 straight to float16 there is no instruction, only a library call."""
    text = llvm_type(lanes.float32)
    return writer.call(text, f"llvm.arithmetic.fence.{mangled(text)}", [(text, x)])


def _narrow_bfloat16(lanes: Lanes, x: str) -> str:
    bits = lanes.as_bits(x)
    odd = lanes.integer("and", lanes.integer("lshr", bits, 16), 1)
    rounded = lanes.integer("add", lanes.integer("add", bits, 0x7FFF), odd)
    quiet = lanes.integer("or", bits, 0x400000)
    is_nan = lanes.real("fcmp uno", x, 0.0)
    return lanes.integer("lshr", lanes.choose(is_nan, quiet, rounded), 16)


def _narrow_small(lanes: Lanes, x: str, form: SmallFormat) -> str:
    """Round the normal range by integer addition, the denormals by a float32 addition."""
    bits = lanes.as_bits(x)
    magnitude = lanes.integer("and", bits, 0x7FFFFFFF)
    odd = lanes.integer("and", lanes.integer("lshr", magnitude, form.shift), 1)
    below_half = (1 << (form.shift - 1)) - 1
    rebased = lanes.integer("add", magnitude, below_half - form.rebias)
    normal = lanes.integer("lshr", lanes.integer("add", rebased, odd), form.shift)
    raised = lanes.real("fadd", lanes.as_float(magnitude), form.denormal_magic)
    denormal = lanes.integer("sub", lanes.as_bits(raised), form.denormal_magic_bits)
    is_large = lanes.integer("icmp ugt", normal, form.largest)
    in_range = lanes.choose(is_large, constant(lanes.int32, form.overflow), normal)
    is_small = lanes.integer("icmp ult", magnitude, form.least_normal_bits)
    number = lanes.choose(is_small, denormal, in_range)
    is_nan = lanes.integer("icmp ugt", magnitude, 255 << 23)
    code = lanes.choose(is_nan, constant(lanes.int32, form.nan), number)
    sign = lanes.integer("lshr", bits, 32 - form.bits)
    return lanes.integer("or", code, lanes.integer("and", sign, form.sign))


def float64_to_float32_odd(writer: FunctionWriter, x: str, count: int) -> str:
    """Round to odd, so that a second rounding to 16 bits is correct (Boldo and Melquiond 2008)."""
    lanes = Lanes(writer, count)
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
