"""Running an artefact that was compiled with clock reads around every launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frame.backends.cpu.executable import CpuExecutable, LaunchInfo
from frame.core.shapes import Dim, parse_dim
from frame.hal.interfaces import KernelTime


def run_profiled(executable: CpuExecutable, inputs: Sequence[Any]) -> list[KernelTime]:
    """Run twice, once to warm up, and return the launch times of the second run.

    Inputs that the run updates are copied first.
    """
    launches, updated = executable.artifact.launches, set(executable.signature.updates)
    arrays = [np.array(a) if i in updated else a for i, a in enumerate(inputs)]
    words = np.zeros(2 * max(len(launches), 1), np.int64)
    executable.run_with_profile(arrays, words)  # code for profiling always writes its words
    words[:] = 0
    bindings = executable.run_with_profile(arrays, words)
    return [
        _time(info, words[2 * position : 2 * position + 2], bindings)
        for position, info in enumerate(launches)
    ]


def _time(info: LaunchInfo, words: np.ndarray, bindings: dict[str, int]) -> KernelTime:
    runs = int(words[1])
    return KernelTime(
        info.kernel,
        info.origins,
        int(words[0]) * 1e-9,
        _evaluate(info.flops, bindings) * runs,
        _evaluate(info.bytes, bindings) * runs,
        info.width,
    )


def _evaluate(text: str, bindings: dict[str, int]) -> int:
    size = parse_dim(text)
    return size.evaluate(bindings) if isinstance(size, Dim) else size
