"""The process-wide thread pool: its memory, its worker threads, fork and shutdown.

The pool's code is generated once (see pool_ir) and kept in the artefact store. Workers are ordinary
daemon threads of Python that enter it and stay there, without the interpreter's lock, until the
pool stops. The structure that the code works on never moves and is never freed, so its address may
stand in the prepared arguments of an executable, across `set_num_threads` and fork alike.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from frame.backends.cpu import elf, llvm, threads
from frame.backends.cpu.gate_ir import gate_module
from frame.backends.cpu.pool_ir import FIELDS, HOST, SLOT, SLOT_STRIDE, pool_module
from frame.backends.cpu.target import host_architecture, named_target
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.logs import Logger

if TYPE_CHECKING:
    from frame.hal.interfaces import ArtifactStore

_LOG = Logger(__name__)

MOST_THREADS = 4096
SPIN_NANOSECONDS = 50_000
"""How long an idle worker, or a caller whose chunks are done, spins before it sleeps.

While others run chunks of the job it is longer: see `pool_ir`.
"""

_SHUTDOWN_SECONDS = 2.0  # a kernel that a daemon thread left running doesn't hold up the exit
_SYSTEM_CALLS = {
    "x86_64": {
        "futex": 202, "getcpu": 309, "sched_getaffinity": 204, "sched_setaffinity": 203,
    },
    "aarch64": {
        "futex": 98, "getcpu": 168, "sched_getaffinity": 123, "sched_setaffinity": 122,
    },
}  # fmt: skip
_BASELINE = {"x86_64": "x86-64", "aarch64": "armv8-a"}
_SIZE = FIELDS["slots"] + SLOT_STRIDE * MOST_THREADS


@dataclass(frozen=True, slots=True)
class _Code:
    """The loaded functions of the pool: addresses, and callables for those that Python calls."""

    loaded: elf.LoadedObject
    launch: int
    fail: int
    clock: int
    worker: Callable[[int, int], None]
    stop: Callable[[int], None]


class Pool:
    """The pool: addresses for native code (plain integers) and the number of threads.

    `address`, `launch_address`, `fail_address` and `clock_address` are words 0, 1, 2 and 9 of an
    entry's context. They are valid for the life of the process and of its forked children.
    """

    __slots__ = (
        "_code", "_epoch", "_image", "_most", "_workers", "address", "clock_address",
        "fail_address", "launch_address", "ready", "threads",
    )  # fmt: skip

    def __init__(self, code: _Code) -> None:
        self._code = code
        self._image = mmap.mmap(-1, _SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._workers: list[threading.Thread] = []
        self._most = 0  # threads that the pool has ever had
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._image))
        self.launch_address = code.launch
        self.fail_address = code.fail
        self.clock_address = code.clock
        self.threads = 1
        self._epoch = 1
        self.ready = False

    @property
    def epoch_address(self) -> int:
        """The address of the word that is 0 while the pool is not ready; see `FIELDS`."""
        return self.address + FIELDS["epoch"]

    def symbol(self, name: str) -> int:
        """Return the address of a function or table in the code of the pool."""
        return self._code.loaded.symbol(name)

    def _set_ready(self, ready: bool) -> None:
        ctypes.c_int64.from_address(self.epoch_address).value = self._epoch if ready else 0
        self.ready = ready

    @property
    def portable(self) -> bool:
        """Whether idle threads sleep by a condition variable, and not by futex."""
        return bool(self._int32("portable").value)

    def worker_chunks(self) -> tuple[int, ...]:
        """Return how many chunks each worker has run since the pool was started."""
        return tuple(self._counter(index).value for index in range(len(self._workers)))

    def _start(self, count: int) -> None:
        """Start the workers of a pool of `count` threads, the caller of a launch included."""
        portable = config.get("FRAME_POOL_WAIT") == "portable" or not _futex_works()
        self._int32("portable").value = portable
        self._int32("stop").value = 0
        self._int32("caller").value = 0
        crowded = count > threads.available_cpus()  # there, spinning takes time from the others
        ctypes.c_int64.from_address(self.address + FIELDS["spin"]).value = (
            SPIN_NANOSECONDS // 25 if crowded else SPIN_NANOSECONDS
        )
        self._most = max(self._most, count)
        for index in range(count - 1):
            self._counter(index).value = 0
        self._workers = _start_threads(self._code, self.address, count - 1)
        self._int32("workers").value = len(self._workers)
        self.threads = len(self._workers) + 1
        self._set_ready(True)

    def _stop(self, timeout: float | None) -> None:
        """Let the workers return after their current chunk and wait for them."""
        self._code.stop(self.address)
        deadline = None if timeout is None else time.monotonic() + timeout
        for worker in self._workers:
            worker.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._workers = []
        self.threads = 1

    def _forget_workers(self) -> None:
        """In a forked child: no worker came along, and no launch of the parent ends here."""
        ctypes.memset(self.address, 0, FIELDS["slots"] + SLOT_STRIDE * self._most)
        _initialise_locks(self.address)
        self._workers = []
        self.threads = 1
        self._epoch += 1  # frames that other threads of the parent had claimed are free here
        self._set_ready(False)

    def _counter(self, index: int) -> ctypes.c_int64:
        """Return how many chunks a worker has run, as the word that it counts in."""
        slot = self.address + FIELDS["slots"] + SLOT_STRIDE * (index + 1)
        return ctypes.c_int64.from_address(slot + SLOT["counter"])

    def _int32(self, field: str) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + FIELDS[field])


_lock = threading.Lock()
_pool: Pool | None = None
_threads_asked: int | None = None
_exiting = False


def get_pool(store: ArtifactStore | None = None) -> Pool:
    """Return the one pool of this process, started; a forked child gets workers of its own.

    Call it before each native call: it costs tens of nanoseconds. The code comes from `store` where
    that has it, else it is compiled and put there.
    """
    pool = _pool
    if pool is not None and pool.ready:
        return pool
    with _lock:
        return _started(store)


def set_num_threads(count: int | None) -> Pool:
    """Give the pool `count` threads, the caller of a launch included; None means the default.

    Launches that run meanwhile finish. Raises InvalidArgumentError for a count outside 1 to 4096.
    """
    global _threads_asked
    if count is not None and not 1 <= count <= MOST_THREADS:
        raise InvalidArgumentError(f"expected 1 to {MOST_THREADS} threads, received {count}")
    with _lock:
        _threads_asked = count
        if _pool is not None and _pool.ready and not _exiting:
            _pool._stop(None)
            _pool._set_ready(False)
        return _started(None)


def pool_object(store: ArtifactStore | None = None, fresh: bool = False) -> bytes:
    """Return the object of the pool's code for this architecture.

    It comes from `store` where that has it, unless `fresh` says that what it has is no good; else
    it is compiled and put there.
    """
    architecture = host_architecture()
    target = named_target(_BASELINE[architecture])  # waiting needs no vector units
    text = pool_module(architecture) + gate_module()
    key = hashlib.sha256(f"{text}\n{target.triple} {target.cpu}".encode()).hexdigest()
    data = None if store is None or fresh else store.get(key)
    if data is None:
        data = llvm.compile_ir(text, target, level=0)  # a tenth of the time, 10 ns a launch
        if store is not None:
            store.put(key, data)
    return data


def _started(store: ArtifactStore | None) -> Pool:
    """Return the pool with its workers running; called with the lock held."""
    global _pool
    if _pool is None:
        pool = Pool(_load_code(store))
        _initialise_locks(pool.address)
        _pool = pool
    if not _pool.ready:
        _pool._start(_threads_wanted())
    return _pool


def _threads_wanted() -> int:
    if _exiting:
        return 1
    if not _is_main_interpreter():
        # One that ends while it has threads ends the process.
        _LOG.warning("a subinterpreter has no workers: kernels run on the calling thread alone")
        return 1
    return min(_threads_asked or threads.default_threads(), MOST_THREADS)


def _is_main_interpreter() -> bool:
    """Whether this is the interpreter that the process began with."""
    names = ("PyInterpreterState_Get", "PyInterpreterState_Main")
    found = [getattr(ctypes.pythonapi, name, None) for name in names]
    addresses = []
    for function in found:
        if function is None:  # another interpreter than CPython
            return True
        function.restype = ctypes.c_void_p
        addresses.append(function())
    return bool(addresses[0] == addresses[1])


def _load_code(store: ArtifactStore | None) -> _Code:
    try:
        loaded = elf.load(pool_object(store))
    except InternalError as error:
        if store is None:
            raise
        _LOG.warning("the stored code of the thread pool is damaged and is rebuilt: %s", error)
        loaded = elf.load(pool_object(store, fresh=True))
    for index, value in enumerate(_host_words().values()):
        ctypes.c_int64.from_address(loaded.symbol("frame_host") + 8 * index).value = value
    return _Code(
        loaded,
        loaded.symbol("frame_launch"),
        loaded.symbol("frame_fail"),
        loaded.symbol("frame_clock"),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.symbol("frame_worker")),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.symbol("frame_stop")),
    )


def _host_words() -> dict[str, int]:
    """Return the words of `frame_host`: functions of the C library and numbers."""
    numbers = {"clock_id": time.CLOCK_MONOTONIC, **_SYSTEM_CALLS[host_architecture()]}
    return {name: numbers[name] if name in numbers else _address_of(name) for name in HOST}


def _address_of(name: str) -> int:
    return ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value or 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _futex_works() -> bool:
    """Whether the system has futex and lets this process use it (a sandbox may not)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    word = ctypes.c_int32(0)
    number = ctypes.c_long(_SYSTEM_CALLS[host_architecture()]["futex"])
    wake, one, zero = ctypes.c_long(129), ctypes.c_long(1), ctypes.c_long(0)
    return _libc().syscall(number, ctypes.byref(word), wake, one, zero, zero, zero) == 0


def _initialise_locks(address: int) -> None:
    """Make the mutex and the condition variable of the portable path."""
    libc = _libc()
    libc.pthread_mutex_init(ctypes.c_void_p(address + FIELDS["mutex"]), None)
    libc.pthread_cond_init(ctypes.c_void_p(address + FIELDS["condition"]), None)


def _start_threads(code: _Code, address: int, count: int) -> list[threading.Thread]:
    """Start `count` workers, or as many as the system allows."""
    workers: list[threading.Thread] = []
    for index in range(count):
        worker = threading.Thread(
            target=code.worker, args=(address, index), name=f"frame-worker-{index}", daemon=True
        )
        try:
            worker.start()
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            _LOG.warning("the pool has %d of %d workers: %s", index, count, error)
            break
        workers.append(worker)
    return workers


def _before_exit() -> None:
    """Stop the workers while the interpreter can still join them; later launches run inline."""
    global _exiting
    with _lock:
        _exiting = True
        # Without workers nothing is called that lets go of the interpreter's lock: a subinterpreter
        # that is left to the end of the process would not get it back.
        if _pool is not None and _pool._workers:
            _pool._stop(_SHUTDOWN_SECONDS)


def _after_fork_in_child() -> None:
    if _pool is not None:
        _pool._forget_workers()
    _lock.release()


# Holding the lock over a fork means that the child finds no half-started pool.
atexit.register(_before_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child
    )
