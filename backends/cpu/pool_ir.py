"""The thread pool as LLVM IR text: launch, worker loop, failure report and clock.

Words of the pool structure (`FIELDS`), which Python allocates and never moves. A job is shared out
to the caller and the workers: each has a slot (`SLOT`) with an equal run of chunks, published and
claimed through the one atomic word of the slot:

    word = generation << 24 | chunks of this run that nobody has claimed yet

    launch: kernel, args, limit of the slot := its part of the job      (release)
            word := (generation + 1, length of the run)                 (release)
            and so on for each slot, then wake sleepers, if there are any
    claim:  seen := word; stop if no chunk is left
            read the job in the slot                                    (acquire)
            word: seen -> seen - 1                                      compare and swap; retry
            run chunk limit - left(seen)

A thread empties its own slot first and then helps the others, so that it works on the same part of
an array in each call: what it wrote is still in its cache, and moving a line that another core has
written costs several times a read from that cache.

Why a late worker can't mix two jobs: a slot is written only after all words of the old job reached
zero. A worker that read a field of a later job therefore sees, in its compare and swap, a word that
is not `seen`, because the zero happened before the field that it read. The generation keeps the
words of two jobs with equal counts apart; its 40 bits wrap after days of back to back launches,
during which a worker would have to stand between two instructions.

The caller helps as well. It waits until workers have finished the chunks that it did not run
itself: never for a worker to wake. `finished` counts those chunks and never starts anew, and
`completed` is what it was before this job. A worker adds what it ran when the slot that it works on
is empty. Until then the job is open, because the caller can't see the sum before.

Sleep and wake, both ways, follow one pattern with sequentially consistent accesses: the sleeper
announces itself and then looks again, the waker changes the word and then looks for sleepers, so
one of the two sees the other. (A launch writes several words and orders them by one fence.)
`sleepers` counts workers that need a wake; a waker takes off those that it woke, so that a launch
during the wake-up costs no second system call. A worker looks at its own slot alone, and a launch
wakes sleepers only if one of them has a slot in the job: small jobs leave the other workers asleep.

Who has nothing left to do while others run chunks of the job spins `_PATIENCE` times as long and
yields meanwhile: chunks take up to a millisecond, and waking a virtual processor may take as long.

A scheduler may wake a worker on the caller's processor although another one is idle, and keeps it
there for milliseconds: then the two take turns, and a launch takes longer than on one thread. So a
worker sleeps with an affinity that leaves out the processor of the last caller that woke workers,
and has its own affinity again when it is awake. Where that is refused, nothing changes.

Kernels run with the usual floating-point control word (round to nearest, denormals kept) in
whichever thread, so that a library that changed the caller's word can't make a result depend on who
claimed a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping

from frame.backends.cpu.llvm import CONTROL, CONTROL_MASK, CONTROL_USUAL, RELAX, filled
from frame.core.errors import UnimplementedError

CHUNK_BITS = 24
"""Bits of the state word that count chunks; a larger launch runs as several jobs."""

SLOT_STRIDE = 128
"""Bytes between the slots of two threads: two cache lines, which adjacent prefetch pairs."""

FIELDS: Mapping[str, int] = {
    "finished": 0,
    "waiting": 4,
    "busy": 128,
    "workers": 132,
    "generation": 136,
    "completed": 144,
    "caller": 148,
    "sleepers": 256,
    "wake": 260,
    "stop": 264,
    "spin": 384,
    "portable": 392,
    "mutex": 448,
    "condition": 576,
    "epoch": 704,
    "slots": 768,
}
"""Byte offsets in the pool structure. Lines that different threads write are 128 bytes apart.

`generation`, `completed` and `caller` (the number of its processor plus one, 0 where it is unknown)
belong to the caller that holds `busy`. Slot 0 is the caller's. `epoch` (64 bits) is 0 while the
pool is not ready, else how many forks the process is away from the one that made the pool, plus 1.
"""

SLOT: Mapping[str, int] = {
    "word": 0,
    "kernel": 8,
    "args": 16,
    "limit": 24,
    "counter": 64,
    "asleep": 72,
}
"""Byte offsets in a slot: the job, then what its worker writes, in a line of its own.

`limit` is the last chunk of the run plus one; `counter` is how many chunks the worker has run.
"""

HOST: tuple[str, ...] = (
    "clock_gettime",
    "clock_id",
    "syscall",
    "futex",
    "getcpu",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_yield",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_cond_wait",
    "pthread_cond_broadcast",
)
"""Words of the exported table `frame_host`: addresses in the C library and numbers."""

_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # the private forms
_PATIENCE = 40  # times the spin that a thread waits for others that work on the same job
_MASK_BYTES = 1024  # of an affinity mask: 8192 processors


def pool_module(architecture: str) -> str:
    """Return the module's text for "x86_64" or "aarch64".

    It exports `frame_launch(pool, kernel, args, chunks)`, `frame_worker(pool, index)`,
    `frame_fail(status, site, position, value)`, `frame_clock()`, `frame_stop(pool)` and the table
    `frame_host`, which must be filled before any of them is called.
    """
    if architecture not in RELAX:
        raise UnimplementedError(f"expected x86_64 or aarch64, received {architecture!r}")
    relax = RELAX[architecture]
    names: dict[str, object] = {**FIELDS, **SLOT}
    names |= dict(
        relax=relax,
        declare=relax.replace("i32 1", "i32"),
        control=CONTROL[architecture],
        control_mask=CONTROL_MASK[architecture],
        control_usual=CONTROL_USUAL[architecture],
        host_words=len(HOST),
        chunk_bits=CHUNK_BITS,
        most=(1 << CHUNK_BITS) - 1,
        stride=SLOT_STRIDE,
        mask_bytes=_MASK_BYTES,
        patience=_PATIENCE,
        futex_wait=_FUTEX_WAIT,
        futex_wake=_FUTEX_WAKE,
        **{f"host_{name}": 8 * index for index, name in enumerate(HOST)},
    )
    return filled(_MODULE, names)


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
  call void @run_job(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count, i32 %workers)
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
define internal void @run_job(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count,
                              i32 %workers) #0 {
entry:
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  %completed_at = getelementptr i8, ptr %pool, i64 $completed
  %wide = zext i32 %workers to i64
  %threads = add i64 %wide, 1
  %enough = icmp ult i64 %threads, %count
  %parts = select i1 %enough, i64 %threads, i64 %count
  call void @publish(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count, i64 %parts)
  fence seq_cst
  %asleep = load atomic i32, ptr %sleepers_at seq_cst, align 4
  %any_asleep = icmp sgt i32 %asleep, 0
  br i1 %any_asleep, label %call, label %help
call:
  call void @call_helpers(ptr %pool, i64 %parts)
  br label %help
help:
  %part = phi i64 [ 0, %entry ], [ 0, %call ], [ %part_next, %help ]
  %own = phi i64 [ 0, %entry ], [ 0, %call ], [ %own_next, %help ]
  %slot = call ptr @slot(ptr %pool, i64 %part)
  %ran = call i64 @empty(ptr %slot)
  %own_next = add i64 %own, %ran
  %part_next = add i64 %part, 1
  %more = icmp ult i64 %part_next, %parts
  br i1 %more, label %help, label %closing
closing:
  %others = sub i64 %count, %own_next
  %shared = icmp ne i64 %others, 0
  br i1 %shared, label %await, label %done
await:
  %others_word = trunc i64 %others to i32
  %completed = load i32, ptr %completed_at
  %goal = add i32 %completed, %others_word
  store i32 %goal, ptr %completed_at
  call void @await(ptr %pool, i32 %goal)
  br label %done
done:
  ret void
}

define internal ptr @slot(ptr %pool, i64 %index) #2 {
  %slots = getelementptr i8, ptr %pool, i64 $slots
  %offset = mul i64 %index, $stride
  %slot = getelementptr i8, ptr %slots, i64 %offset
  ret ptr %slot
}

; Share a job out to the first `parts` slots; the first ones get one chunk more.
define internal void @publish(ptr %pool, ptr %kernel, ptr %args, i64 %base, i64 %count,
                              i64 %parts) #0 {
entry:
  %generation_at = getelementptr i8, ptr %pool, i64 $generation
  %before = load i64, ptr %generation_at
  %generation = add i64 %before, 1
  store i64 %generation, ptr %generation_at
  %high = shl i64 %generation, $chunk_bits
  %even = udiv i64 %count, %parts
  %rest = urem i64 %count, %parts
  br label %share
share:
  %part = phi i64 [ 0, %entry ], [ %part_next, %share ]
  %start = phi i64 [ %base, %entry ], [ %limit, %share ]
  %larger = icmp ult i64 %part, %rest
  %one = zext i1 %larger to i64
  %length = add i64 %even, %one
  %limit = add i64 %start, %length
  %open = or i64 %high, %length
  %slot = call ptr @slot(ptr %pool, i64 %part)
  %kernel_at = getelementptr i8, ptr %slot, i64 $kernel
  %args_at = getelementptr i8, ptr %slot, i64 $args
  %limit_at = getelementptr i8, ptr %slot, i64 $limit
  store atomic ptr %kernel, ptr %kernel_at release, align 8
  store atomic ptr %args, ptr %args_at release, align 8
  store atomic i64 %limit, ptr %limit_at release, align 8
  store atomic i64 %open, ptr %slot release, align 8
  %part_next = add i64 %part, 1
  %more = icmp ult i64 %part_next, %parts
  br i1 %more, label %share, label %done
done:
  ret void
}

; Claim and run chunks of a slot until none is left; return how many.
define internal i64 @empty(ptr %slot) #0 {
entry:
  %kernel_at = getelementptr i8, ptr %slot, i64 $kernel
  %args_at = getelementptr i8, ptr %slot, i64 $args
  %limit_at = getelementptr i8, ptr %slot, i64 $limit
  br label %claim
claim:
  %ran = phi i64 [ 0, %entry ], [ %ran, %take ], [ %ran_next, %run ]
  %seen = load atomic i64, ptr %slot acquire, align 8
  %left = and i64 %seen, $most
  %closed = icmp eq i64 %left, 0
  br i1 %closed, label %done, label %take
take:
  %kernel = load atomic ptr, ptr %kernel_at acquire, align 8
  %args = load atomic ptr, ptr %args_at acquire, align 8
  %limit = load atomic i64, ptr %limit_at acquire, align 8
  %less = sub i64 %seen, 1
  %pair = cmpxchg weak ptr %slot, i64 %seen, i64 %less acq_rel monotonic, align 8
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %run, label %claim
run:
  %chunk = sub i64 %limit, %left
  call void %kernel(ptr %args, i64 %chunk)
  %ran_next = add i64 %ran, 1
  br label %claim
done:
  ret i64 %ran
}

; Wake as many sleepers as have a slot among the first `parts`.
define internal void @call_helpers(ptr %pool, i64 %parts) #1 {
entry:
  br label %look
look:
  %part = phi i64 [ 1, %entry ], [ %part_next, %look ]
  %count = phi i64 [ 0, %entry ], [ %count_next, %look ]
  %slot = call ptr @slot(ptr %pool, i64 %part)
  %asleep_at = getelementptr i8, ptr %slot, i64 $asleep
  %asleep = load atomic i64, ptr %asleep_at acquire, align 8
  %count_next = add i64 %count, %asleep
  %part_next = add i64 %part, 1
  %more = icmp ult i64 %part_next, %parts
  br i1 %more, label %look, label %counted
counted:
  %some = icmp ne i64 %count_next, 0
  br i1 %some, label %rouse, label %done
rouse:
  call void @note_processor(ptr %pool)
  call void @rouse(ptr %pool, i64 %count_next)
  br label %done
done:
  ret void
}

; Return when `finished` has come to `goal`: spin, then sleep.
define internal void @await(ptr %pool, i32 %goal) #0 {
entry:
  %finished_at = getelementptr i8, ptr %pool, i64 $finished
  %waiting_at = getelementptr i8, ptr %pool, i64 $waiting
  %spin_at = getelementptr i8, ptr %pool, i64 $spin
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
  %end = call i64 @extended(ptr %pool, i64 %now, i64 %deadline_next)
  %spin_on = icmp slt i64 %now, %end
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

; A worker's life: work, spin for a while, sleep; return after frame_stop.
define dso_local void @frame_worker(ptr %pool, i64 %index) #0 {
entry:
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  %spin_at = getelementptr i8, ptr %pool, i64 $spin
  %number = add i64 %index, 1
  %slot = call ptr @slot(ptr %pool, i64 %number)
  call void @write_control(i64 $control_usual)
  br label %work
work:
  call void @help_all(ptr %pool, ptr %slot)
  %idle_since = call i64 @frame_clock()
  %spin_for = load i64, ptr %spin_at
  %deadline = add i64 %idle_since, %spin_for
  br label %spin
spin:
  %round = phi i64 [ 0, %work ], [ %round_next, %look ], [ 0, %late ]
  %end = phi i64 [ %deadline, %work ], [ %end, %look ], [ %end_next, %late ]
  call void $relax
  %seen = load atomic i64, ptr %slot acquire, align 8
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
  %extended = call i64 @extended(ptr %pool, i64 %now, i64 %deadline)
  %end_next = call i64 @llvm.smax.i64(i64 %end, i64 %extended)
  %spin_on = icmp slt i64 %now, %end_next
  br i1 %spin_on, label %spin, label %sleep
sleep:
  call void @doze(ptr %pool, ptr %slot)
  br label %work
exit:
  ret void
}

; When to stop spinning: at `deadline`, but while a job runs a spin from now on, within limits.
; Who spins beyond the deadline lets other threads of the processor go first.
define internal i64 @extended(ptr %pool, i64 %now, i64 %deadline) #1 {
entry:
  %busy_at = getelementptr i8, ptr %pool, i64 $busy
  %spin_at = getelementptr i8, ptr %pool, i64 $spin
  %spin_for = load i64, ptr %spin_at
  %longest = mul i64 %spin_for, $patience
  %last = add i64 %deadline, %longest
  %hot = icmp slt i64 %now, %deadline
  br i1 %hot, label %look, label %yield
yield:
  %give_way = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_sched_yield)
  %ignored = call i32 %give_way()
  br label %look
look:
  %busy = load atomic i32, ptr %busy_at monotonic, align 4
  %idle = icmp eq i32 %busy, 0
  %later = add i64 %now, %spin_for
  %moved = select i1 %idle, i64 %deadline, i64 %later
  %capped = call i64 @llvm.smin.i64(i64 %moved, i64 %last)
  %end = call i64 @llvm.smax.i64(i64 %capped, i64 %deadline)
  ret i64 %end
}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

; Empty the worker's own slot, then help the other threads with theirs.
define internal void @help_all(ptr %pool, ptr %own) #0 {
entry:
  %workers_at = getelementptr i8, ptr %pool, i64 $workers
  call void @help(ptr %pool, ptr %own, ptr %own)
  %workers = load atomic i32, ptr %workers_at monotonic, align 4
  %last = zext i32 %workers to i64
  br label %next
next:
  %part = phi i64 [ 0, %entry ], [ %part_next, %next ]
  %slot = call ptr @slot(ptr %pool, i64 %part)
  call void @help(ptr %pool, ptr %slot, ptr %own)
  %part_next = add i64 %part, 1
  %more = icmp ule i64 %part_next, %last
  br i1 %more, label %next, label %done
done:
  ret void
}

; Empty a slot and count its chunks as finished; the worker's own slot counts what it has run.
define internal void @help(ptr %pool, ptr %slot, ptr %own) #0 {
entry:
  %finished_at = getelementptr i8, ptr %pool, i64 $finished
  %waiting_at = getelementptr i8, ptr %pool, i64 $waiting
  %counter_at = getelementptr i8, ptr %own, i64 $counter
  %ran = call i64 @empty(ptr %slot)
  %none = icmp eq i64 %ran, 0
  br i1 %none, label %done, label %count
count:
  %chunks = load i64, ptr %counter_at
  %chunks_next = add i64 %chunks, %ran
  store i64 %chunks_next, ptr %counter_at
  %ran_word = trunc i64 %ran to i32
  %before = atomicrmw add ptr %finished_at, i32 %ran_word seq_cst, align 4
  %waiting = load atomic i32, ptr %waiting_at seq_cst, align 4
  %somebody = icmp ne i32 %waiting, 0
  br i1 %somebody, label %notify, label %done
notify:
  %woken = call i32 @wake(ptr %pool, ptr %finished_at, i32 1)
  br label %done
done:
  ret void
}

; Sleep until the next wake, unless there is work in the slot or a stop already.
define internal void @doze(ptr %pool, ptr %slot) #1 {
entry:
  %asleep_at = getelementptr i8, ptr %slot, i64 $asleep
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  %wake_at = getelementptr i8, ptr %pool, i64 $wake
  %stop_at = getelementptr i8, ptr %pool, i64 $stop
  %usual = alloca [$mask_bytes x i8], align 8
  %narrow = alloca [$mask_bytes x i8], align 8
  %size = call i64 @step_aside(ptr %pool, ptr %usual, ptr %narrow)
  store atomic i64 1, ptr %asleep_at release, align 8
  %before = atomicrmw add ptr %sleepers_at, i32 1 seq_cst, align 4
  %ticket = load atomic i32, ptr %wake_at seq_cst, align 4
  %seen = load atomic i64, ptr %slot seq_cst, align 8
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
  store atomic i64 0, ptr %asleep_at release, align 8
  call void @step_back(i64 %size, ptr %usual, ptr %narrow)
  ret void
}

; Note the processor that a caller runs on.
define internal void @note_processor(ptr %pool) #1 {
entry:
  %caller_at = getelementptr i8, ptr %pool, i64 $caller
  %portable_at = getelementptr i8, ptr %pool, i64 $portable
  %cpu = alloca i32, align 4
  %portable = load i32, ptr %portable_at
  %is_portable = icmp ne i32 %portable, 0
  br i1 %is_portable, label %done, label %ask
ask:
  %number = load i64, ptr getelementptr (i8, ptr @frame_host, i64 $host_getcpu)
  %cpu_word = ptrtoint ptr %cpu to i64
  %code = call i64 @ask_system(i64 %number, i64 %cpu_word, i64 0, i64 0)
  %known = icmp eq i64 %code, 0
  br i1 %known, label %note, label %done
note:
  %index = load i32, ptr %cpu
  %plus_one = add i32 %index, 1
  store atomic i32 %plus_one, ptr %caller_at monotonic, align 4
  br label %done
done:
  ret void
}

; Leave the caller's processor out of this thread's affinity; return the mask's bytes, 0 if not.
define internal i64 @step_aside(ptr %pool, ptr %usual, ptr %narrow) #1 {
entry:
  %caller_at = getelementptr i8, ptr %pool, i64 $caller
  %plus_one = load atomic i32, ptr %caller_at monotonic, align 4
  %known = icmp ne i32 %plus_one, 0
  br i1 %known, label %ask, label %failed
ask:
  %size = call i64 @affinity(ptr %usual)
  %caller = sub i32 %plus_one, 1
  %bit = zext i32 %caller to i64
  %bits = mul i64 %size, 8
  %covered = icmp slt i64 %bit, %bits
  br i1 %covered, label %copy, label %failed
copy:
  call void @llvm.memcpy.inline.p0.p0.i64(ptr %narrow, ptr %usual, i64 $mask_bytes, i1 false)
  %byte = lshr i64 %bit, 3
  %low = and i32 %caller, 7
  %low_byte = trunc i32 %low to i8
  %one = shl i8 1, %low_byte
  %keep = xor i8 %one, -1
  %at = getelementptr i8, ptr %narrow, i64 %byte
  %old = load i8, ptr %at
  %new = and i8 %old, %keep
  store i8 %new, ptr %at
  %code = call i64 @set_affinity(i64 %size, ptr %narrow)
  %done = icmp eq i64 %code, 0
  br i1 %done, label %aside, label %failed
aside:
  ret i64 %size
failed:
  ret i64 0
}

; Take the usual affinity back, unless somebody has set another one than the narrow one meanwhile.
define internal void @step_back(i64 %size, ptr %usual, ptr %narrow) #1 {
entry:
  %now = alloca [$mask_bytes x i8], align 8
  %aside = icmp ne i64 %size, 0
  br i1 %aside, label %ask, label %done
ask:
  %size_now = call i64 @affinity(ptr %now)
  %same_size = icmp eq i64 %size_now, %size
  br i1 %same_size, label %compare, label %done
compare:
  %place = phi i64 [ 0, %ask ], [ %place_next, %same ]
  %narrow_at = getelementptr i8, ptr %narrow, i64 %place
  %now_at = getelementptr i8, ptr %now, i64 %place
  %narrow_word = load i64, ptr %narrow_at
  %now_word = load i64, ptr %now_at
  %equal = icmp eq i64 %narrow_word, %now_word
  br i1 %equal, label %same, label %done
same:
  %place_next = add i64 %place, 8
  %more = icmp ult i64 %place_next, %size
  br i1 %more, label %compare, label %back
back:
  %ignored = call i64 @set_affinity(i64 %size, ptr %usual)
  br label %done
done:
  ret void
}

declare void @llvm.memcpy.inline.p0.p0.i64(ptr, ptr, i64, i1 immarg)

; Read this thread's affinity; return the bytes of the mask, 0 or less if it can't be read.
define internal i64 @affinity(ptr %mask) #1 {
  %number = load i64, ptr getelementptr (i8, ptr @frame_host, i64 $host_sched_getaffinity)
  %mask_word = ptrtoint ptr %mask to i64
  %size = call i64 @ask_system(i64 %number, i64 0, i64 $mask_bytes, i64 %mask_word)
  ret i64 %size
}

define internal i64 @set_affinity(i64 %size, ptr %mask) #1 {
  %number = load i64, ptr getelementptr (i8, ptr @frame_host, i64 $host_sched_setaffinity)
  %mask_word = ptrtoint ptr %mask to i64
  %code = call i64 @ask_system(i64 %number, i64 0, i64 %size, i64 %mask_word)
  ret i64 %code
}

define internal i64 @ask_system(i64 %number, i64 %first, i64 %second, i64 %third) #1 {
  %syscall = load ptr, ptr getelementptr (i8, ptr @frame_host, i64 $host_syscall)
  %code = call i64 %syscall(i64 %number, i64 %first, i64 %second, i64 %third)
  ret i64 %code
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
