"""Files of data: found, measured against what they claim, and refused with one kind of message."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

from frame.core.arguments import path as path_text
from frame.core.errors import InvalidArgumentError, NotFoundError

Pathlike: TypeAlias = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
_DEFLATE_LIMIT = 1040  # deflate can't shrink by more than 1032


def existing_file(path: Pathlike, what: str) -> Path:
    """Return the path of a file of the kind `what`.

    Raises:
        NotFoundError: there is nothing of that name.
        InvalidArgumentError: it is no file.
    """
    found = Path(path_text(what, "path", path))
    if not found.exists():
        raise NotFoundError(f"expected {what}, there is no file {path}")
    if not found.is_file():
        raise InvalidArgumentError(f"expected {what}, received {path}, which is no file")
    return found


def existing_folder(path: Pathlike, what: str) -> Path:
    """Return the path of a folder; raises as `existing_file`."""
    found = Path(path_text(what, "path", path))
    if not found.exists():
        raise NotFoundError(f"expected {what}, there is no folder {path}")
    if not found.is_dir():
        raise InvalidArgumentError(f"expected {what}, received {path}, which is no folder")
    return found


def unsound(what: str, path: Pathlike, problem: object) -> NoReturn:
    """Raise InvalidArgumentError for a file that is not what it should be."""
    raise InvalidArgumentError(f"expected {what}, received {path}: {problem}")


@contextmanager
def opened(path: Path, what: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file, through gzip if it begins as such, with the most bytes that it can hold.

    Whoever reads asks for no more than that, so that no claim of a header reserves memory that the
    file can't fill.

    Raises:
        InvalidArgumentError: the gzip stream is damaged, also while it is being read.
    """
    size = path.stat().st_size
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        if not packed:
            yield raw, size
            return
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream, size * _DEFLATE_LIMIT  # type: ignore[misc]
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            unsound(what, path, f"its gzip stream is damaged ({problem})")
