"""Code for other instruction sets, executed: AArch64 by emulators, older x86-64 on this machine.

Boundary graphs have an edge at every tile of a schedule; a chosen few of each schedule run always,
the others are slow tests. What a graph must give is that of the float64 reference, inside the one
table of tolerances.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from frame.backends.cpu.compiling import Stages
from frame.backends.cpu.target import missing_features, named_target
from frame.codegen.schedules.registry import schedules
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph
from tests.support.boundaries import BINDINGS, bad_indices, check, data_of, is_long
from tests.support.compile import make_piece
from tests.support.emulated import Emulation, qemu, run_qemu, run_unicorn

# The graphs that run every time, by target; the others are slow.
CHOSEN = frozenset({
    "concat_float32", "product_tiles_float32", "product_transposes", "product_int8",
    "product_symbolic_deep", "convolution_windows", "convolution_points_float32",
    "elementwise_float32", "transpose_float32", "gather_float32", "pool_float32",
    "pool_grad_float32", "reduction_float32", "relayout_float32", "scatter_float32",
    "mixed_attention_masks", "cumsum_float32", "affine_sample_float32", "filter_grad_float32",
    "mixed_fourier_float32",
})  # fmt: skip
ALWAYS = {
    "armv8-a": CHOSEN,
    "armv8.2-a": frozenset({"product_float16", "concat_float16", "gather_float16"}),
    "neoverse-v1": CHOSEN,
    "x86-64-v2": CHOSEN,
    "x86-64-v3": frozenset({"product_tiles_float32", "reduction_float32", "transpose_float32"}),
}
OLDER = ("x86-64-v2", "x86-64-v3")


def small(name: str) -> TargetDescription:
    """A target with caches so small that every block has an edge in a small graph."""
    return replace(named_target(name), l1=2048, l2=8192, l3=0)


@functools.cache
def graphs(name: str) -> dict[str, Graph]:
    target = small(name)
    found = [g for s in schedules("cpu").values() for g in s.boundary_graphs(target)]
    return {graph.name: graph for graph in found if not is_long(graph)}


def cases(*targets: str) -> list[object]:
    """One case a target and graph; what is not chosen is slow."""
    return [
        pytest.param(name, graph, marks=() if graph in ALWAYS[name] else pytest.mark.slow)
        for name in targets
        for graph in graphs(name)
    ]


def test_each_schedule_has_a_graph_that_always_runs() -> None:
    for name in ("armv8-a", "neoverse-v1", "x86-64-v2"):
        for anchor, schedule in schedules("cpu").items():
            assert any(g.name in CHOSEN for g in schedule.boundary_graphs(small(name))), anchor


@pytest.mark.parametrize(("name", "graph"), cases("armv8-a", "armv8.2-a"))
def test_neon_objects_run_under_an_emulator(name: str, graph: str) -> None:
    pytest.importorskip("unicorn", reason="there is no wheel of unicorn for this platform")
    declared = graphs(name)[graph]
    data, piece = data_of(declared), make_piece(declared, small(name))
    emulation = Emulation(piece, data.inputs, BINDINGS)
    results, bad = emulation.results(*run_unicorn(emulation.program))
    assert bad is None
    check(declared, data, results, graph)


def test_neon_objects_report_bad_indices() -> None:
    pytest.importorskip("unicorn", reason="there is no wheel of unicorn for this platform")
    declared = graphs("armv8-a")["gather_float32"]
    piece = make_piece(declared, small("armv8-a"))
    wrong = list(bad_indices(declared, data_of(declared)))
    for inputs in wrong[:2]:
        emulation = Emulation(piece, inputs, BINDINGS)
        _, bad = emulation.results(*run_unicorn(emulation.program))
        assert bad is not None and bad[2] in (-1, max(a.max() for a in inputs if a.dtype == "i8"))


def check_under_qemu(name: str, graph: str, processor: str, folder: Path) -> None:
    if qemu() is None:
        pytest.skip("qemu-aarch64 is not installed (Debian and Ubuntu: qemu-user-static)")
    declared = graphs(name)[graph]
    data, piece = data_of(declared), make_piece(declared, small(name))
    emulation = Emulation(piece, data.inputs, BINDINGS)
    results, bad = emulation.results(*run_qemu(emulation.program, folder, processor))
    assert bad is None
    check(declared, data, results, graph)


@pytest.mark.parametrize(("name", "graph"), cases("neoverse-v1"))
def test_sve_objects_run_under_an_emulator(name: str, graph: str, tmp_path: Path) -> None:
    check_under_qemu(name, graph, "max,sve256=on", tmp_path)


@pytest.mark.parametrize("graph", ["product_bfloat16", "product_pairs", "product_pairs_symbolic"])
def test_dots_of_pairs_run_under_an_emulator(graph: str, tmp_path: Path) -> None:
    """BFDOT, which rounds sums in a way of its own; the other emulator doesn't know it."""
    check_under_qemu("armv8.2-a,+bf16", graph, "max", tmp_path)


@pytest.mark.parametrize(("name", "graph"), cases(*OLDER))
def test_older_instruction_sets_run_on_this_machine(name: str, graph: str) -> None:
    missing = missing_features(("x86_64", *named_target(name).features))
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    declared = graphs(name)[graph]
    data, piece = data_of(declared), make_piece(declared, small(name))
    outputs = piece.executable().run([array.copy() for array in data.inputs])
    check(declared, data, outputs, graph)


@pytest.mark.parametrize(
    ("name", "wanted", "unwanted"),
    [
        ("armv8-a", r"fmla\s+v\d+\.4s", r"\bz\d+\.[bhsd]\b"),
        ("neoverse-v1", r"fml?a[d]?\s+z\d+\.s", r"fmla\s+v\d+\.4s"),
        ("x86-64-v2", r"mulps\s+.*%xmm", r"%ymm|vfmadd"),
        ("x86-64-v3", r"vfmadd\w+ps\s+.*%ymm", r"%zmm"),
        ("x86-64-v4", r"vfmadd\w+ps\s+.*%zmm", r"mulps\s+.*%ymm"),
    ],
    ids=["neon", "sve", "sse4.2", "avx2", "avx-512"],
)
def test_the_code_is_that_of_the_instruction_set(name: str, wanted: str, unwanted: str) -> None:
    """A product holds the vectors of its target: an emulator would run narrower ones, too."""
    declared = graphs(name)["product_tiles_float32"]
    stages = Stages(make_piece(declared, small(name)).piece, small(name))
    text = stages.source()["assembly"]
    assert re.search(wanted, text) and not re.search(unwanted, text)
