"""The weights of ONNX models: the initializers of a graph without nodes, and those of any model.

A file is a ModelProto of protocol buffers; only its messages ModelProto (ir_version 1, producer 2,
graph 7, opset 8, metadata 14), GraphProto (name 2, initializer 5) and TensorProto (dims 1, type 2,
name 8, raw_data 9, and the typed lists 4, 5, 7, 10 and 11 that other programs write) are read, all
other fields are passed over. Source: github.com/onnx/onnx, onnx.proto, version 8 of the format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np

from frame.core import dtypes
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import MAX_RANK
from frame.interop.checks import check_name, check_read_name

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
Content: TypeAlias = int | memoryview

IR_VERSION, OPSET, GRAPH = 8, 13, "frame_weights"
MOST_BYTES = 2**31 - 1
"""What protocol buffers allow for one message."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}

# element type -> the number of TensorProto.DataType
CODES: Mapping[str, int] = MappingProxyType(
    {
        "float32": 1,
        "uint8": 2,
        "int8": 3,
        "uint16": 4,
        "int16": 5,
        "int32": 6,
        "int64": 7,
        "bool": 9,
        "float16": 10,
        "float64": 11,
        "uint32": 12,
        "uint64": 13,
        "bfloat16": 16,
        "float8_e4m3fn": 17,
        "float8_e5m2": 19,
    }
)
_NAMES = {code: name for name, code in CODES.items()}

# field of a typed list -> the type of its items; None: varints
_LISTS: Mapping[int, str | None] = MappingProxyType(
    {4: "<f4", 5: None, 7: None, 10: "<f8", 11: None}
)
# What a list of integers of 32 bits holds as bits rather than as numbers.
_AS_BITS = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})


# --- writing --------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value)


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | BYTES) + _varint(len(content)) + content


def _tensor(name: str, array: np.ndarray[Any, Any]) -> bytes:
    element = dtypes.dtype(array.dtype)
    if element.name not in CODES:
        raise InvalidArgumentError(
            f"array {name!r:.200}: expected an element type of ONNX ({', '.join(CODES)}), received "
            f"{element}; safetensors or npz hold it"
        )
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    dims = b"".join(_number(1, size) for size in array.shape)
    head = dims + _number(2, CODES[element.name]) + _part(8, name.encode("utf-8"))
    return head + _part(9, plain.tobytes())


def write(file: BinaryIO, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write arrays by name as the initializers of a model without nodes.

    Raises:
        InvalidArgumentError: ONNX lacks the type of an array, or all of them take 2 GiB or more.
    """
    tensors = (
        _part(5, _tensor(check_name(name), np.asarray(arrays[name]))) for name in sorted(arrays)
    )
    graph = _part(2, GRAPH.encode()) + b"".join(tensors)
    notes = (
        _part(14, _part(1, key.encode("utf-8")) + _part(2, metadata[key].encode("utf-8")))
        for key in sorted(metadata)
    )
    opset = _part(8, _part(1, b"") + _number(2, OPSET))
    # The graph comes last, so that a file that was cut off can't pass for a whole one.
    model = _number(1, IR_VERSION) + _part(2, b"frame") + opset + b"".join(notes) + _part(7, graph)
    if len(model) > MOST_BYTES:
        raise InvalidArgumentError(
            f"expected arrays of less than 2 GiB for an ONNX file, received {len(model):,} bytes; "
            "safetensors has no such limit"
        )
    file.write(model)


# --- reading --------------------------------------------------------------------------------------


def _take_varint(data: memoryview, place: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            _fail(where, "a number is cut off")
        byte = data[place]
        value, place = value | (byte & 0x7F) << shift, place + 1
        if byte < 0x80:
            return value & (1 << 64) - 1, place
    _fail(where, "a number has more than 64 bits")


def _fields(data: memoryview, where: str) -> Iterator[tuple[int, int, Content]]:
    """Give (field, wire type, content) of a message; what has a length lies within it."""
    place = 0
    while place < len(data):
        key, place = _take_varint(data, place, where)
        field, wire = key >> 3, key & 7
        if field == 0 or wire not in (VARINT, FIXED64, BYTES, FIXED32):
            _fail(where, f"field {field} has the wire type {wire}")
        if wire == VARINT:
            value, place = _take_varint(data, place, where)
            yield field, wire, value
            continue
        size = _WIDTHS.get(wire)
        if size is None:
            size, place = _take_varint(data, place, where)
        if size > len(data) - place:
            _fail(where, f"field {field} claims {size} bytes, {len(data) - place} are left")
        yield field, wire, data[place : place + size]
        place += size


def _messages(data: memoryview, wanted: int, where: str) -> Iterator[memoryview]:
    for field, _, content in _fields(data, where):
        if field == wanted:
            if not isinstance(content, memoryview):
                _fail(where, f"field {field} is a number, expected a message")
            yield content


def _text(content: Content, where: str) -> str:
    if isinstance(content, int):
        _fail(where, "a name is a number")
    try:
        return bytes(content).decode("utf-8")
    except UnicodeDecodeError:
        _fail(where, "a name is no text in UTF-8")


def read(file: BinaryIO, where: str) -> Arrays:
    """Read the initializers of a model, each into memory of its own.

    Raises:
        InvalidArgumentError: the file is damaged or no ONNX model; a tensor lies in a file of its
            own, or has a type that frame lacks.
    """
    arrays: Arrays = {}
    for graph in _graphs(file, where):
        for content in _messages(graph, 5, where):
            name, array = _read_tensor(content, where)
            if name in arrays:
                _fail(where, f"array {name!r:.200} occurs twice")
            arrays[name] = array
    return arrays


def _graphs(file: BinaryIO, where: str) -> list[memoryview]:
    data = memoryview(file.read())
    graphs = list(_messages(data, 7, where))
    if len(graphs) != 1:
        _fail(where, f"it has {len(graphs)} graphs")
    return graphs


def read_metadata(file: BinaryIO, where: str) -> dict[str, str]:
    """Read the metadata; raises as `read`."""
    found = {}
    for entry in _messages(memoryview(file.read()), 14, where):
        texts = {field: _text(content, where) for field, _, content in _fields(entry, where)}
        found[texts.get(1, "")] = texts.get(2, "")
    return found


def _read_tensor(data: memoryview, where: str) -> tuple[str, np.ndarray[Any, Any]]:
    dims: list[int] = []
    code, name, raw = 0, "", None
    lists: list[tuple[int, int, Content]] = []
    for field, wire, content in _fields(data, where):
        if field == 1:
            dims += _integers(wire, content, where)
        elif field == 2 and isinstance(content, int):
            code = content
        elif field == 8:
            name = _text(content, where)
        elif field == 9 and isinstance(content, memoryview):
            raw = content
        elif field in _LISTS:
            lists.append((field, wire, content))
        elif field in (13, 14) and content != 0:
            _fail(where, f"array {name!r:.200} lies in a file of its own; save the model in one")
    check_read_name(name, partial(_fail, where))
    if code not in _NAMES:
        _fail(where, f"array {name!r:.200} has the element type {code}, which frame lacks")
    _check_dims(dims, name, where)
    element = dtypes.dtype(_NAMES[code])
    flat = _from_lists(element, lists, where) if raw is None else _from_raw(element, raw, where)
    if flat.size != math.prod(dims):
        _fail(where, f"array {name!r:.200} of shape {dims} has {flat.size} elements")
    return name, flat.reshape(dims)


def _check_dims(dims: list[int], name: str, where: str) -> None:
    if len(dims) > MAX_RANK or any(size >= 1 << 62 for size in dims):
        _fail(where, f"array {name!r:.200} has the shape {dims!r:.200}")


def _from_raw(element: dtypes.DType, raw: memoryview, where: str) -> np.ndarray[Any, Any]:
    if len(raw) % element.itemsize:
        _fail(where, f"{len(raw)} bytes are no whole number of {element}")
    if element.name == "bool" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        _fail(where, "a bool is neither 0 nor 1")
    stored = element.numpy.newbyteorder("<")
    return np.frombuffer(raw, stored).astype(element.numpy)


def _from_lists(
    element: dtypes.DType, lists: list[tuple[int, int, Content]], where: str
) -> np.ndarray[Any, Any]:
    parts = [_items(*each, where) for each in lists]
    flat = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if element.name in _AS_BITS:
        return flat.astype(f"u{element.itemsize}").view(element.numpy)
    return flat.astype(element.numpy)


def _items(field: int, wire: int, content: Content, where: str) -> np.ndarray[Any, Any]:
    stored = _LISTS[field]
    if stored is None:
        found = _integers(wire, content, where)
        return np.array(found, np.uint64).astype(np.uint64 if field == 11 else np.int64)
    size = np.dtype(stored).itemsize
    if isinstance(content, int) or len(content) % size:
        _fail(where, f"a list of field {field} is no whole number of items")
    return np.frombuffer(content, stored).astype(stored[1:])


def _integers(wire: int, content: Content, where: str) -> list[int]:
    """Return the numbers of a field, packed or one alone."""
    if isinstance(content, int):
        return [content]
    if wire != BYTES:
        _fail(where, "a size is no integer")
    found, place = [], 0
    while place < len(content):
        value, place = _take_varint(content, place, where)
        found.append(value)
    return found


def _fail(where: str, problem: str) -> NoReturn:
    raise InvalidArgumentError(f"expected a sound ONNX file, received {where}: {problem}")
