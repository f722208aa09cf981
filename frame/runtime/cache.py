"""The two-level cache on disk: manifests by the key of a declaration, artefacts by that of a piece.

A file is trusted only after its header and digest have been checked, and trouble with the cache is
never an error: it is logged once and the work is done again.

    magic (8 bytes) | kind (8) | payload length (8, little-endian) | SHA-256 (32) | payload

The digest covers kind, length, key and payload, so a file that got the name of another one counts
as damaged. Directories are private (0700) and belong to the user;
files are written under a temporary name and renamed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING

from frame.core import config, forks, philox, sources
from frame.core.dataclass import dataclass
from frame.core.errors import FrameError, InternalError
from frame.core.files import atomic_write, remove_stale
from frame.core.logs import Logger

if TYPE_CHECKING:
    from pathlib import Path  # not imported for a lookup: it takes longer than one

_LOG = Logger("frame.cache")
_MAGIC = b"FRAMEC1\n"
_HEADER = struct.Struct("<8s8sQ32s")
_SCHEMA = "v2"
MANIFEST, ARTIFACT = "manifest", "artifact"
KINDS = (MANIFEST, ARTIFACT)
CHOICE = "choice"  # what tuning has measured, see `frame.runtime.tuning`
SOURCES = "sources"  # digests of source files, see `frame.core.sources`
_ALL_KINDS = (*KINDS, CHOICE, SOURCES)
_REMEMBERED = 256  # entries kept in memory where the disk can't be used
# Never follow a link to somewhere else, and never wait for a pipe.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CHECK_AFTER = 64  # a cache is measured after each 64th of its limit that was written
_EVICT_TO = 0.8  # the share of the size limit that eviction leaves


@dataclass(slots=True)
class Counters:
    """What a store has done: for tests and `frame cache info`."""

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ALL_KINDS, 0))
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ALL_KINDS, 0))
    writes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ALL_KINDS, 0))


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file of the cache."""

    path: Path
    kind: str
    key: str
    size: int
    used: float


class Cache:
    """The cache in one directory, or in memory alone where the directory can't be used."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        writable: bool = True,
        limit: int = 1 << 30,
        remembered: int = _REMEMBERED,
    ) -> None:
        self.root = None if root is None else os.fspath(root)
        self.remembered = remembered
        self.writable = writable
        self.limit = limit
        self.counters = Counters()
        self._memory: dict[tuple[str, str], bytes] = {}
        self._warned = False
        self._written = limit  # the first write measures what others have left
        self._lock = forks.lock()

    @property
    def active(self) -> bool:
        """Whether the cache keeps anything at all."""
        return self.root is not None or self.remembered > 0

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the payload of an entry, None when there is no sound one."""
        payload = self._memory.get((kind, key))
        if payload is None and self.root is not None:
            payload = self._read(self._path(kind, key), kind, key)
        table = self.counters.misses if payload is None else self.counters.hits
        table[kind] += 1
        return payload

    def put(self, kind: str, key: str, payload: bytes) -> None:
        """Keep an entry; in memory where the disk can't be written."""
        self.counters.writes[kind] += 1
        if self.root is None or not self.writable or not self._write(kind, key, payload):
            self._remember(kind, key, payload)

    def _remember(self, kind: str, key: str, payload: bytes) -> None:
        with self._lock:
            self._memory[kind, key] = payload
            while len(self._memory) > self.remembered:
                self._memory.pop(next(iter(self._memory)))

    def artifacts(self, kind: str = ARTIFACT) -> Artifacts:
        """Return the store of artefacts, or of another kind, as backends see it."""
        return Artifacts(self, kind)

    def entries(self) -> Iterator[CacheEntry]:
        """Iterate over the files of the cache; those that vanish meanwhile are left out."""
        if self.root is None:
            return
        from pathlib import Path

        for kind in _ALL_KINDS:
            for path in sorted((Path(self.root) / kind).glob("??/*")):
                try:
                    status = path.lstat()
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and not path.name.startswith("."):
                    used = max(status.st_atime, status.st_mtime)
                    yield CacheEntry(path, kind, path.name, status.st_size, used)

    def verify(self) -> tuple[int, tuple[Path, ...]]:
        """Return how many files are sound, and the damaged ones."""
        damaged = [e.path for e in self.entries() if self._read(e.path, e.kind, e.key) is None]
        return sum(1 for _ in self.entries()) - len(damaged), tuple(damaged)

    def clear(self) -> int:
        """Remove every file and return how many there were."""
        removed = sum(self._remove(entry.path) for entry in self.entries())
        self._remove_stale()
        self._memory.clear()
        return removed

    def _remove_stale(self) -> None:
        """Remove what writers left that were killed: eviction does not see it."""
        if self.root is not None:
            from pathlib import Path

            for folder in Path(self.root).glob("*/??"):
                remove_stale(folder)

    def _path(self, kind: str, key: str) -> str:
        if self.root is None:
            raise InternalError("a cache in memory has no paths")
        return os.path.join(self.root, kind, key[:2], key)

    def _read(self, path: str | os.PathLike[str], kind: str, key: str) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | _SAFELY)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError("it is not a regular file")
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"can't read {path}: {error}")
            return None
        payload = _checked(data, kind, key)
        if payload is None:
            self._warn(f"{path} is damaged: it is made again")
        elif self.writable:
            _touch(path)
        return payload

    def _write(self, kind: str, key: str, payload: bytes) -> bool:
        path = self._path(kind, key)
        length = len(payload)
        header = _HEADER.pack(_MAGIC, _kind_bytes(kind), length, _digest(kind, key, payload))
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            # Waiting for the disk would take longer than many a compile.
            atomic_write(path, lambda file: file.write(header + payload), durable=False)
        except (OSError, FrameError) as error:
            folder = os.path.dirname(path)
            self._warn(f"can't write to {folder}: {error}; keeping results in memory")
            return False
        self._written += len(header) + length
        if self._written * _CHECK_AFTER >= self.limit:
            self._evict()
        return True

    def _evict(self) -> None:
        """Remove the entries that were not used for longest while the cache is over its limit."""
        with self._lock:
            self._written = 0
            self._remove_stale()
            entries = list(self.entries())
            total = sum(entry.size for entry in entries)
            if total <= self.limit:
                return
            for entry in sorted(entries, key=lambda item: item.used):
                if total <= self.limit * _EVICT_TO:
                    break
                total -= entry.size
                self._remove(entry.path)

    def _remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except OSError:
            return False
        return True

    def _warn(self, message: str) -> None:
        tell = _LOG.debug if self._warned else _LOG.warning
        self._warned = True
        tell("cache: %s", message)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The artefacts of a cache: the store that the runtime hands to backends."""

    cache: Cache
    kind: str = ARTIFACT

    def get(self, key: str) -> bytes | None:
        """Return an artefact, None when there is no sound one."""
        return self.cache.get(self.kind, key)

    def put(self, key: str, data: bytes) -> None:
        """Keep an artefact."""
        self.cache.put(self.kind, key, data)


def _kind_bytes(kind: str) -> bytes:
    return kind.encode().ljust(8, b"\0")


def _digest(kind: str, key: str, payload: bytes) -> bytes:
    head = _kind_bytes(kind) + struct.pack("<Q", len(payload)) + key.encode() + b"\0"
    return hashlib.sha256(head + payload).digest()


def _checked(data: bytes, kind: str, key: str) -> bytes | None:
    """Return the payload of a cache file, None if anything about it is wrong."""
    if len(data) < _HEADER.size:
        return None
    magic, name, length, digest = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    sound = magic == _MAGIC and name == _kind_bytes(kind) and length == len(payload)
    return payload if sound and digest == _digest(kind, key, payload) else None


def _touch(path: str | os.PathLike[str]) -> None:
    """Note the use of an entry, for eviction; the time stamps of some systems are too coarse."""
    try:
        os.utime(path)
    except OSError:
        return


def default_directory() -> str:
    """Return the directory of the cache: FRAME_CACHE_DIR, or the user's cache directory."""
    chosen = config.get("FRAME_CACHE_DIR")
    if chosen:
        return os.path.expanduser(chosen)  # no shell has done it in a service or container
    if sys.platform == "linux":  # as platformdirs has it, whose import takes longer than a lookup
        base: str = config.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if os.path.isabs(base):
            return os.path.join(base, "frame")
    import platformdirs

    return platformdirs.user_cache_dir("frame")


def _usable_root(directory: str, writable: bool) -> str | None:
    """Return the private schema directory, or None (and a warning) when it can't be trusted."""
    root = os.path.join(directory, _SCHEMA)
    try:
        if writable:
            os.makedirs(root, 0o700, exist_ok=True)
        status = os.lstat(root)
    except OSError as error:
        _LOG.warning("cache: can't use %s: %s; keeping results in memory", root, error)
        return None
    reason = _distrust(status)
    if reason is not None:
        _LOG.warning("cache: not using %s: %s; keeping results in memory", root, reason)
        return None
    return root


def _distrust(status: os.stat_result) -> str | None:
    """Why a directory must not be trusted with code; None when it may be."""
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if hasattr(os, "getuid") and status.st_uid not in (os.getuid(), 0):
        return "it belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it; remove their permission (chmod go-w)"
    return None


@cache
def process_cache() -> Cache:
    """Return the cache of what must not outlive this process."""
    return Cache(None)


def default_cache() -> Cache:
    """Return the cache that the settings ask for; the same object as long as they don't change."""
    mode = config.get("FRAME_CACHE")
    return _cache_of(mode, default_directory(), int(config.get("FRAME_CACHE_SIZE")))


@cache
def _cache_of(mode: str, directory: str, limit: int) -> Cache:
    if mode == "0":
        return Cache(None, remembered=0)
    writable = mode != "readonly"
    return Cache(_usable_root(directory, writable), writable, limit)


sources.set_memo(lambda: default_cache().artifacts(SOURCES))
philox.set_store(lambda: default_cache().artifacts())
