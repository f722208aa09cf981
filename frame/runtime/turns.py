"""Who may use the arrays of a store now: any number of readers, or one writer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

_FORK_SECONDS = 2.0


class Turns:
    """A lock of readers and a writer. A fork waits for the writer of another thread to end, so that
    the child has arrays of one step; in the child nobody reads or writes.
    """

    def __init__(self) -> None:
        self._begin_anew()
        _all.add(self)

    def _begin_anew(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self._readers = 0
        self._waiting = 0  # readers that wait for a writer to end
        self._promised = 0  # those of them that the next writer lets begin first
        self._writer: int | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out; any number of readers at once. The thread that writes may read."""
        with self.condition:
            if self._writer not in (None, threading.get_ident()):
                self._wait_to_read()
            self._readers += 1
        try:
            yield
        finally:
            self._end_read()

    def _wait_to_read(self) -> None:
        """Wait for the writer to end. Whoever writes next waits for those who wait now: a training
        loop takes the turn again so soon that a reader would otherwise hardly ever get it."""
        self._waiting += 1
        try:
            while self._writer is not None:
                self.condition.wait()
        finally:
            self._waiting -= 1
            if self._promised:
                self._promised -= 1
                self.condition.notify_all()

    def _end_read(self) -> None:
        with self.condition:
            self._readers = max(self._readers - 1, 0)  # 0 in the child of a fork while it read
            if not self._readers:
                self.condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everyone else from reading and writing."""
        with self.condition:
            while self._writer is not None or self._promised:
                self.condition.wait()
            self._writer = threading.get_ident()  # from here on nobody begins to read
            while self._readers:
                self.condition.wait()
        try:
            yield
        finally:
            with self.condition:
                self._writer = None
                self._promised = self._waiting
                self.condition.notify_all()

    def hold(self, deadline: float) -> bool:
        """Let nobody begin, once the writer at work has ended; tell whether `release` is due.

        At `deadline` of the monotonic clock it gives up: a fork must not hang for a writer that
        waits for something that the forking thread has.
        """
        if not self.condition.acquire(timeout=max(deadline - time.monotonic(), 0)):
            return False
        while self._writer not in (None, threading.get_ident()):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.condition.wait(left)
        return True

    def release(self) -> None:
        """End what `hold` began."""
        self.condition.release()


_all: WeakSet[Turns] = WeakSet()
_held: list[Turns] = []  # while a fork is under way


def _before_fork() -> None:
    deadline = time.monotonic() + _FORK_SECONDS
    _held.extend(turns for turns in tuple(_all) if turns.hold(deadline))


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _held.clear()
    for turns in tuple(_all):
        turns._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
