"""Gates: builtin functions whose body is generated code, for the calls that a model has most.

See gate_ir for what a gate does. This module puts the addresses of the interpreter and of numpy
into its table, compares the layout of arrays with what the code assumes, and makes the gates.
Where an assumption does not hold, there are no gates, which is logged once, and every call takes
the path through Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from frame.backends.cpu.frames import FFI, Binding, Frame, address_of
from frame.backends.cpu.gate_ir import API, ARRAY, BUSY, ELEMENT, LIST, ROW, STATE, TOKEN
from frame.backends.cpu.pool import Pool, get_pool
from frame.core.dataclass import dataclass
from frame.core.logs import Logger

_LOG = Logger(__name__)
_FASTCALL = 0x80  # METH_FASTCALL
_NEW_FROM_DESCR, _ARRAY_TYPE, _VERSION = 94, 2, 0  # positions in numpy's table of functions
_NUMPY_ABI = 2
_SMALL = 1 << 16  # a number, and no address
_PYTHON = {
    "tuple_new": "PyTuple_New",
    "tuple_set": "PyTuple_SetItem",
    "retain": "Py_IncRef",
    "drop": "Py_DecRef",
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
    "call": "PyObject_CallNoArgs",
}
_FUNCTIONS = ("frame_gate", "frame_gate_into", "frame_gate_claim")
_tokens = itertools.count(1)

Call = Callable[..., Any]
Row = tuple[int, tuple[int, ...], np.dtype, int]


class GateUnavailable(Exception):
    """What of this interpreter or of this numpy is not as gates need it."""


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """The calls of an executable with the arrays of one binding, on the frame of a prepared call.

    `run` takes the inputs, `into` the inputs and then the arrays to write the outputs into. Both
    return an array, or a tuple of several; or None: nothing ran, because an argument is not as the
    binding has it or another call is on the frame. `claim` keeps both off the frame, or returns
    None where a call is on it.
    """

    token: int
    run: Call
    into: Call
    claim: Call


class _State(np.ndarray):
    """The words that a gate reads, with the objects whose addresses they hold."""

    __slots__ = ("kept",)
    kept: Any


class _Rows:
    """The words of rows for the gate, and the memory that they point to."""

    __slots__ = ("count", "kept", "words")

    def __init__(self, frame: Frame, rows: Sequence[Row]) -> None:
        self.count = len(rows)
        self.words = FFI.new("intptr_t[]", max(1, len(ROW) * len(rows)))
        self.kept: list[Any] = []
        for position, (word, shape, dtype, recycled) in enumerate(rows):
            sizes = FFI.new("intptr_t[]", list(shape) or [0])
            self.kept += [sizes, dtype]
            values = {
                "word": address_of(frame.words) + 8 * word,
                "element": id(dtype),
                "kind": _kind(dtype),
                "rank": len(shape),
                "sizes": address_of(sizes),
                "bytes": math.prod(shape) * dtype.itemsize,
                "recycled": recycled,
            }
            for offset, name in enumerate(ROW, len(ROW) * position):
                self.words[offset] = values[name]


def make_gate(
    frame: Frame,
    binding: Binding,
    entry: Any,
    inputs: Sequence[tuple[int, tuple[int, ...], np.dtype]],
    held: Sequence[tuple[int, np.ndarray]],
    fail: Callable[[], Any],
) -> Gate | None:
    """Return the gate of a frame for a binding, or None where there are no gates.

    Args:
        frame: belongs to one prepared call, which puts the token of a gate into it.
        binding: the outputs.
        entry: the function; `fail` keeps its code in memory.
        inputs: word, shape and dtype of each free input.
        held: word and array of each fixed input.
        fail: raises the error that a run has left in the frame.
    """
    methods = _methods()
    if methods is None or not binding.results:
        return None
    made = [
        (word, shape, dtype, 0 if recycler is None else id(recycler.arrays))
        for word, shape, dtype, recycler, _ in binding.results
    ]
    rows = {
        "input": _Rows(frame, [(*row, 0) for row in inputs]),
        "output": _Rows(frame, made),
        "held": _Rows(frame, [(word, array.shape, array.dtype, 0) for word, array in held]),
    }
    token = next(_tokens)
    words = {
        "epoch": get_pool().epoch_address,
        "context": address_of(frame.context),
        "token": token,
        "entry": int(FFI.cast("intptr_t", entry)),
        "status": address_of(frame.status),
        "fail": id(fail),
        "inputs": rows["input"].count,
        "outputs": rows["output"].count,
        "held": rows["held"].count,
        **{f"{name}_rows": address_of(row.words) for name, row in rows.items()},
    }
    state = _State(len(STATE), np.int64)
    state[:] = [words[name] for name in STATE]
    state.kept = (frame, binding, fail, rows)
    return Gate(token, *(methods.bind(name, state) for name in _FUNCTIONS))


def settle(gate: Gate, frame: Frame, binding: Binding) -> bool:
    """Make a frame ready for the calls of a gate; False while another call is on it."""
    if gate.claim() is None:
        return False
    try:
        frame.bind(binding)
        frame.context[TOKEN] = gate.token
    finally:
        frame.context[BUSY] = 0
    return True


class _Methods:
    """The records of the builtin functions, which live as long as the process."""

    def __init__(self, pool: Pool) -> None:
        self._names = {name: FFI.new("char[]", name.encode()) for name in _FUNCTIONS}
        self._records = {
            name: FFI.new("intptr_t[]", [address_of(text), pool.symbol(name), _FASTCALL, 0])
            for name, text in self._names.items()
        }
        self._new = ctypes.pythonapi["PyCFunction_NewEx"]
        self._new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self._new.restype = ctypes.py_object

    def bind(self, name: str, state: np.ndarray) -> Call:
        """Return a builtin function with `state` for its self."""
        made: Call = self._new(address_of(self._records[name]), state, None)
        return made


@functools.cache
def _methods() -> _Methods | None:
    pool = get_pool()
    try:
        _require_layout()
        table = _api()
        words = (ctypes.c_int64 * len(API)).from_address(pool.symbol("frame_gate_api"))
        words[:] = [table[name] for name in API]
        return _Methods(pool)
    except (GateUnavailable, AttributeError, ValueError) as problem:
        _LOG.warning("calls take the longer way through Python: %s", problem)
        return None


def _require_layout() -> None:
    """Compare what the generated code assumes with what Python says of some arrays.

    Raises:
        GateUnavailable: they differ.
    """
    locked = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    if sys.implementation.name != "cpython" or not (locked is None or locked()):
        raise GateUnavailable("they need CPython with its interpreter lock")
    base = np.zeros((3, 4, 5), np.float32)
    samples = [base, base[1:, ::2], np.zeros((), ">i2"), np.zeros(0, np.bool_), base.T]
    samples[1].flags.writeable = False
    watched = weakref.ref(samples[1])
    for array in samples:
        if _seen(array) != _told(array):
            raise GateUnavailable(f"numpy {np.__version__} lays out arrays in another way")
    del watched
    held = [np.zeros(1), base]
    if ctypes.c_int32.from_address(id(held[0])).value != 1:
        raise GateUnavailable("this interpreter counts references in another way")
    length = ctypes.c_int64.from_address(id(held) + LIST["length"]).value
    items = ctypes.c_int64.from_address(id(held) + LIST["items"]).value
    plausible = length == 2 and items > _SMALL  # the memory behind it is looked at only then
    if not plausible or ctypes.c_int64.from_address(items + 8).value != id(base):
        raise GateUnavailable("this interpreter lays out lists in another way")


def _seen(array: np.ndarray) -> list[Any]:
    """Return the facts of an array as generated code reads them."""
    at = {name: id(array) + offset for name, offset in ARRAY.items()}
    word = {name: ctypes.c_int64.from_address(address).value for name, address in at.items()}
    rank = ctypes.c_int32.from_address(at["rank"]).value
    if word["element"] != id(array.dtype):  # before its memory is read
        return [word["element"]]
    element = {name: word["element"] + offset for name, offset in ELEMENT.items()}
    return [
        word["type"],
        word["data"],
        rank,
        list((ctypes.c_int64 * array.ndim).from_address(word["sizes"])) if array.ndim else [],
        word["base"],
        ctypes.c_int32.from_address(at["flags"]).value & 0xFFFF,
        word["weak"],
        ctypes.c_char.from_address(element["order"]).value.decode(),
        ctypes.c_int32.from_address(element["number"]).value,
    ]


def _told(array: np.ndarray) -> list[Any]:
    """Return the same facts as Python tells them."""
    return [
        id(type(array)),
        array.ctypes.data,
        array.ndim,
        list(array.shape),
        0 if array.base is None else id(array.base),
        array.flags.num,
        next((id(reference) for reference in weakref.getweakrefs(array)), 0),
        array.dtype.byteorder,
        array.dtype.num,
    ]


def _kind(dtype: np.dtype) -> int:
    return dtype.num | ord(dtype.byteorder) << 32


def _api() -> dict[str, int]:
    """Return the addresses that gates call, by their names in the table.

    Raises:
        GateUnavailable: numpy's table is of another version.
    """
    # The home of the table since numpy 2.0.
    home = importlib.import_module("numpy._core._multiarray_umath")
    pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    table = (ctypes.c_size_t * (_NEW_FROM_DESCR + 1)).from_address(pointer(home._ARRAY_API, None))
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[_VERSION])() >> 24
    if version != _NUMPY_ABI or table[_ARRAY_TYPE] != id(np.ndarray):
        raise GateUnavailable(f"numpy {np.__version__} has another table of functions")
    functions = {name: ctypes.pythonapi[symbol] for name, symbol in _PYTHON.items()}
    addresses = {name: ctypes.cast(found, ctypes.c_void_p) for name, found in functions.items()}
    return {
        "array_type": id(np.ndarray),
        "new_array": table[_NEW_FROM_DESCR],
        "none": id(None),
        **{name: address.value or 0 for name, address in addresses.items()},
    }
