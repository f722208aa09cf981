"""The cpu backend: groups to loop IR to LLVM IR to machine code in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from frame.backends.cpu.executable import Artifact, CpuExecutable, LaunchInfo, Site
from frame.backends.cpu.memory import HostAllocator, HostStream
from frame.backends.cpu.pool import get_pool
from frame.backends.cpu.target import code_features, host_target, named_target
from frame.codegen import lowering
from frame.codegen.emit import llvm as emitter
from frame.codegen.loops.printer import print_module
from frame.codegen.schedules import access, scalar_rules
from frame.codegen.schedules.registry import foreign_schedules, schedules
from frame.codegen.schedules.scalar_rules import foreign_rules
from frame.core.devices import Device
from frame.core.dtypes import DTYPES
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.fingerprint import Fingerprint
from frame.core.targets import TargetDescription
from frame.hal.interfaces import (
    API_VERSION,
    VOLATILE,
    ArtifactStore,
    Capabilities,
    GroupInfo,
    Piece,
    Signature,
)
from frame.ir.graph import Graph, Node
from frame.ops.anchors import ANCHORS
from frame.ops.record import Trait
from frame.ops.registry import lookup, records

_CONTROL = frozenset({"scan", "cond", "while"})
_STANDING = frozenset({"constant", "reshape", "group"})


class CpuBackend:
    """Compiles and runs pieces on the CPU of this machine."""

    name = "cpu"
    api_version = API_VERSION

    def devices(self) -> Sequence[Device]:
        """Return the one device `cpu:0`."""
        return (Device("cpu", 0),)

    def capabilities(self, target: TargetDescription) -> Capabilities:
        """Return the ops that have a scalar rule, an index rule or a schedule."""
        anchors = frozenset(schedules("cpu"))
        native = frozenset(r.name for r in records() if self._reason(r.name) is None)
        whole = (*scalar_rules.RULES, *access.INDEX_RULES, *anchors)
        composites = frozenset(name for name in whole if _is_composite(name))
        dtypes = frozenset(name for name, row in DTYPES.items() if not row.storage_only)
        return Capabilities(native, composites, anchors, True, dtypes)

    def target(self, name: str | None = None) -> TargetDescription:
        """Return the host's description, or that of a named CPU such as `x86-64-v3`."""
        return host_target() if name in (None, "native") else named_target(name or "native")

    def refused(self, graph: Graph, target: TargetDescription) -> Mapping[Node, str]:
        """Return the nodes that neither a rule nor a schedule covers."""
        found: dict[Node, str] = {}
        for node in graph.nodes:
            reason = self._reason(node.op)
            for _, body in node.bodies:
                if reason is None and (inner := self.refused(body, target)):
                    reason = f"its body holds {next(iter(inner)).op}: {next(iter(inner.values()))}"
            if reason is not None:
                found[node] = reason
        return found

    def _reason(self, op: str) -> str | None:
        known = (
            op in scalar_rules.RULES
            or op in access.INDEX_RULES
            or op in _CONTROL
            or op in _STANDING
            or op in schedules("cpu")
            or _anchor(op) in schedules("cpu")
        )
        return None if known else "no scalar rule and no schedule for this op"

    def group_info(self, group: Node, target: TargetDescription) -> GroupInfo:
        """Return what the schedule of a group, or a control-flow node, needs of the planner."""
        if group.op != "group":
            return GroupInfo(workspaces=lowering.control_workspaces(group))
        schedule = schedules("cpu")[group.attributes["anchor"]]
        body = group.attributes["body"]
        return GroupInfo(
            schedule.workspaces(body, target),
            schedule.overwritable(body),
            schedule.layouts(body, target),
        )

    def source_hash(self) -> str:
        """Return a digest of the sources of code generation and this backend, and of the scalar
        rules and schedules that users have registered."""
        foreign = (foreign_rules(), foreign_schedules("cpu"))
        if not any(foreign):
            return _source_hash()
        user = Fingerprint()
        user.add(foreign)
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
        stages = Stages(piece, target)
        return CpuExecutable(stages.artifact(), piece.signature, stages.sources(), stages.profiled)

    def deserialize(self, data: bytes, signature: Signature, store: ArtifactStore) -> CpuExecutable:
        """Rebuild an executable from the bytes of `serialize`."""
        get_pool(store)
        return CpuExecutable(Artifact.from_bytes(data), signature)

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


def _anchor(op: str) -> str:
    if Trait.REDUCTION in lookup(op).traits:
        return "reduction"
    return ANCHORS.get(op, op)


def _is_composite(name: str) -> bool:
    try:
        return lookup(name).decomposition is not None
    except KeyError:
        return False


@cache
def _source_hash() -> str:
    import frame.codegen

    digest = hashlib.sha256()
    roots = [Path(next(iter(frame.codegen.__path__))), Path(__file__).resolve().parent]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Stages:
    """The texts of one piece, made when asked for."""

    def __init__(self, piece: Piece, target: TargetDescription) -> None:
        if piece.plan is None:
            raise InternalError(f"the piece {piece.graph.name} comes without a memory plan")
        self.piece = piece
        self.plan = piece.plan
        self.target = target

    @property
    def lowered(self) -> lowering.Lowered:
        """The loop module of the piece."""
        piece = self.piece
        return lowering.lower_piece(piece.graph, self.plan, piece.signature.symbols, self.target)

    def artifact(self, profile: bool = False) -> Artifact:
        """Compile the piece."""
        from frame.backends.cpu.llvm import compile_ir

        lowered = self.lowered
        text = emitter.emit_module(lowered.module, self.target, profile)
        code = compile_ir(text, self.target)
        sites = tuple(
            Site(check.node.op, str(self.piece.graph.location(check.node)), str(check.limit))
            for check in lowered.checks
        )
        return Artifact(
            code,
            emitter.entry_symbol(lowered.module),
            self.plan,
            sites,
            tuple(_launch_info(site) for site in lowered.launches),
            code_features(self.target),
        )

    def sources(self) -> dict[str, Callable[[], str]]:
        """Return the makers of each stage's text."""
        return {"loop": self._loop, "llvm": self._llvm, "assembly": self._assembly}

    def _loop(self) -> str:
        return print_module(self.lowered.module)

    def _llvm(self) -> str:
        return emitter.emit_module(self.lowered.module, self.target)

    def _assembly(self) -> str:
        from frame.backends.cpu.llvm import assembly

        return assembly(self._llvm(), self.target)

    def profiled(self, inputs: Sequence[Any]) -> Any:
        """Run once with the clock read around every launch."""
        from frame.backends.cpu.profile import run_profiled

        return run_profiled(self.artifact(profile=True), self.piece.signature, inputs)


def _launch_info(site: lowering.LaunchSite) -> LaunchInfo:
    origins = dict.fromkeys(node.origin for node in site.nodes if node.origin is not None)
    return LaunchInfo(site.kernel, tuple(origins), str(site.work.flops), str(site.work.bytes))
