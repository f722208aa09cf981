"""What the machine can do: multiply-add peak, read bandwidth, triad bandwidth.

Three small generated kernels, run by as many threads as the peers have. The peak keeps enough
independent accumulators in registers to hide the latency of two multiply-add units. The triad
a = b + s * c and the read go over arrays of their own for each thread; its sizes are chosen for the
first and second level of cache and for memory.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import llvmlite.binding as llvm
import numpy as np

from frame.backends.cpu.backend import CpuBackend

FMA_ITERATIONS = 5_000_000
BYTES = {"l1": 24 * 1024, "l2": 384 * 1024, "memory": 96 * 1024 * 1024}
"""Bytes that a thread's arrays take together; the second level of small cores is 512 KiB."""

SIGNATURE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
_KEEP: list[object] = []  # engines, whose code lives as long as they do


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


def _module(lanes: int, accumulators: int) -> str:
    vector, fma = f"<{lanes} x float>", f"@llvm.fma.v{lanes}f32"

    def multiply(k: int) -> list[str]:
        return [f"%next{k} = call {vector} {fma}({vector} %sum{k}, {vector} %x, {vector} %y)"]

    def load(k: int, source: str) -> list[str]:
        return [
            f"%{source}p{k} = getelementptr float, ptr %{source}, i64 %at{k}",
            f"%{source}v{k} = load {vector}, ptr %{source}p{k}, align 4",
        ]

    def read(k: int) -> list[str]:
        return [*load(k, "b"), f"%next{k} = fadd {vector} %sum{k}, %bv{k}"]

    def triad(k: int) -> list[str]:
        operands = f"{vector} %cv{k}, {vector} {_splat(lanes, '0.5')}, {vector} %bv{k}"
        return [
            *load(k, "b"),
            *load(k, "c"),
            f"%made{k} = call {vector} {fma}({operands})",
            f"%ap{k} = getelementptr float, ptr %a, i64 %at{k}",
            f"store {vector} %made{k}, ptr %ap{k}, align 4",
            f"%next{k} = fadd {vector} {_splat(lanes, '0.0')}, {_splat(lanes, '0.0')}",
        ]

    peak = _loop("peak", lanes, accumulators, multiply)
    loads = f"  %x = load {vector}, ptr %b, align 4\n  %y = load {vector}, ptr %c, align 4\n"
    peak = peak.replace("  br label %outer\n", f"{loads}  br label %outer\n", 1)
    declared = f"declare {vector} {fma}({vector}, {vector}, {vector})"
    parts = (declared, peak, _loop("read", lanes, 8, read), _loop("triad", lanes, 4, triad))
    return "\n\n".join(parts)


def _splat(lanes: int, number: str) -> str:
    return "<" + ", ".join(f"float {number}" for _ in range(lanes)) + ">"


@functools.cache
def _kernels() -> tuple[int, int, Mapping[str, Callable[..., None]]]:
    """Return lanes, accumulators of the peak, and the compiled kernels."""
    target = CpuBackend().target()
    lanes = max(4, target.vector_bits // 32)
    accumulators = 12 if target.vector_registers >= 16 else 6
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    if lanes >= 16:
        features += ",-prefer-256-bit"
    host = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    module = llvm.parse_assembly(_module(lanes, accumulators))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, host)
    engine.finalize_object()
    _KEEP.append(engine)
    names = ("peak", "read", "triad")
    return lanes, accumulators, {n: SIGNATURE(engine.get_function_address(n)) for n in names}


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


def peak_gflops(threads: int, tries: int = 3) -> float:
    """Return the most float32 multiply-adds a second that all threads reach, in GFLOP/s."""
    lanes, accumulators, kernels = _kernels()
    buffers = [np.full((3, 64), 0.5, np.float32) for _ in range(threads)]

    def run(index: int) -> None:
        a, b, c = (row.ctypes.data for row in buffers[index])
        kernels["peak"](a, b, c, FMA_ITERATIONS, 1)

    seconds = min(_parallel(run, threads) for _ in range(tries))
    return 2 * lanes * accumulators * FMA_ITERATIONS * threads / seconds / 1e9


def bandwidth(kernel: str, size: int, threads: int, tries: int = 3) -> float:
    """Return the GB/s of `read` or `triad` over `size` bytes a thread, over all threads."""
    lanes, _, kernels = _kernels()
    arrays = 3 if kernel == "triad" else 1
    unit = lanes * (4 if kernel == "triad" else 8)
    count = size // (4 * arrays) // unit
    data = [np.ones((3, count * unit), np.float32) for _ in range(threads)]
    repeats = max(1, 256 * 1024 * 1024 // size)

    def run(index: int) -> None:
        a, b, c = (row.ctypes.data for row in data[index])
        kernels[kernel](a, b, c, count, repeats)

    seconds = min(_parallel(run, threads) for _ in range(tries))
    return 4 * arrays * count * unit * repeats * threads / seconds / 1e9


def limits(threads: int) -> dict[str, float]:
    """Return the limits of the machine for a number of threads."""
    found = {"fma_gflops": round(peak_gflops(threads), 1)}
    for level, size in BYTES.items():
        found[f"triad_{level}_gb"] = round(bandwidth("triad", size, threads), 1)
    found["read_memory_gb"] = round(bandwidth("read", BYTES["memory"], threads), 1)
    return found
