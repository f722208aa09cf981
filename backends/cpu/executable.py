"""A compiled piece on the CPU: one native call a run.

Each running call owns a frame: the context words, the pointer words, the status words and an arena.
Frames wait in a bounded free list. Outputs are fresh arrays that own their memory; large ones are
recycled once nobody but the executable holds them.
"""

from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.backends.cpu import elf
from frame.backends.cpu.frames import FFI, RECYCLED_BYTES, Binding, Frame, Recycler
from frame.backends.cpu.ports import PortCheck
from frame.backends.cpu.prepared import PreparedCall
from frame.backends.cpu.target import missing_features
from frame.core import forks
from frame.core.dataclass import dataclass
from frame.core.errors import BadIndexError, InvalidArgumentError
from frame.core.forks import cached_property
from frame.hal.interfaces import KernelCode, KernelTime, Signature
from frame.ir.constraints import check_constraints
from frame.ir.memory import MemoryPlan

if TYPE_CHECKING:
    from frame.backends.cpu.compiling import Stages
    from frame.hal.source import Source

_ENTRY = "int64_t(*)(void *)"
_FREE_FRAMES = 4  # idle arenas that an executable keeps
_BINDINGS = 64  # symbol bindings whose offset tables are kept
_MAGIC = b"FRCPU4\0\0"


@dataclass(frozen=True, slots=True)
class Site:
    """One check of index values: the op, the declared node behind it, and what it expects."""

    op: str
    origin: int | None
    limit: str

    def error(self, position: int, value: int) -> BadIndexError:
        """Return what to tell the person whose data failed the check."""
        expected = f"a value from 0 to {self.limit} - 1"
        if self.limit.isdecimal():
            last = int(self.limit) - 1
            expected = f"a value from 0 to {last}" if last >= 0 else "none, as the axis is empty"
        return BadIndexError(
            self.op,
            f"the index at position {position} is {value}, expected {expected}; nothing was "
            "changed by this run",
            self.origin,
        )


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """One launch of the entry: its kernel, the declared nodes it stems from, and its work.

    `width` is the bytes of the widest floats that it computes with.
    """

    kernel: str
    origins: tuple[int, ...]
    flops: str = "0"
    bytes: str = "0"
    width: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """Everything that a run needs: objects of machine code, plan, checks and launches."""

    objects: tuple[bytes, ...]
    entry: str
    plan: MemoryPlan
    sites: tuple[Site, ...]
    launches: tuple[LaunchInfo, ...]
    cpu: tuple[str, ...] = ()
    """The architecture and the instruction sets that the code may use."""

    def to_bytes(self) -> bytes:
        """Return the artefact as bytes: a JSON header, then the objects."""
        header = {
            "entry": self.entry,
            "plan": self.plan.to_data(),
            "sites": [[s.op, s.origin, s.limit] for s in self.sites],
            "launches": [
                [i.kernel, list(i.origins), i.flops, i.bytes, i.width] for i in self.launches
            ],
            "cpu": list(self.cpu),
            "objects": [len(data) for data in self.objects],
        }
        text = json.dumps(header).encode()
        return b"".join((_MAGIC, struct.pack("<Q", len(text)), text, *self.objects))

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
                _cut(data[start + length :], header["objects"]),
                str(header["entry"]),
                MemoryPlan.from_data(header["plan"]),
                tuple(Site(*row) for row in header["sites"]),
                tuple(LaunchInfo(k, tuple(o), *work) for k, o, *work in header["launches"]),
                tuple(map(str, header["cpu"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"damaged artefact of the cpu backend: {error}") from error


def _cut(data: bytes, sizes: Sequence[int]) -> tuple[bytes, ...]:
    """Return the objects of the given sizes; raise ValueError unless they are all of the data."""
    if min(sizes) < 0 or sum(sizes) != len(data):
        raise ValueError(f"expected objects of {sum(sizes)} bytes, received {len(data)}")
    ends = tuple(accumulate(sizes))
    return tuple(data[end - size : end] for size, end in zip(sizes, ends, strict=True))


class CpuExecutable:
    """A compiled piece. Any number of threads may run it at once; one that updates state is locked.

    Inputs and outputs follow `signature`; the arrays of updated inputs are overwritten in place.
    """

    def __init__(
        self,
        artifact: Artifact,
        signature: Signature,
        stages: Stages | None = None,
    ) -> None:
        """Take the stages that the artefact was made by, for whoever looks into it."""
        self.signature = signature
        self.artifact = artifact
        self._stages = stages
        # Code for another CPU can be looked at and kept in files, but not run.
        self.missing = missing_features(artifact.cpu)
        self._loaded = None if self.missing else elf.load(*artifact.objects)
        self.inputs = tuple(PortCheck(port) for port in signature.inputs)
        self.outputs = tuple(PortCheck(port) for port in signature.outputs)
        self.symbols = signature.symbols
        self.updates = frozenset(signature.updates)
        self.frames: deque[Frame] = deque(maxlen=_FREE_FRAMES)
        self.lock = forks.lock()
        self._recyclers = tuple(Recycler([]) for _ in signature.outputs)
        self._bindings: OrderedDict[tuple[int, ...], Binding] = OrderedDict()
        self._bindings_lock = forks.lock()

    @cached_property
    def entry(self) -> Any:
        """The entry function.

        Raises:
            InvalidArgumentError: the code is for another CPU than this machine's.
        """
        if self._loaded is None:
            raise InvalidArgumentError(
                f"this code needs {', '.join(self.missing)}, which this machine does not have: "
                "compile with target='native' to run it here"
            )
        return FFI.cast(_ENTRY, self._loaded.symbol(self.artifact.entry))

    @cached_property
    def _plain(self) -> PreparedCall:
        return PreparedCall(self, {})

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
                They may share memory with inputs.
            stream: unused; the CPU runs at once.

        Raises:
            InvalidArgumentError: an input or output that does not fit the signature, or an index
                in the data that is out of range (nothing was changed then).
            OutOfMemoryError: the arena or an output could not be had.
        """
        return self._plain.run(inputs, outputs)

    def prepare(self, fixed: Mapping[int, Any]) -> PreparedCall:
        """Return the call with some inputs fixed, by position: checked now, and not again."""
        return PreparedCall(self, fixed)

    def run_with_profile(self, inputs: Sequence[Any], words: np.ndarray) -> dict[str, int]:
        """Run an artefact compiled for profiling; return the bindings of the symbols.

        `words` (int64, two a launch) receives nanoseconds and run counts.
        """
        arrays, binding = self._plain.checked(inputs)
        frame = self._plain.frame(binding)
        frame.context[8] = words.ctypes.data
        try:
            self._plain.run_bound(frame, arrays, binding)
        finally:
            frame.context[8] = 0
        return dict(zip(self.symbols, binding.values, strict=True))

    def new_frame(self) -> Frame:
        """Return the memory of one more call."""
        return Frame(len(self.inputs) + len(self.outputs), len(self.symbols))

    def binding(self, values: tuple[int, ...]) -> Binding:
        """Return what values of the symbols decide; the last ones used are kept.

        Raises:
            InvalidArgumentError: a constraint of the graph does not hold for them.
        """
        with self._bindings_lock:
            found = self._bindings.get(values)
            if found is None:
                found = self._bindings[values] = self._bind(values)
                if len(self._bindings) > _BINDINGS:
                    self._bindings.popitem(last=False)
            else:
                self._bindings.move_to_end(values)
            return found

    def _bind(self, values: tuple[int, ...]) -> Binding:
        bindings = dict(zip(self.symbols, values, strict=True))
        check_constraints(self.signature.constraints, bindings)
        table = None
        if values:
            offsets = self.artifact.plan.fill(bindings)
            size, table = offsets.arena_size, FFI.new("int64_t[]", list(offsets.offsets) or [0])
        else:
            size = self.artifact.plan.arena_size
        rows = []
        for word, check in enumerate(self.outputs, len(self.inputs)):
            shape = check.bound_shape(bindings)
            large = math.prod(shape) * check.dtype.itemsize >= RECYCLED_BYTES
            recycler = self._recyclers[word - len(self.inputs)] if large else None
            rows.append((word, shape, check.dtype, recycler, check.pointer))
        return Binding(values, size, table, tuple(rows))

    def profile(self, inputs: Sequence[Any]) -> list[KernelTime]:
        """Run once with the clock read around every launch; return the times in launch order.

        The inputs that a run updates are copied first, so profiling changes nothing.
        """
        return list(self._made_by.profiled(inputs))

    def source(self) -> Source:
        """Return the generated code by stage: `loop`, `llvm`, `assembly`."""
        return self._made_by.source()

    def kernels(self) -> tuple[KernelCode, ...]:
        """Return the kernels in the order of their first launches, each with its code."""
        origins: dict[str, dict[int, None]] = {}
        for info in self.artifact.launches:
            origins.setdefault(info.kernel, {}).update(dict.fromkeys(info.origins))
        sources = self._made_by.kernel_sources(tuple(origins))
        return tuple(KernelCode(name, tuple(origins[name]), sources[name]) for name in origins)

    @property
    def _made_by(self) -> Stages:
        if self._stages is None:
            raise InvalidArgumentError(
                "expected an executable that was compiled in this process, received one of a file "
                "or the cache, which has neither source nor profile"
            )
        return self._stages

    def serialize(self) -> bytes:
        """Return bytes from which `CpuBackend.deserialize` makes the executable again."""
        return self.artifact.to_bytes()
