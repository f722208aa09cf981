"""Every schedule at every edge of its loops: natively, in the interpreter, by 1 and 2 threads."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from frame.backends.cpu.executable import CpuExecutable
from frame.backends.cpu.pool import set_num_threads
from frame.backends.cpu.target import host_target
from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.interpreter import run_module
from frame.codegen.loops.ir import If
from frame.codegen.loops.verifier import verify_module
from frame.codegen.schedules.registry import schedules
from frame.core import config
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.core.tolerances import compare
from frame.ir.graph import Graph, GraphInput
from frame.ops.interpreter import interpret
from tests.support.compile import Compiled, make_piece

BINDINGS = {"batch": 7, "height": 4}
ANCHORS = sorted(schedules("cpu"))


def small_target() -> TargetDescription:
    """The host with caches so small that every block has an edge in a small graph."""
    return replace(host_target(), l1=2048, l2=8192, l3=0)


@functools.cache
def graphs(anchor: str, small: bool) -> dict[str, Graph]:
    target = small_target() if small else host_target()
    return {g.name: g for g in schedules("cpu")[anchor].boundary_graphs(target)}


CASES = [(anchor, name) for anchor in ANCHORS for name in graphs(anchor, True)]


@dataclass(frozen=True)
class Data:
    """Inputs of a graph, what it must give, and the magnitude of the terms of each result."""

    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    scales: list[np.ndarray | None]


def data_of(graph: Graph, bindings: Mapping[str, int] = BINDINGS) -> Data:
    generator = np.random.default_rng(7)
    inputs = [_array(entry, generator, bindings) for entry in graph.inputs]
    magnitudes = [np.abs(a) if a.dtype.kind != "i" else a for a in inputs]
    scales = [s if s.dtype.kind == "f" else None for s in interpret(graph, magnitudes, bindings)]
    return Data(inputs, interpret(graph, inputs, bindings), scales)


def _array(
    entry: GraphInput, generator: np.random.Generator, bindings: Mapping[str, int]
) -> np.ndarray:
    dtype = entry.value.dtype
    shape = [s.evaluate(bindings) if isinstance(s, Dim) else s for s in entry.value.shape]
    limit = re.match(r"below(\d+)_", entry.name)
    if limit or not dtype.is_float:
        low, high = (0, int(limit[1])) if limit else (-4, 5)
        return generator.integers(low, high, shape).astype(dtype.numpy)
    return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)


def check(graph: Graph, data: Data, results: Iterator[np.ndarray], where: str) -> None:
    rows = zip(results, data.expected, data.scales, graph.outputs, strict=True)
    for k, (got, want, scale, value) in enumerate(rows):
        compare(got, want, value.dtype, scale, f"{where}, output {k}: {value.type}")


def run_with(executable: CpuExecutable, data: Data, threads: int) -> list[np.ndarray]:
    set_num_threads(threads)
    try:
        return [np.array(r) for r in executable.run([a.copy() for a in data.inputs])]
    finally:
        set_num_threads(None)


@pytest.mark.parametrize(("anchor", "name"), CASES)
def test_native(anchor: str, name: str) -> None:
    graph = graphs(anchor, False)[name]
    data = data_of(graph)
    for grain in (None, "1"):
        with config.override(**({} if grain is None else {"FRAME_GRAIN": grain})):
            executable = make_piece(graph).executable()
        one, two = (run_with(executable, data, threads) for threads in (1, 2))
        where = f"{name}, grain {grain}"
        check(graph, data, iter(one), where)
        for k, (a, b) in enumerate(zip(one, two, strict=True)):
            assert a.tobytes() == b.tobytes(), f"{where}: output {k} depends on the threads"


@pytest.mark.parametrize(("anchor", "name"), CASES)
def test_interpreted(anchor: str, name: str) -> None:
    """Every access is checked against its buffer; chunks run in an order of their own."""
    graph = graphs(anchor, True)[name]
    if _elements(graph) >= 1 << 14:
        pytest.skip("the native test runs these sizes; they take minutes one element at a time")
    data = data_of(graph)
    compiled = make_piece(graph, small_target())
    verify_module(compiled.lowered.module, lowered=True)
    outputs = run_interpreted(compiled, graph, data, BINDINGS)
    check(graph, data, iter(outputs), name)


def run_interpreted(
    compiled: Compiled,
    graph: Graph,
    data: Data,
    bindings: Mapping[str, int],
    coverage: Coverage | None = None,
) -> list[np.ndarray]:
    pairs = zip(data.expected, graph.outputs, strict=True)
    outputs = [np.zeros(want.shape, value.dtype.numpy) for want, value in pairs]
    arguments = [*(a.copy() for a in data.inputs), *outputs]
    plan = compiled.piece.plan
    table = () if plan.static is not None else plan.fill(bindings).offsets
    symbols = [bindings[name] for name in compiled.piece.signature.symbols]
    module = compiled.lowered.module
    result = run_module(module, arguments, symbols, table, order="shuffled", coverage=coverage)
    assert result.fail is None
    return outputs


def _elements(graph: Graph) -> int:
    sizes = [1 if isinstance(s, Dim) else s for e in graph.inputs for s in e.value.shape]
    return max(sizes, default=0)


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
        if _elements(graph) < 1 << 14:
            _merged(counts, _coverage_of(graph, anchor))
    idle = [f"{p}: {side}" for p, seen in counts.items() for side in {True, False} - seen]
    # Boundary graphs hold good indices; test_gather.py reports the bad ones.
    assert [place for place in idle if "_check/" not in place] == []
