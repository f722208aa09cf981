"""The safetensors format: 8 bytes of header length, a JSON header, the dense data.

Source: huggingface/safetensors, README.md, "Format". The reader takes exactly what the format
allows: no overlap, no hole, no duplicate name, no byte that belongs to no array.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np

from frame.core.dtypes import DTYPES, DType, dtype
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import as_shape, numel
from frame.interop.checks import METADATA, check_name, check_read_name, json_object

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

MAX_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""

_MAX_RANK = 64  # numpy's limit

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "bool": "BOOL",
        "int8": "I8",
        "int16": "I16",
        "int32": "I32",
        "int64": "I64",
        "uint8": "U8",
        "uint16": "U16",
        "uint32": "U32",
        "uint64": "U64",
    }
)
_TYPES: Mapping[str, DType] = MappingProxyType({v: DTYPES[k] for k, v in _NAMES.items()})

# First bytes of files that people load by mistake.
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (npz or a PyTorch checkpoint)"),
    (b"\x80", "a pickle, which frame never reads"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with `git lfs pull`"),
    (b"<", "a web page"),
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF file"),
)


def dump_safetensors(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays as safetensors bytes; equal content gives equal bytes.

    Raises:
        InvalidArgumentError: safetensors has no code for an element type.
    """
    buffer = io.BytesIO()
    write(buffer, arrays, metadata or {})
    return buffer.getvalue()


def parse_safetensors(data: Any, where: str = "safetensors data") -> Arrays:
    """Return the arrays in a bytes-like object: views of it, read-only where it is.

    An array whose bytes are not aligned for its elements is copied.

    Raises:
        InvalidArgumentError: the bytes are damaged or not safetensors; the message names `where`.
    """
    view = memoryview(data).cast("B")
    file = io.BytesIO(view[: min(len(view), 8 + MAX_HEADER)])
    entries, _, start = _read_header(file, len(view), where)
    return {
        name: _view(view[start + begin : start + end], element, shape)
        for name, element, shape, begin, end in entries
    }


def write(file: BinaryIO, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write arrays: the widest elements first, so that every array is aligned, then by name."""
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    ordered = sorted(
        ((check_name(name), np.asarray(array)) for name, array in arrays.items()),
        key=lambda item: (-item[1].dtype.itemsize, item[0]),
    )
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _code_of(name, array),
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, array in ordered:
        little = array.dtype.newbyteorder("<")
        file.write(np.ascontiguousarray(array, little).reshape(-1).view(np.uint8).data)


def _view(data: memoryview, element: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if not data:
        return np.empty(shape, element.numpy)
    array = np.frombuffer(data, element.numpy).reshape(shape)
    return array if array.flags.aligned else array.copy()


def read(file: BinaryIO, where: str) -> Arrays:
    """Read arrays, each into memory of its own.

    Raises:
        InvalidArgumentError: the file is damaged or not safetensors.
    """
    entries, _, start = _read_header(file, _length(file), where)
    arrays = {}
    for name, element, shape, begin, _ in entries:
        arrays[name] = np.empty(shape, element.numpy)
        file.seek(start + begin)
        if not _fill(file, arrays[name]):
            _fail(where, f"it ended inside array {name!r}")
    return arrays


def read_metadata(file: BinaryIO, where: str) -> dict[str, str]:
    """Read the metadata; raises as `read`."""
    return _read_header(file, _length(file), where)[1]


def _length(file: BinaryIO) -> int:
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    return length


def _fill(file: Any, array: np.ndarray[Any, Any]) -> bool:
    target = array.reshape(-1).view(np.uint8)
    return array.size == 0 or file.readinto(target.data) == len(target)


Entry: TypeAlias = tuple[str, DType, tuple[int, ...], int, int]


def _read_header(
    file: BinaryIO, length: int, where: str
) -> tuple[list[Entry], dict[str, str], int]:
    """Return the entries in the order of their data, the metadata, and where the data starts."""
    start = file.read(64)
    file.seek(8)
    size = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else -1
    if size < 2 or size > MAX_HEADER or 8 + size > length or start[8:9] != b"{":
        _fail(where, _foreign(start) or f"its header of {size} bytes is not in {length} bytes")
    header = json_object(file.read(size), "its header", partial(_fail, where))
    metadata = header.pop(METADATA, {})
    if not _is_text_map(metadata):
        _fail(where, f"its {METADATA} does not map text to text")
    entries = [_entry(name, row, where) for name, row in header.items()]
    _check_cover(entries, length - 8 - size, where)
    return entries, metadata, 8 + size


def _check_cover(entries: list[Entry], length: int, where: str) -> None:
    """Sort the entries by position and check that they cover the data exactly once."""
    entries.sort(key=lambda entry: (entry[3], entry[4]))
    position = 0
    for name, _, _, begin, end in entries:
        if begin != position:
            _fail(where, f"array {name!r} begins at byte {begin} of the data, not at {position}")
        position = end
    if position != length:
        _fail(where, f"its header describes {position} bytes of data, the file has {length}")


def _entry(name: str, row: Any, where: str) -> Entry:
    if not isinstance(row, dict) or row.keys() != {"dtype", "shape", "data_offsets"}:
        _fail(where, f"array {name!r:.200} does not have exactly dtype, shape and data_offsets")
    code, offsets, shape = row["dtype"], row["data_offsets"], row["shape"]
    element = _TYPES.get(code) if isinstance(code, str) else None
    if element is None:
        known = ", ".join(_TYPES)
        _fail(where, f"array {name!r:.200} has the element type {code!r:.50}; known: {known}")
    if not (_is_size_list(offsets) and len(offsets) == 2 and _is_size_list(shape)):
        _fail(where, f"array {name!r:.200} has a bad shape or bad data_offsets")
    if len(shape) > _MAX_RANK:
        _fail(where, f"array {name!r:.200} has {len(shape)} axes")
    try:
        nbytes = int(numel(as_shape(shape))) * element.itemsize  # type: ignore[arg-type]
    except InvalidArgumentError as problem:
        _fail(where, f"array {name!r:.200}: {problem}")
    begin, end = offsets
    check_read_name(name, partial(_fail, where))
    if end - begin != nbytes:
        _fail(where, f"array {name!r:.200} of {nbytes} bytes has data_offsets {offsets}")
    return name, element, tuple(shape), begin, end


def _is_size_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _code_of(name: str, array: np.ndarray[Any, Any]) -> str:
    element = dtype(array.dtype)
    code = _NAMES.get(element.name)
    if code is None:
        raise InvalidArgumentError(
            f"array {name!r}: safetensors has no type for {element}; cast it to int8 first"
        )
    return code


def _foreign(start: bytes) -> str:
    for magic, kind in _FOREIGN:
        if start.startswith(magic):
            return f"it is {kind}"
    return ""


def _fail(where: str, problem: str) -> NoReturn:
    raise InvalidArgumentError(f"expected a sound safetensors file, received {where}: {problem}")
