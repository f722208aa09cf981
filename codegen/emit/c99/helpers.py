"""C functions that generated code calls, each carried only by the sources that use it.

A name says what the function does; `helper` returns the text of a name together with what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from frame.core.dtypes import DTYPES, DType
from frame.core.errors import UnimplementedError

C_TYPES: Mapping[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "bool": "uint8_t",
}


def c_type(dtype: DType) -> str:
    """Return the C type of one element; 16-bit floats are their bits."""
    return C_TYPES.get(dtype.name, f"{dtype.kind}{dtype.itemsize * 8}_t")


_BITCAST = """static inline {to} frame_bits_{a}_{b}({source} x) {{
    {to} y;
    memcpy(&y, &x, sizeof y);
    return y;
}}"""

_WIDEN = {
    "bfloat16": """static inline float frame_widen_bfloat16(uint16_t x) {
    return frame_bits_uint32_float32((uint32_t)x << 16);
}""",
    "float16": """static inline float frame_widen_float16(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t shifted = (uint32_t)(x & 0x7fffu) << 13;
    const uint32_t exponent = shifted & 0x0f800000u;
    uint32_t bits = shifted + 0x38000000u;
    if (exponent == 0x0f800000u) bits += 0x38000000u;
    if (exponent == 0)  /* denormal: let a subtraction normalise it */
        bits = frame_bits_float32_uint32(
            frame_bits_uint32_float32(bits + 0x00800000u) - 6.103515625e-05f);
    return frame_bits_uint32_float32(bits | sign);
}""",
}

_NARROW = {
    "bfloat16": """static inline uint16_t frame_narrow_bfloat16(float x) {
    const uint32_t bits = frame_bits_float32_uint32(x);
    if (x != x) return (uint16_t)((bits | 0x00400000u) >> 16);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}""",
    "float16": """static inline uint16_t frame_narrow_float16(float x) {
    const uint32_t bits = frame_bits_float32_uint32(x);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t result;
    if (magnitude > 0x7f800000u)
        result = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    else if (magnitude >= 0x47800000u)
        result = 0x7c00u;
    else if (magnitude < 0x38800000u)  /* denormal: let an addition round it */
        result = frame_bits_float32_uint32(frame_bits_uint32_float32(magnitude) + 0.5f)
                 - 0x3f000000u;
    else
        result = (magnitude - 0x37fff001u + ((magnitude >> 13) & 1u)) >> 13;
    return (uint16_t)(result | sign);
}""",
}

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

_FAIL = """static void frame_fail(int64_t *status, int64_t site, int64_t position, int64_t value) {
    if (status[0] != 0 && (status[0] < site || (status[0] == site && status[1] <= position)))
        return;
    status[0] = site;
    status[1] = position;
    status[2] = value;
}"""


def _saturate(dtype: DType) -> str:
    signed, bits = dtype.kind == "int", dtype.bits
    prefix = f"{dtype.kind.upper()}{bits}"
    return _SATURATE.format(
        type=c_type(dtype),
        name=dtype.name,
        low=f"-{2.0 ** (bits - 1)!r}" if signed else "0.0",
        high=repr(2.0 ** (bits - 1 if signed else bits)),
        least=f"{prefix}_MIN" if signed else "0",
        greatest=f"{prefix}_MAX",
    )


def _bitcast(a: DType, b: DType) -> str:
    return _BITCAST.format(a=a, b=b, source=c_type(a), to=c_type(b))


BUILDERS: Mapping[str, Callable[..., str]] = {
    r"frame_bits_(\w+?)_(\w+)": lambda a, b: _bitcast(DTYPES[a], DTYPES[b]),
    r"frame_widen_(\w+)": lambda name: _WIDEN[name],
    r"frame_narrow_(\w+)": lambda name: _NARROW[name],
    r"frame_odd_(int|uint)": lambda kind: _ODD_INTEGER.format(kind=kind, fits=_FITS[kind]),
    r"frame_odd": lambda: _ODD,
    r"frame_saturate_(\w+)": lambda name: _saturate(DTYPES[name]),
    r"frame_fail": lambda: _FAIL,
}


def helper(name: str) -> str:
    """Return the C text of a helper.

    Raises:
        UnimplementedError: no helper has this name (a cast of a dtype that is for storage only).
    """
    for pattern, build in BUILDERS.items():
        found = re.fullmatch(pattern, name)
        if found:
            return build(*found.groups())
    raise UnimplementedError(f"expected a helper of the C emitter, received {name}")


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
