"""The digest of a tree of Python files, which every cache key holds.

Reading all sources takes longer than everything else that a warm start does. So the digest is
remembered by what the system tells of each file (path, size, times, inode) in a memo that the
runtime installs. Files that changed a moment ago are never remembered: another change could follow
within the resolution of the clock.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

_SETTLED = 2_000_000_000  # nanoseconds: coarser than the time stamps of any file system of today
_DIGITS = 64


class Memo(Protocol):
    """Where digests are remembered; it may forget, and must not give back what it was not given."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under the key, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Keep data under a key, if that is possible."""


_find_memo: Callable[[], Memo] | None = None


def set_memo(find: Callable[[], Memo]) -> None:
    """Install the memo, asked for when a digest is needed; `frame.runtime` calls this."""
    global _find_memo
    _find_memo = find


def tree_digest(folders: Iterable[str | os.PathLike[str]], start: str = "") -> str:
    """Return a digest of the Python files below folders: their names and contents.

    Args:
        folders: the folders, in an order that counts.
        start: what enters the digest first, such as a version.
    """
    files = [(name, path) for folder in folders for name, path in _python_files(os.fspath(folder))]
    memo = None if _find_memo is None else _find_memo()
    if memo is None:
        return _digest(files, start)
    key, settled = _state(files, start)
    found = memo.get(key)
    if found is not None and len(found) == _DIGITS:
        return found.decode("ascii", "replace")
    digest = _digest(files, start)
    if settled and _state(files, start) == (key, True):
        memo.put(key, digest.encode())
    return digest


def _python_files(folder: str) -> Iterator[tuple[str, str]]:
    """Iterate over (name, path) of the Python files below a folder, in a fixed order."""
    parent = os.path.dirname(folder)
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(base, name)
                yield os.path.relpath(path, parent).replace(os.sep, "/"), path


def _digest(files: Iterable[tuple[str, str]], start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for name, path in files:
        with open(path, "rb") as file:
            content = file.read()
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _state(files: Iterable[tuple[str, str]], start: str) -> tuple[str, bool]:
    """Return a key of what the system tells of the files, and whether none changed just now."""
    key = hashlib.blake2b(f"sources\0{start}".encode(), digest_size=16)
    newest = 0
    for name, path in files:
        status = os.stat(path)
        newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
        told = (name, path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        key.update(repr(told).encode("utf-8", "surrogatepass"))
    return key.hexdigest(), newest + _SETTLED < time.time_ns()
