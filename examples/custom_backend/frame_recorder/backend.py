"""The backend: what frame asks of a device, as `frame.hal.interfaces.Backend` says it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from frame.core.devices import Device
from frame.core.dtypes import DTYPES
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.core.targets import TargetDescription
from frame.hal.interfaces import (
    API_VERSION,
    ArtifactStore,
    Capabilities,
    GroupInfo,
    Piece,
    Signature,
)
from frame.ir.graph import Graph, Node
from frame.ops.registry import records
from frame_recorder import device as memory
from frame_recorder.device import Allocator, Buffer, Machine, Operation, Stream, require_buffer
from frame_recorder.executable import RecorderExecutable, read


class RecorderBackend:
    """An asynchronous device in numpy.

    Args:
        refuse: ops that `refused` names, so that they never come to `compile`.
        reject: ops that `refused` lets pass and `compile` then can't do.
        composites: composite ops that it takes whole.
        symbols: whether shapes may stay symbolic.
        donation: whether it writes updated state in place.
        count: how many devices there are.
        name: the name of the backend.
    """

    api_version = API_VERSION

    def __init__(
        self,
        refuse: Collection[str] = (),
        reject: Collection[str] = (),
        composites: Collection[str] = (),
        *,
        symbols: bool = True,
        donation: bool = True,
        count: int = 1,
        name: str = "recorder",
    ) -> None:
        self.name = name
        self.machine = Machine()
        self.compiled: list[Piece] = []
        self._refuse, self._reject = frozenset(refuse), frozenset(reject)
        self._composites = frozenset(composites)
        self._symbols, self._donation, self._count = symbols, donation, count

    @property
    def log(self) -> list[Operation]:
        """The operations that have run, in order."""
        return self.machine.log

    def devices(self) -> Sequence[Device]:
        """Return the devices."""
        return tuple(Device(self.name, index) for index in range(self._count))

    def capabilities(self, target: TargetDescription) -> Capabilities:
        """Return that every op that has a reference runs; there are no groups."""
        return Capabilities(
            native=frozenset(record.name for record in records()) - self._refuse,
            composites=self._composites,
            symbols=self._symbols,
            dtypes=frozenset(DTYPES),
            donation=self._donation,
        )

    def target(self, name: str | None = None) -> TargetDescription:
        """Return the one target, named like the backend.

        Raises:
            NotFoundError: there is no target of that name.
        """
        if name not in (None, "native", self.name):
            raise NotFoundError(f"{self.name} has no target {name!r}, only {self.name!r}")
        return TargetDescription(self.name, "numpy", "numpy", symbols=self._symbols)

    def refused(self, graph: Graph, target: TargetDescription) -> Mapping[Node, str]:
        """Return the nodes of refused ops, and those whose bodies hold one."""
        return {node: "it refuses this op" for node in graph.nodes if _holds(node, self._refuse)}

    def group_info(self, group: Node, target: TargetDescription) -> GroupInfo:
        """Return nothing: there are no groups."""
        return GroupInfo()

    def source_hash(self) -> str:
        """Return a digest of the sources and of the settings, which decide what is compiled."""
        settings = (sorted(self._refuse), sorted(self._reject), sorted(self._composites))
        digest = hashlib.sha256(repr((*settings, self._symbols, self._donation)).encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def allocator(self, device: Device) -> Allocator:
        """Return the allocator of a device."""
        return Allocator(self.machine, device)

    def stream(self, device: Device) -> Stream:
        """Return a new stream."""
        return Stream(self.machine, device)

    def upload(self, array: Any, device: Device, stream: Stream | None = None) -> Buffer:
        """Copy a host array to a device; without a stream wait for it."""
        work = stream or self.stream(device)
        made = memory.upload(self.machine, array, device, work)
        if stream is None:
            work.synchronize()
        return made

    def download(self, storage: Any, stream: Stream | None = None) -> Any:
        """Copy a buffer to the host: an object whose `__array__` is good after a wait."""
        buffer = require_buffer(storage)
        work = stream or self.stream(buffer.device)
        made = memory.download(self.machine, buffer, work)
        if stream is None:
            work.synchronize()
        return made

    def copy(self, storage: Any, device: Device, stream: Stream | None = None) -> Buffer:
        """Copy between two devices; without a stream wait for it."""
        work = stream or self.stream(device)
        made = memory.copy(self.machine, require_buffer(storage), device, work)
        if stream is None:
            work.synchronize()
        return made

    def compile(
        self,
        piece: Piece,
        target: TargetDescription,
        options: Mapping[str, Any],
        store: ArtifactStore,
    ) -> RecorderExecutable:
        """Turn a piece into an executable.

        Raises:
            InvalidArgumentError: an option is given; there is none.
            UnimplementedError: carrying the nodes of rejected ops.
        """
        if unknown := set(options):
            raise InvalidArgumentError(f"{self.name} has no option {sorted(unknown)[0]!r}")
        bad = tuple(node for node in piece.graph.nodes if _holds(node, self._reject))
        if bad:
            raise UnimplementedError(f"{self.name} can't compile {bad[0].op}", nodes=bad)
        self.compiled.append(piece)
        device = Device(self.name, 0)
        return RecorderExecutable(self.machine, device, piece.graph, piece.signature)

    def deserialize(
        self, data: bytes, signature: Signature, store: ArtifactStore
    ) -> RecorderExecutable:
        """Rebuild an executable; raise InvalidArgumentError."""
        return read(data, self.machine, signature)

    def doctor(self) -> Mapping[str, str]:
        """Return how many devices there are."""
        return {"devices": str(self._count), "memory": "numpy arrays that the host can't read"}


def _holds(node: Node, ops: Collection[str]) -> bool:
    """Whether a node or one in its bodies is of some ops."""
    if node.op in ops:
        return True
    return any(_holds(inner, ops) for _, body in node.bodies for inner in body.nodes)
