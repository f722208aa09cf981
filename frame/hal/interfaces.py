"""The interfaces between the runtime and a device backend. No code of either side stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from frame.core.dataclass import dataclass
from frame.core.devices import Device
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.constraints import Constraint
from frame.ir.graph import Graph, Node, Role, TensorType

if TYPE_CHECKING:
    from frame.hal.source import Source
    from frame.ir.memory import MemoryPlan

API_VERSION = 1

VOLATILE = "volatile:"
"""How the `source_hash` of a backend begins that holds for this process alone, such as one with a
rule of the user that can't be hashed: nothing that depends on it is then kept on disk."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a piece: its name, type and role."""

    name: str
    type: TensorType
    role: Role = Role.INPUT


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a piece, its symbols, and which outputs overwrite which input.

    `updates[i] = (input, output)`: output `output` is written into the memory of input `input`
    and is not returned.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[str, ...] = ()
    updates: tuple[int, ...] = ()  # input positions that the run overwrites
    constraints: tuple[Constraint, ...] = ()  # what the values of the symbols must meet


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a backend compiles: a graph (of groups, where it has anchors), plan and signature."""

    graph: Graph
    plan: MemoryPlan | None
    signature: Signature


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, as data.

    `native`: ops (or group anchors) that it runs; `composites`: ops that it takes whole, so that
    canonicalize must not decompose them; `anchors`: the anchor kinds that operator_fusion may make
    groups of (empty: no groups); `symbols`: whether shapes may stay symbolic; `dtypes`: names;
    `donation`: whether it writes the new values of updated inputs in place (else it gets no
    updates, and the runtime takes those values as further outputs).
    """

    native: frozenset[str]
    composites: frozenset[str] = frozenset()
    anchors: frozenset[str] = frozenset()
    symbols: bool = True
    dtypes: frozenset[str] = frozenset()
    donation: bool = True


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What the planner and layout_assignment must know of one group on one target.

    `workspaces`: sizes in bytes; `overwritable`: operand positions whose memory the first result
    may take; `layouts`: preferred layout by operand position; `repeated`: the operands of those
    whose layout pays even where every run makes it again.
    """

    workspaces: tuple[Size, ...] = ()
    overwritable: tuple[tuple[int, int], ...] = ()  # (result, operand) pairs
    layouts: Mapping[int, Any] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one launch: kernel name, declared node indices, seconds, flops and bytes.

    `width` is the bytes of the numbers that the operations work on: 8 for float64, else 4.
    """

    kernel: str
    origins: tuple[int, ...]
    seconds: float
    flops: int = 0
    bytes: int = 0
    width: int = 4


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel: its name in profiles, the declared nodes that its launches stem from, its code."""

    kernel: str
    origins: tuple[int, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that all threads reach together, as measured on this machine.

    `flops`: operations a second of float32 multiply-adds, each of which counts two. `bandwidths`:
    (bytes, bytes a second) of each level of memory: what takes at most so many bytes moves at that
    rate. The last one is main memory and has no limit (0).
    """

    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def bandwidth(self, size: int) -> float:
        """Return the bytes a second at which `size` bytes can move."""
        for limit, rate in self.bandwidths:
            if size <= limit or not limit:
                return rate
        return self.bandwidths[-1][1]

    def seconds(self, flops: int, size: int, width: int = 4) -> float:
        """Return the least time of a kernel, the roofline: its operations or its bytes alone."""
        return max(flops / (self.flops * 4 / max(width, 4)), size / self.bandwidth(size))


@runtime_checkable
class ArtifactStore(Protocol):
    """Where a backend keeps compiled binaries; the runtime's level-2 cache implements it."""

    def get(self, key: str) -> bytes | None:
        """Return the artefact, or None when there is no sound one."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an artefact; never raises because of the store's state."""


@runtime_checkable
class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Tell whether the point has been reached (true for an event never recorded)."""

    def synchronize(self) -> None:
        """Wait until the point has been reached."""


@runtime_checkable
class Stream(Protocol):
    """An in-order queue of work on one device."""

    @property
    def device(self) -> Device:
        """The device."""

    def record(self) -> Event:
        """Return an event for all work queued so far."""

    def wait(self, event: Event) -> None:
        """Let later work of this stream start only after `event`."""

    def synchronize(self) -> None:
        """Wait for all queued work; raise what it failed with."""


@runtime_checkable
class Allocator(Protocol):
    """Device memory."""

    def allocate(self, size: int, alignment: int = 64) -> Any:
        """Return a storage of `size` bytes; raise OutOfMemoryError."""

    def free(self, storage: Any) -> None:
        """Return a storage to the allocator; no queued work may use it any more.

        A storage that is dropped instead goes with its last reference.
        """


@runtime_checkable
class Executable(Protocol):
    """A compiled piece.

    One whose code is a number of kernels may also have `kernels() -> Sequence[KernelCode]`, in the
    order of their first launches: `model.source(node)` is made from it.
    """

    @property
    def signature(self) -> Signature:
        """The inputs and outputs."""

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        stream: Stream | None = None,
    ) -> Sequence[Any]:
        """Run on arrays of this backend's storages; return the outputs (updates excluded).

        Raises:
            InvalidArgumentError: on a wrong count, dtype or shape, and on a bad index in the data.
        """

    def profile(self, inputs: Sequence[Any]) -> Sequence[KernelTime]:
        """Run once and return the time of each launch, in order."""

    def source(self) -> Mapping[str, str]:
        """Return the generated code by stage name (`loop`, `llvm`, `assembly`, ...).

        A `Source` makes each text when it is read.
        """

    def serialize(self) -> bytes:
        """Return bytes from which `Backend.deserialize` makes the executable again."""


@runtime_checkable
class Backend(Protocol):
    """A device backend. Found through the entry-point group `frame.backends` as a factory.

    One that can measure its device may also have `peaks(store: ArtifactStore) -> Peaks`, for the
    share of the roofline in profiles; what it measured is kept in `store`. One whose schedules can
    be tuned has `variants(group, target) -> Sequence[str]`: the values of a group's attribute
    `variant` that give the very same bits as the group without it; and `tuning_context() -> str`:
    what the fastest one depends on beside group, target and the backend's code, such as threads.
    """

    name: str
    api_version: int

    def devices(self) -> Sequence[Device]:
        """Return the devices that can be used now; empty when there is none."""

    def capabilities(self, target: TargetDescription) -> Capabilities:
        """Return what the backend can do on `target`."""

    def target(self, name: str | None = None) -> TargetDescription:
        """Return a target by name; None means the one of the first device or the host."""

    def refused(self, graph: Graph, target: TargetDescription) -> Mapping[Node, str]:
        """Return the nodes that the backend can't run, with the reason."""

    def group_info(self, group: Node, target: TargetDescription) -> GroupInfo:
        """Return workspace sizes, overwritable operands and preferred layouts of a group."""

    def source_hash(self) -> str:
        """Return a digest of the backend's code and compiler versions, for cache keys.

        One that begins with `VOLATILE` holds for this process alone.
        """

    def allocator(self, device: Device) -> Allocator:
        """Return the allocator of a device."""

    def stream(self, device: Device) -> Stream:
        """Return a new stream."""

    def upload(self, array: Any, device: Device, stream: Stream | None = None) -> Any:
        """Copy a host array to the device; return the storage.

        The array must not change before the stream has got there; without a stream the copy is
        done when the call returns.
        """

    def download(self, storage: Any, stream: Stream | None = None) -> Any:
        """Copy a storage to a new host array.

        Return the array, or an object whose `__array__` gives it, good once the stream has got
        there; without a stream the copy is done when the call returns.
        """

    def copy(self, storage: Any, device: Device, stream: Stream | None = None) -> Any:
        """Copy between two devices of this backend."""

    def compile(
        self,
        piece: Piece,
        target: TargetDescription,
        options: Mapping[str, Any],
        store: ArtifactStore,
    ) -> Executable:
        """Turn a piece into an executable; never plans again.

        Raises:
            UnimplementedError: carrying the nodes that can't be compiled.
        """

    def deserialize(self, data: bytes, signature: Signature, store: ArtifactStore) -> Executable:
        """Rebuild an executable from `Executable.serialize` bytes; raise InvalidArgumentError.

        Such an executable need not have `profile` or `source`.
        """

    def doctor(self) -> Mapping[str, str]:
        """Return named facts about the state of the backend, for people."""
