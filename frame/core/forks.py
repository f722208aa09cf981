"""Forks of a process with threads: a child finds no lock held by a thread that is not there.

`os.fork` copies the memory of all threads and runs only the one that called it. A lock that another
thread held stays locked in the child, and whoever asks for it there waits for ever. Locks that only
guard tables from being changed by two threads at once may simply be open in the child: it has one
thread. What must be whole, such as parameters during a training step, needs more:
`frame.runtime.turns`.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet

_Lock = TypeVar("_Lock")
_locks: WeakSet[Any] = WeakSet()
_RECURSIVE: Any = type(threading.RLock())


def lock() -> threading.Lock:
    """Return a lock that is open in a forked child, whoever held it in the parent."""
    return _known(threading.Lock())


def recursive_lock() -> Any:
    """Return a recursive lock that is open in a forked child, whoever held it in the parent."""
    return _known(threading.RLock())


def _known(made: _Lock) -> _Lock:
    _locks.add(made)
    return made


def _open_all() -> None:
    for each in tuple(_locks):
        if not (isinstance(each, _RECURSIVE) and each._is_owned()):
            each._at_fork_reinit()  # what threading and logging do with locks of their own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
