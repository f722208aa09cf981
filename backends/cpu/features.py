"""What LLVM calls the instruction sets of x86-64 and AArch64, as tables. ISA only, no tuning."""

from __future__ import annotations

from collections.abc import Mapping

# Flag of /proc/cpuinfo -> feature of LLVM. A flag that is not here never reaches a target, so a new
# kernel or LLVM doesn't change the keys of a cache.
X86_64_FLAGS: Mapping[str, str] = {
    "abm": "lzcnt",
    "adx": "adx",
    "aes": "aes",
    "avx": "avx",
    "avx2": "avx2",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512f": "avx512f",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vl": "avx512vl",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "cx16": "cx16",
    "f16c": "f16c",
    "fma": "fma",
    "gfni": "gfni",
    "lahf_lm": "sahf",
    "movbe": "movbe",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "popcnt": "popcnt",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "ssse3": "ssse3",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
}

AARCH64_FLAGS: Mapping[str, str] = {
    "aes": "aes",
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "bf16": "bf16",
    "crc32": "crc",
    "fcma": "complxnum",
    "fp": "fp-armv8",
    "i8mm": "i8mm",
    "jscvt": "jsconv",
    "lrcpc": "rcpc",
    "sha2": "sha2",
}

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_ARMV8 = ("fp-armv8", "neon")
_ARMV82 = (*_ARMV8, "crc", "dotprod", "fullfp16", "lse", "rdm")

# Levels in rising order, by architecture: name -> (LLVM's CPU name, its features).
LEVELS: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "x86_64": {
        "x86-64": ("x86-64", ()),
        "x86-64-v2": ("x86-64-v2", _V2),
        "x86-64-v3": ("x86-64-v3", _V3),
        "x86-64-v4": ("x86-64-v4", _V4),
    },
    "aarch64": {
        "armv8-a": ("generic", _ARMV8),
        "armv8.2-a": ("generic", _ARMV82),
        # SVE with vectors of 256 bits. Found on no host by itself: code is made for it by name.
        "neoverse-v1": ("neoverse-v1", (*_ARMV82, "bf16", "fp16fml", "i8mm", "sve")),
    },
}

# What a feature stands on: taking one away takes away whatever needs it.
REQUIRES: Mapping[str, tuple[str, ...]] = {
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "avx": ("sse4.2",),
    "avx2": ("avx",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "vaes": ("avx2", "aes"),
    "vpclmulqdq": ("avx", "pclmul"),
    "avxvnni": ("avx2",),
    "avx512f": ("avx2", "f16c", "fma"),
    "avx512bw": ("avx512f",),
    "avx512cd": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512ifma": ("avx512f",),
    "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",),
    "avx512vnni": ("avx512f",),
    "avx512vpopcntdq": ("avx512f",),
    "avx512bitalg": ("avx512bw",),
    "avx512bf16": ("avx512bw", "avx512vl"),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    "dotprod": ("neon",),
    "fullfp16": ("neon",),
    "fp16fml": ("fullfp16",),
    "neon": ("fp-armv8",),
    "rdm": ("neon",),
    "bf16": ("neon",),
    "i8mm": ("neon",),
    "sve": ("fullfp16",),
    "aes": (),
}

# Feature -> intrinsic names of TargetDescription that schedules may ask for. One that ends in 128
# takes vectors of so many bits at most.
INTRINSICS: Mapping[str, str] = {
    "fma": "fma",
    "neon": "fma",
    "avx512vnni": "dot_u8s8",
    "avxvnni": "dot_u8s8",
    "dotprod": "dot_s8s8",
    "avx512bf16": "dot_bf16",
    "bf16": "dot_bf16_128",
}
