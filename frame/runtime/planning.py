"""Planning: a declared graph becomes pieces for its backend, or for several where it refuses ops.

The first passes make the form that a backend is asked about. What it refuses goes, node by node, to
the generated-code cpu backend, else to the numpy references; the graph is cut by that, and the
remaining passes run on each piece with the target of its device.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from frame.compiler.pass_manager import Instrument, PassContext
from frame.compiler.passes.layout_assignment import LayoutAssignment, assign_some
from frame.compiler.passes.load_split import LoadSplit, split_graph
from frame.compiler.pipeline import (
    Passes,
    Pipeline,
    compile_graph,
    make_pipeline,
    simplify_graph,
    with_tuning,
)
from frame.core import plugins
from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Backend, Piece, Port, Signature
from frame.ir.graph import ROW_MAJOR, Graph, GraphInput, Node, Role, Value
from frame.ir.printer import print_graph
from frame.ops.binding import constraints
from frame.ops.registry import lookup
from frame.runtime import statistics
from frame.runtime.backends import backend
from frame.runtime.loading import Declared
from frame.runtime.manifest import PiecePlan, ProgramPlan, Refusal, Tuned
from frame.runtime.partition import NUMPY, PieceGraph, cut
from frame.runtime.steps import RunStep, Step, TransferStep, WriteBackStep

if TYPE_CHECKING:
    from frame.runtime.tuning import Tuner


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
    tuned: tuple[Tuned, ...] = ()
    untuned: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Simplified:
    """A graph after the passes that come before a backend is asked, and what is refused of it.

    `refused` are the nodes that the backend does not run, with reasons; `host_refused` those of
    them that the cpu backend turned out not to run.
    """

    graph: Graph
    refused: Mapping[Node, str]
    host_refused: Mapping[Node, str] = field(default_factory=dict)


def simplified(declared: Declared) -> Simplified:
    """Run the first passes over a declaration, and ask its backend what it refuses."""
    graph = declared.whole
    _require_row_major(graph)
    owner, target = backend(declared.backend), declared.on
    capabilities = owner.capabilities(target)
    simple = simplify_graph(graph, target, capabilities, declared.passes, _watchers(declared))
    return Simplified(simple, owner.refused(simple, target))


def _require_row_major(graph: Graph) -> None:
    """Check what the caller of a program gives and gets: arrays of the logical shape.

    Raises:
        InvalidArgumentError: an input or output has another layout.
    """
    ports = signature_of(graph)
    for kind, rows in (("input", ports.inputs), ("output", ports.outputs)):
        for port in rows:
            if port.type.layout != ROW_MAJOR:
                raise InvalidArgumentError(
                    f"the {kind} {port.name!r} of {graph.name} is {port.type}: expected a "
                    "row-major layout, which is what arrays have; use ops.relayout inside"
                )


def plan(declared: Declared, simple: Simplified, tuner: Tuner | None = None) -> Planned:
    """Run all further passes; the groups of what the backend takes whole get their schedules from
    `tuner`, if there is one.

    Raises:
        UnimplementedError: a pass can't treat a node for its target; `nodes` holds it.
    """
    if simple.refused:
        return _plan_pieces(declared, simple)
    if tuner is None:
        return _plan_whole(declared, simple.graph, declared.passes)
    passes = with_tuning(make_pipeline(declared.passes), tuner.choose)
    planned = _plan_whole(declared, simple.graph, passes)
    return replace(planned, tuned=tuner.rows, untuned=tuner.left)


def joined(simple: Simplified, error: UnimplementedError) -> Simplified | None:
    """Return the graph with the nodes of an error refused, too; None where it names none.

    A node that is refused already was given to the cpu backend, which the error is of then.
    """
    found = _named_by(simple.graph, [node for node in error.nodes if isinstance(node, Node)])
    if not found:
        return None
    added = {node: str(error) for node in found if node not in simple.refused}
    host = {node: str(error) for node in found if node in simple.refused}
    refused = {**simple.refused, **added}
    return replace(simple, refused=refused, host_refused={**simple.host_refused, **host})


def _named_by(graph: Graph, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return the nodes of a graph that stand behind nodes which later passes made of them."""
    pending, wanted = list(nodes), []
    while pending:
        node = pending.pop()
        bodies = [body for _, body in node.bodies] if node.op == "group" else []
        pending.extend(inner for body in bodies for inner in body.nodes)
        wanted.extend([] if bodies else [node])
    for same in _LIKENESS:
        keys = {same(node) for node in wanted} - {None}
        found = tuple(node for node in graph.nodes if node.op != "constant" and same(node) in keys)
        if found:
            return found
    return ()


# From the closest to the loosest: a pass may have changed a node's types, or decomposed it.
_LIKENESS: tuple[Callable[[Node], Any], ...] = (
    lambda node: node,
    lambda node: (node.op, node.origin, tuple(result.type for result in node.results)),
    lambda node: (node.op, node.origin),
    lambda node: node.origin,
)


def _watchers(declared: Declared) -> tuple[Instrument, ...]:
    return (*declared.instruments, statistics.PassCounter())


# --- one piece ------------------------------------------------------------------------------------


def _plan_whole(declared: Declared, graph: Graph, passes: Passes) -> Planned:
    owner, target = backend(declared.backend), declared.on
    capabilities = owner.capabilities(target)
    compiled = compile_graph(
        graph if capabilities.donation else _without_donation(graph),
        target,
        capabilities,
        owner.group_info,
        passes,
        _watchers(declared),
        declared.graph,
    )
    run = _one_piece(declared, compiled.run, graph, len(graph.outputs))
    if compiled.load is None:
        return Planned(run)
    derived = tuple(source.index for source in compiled.run_sources if source.derived)
    made = len(compiled.load.signature.outputs)
    return Planned(run, _one_piece(declared, compiled.load, graph, made), derived)


def _without_donation(graph: Graph) -> Graph:
    """Return a graph that returns the new values of its state after its outputs.

    Its state is an input like others: what is made from it changes with every run.
    """
    updated = {update.input_index for update in graph.updates}
    if not updated:
        return graph
    inputs = tuple(
        GraphInput(entry.value, Role.INPUT, entry.name) if k in updated else entry
        for k, entry in enumerate(graph.inputs)
    )
    names = signature_of(graph).outputs
    outputs = (*(p.name for p in names), *(f"{graph.inputs[k].name}'" for k in sorted(updated)))
    values = {update.input_index: update.value for update in graph.updates}
    results = (*graph.outputs, *(values[k] for k in sorted(updated)))
    return replace(graph, inputs=inputs, outputs=results, updates=(), output_names=outputs)


def _one_piece(declared: Declared, piece: Piece, graph: Graph, results: int) -> PlannedProgram:
    """Return the program of a piece of `graph`: on the host its call, else with transfers.

    The first `results` outputs of the piece are results; the others are new values of the state.
    """
    device = Device(declared.backend, 0)
    row = PiecePlan(device, artifact_key(piece, device, declared), piece.signature)
    signature = _with_state(piece.signature, graph, results)
    steps, outputs = _steps_around(piece.signature, signature, device)
    return PlannedProgram(ProgramPlan(signature, (row,), steps, outputs), (piece,))


def _with_state(signature: Signature, graph: Graph, results: int) -> Signature:
    """Return the signature of a piece with the roles and updates that `graph` gives its inputs."""
    roles = {entry.name: entry.role for entry in graph.inputs}
    updated = {f"{graph.inputs[update.input_index].name}'" for update in graph.updates}
    if signature.updates or results == len(signature.outputs):
        return signature
    inputs = tuple(replace(port, role=roles.get(port.name, port.role)) for port in signature.inputs)
    updates = tuple(k for k, port in enumerate(inputs) if f"{port.name}'" in updated)
    return replace(signature, inputs=inputs, outputs=signature.outputs[:results], updates=updates)


def _steps_around(
    piece: Signature, signature: Signature, device: Device
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps that run one piece on a device, and the slots of the results."""
    count, results = len(piece.inputs), len(piece.outputs)
    if device == HOST:
        inputs, made = tuple(range(count)), tuple(range(count, count + results))
        return (RunStep(0, inputs, made),), made
    inputs, made = tuple(range(count, 2 * count)), tuple(range(2 * count, 2 * count + results))
    kept = len(signature.outputs)
    outputs = tuple(range(2 * count + results, 2 * count + results + kept))
    # What a piece updates it has written in place; else the new values follow its outputs.
    changed = tuple(inputs[k] for k in signature.updates) if piece.updates else made[kept:]
    return (
        *(TransferStep(k, slot, HOST, device) for k, slot in enumerate(inputs)),
        RunStep(0, inputs, made),
        *(TransferStep(*row, device, HOST) for row in zip(made, outputs, strict=False)),
        *(WriteBackStep(*row, device) for row in zip(changed, signature.updates, strict=True)),
    ), outputs


# --- several pieces -------------------------------------------------------------------------------


def _plan_pieces(declared: Declared, simple: Simplified) -> Planned:
    """Cut the graph by who takes which node, what depends on weights alone by itself."""
    devices, refusals = _assign(declared, simple)
    graph, placed = _with_layouts(declared, simple.graph, devices)
    split = split_graph(graph)
    moved = {node: placed[split.sources.get(node, node)] for node in split.run.nodes}
    run = _plan_cut(declared, split.run, moved)
    if split.load is None:
        return Planned(run, refused=refusals)
    derived = tuple(source.index for source in split.run_sources if source.derived)
    return Planned(run, _plan_cut(declared, split.load, placed), derived, refusals)


def _with_layouts(
    declared: Declared, graph: Graph, devices: Mapping[Node, Device]
) -> tuple[Graph, Mapping[Node, Device]]:
    """Pack the weights of each node as its device wants them, before the graph falls into parts:
    a piece does not know any more which of its inputs stay the same."""
    if not any(
        isinstance(each, LayoutAssignment) for each in make_pipeline(declared.passes).each()
    ):
        return graph, devices
    for device in dict.fromkeys(devices.values()):
        if device == NUMPY:
            continue
        owner, target = backend(device.backend), target_on(declared, device)
        context = PassContext(
            target, owner.capabilities(target), owner.group_info, _watchers(declared)
        )
        own = {node for node, taken_by in devices.items() if taken_by == device}
        graph, made_for = assign_some(graph, own, context)
        devices = {node: devices[old] for node, old in made_for.items()}
    return graph, devices


def _plan_cut(declared: Declared, graph: Graph, devices: Mapping[Node, Device]) -> PlannedProgram:
    partition = cut(graph, devices, _donating(declared, devices))
    pieces = tuple(_compiled_part(declared, part) for part in partition.pieces)
    rows = tuple(
        PiecePlan(part.device, artifact_key(piece, part.device, declared), piece.signature)
        for part, piece in zip(partition.pieces, pieces, strict=True)
    )
    signature = signature_of(graph, declared.graph)
    return PlannedProgram(ProgramPlan(signature, rows, partition.steps, partition.outputs), pieces)


def _donating(declared: Declared, devices: Mapping[Node, Device]) -> frozenset[Device]:
    """Return the devices whose backend writes updated state in place."""
    owners = {d: backend(d.backend) for d in devices.values() if d != NUMPY}
    return frozenset(
        device
        for device, owner in owners.items()
        if owner.capabilities(target_on(declared, device)).donation
    )


def _compiled_part(declared: Declared, part: PieceGraph) -> Piece:
    """Run the remaining passes on one piece; on another backend's, the first ones, too."""
    owner, target = backend(part.device.backend), target_on(declared, part.device)
    capabilities, graph = owner.capabilities(target), part.graph
    if part.device.backend != declared.backend:
        graph = simplify_graph(graph, target, capabilities, None, _watchers(declared))
    return compile_graph(
        graph,
        target,
        capabilities,
        owner.group_info,
        _without_split(make_pipeline(declared.passes)),
        _watchers(declared),
        part.graph,
    ).run


def _without_split(pipeline: Pipeline) -> Pipeline:
    return pipeline.without(LoadSplit.name) if LoadSplit.name in pipeline.names else pipeline


def _assign(
    declared: Declared, simple: Simplified
) -> tuple[dict[Node, Device], tuple[Refusal, ...]]:
    """Give each node a device: the target's, the generated-code cpu backend's, or numpy."""
    own = Device(declared.backend, 0)
    devices = dict.fromkeys(simple.graph.nodes, own)
    on_host = set() if own == HOST else _taken_by_host(simple)
    devices.update({node: HOST if node in on_host else NUMPY for node in simple.refused})
    rows = Counter(
        (node.op, declared.backend, reason, str(devices[node]))
        for node, reason in simple.refused.items()
    )
    return devices, tuple(Refusal(*row, count) for row, count in rows.items())


def _taken_by_host(simple: Simplified) -> set[Node]:
    """Return the refused nodes that the cpu backend runs, as they are or decomposed."""
    host = backend(HOST.backend)
    target = host.target()
    unknown = host.refused(simple.graph, target)
    return {
        node
        for node in simple.refused
        if node not in simple.host_refused
        and (node not in unknown or _runs_decomposed(node, host, target))
    }


def _runs_decomposed(node: Node, host: Backend, target: TargetDescription) -> bool:
    if lookup(node.op).decomposition is None:
        return False
    alone = _alone(node)
    try:
        simple = simplify_graph(alone, target, host.capabilities(target))
    except InvalidArgumentError:  # a symbol of its attributes is in no operand
        return False
    return not host.refused(simple, target)


def _alone(node: Node) -> Graph:
    """Return the graph of one node."""
    values = {value: Value(value.type) for value in node.operands}
    inputs = tuple(GraphInput(v, name=f"x{k}") for k, v in enumerate(values.values()))
    operands = tuple(values[value] for value in node.operands)
    types = tuple(result.type for result in node.results)
    made = Node(node.op, operands, node.attributes, types)
    return Graph(inputs, (made,), made.results, output_names=_numbered(types))


def _numbered(values: Collection[Any]) -> tuple[str, ...]:
    return tuple(f"output{k}" for k in range(len(values)))


# --- signatures and keys --------------------------------------------------------------------------


def signature_of(graph: Graph, declared: Graph | None = None) -> Signature:
    """Return the signature of a graph, which stems from `declared`: its constraints hold, too."""
    names = graph.output_names or _numbered(graph.outputs)
    found = (*constraints(graph), *(constraints(declared) if declared is not None else ()))
    symbols = set(graph.symbols)
    return Signature(
        tuple(Port(e.name, e.value.type, e.role) for e in graph.inputs),
        tuple(Port(n, v.type) for n, v in zip(names, graph.outputs, strict=True)),
        graph.symbols,
        tuple(update.input_index for update in graph.updates),
        tuple(c for c in dict.fromkeys(found) if set(c.size.symbols) <= symbols),
    )


def target_on(declared: Declared, device: Device) -> TargetDescription:
    """Return the target of pieces on a device."""
    own = device.backend == declared.backend
    return declared.on if own else backend(device.backend).target()


def options_on(declared: Declared, device: Device) -> Mapping[str, Any]:
    """Return the options for pieces on a device: those given are for the backend asked for."""
    return declared.options if device.backend == declared.backend else {}


def artifact_key(piece: Piece, device: Device, declared: Declared) -> str:
    """Return the level-2 key: the text and plan of a piece, its target, options and backend.

    With the sources of plug-ins, as in the level-1 key: two releases of one must not overwrite each
    other's code, which the manifests of both would name.
    """
    owner = backend(device.backend)
    plan_text = "" if piece.plan is None else repr(piece.plan.to_data())
    parts = (
        print_graph(piece.graph, names=False),
        ",".join(piece.signature.symbols),
        plan_text,
        str(device),
        target_on(declared, device).text(),
        repr(sorted(options_on(declared, device).items())),
        owner.source_hash(),
        plugins.digest_of_loaded(),
    )
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
