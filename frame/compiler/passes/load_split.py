"""split: what depends on parameters and buffers alone is computed once, by a load program.

The graph falls into two. The load program computes the *derived* values from parameters, buffers
and constants; the run program takes them as inputs of role derived. What computes nothing (a
reshape, a broadcast, a constant) stays with its reader. A graph that updates its weights keeps
everything: what was derived from them would be stale after each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import TRIVIAL, constant_for_a_model
from frame.core.dataclass import dataclass
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, GraphInput, Node, Role, StateUpdate, Value, shape_symbols

PRODUCED = "split"
"""The name under which the pass leaves its `Split` in the context."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an input of the run program comes from.

    `index` is a position among the inputs of the whole graph, or, if `derived`, among the outputs
    of the load program.
    """

    index: int
    derived: bool = False

    def __str__(self) -> str:
        return f"{'derived' if self.derived else 'input'} {self.index}"


@dataclass(frozen=True, slots=True)
class Split:
    """A graph in two parts.

    `load` is None where there is nothing to compute beforehand; `run` is then the whole graph.
    `load_inputs` are the positions of the load program's inputs among those of the whole graph.
    `sources` leads from each node of `run` that was made anew to the one that it is a copy of.
    """

    load: Graph | None
    run: Graph
    load_inputs: tuple[int, ...]
    run_sources: tuple[Source, ...]
    sources: Mapping[Node, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadSplit:
    """Moves what depends on weights alone into a load program."""

    name: ClassVar[str] = "split"
    changes_inputs: ClassVar[bool] = True

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the run program, and leave the whole split in `context.produced`."""
        split = split_graph(graph)
        context.produced[PRODUCED] = split
        if split.load is not None:
            context.count("derived", len(split.load.outputs))
        return split.run


def split_graph(graph: Graph) -> Split:
    """Split a graph into its load program and its run program."""
    fixed = constant_for_a_model(graph)
    later = [node for node in graph.nodes if not _is_fixed(node, fixed)]
    derived = _derived(graph, later, fixed)
    if not derived:
        sources = tuple(Source(i) for i in range(len(graph.inputs)))
        return Split(None, graph, (), sources)
    load, load_inputs = _load_graph(graph, derived)
    run, run_sources, copied = _run_graph(graph, derived)
    return Split(load, run, load_inputs, run_sources, copied)


def _is_fixed(node: Node, fixed: set[Value]) -> bool:
    return all(result in fixed for result in node.results)


def _derived(graph: Graph, later: Iterable[Node], fixed: set[Value]) -> tuple[Value, ...]:
    """Return the values that the run program reads and the load program computes, in order."""
    pending = [v for node in later for v in node.operands] + list(graph.returned)
    found: set[Value] = set()
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen or value not in fixed or value.node is None:
            continue
        seen.add(value)
        if value.node.op in TRIVIAL:
            pending.extend(value.node.operands)
        else:
            found.add(value)
    return tuple(r for node in graph.nodes for r in node.results if r in found)


def _needed(values: Iterable[Value], stop: Iterable[Value] = ()) -> set[Node]:
    """Return the nodes that values are made by, not looking behind the values of `stop`."""
    stops, found = set(stop), set()
    pending = [value for value in values if value not in stops]
    while pending:
        node = pending.pop().node
        if node is None or node in found:
            continue
        found.add(node)
        pending.extend(operand for operand in node.operands if operand not in stops)
    return found


def _load_graph(graph: Graph, derived: tuple[Value, ...]) -> tuple[Graph, tuple[int, ...]]:
    needed = _needed(derived)
    nodes = tuple(node for node in graph.nodes if node in needed)
    read = {operand for node in nodes for operand in node.operands}
    positions = tuple(i for i, entry in enumerate(graph.inputs) if entry.value in read)
    names = tuple(f"derived{i}" for i in range(len(derived)))
    inputs = tuple(graph.inputs[i] for i in positions)
    load = Graph(inputs, nodes, derived, (), f"{graph.name}_load", names, graph.locations)
    return load, positions


def _run_graph(
    graph: Graph, derived: tuple[Value, ...]
) -> tuple[Graph, tuple[Source, ...], dict[Node, Node]]:
    needed = _needed(graph.returned, derived)
    nodes = [node for node in graph.nodes if node in needed]
    read = {operand for node in nodes for operand in node.operands} | set(graph.returned)
    kept = [i for i, entry in enumerate(graph.inputs) if _stays(entry, read)]
    with Rewriter(graph, inputs=False) as rewriter:
        for index in kept:
            rewriter.adopt(graph.inputs[index])
            rewriter.replace(graph.inputs[index].value, graph.inputs[index].value)
        for number, value in enumerate(derived):
            name = _free_name(f"derived{number}", graph)
            rewriter.replace(value, rewriter.input(value.type, Role.DERIVED, name))
        for node in nodes:
            rewriter.copy(node)
        run = _finish(rewriter, graph, {old: new for new, old in enumerate(kept)})
    sources = [Source(i) for i in kept] + [Source(i, True) for i in range(len(derived))]
    return run, tuple(sources), dict(zip(run.nodes, nodes, strict=True))


def _stays(entry: GraphInput, read: set[Value]) -> bool:
    """Whether the run program has an input: weights go if nothing there reads them."""
    if entry.role not in (Role.PARAMETER, Role.BUFFER) or entry.value in read:
        return True
    return bool(shape_symbols(entry.value.shape))


def _free_name(name: str, graph: Graph) -> str:
    taken = {entry.name for entry in graph.inputs}
    while name in taken:
        name += "_"
    return name


def _finish(rewriter: Rewriter, graph: Graph, positions: dict[int, int]) -> Graph:
    return Graph(
        tuple(rewriter.inputs),
        tuple(rewriter.nodes),
        tuple(rewriter[value] for value in graph.outputs),
        tuple(StateUpdate(positions[u.input_index], rewriter[u.value]) for u in graph.updates),
        graph.name,
        graph.output_names,
        graph.locations,
    )
