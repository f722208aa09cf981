"""Compile a graph by hand through fusion, planning and lowering, without the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frame.backends.cpu.backend import CpuBackend
from frame.backends.cpu.compiling import Stages
from frame.backends.cpu.executable import CpuExecutable
from frame.codegen import lowering
from frame.compiler.passes.operator_fusion import fuse, inline_groups
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Piece, Port, Signature
from frame.ir.check_plan import check_plan
from frame.ir.graph import Graph
from frame.ir.plan import plan_memory
from frame.ir.verify import verify
from frame.ops.binding import constraints


class NoStore:
    """A store that keeps nothing."""

    def get(self, key: str) -> bytes | None:
        return None

    def put(self, key: str, data: bytes) -> None:
        return None


@dataclass(frozen=True)
class Compiled:
    """A piece with everything that was made from it."""

    piece: Piece
    target: TargetDescription

    @property
    def lowered(self) -> lowering.Lowered:
        return Stages(self.piece, self.target).lowered

    def executable(self) -> CpuExecutable:
        return CpuBackend().compile(self.piece, self.target, {}, NoStore())


def make_piece(graph: Graph, target: TargetDescription | None = None) -> Compiled:
    """Fuse, plan and freeze a graph of primitive ops."""
    backend = CpuBackend()
    target = target or backend.target()
    anchors = backend.capabilities(target).anchors
    fused = fuse(inline_groups(graph), anchors)
    verify(fused)
    infos = {}
    _collect(fused, backend, target, infos)
    workspaces = {node: info.workspaces for node, info in infos.items() if info.workspaces}
    overwritable = {node: info.overwritable for node, info in infos.items() if info.overwritable}
    views = {}
    _collect_views(fused, views)
    plan = plan_memory(fused, workspaces, overwritable, views)
    bindings = dict.fromkeys(fused.symbols, 4)  # any value: the plan must hold for all
    check_plan(
        fused,
        plan,
        bindings=bindings,
        workspaces=workspaces,
        overwritable=overwritable,
        views=views,
    )
    inputs = tuple(Port(e.name, e.value.type, e.role) for e in fused.inputs)
    names = fused.output_names or tuple(f"output{i}" for i in range(len(fused.outputs)))
    outputs = tuple(Port(n, v.type) for n, v in zip(names, fused.outputs, strict=True))
    updates = tuple(update.input_index for update in fused.updates)
    signature = Signature(inputs, outputs, fused.symbols, updates, constraints(graph))
    return Compiled(Piece(fused, plan, signature), target)


def _collect(graph: Graph, backend: CpuBackend, target: TargetDescription, infos: dict) -> None:
    for node in graph.nodes:
        if node.op == "group" or any(node.bodies):
            infos[node] = backend.group_info(node, target)
        if node.op != "group":
            for _, body in node.bodies:
                _collect(body, backend, target, infos)


def _collect_views(graph: Graph, views: dict) -> None:
    for node in graph.nodes:
        if node.op == "reshape":
            views[node.results[0]] = node.operands[0]
        if node.op != "group":
            for _, body in node.bodies:
                _collect_views(body, views)


def run(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile a graph of primitive ops and run it."""
    return make_piece(graph).executable().run(list(arrays))
