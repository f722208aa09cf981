"""The sizes of the loops of a product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu.target import named_target
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.codegen.schedules.cpu.gemm_operand import product_of
from frame.codegen.schedules.cpu.gemm_plan import GemmPlan, Source, make_plan
from frame.core.dtypes import DType, float32, float64
from frame.core.targets import TargetDescription
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Layout, TensorType
from tests.support.compile import make_piece

PAGE, TRANSLATED = 4096, 64
TARGET = replace(named_target("x86-64-v3"), l1=1 << 15, l2=1 << 19)


def matmul(rows: int, depth: int, columns: int, dtype: DType = float32) -> Graph:
    with GraphBuilder("matmul") as builder:
        x = builder.input(TensorType(dtype, (rows, depth)))
        y = builder.input(TensorType(dtype, (depth, columns)))
        builder.output(ops.matmul(x, y))
    return builder.finish()


def transposed_matmul(size: int) -> Graph:
    with GraphBuilder("transposed") as builder:
        x = builder.input(TensorType(float32, (size, size)))
        y = builder.input(TensorType(float32, (size, size)))
        builder.output(ops.matmul(x, y, transpose_a=True))
    return builder.finish()


def plan_of(rows: int, depth: int, columns: int) -> GemmPlan:
    return make_plan(product_of(matmul(rows, depth, columns)), TARGET)


def packed_plan_of(
    rows: int, depth: int, columns: int, target: TargetDescription = TARGET
) -> GemmPlan:
    """The plan of a product whose right operand is stored as panels."""
    width = register_tile(target)[1] * target.lanes(float32)
    with GraphBuilder("packed") as builder:
        x = builder.input(TensorType(float32, (rows, depth)))
        layout = Layout((1, 0), ((1, width),))
        y = builder.input(TensorType(float32, (depth, columns), layout))
        builder.output(ops.matmul(x, y))
    plan = make_plan(product_of(builder.finish()), target)
    assert plan.source is Source.LAYOUT
    return plan


def test_rows_of_a_deep_pass_and_a_panel_are_translated_at_once() -> None:
    plan = packed_plan_of(1024, 256, 1024)
    assert plan.is_single_pass and not plan.copy_left and not plan.keeps_panels
    panel = plan.depth * plan.columns * float32.itemsize
    left = plan.tiles * plan.rows * plan.depth * float32.itemsize
    assert (panel + left) // PAGE + plan.tiles * plan.rows <= TRANSLATED  # a page a row of it


def test_wide_panels_still_meet_some_tiles() -> None:
    wide = replace(named_target("x86-64-v3,+avx512f,+avx512bw,+avx512dq,+avx512vl"), l2=1 << 21)
    plan = make_plan(product_of(matmul(4096, 2048, 4096)), wide)
    assert plan.source is Source.SHARED and plan.is_single_pass and plan.tiles >= 4


@pytest.mark.parametrize("size", [512, 1000, 1024, 2048])
def test_a_chunk_packs_what_it_keeps_in_the_second_level_cache(size: int) -> None:
    plan = plan_of(size, size, size)
    assert plan.source is Source.CHUNK and plan.keeps_panels and not plan.workspaces()
    panels = plan.panels * plan.depth * plan.columns * float32.itemsize
    assert panels <= TARGET.l2 // 2
    # Rows of the left operand come from beyond: each element meets several panels then.
    assert plan.panels >= 2 and plan.tiles * plan.rows >= 256


def test_panels_of_packed_weights_are_kept_for_few_rows_or_where_they_are_deep() -> None:
    for rows, depth in ((128, 784), (128, 256), (1024, 784), (2048, 2048)):
        plan = packed_plan_of(rows, depth, 1024)
        assert plan.keeps_panels and plan.is_single_pass and not plan.copy_left
    assert not packed_plan_of(1024, 256, 1024).keeps_panels  # one stays in the first-level cache


def test_few_rows_prefetch_the_panels_of_the_next_columns() -> None:
    for rows, depth, columns in ((128, 256, 256), (128, 1024, 256), (256, 256, 1024)):
        plan = packed_plan_of(rows, depth, columns)
        assert plan.follows and plan.tiles >= 4  # each tile takes a quarter of a panel
    assert not packed_plan_of(512, 1024, 256).follows  # a panel is read often enough
    assert not packed_plan_of(12, 256, 1024).follows  # too few tiles to take all of it
    assert not packed_plan_of(128, 256, 16).follows  # one chunk has all columns
    assert not plan_of(128, 256, 1024).follows  # panels that a chunk packs are near


def test_chunks_of_packed_weights_are_as_large_as_each_other_and_about_square() -> None:
    plan = packed_plan_of(128, 1024, 256)
    tiles, panels = 22, 16  # in all
    assert tiles % plan.tiles == panels % plan.panels == 0
    assert tiles // plan.tiles > 1 and plan.panels > 1
    assert tiles // plan.tiles * panels // plan.panels >= 16


def test_rows_that_stay_near_leave_room_to_few_panels() -> None:
    near, far = plan_of(197, 768, 768), plan_of(1024, 768, 768)
    assert near.panels == 2 < far.panels
    wide = replace(named_target("x86-64-v3,+avx512f,+avx512bw,+avx512dq,+avx512vl"), l2=1 << 21)
    deep = make_plan(product_of(matmul(64, 4096, 1024)), wide)
    packed = deep.panels * deep.depth * deep.columns * float32.itemsize
    assert deep.source is not Source.CHUNK or packed <= 1 << 18  # on the stack of a thread


def test_a_small_right_operand_is_read_in_place() -> None:
    plan = plan_of(128, 128, 128)
    assert plan.source is Source.PLACE and not plan.workspaces()
    assert plan.tiles * plan.rows >= 128  # enough panels: rows are not cut


def test_panels_that_are_kept_share_the_rows_of_the_next_tile() -> None:
    plan = plan_of(1024, 1024, 1024)
    assert plan.ahead * plan.panels >= plan.height > plan.ahead
    transposed = make_plan(product_of(transposed_matmul(1024)), TARGET)
    assert not transposed.ahead  # packed rows are one run of lines: hardware follows them
    assert not plan_of(128, 128, 128).ahead


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_a_product_of_several_blocks_is_right(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    shapes = ((611, 1000), (1000, 77))
    x, y = (generator.integers(-8, 9, shape).astype(dtype.numpy) for shape in shapes)
    (found,) = make_piece(matmul(611, 1000, 77, dtype)).executable().run([x, y])
    assert np.array_equal(found, x @ y)  # small integers: every sum is exact


def test_a_shallow_product_writes_whole_rows() -> None:
    """Panels fit the second-level cache, and the result is larger than what it is made of."""
    plan = packed_plan_of(1024, 32, 1024)
    assert plan.keeps_panels and plan.panels * plan.columns == 1024
    assert plan.tiles * plan.rows * 16 <= 1024 + 16 * plan.rows  # enough chunks for many threads
    deep, few, large = (1024, 256, 256), (64, 32, 1024), (1024, 128, 1024)
    for sizes in (deep, few, large):
        other = packed_plan_of(*sizes)
        assert not (other.keeps_panels and other.panels * other.columns == sizes[2])


@pytest.mark.parametrize("columns", [1024, 1031])
def test_a_shallow_product_is_right(columns: int) -> None:
    generator = np.random.default_rng(6)
    weight = generator.integers(-8, 9, (5, columns)).astype(np.float32)
    x, y = (generator.integers(-8, 9, s).astype(np.float32) for s in ((263, 5), (263, columns)))
    layer = frame.trace(
        lambda x, y: ops.relu(ops.matmul(x, ops.constant(weight))) + y,
        *(frame.spec(a.shape) for a in (x, y)),
    )
    assert np.array_equal(frame.compile(layer)(x, y), np.maximum(x @ weight, 0) + y)


@pytest.mark.parametrize("is_row", [True, False])
def test_a_large_matrix_is_read_in_runs_by_parts_of_the_inner_axis(is_row: bool) -> None:
    generator = np.random.default_rng(7)
    depth, length = 1037, 259
    vector = generator.integers(-8, 9, (1, depth)).astype(np.float32)
    matrix = generator.integers(-8, 9, (depth, length)).astype(np.float32)
    bias = generator.integers(-8, 9, (length,)).astype(np.float32)

    def layer(x, w, c):
        y = ops.matmul(x, w) if is_row else ops.matmul(w, x, transpose_a=True, transpose_b=True)
        return ops.relu(ops.reshape(y, (length,)) + c)

    model = frame.compile(layer, [frame.spec(a.shape) for a in (vector, matrix, bias)])
    assert "parts" in model.source()["loop"]
    expected = np.maximum((vector @ matrix)[0] + bias, 0)  # small integers: every sum is exact
    assert np.array_equal(model(vector, matrix, bias), expected)
