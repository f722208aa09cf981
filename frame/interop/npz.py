"""The npz format: a zip archive of npy arrays, readable by `numpy.load` without pickle.

Types that numpy lacks are stored as unsigned integers of the same width; the entry `__dtypes__`
(JSON text as uint8) names them, `__metadata__` holds the metadata in the same way.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np

from frame.core import dtypes
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import as_shape, numel
from frame.interop.checks import (
    DTYPES,
    METADATA,
    RESERVED,
    check_name,
    check_read_name,
    json_object,
)

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time stamp of zip: equal content gives equal bytes
_DEFLATE_LIMIT = 1040  # deflate can't shrink by more than 1032
# What zipfile raises for a damaged archive: a damaged offset becomes an OSError or a ValueError.
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, OSError, OverflowError, ValueError),
)
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def write(file: BinaryIO, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write arrays by name, uncompressed."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        foreign = {}
        for name in sorted(arrays):
            array = np.asarray(arrays[name])
            element = dtypes.dtype(array.dtype)
            if element.numpy.kind not in "fiub" or element.storage_only:
                foreign[name] = element.name
                array = array.view(f"u{element.itemsize}")
            _write_entry(archive, check_name(name), array)
        for name, table in ((DTYPES, foreign), (METADATA, dict(sorted(metadata.items())))):
            if table:
                text = json.dumps(table, ensure_ascii=False).encode("utf-8")
                _write_entry(archive, name, np.frombuffer(text, np.uint8))


def _write_entry(archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    with archive.open(entry, "w", force_zip64=array.nbytes >= 1 << 30) as stream:
        np.lib.format.write_array(
            stream, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False
        )


def read(file: BinaryIO, where: str) -> Arrays:
    """Read arrays, each into memory of its own.

    Raises:
        InvalidArgumentError: the file is damaged or not an npz of plain arrays.
    """
    arrays = _read_entries(file, where, lambda name: name != METADATA)
    foreign = _text_table(arrays.pop(DTYPES, None), where)
    for name, element in foreign.items():
        arrays[name] = _restored(arrays.get(name), name, element, where)
    for name, array in arrays.items():
        if array.dtype.type is np.void:
            _fail(where, f"array {name!r} has a type that the file does not name ({array.dtype})")
    return arrays


def read_metadata(file: BinaryIO, where: str) -> dict[str, str]:
    """Read the metadata; raises as `read`."""
    arrays = _read_entries(file, where, lambda name: name == METADATA)
    return _text_table(arrays.get(METADATA), where)


def _read_entries(file: BinaryIO, where: str, wanted: Callable[[str], bool]) -> Arrays:
    try:
        with zipfile.ZipFile(file) as archive:
            return {
                name: _read_array(_content(archive, entry, where), name, where)
                for name, entry in _entries(archive, where).items()
                if wanted(name)
            }
    except InvalidArgumentError:
        raise
    except _BROKEN_ZIP as problem:
        _fail(where, str(problem))


def _entries(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by array name."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name == entry.filename:
            _fail(where, f"its entry {name!r:.200} is not an array")
        if name in entries:
            _fail(where, f"array {name!r:.200} occurs twice")
        if name not in RESERVED:
            check_read_name(name, partial(_fail, where))
        entries[name] = entry
    return entries


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, where: str) -> bytes:
    if entry.flag_bits & 1:
        _fail(where, f"{entry.filename!r:.200} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _fail(where, f"{entry.filename!r:.200} has compression method {entry.compress_type}")
    if entry.file_size > _DEFLATE_LIMIT * (entry.compress_size + 1):
        _fail(where, f"{entry.filename!r:.200} claims {entry.file_size} bytes, more than can be")
    return archive.read(entry)


def _read_array(data: bytes, name: str, where: str) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        reader = _HEADER_READERS.get(version)
        if reader is None:
            _fail(where, f"array {name!r:.200} has npy version {version}")
        shape, fortran, element = reader(stream)
        nbytes = int(numel(as_shape(shape))) * element.itemsize  # type: ignore[arg-type]
    except ValueError as problem:
        _fail(where, f"array {name!r:.200}: {problem}")
    if element.hasobject or element.kind not in "fiubV" or element.names is not None:
        _fail(where, f"array {name!r:.200} has the element type {element}, expected numbers")
    if nbytes != len(data) - stream.tell():
        _fail(where, f"array {name!r:.200} needs {nbytes} bytes, has {len(data) - stream.tell()}")
    flat = np.frombuffer(data, element, offset=stream.tell())
    array = flat.reshape(shape, order="F" if fortran else "C")
    return np.array(array, element.newbyteorder("="), order="C")


def _text_table(array: np.ndarray[Any, Any] | None, where: str) -> dict[str, str]:
    if array is None:
        return {}
    table = json_object(array.tobytes(), "one of its tables", partial(_fail, where))
    if not all(isinstance(v, str) for v in table.values()):
        _fail(where, "its tables do not map text to text")
    return table


def _restored(
    array: np.ndarray[Any, Any] | None, name: str, element: str, where: str
) -> np.ndarray[Any, Any]:
    row = dtypes.DTYPES.get(element)
    if array is None or row is None or array.dtype != np.dtype(f"u{row.itemsize}"):
        _fail(where, f"array {name!r:.200} can't be of type {element!r:.50}")
    return array.view(row.numpy)


def _fail(where: str, problem: str) -> NoReturn:
    raise InvalidArgumentError(f"expected a sound npz file, received {where}: {problem}")
