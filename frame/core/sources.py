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
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

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
    roots = tuple(os.fspath(folder) for folder in folders)
    memo = None if _find_memo is None else _find_memo()
    if memo is None:
        return _digest(_python_files(roots), start)
    files = _python_files(roots)
    key, settled = _state(files, roots, start)
    found = memo.get(key)
    if found is not None and len(found) == _DIGITS:
        return found.decode("ascii", "replace")
    digest = _digest(files, start)
    if settled and _state(_python_files(roots), roots, start) == (key, True):
        memo.put(key, digest.encode())
    return digest


Files: TypeAlias = "list[tuple[str, os.DirEntry[str]]]"
"""The name of each file, which begins with that of its root, and what the system tells of it."""


def _python_files(roots: Iterable[str]) -> Files:
    """Return the Python files below folders, in a fixed order."""
    files: Files = []
    for root in roots:
        _collect(root, os.path.basename(root), files)
    return files


def _collect(folder: str, name: str, files: Files) -> None:
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # what can't be read can't be imported
        return
    inner = []
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            inner.append(entry)
        elif entry.name.endswith(".py") and not entry.is_dir():
            files.append((f"{name}/{entry.name}", entry))
    for entry in inner:
        _collect(entry.path, f"{name}/{entry.name}", files)


def _digest(files: Files, start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for name, entry in files:
        with open(entry.path, "rb") as file:
            content = file.read()
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _state(files: Files, roots: tuple[str, ...], start: str) -> tuple[str, bool]:
    """Return a key of what the system tells of the files, and whether none changed just now."""
    told: list[Any] = ["sources", start, roots]
    newest = 0
    for name, entry in files:
        status = entry.stat()
        changed, made = status.st_mtime_ns, status.st_ctime_ns
        newest = max(newest, changed, made)
        told.append((name, status.st_size, changed, made, status.st_ino))
    key = hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=16)
    return key.hexdigest(), newest + _SETTLED < time.time_ns()
