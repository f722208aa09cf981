"""The compiling half of the cpu backend: groups to loop IR to LLVM IR to machine code.

A process that finds its artefacts in the cache never imports this module, nor code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from frame.backends.cpu.executable import Artifact, CpuExecutable, LaunchInfo, Site
from frame.backends.cpu.llvm import assembly, functions_of
from frame.backends.cpu.objects import compile_parts
from frame.backends.cpu.target import code_features
from frame.codegen import lowering
from frame.codegen.emit import llvm as emitter
from frame.codegen.loops.ir import Module
from frame.codegen.loops.printer import print_kernel, print_module
from frame.codegen.loops.traverse import called_kernels
from frame.codegen.schedules import access, scalar_rules
from frame.codegen.schedules.registry import schedule_of, schedules
from frame.core.dtypes import DTYPES
from frame.core.errors import InternalError
from frame.core.forks import cached_property
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Capabilities, GroupInfo, Piece
from frame.hal.source import Source
from frame.ir.graph import Graph, Node
from frame.ops.anchors import ANCHORS
from frame.ops.record import Trait
from frame.ops.registry import loaded_records, lookup

_CONTROL = frozenset({"scan", "cond", "while"})
_STANDING = frozenset({"constant", "reshape", "group"})


def capabilities() -> Capabilities:
    """Return the ops that have a scalar rule, an index rule or a schedule."""
    anchors = frozenset(schedules("cpu"))
    whole = {*scalar_rules.RULES, *access.INDEX_RULES, *anchors}
    # Families that are not loaded have composites only: whoever uses one of their ops loads it.
    native = frozenset(r.name for r in loaded_records() if _reason(r.name) is None)
    composites = frozenset(name for name in native & whole if lookup(name).decomposition)
    dtypes = frozenset(name for name, row in DTYPES.items() if not row.storage_only)
    return Capabilities(native, composites, anchors, True, dtypes)


def refused(graph: Graph) -> Mapping[Node, str]:
    """Return the nodes that neither a rule nor a schedule covers, each with the reason."""
    found: dict[Node, str] = {}
    for node in graph.nodes:
        reason = _reason(node.op)
        for _, body in node.bodies:
            if reason is None and (inner := refused(body)):
                reason = f"its body holds {next(iter(inner)).op}: {next(iter(inner.values()))}"
        if reason is not None:
            found[node] = reason
    return found


def _reason(op: str) -> str | None:
    known = (
        op in scalar_rules.RULES
        or op in access.INDEX_RULES
        or op in _CONTROL
        or op in _STANDING
        or op in schedules("cpu")
        or _anchor(op) in schedules("cpu")
    )
    return None if known else "no scalar rule and no schedule for this op"


def _anchor(op: str) -> str:
    if Trait.REDUCTION in lookup(op).traits:
        return "reduction"
    return ANCHORS.get(op, op)


def group_info(group: Node, target: TargetDescription) -> GroupInfo:
    """Return what the schedule of a group, or a control-flow node, needs of the planner."""
    if group.op != "group":
        return GroupInfo(workspaces=lowering.control_workspaces(group))
    schedule, body = schedule_of(group), group.attributes["body"]
    return GroupInfo(
        schedule.workspaces(body, target),
        schedule.overwritable(body),
        schedule.layouts(body, target),
        schedule.repeated(body, target),
    )


def variants(group: Node, target: TargetDescription) -> tuple[str, ...]:
    """Return the variants of the schedule of a group: those that give the very same bits."""
    return schedule_of(group).variants(group.attributes["body"], target)


def compile_piece(piece: Piece, target: TargetDescription) -> CpuExecutable:
    """Turn a piece into an executable; raise UnimplementedError as `CpuBackend.compile`."""
    stages = Stages(piece, target)
    return CpuExecutable(stages.artifact(), piece.signature, stages)


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
        lowered = self.lowered
        parts = emitter.emit_parts(lowered.module, self.target, profile)
        sites = tuple(
            Site(check.node.op, check.origin, str(check.limit)) for check in lowered.checks
        )
        return Artifact(
            compile_parts(parts, self.target),
            emitter.entry_symbol(lowered.module),
            self.plan,
            sites,
            tuple(_launch_info(site) for site in lowered.launches),
            code_features(self.target),
        )

    def source(self) -> Source:
        """Return the texts of the whole piece."""
        return _whole_source(f"piece {self.piece.graph.name}", *self._texts())

    def kernel_sources(self, names: Sequence[str]) -> dict[str, Source]:
        """Return the texts of each kernel alone, with the kernels that it calls.

        The piece is lowered and compiled once for all of them, when the first text is read: LLVM
        fits functions to those that call them, so a kernel compiled alone would be another one.
        """
        texts = self._texts()
        return {name: _kernel_source(name, self.target, *texts) for name in names}

    def _texts(self) -> tuple[Callable[[], Module], Callable[[], str], Callable[[], str]]:
        """Return the makers of module, LLVM IR and assembly, each of which works once.

        Where the artefact has several objects, their texts follow each other.
        """
        module = cache(lambda: self.lowered.module)
        parts = cache(lambda: emitter.emit_parts(module(), self.target))

        def machine() -> str:
            made = (assembly(part.text, self.target, others=part.others) for part in parts())
            return "\n".join(made)

        return module, lambda: "\n".join(part.text for part in parts()), cache(machine)

    def profiled(self, inputs: Sequence[Any]) -> Any:
        """Run once with the clock read around every launch."""
        from frame.backends.cpu.profile import run_profiled

        return run_profiled(self._clocked, inputs)

    @cached_property
    def _clocked(self) -> CpuExecutable:
        """The piece with clock reads, which are compiled in; kept for the next profile."""
        return CpuExecutable(self.artifact(profile=True), self.piece.signature)


def _launch_info(site: lowering.LaunchSite) -> LaunchInfo:
    # Equal constants are one node, whose origin is that of the first user: it says nothing here.
    nodes = [node for node in site.nodes if node.op != "constant"] or site.nodes
    origins = dict.fromkeys(node.origin for node in nodes if node.origin is not None)
    work = site.work
    return LaunchInfo(site.kernel, tuple(origins), str(work.flops), str(work.bytes), work.width)


def _whole_source(
    title: str, module: Callable[[], Module], llvm: Callable[[], str], text: Callable[[], str]
) -> Source:
    return Source(title, {"loop": lambda: print_module(module()), "llvm": llvm, "assembly": text})


def _kernel_source(
    name: str,
    target: TargetDescription,
    module: Callable[[], Module],
    llvm: Callable[[], str],
    text: Callable[[], str],
) -> Source:
    def machine() -> str:
        symbols = emitter.kernel_symbols(module())
        called = [symbols[kernel.name] for kernel in called_kernels(module(), name)]
        return functions_of(text(), [f"{symbol}.body" for symbol in called] + [symbols[name]])

    makers = {
        "loop": lambda: "\n".join(map(print_kernel, called_kernels(module(), name))),
        "llvm": lambda: emitter.emit_kernel(module(), target, name),
        "assembly": machine,
    }
    return Source(f"kernel {name}", makers)
