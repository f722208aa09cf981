"""Graphs of attention at the edges of its schedule: tiles, panels, blocks of queries, local memory.

They follow the rules of `boundaries`; errors are relative to the largest element of a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from frame import ops
from frame.codegen.schedules.cpu.boundary_cases import Cases, graph
from frame.codegen.schedules.cpu.gemm_micro import register_tile
from frame.core.dtypes import bool_, float32, float64
from frame.core.shapes import Dim
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Value


def attention(target: TargetDescription) -> Iterator[Graph]:
    """Yield attention with sizes at the edges of tiles and panels, masks, and views."""
    for dtype in (float32, float64):
        yield graph(f"mixed_attention_{dtype}", dtype, lambda cases: _edges(cases, target))
    yield graph("mixed_attention_masks", float32, _masks)
    yield graph("mixed_attention_views", float32, _views)


def _attend(
    q: Value, k: Value, v: Value, score: Callable[[Value], Value] = lambda scores: scores
) -> Value:
    """Attention of primitive ops, with what happens to its scores; rows of -inf give zeros."""
    x = score(ops.matmul(q, k, transpose_b=True))
    last = (x.rank - 1,)
    top = ops.max(x, last, True)
    weights = ops.exp(x - ops.where(ops.equal(top, -math.inf), 0.0, top))
    total = ops.sum(weights, last, True)
    return ops.matmul(weights / ops.where(ops.equal(total, 0.0), 1.0, total), v)


def _inputs(
    cases: Cases, batch: tuple[int | Dim, ...], sizes: tuple[int, int, int, int]
) -> tuple[Value, Value, Value]:
    """Return q, k and v for the numbers of queries, keys, features and values."""
    queries, keys, features, values = sizes
    shapes = ((queries, features), (keys, features), (keys, values))
    q, k, v = (cases.input((*batch, *shape)) for shape in shapes)
    return q, k, v


def _edges(cases: Cases, target: TargetDescription) -> None:
    rows, vectors = register_tile(target)
    lanes = target.lanes(cases.dtype)
    width = vectors * lanes
    whole = -(-12 // rows) * rows
    symbol = Dim.symbol("batch")
    for batch, sizes in (
        ((2,), (whole, width, lanes, width)),
        ((), (whole + 1, width + 1, 3, 2 * width - 1)),
        ((2, 1), (12, width - 1, lanes + 1, 1)),
        ((symbol,), (100, 3 * width, 2, 2)),
        ((2,), (14, 10 * width, 2 * lanes, 2 * lanes)),
    ):
        q, k, v = _inputs(cases, batch, sizes)
        cases.outputs(_attend(q, k, v, lambda scores: scores * 0.5))


def _masks(cases: Cases) -> None:
    added = cases.input((12, 20))
    cases.outputs(_attend(*_inputs(cases, (2,), (12, 20, 4, 4)), lambda x: x * 0.3 + added))
    allowed = cases.input((2, 1, 14), bool_)
    cases.outputs(
        _attend(*_inputs(cases, (2,), (15, 14, 4, 4)), lambda x: ops.where(allowed, x, -math.inf))
    )
    flags = cases.input((12, 3), bool_)
    cases.outputs(
        _attend(*_inputs(cases, (), (12, 3, 4, 3)), lambda x: ops.where(flags, x, -math.inf))
    )


def _views(cases: Cases) -> None:
    """Heads that lie side by side, a product of q with a number, and keys of all heads."""
    parts = ops.transpose(cases.input((2, 13, 3, 2, 9)), (2, 0, 3, 1, 4))
    shape = (1, 2, 2, 13, 9)
    q, k, v = (
        ops.reshape(ops.slice(parts, (i, 0, 0, 0, 0), (i + 1, *shape[1:])), shape[1:])
        for i in range(3)
    )
    cases.outputs(ops.transpose(_attend(q, k, v), (0, 2, 1, 3)))
    q, k, v = _inputs(cases, (), (12, 7, 4, 4))
    cases.outputs(_attend(q * 0.5, k, v), k)
    many = cases.input((3, 12, 4))
    cases.outputs(_attend(many, k, v))
