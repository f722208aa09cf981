"""Compilation as a list of named pure stages: Declared -> Keyed -> Planned -> Manifest -> Loaded.

    Declared   the graph as the user declared it, and what to make of it
    Keyed      the level-1 key, taken before autocast and backward
    Planned    pieces that are ready for their backends, after all passes
    Manifest   plain data: everything but the machine code
    Loaded     programs with executables

A level-1 hit goes from the key to the manifest and the artefacts and runs no pass: that half, with
the stages Declared, Keyed and Loaded, is `frame.runtime.loading`. Here is what a miss needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from frame.compiler.pass_manager import Instrument
from frame.compiler.pipeline import compile_graph, simplify_graph
from frame.core.devices import Device
from frame.core.errors import UnimplementedError
from frame.hal.interfaces import Executable, Piece, Port, Signature
from frame.ir.graph import Graph, Node
from frame.ir.printer import print_graph
from frame.ops.binding import constraints
from frame.runtime import fallback, statistics
from frame.runtime.backends import backend
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, Loaded
from frame.runtime.manifest import Manifest, PiecePlan, ProgramPlan, Refusal, assemble
from frame.runtime.partition import NUMPY, cut
from frame.runtime.program import Program, RunStep


@dataclass(frozen=True, eq=False)
class PlannedProgram:
    """A program plan and the pieces behind it, in the same order."""

    plan: ProgramPlan
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class Planned:
    """The result of all passes."""

    run: PlannedProgram
    load: PlannedProgram | None = None
    derived: tuple[int, ...] = ()
    refused: tuple[Refusal, ...] = ()


def plan(declared: Declared) -> Planned:
    """Run all passes: the declared graph becomes pieces of the target, or of several backends."""
    graph = declared.graph
    if declared.transform is not None:
        graph = declared.transform.apply(graph)
    owner, target = backend(declared.backend), declared.on
    capabilities = owner.capabilities(target)
    simple = simplify_graph(graph, target, capabilities, declared.passes, _watchers(declared))
    refused = owner.refused(simple, target)
    if not refused:
        try:
            return _plan_whole(declared, simple)
        except UnimplementedError as error:
            refused = {node: str(error) for node in error.nodes if isinstance(node, Node)}
            if not refused:
                raise
    return _plan_pieces(declared, simple, refused)


def _watchers(declared: Declared) -> tuple[Instrument, ...]:
    return (*declared.instruments, statistics.PassCounter())


def _plan_whole(declared: Declared, graph: Graph) -> Planned:
    owner, target = backend(declared.backend), declared.on
    compiled = compile_graph(
        graph,
        target,
        owner.capabilities(target),
        owner.group_info,
        declared.passes,
        _watchers(declared),
        declared.graph,
    )
    device = Device(declared.backend, 0)
    run = _one_piece(declared, compiled.run, device)
    if compiled.load is None:
        return Planned(run)
    derived = tuple(source.index for source in compiled.run_sources if source.derived)
    return Planned(run, _one_piece(declared, compiled.load, device), derived)


def _one_piece(declared: Declared, piece: Piece, device: Device) -> PlannedProgram:
    signature = piece.signature
    key = artifact_key(piece, device, declared)
    count = len(signature.inputs)
    outputs = tuple(range(count, count + len(signature.outputs)))
    step = RunStep(0, tuple(range(count)), outputs)
    piece_plan = PiecePlan(device, key, signature)
    return PlannedProgram(ProgramPlan(signature, (piece_plan,), (step,), outputs), (piece,))


def _plan_pieces(declared: Declared, graph: Graph, refused: Mapping[Node, str]) -> Planned:
    """Cut the graph by who takes which node, and run the remaining passes on each piece."""
    devices, refusals = _assign(declared, graph, refused)
    partition = cut(graph, devices)
    pieces, plans = [], []
    for part in partition.pieces:
        owner = backend(part.device.backend)
        target = declared.on if part.device.backend == declared.backend else owner.target()
        compiled = compile_graph(
            part.graph,
            target,
            owner.capabilities(target),
            owner.group_info,
            ("without split",),
            _watchers(declared),
        )
        pieces.append(compiled.run)
        key = artifact_key(compiled.run, part.device, declared)
        plans.append(PiecePlan(part.device, key, compiled.run.signature))
    program = ProgramPlan(signature_of(graph), tuple(plans), partition.steps, partition.outputs)
    return Planned(PlannedProgram(program, tuple(pieces)), refused=refusals)


def _assign(
    declared: Declared, graph: Graph, refused: Mapping[Node, str]
) -> tuple[dict[Node, Device], tuple[Refusal, ...]]:
    """Give each node a device: the target's, the generated-code cpu backend's, or numpy."""
    host = backend("cpu")
    unknown = host.refused(graph, host.target()) if declared.backend != "cpu" else refused
    devices: dict[Node, Device] = {}
    refusals: dict[Refusal, None] = {}
    for node in graph.nodes:
        if node not in refused:
            devices[node] = Device(declared.backend, 0)
            continue
        devices[node] = NUMPY if node in unknown else Device("cpu", 0)
        refusals[Refusal(node.op, declared.backend, refused[node])] = None
        fallback.record(node.op, declared.backend, refused[node], str(devices[node]))
    return devices, tuple(refusals)


def signature_of(graph: Graph) -> Signature:
    """Return the signature of a graph."""
    names = graph.output_names or tuple(f"output{k}" for k in range(len(graph.outputs)))
    return Signature(
        tuple(Port(e.name, e.value.type, e.role) for e in graph.inputs),
        tuple(Port(n, v.type) for n, v in zip(names, graph.outputs, strict=True)),
        graph.symbols,
        tuple(update.input_index for update in graph.updates),
        constraints(graph),
    )


def artifact_key(piece: Piece, device: Device, declared: Declared) -> str:
    """Return the level-2 key: the text and plan of a piece, its target, options and backend."""
    owner = backend(device.backend)
    target = declared.on if device.backend == declared.backend else owner.target()
    plan_text = "" if piece.plan is None else repr(piece.plan.to_data())
    parts = (
        print_graph(piece.graph, names=False),
        ",".join(piece.signature.symbols),
        plan_text,
        str(device),
        target.text(),
        repr(sorted(declared.options.items())),
        owner.source_hash(),
    )
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def compile_plan(planned: Planned, declared: Declared, cache: Cache) -> Loaded:
    """Turn planned pieces into programs; artefacts go through the level-2 cache."""
    run = _compile_program(planned.run, declared, cache)
    load_program = None
    if planned.load is not None:
        load_program = _compile_program(planned.load, declared, cache)
    load_plan = None if planned.load is None else planned.load.plan
    manifest = Manifest(planned.run.plan, load_plan, planned.derived, planned.refused)
    return Loaded(manifest, run, load_program, False)


def _compile_program(planned: PlannedProgram, declared: Declared, cache: Cache) -> Program:
    executables = [
        _compile_piece(piece, row, declared, cache)
        for piece, row in zip(planned.pieces, planned.plan.pieces, strict=True)
    ]
    return assemble(planned.plan, executables)


def _compile_piece(piece: Piece, row: PiecePlan, declared: Declared, cache: Cache) -> Executable:
    owner, store = backend(row.device.backend), cache.artifacts()
    target = declared.on if row.device.backend == declared.backend else owner.target()
    executable = owner.compile(piece, target, declared.options, store)
    statistics.count(compiled=1)
    store.put(row.key, executable.serialize())
    return executable
