"""The variants of every schedule give the very bits of the default, and others are refused."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frame.backends.cpu import compiling
from frame.backends.cpu.backend import CpuBackend
from frame.backends.cpu.target import host_target
from frame.codegen.schedules.cpu.gemm_plan import make_plan
from frame.codegen.schedules.cpu.gemm_variants import plan_of, plan_variants, require_legal
from frame.codegen.schedules.registry import schedule_of, schedules
from frame.codegen.schedules.variants import changes_of, text_of
from frame.compiler.passes.operator_fusion import fuse, inline_groups
from frame.compiler.pipeline import group_piece
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph, Node
from frame.runtime.measuring import operand_sets
from tests.codegen.schedules.test_gemm_plan import matmul, product_of
from tests.support.boundaries import all_graphs, target_of
from tests.support.compile import NoStore

TARGET = host_target()
ANCHORS = sorted(
    name for name, each in schedules("cpu").items() if name in ("contraction", "convolution")
)
GRAPHS = sorted(name for anchor in ANCHORS for name in all_graphs(anchor, False))
SHARE = 256  # of the variants, which a usual run compares


def groups_of(graph: Graph) -> Iterator[tuple[Node, list[np.ndarray]]]:
    """Yield the groups of a graph that have variants, each with operands."""
    fused = fuse(inline_groups(graph), CpuBackend().capabilities(TARGET).anchors)
    for node in fused.nodes:
        if node.op == "group" and compiling.variants(node, target_of(graph, TARGET)):
            yield node, operand_sets(node, {})[0]


def results(node: Node, operands: list[np.ndarray], target: Any, variant: str) -> list[bytes]:
    attributes = {**node.attributes, **({"variant": variant} if variant else {})}
    types = tuple(result.type for result in node.results)
    group = Node("group", node.operands, attributes, types)
    backend = CpuBackend()
    piece = group_piece(group, target, backend.capabilities(target), backend.group_info)
    made = backend.compile(piece, target, {}, NoStore()).run(operands)
    return [array.tobytes() for array in made]


def compare(name: str, share: int) -> int:
    """Compare the variants of a graph that fall into a share; return how many there were."""
    (graph,) = (all_graphs(a, False)[name] for a in ANCHORS if name in all_graphs(a, False))
    target, count = target_of(graph, TARGET), 0
    for node, operands in groups_of(graph):
        chosen = [
            variant
            for variant in compiling.variants(node, target)
            if zlib.crc32(f"{name} {node.operands} {variant}".encode()) % share == 0
        ]
        expected = results(node, operands, target, "") if chosen else []
        for variant in chosen:
            count += 1
            assert results(node, operands, target, variant) == expected, (name, variant)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_every_variant_gives_the_bits_of_the_default(name: str) -> None:
    compare(name, 1)


def test_some_variants_give_the_bits_of_the_default() -> None:
    assert sum(compare(name, SHARE) for name in GRAPHS) > 0


@pytest.mark.parametrize("sizes", [(64, 700, 512), (197, 768, 768), (33, 65, 129), (1000, 17, 3)])
def test_products_offer_variants_that_differ(sizes: tuple[int, int, int]) -> None:
    plan = make_plan(product_of(matmul(*sizes)), TARGET)
    found = plan_variants(plan, TARGET)
    assert len(set(found)) == len(found) >= 4
    for text in found:
        made = plan_of(plan.product, TARGET, text)
        assert made != plan and (made.depth, made.source) == (plan.depth, plan.source)
        assert text == text_of(changes_of(text))


def test_a_variant_of_another_depth_is_refused() -> None:
    """Passes of another depth add up other partial sums."""
    plan = make_plan(product_of(matmul(64, 700, 512)), TARGET)
    for changes in ({"depth": plan.depth // 2}, {"lanes": plan.lanes // 2}):
        with pytest.raises(InvalidArgumentError, match=f"its {next(iter(changes))} is another"):
            require_legal(plan, replace(plan, **changes), TARGET)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=8", "may change"),
        ("tiles=0", "a size is 0"),
        ("rows=40", "registers"),
        ("ahead=9", "prefetch"),
        ("keeps_panels=2", "0 or 1"),
        ("tiles", "expected a variant such as"),
        ("tiles=-1", "expected a variant such as"),
        ("panels=4096,keeps_panels=0,ahead=0", "local memory"),
    ],
)
def test_illegal_texts_are_refused(text: str, message: str) -> None:
    made = product_of(matmul(197, 768, 768))
    with pytest.raises(InvalidArgumentError, match=message):
        plan_of(made, TARGET, text)


def test_schedules_without_variants_refuse_all() -> None:
    (graph,) = list(all_graphs("elementwise", False).values())[:1]
    fused = fuse(inline_groups(graph), CpuBackend().capabilities(TARGET).anchors)
    group = next(n for n in fused.nodes if n.attributes.get("anchor") == "elementwise")
    types = tuple(result.type for result in group.results)
    changed = Node("group", group.operands, {**group.attributes, "variant": "tiles=1"}, types)
    with pytest.raises(InvalidArgumentError, match="has no variants"):
        schedule_of(changed)
