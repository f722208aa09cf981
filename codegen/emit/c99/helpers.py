"""C functions that generated code calls, each carried only by the sources that use it.

A name says what the function does; `helper` returns the text of a name together with what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from frame.codegen.emit.formats import SMALL_FORMATS
from frame.core.dtypes import DTYPES, DType
from frame.core.errors import InternalError

C_TYPES: Mapping[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    "bool": "uint8_t",
}


def c_type(dtype: DType) -> str:
    """Return the C type of one element; narrow floats are their bits."""
    return C_TYPES.get(dtype.name, f"{dtype.kind}{dtype.itemsize * 8}_t")


_BITCAST = """static inline {to} frame_bits_{a}_{b}({source} x) {{
    {to} y;
    memcpy(&y, &x, sizeof y);
    return y;
}}"""

_WIDEN_BFLOAT16 = """static inline float frame_widen_bfloat16(uint16_t x) {
    return frame_bits_uint32_float32((uint32_t)x << 16);
}"""

_WIDEN = """static inline float frame_widen_{name}({type} x) {{
    const uint32_t code = x & {rest:#x}u, sign = (uint32_t)(x & {sign:#x}u) << {place};
    uint32_t bits = (code << {shift}) + {rebias:#x}u;
    if (code >= {special:#x}u)
        bits = (code << {shift}) | 0x7f800000u;
    else if (code < {normal:#x}u)  /* denormal: let a subtraction normalise it */
        bits = frame_bits_float32_uint32(
            frame_bits_uint32_float32(bits + 0x00800000u) - {least}f);
    return frame_bits_uint32_float32(bits | sign);
}}"""

_NARROW_BFLOAT16 = """static inline uint16_t frame_narrow_bfloat16(float x) {
    const uint32_t bits = frame_bits_float32_uint32(x);
    if (x != x) return (uint16_t)((bits | 0x00400000u) >> 16);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}"""

_NARROW = """static inline {type} frame_narrow_{name}(float x) {{
    const uint32_t bits = frame_bits_float32_uint32(x);
    const uint32_t magnitude = bits & 0x7fffffffu, sign = (bits >> {place}) & {sign:#x}u;
    uint32_t code = {nan:#x}u;
    if (magnitude < {least_bits:#x}u)  /* denormal: let an addition round it */
        code = frame_bits_float32_uint32(frame_bits_uint32_float32(magnitude) + {magic}f)
               - {magic_bits:#x}u;
    else if (magnitude <= 0x7f800000u) {{
        code = (magnitude - {rebias:#x}u + {below:#x}u + ((magnitude >> {shift}) & 1u)) >> {shift};
        if (code > {largest:#x}u) code = {overflow:#x}u;
    }}
    return ({type})(code | sign);
}}"""

_ODD = """/* Rounds to odd, so that a second rounding to 16 bits is correct. */
static inline float frame_odd(double x) {
    const float nearest = (float)x;
    uint32_t bits = frame_bits_float32_uint32(nearest);
    if (x != x || (double)nearest == x) return nearest;
    if (fabs((double)nearest) > fabs(x)) bits -= 1;
    return frame_bits_uint32_float32(bits | 1u);
}"""

_ODD_INTEGER = """/* Makes an integer of 2**53 or more exact in a double; lost bits stay as one. */
static inline double frame_odd_{kind}({kind}64_t x) {{
    const {kind}64_t lost = ({kind}64_t)((x & 0x7ff) != 0 ? 0x800 : 0);
    const int fits = {fits};
    return (double)(fits ? x : (({kind}64_t)(x & ~({kind}64_t)0x7ff) | lost));
}}"""
_FITS = {
    "int": "x >= -INT64_C(9007199254740992) && x <= INT64_C(9007199254740992)",
    "uint": "x <= UINT64_C(9007199254740992)",
}

_SATURATE = """static inline {type} frame_saturate_{name}(double x) {{
    if (x != x) return 0;
    if (x <= {low}) return {least};
    return x >= {high} ? {greatest} : ({type})x;
}}"""

_PREFETCH = """static inline void frame_prefetch(const void *place) {
#if defined(__GNUC__)
    __builtin_prefetch(place);
#else
    (void)place;
#endif
}"""

_FAIL = """static void frame_fail(int64_t *status, int64_t site, int64_t position, int64_t value) {
    if (status[0] != 0 && (status[0] < site || (status[0] == site && status[1] <= position)))
        return;
    status[0] = site;
    status[1] = position;
    status[2] = value;
}"""


def _saturate(dtype: DType) -> str:
    signed, bits = dtype.kind == "int", dtype.bits
    least, greatest = f"{dtype.kind.upper()}{bits}_MIN", f"{dtype.kind.upper()}{bits}_MAX"
    if bits == 4:
        least, greatest = "-8", "7" if signed else "15"
    return _SATURATE.format(
        type=c_type(dtype),
        name=dtype.name,
        low=f"-{2.0 ** (bits - 1)!r}" if signed else "0.0",
        high=repr(2.0 ** (bits - 1 if signed else bits)),
        least=least if signed else "0",
        greatest=greatest,
    )


def _bitcast(a: DType, b: DType) -> str:
    return _BITCAST.format(a=a, b=b, source=c_type(a), to=c_type(b))


def _small(template: str, name: str) -> str:
    if name == "bfloat16":
        return _WIDEN_BFLOAT16 if template is _WIDEN else _NARROW_BFLOAT16
    form = SMALL_FORMATS[name]
    return template.format(
        name=name,
        type=c_type(DTYPES[name]),
        rest=form.sign - 1,
        sign=form.sign,
        place=32 - form.bits,
        shift=form.shift,
        rebias=form.rebias,
        special=form.special,
        normal=1 << form.fraction,
        least=form.least_normal.hex(),
        nan=form.nan,
        least_bits=form.least_normal_bits,
        magic=form.denormal_magic.hex(),
        magic_bits=form.denormal_magic_bits,
        below=(1 << (form.shift - 1)) - 1,
        largest=form.largest,
        overflow=form.overflow,
    )


BUILDERS: Mapping[str, Callable[..., str]] = {
    r"frame_bits_(\w+?)_(\w+)": lambda a, b: _bitcast(DTYPES[a], DTYPES[b]),
    r"frame_widen_(\w+)": lambda name: _small(_WIDEN, name),
    r"frame_narrow_(\w+)": lambda name: _small(_NARROW, name),
    r"frame_odd_(int|uint)": lambda kind: _ODD_INTEGER.format(kind=kind, fits=_FITS[kind]),
    r"frame_odd": lambda: _ODD,
    r"frame_saturate_(\w+)": lambda name: _saturate(DTYPES[name]),
    r"frame_fail": lambda: _FAIL,
    r"frame_prefetch": lambda: _PREFETCH,
}


def helper(name: str) -> str:
    """Return the C text of a helper.

    Raises:
        InternalError: no helper has this name.
    """
    for pattern, build in BUILDERS.items():
        found = re.fullmatch(pattern, name)
        if found:
            return build(*found.groups())
    raise InternalError(f"expected a helper of the C emitter, received {name}")


def with_needed(names: set[str]) -> list[str]:
    """Return the texts of helpers and of those that they use, each after what it needs."""
    texts: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in texts:
            return
        text = helper(name)
        for used in sorted(set(re.findall(r"\bframe_\w+(?=\()", text)) - {name}):
            visit(used)
        texts[name] = text

    for name in sorted(names):
        visit(name)
    return list(texts.values())
