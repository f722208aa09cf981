"""What the machine can do: multiply-add peak, read bandwidth, triad bandwidth.

The kernels are those by which frame's profiles know the roofline (`frame.backends.cpu.peaks`). The
sizes of the triad are chosen for the first and second level of cache and for memory.
"""

from __future__ import annotations

from frame.backends.cpu.peaks import bandwidth, peak_gflops

BYTES = {"l1": 24 * 1024, "l2": 384 * 1024, "memory": 96 * 1024 * 1024}
"""Bytes that a thread's arrays take together; the second level of small cores is 512 KiB."""


def limits(threads: int) -> dict[str, float]:
    """Return the limits of the machine for a number of threads."""
    found = {"fma_gflops": round(peak_gflops(threads), 1)}
    for level, size in BYTES.items():
        found[f"triad_{level}_gb"] = round(bandwidth("triad", size, threads), 1)
    found["read_memory_gb"] = round(bandwidth("read", BYTES["memory"], threads), 1)
    return found
