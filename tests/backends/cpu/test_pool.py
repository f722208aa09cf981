"""The thread pool: every chunk once, whoever calls, however threads sleep, fork or end."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from frame.backends.cpu import elf
from frame.backends.cpu import pool as pool_module
from frame.backends.cpu.pool import Pool, get_pool, pool_object, set_num_threads
from frame.backends.cpu.pool_ir import CHUNK_BITS, FIELDS, SLOT, SLOT_STRIDE
from frame.backends.cpu.pool_ir import pool_module as pool_text
from frame.backends.cpu.target import host_architecture, named_target
from frame.core.errors import InvalidArgumentError
from tests.backends.cpu.pool_kernels import (
    POINTER,
    TEXT,
    WORD,
    adder,
    code,
    launch,
    pool_of,
    run_and_check,
)

WAITS = ("futex", "portable")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=WAITS)
def pool(request):
    with pool_of(3, request.param) as pool:
        assert pool.portable == (request.param == "portable")
        yield pool


@pytest.mark.parametrize("chunks", [-5, 0, 1, 2, 3, 7, 64, 1000])
def test_every_chunk_runs_exactly_once(pool, chunks):
    for _ in range(20):
        counters = (WORD * 1001)()
        launch(pool, "add", adder(counters), chunks)
        assert list(counters) == [1] * max(chunks, 0) + [0] * (1001 - max(chunks, 0))


def test_more_chunks_than_the_claim_word_counts(pool):
    chunks = (1 << CHUNK_BITS) + 12345
    counters = (WORD * 2)()
    launch(pool, "tally", adder(counters), chunks)
    assert list(counters) == [chunks, chunks * (chunks - 1) // 2]


def test_the_generation_wraps(pool):
    generation = ctypes.c_uint64.from_address(pool.address + FIELDS["generation"])
    word = ctypes.c_uint64.from_address(pool.address + FIELDS["slots"])
    generation.value = (1 << 40) - 2
    for _ in range(5):
        run_and_check(pool, 33)
    assert word.value == 3 << CHUNK_BITS


@pytest.mark.parametrize(
    ("chunks", "limits"), [(2, [1, 2]), (3, [1, 2, 3]), (4, [2, 3, 4]), (200, [67, 134, 200])]
)
def test_each_thread_has_the_same_equal_part_in_every_launch(pool, chunks, limits):
    for _ in range(20):
        run_and_check(pool, chunks)
        slots = pool.address + FIELDS["slots"]
        for part, limit in enumerate(limits):
            slot = slots + SLOT_STRIDE * part
            assert WORD.from_address(slot + SLOT["limit"]).value == limit
            assert WORD.from_address(slot).value & ((1 << CHUNK_BITS) - 1) == 0


def test_a_smaller_pool_ignores_the_slots_of_a_larger_one(pool):
    run_and_check(pool, 50)
    set_num_threads(5)
    run_and_check(pool, 50)
    set_num_threads(2)
    for _ in range(100):
        run_and_check(pool, 50, work=100)


def test_workers_take_part(pool):
    deadline = time.monotonic() + 20
    while min(pool.worker_chunks()) == 0 and time.monotonic() < deadline:
        run_and_check(pool, 16, work=20000)
    assert len(pool.worker_chunks()) == 2 and min(pool.worker_chunks()) > 0


def test_sleeping_workers_are_woken(pool):
    before = sum(pool.worker_chunks())
    deadline = time.monotonic() + 20
    while sum(pool.worker_chunks()) == before and time.monotonic() < deadline:
        time.sleep(0.01)  # two hundred times the spin
        run_and_check(pool, 64, work=20000)
    assert sum(pool.worker_chunks()) > before


def test_launch_sleep_launch_with_random_pauses(pool):
    """Launches at every phase of a worker's way to sleep."""
    chance = random.Random(3)
    for _ in range(300):
        run_and_check(pool, chance.choice((2, 3, 5, 40)), work=chance.choice((0, 100)))
        pause = time.perf_counter() + chance.uniform(0, 150e-6)
        while time.perf_counter() < pause:
            pass
    sleepers = ctypes.c_int32.from_address(pool.address + FIELDS["sleepers"])
    deadline = time.monotonic() + 10
    while sleepers.value != 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sleepers.value == 2  # no sleeper was counted twice or lost


def wait_until(word: ctypes.c_int32, value: int) -> bool:
    deadline = time.monotonic() + 10
    while word.value != value and time.monotonic() < deadline:
        time.sleep(0.005)
    return word.value == value


def test_a_worker_stays_awake_while_a_job_runs_but_not_for_ever():
    with pool_of(2) as pool:
        sleepers = ctypes.c_int32.from_address(pool.address + FIELDS["sleepers"])
        busy = ctypes.c_int32.from_address(pool.address + FIELDS["busy"])
        spin = WORD.from_address(pool.address + FIELDS["spin"])
        assert wait_until(sleepers, 1)
        spin.value = 200_000_000  # forty times as long while a job runs
        run_and_check(pool, 2)
        busy.value = 1  # as if the caller still ran a chunk
        time.sleep(0.5)
        assert sleepers.value == 0
        busy.value = 0
        assert wait_until(sleepers, 1)
        spin.value = 1_000_000
        run_and_check(pool, 2)
        busy.value = 1
        assert wait_until(sleepers, 1)
        busy.value = 0


def sleeping_worker(pool: Pool) -> int:
    """Launch until the only worker has slept and was woken; return its thread when it sleeps."""
    word = ctypes.c_int32.from_address(pool.address + FIELDS["sleepers"])
    for _ in range(3):
        run_and_check(pool, 64, work=20000)
        deadline = time.monotonic() + 10
        while word.value != 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert word.value == 1
    return next(t.native_id for t in threading.enumerate() if t.name == "frame-worker-0")


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors and a system with affinities",
)
def test_a_sleeping_worker_leaves_out_the_processor_of_the_caller():
    usual = os.sched_getaffinity(0)
    with pool_of(2) as pool:
        worker = sleeping_worker(pool)
        asleep = os.sched_getaffinity(worker)
        assert asleep < usual
        assert len(asleep) == len(usual) - 1
        chosen = usual - asleep  # never the pool's own choice, which nobody can tell from a user's
        os.sched_setaffinity(worker, chosen)
        sleeping_worker(pool)
        assert os.sched_getaffinity(worker) == chosen  # a user's choice stays
    with pool_of(2, "portable") as pool:
        assert os.sched_getaffinity(sleeping_worker(pool)) == usual


@pytest.mark.parametrize("wait", WAITS)
def test_known_21_concurrent_callers(wait):
    """8 threads call the same and different kernels: one uses the pool, the others run inline."""
    with pool_of(3, wait) as pool:
        failures: list[BaseException] = []

        def caller(seed: int) -> None:
            chance = random.Random(seed)
            try:
                for _ in range(150):
                    chunks = chance.choice((1, 2, 8, 100))
                    step = chance.randrange(1, 1000)
                    counters = (WORD * chunks)()
                    kernel = "add" if chance.random() < 0.5 else "twice"
                    launch(pool, kernel, adder(counters, step, chance.choice((0, 300))), chunks)
                    assert set(counters) == {step * (2 if kernel == "twice" else 1)}
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_a_nested_launch_runs_inline(pool):
    outer_chunks, inner_chunks = 16, 9
    outer = (WORD * outer_chunks)()
    inner = [(WORD * inner_chunks)() for _ in range(outer_chunks)]
    inner_args = (WORD * (8 * outer_chunks))()
    for index, counters in enumerate(inner):
        inner_args[8 * index] = ctypes.addressof(counters)
        inner_args[8 * index + 1] = index + 1
    args = adder(outer)
    args[3:8] = [
        pool.address,
        pool.launch_address,
        code().symbol("add"),
        ctypes.addressof(inner_args),
        inner_chunks,
    ]
    for _ in range(50):
        launch(pool, "nested", args, outer_chunks)
    assert set(outer) == {50}
    assert [set(counters) for counters in inner] == [{50 * (i + 1)} for i in range(outer_chunks)]


def test_set_num_threads_while_others_launch():
    stop = threading.Event()
    failures: list[BaseException] = []
    with pool_of(2) as pool:

        def caller() -> None:
            try:
                while not stop.is_set():
                    run_and_check(pool, 12, work=50)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=caller) for _ in range(3)]
        for thread in threads:
            thread.start()
        for count in (1, 3, 2, 5, 1, 4) * 3:
            assert set_num_threads(count) is pool
            assert pool.threads == count
            run_and_check(pool, 20)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_thread_counts_outside_the_range_are_refused():
    for count in (0, -1, 4097):
        with pytest.raises(InvalidArgumentError, match="expected 1 to 4096"):
            set_num_threads(count)


def test_failures_keep_the_smallest_site_and_position(pool):
    for _ in range(200):
        status = (WORD * 4)()
        args = (WORD * 8)(0, pool.fail_address, ctypes.addressof(status))
        launch(pool, "failing", args, 64)
        assert list(status) == [0, 3, 1000 - 63, 63]


def test_a_failure_never_replaces_an_earlier_one():
    fail = ctypes.CFUNCTYPE(None, POINTER, WORD, WORD, WORD)(get_pool().fail_address)
    status = (WORD * 4)()
    for site, position, expected in [
        (5, 10, (5, 10)), (5, 11, (5, 10)), (6, 0, (5, 10)), (5, 9, (5, 9)), (4, 99, (4, 99)),
    ]:  # fmt: skip
        fail(ctypes.addressof(status), site, position, 100 * site + position)
        assert tuple(status)[:3] == (0, *expected)
        assert status[3] == 100 * expected[0] + expected[1]


def test_kernels_keep_denormals_whatever_the_caller_set(pool):
    """A library built with -ffast-math makes its loader's thread flush denormals to zero."""
    if host_architecture() != "x86_64":
        pytest.skip("the test sets MXCSR")
    text = """
    declare void @llvm.x86.sse.stmxcsr(ptr)
    declare void @llvm.x86.sse.ldmxcsr(ptr)
    define void @get(ptr %p) nounwind { call void @llvm.x86.sse.stmxcsr(ptr %p)\n ret void }
    define void @set(ptr %p) nounwind { call void @llvm.x86.sse.ldmxcsr(ptr %p)\n ret void }"""
    loaded = elf.load(pool_module.llvm.compile_ir(text, named_target("x86-64")))
    get, set_ = (ctypes.CFUNCTYPE(None, POINTER)(loaded.symbol(name)) for name in ("get", "set"))
    before, flushing, after = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
    tiny = sys.float_info.min
    args = adder((ctypes.c_double * 64)(), work=2000)
    get(ctypes.addressof(before))
    flushing.value = before.value | 0x8040
    for chunks in (1, 64):
        results = (ctypes.c_double * 64)()
        args[0] = ctypes.addressof(results)
        ctypes.c_double.from_address(ctypes.addressof(args) + 8).value = tiny
        set_(ctypes.addressof(flushing))
        launch(pool, "halve", args, chunks)
        get(ctypes.addressof(after))
        set_(ctypes.addressof(before))
        assert after.value & 0xFFC0 == flushing.value & 0xFFC0
        assert list(results) == [tiny / 2] * chunks + [0.0] * (64 - chunks)


def test_the_clock_is_monotonic_time_in_nanoseconds():
    clock = ctypes.CFUNCTYPE(WORD)(get_pool().clock_address)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    now = clock()
    assert before <= now <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@pytest.mark.parametrize("wait", WAITS)
def test_known_24_idle_pool_sleeps(wait):
    with pool_of(3, wait) as pool:
        run_and_check(pool, 100)
        time.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.5)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.1  # three spinning threads would use all processors


@pytest.mark.parametrize("wait", WAITS)
def test_known_19_fork_then_parallel_kernel(wait):
    with pool_of(3, wait) as pool:
        run_and_check(pool, 50)
        for hot in (True, False):
            if not hot:
                time.sleep(0.01)
            assert fork_and_check(pool) == 0
            run_and_check(pool, 50)


def child_of_fork(pool: Pool) -> int:
    """Launch at the address from before the fork, then with new workers; 0 if all is well."""
    run_and_check(pool, 50)  # no worker yet: inline
    alone = pool.threads == 1 and not pool.ready
    again = get_pool()
    deadline = time.monotonic() + 20
    while sum(again.worker_chunks()) == 0 and time.monotonic() < deadline:
        run_and_check(again, 50, work=5000)
    helped = sum(again.worker_chunks()) > 0
    same = again is pool and again.threads == 3
    return 0 if alone and helped and same else 1


def fork_and_check(pool: Pool) -> int:
    """Return the exit status of a forked child that runs `child_of_fork`."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = child_of_fork(pool)
        finally:
            os._exit(status)
    return wait_for(child)


def wait_for(child: int) -> int:
    """Return the exit status of a child; kill it when it hangs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the forked child hangs")


def test_fork_while_other_threads_launch():
    stop = threading.Event()
    with pool_of(3) as pool:

        def caller() -> None:
            while not stop.is_set():
                run_and_check(pool, 30, work=100)

        threads = [threading.Thread(target=caller) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                assert fork_and_check(pool) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    prelude = (
        "import os, sys, threading, time, ctypes, atexit\n"
        "from frame.backends.cpu.pool import get_pool, set_num_threads\n"
        "from tests.backends.cpu.pool_kernels import run_and_check, launch, adder, WORD\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


ENDINGS = {
    "hot": "run_and_check(get_pool(), 64)",  # workers spin as the interpreter ends
    "idle": "run_and_check(get_pool(), 64); time.sleep(0.1)",  # they sleep
    "never launched": "get_pool()",
    "late launch": "get_pool(); atexit._run_exitfuncs(); run_and_check(get_pool(), 9)",
    "first asked at exit": "atexit._run_exitfuncs(); run_and_check(get_pool(), 9)",
    "daemon thread in a launch": (
        "def forever():\n"
        "    while True: run_and_check(get_pool(), 8, work=100000)\n"
        "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.1)"
    ),
}


@pytest.mark.parametrize(
    ("ending", "wait"),
    [(name, "futex") for name in ENDINGS] + [("hot", "portable"), ("idle", "portable")],
)
def test_the_interpreter_ends_cleanly(ending, wait):
    done = run_python(ENDINGS[ending], FRAME_NUM_THREADS="3", FRAME_POOL_WAIT=wait)
    assert (done.returncode, done.stderr) == (0, "")


def test_multiprocessing_children_compute():
    script = (
        "import multiprocessing\n"
        "def work(_):\n"
        "    run_and_check(get_pool(), 40, work=100)\n"
        "    return get_pool().threads\n"
        "run_and_check(get_pool(), 40)\n"
        "with multiprocessing.get_context('fork').Pool(2) as processes:\n"
        "    assert processes.map(work, range(6)) == [2] * 6\n"
    )
    done = run_python(script, FRAME_NUM_THREADS="2")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FRAME_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"FRAME_NUM_THREADS": "1"}, 1),
    ],
)
def test_the_environment_sets_the_number_of_threads(environment, expected):
    clean = {"FRAME_NUM_THREADS": "", "OMP_NUM_THREADS": "", **environment}
    done = run_python("print(get_pool().threads, threading.active_count())", **clean)
    assert done.stdout.split() == [str(expected), str(expected)], done.stderr


class Store(dict):
    def put(self, key: str, data: bytes) -> None:
        self[key] = data


def test_the_code_is_compiled_once_and_kept(monkeypatch):
    store = Store()
    data = pool_object(store)
    assert list(store.values()) == [data]
    monkeypatch.setattr(pool_module.llvm, "compile_ir", None)
    assert pool_object(store) == data


def test_a_damaged_stored_object_is_rebuilt(caplog):
    store = Store()
    pool_object(store)
    for key in store:
        store[key] = store[key][:500]
    assert pool_module._load_code(store).launch
    assert "damaged" in caplog.text
    assert pool_module._load_code(store).launch and len(caplog.records) == 1  # it was put back


def test_a_refused_thread_leaves_a_smaller_pool(monkeypatch, caplog):
    class Refused(threading.Thread):
        def start(self) -> None:
            if self.name == "frame-worker-1":
                raise RuntimeError("can't start new thread")
            super().start()

    with pool_of(1):
        monkeypatch.setattr(pool_module.threading, "Thread", Refused)
        pool = set_num_threads(4)
        monkeypatch.undo()
        assert pool.threads == 2
        run_and_check(pool, 30)
    assert "1 of 3 workers" in caplog.text


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_text_compiles_for_both_architectures(architecture):
    target = named_target({"x86_64": "x86-64", "aarch64": "armv8-a"}[architecture])
    text = pool_module.llvm.assembly(pool_text(architecture), target)
    assert ("pause" if architecture == "x86_64" else "yield") in text
    assert pool_module.llvm.compile_ir(pool_text(architecture), target)


def test_the_aarch64_code_runs_under_an_emulator():
    """An inline launch, and the caller's part of a job whose workers never come."""
    unicorn = pytest.importorskip("unicorn")
    target = named_target("armv8-a")
    objects = (pool_text("aarch64"), TEXT)
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    symbols: dict[str, int] = {}
    for base, text in zip((0x10_0000, 0x20_0000), objects, strict=True):
        file = elf.parse(pool_module.llvm.compile_ir(text, target, level=0))
        layout = elf.plan(file)
        image = bytearray(layout.size)
        elf.place(file, layout, base, image)
        machine.mem_map(base, layout.size)
        machine.mem_write(base, bytes(image))
        symbols |= elf.exports(file, layout, base)
    pool, args, counters, stack = 0x30_0000, 0x30_2000, 0x30_3000, 0x40_0000
    machine.mem_map(pool, 0x10000)
    machine.mem_map(stack, 0x10000)
    machine.mem_write(args, struct.pack("<3q", counters, 5, 0))
    registers = [getattr(unicorn.arm64_const, f"UC_ARM64_REG_X{index}") for index in range(4)]
    for workers in (0, 1):
        machine.mem_write(pool + FIELDS["workers"], struct.pack("<i", workers))
        for register, value in zip(registers, (pool, symbols["add"], args, 6), strict=True):
            machine.reg_write(register, value)
        machine.reg_write(unicorn.arm64_const.UC_ARM64_REG_LR, stack)
        machine.reg_write(unicorn.arm64_const.UC_ARM64_REG_SP, stack + 0x8000)
        machine.emu_start(symbols["frame_launch"], stack)
    assert struct.unpack("<7q", bytes(machine.mem_read(counters, 56))) == (10,) * 6 + (0,)
    slots = pool + FIELDS["slots"]
    words = [
        struct.unpack("<q", bytes(machine.mem_read(slots + SLOT_STRIDE * k, 8)))[0] for k in (0, 1)
    ]
    assert words == [1 << CHUNK_BITS] * 2  # one job, both parts empty


SUBINTERPRETER = """
import sys
import _xxsubinterpreters as interpreters
made = interpreters.create(isolated=False)
interpreters.run_string(made, '''
import numpy as np
import frame
model = frame.compile(lambda x: frame.ops.sum(frame.ops.sin(x)), [frame.spec((1 << 16,))])
found = [float(model(np.full(1 << 16, 0.5, np.float32))) for _ in range(50)]
assert len(set(found)) == 1 and abs(found[0] / (1 << 16) - 0.479425) < 1e-5, found[0]
from frame.backends.cpu.pool import get_pool
print(get_pool().threads)
''')
interpreters.destroy(made)
print("destroyed")
"""


def test_a_subinterpreter_computes_without_workers_and_can_end():
    """A worker would keep its interpreter from ending, and end the process in its place."""
    pytest.importorskip("_xxsubinterpreters")
    done = subprocess.run(
        [sys.executable, "-c", SUBINTERPRETER],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FRAME_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "destroyed"]), done.stderr
    assert "subinterpreter has no workers" in done.stderr
