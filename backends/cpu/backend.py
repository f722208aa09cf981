"""The cpu backend: groups to loop IR to LLVM IR to machine code in this process."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.backends.cpu.executable import Artifact, CpuExecutable
from frame.backends.cpu.pool import get_pool
from frame.backends.cpu.target import host_target, named_target
from frame.codegen.foreign import foreign_rules, foreign_schedules
from frame.core import config, philox
from frame.core.devices import Device
from frame.core.errors import InvalidArgumentError
from frame.core.fingerprint import Fingerprint
from frame.core.sources import tree_digest
from frame.core.targets import TargetDescription
from frame.hal.host import HostAllocator, HostStream
from frame.hal.interfaces import (
    API_VERSION,
    VOLATILE,
    ArtifactStore,
    Capabilities,
    GroupInfo,
    Peaks,
    Piece,
    Signature,
)
from frame.ir.graph import Graph, Node

if TYPE_CHECKING:
    from types import ModuleType


class CpuBackend:
    """Compiles and runs pieces on the CPU of this machine."""

    name = "cpu"
    api_version = API_VERSION

    def devices(self) -> Sequence[Device]:
        """Return the one device `cpu:0`."""
        return (Device("cpu", 0),)

    def capabilities(self, target: TargetDescription) -> Capabilities:
        """Return the ops that have a scalar rule, an index rule or a schedule."""
        return _compiling().capabilities()

    def target(self, name: str | None = None) -> TargetDescription:
        """Return the host's description, or that of a named CPU such as `x86-64-v3`."""
        return host_target() if name in (None, "native") else named_target(name or "native")

    def refused(self, graph: Graph, target: TargetDescription) -> Mapping[Node, str]:
        """Return the nodes that neither a rule nor a schedule covers."""
        return _compiling().refused(graph)

    def group_info(self, group: Node, target: TargetDescription) -> GroupInfo:
        """Return what the schedule of a group, or a control-flow node, needs of the planner."""
        return _compiling().group_info(group, target)

    def variants(self, group: Node, target: TargetDescription) -> Sequence[str]:
        """Return the variants of the schedule of a group that give the very same bits."""
        variants: Sequence[str] = _compiling().variants(group, target)
        return variants

    def tuning_context(self) -> str:
        """Return the number of threads, for which schedules are tuned."""
        from frame.backends.cpu.threads import default_threads

        return f"{default_threads()} threads"

    def source_hash(self) -> str:
        """Return a digest of the sources of code generation and this backend, of the scalar rules
        and schedules that users have registered, and of the settings that schedules read."""
        foreign = (foreign_rules(), foreign_schedules("cpu"))
        read = (config.get("FRAME_GRAIN"), config.get("FRAME_WINOGRAD"))
        if read == (None, "1") and not any(foreign):
            return _source_hash()
        user = Fingerprint()
        user.add((foreign, read))
        digest = hashlib.sha256((_source_hash() + user.text()).encode()).hexdigest()
        return digest if user.exact else f"{VOLATILE}{digest}"

    def allocator(self, device: Device) -> HostAllocator:
        """Return the allocator of host memory."""
        return HostAllocator()

    def stream(self, device: Device) -> HostStream:
        """Return a stream; work on the CPU is done when the call returns."""
        return HostStream(device)

    def upload(self, array: Any, device: Device, stream: Any = None) -> np.ndarray:
        """Return the array: host memory is the device's memory."""
        return np.asarray(array)

    def download(self, storage: Any, stream: Any = None) -> np.ndarray:
        """Return a copy of a storage as an array."""
        return np.array(storage)

    def copy(self, storage: Any, device: Device, stream: Any = None) -> np.ndarray:
        """Return a copy of a storage."""
        return np.array(storage)

    def compile(
        self,
        piece: Piece,
        target: TargetDescription,
        options: Mapping[str, Any],
        store: ArtifactStore,
    ) -> CpuExecutable:
        """Turn a piece into an executable.

        Raises:
            UnimplementedError: carrying the nodes that no schedule takes.
            InvalidArgumentError: an option is given; this backend has none.
        """
        if options:
            raise InvalidArgumentError(
                f"the cpu backend has no options, received {', '.join(map(repr, options))}; "
                "target= chooses instruction sets, FRAME_NUM_THREADS the threads"
            )
        get_pool(store)
        return _compiling().compile_piece(piece, target)

    def deserialize(self, data: bytes, signature: Signature, store: ArtifactStore) -> CpuExecutable:
        """Rebuild an executable from the bytes of `serialize`."""
        get_pool(store)
        return CpuExecutable(Artifact.from_bytes(data), signature)

    def peaks(self, store: ArtifactStore) -> Peaks:
        """Return what all threads reach on this machine; measured once, then from the store."""
        from frame.backends.cpu.peaks import machine_peaks

        return machine_peaks(store)

    def doctor(self) -> Mapping[str, str]:
        """Return the CPU, its features and the size of the thread pool."""
        from frame.backends.cpu.threads import default_threads

        target = host_target()
        return {
            "cpu": target.cpu,
            "vector bits": str(target.vector_bits),
            "features": " ".join(target.features),
            "threads": str(default_threads()),
        }


def _load_random_numbers(store: philox.Store | None) -> philox.Native | None:
    from frame.backends.cpu import random_numbers

    return random_numbers.load(store)


philox.set_native(_load_random_numbers)


def _compiling() -> ModuleType:
    """Return the compiling half, which imports all of code generation: only a miss needs it."""
    from frame.backends.cpu import compiling

    return compiling


@cache
def _source_hash() -> str:
    import frame.codegen

    own = os.path.dirname(os.path.realpath(__file__))
    return tree_digest((next(iter(frame.codegen.__path__)), own))
