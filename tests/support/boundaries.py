"""Runs of boundary graphs: their inputs, what they must give, natively or in the interpreter."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frame.backends.cpu.target import host_target
from frame.codegen.loops.coverage import Coverage
from frame.codegen.loops.interpreter import run_module
from frame.codegen.schedules.registry import schedules
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.core.tolerances import compare
from frame.ir.graph import Graph, GraphInput
from frame.ops.interpreter import interpret
from tests.support.compile import Compiled

BINDINGS = {"batch": 7, "height": 4}
PAIRS = ("product_pairs", "product_bfloat16")


def small_target() -> TargetDescription:
    """The host with caches so small that every block has an edge in a small graph."""
    return replace(host_target(), l1=2048, l2=8192, l3=0)


def target_of(graph: Graph, target: TargetDescription) -> TargetDescription:
    """The target on which a graph reaches what it is for: one with dots of pairs of bfloat16.

    Code for a machine without the instruction computes them from parts.
    """
    if not graph.name.startswith(PAIRS):
        return target
    return replace(target, intrinsics=target.intrinsics | {"dot_bf16"})


@functools.cache
def graphs(anchor: str, small: bool) -> dict[str, Graph]:
    target = small_target() if small else host_target()
    return {g.name: g for g in schedules("cpu")[anchor].boundary_graphs(target)}


def all_graphs(anchor: str, small: bool) -> dict[str, Graph]:
    """The graphs of the host, and those that only targets with dots of pairs have: `target_of`."""
    if anchor != "contraction":
        return graphs(anchor, small)
    target = small_target() if small else host_target()
    target = replace(target, intrinsics=target.intrinsics | {"dot_bf16"})
    found = schedules("cpu")[anchor].boundary_graphs(target)
    return graphs(anchor, small) | {g.name: g for g in found if g.name.startswith("product_pairs")}


@dataclass(frozen=True)
class Data:
    """Inputs of a graph, what it must give, and the magnitude of the terms of each result."""

    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    scales: list[np.ndarray | None]


def data_of(graph: Graph, bindings: Mapping[str, int] = BINDINGS) -> Data:
    generator = np.random.default_rng(7)
    inputs = [_array(entry, generator, bindings) for entry in graph.inputs]
    expected = interpret(graph, inputs, bindings)
    if graph.name.startswith("mixed_"):
        largest = [np.max(np.abs(r), initial=1.0) for r in expected]
        return Data(inputs, expected, _of_floats(expected, largest))
    magnitudes = [a if a.dtype.kind in "iub" else np.abs(a) for a in inputs]
    sums = interpret(graph, magnitudes, bindings)
    return Data(inputs, expected, _of_floats(expected, sums))


def _of_floats(results: list[np.ndarray], scales: list[np.ndarray]) -> list[np.ndarray | None]:
    pairs = zip(results, scales, strict=True)
    return [scale if result.dtype.kind == "f" else None for result, scale in pairs]


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


def check(graph: Graph, data: Data, results: Iterable[np.ndarray], where: str) -> None:
    rows = zip(results, data.expected, data.scales, graph.outputs, strict=True)
    for k, (got, want, scale, value) in enumerate(rows):
        compare(got, want, value.dtype, scale, f"{where}, output {k}: {value.type}")


def bad_indices(graph: Graph, data: Data) -> Iterable[list[np.ndarray]]:
    """Yield inputs in which the indices of one operand are out of range: one, below and above."""
    for position, entry in enumerate(graph.inputs):
        limit = re.match(r"below(\d+)_", entry.name)
        if limit:
            for value in (-1, int(limit[1])):
                inputs = [a.copy() for a in data.inputs]
                inputs[position].reshape(-1)[-1:] = value
                yield inputs


def run_interpreted(
    compiled: Compiled,
    graph: Graph,
    data: Data,
    bindings: Mapping[str, int],
    coverage: Coverage | None = None,
) -> list[np.ndarray]:
    outputs, fail = interpret_once(compiled, graph, data, bindings, coverage)
    assert fail is None
    return outputs


def interpret_once(
    compiled: Compiled,
    graph: Graph,
    data: Data,
    bindings: Mapping[str, int],
    coverage: Coverage | None = None,
) -> tuple[list[np.ndarray], Any]:
    """Run the loop module of a graph; return its outputs, and what it reports of bad indices."""
    pairs = zip(data.expected, graph.outputs, strict=True)
    outputs = [np.zeros(want.shape, value.dtype.numpy) for want, value in pairs]
    arguments = [*(a.copy() for a in data.inputs), *outputs]
    plan = compiled.piece.plan
    table = () if plan.static is not None else plan.fill(bindings).offsets
    symbols = [bindings[name] for name in compiled.piece.signature.symbols]
    module = compiled.lowered.module
    result = run_module(module, arguments, symbols, table, order="shuffled", coverage=coverage)
    return outputs, result.fail


def is_long(graph: Graph) -> bool:
    """Whether the interpreter would take minutes, one element at a time."""
    sizes = [1 if isinstance(s, Dim) else s for e in graph.inputs for s in e.value.shape]
    return max(sizes, default=0) >= 1 << 14 or graph.name == "product_panels"
