"""Weight files: {name: array} as safetensors, npz or ONNX. Data only: nothing here can run code.

Every name, type, size and offset of a file is checked against the file's length before memory is
taken for it. Files are written whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.files import atomic_write
from frame.core.tensors import as_tensor
from frame.interop.checks import check_name
from frame.interop.safetensors import dump_safetensors, parse_safetensors

__all__ = [
    "dump_safetensors",
    "load_metadata",
    "load_weights",
    "parse_safetensors",
    "save_weights",
]

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
Pathlike: TypeAlias = str | os.PathLike[str]

_FORMATS = {".safetensors": "safetensors", ".npz": "npz", ".onnx": "onnx"}
"""Suffix -> the module of the format, which is loaded at its first use."""


def save_weights(
    path: Pathlike, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays (numpy arrays, Tensors, DLPack producers) to a .safetensors, .npz or .onnx file.

    The file replaces an older one atomically. `metadata` is text for people and tools. Equal
    content gives equal bytes.

    Raises:
        InvalidArgumentError: the suffix, a name, an element type or the metadata is not acceptable.
        NotFoundError: the folder does not exist.
        OSError: the file system refuses.
    """
    file_format = _format_of(path)
    plain = {check_name(name): as_tensor(value).numpy() for name, value in arrays.items()}
    notes = _checked_metadata(metadata or {})
    atomic_write(path, lambda file: file_format.write(file, plain, notes))


def load_weights(path: Pathlike) -> Arrays:
    """Read all arrays of a .safetensors, .npz or .onnx file; each is writable and owns its memory.

    Of an ONNX model these are the initializers of its graph.

    Raises:
        InvalidArgumentError: the file is not of that format, is damaged, or holds a type that frame
            does not have.
        NotFoundError: there is no such file.
        OSError: the file system refuses.
    """
    arrays: Arrays = _read(path, "read")
    return arrays


def load_metadata(path: Pathlike) -> dict[str, str]:
    """Read the metadata of a weight file and no array; raises as `load_weights`."""
    metadata: dict[str, str] = _read(path, "read_metadata")
    return metadata


def _read(path: Pathlike, reader: str) -> Any:
    file_format = _format_of(path)
    if not Path(path).exists():
        raise NotFoundError(f"no weight file {path}")
    if not Path(path).is_file():
        raise InvalidArgumentError(f"expected a weight file, received {path}, which is no file")
    with Path(path).open("rb") as file:
        return getattr(file_format, reader)(file, f"weight file {path}")


def _format_of(path: Pathlike) -> Any:
    found = _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        raise InvalidArgumentError(
            f"expected a file name that ends in {' or '.join(_FORMATS)}, received {str(path)!r}; "
            "pickled checkpoints can run code and are never read: convert them to safetensors"
        )
    return import_module(f"frame.interop.{found}")


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"expected metadata that maps text to text, received {key!r}: {value!r:.100}"
            )
        try:
            (key + value).encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                f"expected metadata of text that UTF-8 can hold, received {key!r}: {value!r:.100}"
            ) from None
    return dict(metadata)
