"""Every schedule at every edge of its loops, in the interpreter; tests/sweep runs them natively."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from frame.backends.cpu.target import host_target, named_target
from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.ir import Binary, Block, Const, For, If
from frame.codegen.loops.traverse import nested
from frame.codegen.loops.verifier import verify_module
from frame.codegen.schedules.registry import schedules
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph
from tests.support.boundaries import (
    BINDINGS,
    all_graphs,
    bad_indices,
    check,
    data_of,
    interpret_once,
    is_long,
    run_interpreted,
    small_target,
    target_of,
)
from tests.support.compile import make_piece

ANCHORS = sorted(schedules("cpu"))


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v4", "armv8-a"])
@pytest.mark.parametrize("anchor", ANCHORS)
def test_graphs_for_the_vectors_of_other_targets(anchor: str, name: str) -> None:
    """Their sizes follow the target: what this machine builds must stand on any other."""
    for graph in schedules("cpu")[anchor].boundary_graphs(named_target(name)):
        assert graph.nodes and graph.outputs


TARGETS = ("host", "x86-64", "x86-64-v4", "armv8-a", "no caches")


def described(name: str) -> TargetDescription:
    """Return a target; one without caches is legal, and no schedule divides by their bytes."""
    if name == "no caches":
        return replace(host_target(), l1=0, l2=0, l3=0)
    return host_target() if name == "host" else named_target(name)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_kernels_keep_the_rules_of_loops(anchor: str, name: str) -> None:
    """Such as the most local memory: caches of a usual size ask for more than small ones do."""
    target = described(name)
    for graph in schedules("cpu")[anchor].boundary_graphs(target):
        verify_module(make_piece(graph, target).lowered.module)


# --- coverage -------------------------------------------------------------------------------------


def _family(name: str) -> str:
    """The kernels that one place in a schedule makes: names without numbers and dtypes."""
    return re.sub(r"(float|int)\d+|\d+x\d+(x\d+)?(of\d+)?|_\d+\b", "", name)


def _merged(counts: dict[str, set[bool]], coverage: Coverage) -> None:
    """Note which sides of the branches of a run were taken, and which loops made a trip.

    An empty side is none. A loop is known by its place in the nest; a trip counts as both sides.
    """
    for statement, place in coverage.places.items():
        if isinstance(statement, If):
            seen = counts.setdefault(f"if {_family(place)}", set())
            seen.update(side for side in (True, False) if coverage.branches[place, side])
            seen.update(set() if statement.otherwise else {False})
    for where, body in coverage.declared:
        for loop, nest in _nests(body, _family(where)):
            place = coverage.places[loop]
            seen = counts.setdefault(f"for {nest}", set())
            if coverage.loops[place, "one"] or coverage.loops[place, "many"]:
                seen.update((True, False))


def _nests(block: Block, around: str) -> Iterator[tuple[For, str]]:
    """Yield the loops of a block with their places: the loops around each, and which it is.

    Of those beside each other, one is known by what its author called its variable, by how its
    extent is computed, which tells whole vectors from the rest, and by how many such came before.
    A loop over nothing, such as over an empty tensor, can't run, nor can those inside it.
    """
    before: Counter[str] = Counter()
    for statement in block:
        place = around
        if isinstance(statement, For):
            kind = _kind_of_loop(statement)
            before[kind] += 1
            if isinstance(statement.extent, Const) and statement.extent.value == 0:
                continue
            place = f"{around} > {kind} #{before[kind]}"
            yield statement, place
        for inner in nested(statement):
            yield from _nests(inner, place)


def _kind_of_loop(loop: For) -> str:
    extent = loop.extent
    form = extent.op if isinstance(extent, Binary) else type(extent).__name__
    return f"{loop.var.name.split('.')[0]} below {form}"


# A product of any number of rows has a branch for each height of its tiles.
SIZES = defaultdict(
    lambda: (2,),
    product_symbolic=(1, 2, 3, 5, 6, 7, 11),
    product_symbolic_deep=(1, 2, 3, 5, 6, 7, 11),
    product_pairs_symbolic=(2, 7, 41),
    concat_float32=(2, 19),
    cumsum_float32=(2, 19),  # a vector and a rest
    mixed_fourier_float32=(2, 19),
    mixed_fourier_float64=(2, 19),
    mixed_rows_float32=(2, 95),  # ends in a vector and a rest, for any number of lanes,
)


def _coverage_of(graph: Graph) -> Coverage:
    """Interpret a graph, compare its results, and return what ran.

    Every access is checked against its buffer; chunks run in an order of their own.
    """
    coverage = Coverage()
    compiled = make_piece(graph, target_of(graph, small_target()))
    for batch in SIZES[graph.name]:
        bindings = {**BINDINGS, "batch": batch}
        data = data_of(graph, bindings)
        check(graph, data, run_interpreted(compiled, graph, data, bindings, coverage), graph.name)
        for inputs in bad_indices(graph, data):
            spoiled = replace(data, inputs=inputs)
            assert interpret_once(compiled, graph, spoiled, bindings, coverage)[1] is not None
    return coverage


@pytest.mark.parametrize("anchor", ANCHORS)
def test_interpreted_until_every_branch_has_run(anchor: str) -> None:
    """Right results; and every branch, and every loop, so every tail, runs in a boundary graph.

    Long graphs take minutes one element at a time: the native test runs them.
    """
    counts: dict[str, set[bool]] = {}
    for graph in all_graphs(anchor, True).values():
        if not is_long(graph):
            _merged(counts, _coverage_of(graph))
    if anchor != "contraction":  # whose micro-kernels convolutions use, not in every way
        counts = {p: seen for p, seen in counts.items() if not p.startswith("if kernel product_")}
    idle = [f"{p}: {side}" for p, seen in counts.items() for side in {True, False} - seen]
    assert idle == []
