"""The device: memory of its own, streams that work late, and a check of every access.

Each stream counts its work. A clock says, for each stream, how much of its work is sure to be done:
a stream learns from the events that it waits for, the host from what it waits for, and new work
knows what the host knew when it queued it. An access is sound if the clock of its stream covers the
accesses before it; that the data happens to be there already is not enough.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frame.core.devices import Device
from frame.core.errors import DeviceError, FrameError, InvalidArgumentError, OutOfMemoryError

Clock = dict[str, int]


class HazardError(DeviceError):
    """What would be a race or a use of dead memory on a real device."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran: `upload`, `download`, `copy`, `wait`, an op, or `update`."""

    name: str
    stream: str


class Machine:
    """What all devices of one backend share: the lock, the log, and what the host has seen."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.log: list[Operation] = []
        self.host: Clock = {}
        self.buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self.numbers = itertools.count()

    @property
    def live_bytes(self) -> int:
        """Bytes of the buffers that are neither freed nor forgotten."""
        return sum(buffer.nbytes for buffer in self.buffers if not buffer.freed)


class Buffer:
    """Device memory. It has a shape and a dtype, and the host can't read it."""

    def __init__(
        self, machine: Machine, device: Device, shape: Sequence[int], dtype: np.dtype
    ) -> None:
        self.device, self.shape, self.dtype = device, tuple(shape), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        self.freed = False
        self.data: np.ndarray | None = None  # for operations of the device alone
        self.written: tuple[str, int] | None = None
        self.readers: Clock = {}
        machine.buffers.add(self)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise HazardError(f"the host read {self!r}, which is memory of {self.device}: download it")

    def __repr__(self) -> str:
        return f"<Buffer {self.dtype.name}{list(self.shape)} on {self.device}>"


class HostCopy:
    """The result of a download: a host array once the host has waited for it."""

    def __init__(self, machine: Machine, source: Buffer, stream: str, count: int) -> None:
        self.data = np.empty(source.shape, source.dtype)
        self._machine, self._stream, self._count = machine, stream, count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._machine.host.get(self._stream, 0) < self._count:
            raise HazardError(f"the host read a download of {self._stream} without waiting for it")
        return self.data if dtype is None and not copy else np.array(self.data, dtype)


class Event:
    """A point in the work of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.count, self.clock = stream, stream.count, dict(stream.clock)

    def query(self) -> bool:
        """Tell whether the point has been reached."""
        return self.stream.done >= self.count

    def synchronize(self) -> None:
        """Run the work before the point; raise what it failed with."""
        with self.stream.machine.lock:
            self.stream.drain(self.count)
            _merge(self.stream.machine.host, self.clock)
            self.stream.check()


@dataclass(frozen=True, slots=True)
class _Work:
    count: int
    names: tuple[str, ...]
    action: Callable[[], None]


class Stream:
    """A queue whose work runs when somebody waits for it. A failed stream stays failed."""

    def __init__(self, machine: Machine, device: Device) -> None:
        self.machine, self.device = machine, device
        self.name = f"{device}/{next(machine.numbers)}"
        self.clock: Clock = {}
        self.count = self.done = 0
        self._queue: deque[_Work] = deque()
        self._error: FrameError | None = None

    def record(self) -> Event:
        """Return an event for all work queued so far."""
        with self.machine.lock:
            return Event(self)

    def wait(self, event: Any) -> None:
        """Let later work start only after an event, of any backend."""
        with self.machine.lock:
            self._push(("wait",), lambda: _reach(event))
            if isinstance(event, Event):
                _merge(self.clock, event.clock)

    def synchronize(self) -> None:
        """Run all queued work; raise what it failed with."""
        self.record().synchronize()

    def queue(
        self,
        names: Sequence[str],
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
        action: Callable[[], None],
    ) -> int:
        """Queue an operation and return its number; raise HazardError for an unsound access."""
        with self.machine.lock:
            _merge(self.clock, self.machine.host)
            for buffer in reads:
                self._check_read(names[0], buffer)
            for buffer in writes:
                self._check_write(names[0], buffer)
            count = self._push(tuple(names), action)
            for buffer in reads:
                buffer.readers[self.name] = count
            for buffer in writes:
                buffer.written, buffer.readers = (self.name, count), {}
            return count

    def drain(self, count: int) -> None:
        """Run the queue up to a number."""
        while self._queue and self._queue[0].count <= count:
            work = self._queue.popleft()
            self.done = work.count
            if self._error is not None:
                continue
            try:
                work.action()
                self.machine.log.extend(Operation(name, self.name) for name in work.names)
            except FrameError as error:
                self._error = error

    def check(self) -> None:
        """Raise what the work failed with."""
        if self._error is not None:
            raise self._error

    def _push(self, names: tuple[str, ...], action: Callable[[], None]) -> int:
        self.count += 1
        self.clock[self.name] = self.count
        self._queue.append(_Work(self.count, names, action))
        return self.count

    def _check_read(self, name: str, buffer: Buffer) -> None:
        if buffer.freed:
            raise HazardError(f"{name} on {self.name} reads {buffer!r} after it was freed")
        if buffer.written is None:
            raise HazardError(f"{name} on {self.name} reads {buffer!r}, which nothing wrote")
        if not _covers(self.clock, *buffer.written):
            raise HazardError(
                f"{name} on {self.name} reads {buffer!r}, which {buffer.written[0]} writes: "
                "nothing made it wait"
            )

    def _check_write(self, name: str, buffer: Buffer) -> None:
        if buffer.freed:
            raise HazardError(f"{name} on {self.name} writes {buffer!r} after it was freed")
        for stream, count in (*buffer.readers.items(), *filter(None, [buffer.written])):
            if not _covers(self.clock, stream, count):
                raise HazardError(
                    f"{name} on {self.name} writes {buffer!r}, which {stream} still uses"
                )


class Allocator:
    """The memory of one device."""

    def __init__(self, machine: Machine, device: Device) -> None:
        self._machine, self._device = machine, device

    def allocate(self, size: int, alignment: int = 64) -> Buffer:
        """Return a buffer of `size` bytes; raise OutOfMemoryError."""
        if size >= 1 << 40:
            raise OutOfMemoryError(f"{self._device} has no {size} bytes")
        return Buffer(self._machine, self._device, (size,), np.dtype(np.uint8))

    def free(self, storage: Buffer) -> None:
        """Free a buffer; raise HazardError if queued work may use it, or for a second time."""
        with self._machine.lock:
            if storage.freed:
                raise HazardError(f"{storage!r} is freed twice")
            for stream, count in (*storage.readers.items(), *filter(None, [storage.written])):
                if not _covers(self._machine.host, stream, count):
                    raise HazardError(f"{storage!r} is freed while {stream} may use it")
            storage.freed, storage.data = True, None


def upload(machine: Machine, array: Any, device: Device, stream: Stream) -> Buffer:
    """Queue a copy of a host array, which must not change before it has run."""
    source = np.asarray(array)
    made = Buffer(machine, device, source.shape, source.dtype)
    before = _digest(source)

    def action() -> None:
        if _digest(source) != before:
            raise HazardError(f"a host array changed before its upload to {device} ran")
        made.data = np.array(source, order="C")

    stream.queue(("upload",), (), (made,), action)
    return made


def download(machine: Machine, storage: Buffer, stream: Stream) -> HostCopy:
    """Queue a copy of a buffer to a host array."""
    count = stream.queue(("download",), (storage,), (), lambda: np.copyto(made.data, storage.data))
    made = HostCopy(machine, storage, stream.name, count)
    return made


def copy(machine: Machine, storage: Buffer, device: Device, stream: Stream) -> Buffer:
    """Queue a copy of a buffer to a device."""
    made = Buffer(machine, device, storage.shape, storage.dtype)

    def action() -> None:
        made.data = np.array(storage.data)

    stream.queue(("copy",), (storage,), (made,), action)
    return made


def require_buffer(value: Any, device: Device | None = None) -> Buffer:
    """Return a buffer; raise InvalidArgumentError for anything else, or one elsewhere."""
    if not isinstance(value, Buffer):
        raise InvalidArgumentError(f"expected device memory, received {type(value).__name__}")
    if device is not None and value.device != device:
        raise InvalidArgumentError(f"expected memory of {device}, received {value!r}")
    return value


def _merge(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def _covers(clock: Clock, stream: str, count: int) -> bool:
    return clock.get(stream, 0) >= count


def _reach(event: Any) -> None:
    """Run the work before an event, without letting the host know of it."""
    if not isinstance(event, Event):
        event.synchronize()
        return
    event.stream.drain(event.count)
    event.stream.check()


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
