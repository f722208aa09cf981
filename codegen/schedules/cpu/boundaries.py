"""Graphs whose groups have sizes at every edge of the schedules: vectors, tiles, blocks, grains.

Each graph holds many independent groups, so that all of them cost one compilation. An input that
holds indices is named `below<limit>_...`: its elements must be from 0 to limit - 1. Results are
sums of products of inputs, or picked from them, so that the same graph over absolute values gives
the magnitude that rounding errors are relative to; in graphs named `mixed_...` they are not, and
errors are relative to the largest element of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from frame import ops
from frame.codegen.schedules.cpu.boundaries_along import cumsum, fourier_rows
from frame.codegen.schedules.cpu.boundaries_attention import attention
from frame.codegen.schedules.cpu.boundaries_filter import conv2d_filter_grad
from frame.codegen.schedules.cpu.boundaries_indexed import affine_sample, gather, scatter
from frame.codegen.schedules.cpu.boundaries_pairs import pairs
from frame.codegen.schedules.cpu.boundary_cases import HALVES, Cases, around, graph, uneven
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint64,
)
from frame.core.shapes import Dim, Shape
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value
from frame.ops.registry import create_node

_LONG_COLUMN = 260  # longer than columns of a left operand that are read in place


def contraction(target: TargetDescription) -> Iterator[Graph]:
    """Yield products at the edges of tiles, panels, passes and blocks."""
    yield from (_tile_edges(target, dtype) for dtype in (float32, float64))
    yield graph("product_blocks", float32, lambda cases: _block_edges(cases, target))
    yield graph("product_transposes", float32, lambda cases: _transposes(cases, target))
    yield graph("product_batches", float32, _batches)
    yield graph("product_vectors", float32, lambda cases: _vectors(cases, target))
    yield graph("product_epilogues", float32, _epilogues)
    yield graph("product_views", float32, lambda cases: _views(cases, target))
    yield graph("product_panels", float32, lambda cases: _many_panels(cases, target))
    for dtype in (*HALVES, int8, int32, int64):
        yield graph(f"product_{dtype}", dtype, lambda cases: _narrow(cases, target))
    yield graph("product_symbolic", float32, lambda cases: _symbolic(cases, target))
    yield graph("product_symbolic_deep", float32, lambda cases: _symbolic_depths(cases, target))
    yield from pairs(target)


def _product(cases: Cases, m: int | Dim, k: int | Dim, n: int) -> None:
    cases.outputs(ops.matmul(cases.input((m, k)), cases.input((k, n))))


def _columns(target: TargetDescription) -> int:
    """Two whole panels, and one that ends in a vector and a rest."""
    lanes = target.lanes(float32)
    return 2 * _packing(target)["blocks"][1] + lanes + 3


def _tile_edges(target: TargetDescription, dtype: DType) -> Graph:
    rows, vectors = register_tile(target)
    lanes = target.lanes(dtype)
    width = vectors * lanes

    def fill(cases: Cases) -> None:
        for m in around(1, rows, 2 * rows):
            _product(cases, m, lanes + 1, width + 1)
        for n in around(1, lanes, width, 2 * width):
            _product(cases, rows + 1, lanes + 1, n)
        for k in around(1, lanes, 2 * lanes):
            _product(cases, rows + 1, k, width + 1)

    return graph(f"product_tiles_{dtype}", dtype, fill)


def _pass_depth(target: TargetDescription) -> int:
    _, vectors = register_tile(target)
    return max(64, target.l1 * 3 // 4 // (vectors * target.vector_bits // 8))


def _block_edges(cases: Cases, target: TargetDescription) -> None:
    """More columns than stay in the first cache, more rows than stay in the second."""
    rows, vectors = register_tile(target)
    width, depth = vectors * target.lanes(float32), _pass_depth(target)
    wide = _columns(target)
    tiles = max(2, (target.l2 or target.l1) * 2 // 3 // (rows * depth * 4))
    for m in (17, *around(tiles * rows)):
        _product(cases, m, depth, wide)
    for k in (*around(depth), 2 * depth + 3):
        _product(cases, 18, k, wide)
    kept = max(2, target.l2 // (vectors * target.vector_bits))  # depth up to which panels stay
    for m, k in ((18, kept), (18, kept - 1), (18, kept + 1), (tiles * rows + 1, kept + 1)):
        _product(cases, m, k, wide)
    _product(cases, 5, 2 * depth + 3, wide)
    x, w = cases.input((18, depth + 1)), cases.input((depth + 1, wide))
    cases.outputs(ops.relu(ops.matmul(x, w)))
    _product(cases, 18, depth + 1, -(-wide // width) * width)
    _product(cases, 18, 2 * depth, wide)


def _transposes(cases: Cases, target: TargetDescription) -> None:
    lanes, depth = target.lanes(float32), _pass_depth(target)
    wide = _columns(target)
    for m, k, n in ((5, 7, 9), (lanes, lanes, lanes), (19, 35, wide), (20, depth + 3, wide)):
        for flip_a, flip_b in ((True, False), (False, True), (True, True)):
            a = cases.input((k, m) if flip_a else (m, k))
            b = cases.input((n, k) if flip_b else (k, n))
            cases.outputs(ops.matmul(a, b, transpose_a=flip_a, transpose_b=flip_b))


def _batches(cases: Cases) -> None:
    for left, right in (
        ((3, 5, 7), (3, 7, 17)),
        ((2, 3, 20, 7), (7, 33)),
        ((20, 7), (3, 7, 33)),
        ((2, 1, 20, 9), (3, 9, 18)),
        ((1, 20, 9), (4, 9, 18)),
        ((3, 1, 40), (3, 40, 9)),
        ((4, 21, 40), (40,)),
        ((40,), (2, 40, 9)),
        ((20, 7), (1, 7, 33)),
        ((1, 1, 40), (40, 9)),
    ):
        cases.outputs(ops.matmul(cases.input(left), cases.input(right)))


def _vectors(cases: Cases, target: TargetDescription) -> None:
    """Rows and columns: dot products, and sums of rows."""
    lanes = target.lanes(float32)
    sizes = ((1, 515), (9, 515), (7, lanes), (9, lanes + 1), (2 * lanes, 5), (2 * lanes + 1, 4))
    for k, n in sizes:
        x, column = cases.input((1, k)), cases.input((k, 1))
        cases.outputs(ops.matmul(x, cases.input((k, n))))
        cases.outputs(ops.matmul(x, cases.input((n, k)), transpose_b=True))
        cases.outputs(ops.matmul(cases.input((n, k)), cases.input((k,))))
        cases.outputs(ops.matmul(cases.input((k, n)), column, transpose_a=True))
    wide = target.l1 // 8 + lanes + 3
    for k, n in ((target.l2 // 256 + 5, 8 * lanes + 3), (target.l2 // (4 * wide) + 9, wide)):
        y = ops.matmul(cases.input((1, k)), cases.input((k, n)))  # cut along the inner axis
        cases.outputs(ops.relu(y + cases.input((n,))))


def _epilogues(cases: Cases) -> None:
    for m, k, n in ((7, 9, 33), (40, 20, 160), (1, 21, 33), (33, 20, 1)):
        y = ops.matmul(cases.input((m, k)), cases.input((k, n)))
        z = y + cases.input((n,))
        cases.outputs(z, ops.relu(z) * cases.input((m, 1)) + cases.input((m, n)))
    a = cases.input((18, 18))
    cases.outputs(ops.matmul(a, a) + a)
    cases.outputs(ops.cast(ops.matmul(a, cases.input((18, 20))), float16))
    cases.outputs(ops.matmul(ops.expand(cases.input((1, 9)), (5, 9)), cases.input((9, 17))))


def _many_panels(cases: Cases, target: TargetDescription) -> None:
    """Rows that so many panels read that they are copied, of full vectors and no rest."""
    width = _packing(target)["blocks"][1]
    _product(cases, 132, 128, 16 * width + 3)
    (packed,) = create_node("relayout", (cases.input((26, 4 * width + 3)),), _packing(target))
    for left in (cases.input((132, 26)), ops.relu(cases.input((132, 26)))):
        cases.outputs(ops.matmul(left, packed))  # prefetches panels, with and without rows


def _views(cases: Cases, target: TargetDescription) -> None:
    """Operands that are views of captures, or computed on the way, with and without a batch."""
    lanes, wide = target.lanes(float32), _columns(target)
    x, y = cases.input((2, 7, 3, 2 * lanes)), cases.input((2, 9, 3, 2 * lanes))
    heads = [ops.transpose(value, (0, 2, 1, 3)) for value in (x, y)]
    cases.outputs(ops.matmul(heads[0], heads[1], transpose_b=True))
    cases.outputs(ops.matmul(heads[0], ops.transpose(y, (0, 2, 3, 1))))
    a, b = cases.input((5, 18)), cases.input((3, 18, wide))
    cases.outputs(ops.matmul(ops.reshape(a, (1, 5, 18)), b))
    cases.outputs(ops.matmul(ops.relu(a), ops.reshape(b, (3, 18, wide))))
    one, many = cases.input((18, wide)), cases.input((3, 5, 18))
    cases.outputs(ops.matmul(ops.relu(many), one), ops.matmul(ops.transpose(many, (1, 0, 2)), one))
    cases.outputs(ops.matmul(ops.expand(cases.input((1, 1, 18)), (3, 20, 18)), one))
    cases.outputs(ops.matmul(ops.relu(cases.input((3, 1, 5, 18))), ops.relu(b)))
    cases.outputs(ops.matmul(cases.input((20, 1)), cases.input((1, 33))))
    cases.outputs(ops.matmul(cases.input((5, 18)), ops.iota((18, wide), 1, float32)))


def _narrow(cases: Cases, target: TargetDescription) -> None:
    whole = 2 * target.lanes(float32)
    for m, k, n in ((3, 5, 33), (20, 18, 43), (20, whole, 40), (1, 18, 20)):
        _product(cases, m, k, n)
        flipped = ops.matmul(cases.input((k, m)), cases.input((n, k)), True, True)
        cases.outputs(flipped)
    cases.outputs(ops.matmul(cases.input((2, 3, 5)), cases.input((2, 5, 9))))


def _symbolic(cases: Cases, target: TargetDescription) -> None:
    rows, wide = Dim.symbol("batch"), _columns(target)
    x = cases.input((rows, 20))
    cases.outputs(ops.relu(ops.matmul(x, cases.input((20, wide))) + cases.input((wide,))))
    cases.outputs(ops.matmul(x, cases.input((rows, wide)), transpose_a=True))
    weights = cases.input((20, wide))
    (packed,) = create_node("relayout", (weights,), _packing(target))
    cases.outputs(ops.matmul(x, packed))
    (packed,) = create_node("relayout", (cases.input((16, wide)),), _packing(target))
    for m in (1, 18, 257):  # panels that are packed, and kept; and all of them by rows
        y = ops.matmul(cases.input((m, 16)), packed)
        cases.outputs(ops.relu(y) + cases.input((m, wide)))


def _symbolic_depths(cases: Cases, target: TargetDescription) -> None:
    rows, depth = Dim.symbol("batch"), _pass_depth(target) + 1
    wide = _columns(target)
    _product(cases, rows, depth, wide)
    x, y = cases.input((_LONG_COLUMN, rows)), cases.input((_LONG_COLUMN, wide))
    cases.outputs(ops.matmul(x, y, transpose_a=True))


def _packing(target: TargetDescription) -> dict[str, tuple[int, ...]]:
    _, vectors = register_tile(target)
    return {"permutation": (1, 0), "blocks": (1, vectors * target.lanes(float32))}


# --- convolution ----------------------------------------------------------------------------------


def convolution(target: TargetDescription) -> Iterator[Graph]:
    """Yield convolutions at the edges of pieces, vectors, panels and tiles."""
    yield graph("convolution_pixels", float32, lambda cases: _pixels(cases, target))
    yield graph("convolution_windows", float32, lambda cases: _windows(cases, target))
    yield graph("convolution_float64", float64, _few_convolutions)
    for dtype in HALVES:
        yield graph(f"convolution_{dtype}", dtype, _few_convolutions)
    for dtype in (float32, float16):
        yield graph(f"convolution_points_{dtype}", dtype, _points)
    for dtype in (float32, float64, *HALVES):
        yield graph(f"convolution_direct_{dtype}", dtype, lambda cases: _direct(cases, target))
    for dtype in (float32, float16):
        yield graph(f"convolution_panels_{dtype}", dtype, lambda cases: _panels(cases, target))
    if target.l2:  # where panels stay
        yield graph("convolution_stored", float32, lambda cases: _stored(cases, target))
    yield graph("convolution_winograd", float32, lambda cases: _winograd(cases, target))
    yield graph("convolution_spread", float32, lambda cases: _spread(cases, target))
    yield graph("convolution_symbolic", float32, _symbolic_convolutions)


def _convolve(cases: Cases, x: Shape, w: Shape, **values: Any) -> None:
    cases.outputs(ops.conv2d(cases.input(x), cases.input(w), **values))


def _pixels(cases: Cases, target: TargetDescription) -> None:
    rows, _ = register_tile(target)
    lanes = target.lanes(float32)
    same: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    for width in around(1, 2, 4, lanes, 2 * lanes):
        _convolve(cases, (2, 5, 3, width), (3, 5, 3, 3), **same)
    for outputs in around(1, 2, rows, 2 * rows):
        _convolve(cases, (1, 5, 3, lanes), (outputs, 5, 3, 3), **same)
    _convolve(cases, (2, 3, 5, lanes), (5, 3, 1, 1))
    _convolve(cases, (2, 10, 9, 11), (6, 5, 3, 2), strides=(2, 3), groups=2, padding=(1, 0, 2, 1))
    _convolve(cases, (1, 5, 5, 6), (3, 5, 3, 3), input_dilation=(2, 3), padding=(2, 2, 1, 2))
    _convolve(cases, (1, 5, 9, 9), (3, 5, 3, 3), dilation=(2, 2), padding=(-1, 1, 2, -2))
    for outputs in (4 * rows, 4 * rows + 1):  # so many that pixels are copied for all their tiles
        _convolve(cases, (2, 5, 5, lanes + 1), (outputs, 5, 1, 3), padding=(0, 0, 1, 1))
    y = ops.conv2d(cases.input((2, 5, 5, 7)), cases.input((7, 5, 3, 3)), **same)
    z = y + cases.input((7, 1, 1))
    cases.outputs(z, ops.relu(z) + cases.input((2, 7, 5, 7)))


def _points(cases: Cases) -> None:
    """Windows of one point: images as one row, with and without a rest, and rows that stay."""
    for image in ((4, 8), (6, 6), (7, 7), (3, 2), (1, 9)):
        _convolve(cases, (2, 5, *image), (7, 5, 1, 1))
    _convolve(cases, (1, 6, 4, 6), (52, 3, 1, 1), groups=2)
    _convolve(cases, (1, 5, 4, 6), (3, 5, 1, 1), padding=(1, -1, -1, 1))  # as large, but moved
    batch = Dim.symbol("batch")
    y = ops.conv2d(cases.input((batch, 5, 6, 6)), cases.input((26, 5, 1, 1)))
    z = ops.relu(y + cases.input((26, 1, 1)))
    cases.outputs(z, z * cases.input((batch, 26, 6, 6)) + cases.input((6, 6)))
    y = ops.conv2d(cases.input((2, 5, 6, 6)), cases.input((3, 5, 1, 1)))
    cases.outputs(y + cases.input((6,)))


def _direct(cases: Cases, target: TargetDescription) -> None:
    """Depthwise and of few channels: rows, tiles and bands that end early, strides, no image."""
    lanes = target.lanes(cases.dtype if cases.dtype not in HALVES else float32)
    same: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    for width in around(4, lanes, 2 * lanes):
        _convolve(cases, (2, 3, 5, width), (3, 1, 3, 3), groups=3, **same)
        _convolve(cases, (1, 3, 6, width), (3, 1, 3, 3), groups=3, strides=(2, 2), **same)
    for outputs in (1, 2, 4, 5, 6):
        _convolve(cases, (1, 2, 7, lanes), (outputs, 2, 3, 3), **same)
    _convolve(cases, (2, 3, 9, 13), (6, 1, 5, 5), groups=3, padding=(2, 0, 3, 1), strides=(1, 3))
    _convolve(cases, (1, 2, 9, 4), (3, 2, 2, 1), dilation=(2, 2), padding=(-1, 1, 5, 6))
    _convolve(cases, (1, 2, 9, 2), (3, 2, 3, 3), strides=(1, 3), padding=(1, 1, 5, 5))
    _convolve(cases, (1, 4, 4, 5), (4, 1, 3, 3), groups=4, input_dilation=(2, 2), **same)
    y = ops.conv2d(cases.input((2, 3, 5, lanes + 7)), cases.input((3, 1, 3, 3)), groups=3, **same)
    cases.outputs(ops.relu(y + cases.input((3, 1, 1))), y * 2.0)  # reads no image
    rows = cases.input((Dim.symbol("batch"), 4, 8, 2 * lanes - 1))
    y = ops.conv2d(rows, cases.input((8, 2, 3, 3)), groups=2, **same)
    z = y + cases.input((8, 1, 1))
    cases.outputs(z, z * cases.input((8, 8, 2 * lanes - 1)))


def _panels(cases: Cases, target: TargetDescription) -> None:
    """So many output channels that pixels are copied: one image and several, rows that end in the
    middle of a vector or not, channels of one pass and of several, and no copy of large windows."""
    rows, vectors = register_tile(target)
    lanes = target.lanes(float32)
    many = 4 * rows - 1
    same: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    for x in ((1, 7, 5, lanes - 1), (2, 5, 3, lanes + 1), (2, 5, 2, lanes), (1, 5, 3, 2)):
        _convolve(cases, x, (many, x[1], 3, 3), **same)
    _convolve(cases, (1, 5, 4, vectors * lanes), (many, 5, 1, 1))
    _convolve(cases, (3, 7, 3, 5), (many, 7, 1, 1))
    _convolve(cases, (2, 3, 7, 2 * lanes + 1), (many, 3, 1, 1), strides=(2, 2))
    _convolve(cases, (2, 3, 7, 9), (many, 3, 1, 1), strides=(3, 2), padding=(0, 2, 0, 1))
    _convolve(cases, (1, 32, 4, 8), (rows + 1, 32, 1, 1))  # planes that crowd a cache
    _convolve(cases, (1, 5, 12, 13), (many + 1, 5, 11, 11))
    y = ops.conv2d(cases.input((2, 5, 4, lanes + 2)), cases.input((many, 5, 3, 3)), (1, 2))
    bias = ops.reshape(cases.input((many,)), (many, 1, 1))
    cases.outputs(y + bias, (y + bias) * cases.input((y.shape[3],)))
    images = cases.input((Dim.symbol("batch"), 5, 3, 5))
    y = ops.conv2d(images, cases.input((many, 5, 3, 3)), **same)
    cases.outputs(ops.relu(y + bias) + cases.input((3, 5)))


def _stored(cases: Cases, target: TargetDescription) -> None:
    """Weights that are stored as tiles of output channels, the last one lower, and of groups."""
    rows, _ = register_tile(target)
    same: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    for outputs, groups in ((4 * rows - 1, 1), (4 * rows, 1), (8 * rows, 2)):
        w = cases.input((outputs, 5, 3, 2))
        (tiles,) = create_node("relayout", (w,), {"permutation": (), "blocks": (0, rows)})
        x = cases.input((2, 5 * groups, 3, 5))
        cases.outputs(ops.conv2d(x, tiles, groups=groups, **same))


def _winograd(cases: Cases, target: TargetDescription) -> None:
    """Transformed weights: rows of tiles that fill a piece, or end within one; of a few images."""
    rows, _ = register_tile(target)
    lanes = target.lanes(float32)
    w = cases.input((rows + 1, 5, 3, 3))  # no padding: the table knows the terms of a sum alone
    cases.outputs(ops.conv2d(cases.input((1, 5, 8, lanes + 3)), _transformed(w, rows, 4)))
    _convolve(cases, (1, 16, 8, 8), (16, 16, 3, 3), padding=(1, 1, 1, 1))  # would, if w was fixed
    batch = Dim.symbol("batch")
    for x, outputs in (
        (cases.input((1, 5, 3, 4 * lanes - 1)), rows),
        (cases.input((batch, 2, 2, 2 * lanes - 2)), 3),
        (cases.input((1, 3, 1, lanes + 1)), 3),
    ):
        w = cases.input((outputs, x.shape[1], 3, 3))
        y = ops.conv2d(x, _transformed(w, rows, 2), padding=(1, 1, 1, 1))
        bias = ops.reshape(cases.input((outputs,)), (outputs, 1, 1))
        cases.outputs(ops.relu(y + bias) + cases.input(x.shape[2:]))


def _transformed(w: Value, rows: int, results: int) -> Value:
    """Return weights as transforms, in two passes over the channels."""
    outputs, channels = (size for size in w.shape[:2] if isinstance(size, int))
    blocks = (1, -(-channels // 2), 0, min(rows, outputs))
    values = {"permutation": (2, 3, 1, 0), "blocks": blocks, "winograd": results}
    return create_node("relayout", (w,), values)[0]


def _windows(cases: Cases, target: TargetDescription) -> None:
    """Windows as large as images: gradients of filters."""
    lanes = target.lanes(float32)
    same = {"padding": (1, 1, 1, 1)}
    for size in (lanes // 2, lanes, 2 * lanes, lanes - 1):
        _convolve(cases, (3, 5, size, size), (7, 5, size, size), **same)
    _convolve(cases, (2, 3, 2 * lanes - 1, 2 * lanes - 1), (4, 3, lanes, lanes), dilation=(2, 2))
    _convolve(cases, (2, 2, lanes, lanes), (2, 2, lanes, lanes), padding=(0, 0, 2, 2))


def _spread(cases: Cases, target: TargetDescription) -> None:
    """Transposed convolutions: phases with all, some and none of the window, and too many."""
    lanes = target.lanes(float32)
    for width in around(1, lanes):
        x, w = (2, 5, 3, width), (3, 5, 4, 4)
        _convolve(cases, x, w, input_dilation=(2, 2), padding=(2, 2, 2, 2))
    _convolve(cases, (2, 2, 3, 5), (3, 2, 1, 1), input_dilation=(2, 3))
    y = ops.conv2d(cases.input((2, 4, 3, 5)), cases.input((6, 2, 1, 2)), (3, 2), groups=2,
                   input_dilation=(2, 4), dilation=(1, 2), padding=(1, 0, -1, 3))  # fmt: skip
    cases.outputs(ops.relu(y) + cases.input((6, 1, 1)))
    _convolve(cases, (1, 5, 2, 3), (3, 5, 3, 3), input_dilation=(5, 2), padding=(2, 2, 2, 2))
    for stride, spread in ((2, 2), (3, 3), (4, 2)):  # one phase, by some points of the window
        same = {"strides": (stride, 1), "input_dilation": (spread, 1), "padding": (1, 1, 0, 0)}
        _convolve(cases, (2, 5, 9, 10), (3, 5, 3, 1), **same)
    same = {"strides": (1, 2), "input_dilation": (1, 2), "padding": (0, 0, 1, 1)}
    _convolve(cases, (1, 1, 9, lanes + 2), (2, 1, 2, 2 * lanes), **same)
    outputs = 4 * register_tile(target)[0]
    _convolve(cases, (1, 5, 3, 5), (outputs, 5, 4, 4), input_dilation=(2, 2), padding=(2, 2, 2, 2))
    rows = cases.input((Dim.symbol("batch"), 5, 4, 5))
    y = ops.conv2d(rows, cases.input((4, 5, 3, 3)), input_dilation=(2, 2), padding=(1, 2, 1, 2))
    cases.outputs(y * 2.0)


def _few_convolutions(cases: Cases) -> None:
    _convolve(cases, (2, 5, 5, 9), (7, 5, 3, 3), padding=(1, 1, 1, 1))
    _convolve(cases, (2, 3, 8, 8), (7, 3, 8, 8), padding=(1, 1, 1, 1))
    _convolve(cases, (1, 3, 8, 8), (4, 3, 1, 1))


def _symbolic_convolutions(cases: Cases) -> None:
    batch, height = Dim.symbol("batch"), Dim.symbol("height")
    w = cases.input((5, 6, 3, 3))
    padding = (1, 1, 1, 1)
    cases.outputs(ops.relu(ops.conv2d(cases.input((batch, 6, 5, 9)), w, padding=padding)))
    cases.outputs(ops.conv2d(cases.input((batch, 6, height, 9)), w, padding=padding))
    spread, filters = cases.input((1, 6, height, 3)), cases.input((1, 6, 2, 2))
    cases.outputs(ops.conv2d(spread, filters, padding=padding, input_dilation=(2, 3)))
    # Gradients of filters: the batch stands where channels do.
    for size, window in ((6, 4), (8, 8), (8, 1)):
        x, dy = cases.input((3, batch, size, size)), cases.input((5, batch, window, window))
        cases.outputs(ops.conv2d(x, dy, padding=padding))
    x, dy = cases.input((2, batch, 5, 9)), cases.input((99, batch, 4, 7))
    cases.outputs(ops.conv2d(x, dy))  # many outputs, of any number of channels
    x, dy = cases.input((2, 2 * batch, 5, 9)), cases.input((4, batch, 3, 4))
    cases.outputs(ops.conv2d(x, dy, groups=2, strides=(2, 1)))


# --- pooling, gather, scatter, concat, layouts ----------------------------------------------------


def pool(target: TargetDescription) -> Iterator[Graph]:
    """Yield pooling at the edges of vectors, with windows that are and are not unrolled."""
    lanes = target.lanes(float32)

    def fill(cases: Cases) -> None:
        for width in around(3, lanes, 2 * lanes):
            cases.outputs(*ops.max_pool2d(cases.input((2, 3, 5, width)), (2, 2), (1, 1)))
        x = cases.input((2, 2, 11, 13))
        cases.outputs(*ops.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)))
        cases.outputs(*ops.max_pool2d(x, (5, 5), (3, 3), (2, 2, 2, 2)))
        y, index = ops.max_pool2d(x, (2, 2), (2, 2))
        cases.outputs(ops.relu(y) + cases.input(y.shape), index)
        tall = cases.input((2, 2, Dim.symbol("height"), 5))
        cases.outputs(*ops.max_pool2d(tall, (2, 2), (1, 1), (1, 0, 0, 1)))

    for dtype in (float32, float64, *HALVES):
        yield graph(f"pool_{dtype}", dtype, fill)


def pool_grad(target: TargetDescription) -> Iterator[Graph]:
    """Yield gradients of pooling, with an epilogue and positions that meet."""

    def fill(cases: Cases) -> None:
        for width in around(2, target.lanes(float32)):
            index = cases.indices((2, 3, 2, 3), 4 * width)
            cotangent = cases.input((2, 3, 2, 3))
            shape = (2, 3, 4, width)
            cases.outputs(ops.max_pool2d_grad(cotangent, index, input_shape=shape))
        found = ops.max_pool2d_grad(
            cases.input((1, 2, 3, 3)),
            cases.indices((1, 2, 3, 3), 6, int32),
            input_shape=(1, 2, 2, 3),
        )
        cases.outputs(found * cases.input((1, 2, 2, 3)))

    for dtype in (float32, *HALVES):
        yield graph(f"pool_grad_{dtype}", dtype, fill)


def concat(target: TargetDescription) -> Iterator[Graph]:
    """Yield concatenations along every axis, of rows below, at and above a vector and a chunk."""

    def fill(cases: Cases) -> None:
        for width in around(1, target.lanes(float32)):
            parts = [cases.input((3, width)), cases.input((3, 2)), cases.input((3, width + 1))]
            cases.outputs(ops.concat(*parts, axis=1))
        cases.outputs(ops.concat(cases.input((2, 3, 5)), cases.input((4, 3, 5)), axis=0))
        spread = ops.expand(cases.input((1, 4)), (3, 4))
        cases.outputs(ops.concat(spread, cases.input((3, 2)), axis=1))
        batch = Dim.symbol("batch")
        cases.outputs(ops.concat(cases.input((3, batch)), cases.input((3, 2)), axis=1))
        cases.outputs(ops.concat(cases.input((batch, 3)), cases.input((batch, 2)), axis=1))

    def long(cases: Cases) -> None:
        sizes = around(1 << 14)
        cases.outputs(ops.concat(*(cases.input((size,)) for size in sizes), axis=0))

    for dtype in (float32, float16, int8):
        yield graph(f"concat_{dtype}", dtype, fill)
    yield graph("concat_long", float32, long)


def relayout(target: TargetDescription) -> Iterator[Graph]:
    """Yield tensors that go through another layout and back."""
    width = _packing(target)["blocks"][1]

    def fill(cases: Cases) -> None:
        for n in around(1, width):
            for values in (
                _packing(target),
                {"permutation": (), "blocks": (0, width)},
                {"permutation": (1, 0), "blocks": (0, 2, 1, 4)},
            ):
                (packed,) = create_node("relayout", (cases.input((5, n)),), values)
                cases.outputs(*create_node("relayout", (packed,), {}))

    for dtype in (float32, float16):
        yield graph(f"relayout_{dtype}", dtype, fill)


# --- elementwise and reduction --------------------------------------------------------------------


def elementwise(target: TargetDescription) -> Iterator[Graph]:
    """Yield elementwise groups at the edges of vectors and grains, broadcast and strided."""

    def fill(cases: Cases) -> None:
        lanes = target.lanes(cases.dtype)
        for size in around(1, lanes, 2 * lanes, 4 * lanes, 8 * lanes):
            x = cases.input((size,))
            cases.outputs(x * x + cases.input((size,)))
        for width in around(1, lanes):
            x = cases.input((5, width))
            cases.outputs(x * cases.input((width,)) + cases.input((5, 1)))
            cases.outputs(ops.transpose(x, (1, 0)) + cases.input((width, 5)))
            cases.outputs(ops.slice(cases.input((5, 2 * width)), (1, 0), (5, 2 * width), (2, 2)))
            cases.outputs(ops.flip(x, (1,)) * 2.0)
        long = uneven(lanes)
        column = cases.input((long, 1))
        cases.outputs(ops.transpose(column, (1, 0)) + cases.input((1, long)))
        cases.outputs(ops.slice(cases.input((2 * long, 2)), (1, 0), (2 * long, 2), (2, 2)))
        cases.outputs(ops.flip(cases.input((long, 1)), (1,)) * 2.0)
        cases.outputs(cases.input(()) + cases.input(()))
        cases.outputs(ops.pad(cases.input((3, lanes)), (1, 2), (0, 3), 1.0))
        cases.outputs(cases.input((0, 3)) + cases.input((3,)))
        _views_of_elements(cases, lanes)

    def long(cases: Cases) -> None:
        for size in around(1 << 15):
            x = cases.input((size,))
            cases.outputs(x * x + cases.input((size,)))

    for dtype in (float32, float64, float16, bfloat16, int32, int8, bool_):
        yield graph(f"elementwise_{dtype}", dtype, fill if dtype.is_float else _discrete)
    yield graph("elementwise_long", float32, long)
    for dtype in (float32, float64):
        yield graph(f"elementwise_scaled_{dtype}", dtype, lambda cases: _scaled(cases, target))
    for dtype in (float32, float64, float16, int8, int64):
        yield graph(f"transpose_{dtype}", dtype, lambda cases: _turned(cases, target))
    yield graph("transpose_symbolic", float32, lambda cases: _turned_symbols(cases, target))
    for dtype in (float32, float64):
        yield graph(f"mixed_random_{dtype}", dtype, lambda cases: _random(cases, target))


def _scaled(cases: Cases, target: TargetDescription) -> None:
    """Groups that differ in constants alone, and so share a kernel."""
    shape = (3, target.lanes(cases.dtype) + 1)
    for factor, term in ((0.5, -3.0), (-0.0, 2.5), (7.0, 0.1), (1.0, 1.0), (-2.0, 1e-30)):
        cases.outputs(cases.input(shape) * factor + term)


def _turned(cases: Cases, target: TargetDescription) -> None:
    """Squares of vectors and their rests, few lines, few columns; alone and in an epilogue."""
    lanes = target.lanes(cases.dtype if cases.dtype.itemsize >= 4 else float32)
    for m, n in ((lanes, lanes), (lanes + 1, 2 * lanes - 1), (3 * lanes, lanes + 3)):
        cases.outputs(ops.transpose(cases.input((m, n)), (1, 0)))
    for few in (2, 3):
        for many in around(lanes, 2 * lanes):
            cases.outputs(ops.transpose(cases.input((2, few, many)), (0, 2, 1)))
            cases.outputs(ops.transpose(cases.input((2, many, few)), (0, 2, 1)))
    side = 2 * lanes + 1
    y = cases.input((3, side, side))
    x = ops.transpose(cases.input((3, side, side)), (0, 2, 1))
    cases.outputs(x * y + cases.input((side,)), y + ops.transpose(y, (0, 2, 1)))
    rows = ops.transpose(cases.input((2, 3, side)), (0, 2, 1))
    cases.outputs(rows * cases.input((2, side, 3)) + cases.input((3,)), rows + rows)
    image = cases.input((2, lanes, 3, 5))
    cases.outputs(ops.transpose(image, (0, 2, 3, 1)), ops.transpose(image, (3, 1, 0, 2)))


def _turned_symbols(cases: Cases, target: TargetDescription) -> None:
    """Squares and rests of sizes that are known at run time; two images and four rows will do."""
    batch, height, lanes = Dim.symbol("batch"), Dim.symbol("height"), target.lanes(float32)
    cases.outputs(ops.transpose(cases.input((batch, 3, 5 * height)), (0, 2, 1)))
    columns, lines = lanes * (height + 1) + 3, lanes // 2 * batch + 1
    cases.outputs(ops.transpose(cases.input((batch, columns, lines)), (0, 2, 1)) * 2.0)
    columns = 3 * lanes * batch - lanes + 3
    cases.outputs(ops.transpose(cases.input((columns, 5, 2 * lanes + 1)), (2, 1, 0)))


def _views_of_elements(cases: Cases, lanes: int) -> None:
    """Results whose elements are at, or depend on, another index than the one that is written."""
    batch, x = Dim.symbol("batch"), cases.input((5, lanes + 1))
    cases.outputs(ops.reshape(x, (5, 1, lanes + 1)) * cases.input((3, lanes + 1)))
    cases.outputs(ops.flip(ops.relu(x), (1,)) + x, ops.flip(ops.transpose(x, (1, 0)), (0,)))
    cases.outputs(ops.pad(cases.input((batch, 3)), (1, 0), (0, 2), 1.0))
    cases.outputs(ops.pad(cases.input((3, 0)), (0, 1), (0, 2), 1.0))
    spread = ops.expand(cases.input((1, lanes + 1)), (3, lanes + 1))
    cases.outputs(ops.pad(spread, (1, 0), (0, 2), 1.0))
    columns = ops.iota((5, lanes + 1), 1, int32)
    cases.outputs(x * ops.cast(columns, x.dtype), ops.iota((3, lanes + 1), 0, int64))
    rows = cases.input((batch, 3 * lanes + 3))
    cases.outputs(rows * ops.cast(ops.size(rows, 0), rows.dtype))


def _discrete(cases: Cases) -> None:
    """Elements that are no floats, at the edges of widths that floats don't have."""
    for size in (1, 3, 15, 16, 17, 63, 64, 65):
        x, y = cases.input((size,)), cases.input((size,))
        cases.outputs(ops.logical_or(x, y) if x.dtype.is_bool else ops.maximum(x, y))
        cases.outputs(ops.pad(x, (1,), (2,), 1), ops.where(ops.equal(x, y), x, ops.flip(y, (0,))))


def _random(cases: Cases, target: TargetDescription) -> None:
    """Random numbers, whose elements are computed from their place, alone and in a group."""
    counter, lanes = cases.input((2,), uint64), target.lanes(cases.dtype)
    rows = ((n,) for n in (*around(1, 4, lanes), uneven(lanes)))
    for stream, shape in enumerate([(), *rows, (3, 5, lanes + 1)]):
        values = {"shape": shape, "dtype": cases.dtype, "stream": stream}
        (drawn,) = create_node("uniform", (counter,), values)
        (normal,) = create_node("normal", (counter,), values)
        cases.outputs(drawn, normal, drawn * cases.input(shape[-1:]) + normal)


def reduction(target: TargetDescription) -> Iterator[Graph]:
    """Yield reductions of rows, columns and everything, at the edges of vectors and splits."""

    def fill(cases: Cases) -> None:
        lanes = target.lanes(cases.dtype)
        for size in around(1, lanes, 2 * lanes, 4 * lanes, 6 * lanes):
            x = cases.input((5, size))
            cases.outputs(ops.sum(x, 1), ops.max(x, 1), ops.sum(x, 0))
        x = cases.input((3, 5, 2 * lanes))
        cases.outputs(ops.sum(x, (0, 2)), ops.sum(x, (1,)), ops.sum(x))
        cases.outputs(x * ops.sum(x, (2,), True), ops.max(ops.relu(x), (0,)))
        cases.outputs(ops.sum(x, (1,), True), ops.min(x, (2,)) + cases.input((3, 5)))
        x = cases.input((Dim.symbol("batch"), lanes + 1))
        cases.outputs(ops.sum(x, 0), ops.sum(x, 1), x * ops.sum(x, 0))

    def long(cases: Cases) -> None:
        for size in around(1 << 15):
            cases.outputs(ops.sum(cases.input((size,)), 0))
        cases.outputs(ops.sum(cases.input((1 << 14, 3)), 0))
        for shape in ((1030, 64), (67, 1000), (64, 4100)):
            x = cases.input(shape)
            cases.outputs(ops.sum(x, 0), ops.max(ops.relu(x), 0))
        x = cases.input((2, 33, 1024))
        cases.outputs(ops.sum(x * cases.input((2, 1, 1)) - cases.input((1024,)), (0, 1)) * 2.0)
        cases.outputs(ops.sum(cases.input((64, 2, 512)) * cases.input((2, 1)), 0))

    for dtype in (float32, float64, float16, bfloat16):
        yield graph(f"reduction_{dtype}", dtype, fill)
    yield graph("reduction_long", float32, long)
    for dtype in (int32, int8, bool_):
        yield graph(f"reduction_{dtype}", dtype, _discrete_reductions)
    for dtype in (float32, float64, *HALVES):
        yield graph(f"mixed_rows_{dtype}", dtype, lambda cases: _mixed_rows(cases, target))
    yield graph("mixed_rows_long", float32, _mixed_long_rows)


def _discrete_reductions(cases: Cases) -> None:
    """Reductions of elements that are no floats, of rows and columns."""
    several = (ops.any, ops.all) if cases.dtype.is_bool else (ops.sum, ops.max, ops.min, ops.prod)
    for size in (1, 7, 8, 31, 32, 33, 129):
        x = cases.input((3, size))
        cases.outputs(*(reduce(x, axis) for reduce in several for axis in (0, 1)))


def _mixed_rows(cases: Cases, target: TargetDescription) -> None:
    """Several sweeps over one row or column: softmax, normalisation, the place of the largest."""
    lanes, batch = target.lanes(cases.dtype), Dim.symbol("batch")
    shapes: list[Shape] = [(3, size) for size in around(1, lanes, 4 * lanes)]
    for shape in (*shapes, (2, 3, lanes + 1), (batch, lanes + 1), (3, batch)):
        x = cases.input(shape)
        for axis in (0, len(shape) - 1):
            cases.outputs(_softmax(x, (axis,)), _position(x, axis))
        cases.outputs(_normalised(x, cases.input(shape[-1:]), cases.input(shape[-1:])))
    # The axes that are reduced make one row of costly values, which the stack keeps.
    cases.outputs(_softmax(cases.input((2, 3, lanes + 1)), (1, 2)))


def _mixed_long_rows(cases: Cases) -> None:
    """Rows of costly values at the edge of what the stack keeps."""
    for size in around(1 << 12):
        cases.outputs(_softmax(cases.input((2, size)), (1,)))


def _softmax(x: Value, axes: tuple[int, ...]) -> Value:
    raised = ops.exp(x - ops.max(x, axes, True))
    return raised / ops.sum(raised, axes, True)


def _position(x: Value, axis: int) -> Value:
    hit = ops.equal(x, ops.max(x, (axis,), True))
    return ops.min(ops.where(hit, ops.iota(x.shape, axis, int64), 1 << 40), axis)


def _normalised(x: Value, gamma: Value, beta: Value) -> Value:
    length = ops.cast(ops.size(x, x.rank - 1), x.dtype)
    centred = x - ops.sum(x, (x.rank - 1,), True) / length
    variance = ops.sum(centred * centred, (x.rank - 1,), True) / length
    return centred * ops.rsqrt(variance + 1e-2) * gamma + beta


BOUNDARIES: dict[str, Callable[[TargetDescription], Iterable[Graph]]] = {
    "attention": attention,
    "contraction": contraction,
    "convolution": convolution,
    "conv2d_filter_grad": conv2d_filter_grad,
    "pool": pool,
    "pool_grad": pool_grad,
    "gather": gather,
    "affine_sample": affine_sample,
    "scatter": scatter,
    "concat": concat,
    "cumsum": cumsum,
    "fourier_rows": fourier_rows,
    "relayout": relayout,
    "elementwise": elementwise,
    "reduction": reduction,
}
"""Anchor -> its boundary graphs."""


def _sweep_shapes(target: TargetDescription, dtype: DType) -> Iterator[Shape]:
    """Yield rows at the edges of one vector and of four in flight, and short ones of several."""
    lanes = target.lanes(dtype)
    yield from ((size,) for size in around(lanes, 4 * lanes))
    yield from ((3, size) for size in around(lanes)[::2])


def _reduced_shapes(target: TargetDescription, dtype: DType) -> Iterator[Shape]:
    """Yield rows and columns at the edges of one vector and of four that are kept apart."""
    lanes = target.lanes(dtype)
    yield from ((5, size) for size in around(lanes, 4 * lanes))
    yield (3, 5, 2 * lanes)


SHAPES: dict[str, Callable[[TargetDescription, DType], Iterable[Shape]]] = {
    "elementwise": _sweep_shapes,
    "reduction": _reduced_shapes,
}
"""Anchor that many ops share -> shapes of operands at its edges."""
