"""Functions in LLVM IR that a module carries where the target has no instruction for an operation.

They work on one lane, in integers, and are exact; only targets without fma, and float remainders,
need them, so they are written for size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from frame.codegen.emit.llvm.writer import FunctionWriter, llvm_type
from frame.codegen.loops.ir import Type

# a * b + c with one rounding. The product P (106 bits) and c are aligned in 128 bits, in units of
# 2**x; a last bit stands for everything that a right shift loses (rounding to odd).
_FMA = """
define internal double @frame.fma(double %a, double %b, double %c) #0 {
start:
  %ia = bitcast double %a to i64
  %ib = bitcast double %b to i64
  %ic = bitcast double %c to i64
  %za = fcmp oeq double %a, 0.0
  %zb = fcmp oeq double %b, 0.0
  %zero = or i1 %za, %zb
  %product = fmul double %a, %b
  %sum = fadd double %product, %c
  %twice = fadd double %c, %c
  %ma.ea = call { i64, i64 } @frame.unpack.i64(i64 %ia)
  %mb.eb = call { i64, i64 } @frame.unpack.i64(i64 %ib)
  %mc.ec = call { i64, i64 } @frame.unpack.i64(i64 %ic)
  %ma = extractvalue { i64, i64 } %ma.ea, 0
  %ea = extractvalue { i64, i64 } %ma.ea, 1
  %mb = extractvalue { i64, i64 } %mb.eb, 0
  %eb = extractvalue { i64, i64 } %mb.eb, 1
  %mc = extractvalue { i64, i64 } %mc.ec, 0
  %ec = extractvalue { i64, i64 } %mc.ec, 1
  %fa = icmp eq i64 %ea, 2047
  %fb = icmp eq i64 %eb, 2047
  %fc = icmp eq i64 %ec, 2047
  %fab = or i1 %fa, %fb
  %simple = or i1 %fab, %zero
  br i1 %simple, label %plain, label %next
plain:
  ret double %sum
next:
  br i1 %fc, label %infinite, label %finite
infinite:
  ret double %twice
finite:
  %wa = zext i64 %ma to i128
  %wb = zext i64 %mb to i128
  %wc = zext i64 %mc to i128
  %p = mul i128 %wa, %wb
  %eab = add i64 %ea, %eb
  %xp = sub i64 %eab, 2150
  %xc = sub i64 %ec, 1075
  %d = sub i64 %xc, %xp
  %far = icmp sgt i64 %d, 70
  %over = sub i64 %d, 70
  %p.shift = select i1 %far, i64 %over, i64 0
  %under = sub i64 0, %d
  %below = icmp slt i64 %d, 0
  %c.right = select i1 %below, i64 %under, i64 0
  %d.near = select i1 %far, i64 70, i64 %d
  %c.left = select i1 %below, i64 0, i64 %d.near
  %p2 = call i128 @frame.sticky(i128 %p, i64 %p.shift)
  %c1 = call i128 @frame.sticky(i128 %wc, i64 %c.right)
  %c.left.wide = zext i64 %c.left to i128
  %c2 = shl i128 %c1, %c.left.wide
  %x.far = sub i64 %xc, 70
  %x.unit = select i1 %far, i64 %x.far, i64 %xp
  %x = sub i64 %x.unit, 1
  %sp = xor i64 %ia, %ib
  %differ.bits = xor i64 %sp, %ic
  %differ = icmp slt i64 %differ.bits, 0
  %added = add i128 %p2, %c2
  %taken = sub i128 %p2, %c2
  %raw = select i1 %differ, i128 %taken, i128 %added
  %flip = icmp slt i128 %raw, 0
  %minus = sub i128 0, %raw
  %s = select i1 %flip, i128 %minus, i128 %raw
  %sign.word = select i1 %flip, i64 %ic, i64 %sp
  %sign = and i64 %sign.word, -9223372036854775808
  %none = icmp eq i128 %s, 0
  %lz.wide = call i128 @llvm.ctlz.i128(i128 %s, i1 false)
  %lz = trunc i128 %lz.wide to i64
  %top = sub i64 75, %lz
  %q.natural = add i64 %x, %top
  %q = call i64 @llvm.smax.i64(i64 %q.natural, i64 -1074)
  %q2 = sub i64 %q, 2
  %right = sub i64 %q2, %x
  %right.clamped = call i64 @llvm.smax.i64(i64 %right, i64 1)
  %less = sub i64 %right.clamped, 1
  %shifted = call i128 @frame.sticky(i128 %s, i64 %less)
  %sticky = and i128 %shifted, 3
  %high = lshr i128 %shifted, 2
  %any = icmp ne i128 %sticky, 0
  %any.bit = zext i1 %any to i128
  %rounded.right = or i128 %high, %any.bit
  %left = sub i64 0, %right
  %left.clamped = call i64 @llvm.smax.i64(i64 %left, i64 0)
  %left.wide = zext i64 %left.clamped to i128
  %shifted.left = shl i128 %s, %left.wide
  %goes.right = icmp sgt i64 %right, 0
  %m.wide = select i1 %goes.right, i128 %rounded.right, i128 %shifted.left
  %m = trunc i128 %m.wide to i64
  %m.last = lshr i64 %m, 2
  %m.odd = and i64 %m.last, 1
  %m.one = add i64 %m, 1
  %m.up = add i64 %m.one, %m.odd
  %r = lshr i64 %m.up, 2
  %biased = add i64 %q, 1074
  %too.large = icmp sgt i64 %biased, 2045
  %biased.small = select i1 %too.large, i64 0, i64 %biased
  %exponent = shl i64 %biased.small, 52
  %normal = add i64 %r, %exponent
  %magnitude = select i1 %too.large, i64 9218868437227405312, i64 %normal
  %signed = or i64 %magnitude, %sign
  %bits = select i1 %none, i64 0, i64 %signed
  %result = bitcast i64 %bits to double
  ret double %result
}
"""

# The mantissa with its leading bit, and the biased exponent; denormals are normalised.
_UNPACK = Template("""
define internal { $i, $i } @frame.unpack.$i($i %i) #0 {
  %word = lshr $i %i, $f
  %e = and $i %word, $x
  %f = and $i %i, $m
  %small = icmp eq $i %e, 0
  %lz = call $i @llvm.ctlz.$i($i %f, i1 false)
  %up = sub $i %lz, $e
  %none = icmp eq $i %f, 0
  %shift = select i1 %none, $i 0, $i %up
  %m.small = shl $i %f, %shift
  %e.small = sub $i 1, %shift
  %m.normal = or $i %f, $h
  %m = select i1 %small, $i %m.small, $i %m.normal
  %x = select i1 %small, $i %e.small, $i %e
  %pair = insertvalue { $i, $i } poison, $i %m, 0
  %both = insertvalue { $i, $i } %pair, $i %x, 1
  ret { $i, $i } %both
}
""")

# Twice (v >> shift), with the last bit set if bits were lost.
_STICKY = """
define internal i128 @frame.sticky(i128 %v, i64 %shift) #0 {
  %most = call i64 @llvm.umin.i64(i64 %shift, i64 127)
  %wide = zext i64 %most to i128
  %floor = lshr i128 %v, %wide
  %back = shl i128 %floor, %wide
  %lost = icmp ne i128 %back, %v
  %bit = zext i1 %lost to i128
  %twice = shl i128 %floor, 1
  %result = or i128 %twice, %bit
  ret i128 %result
}
"""

# C's fmod, exact: long division of the mantissas, one bit an iteration. In these templates $t is
# the float type, $i the integer type, $f the fraction bits, $s the sign bit, $r the rest, $m the
# fraction, $h the hidden bit, $x the exponent, $e its bits and $n infinity.
_REMAINDER = Template("""
define internal $t @frame.remainder.$t($t %a, $t %b) #0 {
start:
  %ia = bitcast $t %a to $i
  %ib = bitcast $t %b to $i
  %sign = and $i %ia, $s
  %ua = xor $i %ia, %sign
  %ub = and $i %ib, $r
  %bad.a = icmp uge $i %ua, $n
  %bad.b = icmp ugt $i %ub, $n
  %zero.b = icmp eq $i %ub, 0
  %bad.ab = or i1 %bad.a, %bad.b
  %bad = or i1 %bad.ab, %zero.b
  br i1 %bad, label %undefined, label %defined
undefined:
  %product = fmul $t %a, %b
  %nan = fdiv $t %product, %product
  ret $t %nan
defined:
  %small = icmp ult $i %ua, %ub
  br i1 %small, label %same, label %divide
same:
  ret $t %a
divide:
  %ma.ea = call { $i, $i } @frame.unpack.$i($i %ua)
  %mb.eb = call { $i, $i } @frame.unpack.$i($i %ub)
  %ma = extractvalue { $i, $i } %ma.ea, 0
  %ea = extractvalue { $i, $i } %ma.ea, 1
  %mb = extractvalue { $i, $i } %mb.eb, 0
  %eb = extractvalue { $i, $i } %mb.eb, 1
  %count = sub $i %ea, %eb
  br label %loop
loop:
  %k = phi $i [ %count, %divide ], [ %k.next, %step ]
  %rest = phi $i [ %ma, %divide ], [ %twice, %step ]
  %less = sub $i %rest, %mb
  %fits = icmp uge $i %rest, %mb
  %left = select i1 %fits, $i %less, $i %rest
  %last = icmp eq $i %k, 0
  br i1 %last, label %done, label %step
step:
  %twice = shl $i %left, 1
  %k.next = sub $i %k, 1
  br label %loop
done:
  %none = icmp eq $i %left, 0
  %lz = call $i @llvm.ctlz.$i($i %left, i1 false)
  %up = sub $i %lz, $e
  %e.left = sub $i %eb, %up
  %e.less = sub $i %e.left, 1
  %e.bits = shl $i %e.less, $f
  %m.up = shl $i %left, %up
  %normal = add $i %m.up, %e.bits
  %above = sub $i %eb, 1
  %below = sub $i 1, %eb
  %above.shift = call $i @llvm.smax.$i($i %above, $i 0)
  %below.shift = call $i @llvm.smax.$i($i %below, $i 0)
  %scaled.up = shl $i %left, %above.shift
  %denormal = lshr $i %scaled.up, %below.shift
  %is.denormal = icmp slt $i %e.left, 1
  %raw = select i1 %is.denormal, $i %denormal, $i %normal
  %magnitude = select i1 %none, $i 0, $i %raw
  %bits = or $i %magnitude, %sign
  %result = bitcast $i %bits to $t
  ret $t %result
}
""")


def _numbers(bits: int, fraction: int) -> dict[str, object]:
    exponent = (1 << (bits - 1 - fraction)) - 1
    return {
        "i": f"i{bits}",
        "s": -(1 << (bits - 1)),
        "r": (1 << (bits - 1)) - 1,
        "n": exponent << fraction,
        "f": fraction,
        "m": (1 << fraction) - 1,
        "h": 1 << fraction,
        "e": bits - 1 - fraction,
        "x": exponent,
    }


def _declared(name: str, bits: int, *others: str) -> str:
    parameters = ", ".join((f"i{bits}", *others))
    return f"declare i{bits} @llvm.{name}.i{bits}({parameters})"


_SINGLE, _DOUBLE = _numbers(32, 23), _numbers(64, 52)

HELPERS: Mapping[str, tuple[str, ...]] = {
    "frame.fma": (
        _FMA,
        _UNPACK.substitute(_DOUBLE),
        _STICKY,
        *(_declared("ctlz", bits, "i1") for bits in (64, 128)),
        *(_declared(name, 64, "i64") for name in ("smax", "umin")),
    ),
    **{
        f"frame.remainder.{type_}": (
            _REMAINDER.substitute(numbers, t=type_),
            _UNPACK.substitute(numbers),
            _declared("ctlz", bits, "i1"),
            _declared("smax", bits, f"i{bits}"),
        )
        for type_, bits, numbers in (("float", 32, _SINGLE), ("double", 64, _DOUBLE))
    },
}
"""The texts that each helper needs in its module."""


def call_helper(writer: FunctionWriter, name: str, type_: Type, operands: Sequence[str]) -> str:
    """Emit one call of a helper a lane, and carry its definition in the module."""
    for text in HELPERS[name]:
        head = text.strip().split("\n", 1)[0]
        writer.declarations[head.split("@", 1)[1].split("(", 1)[0]] = text.strip()
    element, vector = llvm_type(Type(type_.dtype)), llvm_type(type_)
    if type_.lanes == 1:
        arguments = ", ".join(f"{element} {operand}" for operand in operands)
        return writer.value(f"call {element} @{name}({arguments})")
    result = "poison"
    for lane in range(type_.lanes):
        parts = [
            writer.value(f"extractelement {vector} {operand}, i32 {lane}") for operand in operands
        ]
        arguments = ", ".join(f"{element} {part}" for part in parts)
        value = writer.value(f"call {element} @{name}({arguments})")
        result = writer.value(f"insertelement {vector} {result}, {element} {value}, i32 {lane}")
    return result
