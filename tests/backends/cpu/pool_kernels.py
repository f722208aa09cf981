"""Hand-written kernels for the tests of the thread pool, and Python ways to call the pool."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from frame.backends.cpu import elf, llvm
from frame.backends.cpu.pool import Pool, get_pool, set_num_threads
from frame.backends.cpu.target import named_target
from frame.core import config

WORD = ctypes.c_int64
POINTER = ctypes.c_void_p

# args: 0 pointer to counters, 1 what to add, 2 iterations of work, then for `nested` 3 pool,
# 4 launch, 5 inner kernel, 6 inner args, 7 inner chunks; for `failing` 1 fail, 2 status, 3 chunks.
TEXT = """
define void @add(ptr %args, i64 %chunk) #0 {
  %counters = load ptr, ptr %args
  %step_at = getelementptr i64, ptr %args, i64 1
  %step = load i64, ptr %step_at
  %at = getelementptr i64, ptr %counters, i64 %chunk
  %old = load i64, ptr %at
  %new = add i64 %old, %step
  store i64 %new, ptr %at
  call void @spend(ptr %args)
  ret void
}
define void @twice(ptr %args, i64 %chunk) #0 {
  call void @add(ptr %args, i64 %chunk)
  call void @add(ptr %args, i64 %chunk)
  ret void
}
define void @nested(ptr %args, i64 %chunk) #0 {
  call void @add(ptr %args, i64 %chunk)
  %pool_at = getelementptr i64, ptr %args, i64 3
  %launch_at = getelementptr i64, ptr %args, i64 4
  %kernel_at = getelementptr i64, ptr %args, i64 5
  %inner_at = getelementptr i64, ptr %args, i64 6
  %chunks_at = getelementptr i64, ptr %args, i64 7
  %pool = load ptr, ptr %pool_at
  %launch = load ptr, ptr %launch_at
  %kernel = load ptr, ptr %kernel_at
  %inner_all = load ptr, ptr %inner_at
  %chunks = load i64, ptr %chunks_at
  %inner = getelementptr [8 x i64], ptr %inner_all, i64 %chunk
  call void %launch(ptr %pool, ptr %kernel, ptr %inner, i64 %chunks)
  ret void
}
; Chunk c fails at site 7 and position 1000 - c, and at site 3 if c is odd.
define void @failing(ptr %args, i64 %chunk) #0 {
entry:
  %fail_at = getelementptr i64, ptr %args, i64 1
  %status_at = getelementptr i64, ptr %args, i64 2
  %fail = load ptr, ptr %fail_at
  %status = load ptr, ptr %status_at
  %position = sub i64 1000, %chunk
  call void %fail(ptr %status, i64 7, i64 %position, i64 %chunk)
  %odd = trunc i64 %chunk to i1
  br i1 %odd, label %again, label %done
again:
  call void %fail(ptr %status, i64 3, i64 %position, i64 %chunk)
  br label %done
done:
  ret void
}
; The sum over many elements by one atomic word: heavy traffic on purpose.
define void @tally(ptr %args, i64 %chunk) #0 {
  %counters = load ptr, ptr %args
  %one = atomicrmw add ptr %counters, i64 1 monotonic
  %sum_at = getelementptr i64, ptr %counters, i64 1
  %sum = atomicrmw add ptr %sum_at, i64 %chunk monotonic
  ret void
}
; counters[chunk] := half of the smallest normal number, a denormal
define void @halve(ptr %args, i64 %chunk) #0 {
  %counters = load ptr, ptr %args
  %step_at = getelementptr i64, ptr %args, i64 1
  %tiny = load double, ptr %step_at
  %half = fmul double %tiny, 0.5
  %at = getelementptr double, ptr %counters, i64 %chunk
  store double %half, ptr %at
  call void @spend(ptr %args)
  ret void
}
define internal void @spend(ptr %args) #0 {
entry:
  %work_at = getelementptr i64, ptr %args, i64 2
  %work = load i64, ptr %work_at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %again = load volatile i64, ptr %args
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %work
  br i1 %more, label %loop, label %done
done:
  ret void
}
attributes #0 = { nounwind noinline "no-builtins" }
"""


@functools.cache
def code() -> elf.LoadedObject:
    """Return the loaded kernels."""
    return elf.load(llvm.compile_ir(TEXT, named_target("native")))


def launch(pool: Pool, kernel: str, args: ctypes.Array[WORD], chunks: int) -> None:
    """Run a kernel of this module by name."""
    function = ctypes.CFUNCTYPE(None, POINTER, POINTER, POINTER, WORD)(pool.launch_address)
    function(pool.address, code().symbol(kernel), ctypes.addressof(args), chunks)


def adder(counters: ctypes.Array[WORD], step: int = 1, work: int = 0) -> ctypes.Array[WORD]:
    """Return the arguments of `add` and `twice`."""
    return (WORD * 8)(ctypes.addressof(counters), step, work)


def run_and_check(pool: Pool, chunks: int, work: int = 0) -> None:
    """Launch `add` and check that every chunk ran exactly once."""
    counters = (WORD * max(chunks, 1))()
    launch(pool, "add", adder(counters, work=work), chunks)
    assert list(counters)[:chunks] == [1] * chunks


@contextmanager
def pool_of(threads: int, wait: str = "futex") -> Iterator[Pool]:
    """Give the process pool a size and a way to wait for the length of a block."""
    code()  # two threads that load it together would each get a copy, and one copy would go
    with config.override(FRAME_POOL_WAIT=wait):
        pool = set_num_threads(threads)
        try:
            yield pool
        finally:
            set_num_threads(1)
    set_num_threads(None)
    assert get_pool() is pool
