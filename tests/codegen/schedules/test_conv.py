"""Plans of convolutions; with a symbolic batch, the schedule and the numbers of a fixed one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import frame
from frame import ops
from frame.backends.cpu.target import host_target, named_target
from frame.codegen.schedules.cpu.conv import layouts
from frame.codegen.schedules.cpu.conv_panels import PanelPlan, make_panels
from frame.codegen.schedules.cpu.conv_plan import ConvPlan, make_plans
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.core import config
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, Size
from frame.core.tolerances import compare
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType
from frame.ops.interpreter import interpret
from frame.ops.registry import create_node
from tests.support.boundaries import check, data_of, run_interpreted
from tests.support.compile import make_piece

BATCH = 6
# (size of the image, size of the window, attributes)
FILTER_GRADIENTS = {
    "pixels": (9, 7, {}),
    "window": (8, 8, {"padding": (1, 1, 1, 1)}),
    "strided": (9, 4, {"padding": (1, 1, 1, 1), "dilation": (2, 2)}),
    "point": (3, 1, {}),
    "groups": (9, 7, {"groups": 2}),
}


def filter_gradient(name: str, batch: Size) -> Graph:
    """The gradient by the weights: the batch stands in the place of the channels."""
    size, window, attributes = FILTER_GRADIENTS[name]
    groups = attributes.get("groups", 1)
    with GraphBuilder(name) as builder:
        x = builder.input(TensorType(float32, (5, batch * groups, size, size)))
        dy = builder.input(TensorType(float32, (14, batch, window, window)))
        builder.output(ops.conv2d(x, dy, **attributes))
    return builder.finish()


def plan_of(graph: Graph) -> ConvPlan:
    (group,) = make_piece(graph).piece.graph.nodes
    (plan,) = make_plans(group.attributes["body"], host_target())
    return plan


@pytest.mark.parametrize("name", FILTER_GRADIENTS)
def test_a_filter_gradient_runs_the_same_with_a_symbolic_batch(name: str) -> None:
    graphs = [filter_gradient(name, batch) for batch in (Dim.symbol("batch"), BATCH)]
    generator = np.random.default_rng(3)
    shapes = [entry.value.shape for entry in graphs[1].inputs]
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    symbolic, fixed = (make_piece(graph).executable().run(inputs)[0] for graph in graphs)
    assert symbolic.tobytes() == fixed.tobytes()
    first, second = (plan_of(graph) for graph in graphs)
    assert replace(first, node=second.node, panels=second.panels, tiles=second.tiles) == second


def test_no_image_at_all_gives_zeros() -> None:
    graph = filter_gradient("pixels", Dim.symbol("batch"))
    inputs = [np.ones((5, 0, 9, 9), np.float32), np.ones((14, 0, 7, 7), np.float32)]
    (result,) = make_piece(graph).executable().run(inputs)
    assert result.shape == (5, 14, 3, 3)
    assert not result.any()


def panels_of(*shape: int, outputs: int = 256, window: int = 3) -> PanelPlan:
    """The plan of a convolution with bias on a small AVX2 machine."""
    target = replace(named_target("x86-64-v3"), l1=1 << 15, l2=1 << 19)
    with GraphBuilder("conv") as builder:
        x = builder.input(TensorType(float32, shape))
        w = builder.input(TensorType(float32, (outputs, shape[1], window, window)))
        bias = ops.reshape(builder.input(TensorType(float32, (outputs,))), (outputs, 1, 1))
        builder.output(ops.conv2d(x, w, padding=(window // 2,) * 4) + bias)
    body = builder.finish()
    (plan,) = make_plans(body, target)
    panels = make_panels(plan, body, target)
    assert panels is not None
    assert panels.panels * panels.channels * panels.window * panels.columns * 4 <= target.l2 // 2
    return panels


@pytest.mark.parametrize("shape", [(1, 256, 14, 14), (8, 512, 7, 7), (2, 64, 28, 28)])
def test_panels_run_across_the_ends_of_rows(shape: tuple[int, ...]) -> None:
    plan = panels_of(*shape)
    assert plan.joined and plan.crosses
    assert plan.conv.pieces_of_panel == plan.columns  # a unit is a pixel: none is empty


def test_a_bias_leaves_a_point_convolution_one_row() -> None:
    plan = panels_of(8, 128, 28, 28, window=1)
    assert plan.conv.flat and plan.joined and not plan.crosses and plan.passes == 1


def test_deep_channels_are_cut_into_passes_that_share_weights() -> None:
    plan = panels_of(1, 256, 14, 14)
    assert plan.passes > 1 and plan.panels >= 4
    assert plan.tiles < plan.tile_count  # too few panels for all threads


def test_rows_of_whole_vectors_do_not_cross() -> None:
    plan = panels_of(1, 64, 56, 56, outputs=64)
    assert plan.joined and not plan.crosses and plan.piece == plan.conv.lanes


@pytest.mark.parametrize("outputs", [3, 8 * 6])
def test_weights_in_a_layout_that_is_not_read_are_refused(outputs: int) -> None:
    with GraphBuilder("tiles") as builder:
        w = builder.input(TensorType(float32, (outputs, 5, 3, 3)))
        (tiles,) = create_node("relayout", (w,), {"permutation": (), "blocks": (0, 5)})
        x = builder.input(TensorType(float32, (2, 5, 9, 9)))
        builder.output(ops.conv2d(x, tiles))
    with pytest.raises(InvalidArgumentError, match="reads weights in row-major order"):
        assert make_piece(builder.finish(), named_target("x86-64-v3")).lowered


# --- Winograd's transforms ------------------------------------------------------------------------


def convolution(*shape: int, outputs: int, winograd: int = 0) -> Graph:
    """A convolution by 3 x 3 whose weights are stored as transforms, if `winograd`."""
    with GraphBuilder("winograd") as builder:
        x = builder.input(TensorType(float32, shape))
        w = builder.input(TensorType(float32, (outputs, shape[1], 3, 3)))
        if winograd:
            blocks = (1, min(32, shape[1]), 0, min(ROWS, outputs))
            stored = {"permutation": (2, 3, 1, 0), "blocks": blocks, "winograd": winograd}
            (w,) = create_node("relayout", (w,), stored)
        builder.output(ops.conv2d(x, w, padding=(1, 1, 1, 1)))
    return builder.finish()


ROWS, _ = register_tile(host_target())


@pytest.mark.parametrize("shape", [(1, 64, 56, 56), (1, 256, 14, 14), (8, 512, 7, 7)])
def test_weights_of_many_channels_are_stored_as_transforms(shape: tuple[int, ...]) -> None:
    graph = convolution(*shape, outputs=shape[1])
    target = replace(named_target("x86-64-v3"), l1=1 << 15, l2=1 << 19)
    assert layouts(graph, target)[1].winograd in (2, 4)
    with config.override(FRAME_WINOGRAD="0"):
        assert layouts(graph, target)[1].winograd == 0


@pytest.mark.parametrize("shape", [(8, 3, 56, 56), (8, 15, 56, 56)])
def test_weights_of_few_channels_are_not(shape: tuple[int, ...]) -> None:
    assert all(
        not row.winograd for row in layouts(convolution(*shape, outputs=64), host_target()).values()
    )


@pytest.mark.parametrize("winograd", [2, 4])
def test_errors_of_transforms_are_near_those_of_a_direct_convolution(winograd: int) -> None:
    generator = np.random.default_rng(5)
    x = generator.standard_normal((1, 64, 12, 12)).astype(np.float32)
    w = generator.standard_normal((7, 64, 3, 3)).astype(np.float32)
    direct, transformed = (convolution(1, 64, 12, 12, outputs=7, winograd=n) for n in (0, winograd))
    (exact,) = interpret(direct, [x.astype(np.float64), w.astype(np.float64)], {})
    (terms,) = interpret(direct, [np.abs(x).astype(np.float64), np.abs(w).astype(np.float64)], {})
    (ours,) = make_piece(direct).executable().run([x, w])
    (theirs,) = make_piece(transformed).executable().run([x, w])
    compare(theirs, exact, float32, terms)
    ratio = np.std(theirs - exact) / np.std(ours - exact)
    assert ratio < 2.0


@pytest.mark.parametrize("winograd", [2, 4])
def test_an_outlier_costs_its_tiles_digits_and_no_other_ones(winograd: int) -> None:
    """A transform adds pixels of a tile up, also those that cancel: errors are relative to the
    largest of a tile, a known property of these transforms."""
    generator = np.random.default_rng(7)
    x = generator.standard_normal((1, 64, 12, 12)).astype(np.float32)
    w = generator.standard_normal((7, 64, 3, 3)).astype(np.float32)
    plain, transformed = (convolution(1, 64, 12, 12, outputs=7, winograd=n) for n in (0, winograd))
    program = make_piece(transformed).executable()
    (before,) = program.run([x, w])
    x[0, 5, 0, 0] = 1e6
    (exact,) = interpret(plain, [x.astype(np.float64), w.astype(np.float64)], {})
    (after,) = program.run([x, w])
    assert np.abs(after - exact).max() < 1e6 * np.abs(w).max() * 2.0**-20
    np.testing.assert_array_equal(after[..., winograd:, :], before[..., winograd:, :])
    np.testing.assert_array_equal(after[..., winograd:], before[..., winograd:])


@pytest.mark.parametrize("shape", [(1, 2, 1, 11), (1, 1, 3, 9)])
def test_nothing_is_read_before_the_only_row_of_tiles(shape: tuple[int, ...]) -> None:
    """Pieces of it cross its end, where no next row follows; the interpreter sees every place."""
    graph = convolution(*shape, outputs=2, winograd=4)
    data = data_of(graph)
    check(graph, data, run_interpreted(make_piece(graph), graph, data, {}), "one row")


def test_transforms_are_not_read_as_elements() -> None:
    graph = convolution(1, 64, 12, 12, outputs=7, winograd=4)
    (w,) = graph.nodes[-1].operands[1:]
    with (
        GraphBuilder("back"),
        pytest.raises(InvalidArgumentError, match="stored as Winograd's transforms"),
    ):
        create_node("relayout", (w,), {})


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("stride", [4, 5, 9])
def test_strides_beyond_those_that_vectors_are_dealt_out_by(stride: int, window: int) -> None:
    generator = np.random.default_rng(stride)
    x = generator.standard_normal((2, 3, 19, 40)).astype(np.float32)
    w = generator.standard_normal((4, 3, window, window)).astype(np.float32)
    result = frame.jit(lambda x, w: ops.conv2d(x, w, strides=(stride, stride)))(x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[2:], (2, 3))
    met = windows[:, :, ::stride, ::stride]
    expected, terms = (
        np.einsum("nchwij,ocij->nohw", *pair) for pair in ((met, w), (abs(met), abs(w)))
    )
    compare(result, expected, float32, terms)
