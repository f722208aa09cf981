"""The schedules of the cpu family, one row an anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from frame.codegen.schedules.cpu import (
    attention,
    concat,
    conv,
    conv_filter,
    conv_variants,
    conv_winograd,
    copy_layout,
    cumulative,
    elementwise,
    fourier,
    gather,
    gemm,
    gemm_epilogue,
    gemm_variants,
    pool,
    pool_grad,
    reduction,
    sample,
    scatter,
)
from frame.codegen.schedules.registry import Schedule, register_schedule
from frame.core.dtypes import DType
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph


def _reduction_workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    return reduction.workspaces(body)


def _boundaries(anchor: str) -> Callable[[TargetDescription], Iterable[Graph]]:
    """Return what makes the boundary graphs of an anchor; only tests load them."""

    def graphs(target: TargetDescription) -> Iterable[Graph]:
        from frame.codegen.schedules.cpu.boundaries import BOUNDARIES

        return BOUNDARIES[anchor](target)

    return graphs


def _shapes(anchor: str) -> Callable[[TargetDescription, DType], Iterable[Shape]]:
    """Return what makes the boundary shapes of an anchor; only tests load them."""

    def shapes(target: TargetDescription, dtype: DType) -> Iterable[Shape]:
        from frame.codegen.schedules.cpu.boundaries import SHAPES

        return SHAPES[anchor](target, dtype) if anchor in SHAPES else ()

    return shapes


for _schedule in (
    Schedule("elementwise", elementwise.lower, overwritable=elementwise.overwritable),
    Schedule("reduction", reduction.lower, _reduction_workspaces, reduction.overwritable),
    Schedule(
        "contraction",
        gemm.lower,
        gemm.workspaces,
        gemm_epilogue.overwritable,
        gemm.layouts,
        variants=gemm_variants.group_variants,
    ),
    Schedule(
        "convolution",
        conv.lower,
        conv.workspaces,
        gemm_epilogue.overwritable,
        conv.layouts,
        conv_winograd.repeated,
        variants=conv_variants.group_variants,
    ),
    Schedule(
        "conv2d_filter_grad", conv_filter.lower, conv_filter.workspaces, gemm_epilogue.overwritable
    ),
    Schedule("attention", attention.lower, attention.workspaces),
    Schedule("pool", pool.lower),
    Schedule("pool_grad", pool_grad.lower, pool_grad.workspaces, checks=pool_grad.checks),
    Schedule("gather", gather.lower, checks=gather.checks),
    Schedule("scatter", scatter.lower, scatter.workspaces, checks=scatter.checks),
    Schedule("concat", concat.lower),
    Schedule("cumsum", cumulative.lower, cumulative.workspaces),
    Schedule("affine_sample", sample.lower),
    Schedule("fourier_rows", fourier.lower, fourier.workspaces),
    Schedule("relayout", copy_layout.lower),
):
    register_schedule(
        replace(
            _schedule,
            boundary_graphs=_boundaries(_schedule.anchor),
            boundary_shapes=_shapes(_schedule.anchor),
        )
    )
