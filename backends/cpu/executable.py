"""A compiled piece on the CPU: one native call a run.

Each running call owns a frame: the context words, the pointer words, the status words and an arena.
Frames wait in a bounded free list. Outputs are fresh arrays that own their memory; large ones are
recycled once nobody but the executable holds them.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cffi
import numpy as np

from frame.backends.cpu import elf
from frame.backends.cpu.pool import get_pool
from frame.core.errors import InternalError, InvalidArgumentError, OutOfMemoryError
from frame.core.shapes import Dim, match_shape, shape_symbols
from frame.hal.interfaces import KernelTime, Port, Signature
from frame.ir.constraints import check_constraints
from frame.ir.graph import TensorType
from frame.ir.plan import MemoryPlan

_FFI = cffi.FFI()
_ENTRY = "int64_t(*)(void *)"
_CONTEXT_WORDS = 10
_STATUS_WORDS = 4
_FREE_FRAMES = 4  # idle arenas that an executable keeps
_RECYCLED_BYTES = 1 << 16  # outputs of this size and above are recycled
_POOLED = 4  # recycled arrays an output
_BINDINGS = 64  # symbol bindings whose offset tables are kept
_BAD_STATUS = 1
_MAGIC = b"FRCPU1\0\0"


@dataclass(frozen=True, slots=True)
class Site:
    """One check of index values: the op, where it was declared, and what it expects."""

    op: str
    where: str
    limit: str

    def message(self, position: int, value: int) -> str:
        """Return what to tell the person whose data failed the check."""
        place = f" ({self.where})" if self.where else ""
        return (
            f"{self.op}{place}: the index at position {position} is {value}, expected a value from "
            f"0 to {self.limit} - 1; nothing was changed by this run"
        )


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """One launch of the entry: its kernel, the declared nodes it stems from, and its work."""

    kernel: str
    origins: tuple[int, ...]
    flops: str = "0"
    bytes: str = "0"


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """Everything that a run needs: machine code, signature, plan, checks and launches."""

    code: bytes
    entry: str
    plan: MemoryPlan
    sites: tuple[Site, ...]
    launches: tuple[LaunchInfo, ...]

    def to_bytes(self) -> bytes:
        """Return the artefact as bytes: a JSON header, then the object."""
        header = {
            "entry": self.entry,
            "plan": self.plan.to_data(),
            "sites": [[s.op, s.where, s.limit] for s in self.sites],
            "launches": [[i.kernel, list(i.origins), i.flops, i.bytes] for i in self.launches],
        }
        text = json.dumps(header).encode()
        return _MAGIC + struct.pack("<Q", len(text)) + text + self.code

    @staticmethod
    def from_bytes(data: bytes) -> Artifact:
        """Return the artefact that `to_bytes` wrote; raise InvalidArgumentError for other bytes."""
        start = len(_MAGIC) + 8
        if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
            raise InvalidArgumentError("expected an artefact of the cpu backend, received others")
        (length,) = struct.unpack("<Q", data[len(_MAGIC) : start])
        try:
            header = json.loads(data[start : start + length])
            return Artifact(
                data[start + length :],
                str(header["entry"]),
                MemoryPlan.from_data(header["plan"]),
                tuple(Site(*row) for row in header["sites"]),
                tuple(LaunchInfo(k, tuple(o), f, m) for k, o, f, m in header["launches"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"damaged artefact of the cpu backend: {error}") from error


class _Frame:
    """The memory of one running call."""

    __slots__ = ("arena", "context", "size", "status", "symbols", "table", "words")

    def __init__(self, ports: int, symbols: int) -> None:
        pool = get_pool()
        self.words = _FFI.new("void *[]", max(ports, 1))
        self.symbols = _FFI.new("int64_t[]", max(symbols, 1))
        self.status = _FFI.new("int64_t[]", _STATUS_WORDS)
        self.context = _FFI.new("intptr_t[]", _CONTEXT_WORDS)
        self.arena: mmap.mmap | None = None
        self.size = 0
        self.table: Any = None
        self.context[0] = pool.address
        self.context[1] = pool.launch_address
        self.context[2] = pool.fail_address
        self.context[3] = _address(self.status)
        self.context[5] = _address(self.words)
        self.context[6] = _address(self.symbols)
        self.context[9] = pool.clock_address

    def reserve(self, size: int) -> None:
        """Make the arena hold at least `size` bytes."""
        if size <= self.size:
            return
        try:
            self.arena = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(
                f"the run needs {size} bytes for intermediate values and could not get them: "
                f"{error}; use a smaller batch"
            ) from error
        with contextlib.suppress(OSError, AttributeError):
            self.arena.madvise(mmap.MADV_HUGEPAGE)
        self.size = size
        self.context[4] = _address(_FFI.from_buffer(self.arena))

    def use_table(self, table: Any) -> None:
        """Let the entry read its arena offsets from `table`."""
        self.table = table
        self.context[7] = 0 if table is None else _address(table)


def _address(data: Any) -> int:
    return int(_FFI.cast("intptr_t", data))


@dataclass(slots=True)
class _Recycler:
    """Arrays of one output type that are reused once only this object holds them."""

    arrays: list[np.ndarray]

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array that nobody else holds."""
        for array in self.arrays:
            # The list, the loop variable and the argument of getrefcount: nobody else.
            if array.shape == shape and sys.getrefcount(array) == 3:
                return array
        array = np.empty(shape, dtype)
        if array.nbytes >= _RECYCLED_BYTES:
            if len(self.arrays) >= _POOLED:
                self.arrays.pop(0)
            self.arrays.append(array)
        return array


class CpuExecutable:
    """A compiled piece. Any number of threads may run it at once; one that updates state is locked.

    Inputs and outputs follow `signature`; the arrays of updated inputs are overwritten in place.
    """

    def __init__(
        self,
        artifact: Artifact,
        signature: Signature,
        sources: Mapping[str, Any] | None = None,
        profiled: Any = None,
    ) -> None:
        self.signature = signature
        self.artifact = artifact
        self._sources = dict(sources or {})
        self._profiled = profiled
        self._loaded = elf.load(artifact.code)
        self._call = _FFI.cast(_ENTRY, self._loaded.symbol(artifact.entry))
        self._inputs = tuple(_Check.of(port) for port in signature.inputs)
        self._outputs = tuple(_Check.of(port) for port in signature.outputs)
        self._updates = frozenset(signature.updates)
        self._static = not signature.symbols
        self._frames: deque[_Frame] = deque(maxlen=_FREE_FRAMES)
        self._recyclers = tuple(_Recycler([]) for _ in signature.outputs)
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[int, ...], tuple[int, Any]] = OrderedDict()

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> list[np.ndarray]:
        """Run the piece on host arrays and return its outputs.

        Args:
            inputs: one array per input of the signature. Plain inputs may have any strides and byte
                order (they are copied if need be); updated inputs are overwritten and must be
                writable, row-major and native.
            outputs: arrays to write into instead of fresh ones: writable, row-major, exact type.
            stream: unused; the CPU runs at once.

        Raises:
            InvalidArgumentError: an input or output that does not fit the signature, or an index
                in the data that is out of range (nothing was changed then).
            OutOfMemoryError: the arena could not be had.
        """
        if len(inputs) != len(self._inputs):
            raise InvalidArgumentError(
                f"expected {len(self._inputs)} inputs ({_names(self.signature.inputs)}), received "
                f"{len(inputs)}"
            )
        frame = self._frame()
        if self._updates:
            with self._lock:
                return self._run(frame, inputs, outputs)
        return self._run(frame, inputs, outputs)

    def run_with_profile(self, inputs: Sequence[Any], words: np.ndarray) -> dict[str, int]:
        """Run an artefact compiled for profiling; return the bindings of the symbols.

        `words` (int64, two a launch) receives nanoseconds and run counts.
        """
        frame = self._frame()
        frame.context[8] = words.ctypes.data
        bindings: dict[str, int] = {}
        for position, check in enumerate(self._inputs):
            check.convert(inputs[position], position, bindings, False)
        try:
            self._run(frame, inputs, None)
        finally:
            frame.context[8] = 0
        return bindings

    def _frame(self) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return _Frame(len(self._inputs) + len(self._outputs), len(self.signature.symbols))

    def _run(
        self, frame: _Frame, inputs: Sequence[Any], outputs: Sequence[Any] | None
    ) -> list[np.ndarray]:
        words, alive = frame.words, []
        bindings: dict[str, int] = {}
        for position, check in enumerate(self._inputs):
            array = inputs[position]
            if not check.is_plain(array):
                array = check.convert(array, position, bindings, position in self._updates)
                alive.append(array)
            words[position] = check.pointer(array)
        self._bind(frame, bindings)
        results = self._results(outputs, bindings)
        for position, array in enumerate(results, len(self._inputs)):
            words[position] = self._outputs[position - len(self._inputs)].pointer(array)
        frame.status[1] = 0
        get_pool()  # a forked child gets its workers here
        bad = self._call(frame.context)
        if bad == _BAD_STATUS:
            self._raise(frame)
        self._frames.append(frame)
        return results

    def _bind(self, frame: _Frame, bindings: Mapping[str, int]) -> None:
        if self._static:
            frame.reserve(self.artifact.plan.arena_size)
            return
        values = tuple(bindings[name] for name in self.signature.symbols)
        for position, value in enumerate(values):
            frame.symbols[position] = value
        size, table = self._table(values)
        frame.reserve(size)
        frame.use_table(table)

    def _table(self, values: tuple[int, ...]) -> tuple[int, Any]:
        """Return the arena size and the offset table for values of the symbols."""
        with self._lock if not self._updates else contextlib.nullcontext():
            found = self._tables.get(values)
            if found is None:
                bindings = dict(zip(self.signature.symbols, values, strict=True))
                check_constraints(self.signature.constraints, bindings)
                offsets = self.artifact.plan.fill(bindings)
                table = _FFI.new("int64_t[]", list(offsets.offsets) or [0])
                found = self._tables[values] = (offsets.arena_size, table)
                if len(self._tables) > _BINDINGS:
                    self._tables.popitem(last=False)
            else:
                self._tables.move_to_end(values)
            return found

    def _results(
        self, outputs: Sequence[Any] | None, bindings: Mapping[str, int]
    ) -> list[np.ndarray]:
        if outputs is None:
            return [
                recycler.take(check.bound_shape(bindings), check.dtype)
                for check, recycler in zip(self._outputs, self._recyclers, strict=True)
            ]
        if len(outputs) != len(self._outputs):
            raise InvalidArgumentError(
                f"expected {len(self._outputs)} output arrays, received {len(outputs)}"
            )
        for position, (check, array) in enumerate(zip(self._outputs, outputs, strict=True)):
            check.require_target(array, position, bindings)
        return list(outputs)

    def _raise(self, frame: _Frame) -> None:
        site, position, value = (int(frame.status[k]) for k in (1, 2, 3))
        self._frames.append(frame)
        if not 1 <= site <= len(self.artifact.sites):
            raise InternalError(f"a check reported the unknown site {site}")
        raise InvalidArgumentError(self.artifact.sites[site - 1].message(position, value))

    def profile(self, inputs: Sequence[Any]) -> list[KernelTime]:
        """Run once with the clock read around every launch; return the times in launch order.

        The inputs that a run updates are copied first, so profiling changes nothing.
        """
        if self._profiled is None:
            raise InvalidArgumentError("this executable was loaded without the means to profile")
        return list(self._profiled(inputs))

    def source(self) -> dict[str, str]:
        """Return the generated code by stage: `loop`, `llvm`, `assembly`."""
        return {name: make() for name, make in self._sources.items()}

    def serialize(self) -> bytes:
        """Return bytes from which `CpuBackend.deserialize` makes the executable again."""
        return self.artifact.to_bytes()


def _names(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.name}: {port.type}" for port in ports)


class _Check:
    """How one input or output is checked and turned into a pointer."""

    __slots__ = ("buffered", "dtype", "name", "shape", "static", "type")

    def __init__(self, port: Port) -> None:
        self.name = port.name
        self.type: TensorType = port.type
        self.dtype = np.dtype(port.type.dtype.numpy)
        self.shape = port.type.storage_shape
        self.static = all(isinstance(size, int) for size in self.shape)
        self.buffered = self.dtype.kind in "fiub" and not port.type.dtype.name.startswith("bf")

    @staticmethod
    def of(port: Port) -> _Check:
        """Return the check of a port; its arrays have the shape in which the layout is stored."""
        return _Check(port)

    def is_plain(self, array: Any) -> bool:
        """Whether an array can be used as it is, without a look at symbols or strides."""
        return (
            self.static
            and type(array) is np.ndarray
            and array.dtype is self.dtype
            and array.shape == self.shape
            and array.flags.c_contiguous
        )

    def pointer(self, array: np.ndarray) -> Any:
        """Return the address of an array for a pointer word."""
        if self.buffered:
            return _FFI.from_buffer(array)
        return _FFI.cast("void *", array.ctypes.data)

    def bound_shape(self, bindings: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape under the bindings of a call."""
        if self.static:
            return self.shape  # type: ignore[return-value]
        return tuple(
            size.evaluate(bindings) if isinstance(size, Dim) else size for size in self.shape
        )

    def convert(
        self, array: Any, position: int, bindings: dict[str, int], updated: bool
    ) -> np.ndarray:
        """Check an array, bind symbols by its shape, and return it row-major and native."""
        where = f"input {position} ({self.name!r})"
        if not isinstance(array, np.ndarray):
            raise InvalidArgumentError(
                f"{where}: expected an array of {self.type}, received {type(array).__name__}"
            )
        if array.dtype.newbyteorder("=") != self.dtype:
            raise InvalidArgumentError(
                f"{where}: expected {self.type}, received dtype {array.dtype.name} with shape "
                f"{list(array.shape)}; convert with .astype({self.type.dtype.name!r})"
            )
        self._require_shape(array.shape, where, bindings)
        if updated:
            _require_writable(array, where)
            return array
        return np.ascontiguousarray(array, dtype=self.dtype).reshape(array.shape)

    def _require_shape(self, shape: tuple[int, ...], where: str, bindings: dict[str, int]) -> None:
        """Bind symbols by a shape; raise InvalidArgumentError for a shape that does not fit."""
        known = {name: bindings[name] for name in shape_symbols(self.shape) if name in bindings}
        problem = ""
        try:
            if match_shape(self.shape, shape, bindings):
                return
        except InvalidArgumentError as error:
            problem = f": {error}"
        if known:
            problem += "; the other inputs have " + ", ".join(
                f"{name} = {value}" for name, value in sorted(known.items())
            )
        raise InvalidArgumentError(
            f"{where}: expected {self.type}, received shape {list(shape)}{problem}"
        )

    def require_target(self, array: Any, position: int, bindings: Mapping[str, int]) -> None:
        """Check an array that the caller wants an output written into."""
        where = f"output {position} ({self.name!r})"
        shape = self.bound_shape(bindings)
        fits = isinstance(array, np.ndarray) and array.dtype == self.dtype and array.shape == shape
        if not fits:
            received = (
                f"{array.dtype.name}{list(array.shape)}"
                if isinstance(array, np.ndarray)
                else type(array).__name__
            )
            raise InvalidArgumentError(
                f"{where}: expected an array of {self.type.dtype}{list(shape)}, received {received}"
            )
        _require_writable(array, where)


def _require_writable(array: np.ndarray, where: str) -> None:
    if not (array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        raise InvalidArgumentError(
            f"{where} is written in place: expected a writable, row-major array in native byte "
            "order; pass numpy.ascontiguousarray(...) or a copy"
        )
