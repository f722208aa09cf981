"""The facts of `frame doctor`, gathered without changing anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frame.core import config
from frame.core.errors import FrameError

CORE_PACKAGES = ("numpy", "llvmlite", "cffi", "ml_dtypes", "safetensors", "platformdirs")
OPTIONAL_PACKAGES = (
    "click", "rich", "openvino", "pyopencl", "dpctl", "nvidia-cuda-nvrtc", "onnx", "torch",
)  # fmt: skip


def diagnose() -> dict[str, Any]:
    """Return sections of named facts, and `problems`: what keeps frame from working."""
    from frame.cli.discovery import backend_reports

    reports = backend_reports(with_facts=True)
    report: dict[str, Any] = {
        "frame": _frame_facts(),
        "packages": _package_versions(),
        "processor": _processor_facts(),
        "cache": _cache_facts(),
        "settings": _settings(),
    }
    report |= {
        f"backend {each.name}": {"state": each.state} | _problem(each.problem) | each.facts
        for each in reports
    }
    cpu = {each.name: each for each in reports}.get("cpu")
    report["problems"] = [*_missing_packages(), *_cpu_problems(cpu), *_bad_settings()]
    return report


def _problem(text: str) -> dict[str, str]:
    return {"problem": text} if text else {}


def _frame_facts() -> dict[str, str]:
    from frame._version import __version__

    return {
        "version": __version__,
        "folder": str(Path(__file__).resolve().parents[1]),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package_versions() -> dict[str, str]:
    core = {name: _version(name) or "missing" for name in CORE_PACKAGES}
    optional = {name: _version(name) for name in OPTIONAL_PACKAGES}
    return core | {name: version for name, version in optional.items() if version}


def _missing_packages() -> list[str]:
    return [f"the package {name} is missing" for name in CORE_PACKAGES if not _version(name)]


def _processor_facts() -> dict[str, str]:
    return {
        "model": _processor_model(),
        "logical processors": str(os.cpu_count()),
        "usable here": str(_usable_processors()),
    }


def _processor_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _usable_processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cache_facts() -> dict[str, Any]:
    """The facts of the cache and its health, or the setting that keeps it from being found."""
    from frame.cli.commands.cache import cache_facts
    from frame.runtime.cache import default_cache

    try:
        sound, damaged = default_cache().verify()
        return cache_facts() | {"sound": sound, "damaged": len(damaged)}
    except FrameError as error:
        return {"problem": str(error)}


def _settings() -> Mapping[str, str]:
    return config.environment()


def _bad_settings() -> list[str]:
    from frame.runtime.backends import backend_names

    problems = []
    for name in config.SETTINGS:
        try:
            config.get(name)
        except FrameError as error:
            problems.append(str(error))
    chosen, known = config.get("FRAME_BACKEND"), backend_names()
    if chosen not in known:
        problems.append(f"FRAME_BACKEND: expected one of {', '.join(known)}, received {chosen!r}")
    return problems


def _cpu_problems(cpu: Any) -> list[str]:
    if cpu is None:
        return ["the cpu backend is not registered: frame is not installed (pip install .)"]
    return [] if cpu.state == "ready" else [f"the cpu backend is {cpu.state}: {cpu.problem}"]
