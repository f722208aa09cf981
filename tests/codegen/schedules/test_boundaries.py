"""Every schedule at every edge of its loops, in the interpreter; tests/sweep runs them natively."""

from __future__ import annotations

import re

import pytest

from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.ir import If
from frame.codegen.loops.verifier import verify_module
from frame.codegen.schedules.registry import schedules
from frame.ir.graph import Graph
from tests.support.boundaries import (
    BINDINGS,
    check,
    data_of,
    elements_of_largest_input,
    graphs,
    run_interpreted,
    small_target,
)
from tests.support.compile import make_piece

ANCHORS = sorted(schedules("cpu"))
CASES = [(anchor, name) for anchor in ANCHORS for name in graphs(anchor, True)]


@pytest.mark.parametrize(("anchor", "name"), CASES)
def test_interpreted(anchor: str, name: str) -> None:
    """Every access is checked against its buffer; chunks run in an order of their own."""
    graph = graphs(anchor, True)[name]
    if elements_of_largest_input(graph) >= 1 << 14:
        pytest.skip("the native test runs these sizes; they take minutes one element at a time")
    data = data_of(graph)
    compiled = make_piece(graph, small_target())
    verify_module(compiled.lowered.module, lowered=True)
    outputs = run_interpreted(compiled, graph, data, BINDINGS)
    check(graph, data, outputs, name)


# --- coverage -------------------------------------------------------------------------------------


def _family(name: str) -> str:
    """The kernels that one place in a schedule makes: names without numbers and dtypes."""
    return re.sub(r"(float|int)\d+|\d+x\d+(x\d+)?(of\d+)?|_\d+\b", "", name)


def _merged(counts: dict[str, set[bool]], coverage: Coverage) -> None:
    """Note which sides of the branches of a run were taken; an empty side is none."""
    for statement, place in coverage.places.items():
        if isinstance(statement, If):
            family = _family(place)
            taken = {side for side in (True, False) if coverage.branches[place, side]}
            empty = set() if statement.otherwise else {False}
            counts.setdefault(family, set()).update(taken | empty)


def _coverage_of(graph: Graph, anchor: str) -> Coverage:
    coverage = Coverage()
    compiled = make_piece(graph, small_target())
    # A product of any number of rows has a branch for each height of its tiles.
    for batch in (1, 2, 3, 5, 6, 7, 11) if graph.symbols and anchor == "contraction" else (2,):
        bindings = {**BINDINGS, "batch": batch}
        run_interpreted(compiled, graph, data_of(graph, bindings), bindings, coverage)
    return coverage


@pytest.mark.parametrize("anchor", ANCHORS)
def test_every_branch_runs(anchor: str) -> None:
    """Every variant, tail and edge of a schedule is run by one of its boundary graphs."""
    counts: dict[str, set[bool]] = {}
    for graph in graphs(anchor, True).values():
        if elements_of_largest_input(graph) < 1 << 14:
            _merged(counts, _coverage_of(graph, anchor))
    idle = [f"{p}: {side}" for p, seen in counts.items() for side in {True, False} - seen]
    # Boundary graphs hold good indices; test_gather.py reports the bad ones.
    assert [place for place in idle if "_check/" not in place] == []
