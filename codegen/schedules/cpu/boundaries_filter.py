"""Boundary graphs of the gradient of a convolution by its weights.

They follow the rules of `boundaries`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import HALVES, Cases, around, graph
from frame.core.dtypes import float32, float64
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value

_SAME: dict[str, Any] = {"padding": (1, 1, 1, 1)}


def conv2d_filter_grad(target: TargetDescription) -> Iterator[Graph]:
    """Yield gradients at the edges of vectors, tiles and blocks, and what follows them."""
    for dtype in (float32, float64, *HALVES):
        yield graph(f"filter_grad_{dtype}", dtype, lambda cases: _edges(cases, target))
    yield graph("filter_grad_blocks", float32, _blocks)
    yield graph("filter_grad_epilogues", float32, _epilogues)
    yield graph("filter_grad_rooms", float32, lambda cases: _rooms(cases, target))
    yield graph("filter_grad_shared", float32, _shared)
    yield graph("filter_grad_symbolic", float32, _symbolic)


def _gradient(
    cases: Cases, x: Sequence[int | Dim], outputs: int, window: tuple[int, int], **values: Any
) -> Value:
    """Append a gradient by weights; a cotangent has the shape of the convolution's results."""
    images = cases.input(x)
    weights = cases.input((outputs, x[1], *window))
    places = ops.conv2d(images, weights, **values).shape
    return ops.conv2d_filter_grad(images, cases.input(places), window=window, **values)


def _edges(cases: Cases, target: TargetDescription) -> None:
    lanes = target.lanes(float32)
    for width in around(1, lanes):
        cases.outputs(_gradient(cases, (2, 2, 3, width), 3, (3, 3), **_SAME))
    for outputs in around(lanes, 2 * lanes)[::2]:
        cases.outputs(_gradient(cases, (3, 2, 2, 3), outputs, (2, 2)))
    wide = {"strides": (2, 2), "padding": (1, 0, 2, 1)}
    cases.outputs(_gradient(cases, (2, 2, 5, 2 * lanes + 1), 3, (3, 2), **wide))
    spread = {"strides": (1, 2), "dilation": (2, 3), "padding": (2, 1, 3, 3)}
    cases.outputs(_gradient(cases, (1, 3, 6, lanes), 4, (2, 3), **spread))
    cases.outputs(_gradient(cases, (2, 3, 4, 1), 2, (1, 1), strides=(2, 2)))
    cases.outputs(_gradient(cases, (1, 2, 7, 8), 2, (3, 2), padding=(-1, 1, 2, -2)))


def _blocks(cases: Cases) -> None:
    """Several blocks of channels, bands of rows and parts of the pixels; the last are smaller."""
    cases.outputs(_gradient(cases, (3, 33, 4, 4), 5, (3, 3), **_SAME))
    cases.outputs(_gradient(cases, (2, 8, 9, 10), 17, (3, 3), **_SAME))
    cases.outputs(_gradient(cases, (1, 70, 5, 5), 3, (1, 1), strides=(2, 2)))


def _rooms(cases: Cases, target: TargetDescription) -> None:
    """Few channels and points: pixels of the cotangent fill local memory before those of x do.

    With caches of a usual size the first has as many as fill it; with small ones a few rows do.
    """
    wide = 64 if target.l2 >= 1 << 17 else 4
    cases.outputs(_gradient(cases, (wide, 1, 28, 28) if wide > 4 else (2, 1, 9, 9), 32, (3, 3)))
    cases.outputs(_gradient(cases, (8, 3, wide, wide), 16, (1, 1)))
    # a row of more pieces than are copied without a loop
    cases.outputs(_gradient(cases, (2, 1, 1, 17 * target.lanes(float32) + 2), 3, (1, 2)))


def _shared(cases: Cases) -> None:
    """The cotangent is x as well, or what x is computed from."""
    x = cases.input((2, 3, 4, 5))
    cases.outputs(ops.conv2d_filter_grad(x, x, window=(1, 1)))
    x = cases.input((2, 3, 4, 4))
    turned = ops.transpose(x, permutation=(0, 1, 3, 2))
    cases.outputs(ops.conv2d_filter_grad(turned, x, window=(1, 1)))


def _epilogues(cases: Cases) -> None:
    gradient = _gradient(cases, (2, 3, 5, 4), 5, (3, 3), **_SAME)
    momentum = gradient + cases.input((5, 3, 3, 3)) * 0.5
    rows = ops.relu(momentum) * cases.input((5, 1, 1, 1)) + cases.input(())
    cases.outputs(momentum, rows)
    gradient = _gradient(cases, (2, 3, 5, 4), 5, (3, 3), **_SAME)
    cases.outputs(gradient * cases.input((3, 1, 1)))  # not along the weights of an output
    one = _gradient(cases, (2, 1, 5, 4), 5, (1, 3))
    cases.outputs(one + cases.input((5, 1, 1, 3)))
    x, cotangent = cases.input((2, 3, 5, 9)), ops.expand(cases.input((2, 4, 1, 1)), (2, 4, 5, 9))
    cases.outputs(ops.conv2d_filter_grad(x, cotangent, window=(3, 3), **_SAME))
    x, cotangent = ops.expand(cases.input((2, 3, 1, 1)), (2, 3, 5, 17)), cases.input((2, 4, 2, 8))
    cases.outputs(ops.conv2d_filter_grad(x, cotangent, window=(3, 3), strides=(2, 2)))
    x, cotangent = cases.input((2, 2, 3, 3)), cases.input((2, 2, 1, 1))
    cases.outputs(ops.conv2d_filter_grad(x, cotangent, window=(3, 3)) + x)


def _symbolic(cases: Cases) -> None:
    batch, height = Dim.symbol("batch"), Dim.symbol("height")
    cases.outputs(_gradient(cases, (batch, 3, 5, 5), 4, (3, 3), **_SAME))
    x, cotangent = cases.input((2, 3, height, 4)), cases.input((2, 5, height, 4))
    values: dict[str, Any] = {"window": (3, 3), "padding": (1, 1, 1, 1)}
    cases.outputs(ops.relu(ops.conv2d_filter_grad(x, cotangent, **values)))
    tall = _gradient(cases, (1, 1, 201, 170), 2, (2, 1), dilation=(200, 1))
    cases.outputs(tall)  # which local memory has no room for
