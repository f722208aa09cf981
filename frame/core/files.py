"""Writing files so that a reader never sees half of one.

A writer locks its temporary file, and the system lets go of the lock when the writer dies, however
it dies. So whoever writes to the same name next knows which temporary files nobody works on.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from frame.core.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of temporary files end; they begin with a dot."""
STALE_SECONDS = 3600.0
_DIGITS = 16  # of the random part of such a name
# Never follow a link to somewhere else, and never wait for a pipe.
_SAFELY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def atomic_write(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object], durable: bool = True
) -> None:
    """Create or replace a file by what `write` puts into a temporary file beside it.

    The data is on disk before the name changes, so that after a crash of the machine the name holds
    the old file or the new one, whole; unless `durable` is False, for what can be made again and is
    checked when it is read. Symbolic links are followed. On any error the old file stays. What
    killed writers of the same file have left is removed first.

    Raises:
        NotFoundError: the folder does not exist.
        InvalidArgumentError: the path is a folder.
        OSError: the file system refuses, for lack of space or of permission; it names `path`.
    """
    from pathlib import Path  # who only reads never pays for it

    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise NotFoundError(f"can't write {path}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise InvalidArgumentError(f"expected the path of a file, received the folder {path}")
    _remove_abandoned(target)
    try:
        _replace(target, write, durable)
    except OSError as error:
        # The name of the temporary file means nothing to whoever asked for `path`.
        kept = "the file that was there is unchanged" if target.exists() else "nothing was written"
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", os.fspath(path)) from error
    if durable:
        _sync_folder(target.parent)


def _replace(target: Path, write: Callable[[BinaryIO], object], durable: bool) -> None:
    temporary, file = _create(target)
    try:
        with file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if os.name == "nt":
                file.close()  # where an open file can't be renamed
            temporary.replace(target)  # while the lock holds
    finally:
        _remove(temporary)


def _create(target: Path) -> tuple[Path, BinaryIO]:
    """Return a new temporary file beside `target`, locked where the file system has locks."""
    while True:
        digits = os.urandom(_DIGITS // 2).hex()
        temporary = target.with_name(f"{_stem(target)}{digits}{TEMPORARY}")
        file = temporary.open("xb")
        if _lock(file.fileno()) is not False and _is_still(temporary, file.fileno()):
            return temporary, file
        file.close()  # another writer took it for abandoned before it was locked
        _remove(temporary)


def _stem(target: Path) -> str:
    return f".{target.name[:200]}."


def _lock(descriptor: int) -> bool | None:
    """Tell whether the lock of an open file could be had; None where there are no locks."""
    try:
        import fcntl  # who only reads never pays for it
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Tell whether a name is that of an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        return  # what made the write fail is the error to show


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of `target` that nobody has locked: their writers are dead."""
    stem = _stem(target)
    length = len(stem) + _DIGITS + len(TEMPORARY)
    try:
        with os.scandir(target.parent) as entries:
            names = [entry.name for entry in entries if len(entry.name) == length]
    except OSError:  # a folder that one may write to and not list
        return
    for name in names:
        if name.startswith(stem) and name.endswith(TEMPORARY):
            _remove_unlocked(target.with_name(name), without_locks=False)


def _remove_unlocked(path: Path, without_locks: bool) -> bool:
    """Remove a temporary file unless a writer has it locked, and tell whether it is gone.

    `without_locks` says whether to do it where the file system has no locks.
    """
    try:
        descriptor = os.open(path, _SAFELY)
    except OSError:
        return False
    try:
        free = _lock(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or free is False:
            return False
        if free is None and not without_locks:
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_stale(folder: Path, age: float = STALE_SECONDS) -> int:
    """Remove the temporary files that writers left which were killed, and return how many.

    Those younger than `age` seconds may belong to a writer that is at work, and those that are
    locked do.
    """
    removed = 0
    before = time.time() - age
    for path in folder.glob(f".*{TEMPORARY}"):
        try:
            if path.lstat().st_mtime < before:
                removed += _remove_unlocked(path, without_locks=True)
        except OSError:
            continue
    return removed


def _sync_folder(folder: Path) -> None:
    # The new name itself is durable once its folder is; not every file system offers this.
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
