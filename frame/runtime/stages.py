"""Compilation as a list of named pure stages: Declared -> Keyed -> Planned -> Manifest -> Loaded.

    Declared   the graph as the user declared it, and what to make of it
    Keyed      the level-1 key, taken before autocast and backward
    Planned    pieces that are ready for their backends, after all passes
    Manifest   plain data: everything but the machine code
    Loaded     programs with executables

A level-1 hit goes from the key to the manifest and the artefacts and runs no pass.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from frame.compiler.pass_manager import Instrument
from frame.compiler.pipeline import (
    Passes,
    Pipeline,
    compile_graph,
    make_pipeline,
    simplify_graph,
)
from frame.core.devices import Device
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.fingerprint import Fingerprint
from frame.core.targets import TargetDescription
from frame.hal.interfaces import VOLATILE, Executable, Piece, Port, Signature
from frame.ir.graph import Graph, Node
from frame.ir.hashing import structural_hash
from frame.ir.printer import print_graph
from frame.ops.binding import constraints
from frame.ops.registry import foreign_records, is_built_in
from frame.runtime import fallback, statistics, versions
from frame.runtime.backends import backend
from frame.runtime.cache import MANIFEST, Cache, default_cache, process_cache
from frame.runtime.manifest import (
    Manifest,
    PiecePlan,
    ProgramPlan,
    Refusal,
    assemble,
    build_program,
)
from frame.runtime.partition import NUMPY, cut
from frame.runtime.program import Program, RunStep

_LOG = logging.getLogger("frame.runtime")


@dataclass(frozen=True, slots=True)
class Transform:
    """How the declared graph becomes the graph that is compiled (backward, update).

    `text` says it all: it enters the key; `apply` must depend on nothing else. `data` is the same
    as plain data, for files, and None where code of the user takes part. `initial` gives the number
    that fills a state before the first run. `held` are things that `text` names by identity alone:
    nothing of it is then kept on disk.
    """

    text: str
    apply: Callable[[Graph], Graph]
    data: Mapping[str, Any] | None = None
    initial: Mapping[str, float] = field(default_factory=dict)
    held: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Declared:
    """A declaration: the graph, what to make of it, and what to compile it for."""

    graph: Graph
    backend: str = "cpu"
    target: TargetDescription | None = None
    transform: Transform | None = None
    passes: Passes = None
    options: Mapping[str, Any] = field(default_factory=dict)
    instruments: tuple[Instrument, ...] = ()

    @property
    def on(self) -> TargetDescription:
        """The target description."""
        return self.target or backend(self.backend).target()


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


@dataclass(frozen=True, eq=False)
class Loaded:
    """Programs that can run.

    `hit` tells whether no pass was run for them; `inspectable` whether their executables were made
    from pieces, so that they can show sources and profiles.
    """

    manifest: Manifest
    run: Program
    load: Program | None
    hit: bool
    inspectable: bool = True


@dataclass(frozen=True, slots=True)
class Key:
    """A level-1 key. `held` are things of the user that its text names by identity alone: such a
    key is good for this process, and only while they live."""

    text: str
    held: tuple[Any, ...] = ()


def key_of(declared: Declared) -> Key:
    """Return the level-1 key: the graph with its names, and everything that decides its code."""
    names = "\x1e".join(entry.name for entry in declared.graph.inputs)
    outputs = "\x1e".join(declared.graph.output_names)
    pipeline, transform = make_pipeline(declared.passes), declared.transform
    user = Fingerprint()
    _add_foreign_ops(user, declared.graph)
    _add_foreign_passes(user, pipeline)
    owner = backend(declared.backend)
    parts = (
        structural_hash(declared.graph),
        names,
        outputs,
        declared.backend,
        declared.on.text(),
        "" if transform is None else transform.text,
        pipeline.text(),
        repr(sorted(declared.options.items())),
        versions.compiler_hash(),
        owner.source_hash(),
        user.text(),
    )
    held = (*user.held, *(transform.held if transform else ()))
    if owner.source_hash().startswith(VOLATILE):
        held = (*held, owner)
    text = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return Key(hashlib.sha256(text).hexdigest(), held)


def _add_foreign_ops(user: Fingerprint, graph: Graph) -> None:
    """Add the ops that are not frame's own, if they can take part.

    All of them, as one may decompose into another; none where the graph has only frame's own ops,
    which never lead to one of them unless it takes the place of one of frame's.
    """
    records = foreign_records()
    if not records:
        return
    used = ops_of(graph)
    if any(record.name in used or is_built_in(record.name) for record in records):
        for record in sorted(records, key=lambda record: record.name):
            user.add(record)


def _add_foreign_passes(user: Fingerprint, pipeline: Pipeline) -> None:
    for pass_ in pipeline.each():
        if not type(pass_).__module__.startswith("frame."):
            user.add(type(pass_))


def ops_of(graph: Graph) -> set[str]:
    """Return the names of the ops of a graph and of its bodies."""
    found, pending = set(), [graph]
    while pending:
        for node in pending.pop().nodes:
            found.add(node.op)
            pending.extend(body for _, body in node.bodies)
    return found


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


# Programs in use, by cache and key: models of one structure share their machine code.
_in_use: weakref.WeakValueDictionary[tuple[int, str], Loaded] = weakref.WeakValueDictionary()
_in_use_lock = threading.Lock()


def load(declared: Declared, cache: Cache | None = None) -> Loaded:
    """Return the programs of a declaration, from the cache where it has them.

    Raises:
        UnimplementedError: an op that neither a backend nor a reference can run.
    """
    cache = cache or default_cache()
    if not cache.active:
        return compile_plan(plan(declared), declared, cache)
    key = key_of(declared)
    if key.held:
        # Nothing that is named by identity may reach the disk, where it would outlive the thing.
        cache = process_cache()
    found = _in_use.get((id(cache), key.text))
    if found is not None:
        found = replace(found, hit=True)
    else:
        found = _from_cache(key.text, cache) or _compiled(key, declared, cache)
    with _in_use_lock:
        _in_use[id(cache), key.text] = found
    return found


_held: list[Any] = []  # what keys of this process name by identity must not be freed


def _compiled(key: Key, declared: Declared, cache: Cache) -> Loaded:
    made = compile_plan(plan(declared), declared, cache)
    cache.put(MANIFEST, key.text, made.manifest.to_bytes())
    _held.extend(key.held)
    return made


def load_program_key(manifest: Manifest) -> str:
    """Return what the results of a load program depend on beside the weights: its code."""
    if manifest.load is None:
        return ""
    parts = [piece.key for piece in manifest.load.pieces]
    return hashlib.sha256(repr((parts, manifest.load.steps)).encode()).hexdigest()


def _from_cache(key: str, cache: Cache) -> Loaded | None:
    data = cache.get(MANIFEST, key)
    if data is None:
        return None
    try:
        manifest = Manifest.from_bytes(data)
    except InvalidArgumentError as error:
        _LOG.debug("the manifest %s is of no use: %s", key[:12], error)
        return None
    run = build_program(manifest.run, cache.artifacts())
    if run is None:
        return None
    load_program = None
    if manifest.load is not None:
        load_program = build_program(manifest.load, cache.artifacts())
        if load_program is None:
            return None
    _LOG.debug("cache hit %s", key[:12])
    pieces = len(manifest.run.pieces) + (len(manifest.load.pieces) if manifest.load else 0)
    statistics.count(manifests=1, artifacts=pieces)
    for refusal in manifest.refused:
        _LOG.debug("%s was refused by %s: %s", refusal.op, refusal.backend, refusal.reason)
    return Loaded(manifest, run, load_program, True, False)


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


def fresh(declared: Declared) -> Loaded:
    """Compile without reading the cache: its executables can show their sources and profiles."""
    return compile_plan(plan(replace(declared)), declared, Cache(None, remembered=0))
