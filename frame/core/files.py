"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from frame.core.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY = ".tmp"
"""How the names of temporary files end; they begin with a dot."""
STALE_SECONDS = 3600.0


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Create or replace a file by what `write` puts into a temporary file beside it.

    The data is on disk before the name changes, so that after a crash the name holds the old
    file or the new one, whole. Symbolic links are followed. On any error the old file stays.

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
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}{TEMPORARY}")
    try:
        _replace(target, temporary, write)
    except OSError as error:
        # The name of the temporary file means nothing to whoever asked for `path`.
        kept = "the file that was there is unchanged" if target.exists() else "nothing was written"
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", os.fspath(path)) from error
    finally:
        _remove(temporary)
    _sync_folder(target.parent)


def _replace(target: Path, temporary: Path, write: Callable[[BinaryIO], object]) -> None:
    with temporary.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        return  # what made the write fail is the error to show


def remove_stale(folder: Path, age: float = STALE_SECONDS) -> int:
    """Remove the temporary files that writers left which were killed, and return how many.

    Those younger than `age` seconds may belong to a writer that is at work.
    """
    removed = 0
    before = time.time() - age
    for path in folder.glob(f".*{TEMPORARY}"):
        try:
            if path.lstat().st_mtime < before:
                path.unlink()
                removed += 1
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
