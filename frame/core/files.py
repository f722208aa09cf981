"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from frame.core.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Create or replace a file by what `write` puts into a temporary file beside it.

    The data is on disk before the name changes, so that after a crash the name holds the old
    file or the new one, whole. Symbolic links are followed. On any error the old file stays.

    Raises:
        NotFoundError: the folder does not exist.
        InvalidArgumentError: the path is a folder.
        OSError: the file system refuses.
    """
    from pathlib import Path  # who only reads never pays for it

    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise NotFoundError(f"can't write {path}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise InvalidArgumentError(f"expected the path of a file, received the folder {path}")
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


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
