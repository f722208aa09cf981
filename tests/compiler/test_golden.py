"""Golden texts of every pass, and that each pass keeps the numbers and comes to an end."""

from __future__ import annotations

import numpy as np
import pytest

from frame.compiler.check_fusion import check_fusion
from frame.compiler.pass_manager import pass_text
from frame.compiler.passes.fusion import OperatorFusion
from frame.ir.graph import Graph
from frame.ir.printer import print_graph
from frame.ir.verify import verify
from frame.ops.interpreter import interpret
from tests.compiler.cases import CASES, Case
from tests.compiler.support import arrays_for, context

EVERY_CASE = pytest.mark.parametrize("name", CASES)


def _apply(case: Case) -> tuple[Graph, Graph, dict]:
    before, around = case.make(), context(**case.changes)
    after = case.pass_.run(before, around)
    verify(after)
    return before, after, around.produced


@EVERY_CASE
def test_text(name, golden):
    case = CASES[name]
    before, after, produced = _apply(case)
    parts = [f"// {pass_text(case.pass_)}", print_graph(before), "// ->"]
    parts.append("// the same graph" if after is before else print_graph(after))
    for key, value in produced.items():
        parts += [f"// {key}", *_lines(value)]
    golden(name, "\n".join(parts) + "\n")


def _lines(value: object) -> list[str]:
    kind = type(value).__name__
    if kind == "Split":
        load = "none" if value.load is None else print_graph(value.load)
        sources = ", ".join(map(str, value.run_sources))
        return [load, f"load inputs: {value.load_inputs}", f"run inputs: {sources}"]
    if kind == "MemoryPlan":
        places = ", ".join(map(str, value.places))
        slots = ", ".join(f"{s.size} bytes from {s.start} to {s.end}" for s in value.slots)
        return [f"places: {places}", f"slots: {slots}", f"arena: {value.arena_size} bytes"]
    if kind == "Piece":
        signature = value.signature
        ports = (*signature.inputs, *signature.outputs)
        lines = [f"{port.name}: {port.type} {{role={port.role}}}" for port in ports]
        return [*lines, f"symbols: {signature.symbols}", f"updates: {signature.updates}"]
    return [str(value)]


KEEPS_INPUTS = [name for name in CASES if not name.startswith(("split", "shape_inference"))]


@pytest.mark.parametrize("name", KEEPS_INPUTS)
def test_numbers(name):
    case = CASES[name]
    before, after, _ = _apply(case)
    arrays = arrays_for(before)
    precision = "native" if case.exact else "float64"
    results = (interpret(graph, arrays, precision=precision) for graph in (before, after))
    for one, other in zip(*results, strict=True):
        if case.exact:
            np.testing.assert_array_equal(one, other, strict=True)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-11, strict=True)


@EVERY_CASE
def test_a_pass_leaves_its_own_result_alone(name):
    case = CASES[name]
    _, after, _ = _apply(case)
    assert case.pass_.run(after, context(**case.changes)) is after


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if isinstance(c.pass_, OperatorFusion)]
)
def test_fusions_are_proved(name):
    before, after, _ = _apply(CASES[name])
    check_fusion(before, after)
