"""Products of bfloat16 at the edges of what takes the inner axis in pairs.

A target without dot products of pairs computes them as it does any product of narrow floats.
Results are float32: the sums as they are, so that a wrong pair is no rounding error.
"""

from __future__ import annotations

from collections.abc import Iterator

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import Cases, graph
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.core.dtypes import bfloat16, float32
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value
from frame.ops.registry import create_node


def pairs(target: TargetDescription) -> Iterator[Graph]:
    """Yield products whose depth is even, odd, of many passes, and known at run time only."""
    yield graph("product_pairs", bfloat16, lambda cases: _pairs(cases, target))
    yield graph("product_pairs_symbolic", bfloat16, lambda cases: _symbolic(cases, target))
    if "dot_bf16" in target.intrinsics:  # no other target reads this layout
        yield graph("product_pairs_stored", bfloat16, lambda cases: _stored(cases, target))


def _sums(cases: Cases, x: Value, y: Value, flip_x: bool = False, flip_y: bool = False) -> None:
    product = ops.matmul(x, y, transpose_a=flip_x, transpose_b=flip_y)
    cases.outputs(ops.cast(product, float32))


def _pairs(cases: Cases, target: TargetDescription) -> None:
    rows, vectors = register_tile(target)
    lanes = target.lanes(float32)
    width = vectors * lanes
    depth = max(64, target.l1 * 3 // 4 // (width * 4))  # steps of a pass
    for m, k, n in ((rows + 1, 6, width + 3), (5, 2 * lanes + 1, 9), (3, 4 * lanes, width)):
        for flip_x in (False, True):
            for flip_y in (False, True):
                x = cases.input((k, m) if flip_x else (m, k))
                y = cases.input((n, k) if flip_y else (k, n))
                _sums(cases, x, y, flip_x, flip_y)
    for k in (2 * depth, 2 * depth + 3):  # of one pass, of two
        _sums(cases, cases.input((17, k)), cases.input((k, 2 * width + 3)))
    _sums(cases, ops.relu(cases.input((5, 7))), ops.relu(cases.input((7, 9))))
    _sums(cases, cases.input((3, 5, 6)), cases.input((3, 6, 9)))
    _sums(cases, cases.input((2, 2, 6)), cases.input((6, 9)))


def _stored(cases: Cases, target: TargetDescription) -> None:
    """Panels of a packed layout, of whole words and with half a word, of both orders."""
    width = register_tile(target)[1] * target.lanes(float32)
    for k, n in ((26, width + 3), (7, width)):  # the first reads rows ahead
        attributes = {"permutation": (1, 0), "blocks": (1, width, 0, 2)}
        (packed,) = create_node("relayout", (cases.input((k, n)),), attributes)
        _sums(cases, cases.input((20, k)), packed)
        turned = {"permutation": (0, 1), "blocks": (0, width, 1, 2)}
        (packed,) = create_node("relayout", (cases.input((n, k)),), turned)
        _sums(cases, cases.input((20, k)), packed, flip_y=True)


def _symbolic(cases: Cases, target: TargetDescription) -> None:
    """Gradients of weights: the batch is the inner axis."""
    batch = Dim.symbol("batch")
    wide = 2 * target.lanes(float32) + 3
    x, y = cases.input((batch, 20)), cases.input((batch, wide))
    _sums(cases, x, y, flip_x=True)
    _sums(cases, cases.input((5, batch)), cases.input((wide, batch)), flip_y=True)
