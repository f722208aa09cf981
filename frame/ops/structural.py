"""Ops that structure a graph: groups made by fusion, barriers of differentiation, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Attribute, Layout, Role, TensorType, Value
from frame.ops import samples
from frame.ops.holes import GRADIENTS
from frame.ops.interpreter import run_body
from frame.ops.record import (
    AttributeSpec,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import register

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Attribute]

# --- group ----------------------------------------------------------------------------------------


def _group_types(operands: Types, values: Attributes) -> Types:
    body = values["body"]
    expected = tuple(value.type for value in body.input_values)
    if operands != expected:
        raise InvalidArgumentError(
            f"group needs the operands of its body ({', '.join(map(str, expected))}), received "
            f"({', '.join(map(str, operands))})"
        )
    if body.updates:
        raise InvalidArgumentError(
            f"the body {body.name} of group updates state, which only the graph around it may do"
        )
    return tuple(value.type for value in body.outputs)


def _group_samples() -> Iterable[Sample]:
    with GraphBuilder("body") as builder:
        x = builder.input(TensorType(float32, (3, 5)), Role.CAPTURE)
        row = builder.input(TensorType(float32, (5,)), Role.CAPTURE)
        builder.output(ops.relu(x * row + 1.0))
        builder.output(ops.sum(x, 1))
    operands = (
        samples.smooth((3, 5)).astype(np.float32),
        samples.smooth((5,), seed=1).astype(np.float32),
    )
    values = {"anchor": "elementwise", "body": builder.finish()}
    yield Sample("two_results", operands, values, fixed=(0, 1), gradient=False)


register(
    OpDef(
        name="group",
        doc="Run a body as one kernel; operator_fusion makes groups and nobody else should.",
        operands=(Operand("captures", group="", variadic=True, storage=True),),
        attributes=(
            AttributeSpec("anchor", "str", doc="the kind of schedule that the body needs"),
            AttributeSpec("body", "graph", doc="the ops of the group"),
            AttributeSpec(
                "variant",
                "str",
                None,
                "how its schedule differs from the default one, as tuning chose; the same sums",
                optional=True,
            ),
        ),
        infer=_group_types,
        reference=lambda operands, values: run_body(values["body"], operands),
        gradient=NoGradient(GRADIENTS["group"]),
        results=("result...",),
        samples=_group_samples,
    )
)

# --- stop_gradient --------------------------------------------------------------------------------


def _identity_samples() -> Iterable[Sample]:
    yield Sample("matrix", (samples.smooth((3, 5)),), gradient=False)
    yield Sample("rank0", (samples.smooth(()),), gradient=False)
    yield Sample("empty", (samples.smooth((0, 3)),), gradient=False)
    yield Sample("edges", (samples.FLOAT_EDGES,), gradient=False)
    yield from samples.one_of_each_dtype((3,), {})


register(
    OpDef(
        name="stop_gradient",
        doc="Return x, and let no gradient flow back through it.",
        operands=(Operand("x", storage=True),),
        infer=lambda operands, values: TensorType(operands[0].dtype, operands[0].shape),
        reference=lambda operands, values: operands[0],
        gradient=NoGradient("it exists to stop the gradient", zero=True),
        traits=frozenset({Trait.VIEW}),
        decomposition=lambda operands, values: operands[0],
        samples=_identity_samples,
    )
)

# --- relayout -------------------------------------------------------------------------------------


def _layout(values: Attributes) -> Layout:
    flat: Sequence[int] = values["blocks"]
    blocks = tuple(zip(flat[::2], flat[1::2], strict=True))
    return Layout(values["permutation"], blocks, values["winograd"])


def _relayout_type(operands: Types, values: Attributes) -> TensorType:
    (x,) = operands
    permutation, blocks = values["permutation"], values["blocks"]
    wrong = permutation and sorted(permutation) != list(range(x.rank))
    axes, sizes = blocks[::2], blocks[1::2]
    bad_block = len(axes) != len(sizes) or any(not 0 <= axis < x.rank for axis in axes)
    if wrong or bad_block or any(size < 1 for size in sizes):
        raise InvalidArgumentError(
            f"relayout of shape {shape_text(x.shape)} needs a permutation of its axes and blocks "
            f"of (axis, size), received {permutation} and {blocks}"
        )
    winograd = values["winograd"]
    if winograd and not (winograd in (2, 4) and x.rank == 4 and x.shape[2:] == (3, 3)):
        raise InvalidArgumentError(
            f"relayout to Winograd's transforms needs weights [outputs, channels, 3, 3] and 2 or 4 "
            f"results of a tile, received shape {shape_text(x.shape)} and {winograd}"
        )
    if x.layout.winograd:
        raise InvalidArgumentError(
            f"relayout can't read {x}, whose elements are stored as Winograd's transforms; keep "
            f"the weights as they were"
        )
    return TensorType(x.dtype, x.shape, _layout(values))


def _relayout_gradient(context: GradientContext) -> list[Value | None]:
    (x,), (g,) = context.operands, context.cotangents
    layout = x.type.layout
    blocks = tuple(part for block in layout.blocks for part in block)
    return [ops.relayout(g, layout.permutation, blocks) if x.dtype.is_float else None]


def _relayout_samples() -> Iterable[Sample]:
    x = samples.smooth((2, 3, 4))
    yield Sample("row_major", (x,))
    yield Sample("permuted", (x,), {"permutation": (0, 2, 1)})
    yield Sample("blocked", (x,), {"blocks": (2, 8)})
    yield Sample("both", (x,), {"permutation": (1, 0, 2), "blocks": (0, 2, 1, 2)})
    yield Sample("rank0", (samples.smooth(()),))
    yield Sample("empty", (samples.smooth((0, 3)),), {"permutation": (1, 0)})
    yield from samples.one_of_each_dtype((3, 5), {"permutation": (1, 0)})


register(
    OpDef(
        name="relayout",
        doc="Store the elements in another order in memory; the tensor itself stays the same.",
        operands=(Operand("x", storage=True),),
        attributes=(
            AttributeSpec(
                "permutation", "ints", (), "axes from outermost to innermost; () is all in order"
            ),
            AttributeSpec("blocks", "ints", (), "axis and size of each block, one after another"),
            AttributeSpec(
                "winograd",
                "int",
                0,
                "results of a tile of the transforms of windows of 3 x 3; 0: none",
            ),
        ),
        infer=_relayout_type,
        reference=lambda operands, values: operands[0],
        gradient=_relayout_gradient,
        traits=frozenset({Trait.VIEW}),
        samples=_relayout_samples,
    )
)
