"""What a native call and a fork-join of the thread pool cost. One JSON line a case.

    python benchmarks/native_calls.py

`call_*`: one argument, from Python. `fork_join`: launches of empty chunks in a row, timed inside
native code. `launch`: the same from Python. `wake`: a launch after the workers went to sleep.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable

import cffi

from frame.backends.cpu import elf, llvm
from frame.backends.cpu.pool import Pool, get_pool
from frame.backends.cpu.target import host_target

TEXT = """
define i64 @entry(ptr %context) #0 { ret i64 0 }
define void @nothing(ptr %args, i64 %chunk) #0 { ret void }
define i64 @repeat(ptr %pool, ptr %launch, ptr %kernel, i64 %chunks, i64 %times) #0 {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %launch(ptr %pool, ptr %kernel, ptr null, i64 %chunks)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret i64 0
}
attributes #0 = { nounwind "no-builtins" }
"""
ROUNDS = 21
WORD, POINTER = ctypes.c_int64, ctypes.c_void_p


def report(case: str, times: list[float], **facts: object) -> None:
    """Print one case; `times` are seconds a call."""
    nanoseconds = sorted(1e9 * seconds for seconds in times)
    line = {
        "case": case,
        "median_ns": round(statistics.median(nanoseconds)),
        "best_ns": round(nanoseconds[0]),
        **facts,
    }
    print(json.dumps(line))


def timed(function: Callable[[], object], repeats: int) -> float:
    """Return seconds a call of `function`."""
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def calls(address: int) -> None:
    """Time a call of native code by each way that Python has for it."""
    context = (WORD * 10)()
    place = ctypes.addressof(context)
    ffi = cffi.FFI()
    pointer = ffi.cast("void *", place)
    by_ctypes = ctypes.CFUNCTYPE(WORD, POINTER)(address)
    by_cffi = ffi.cast("int64_t (*)(void *)", address)
    cases: dict[str, Callable[[], object]] = {
        "ctypes": lambda: by_ctypes(place),
        "cffi": lambda: by_cffi(pointer),
        "empty_lambda": lambda: None,
        "get_pool": get_pool,
    }
    for name, function in cases.items():
        report(f"call_{name}", [timed(function, 20000) for _ in range(ROUNDS)])


def fork_joins(pool: Pool, loaded: elf.LoadedObject) -> None:
    """Time launches of the pool: back to back, from Python, and after a sleep of its workers."""
    kernel = loaded.symbol("nothing")
    repeat = ctypes.CFUNCTYPE(WORD, POINTER, POINTER, POINTER, WORD, WORD)(loaded.symbol("repeat"))
    launch = ctypes.CFUNCTYPE(None, POINTER, POINTER, POINTER, WORD)(pool.launch_address)
    for chunks in (1, 2, 4, 16):
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            repeat(pool.address, pool.launch_address, kernel, chunks, 20000)
            times.append((time.perf_counter() - start) / 20000)
        report("fork_join", times, chunks=chunks, threads=pool.threads)
    arguments = (pool.address, kernel, 0, 2)
    report("launch", [timed(lambda: launch(*arguments), 5000) for _ in range(ROUNDS)], chunks=2)
    woken = []
    for _ in range(ROUNDS):
        time.sleep(0.003)
        woken.append(timed(lambda: launch(*arguments), 1))
    report("wake", woken, chunks=2)


def main() -> None:
    """Print one JSON line a case."""
    loaded = elf.load(llvm.compile_ir(TEXT, host_target()))
    pool = get_pool()
    calls(loaded.symbol("entry"))
    fork_joins(pool, loaded)


if __name__ == "__main__":
    main()
