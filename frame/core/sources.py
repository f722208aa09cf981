"""The digest of a tree of Python files, which every cache key holds.

Reading all sources takes longer than everything else that a warm start does. So the digest is
remembered by what the system tells of each file (path, size, times, inode) in a memo that the
runtime installs. Files that changed a moment ago are never remembered: another change could follow
within the resolution of the clock.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

_SETTLED = 2_000_000_000  # nanoseconds: coarser than the time stamps of any file system of today
_DIGITS = 64
_SUFFIXES = tuple(importlib.machinery.all_suffixes())  # sources, compiled ones, and extensions


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

    Links are followed. Of folders in an archive, it is the digest of the archive; a file may stand
    for a folder.

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
    found = memo.get(key) if key else None
    if found is not None and len(found) == _DIGITS:
        return found.decode("ascii", "replace")
    digest = _digest(files, start)
    if settled and _state(_python_files(roots), roots, start) == (key, True):
        memo.put(key, digest.encode())
    return digest


class Source(Protocol):
    """A file and what the system tells of it: an `os.DirEntry` is one."""

    @property
    def path(self) -> str:
        """Where it is."""

    def stat(self) -> os.stat_result:
        """Return what the system tells of it; raise OSError."""


class _Archive:
    """A file in which the folders are, such as an application in one zip file."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def stat(self) -> os.stat_result:
        return os.stat(self.path)


Files: TypeAlias = "list[tuple[str, Source]]"
"""The name of each file, which begins with that of its root, and what the system tells of it."""


def _python_files(roots: Iterable[str]) -> Files:
    """Return the files that Python code can be in below folders, in a fixed order."""
    files: Files = []
    archives: set[str] = set()
    for root in roots:
        archive = _archive_of(root)
        if archive is None:
            _collect(root, os.path.basename(root), files, set())
        elif archive not in archives:
            archives.add(archive)
            files.append((os.path.basename(archive), _Archive(archive)))
    return files


def _archive_of(root: str) -> str | None:
    """Return the file that stands in the path of a folder, if one does."""
    place = root
    while place and not os.path.exists(place):
        above = os.path.dirname(place)
        place = "" if above == place else above
    return place if os.path.isfile(place) else None


def _collect(folder: str, name: str, files: Files, followed: set[str]) -> None:
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # what can't be read can't be imported
        return
    inner = []
    for entry in ordered:
        if entry.is_dir():
            inner.append(entry)
        elif entry.name.endswith(_SUFFIXES) and entry.is_file():
            files.append((f"{name}/{entry.name}", entry))
    for entry in inner:
        if _is_new(entry, followed):
            _collect(entry.path, f"{name}/{entry.name}", files, followed)


def _is_new(entry: os.DirEntry[str], followed: set[str]) -> bool:
    """Whether a folder is to be looked into: no copies of what was compiled, no link twice."""
    if entry.name == "__pycache__":
        return False
    if not entry.is_symlink():
        return True
    target = os.path.realpath(entry.path)
    known = target in followed
    followed.add(target)
    return not known


def _digest(files: Files, start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for name, source in files:
        content = _content(source.path)
        told = "none" if content is None else len(content)
        digest.update(f"\0{name}\0{told}\0".encode("utf-8", "surrogateescape"))
        digest.update(content or b"")
    return digest.hexdigest()


def _content(path: str) -> bytes | None:
    """Return what is in a file; None where it went away or may not be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _state(files: Files, roots: tuple[str, ...], start: str) -> tuple[str, bool]:
    """Return a key of what the system tells of the files, and whether none changed just now."""
    told: list[Any] = ["sources", start, roots]
    newest = 0
    for name, source in files:
        try:
            status = source.stat()
        except OSError:  # it went away
            return "", False
        changed, made = status.st_mtime_ns, status.st_ctime_ns
        newest = max(newest, changed, made)
        told.append((name, status.st_size, changed, made, status.st_ino))
    key = hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=16)
    return key.hexdigest(), newest + _SETTLED < time.time_ns()
