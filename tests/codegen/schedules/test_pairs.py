"""Products of bfloat16 by dot products of pairs: whole kernels on this machine, and their text.

Without the instruction the same kernels compute each dot from its parts, as the loop IR says.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.backends.cpu.compiling import Stages
from frame.backends.cpu.target import host_target, named_target
from frame.codegen.schedules.cpu.gemm_operand import product_of
from frame.codegen.schedules.cpu.gemm_plan import make_plan
from frame.codegen.schedules.registry import schedules
from frame.compiler.optimizers.recipe import Recipe
from frame.core.dtypes import bfloat16, float32
from frame.core.targets import TargetDescription
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType
from frame.train import SGD
from tests.support.boundaries import BINDINGS, PAIRS, all_graphs, check, data_of, target_of
from tests.support.compile import make_piece

# target -> the instruction, and the lanes of its sums
TARGETS = {"x86-64-v4,+avx512bf16": ("vdpbf16ps", 16), "armv8.2-a,+bf16": ("bfdot", 4)}
WIDENING = r"vpmovzxwd|vpslld|u?shll|fmla|vfmadd"


@pytest.mark.parametrize(
    "name", sorted(n for n in all_graphs("contraction", True) if n.startswith(PAIRS))
)
def test_boundaries_run_natively_in_pairs(name: str) -> None:
    for small in (False, True):
        target = host_target()
        if small:
            target = replace(target, l1=2048, l2=8192, l3=0)
        declared = all_graphs("contraction", small)[name]
        data, piece = data_of(declared), make_piece(declared, target_of(declared, target))
        check(declared, data, piece.executable().run([a.copy() for a in data.inputs]), name)


def product(
    rows: int, depth: int, columns: int, flip_x: bool = False, flip_y: bool = False
) -> Graph:
    with GraphBuilder("product") as builder:
        x = builder.input(TensorType(bfloat16, (depth, rows) if flip_x else (rows, depth)))
        y = builder.input(TensorType(bfloat16, (columns, depth) if flip_y else (depth, columns)))
        found = ops.matmul(x, y, transpose_a=flip_x, transpose_b=flip_y)
        builder.output(ops.cast(found, float32))
    return builder.finish()


def test_a_product_is_the_same_for_any_order_of_chunks_and_exact_where_sums_are() -> None:
    graph = product(300, 301, 200)
    generator = np.random.default_rng(3)
    shapes = ((300, 301), (301, 200))
    x, y = (generator.integers(-8, 9, shape).astype(bfloat16.numpy) for shape in shapes)
    piece = make_piece(graph, in_pairs(host_target()))
    (found,) = piece.executable().run([x, y])
    assert np.array_equal(found, x.astype(np.float32) @ y.astype(np.float32))


def in_pairs(target: TargetDescription) -> TargetDescription:
    return replace(target, intrinsics=target.intrinsics | {"dot_bf16"})


@pytest.mark.parametrize("name", TARGETS)
def test_a_plan_takes_pairs_where_the_target_has_them(name: str) -> None:
    made = product_of(product(64, 33, 64))
    plan = make_plan(made, named_target(name))
    assert plan.product.pairs and plan.lanes == TARGETS[name][1] and plan.product.steps == 17
    assert plan.copy_left  # half of the last pair of each row is none
    assert not make_plan(product_of(product(64, 32, 64)), named_target(name)).copy_left
    assert not make_plan(made, named_target(name.split(",")[0])).product.pairs


def test_vectors_are_those_of_the_instruction_where_others_are_wider() -> None:
    plan = make_plan(product_of(product(64, 32, 64)), named_target("neoverse-v1"))
    assert plan.product.pairs and plan.lanes == 4


@cache
def assembly(name: str) -> str:
    """The code of a step that trains a perceptron in mixed precision."""
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = frame.compile(
        nn.Sequential("mlp", layers),
        inputs=[frame.spec((64, 256))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((64,), "int64")],
        optimizer=Recipe(SGD(momentum=0.9), precision="bfloat16"),
        target=name,
    )
    return model.source(entry="train_step")["assembly"]


def inner_loops(text: str) -> list[Counter[str]]:
    """The instructions of each loop that has no other inside: from a label to the jump back."""
    found, label, lines = [], "", Counter[str]()
    for line in text.splitlines():
        if line.startswith(".L"):
            label, lines = line.split(":")[0], Counter()
        words = line.split()
        if line.startswith("\t") and words and not words[0].startswith("."):
            lines[words[0]] += 1
            if words[-1] == label:
                found.append(lines)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_the_products_of_a_training_step_use_the_instruction(name: str) -> None:
    dot, _ = TARGETS[name]
    loops = [loop for loop in inner_loops(assembly(name)) if loop[dot]]
    assert loops
    for loop in loops:
        assert not any(re.fullmatch(WIDENING, op) for op in loop), loop
        loads = sum(count for op, count in loop.items() if re.match(r"vbroadcast|ld1r", op))
        # Two dots for each pair that is broadcast: as two fma for each element in float32, which
        # take half of the inner axis.
        assert loop[dot] >= 2 * loads - 1


def test_an_instruction_is_called_for_its_own_target_alone() -> None:
    for name, (dot, _) in TARGETS.items():
        for target in (name, name.split(",")[0]):
            piece = make_piece(product(16, 32, 64), named_target(target))
            text = Stages(piece.piece, named_target(target)).source()["assembly"]
            assert (dot in text) == (target == name)


def test_every_graph_of_pairs_is_one_of_the_schedule() -> None:
    declared = {g.name for g in schedules("cpu")["contraction"].boundary_graphs(host_target())}
    assert {"product_pairs", "product_pairs_symbolic", "product_bfloat16"} <= declared
    assert BINDINGS["batch"] % 2  # the last pair of a symbolic depth is half a one
