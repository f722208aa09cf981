"""What this machine can do: its multiply-add peak and the bandwidth of each level of its memory.

Three small generated kernels, run by as many threads as the pool has. The peak keeps enough
independent accumulators in registers to hide the latency of two multiply-add units. The triad
a = b + s * c and the read go over arrays of their own for each thread.

`machine_peaks` is for the roofline of profiles: it measures once (some tenths of a second) and
keeps the result with the artefacts.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from frame.backends.cpu import elf
from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.target import host_target
from frame.backends.cpu.threads import default_threads
from frame.core.targets import TargetDescription
from frame.hal.interfaces import ArtifactStore, Peaks

_FMA_ITERATIONS = 3_000_000
_PASSED = 1 << 27  # bytes that a measurement of bandwidth moves
_MEMORY = 4  # times the last cache of all threads is surely main memory
_LEAST_MEMORY, _MOST_MEMORY = 1 << 26, 1 << 28
_VERSION = "peaks 1"

_SIGNATURE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)


def machine_peaks(store: ArtifactStore | None = None) -> Peaks:
    """Return the peaks of all threads of the pool, from the store where it has them."""
    return _machine_peaks(host_target(), default_threads(), _machine_name(), store)


_known: dict[str, Peaks] = {}  # those of this process


def _machine_peaks(
    target: TargetDescription, threads: int, machine: str, store: ArtifactStore | None
) -> Peaks:
    parts = (_VERSION, target.text(), str(threads), machine)
    key = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
    found = _known.get(key) or _read(None if store is None else store.get(key))
    if found is None:
        found = _measured(target, threads)
        if store is not None:
            store.put(key, json.dumps([found.flops, found.bandwidths]).encode())
    _known[key] = found
    return found


def _read(data: bytes | None) -> Peaks | None:
    try:
        flops, rows = json.loads(data or b"")
        return Peaks(float(flops), tuple((int(size), float(rate)) for size, rate in rows))
    except (ValueError, TypeError):
        return None


def _measured(target: TargetDescription, threads: int) -> Peaks:
    levels = [size * share for size, share in ((target.l1, 1), (target.l2, 1), (target.l3, 1))]
    rows = []
    for level in levels:
        # Level 3 is shared by the threads, the others are each one's own.
        own = level // threads if level == target.l3 else level
        if level:
            rate = bandwidth("triad", max(own * 3 // 4, 4096), threads)
            rows.append((level if level == target.l3 else level * threads, rate * 1e9))
    memory = min(max(_MEMORY * target.l3, _LEAST_MEMORY), _MOST_MEMORY) // threads
    rows.append((0, max(bandwidth(k, memory, threads) for k in ("triad", "read")) * 1e9))
    return Peaks(peak_gflops(threads) * 1e9, tuple(rows))


def _machine_name() -> str:
    """Return what the system calls the processor: machines may share a cache directory."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            names = ("model name", "CPU part")
            return next((v.strip() for key, _, v in lines if key.strip() in names), "")
    except OSError:
        return ""


# --- measuring ------------------------------------------------------------------------------------


def peak_gflops(threads: int, tries: int = 3) -> float:
    """Return the most float32 multiply-adds a second that all threads reach, in GFLOP/s."""
    lanes, accumulators, kernels = _kernels()
    buffers = [np.full((3, 64), 0.5, np.float32) for _ in range(threads)]

    def run(index: int) -> None:
        a, b, c = (row.ctypes.data for row in buffers[index])
        kernels["peak"](a, b, c, _FMA_ITERATIONS, 1)

    seconds = min(_parallel(run, threads) for _ in range(tries))
    return 2 * lanes * accumulators * _FMA_ITERATIONS * threads / seconds / 1e9


def bandwidth(kernel: str, size: int, threads: int, tries: int = 3) -> float:
    """Return the GB/s of `read` or `triad` over `size` bytes a thread, over all threads."""
    lanes, _, kernels = _kernels()
    arrays = 3 if kernel == "triad" else 1
    unit = lanes * (4 if kernel == "triad" else 8)
    count = max(1, size // (4 * arrays) // unit)
    data = [np.ones((3, count * unit), np.float32) for _ in range(threads)]
    repeats = max(1, _PASSED // size)

    def run(index: int) -> None:
        a, b, c = (row.ctypes.data for row in data[index])
        kernels[kernel](a, b, c, count, repeats)

    seconds = min(_parallel(run, threads) for _ in range(tries))
    return 4 * arrays * count * unit * repeats * threads / seconds / 1e9


def _parallel(run: Callable[[int], None], threads: int) -> float:
    """Return the seconds from the first start of a thread to the end of the last."""
    barrier = threading.Barrier(threads)
    spans: list[tuple[float, float]] = []

    def work(index: int) -> None:
        run(index)  # warm
        barrier.wait()
        start = time.perf_counter()
        run(index)
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


# --- the kernels ----------------------------------------------------------------------------------


@functools.cache
def _kernels() -> tuple[int, int, Mapping[str, Callable[..., None]]]:
    """Return lanes, accumulators of the peak, and the compiled kernels."""
    target = host_target()
    lanes = max(4, target.vector_bits // 32)
    accumulators = 12 if target.vector_registers >= 16 else 6
    loaded = elf.load(compile_ir(_module(lanes, accumulators, target.fma), target))
    _keep.append(loaded)
    names = ("peak", "read", "triad")
    return lanes, accumulators, {name: _SIGNATURE(loaded.symbol(name)) for name in names}


_keep: list[elf.LoadedObject] = []  # code lives as long as its object


def _module(lanes: int, accumulators: int, fma: bool) -> str:
    vector = f"<{lanes} x float>"

    def multiply_add(name: str, a: str, b: str, c: str) -> list[str]:
        if fma:
            operands = f"{vector} {a}, {vector} {b}, {vector} {c}"
            return [f"%{name} = call {vector} @llvm.fma.v{lanes}f32({operands})"]
        return [f"%{name}.p = fmul {vector} {a}, {b}", f"%{name} = fadd {vector} %{name}.p, {c}"]

    def multiply(k: int) -> list[str]:
        return multiply_add(f"next{k}", f"%sum{k}", "%x", "%y")

    def load(k: int, source: str) -> list[str]:
        return [
            f"%{source}p{k} = getelementptr float, ptr %{source}, i64 %at{k}",
            f"%{source}v{k} = load {vector}, ptr %{source}p{k}, align 4",
        ]

    def read(k: int) -> list[str]:
        return [*load(k, "b"), f"%next{k} = fadd {vector} %sum{k}, %bv{k}"]

    def triad(k: int) -> list[str]:
        return [
            *load(k, "b"),
            *load(k, "c"),
            *multiply_add(f"made{k}", f"%cv{k}", _splat(lanes, "0.5"), f"%bv{k}"),
            f"%ap{k} = getelementptr float, ptr %a, i64 %at{k}",
            f"store {vector} %made{k}, ptr %ap{k}, align 4",
            f"%next{k} = fadd {vector} {_splat(lanes, '0.0')}, {_splat(lanes, '0.0')}",
        ]

    peak = _loop("peak", lanes, accumulators, multiply)
    loads = f"  %x = load {vector}, ptr %b, align 4\n  %y = load {vector}, ptr %c, align 4\n"
    peak = peak.replace("  br label %outer\n", f"{loads}  br label %outer\n", 1)
    declared = f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})"
    parts = (declared, peak, _loop("read", lanes, 8, read), _loop("triad", lanes, 4, triad))
    return "\n\n".join(parts)


def _loop(name: str, lanes: int, count: int, body: Callable[[int], Sequence[str]]) -> str:
    """Return a function (a, b, c, n, times) of a loop over i below n with `count` accumulators.

    The loop runs `times` times. Lines that need no i may stand before it.

    `body(k)` gives the lines that make %next<k> from %sum<k> at the element %at<k>.
    """
    vector = f"<{lanes} x float>"
    zero = "zeroinitializer"
    lines = [f"define void @{name}(ptr %a, ptr %b, ptr %c, i64 %n, i64 %times) {{", "entry:"]
    lines += ["  br label %outer", "outer:", "  %t = phi i64 [0, %entry], [%later, %done]"]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [0, %outer], [%following, %loop]"]
    lines += [f"  %sum{k} = phi {vector} [{zero}, %outer], [%next{k}, %loop]" for k in range(count)]
    for k in range(count):
        lines.append(f"  %offset{k} = mul i64 %i, {lanes * count}")
        lines.append(f"  %at{k} = add i64 %offset{k}, {lanes * k}")
        lines += [f"  {line}" for line in body(k)]
    lines += ["  %following = add i64 %i, 1", "  %more = icmp slt i64 %following, %n"]
    lines += ["  br i1 %more, label %loop, label %done", "done:"]
    total = "%next0"
    for k in range(1, count):
        lines.append(f"  %total{k} = fadd {vector} {total}, %next{k}")
        total = f"%total{k}"
    lines += [f"  store {vector} {total}, ptr %a, align 4", "  %later = add i64 %t, 1"]
    lines += ["  %again = icmp slt i64 %later, %times", "  br i1 %again, label %outer, label %end"]
    lines += ["end:", "  ret void", "}"]
    return "\n".join(lines)


def _splat(lanes: int, number: str) -> str:
    return "<" + ", ".join(f"float {number}" for _ in range(lanes)) + ">"
