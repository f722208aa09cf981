"""Forks of a process with threads: a child finds no lock held by a thread that is not there.

`os.fork` copies the memory of all threads and runs only the one that called it. A lock that another
thread held stays locked in the child, and whoever asks for it there waits for ever. Locks that only
guard tables from being changed by two threads at once may simply be open in the child: it has one
thread. What must be whole, such as parameters during a training step, needs more:
`frame.runtime.turns`.

A module that another thread is importing is not whole either, and Python opens the lock of the
import system in the child, not those of single modules. So a fork waits for imports to end.
"""

from __future__ import annotations

import _frozen_importlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

_Lock = TypeVar("_Lock")
_Value = TypeVar("_Value")
_locks: WeakSet[Any] = WeakSet()
_RECURSIVE: Any = type(threading.RLock())
_IMPORT_SECONDS = 5.0
_endless: WeakSet[Any] = WeakSet()  # the locks of imports that a fork has waited for in vain


def lock() -> threading.Lock:
    """Return a lock that is open in a forked child, whoever held it in the parent."""
    return _known(threading.Lock())


def recursive_lock() -> Any:
    """Return a recursive lock that is open in a forked child, whoever held it in the parent."""
    return _known(threading.RLock())


class cached_property(functools.cached_property[_Value]):
    """The decorator of functools, whose lock (up to Python 3.11) is open in a forked child."""

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        super().__init__(function)
        if hasattr(self, "lock"):
            self.lock = recursive_lock()


def _known(made: _Lock) -> _Lock:
    _locks.add(made)
    return made


def _open_all() -> None:
    for each in tuple(_locks):
        if not (isinstance(each, _RECURSIVE) and each._is_owned()):
            each._at_fork_reinit()  # what threading and logging do with locks of their own


def _others_import() -> list[Any]:
    """Return the locks of modules that other threads import."""
    locks = getattr(_frozen_importlib, "_module_locks", {})
    found = [reference() for reference in tuple(locks.values())]
    own = threading.get_ident()
    return [each for each in found if each is not None and each.owner != own]


def _wait_for_imports() -> None:
    """Return when no other thread imports.

    An import may wait for what the forking thread has, or never end, such as that of a module
    which is a server: each is waited for once, and not longer than `_IMPORT_SECONDS`. Nothing
    keeps the next one from beginning before the fork: other hooks may wait for a thread that
    imports.
    """
    deadline = time.monotonic() + _IMPORT_SECONDS
    while not _endless.issuperset(_others_import()) and time.monotonic() < deadline:
        time.sleep(0.001)
    _endless.update(_others_import())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_open_all)
