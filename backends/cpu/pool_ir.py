"""The thread pool as LLVM IR text: launch, worker loop, failure report and clock.

Words of the pool structure (`FIELDS`), which Python allocates and never moves. A job is published
and claimed through one atomic word:

    state = generation << 24 | chunks that nobody has claimed yet

    launch: kernel, args, base, count := job    (release)
            state := (generation + 1, count)    then wake sleepers, if there are any
    claim:  seen := state; stop if no chunk is left
            read the job                        (acquire)
            state: seen -> seen - 1             compare and swap; retry when it fails
            run chunk base + count - left(seen)

Why a late worker can't mix two jobs: a new job is written only after the old count reached zero.
A worker that read a word of the new job therefore sees, in its compare and swap, a state that is
not `seen`, because the zero happened before the word that it read. The generation keeps the states
of two jobs with equal counts apart; its 40 bits wrap after days of back to back launches, during
which a worker would have to stand between two instructions.

The caller claims chunks as well. It waits until `finished`, the number of chunks that workers have
done, equals the number that it did not claim itself: never for a worker to wake.

Sleep and wake, both ways, follow one pattern with sequentially consistent accesses: the sleeper
announces itself and then looks again, the waker changes the word and then looks for sleepers, so
one of the two sees the other. `sleepers` counts workers that need a wake; a waker takes off those
that it woke, so that a launch during the wake-up costs no second system call.

Kernels run with the usual floating-point control word (round to nearest, denormals kept) in
whichever thread, so that a library that changed the caller's word can't make a result depend on who
claimed a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from frame.core.errors import UnimplementedError

CHUNK_BITS = 24
"""Bits of the state word that count chunks; a larger launch runs as several jobs."""

COUNTER_STRIDE = 128
"""Bytes between the counters of two workers: two cache lines, which adjacent prefetch pairs."""

FIELDS: Mapping[str, int] = {
    "state": 0,
    "kernel": 8,
    "args": 16,
    "base": 24,
    "count": 32,
    "finished": 128,
    "waiting": 132,
    "busy": 256,
    "workers": 260,
    "sleepers": 384,
    "wake": 388,
    "stop": 392,
    "spin": 512,
    "portable": 520,
    "mutex": 576,
    "condition": 704,
    "counters": 896,
}
"""Byte offsets in the pool structure. Lines that different threads write are 128 bytes apart."""

HOST: tuple[str, ...] = (
    "clock_gettime",
    "clock_id",
    "syscall",
    "futex",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_cond_wait",
    "pthread_cond_broadcast",
)
"""Words of the exported table `frame_host`: addresses in the C library and two numbers."""

_RELAX: Mapping[str, str] = {
    "x86_64": "@llvm.x86.sse2.pause()",
    "aarch64": "@llvm.aarch64.hint(i32 1)",  # YIELD
}

# Reading and writing MXCSR and FPCR; the mask leaves the sticky exception flags out.
_CONTROL: Mapping[str, str] = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @read_control() #2 {
  %word = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %value = load i32, ptr %word
  %wide = zext i32 %value to i64
  ret i64 %wide
}
define internal void @write_control(i64 %wide) #2 {
  %word = alloca i32, align 4
  %value = trunc i64 %wide to i32
  store i32 %value, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @read_control() #2 {
  %value = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %value
}
define internal void @write_control(i64 %value) #2 {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}""",
}
_CONTROL_MASK: Mapping[str, int] = {"x86_64": 0xFFC0, "aarch64": -1}
_CONTROL_USUAL: Mapping[str, int] = {"x86_64": 0x1F80, "aarch64": 0}

_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # the private forms


def pool_module(architecture: str) -> str:
    """Return the module's text for "x86_64" or "aarch64".

    It exports `frame_launch(pool, kernel, args, chunks)`, `frame_worker(pool, index)`,
    `frame_fail(status, site, position, value)`, `frame_clock()`, `frame_stop(pool)` and the table
    `frame_host`, which must be filled before any of them is called.
    """
    if architecture not in _RELAX:
        raise UnimplementedError(f"expected x86_64 or aarch64, received {architecture!r}")
    relax = _RELAX[architecture]
    names = {name: str(offset) for name, offset in FIELDS.items()}
    return Template(_MODULE).substitute(
        names,
        relax=relax,
        declare=relax.replace("i32 1", "i32"),
        control=_CONTROL[architecture],
        control_mask=_CONTROL_MASK[architecture],
        control_usual=_CONTROL_USUAL[architecture],
        host_words=len(HOST),
        chunk_bits=CHUNK_BITS,
        most=(1 << CHUNK_BITS) - 1,
        stride=COUNTER_STRIDE,
        futex_wait=_FUTEX_WAIT,
        futex_wake=_FUTEX_WAKE,
        **{f"host_{name}": 8 * index for index, name in enumerate(HOST)},
    )


_MODULE = """
@frame_host = dso_local global [$host_words x i64] zeroinitializer, align 64

declare void $declare
$control

define dso_local i64 @frame_clock() #0 {
  %time = alloca [2 x i64], align 8
  %clock = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_clock_gettime)
  %id = load i32, ptr getelementptr (i8, ptr @frame_host, i64 $host_clock_id)
  %code = call i32 %clock(i32 %id, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %nanoseconds = add i64 %scaled, %rest
  ret i64 %nanoseconds
}

; Keep the smallest (site, position), whatever the order of the calls.
define dso_local void @frame_fail(ptr %status, i64 %site, i64 %position, i64 %value) #0 {
entry:
  br label %try
try:
  %pair = cmpxchg ptr %status, i64 0, i64 1 acquire monotonic, align 8
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %locked, label %held
held:
  call void $relax
  br label %try
locked:
  %site_at = getelementptr i8, ptr %status, i64 8
  %position_at = getelementptr i8, ptr %status, i64 16
  %value_at = getelementptr i8, ptr %status, i64 24
  %old_site = load i64, ptr %site_at
  %old_position = load i64, ptr %position_at
  %none = icmp eq i64 %old_site, 0
  %earlier_site = icmp slt i64 %site, %old_site
  %same_site = icmp eq i64 %site, %old_site
  %earlier_position = icmp slt i64 %position, %old_position
  %earlier_there = and i1 %same_site, %earlier_position
  %earlier = or i1 %earlier_site, %earlier_there
  %better = or i1 %none, %earlier
  br i1 %better, label %keep, label %unlock
keep:
  store i64 %site, ptr %site_at
  store i64 %position, ptr %position_at
  store i64 %value, ptr %value_at
  br label %unlock
unlock:
  store atomic i64 0, ptr %status release, align 8
  ret void
}

define dso_local void @frame_launch(ptr %pool, ptr %kernel, ptr %args, i64 %chunks) #0 {
  %control = call i64 @read_control()
  %mode = and i64 %control, $control_mask
  %usual = icmp eq i64 %mode, $control_usual
  br i1 %usual, label %plain, label %odd
plain:
  call void @launch(ptr %pool, ptr %kernel, ptr %args, i64 %chunks)
  ret void
odd:
  call void @write_control(i64 $control_usual)
  call void @launch(ptr %pool, ptr %kernel, ptr %args, i64 %chunks)
  call void @write_control(i64 %control)
  ret void
}

define internal void @launch(ptr %pool, ptr %kernel, ptr %args, i64 %chunks) #0 {
entry:
  %few = icmp sle i64 %chunks, 1
  br i1 %few, label %inline, label %ask
ask:
  %workers_at = getelementptr i8, ptr %pool, i64 $workers
  %workers = load atomic i32, ptr %workers_at monotonic, align 4
  %alone = icmp eq i32 %workers, 0
  br i1 %alone, label %inline, label %look
look:
  %busy_at = getelementptr i8, ptr %pool, i64 $busy
  %busy = load atomic i32, ptr %busy_at monotonic, align 4
  %free = icmp eq i32 %busy, 0
  br i1 %free, label %try, label %inline
try:
  %pair = cmpxchg ptr %busy_at, i32 0, i32 1 acquire monotonic, align 4
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %jobs, label %inline
jobs:
  %base = phi i64 [ 0, %try ], [ %next, %jobs ]
  %left = sub i64 %chunks, %base
  %large = icmp ugt i64 %left, $most
  %count = select i1 %large, i64 $most, i64 %left
  call void @run_job(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count)
  %next = add i64 %base, %count
  %more = icmp slt i64 %next, %chunks
  br i1 %more, label %jobs, label %release
release:
  store atomic i32 0, ptr %busy_at release, align 4
  ret void
inline:
  %some = icmp sgt i64 %chunks, 0
  br i1 %some, label %one, label %done
one:
  %chunk = phi i64 [ 0, %inline ], [ %following, %one ]
  call void %kernel(ptr %args, i64 %chunk)
  %following = add i64 %chunk, 1
  %again = icmp slt i64 %following, %chunks
  br i1 %again, label %one, label %done
done:
  ret void
}

; The caller's part of one job; it holds `busy`.
define internal void @run_job(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count) #0 {
entry:
  %state_at = getelementptr i8, ptr %pool, i64 $state
  %kernel_at = getelementptr i8, ptr %pool, i64 $kernel
  %args_at = getelementptr i8, ptr %pool, i64 $args
  %base_at = getelementptr i8, ptr %pool, i64 $base
  %count_at = getelementptr i8, ptr %pool, i64 $count
  %finished_at = getelementptr i8, ptr %pool, i64 $finished
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  store atomic ptr %kernel, ptr %kernel_at release, align 8
  store atomic ptr %args, ptr %args_at release, align 8
  store atomic i64 %base, ptr %base_at release, align 8
  store atomic i64 %count, ptr %count_at release, align 8
  store atomic i32 0, ptr %finished_at monotonic, align 4
  %before = load atomic i64, ptr %state_at monotonic, align 8
  %generation = lshr i64 %before, $chunk_bits
  %next_generation = add i64 %generation, 1
  %high = shl i64 %next_generation, $chunk_bits
  %open = or i64 %high, %count
  store atomic i64 %open, ptr %state_at seq_cst, align 8
  %asleep = load atomic i32, ptr %sleepers_at seq_cst, align 4
  %any_asleep = icmp sgt i32 %asleep, 0
  br i1 %any_asleep, label %rouse, label %claim
rouse:
  %helpers = sub i64 %count, 1
  call void @rouse(ptr %pool, i64 %helpers)
  br label %claim
claim:
  %own = phi i64 [ 0, %entry ], [ 0, %rouse ], [ %own, %take ], [ %own_next, %run ]
  %seen = load atomic i64, ptr %state_at acquire, align 8
  %left = and i64 %seen, $most
  %closed = icmp eq i64 %left, 0
  br i1 %closed, label %closing, label %take
take:
  %less = sub i64 %seen, 1
  %pair = cmpxchg weak ptr %state_at, i64 %seen, i64 %less acq_rel monotonic, align 8
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %run, label %claim
run:
  %index = sub i64 %count, %left
  %chunk = add i64 %base, %index
  call void %kernel(ptr %args, i64 %chunk)
  %own_next = add i64 %own, 1
  br label %claim
closing:
  %others = sub i64 %count, %own
  %shared = icmp ne i64 %others, 0
  br i1 %shared, label %await, label %done
await:
  call void @await(ptr %pool, i64 %others)
  br label %done
done:
  ret void
}

; Return when workers have finished `target` chunks of this job: spin, then sleep.
define internal void @await(ptr %pool, i64 %target) #0 {
entry:
  %finished_at = getelementptr i8, ptr %pool, i64 $finished
  %waiting_at = getelementptr i8, ptr %pool, i64 $waiting
  %spin_at = getelementptr i8, ptr %pool, i64 $spin
  %goal = trunc i64 %target to i32
  %spin_for = load i64, ptr %spin_at
  br label %spin
spin:
  %round = phi i64 [ 0, %entry ], [ %round_next, %relax ], [ 0, %late ]
  %deadline = phi i64 [ 0, %entry ], [ %deadline, %relax ], [ %deadline_next, %late ]
  %now_finished = load atomic i32, ptr %finished_at acquire, align 4
  %all = icmp eq i32 %now_finished, %goal
  br i1 %all, label %done, label %relax
relax:
  call void $relax
  %round_next = add i64 %round, 1
  %more_rounds = icmp ult i64 %round_next, 32
  br i1 %more_rounds, label %spin, label %read_clock
read_clock:
  %now = call i64 @frame_clock()
  %first = icmp eq i64 %deadline, 0
  %fresh = add i64 %now, %spin_for
  %deadline_next = select i1 %first, i64 %fresh, i64 %deadline
  br label %late
late:
  %spin_on = icmp slt i64 %now, %deadline_next
  br i1 %spin_on, label %spin, label %announce
announce:
  store atomic i32 1, ptr %waiting_at seq_cst, align 4
  br label %sleep
sleep:
  %last = load atomic i32, ptr %finished_at seq_cst, align 4
  %complete = icmp eq i32 %last, %goal
  br i1 %complete, label %awake, label %wait
wait:
  %ignored = call i32 @wait(ptr %pool, ptr %finished_at, i32 %last)
  br label %sleep
awake:
  store atomic i32 0, ptr %waiting_at monotonic, align 4
  br label %done
done:
  ret void
}

; A worker's life: claim, spin for a while, sleep; return after frame_stop.
define dso_local void @frame_worker(ptr %pool, i64 %index) #0 {
entry:
  %state_at = getelementptr i8, ptr %pool, i64 $state
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  %spin_at = getelementptr i8, ptr %pool, i64 $spin
  %counters = getelementptr i8, ptr %pool, i64 $counters
  %counter_offset = mul i64 %index, $stride
  %counter_at = getelementptr i8, ptr %counters, i64 %counter_offset
  call void @write_control(i64 $control_usual)
  br label %work
work:
  call void @claim_all(ptr %pool, ptr %counter_at)
  %idle_since = call i64 @frame_clock()
  %spin_for = load i64, ptr %spin_at
  %deadline = add i64 %idle_since, %spin_for
  br label %spin
spin:
  %round = phi i64 [ 0, %work ], [ %round_next, %look ], [ 0, %late ]
  call void $relax
  %seen = load atomic i64, ptr %state_at acquire, align 8
  %left = and i64 %seen, $most
  %open = icmp ne i64 %left, 0
  br i1 %open, label %work, label %check
check:
  %stop = load atomic i32, ptr %stop_at acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %exit, label %look
look:
  %round_next = add i64 %round, 1
  %more_rounds = icmp ult i64 %round_next, 32
  br i1 %more_rounds, label %spin, label %late
late:
  %now = call i64 @frame_clock()
  %spin_on = icmp slt i64 %now, %deadline
  br i1 %spin_on, label %spin, label %sleep
sleep:
  call void @doze(ptr %pool)
  br label %work
exit:
  ret void
}

; Claim and run chunks until none is left.
define internal void @claim_all(ptr %pool, ptr %counter_at) #0 {
entry:
  %state_at = getelementptr i8, ptr %pool, i64 $state
  %kernel_at = getelementptr i8, ptr %pool, i64 $kernel
  %args_at = getelementptr i8, ptr %pool, i64 $args
  %base_at = getelementptr i8, ptr %pool, i64 $base
  %count_at = getelementptr i8, ptr %pool, i64 $count
  %finished_at = getelementptr i8, ptr %pool, i64 $finished
  %waiting_at = getelementptr i8, ptr %pool, i64 $waiting
  br label %claim
claim:
  %seen = load atomic i64, ptr %state_at acquire, align 8
  %left = and i64 %seen, $most
  %closed = icmp eq i64 %left, 0
  br i1 %closed, label %done, label %take
take:
  %kernel = load atomic ptr, ptr %kernel_at acquire, align 8
  %args = load atomic ptr, ptr %args_at acquire, align 8
  %base = load atomic i64, ptr %base_at acquire, align 8
  %count = load atomic i64, ptr %count_at acquire, align 8
  %less = sub i64 %seen, 1
  %pair = cmpxchg weak ptr %state_at, i64 %seen, i64 %less acq_rel monotonic, align 8
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %run, label %claim
run:
  %index = sub i64 %count, %left
  %chunk = add i64 %base, %index
  call void %kernel(ptr %args, i64 %chunk)
  %chunks = load i64, ptr %counter_at
  %chunks_next = add i64 %chunks, 1
  store i64 %chunks_next, ptr %counter_at
  %before = atomicrmw add ptr %finished_at, i32 1 seq_cst, align 4
  %waiting = load atomic i32, ptr %waiting_at seq_cst, align 4
  %somebody = icmp ne i32 %waiting, 0
  br i1 %somebody, label %notify, label %claim
notify:
  %woken = call i32 @wake(ptr %pool, ptr %finished_at, i32 1)
  br label %claim
done:
  ret void
}

; Sleep until the next wake, unless there is work or a stop already.
define internal void @doze(ptr %pool) #1 {
entry:
  %state_at = getelementptr i8, ptr %pool, i64 $state
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  %wake_at = getelementptr i8, ptr %pool, i64 $wake
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  %before = atomicrmw add ptr %sleepers_at, i32 1 seq_cst, align 4
  %ticket = load atomic i32, ptr %wake_at seq_cst, align 4
  %seen = load atomic i64, ptr %state_at seq_cst, align 8
  %left = and i64 %seen, $most
  %stop = load atomic i32, ptr %stop_at seq_cst, align 4
  %open = icmp ne i64 %left, 0
  %stopped = icmp ne i32 %stop, 0
  %stay = or i1 %open, %stopped
  br i1 %stay, label %up, label %sleep
sleep:
  %counted = call i32 @wait(ptr %pool, ptr %wake_at, i32 %ticket)
  %uncounted = icmp eq i32 %counted, 0
  br i1 %uncounted, label %up, label %done
up:
  %again = atomicrmw sub ptr %sleepers_at, i32 1 seq_cst, align 4
  br label %done
done:
  ret void
}

; Wake at most `most` sleeping workers.
define internal void @rouse(ptr %pool, i64 %most) #1 {
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  %wake_at = getelementptr i8, ptr %pool, i64 $wake
  %ticket = atomicrmw add ptr %wake_at, i32 1 seq_cst, align 4
  %count = trunc i64 %most to i32
  %woken = call i32 @wake(ptr %pool, ptr %wake_at, i32 %count)
  %before = atomicrmw sub ptr %sleepers_at, i32 %woken seq_cst, align 4
  ret void
}

; Tell every worker to return as soon as no chunk is left. Launches from now on run inline.
define dso_local void @frame_stop(ptr %pool) #0 {
  %workers_at = getelementptr i8, ptr %pool, i64 $workers
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  store atomic i32 0, ptr %workers_at seq_cst, align 4
  store atomic i32 1, ptr %stop_at seq_cst, align 4
  call void @rouse(ptr %pool, i64 2147483647)
  ret void
}

; Sleep while the word holds `expected`; may return early. 1: a waker has counted this sleeper off.
define internal i32 @wait(ptr %pool, ptr %word, i32 %expected) #1 {
entry:
  %portable_at = getelementptr i8, ptr %pool, i64 $portable
  %portable = load i32, ptr %portable_at
  %is_portable = icmp ne i32 %portable, 0
  br i1 %is_portable, label %lock, label %futex
futex:
  %syscall = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_syscall)
  %number = load i64, ptr getelementptr (i8, ptr @frame_host, i64 $host_futex)
  %wide = zext i32 %expected to i64
  %code = call i64 %syscall(i64 %number, ptr %word, i64 $futex_wait, i64 %wide, i64 0, i64 0, i64 0)
  %woken = icmp eq i64 %code, 0
  %counted = zext i1 %woken to i32
  ret i32 %counted
lock:
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %condition = getelementptr i8, ptr %pool, i64 $condition
  %mutex_lock = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_mutex_lock)
  %mutex_unlock = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_mutex_unlock)
  %cond_wait = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_cond_wait)
  %locked = call i32 %mutex_lock(ptr %mutex)
  br label %check
check:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %expected
  br i1 %same, label %sleep, label %unlock
sleep:
  %slept = call i32 %cond_wait(ptr %condition, ptr %mutex)
  br label %check
unlock:
  %unlocked = call i32 %mutex_unlock(ptr %mutex)
  ret i32 0
}

; Wake at most `count` sleepers of a changed word; return how many were counted off.
define internal i32 @wake(ptr %pool, ptr %word, i32 %count) #1 {
entry:
  %portable_at = getelementptr i8, ptr %pool, i64 $portable
  %portable = load i32, ptr %portable_at
  %is_portable = icmp ne i32 %portable, 0
  br i1 %is_portable, label %lock, label %futex
futex:
  %syscall = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_syscall)
  %number = load i64, ptr getelementptr (i8, ptr @frame_host, i64 $host_futex)
  %wide = zext i32 %count to i64
  %code = call i64 %syscall(i64 %number, ptr %word, i64 $futex_wake, i64 %wide, i64 0, i64 0, i64 0)
  %some = icmp sgt i64 %code, 0
  %woken = select i1 %some, i64 %code, i64 0
  %result = trunc i64 %woken to i32
  ret i32 %result
lock:
  ; Locking once means that no sleeper stands between its look at the word and its sleep.
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %condition = getelementptr i8, ptr %pool, i64 $condition
  %mutex_lock = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_mutex_lock)
  %mutex_unlock = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_mutex_unlock)
  %broadcast = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_pthread_cond_broadcast)
  %locked = call i32 %mutex_lock(ptr %mutex)
  %unlocked = call i32 %mutex_unlock(ptr %mutex)
  %called = call i32 %broadcast(ptr %condition)
  ret i32 0
}

attributes #0 = { nounwind "no-builtins" }
attributes #1 = { nounwind noinline cold "no-builtins" }
attributes #2 = { nounwind alwaysinline "no-builtins" }
"""
