"""The CPU as data: what code generation may use of this machine, or of a named one.

Found without llvmlite, so that a warm start doesn't import it: features come from /proc/cpuinfo,
caches from /sys. Elsewhere the baseline of the architecture is used. A target holds instruction
sets only and no tuning flags, so its text, which is part of every cache key, is stable.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Iterable

from frame.backends.cpu import features as tables
from frame.core import config
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.targets import TargetDescription

_ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_FLAGS = {"x86_64": tables.X86_64_FLAGS, "aarch64": tables.AARCH64_FLAGS}
_FLAG_LINES = {"x86_64": "flags", "aarch64": "Features"}
_ALIASES = {"x86-64-v1": "x86-64", "generic": "armv8-a", "aarch64": "armv8-a"}

# Sizes of a small machine of today, for a system that doesn't tell: level 1 data, 2 and 3 in bytes.
_FALLBACK_CACHES = (32 * 1024, 512 * 1024, 4 * 1024 * 1024, 64)
_CACHE_FOLDER = "/sys/devices/system/cpu/cpu0/cache"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def host_target() -> TargetDescription:
    """Return the target of this process: the machine's own CPU, or what FRAME_CPU asks for.

    Raises InvalidArgumentError when FRAME_CPU names an unknown CPU or one whose instructions this
    machine can't run.
    """
    return _host_target(config.get("FRAME_CPU"))


def named_target(name: str) -> TargetDescription:
    """Return the target of a CPU name, for code that may run elsewhere.

    `name` is "native" or a level ("x86-64-v3", "armv8.2-a"; see `known_targets`), with optional
    changes: "x86-64-v3,+avx512f" or "native,-f16c". Caches are this machine's.

    Raises InvalidArgumentError for another name.
    """
    base, *changes = (part.strip() for part in name.split(","))
    architecture, features = _base_features(base, name)
    for change in changes:
        features = _changed(features, change, architecture, name)
    return _describe(name, architecture, features)


def known_targets() -> tuple[str, ...]:
    """Return the names that `named_target` and FRAME_CPU know, without changes."""
    return ("native", *(name for levels in tables.LEVELS.values() for name in levels))


def host_architecture() -> str:
    """Return "x86_64" or "aarch64"; UnimplementedError on another machine."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise UnimplementedError(
            f"the cpu backend expects an x86-64 or AArch64 machine, found {platform.machine()!r}"
        )
    return architecture


def host_features(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> frozenset[str]:
    """Return LLVM's names of the instruction sets that every core of this machine has."""
    architecture = host_architecture()
    try:
        text = _text(os.fspath(cpuinfo))
    except OSError:
        return frozenset(next(iter(tables.LEVELS[architecture].values()))[1])
    return parse_cpuinfo(text, architecture)


def missing_features(cpu: Iterable[str]) -> tuple[str, ...]:
    """Return what code for (architecture, features...) needs and this machine lacks, sorted."""
    return tuple(sorted(set(cpu) - {host_architecture()} - _native_features()))


def code_features(target: TargetDescription) -> tuple[str, ...]:
    """Return the architecture of a target and its features, as `missing_features` takes them."""
    return (target.triple.partition("-")[0], *target.features)


def parse_cpuinfo(text: str, architecture: str) -> frozenset[str]:
    """Return the features that all processors in the text of /proc/cpuinfo share.

    A virtual machine may mask a flag and leave others that stand on it; those are dropped too.
    """
    label = _FLAG_LINES[architecture]
    names = _FLAGS[architecture]
    rows = [
        frozenset(names[flag] for flag in value.split() if flag in names)
        for key, _, value in (line.partition(":") for line in text.splitlines())
        if key.strip() == label
    ]
    found = frozenset.intersection(*rows) if rows else frozenset()
    base = next(iter(tables.LEVELS[architecture].values()))[1]
    return _closed(found | frozenset(base))


def host_caches(
    folder: str | os.PathLike[str] = _CACHE_FOLDER,
) -> tuple[int, int, int, int]:
    """Return (level 1 data, level 2, level 3, line) of core 0 in bytes; fallbacks where unknown.

    Level 3 is 0 on a machine that tells of its caches and has none.
    """
    sizes: dict[int, int] = {}
    line = 0
    for index in _indices(folder):
        try:
            if _text(index, "type").strip() == "Instruction":
                continue
            level = int(_text(index, "level"))
            sizes[level] = max(sizes.get(level, 0), _bytes(_text(index, "size")))
            line = line or int(_text(index, "coherency_line_size"))
        except (OSError, ValueError):
            continue
    l1, l2, _, usual_line = _FALLBACK_CACHES
    if not sizes:
        return _FALLBACK_CACHES
    return sizes.get(1, l1), sizes.get(2, l2), sizes.get(3, 0), line or usual_line


def _indices(folder: str | os.PathLike[str]) -> list[str]:
    """Return the folders that tell of one cache each."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith("index")]


def _text(*path: str) -> str:
    with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
        return file.read()


@functools.lru_cache(maxsize=16)
def _host_target(name: str) -> TargetDescription:
    try:
        target = named_target(name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"FRAME_CPU: {error}") from None
    missing = sorted(frozenset(target.features) - _native_features())
    if target.triple.partition("-")[0] != host_architecture() or missing:
        raise InvalidArgumentError(
            f"FRAME_CPU: expected a CPU whose code this {host_architecture()} machine can run, "
            f"received {name!r}, which needs {', '.join(missing) or 'another architecture'}; "
            "unset it, or compile ahead of time for that CPU"
        )
    return target


def _base_features(base: str, name: str) -> tuple[str, frozenset[str]]:
    if base == "native":
        return host_architecture(), _native_features()
    base = _ALIASES.get(base, base)
    for architecture, levels in tables.LEVELS.items():
        if base in levels:
            return architecture, frozenset(levels[base][1])
    raise InvalidArgumentError(
        f"expected a CPU of {', '.join(known_targets())}, with changes such as ',+avx2', "
        f"received {name!r}"
    )


@functools.cache
def _native_features() -> frozenset[str]:
    return host_features()


def _changed(features: frozenset[str], change: str, architecture: str, name: str) -> frozenset[str]:
    sign, feature = change[:1], change[1:]
    if sign not in ("+", "-") or feature not in _FLAGS[architecture].values():
        raise InvalidArgumentError(
            f"expected a change such as +avx2 or -f16c of an {architecture} feature "
            f"({', '.join(sorted(_FLAGS[architecture].values()))}), received {change!r} in {name!r}"
        )
    if sign == "+":
        return features | _needed(feature)
    return _closed(features - {feature})


def _needed(feature: str) -> frozenset[str]:
    """Return a feature with everything that it stands on."""
    found = {feature}
    for other in tables.REQUIRES.get(feature, ()):
        found |= _needed(other)
    return frozenset(found)


def _closed(features: frozenset[str]) -> frozenset[str]:
    """Return the features all of whose requirements are among them."""
    return frozenset(feature for feature in features if _needed(feature) <= features)


def _describe(name: str, architecture: str, features: frozenset[str]) -> TargetDescription:
    l1, l2, l3, line = host_caches()
    wide = "avx512f" in features and "avx512vl" in features
    return TargetDescription(
        name=name,
        triple=_triple(architecture),
        cpu=_level(architecture, features),
        features=tuple(sorted(features)),
        vector_bits=512 if wide else 256 if features & {"avx2", "sve"} else 128,
        vector_registers=32 if wide or architecture == "aarch64" else 16,
        l1=l1,
        l2=l2,
        l3=l3,
        cache_line=line,
        fma=bool(features & {"fma", "neon"}),
        fma_units=2,
        fma_latency=4,
        half=_half(features),
        symbols=True,
        intrinsics=frozenset(
            intrinsic for feature, intrinsic in tables.INTRINSICS.items() if feature in features
        ),
    )


def _half(features: Iterable[str]) -> str:
    if {"avx512fp16", "fullfp16"} & set(features):
        return "native"
    return "convert" if {"f16c", "neon"} & set(features) else "none"


def _level(architecture: str, features: frozenset[str]) -> str:
    """Return LLVM's name of the highest level that the features cover."""
    levels = tables.LEVELS[architecture].values()
    return [cpu for cpu, needed in levels if features >= frozenset(needed)][-1]


def _triple(architecture: str) -> str:
    """Return the triple; our loader reads ELF whatever the system's own format is."""
    system = "linux-gnu" if sys.platform == "linux" else "none-elf"
    return f"{architecture}-unknown-{system}"


def _bytes(text: str) -> int:
    text = text.strip()
    unit = _UNITS.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit
