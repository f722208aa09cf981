"""The graphs of the golden tests: for each pass, small graphs that show one thing each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frame import ops
from frame.compiler.pass_manager import Pass
from frame.compiler.passes.backend_lowering import BackendLowering
from frame.compiler.passes.canonicalize import Canonicalize
from frame.compiler.passes.common_subexpressions import CommonSubexpressionElimination
from frame.compiler.passes.constant_folding import ConstantFolding
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.layout_assignment import LayoutAssignment
from frame.compiler.passes.load_split import LoadSplit
from frame.compiler.passes.memory_planning import MemoryPlanning
from frame.compiler.passes.shape_inference import ShapeInference
from frame.core.dtypes import bfloat16, bool_, float32, int32, int64, uint64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Constant, Graph, Node, Role, TensorType, Value
from frame.ops.registry import create_node
from tests.compiler.support import CAPABILITIES, WHOLE, build, packed_group_info, tensor

PARAMETER = Role.PARAMETER


@dataclass(frozen=True)
class Case:
    """A graph, the pass that it shows, and what the target is like."""

    pass_: Pass
    make: Callable[[], Graph]
    changes: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


def parameter(*shape: int, role: Role = PARAMETER) -> tuple[TensorType, Role]:
    return tensor(*shape), role


def integers(*shape: int) -> TensorType:
    return tensor(*shape, dtype=int32)


# --- canonicalize ---------------------------------------------------------------------------------


def identities() -> Graph:
    def body(x, i, p):
        return (
            x * 1.0 - 0.0,
            x + 0.0,  # turns -0.0 into 0.0, so it stays
            x / 1.0 + (-0.0),
            (i + 0) * 1,
            i * 0,
            ops.logical_and(p, True),
            ops.where(p, x, x),
            ops.neg(ops.neg(x)),
            ops.stop_gradient(x) + ops.stop_gradient(x),
        )

    return build(body, tensor(2, 3), integers(3), tensor(3, dtype=bool_))


def constants_to_the_right() -> Graph:
    return build(lambda x: (2.0 + x, 2.0 - x, ops.maximum(3.0, x)), tensor(4))


def arithmetic() -> Graph:
    def body(x, y):
        return x / 8.0, x / 3.0, x**2.0, x + (-y), (-x) + y, x - (-y)

    return build(body, tensor(3), tensor(3))


def views() -> Graph:
    def body(x):
        return (
            ops.transpose(ops.transpose(x, (1, 2, 0)), (1, 0, 2)),
            ops.transpose(x, (0, 1, 2)),
            ops.reshape(ops.reshape(x, (6, 4)), (4, 6)),
            x[:, :, :],
            ops.pad(x, (0, 0, 0), (0, 0, 0)),
            ops.concat([x], axis=0),
            ops.expand(ops.expand(x[:1], (2, 3, 4)), (5, 2, 3, 4)),
            ops.flatten(ops.squeeze(ops.unsqueeze(x, 1), 1)),
        )

    return build(body, tensor(2, 3, 4))


def casts() -> Graph:
    def body(x, h):
        return (
            ops.cast(x, float32),
            ops.cast(ops.cast(h, float32), bfloat16),
            ops.cast(ops.cast(x, bfloat16), float32),  # loses digits, so it stays
        )

    return build(body, tensor(3), tensor(3, dtype=bfloat16))


_LAST, _SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def islands_of_channels_last():
    """Convolutions in a graph that keeps its channels last: no transpose is left but the last."""

    def make(x, weight, bias, other):
        y = ops.relu(ops.transpose(ops.conv2d(x, weight), _LAST) + bias)
        y = y * ops.sum(y, axes=(3,), keepdims=True)
        z = ops.transpose(ops.conv2d(ops.transpose(y, _SECOND), other), _LAST)
        rows = ops.concat([z + 1.0, ops.flip(z, axes=(3,))], axis=3)
        top = ops.max_pool2d(ops.transpose(rows, _SECOND), (2, 2), (2, 2), (0, 0, 0, 0))[0]
        return ops.max(rows, axes=(1, 2)), ops.exp(ops.transpose(top, _LAST))

    return build(make, tensor("n", 2, 6, 7), tensor(3, 2, 3, 3), tensor(3), tensor(5, 3, 1, 1))


def transposes_that_must_stay():
    """As many transposes in every order of the axes; of a value read in both, one stays."""

    def make(x, y):
        one = ops.relu(ops.transpose(x, (1, 0)))
        both = ops.exp(ops.transpose(y, (1, 0)))
        return one, both, ops.transpose(both, (1, 0))

    return build(make, tensor(3, 4), tensor(5, 6))


def products_of_transposes() -> Graph:
    def body(a, b):
        return ops.transpose(a) @ b, a @ ops.transpose(b), ops.transpose(ops.transpose(a) @ b)

    return build(body, tensor(3, 3), tensor(3, 3))


def broadcasts() -> Graph:
    def body(x, row):
        return (
            x + ops.expand(row, (2, 3)),
            ops.exp(ops.expand(row, (2, 3))),
            ops.expand(row, (2, 3)) * ops.full((2, 3), 2.0),
        )

    return build(body, tensor(2, 3), tensor(3))


def composites() -> Graph:
    return build(lambda x: (ops.softmax(x), ops.mean(x, 1), ops.silu(x)), tensor("batch", 4))


def arg_extremes() -> Graph:
    return build(
        lambda x, i: (ops.argmax(x, axis=1), ops.argmin(i, axis=0, keepdims=True)),
        tensor(2, 3),
        integers(3),
    )


def whole_composites() -> Graph:
    return build(lambda x: (ops.argmax(x, axis=1), ops.silu(x)), tensor(2, 3))


def reductions_of_nothing() -> Graph:
    return build(lambda x: (ops.sum(x, 0), ops.max(x, (), keepdims=True)), tensor(1, 3))


def batch_norm_after_convolution() -> Graph:
    def body(x, w, bias, gamma, beta, mean, variance):
        y = ops.conv2d(x, w) + ops.reshape(bias, (4, 1, 1))
        return ops.relu(ops.batch_norm_infer(y, gamma, beta, mean, variance))

    vectors = [parameter(4), parameter(4), parameter(4)]
    statistics = [parameter(4, role=Role.BUFFER), parameter(4, role=Role.BUFFER)]
    return build(body, tensor("batch", 3, 5, 5), parameter(4, 3, 3, 3), *vectors, *statistics)


def batch_norm_after_product() -> Graph:
    def body(x, w, gamma, beta, mean, variance):
        y = ops.matmul(x, w, transpose_b=True)
        return ops.batch_norm_infer(y, gamma, beta, mean, variance)

    return build(body, tensor("batch", 3), parameter(4, 3), *[parameter(4)] * 4)


def batch_norm_that_must_stay() -> Graph:
    """The convolution is read twice, and the statistics of the second come from outside."""

    def body(x, w, gamma, beta, mean, variance):
        y = ops.conv2d(x, w)
        return ops.batch_norm_infer(y, gamma, beta, gamma, beta) + y, ops.batch_norm_infer(
            ops.conv2d(x, w * 2.0), gamma, beta, mean, variance
        )

    types = [parameter(2), parameter(2), tensor(2), tensor(2)]
    return build(body, tensor(1, 1, 3, 3), parameter(2, 1, 2, 2), *types)


def rewritten_body() -> Graph:
    def body(x, start):
        return ops.scan(lambda c, row: (ops.silu(c * 1.0 + row), None), start, x)[0]

    return build(body, tensor(5, 3), tensor(3))


def loop_invariants() -> Graph:
    """The weights are normalised in each step; the table is checked, so its rows stay inside."""

    def body(x, start, w, table, index):
        def step(carry, row):
            weights = w / ops.sum(w, 0, keepdims=True) + ops.expand(ops.constant(2.0), (3, 3))
            return ops.tanh(carry @ weights + row + ops.gather(table, index)), None

        return ops.scan(step, start, x)[0]

    types = tensor(5, 2, 3), tensor(2, 3), tensor(3, 3), tensor(4, 3), tensor(2, dtype=int64)
    return build(body, *types)


def symbolic_size() -> Graph:
    return build(lambda x: x / ops.cast(ops.size(x * 2.0, 0), float32), tensor("batch", 4))


# --- shape_inference ------------------------------------------------------------------------------


def stale_types() -> Graph:
    """A pass has put a bfloat16 operand below nodes that still state float32."""
    with GraphBuilder("g") as builder:
        x = builder.input(tensor(2, 3, dtype=bfloat16), name="x")
        stale = Node("relu", (x,), {}, (tensor(2, 3),))
        builder.append(stale)
        total = Node("sum", stale.results, {"axes": (1,), "keepdims": False}, (tensor(2),))
        builder.append(total)
        builder.outputs.append(total.results[0])
    return builder.finish()


# --- constant_folding -----------------------------------------------------------------------------


def cascade() -> Graph:
    def body(x):
        return x * ((ops.constant(2.0) + 3.0) + 4.0), ops.size(x, 1) * 2

    return build(body, tensor(2, 3))


def declared_dtype() -> Graph:
    """The sum is rounded to bfloat16, which holds 8 bits: 256 + 1 is 256."""
    return build(lambda x: x + (ops.constant(256.0, bfloat16) + 1.0), tensor(2, dtype=bfloat16))


def too_large() -> Graph:
    def body(x):
        column = ops.constant(np.arange(200, dtype=np.float32).reshape(200, 1))
        row = ops.constant(np.arange(200, dtype=np.float32))
        return x + column * row, ops.sum(column * row)

    return build(body, tensor(200, 200))


def never_folded() -> Graph:
    def body(x):
        counter = ops.constant(np.array([1, 2], np.uint64))
        noise = ops.uniform(counter, shape=(3,))
        table = ops.constant([1.0, 2.0])
        return x + noise, ops.gather(table, ops.constant([0, 1]))

    return build(body, tensor(3))


# --- common_subexpression_elimination -------------------------------------------------------------


def duplicates() -> Graph:
    def body(x, y):
        return (
            x + y,
            y + x,
            x - y,
            y - x,
            ops.sum(x, 0),
            ops.sum(x, 0, keepdims=True),
            ops.sum(x, 0),
        )

    return build(body, tensor(3), tensor(3))


def signed_zeros() -> Graph:
    def body(x):
        low, high = (1,), (0,)
        return ops.pad(x, low, high, 0.0), ops.pad(x, low, high, -0.0), ops.pad(x, low, high, 0.0)

    return build(body, tensor(2))


def streams() -> Graph:
    def body(counter):
        def draw(stream):
            attributes = {"shape": (2,), "dtype": float32, "stream": stream}
            return create_node("uniform", (counter,), attributes)[0]

        return draw(1), draw(2), draw(1)

    return build(body, (tensor(2, dtype=uint64), Role.COUNTER))


def equal_bodies() -> Graph:
    def body(x, start):
        def total():
            return ops.scan(lambda c, row: (c + row * row + row * row, None), start, x)[0]

        return total() - total()

    return build(body, tensor(5, 3), tensor(3))


# --- dead_node_elimination ------------------------------------------------------------------------


def dead_nodes() -> Graph:
    def body(x, unused):
        ops.exp(ops.sin(x))
        return x * 2.0

    return build(body, tensor(3), tensor(4))


def dead_parts_of_a_scan() -> Graph:
    def body(x, other, start, factor):
        def step(carry, rows):
            row, second = rows
            return carry + row, (ops.exp(second * factor), row * 2.0)

        return ops.scan(step, start, (x, other))[1][1]

    return build(body, tensor(5, 3), tensor(5, 3), tensor(3), tensor(3))


def dead_parts_of_a_cond() -> Graph:
    def body(p, x, y):
        return ops.cond(p, lambda: (x * 2.0, ops.exp(y)), lambda: (x - 1.0, y))[0]

    return build(body, tensor(dtype=bool_), tensor(3), tensor(3))


# --- layout_assignment, split ---------------------------------------------------------------------


def two_products() -> Graph:
    def body(x, w, v):
        return x @ w, (x * 2.0) @ w, x @ v

    return build(body, tensor("batch", 8), parameter(8, 16), tensor(8, 4))


def product_in_a_scan() -> Graph:
    def body(x, start, w):
        return ops.scan(lambda c, row: (ops.tanh(c @ w + row), None), start, x)[0]

    return build(body, tensor(5, 2, 8), tensor(2, 8), parameter(8, 8))


def folded_weights() -> Graph:
    def body(x, w, scale, bias):
        weights = w * ops.exp(scale)
        return x @ weights + ops.reshape(bias, (1, 4)), ops.expand(ops.exp(scale), (3, 4))

    return build(body, tensor("batch", 8), parameter(8, 4), parameter(4), parameter(4))


def nothing_to_load() -> Graph:
    return build(
        lambda x, w, b: x @ ops.reshape(w, (8, 4)) + ops.expand(b, (1, 4)),
        tensor("batch", 8),
        parameter(32),
        parameter(4),
    )


def trained_weights() -> Graph:
    with GraphBuilder("g") as builder:
        x = builder.input(tensor(2, 8), name="x")
        w = builder.input(tensor(8, 4), PARAMETER, "w")
        builder.output(x @ ops.exp(w))
        builder.update(w, w * 0.5)
    return builder.finish()


# --- operator_fusion ------------------------------------------------------------------------------


def softmax_row() -> Graph:
    def body(x):
        shifted = ops.exp(x - ops.max(x, 1, keepdims=True))
        return shifted / ops.sum(shifted, 1, keepdims=True)

    return build(body, tensor(64, 32))


def product_with_epilogue() -> Graph:
    def body(x, w, bias, other):
        return ops.relu(x @ w + bias) + other

    return build(body, tensor(16, 8), tensor(8, 4), tensor(4), tensor(16, 4))


def two_readers() -> Graph:
    def body(x):
        shared = ops.sin(x)
        return ops.exp(shared), shared * 2.0

    return build(body, tensor(32))


def around_a_product() -> Graph:
    """add reads sin and the product that reads sin: one group would wait for itself."""

    def body(x, w):
        y = ops.sin(x)
        return y + ops.transpose(y) @ w

    return build(body, tensor(4, 4), tensor(4, 4))


def residual_around_a_product() -> Graph:
    """The product reads sin itself, so sin is not computed in its group."""

    def body(x, w):
        y = ops.sin(x)
        return y @ w + y

    return build(body, tensor(4, 4), tensor(4, 4))


def update_of_a_weight() -> Graph:
    """What does not wait for the product is computed behind it all the same."""

    def body(x, g, w, momentum):
        change = momentum * 0.9 + ops.matmul(x, g, transpose_a=True)
        return change, w - change * 0.1

    return build(body, tensor(8, 4), tensor(8, 6), tensor(4, 6), tensor(4, 6))


def flipped_self() -> Graph:
    def body(x):
        y = ops.flip(x, 0)
        return y + ops.sum(y, 1, keepdims=True)

    return build(body, tensor(16, 4))


def fused_body() -> Graph:
    def body(x, start, w):
        return ops.scan(lambda c, row: (ops.tanh(c @ w + row), c * 2.0), start, x)

    return build(body, tensor(5, 2, 3), tensor(2, 3), tensor(3, 3))


def constant_operand() -> Graph:
    table = Constant(np.arange(48, dtype=np.float32))

    def body(x):
        return ops.relu(x + create_node("constant", (), {"value": table})[0]) * 2.0

    return build(body, tensor(48))


# --- memory_planning, backend_lowering ------------------------------------------------------------


def chain() -> Graph:
    return OperatorFusion().run(
        build(lambda x, w: ops.reshape(ops.relu(x @ w) @ w, (2, 8)), tensor(4, 4), tensor(4, 4)),
        _context(),
    )


def _context():
    from tests.compiler.support import context

    return context()


def signature() -> Graph:
    with GraphBuilder("g") as builder:
        x = builder.input(tensor("batch", 4), name="x")
        seen = builder.input(tensor(dtype=int64), Role.BUFFER, "seen")
        builder.output(x, "same")
        builder.update(seen, ops.constant(np.int64(3)))
    return builder.finish()


_LOOSE = {"exact": False}
WHOLE_TARGET = {"capabilities": WHOLE}

WHOLE_SPECTRA = {
    "capabilities": replace(
        CAPABILITIES, composites=CAPABILITIES.composites | {"rfft", "irfft", "fourier_rows"}
    )
}


def spectra() -> Graph:
    """Spectra of which a part is used, and some that must stay whole."""

    def function(x: Value) -> list[Value]:
        low = ops.rfft(x)[:, :3]
        every, middle = ops.rfft(x * 2.0), ops.rfft(x * 3.0)
        zeros = ops.expand(ops.constant(np.float32(0.0)), (2, 4, 2))
        return [
            ops.irfft(ops.pad(low * 2.0, (0, 0, 0), (0, 6, 0)), n=16),
            ops.irfft(ops.concat([low, zeros], axis=1), n=12),
            every[:, :2],
            every * 3.0,
            middle[:, 1:4],
            middle[:, :2, 0],
            ops.irfft(ops.pad(low, (0, 0, 0), (0, 6, 0), value=1.0), n=16),
            ops.irfft(ops.pad(low, (0, 1, 0), (0, 5, 0)), n=16),
        ]

    return build(function, tensor(2, 16))


CASES: Mapping[str, Case] = {
    "canonicalize_identities": Case(Canonicalize(), identities),
    "canonicalize_constants_to_the_right": Case(Canonicalize(), constants_to_the_right),
    "canonicalize_arithmetic": Case(Canonicalize(), arithmetic),
    "canonicalize_views": Case(Canonicalize(), views),
    "canonicalize_casts": Case(Canonicalize(), casts),
    "canonicalize_products_of_transposes": Case(Canonicalize(), products_of_transposes, **_LOOSE),
    "canonicalize_islands_of_channels_last": Case(
        Canonicalize(), islands_of_channels_last, **_LOOSE
    ),
    "canonicalize_transposes_that_must_stay": Case(Canonicalize(), transposes_that_must_stay),
    "canonicalize_broadcasts": Case(Canonicalize(), broadcasts),
    "canonicalize_composites": Case(Canonicalize(), composites, **_LOOSE),
    "canonicalize_arg_extremes": Case(Canonicalize(), arg_extremes),
    "canonicalize_whole_composites": Case(Canonicalize(), whole_composites, WHOLE_TARGET, **_LOOSE),
    "canonicalize_reductions_of_nothing": Case(Canonicalize(), reductions_of_nothing),
    "canonicalize_batch_norm_convolution": Case(
        Canonicalize(), batch_norm_after_convolution, **_LOOSE
    ),
    "canonicalize_batch_norm_product": Case(Canonicalize(), batch_norm_after_product, **_LOOSE),
    "canonicalize_batch_norm_stays": Case(Canonicalize(), batch_norm_that_must_stay, **_LOOSE),
    "canonicalize_body": Case(Canonicalize(), rewritten_body, **_LOOSE),
    "canonicalize_loop_invariants": Case(Canonicalize(), loop_invariants),
    "canonicalize_symbolic_size": Case(Canonicalize(), symbolic_size),
    "canonicalize_spectra": Case(Canonicalize(), spectra, WHOLE_SPECTRA),
    "shape_inference_stale_types": Case(ShapeInference(), stale_types),
    "constant_folding_cascade": Case(ConstantFolding(), cascade),
    "constant_folding_declared_dtype": Case(ConstantFolding(), declared_dtype),
    "constant_folding_too_large": Case(ConstantFolding(), too_large),
    "constant_folding_never": Case(ConstantFolding(), never_folded),
    "common_subexpressions_duplicates": Case(CommonSubexpressionElimination(), duplicates),
    "common_subexpressions_signed_zeros": Case(CommonSubexpressionElimination(), signed_zeros),
    "common_subexpressions_streams": Case(CommonSubexpressionElimination(), streams),
    "common_subexpressions_bodies": Case(CommonSubexpressionElimination(), equal_bodies),
    "dead_nodes_plain": Case(DeadNodeElimination(), dead_nodes),
    "dead_nodes_scan": Case(DeadNodeElimination(), dead_parts_of_a_scan),
    "dead_nodes_cond": Case(DeadNodeElimination(), dead_parts_of_a_cond),
    "layout_packed_weights": Case(
        LayoutAssignment(), two_products, {"group_info": packed_group_info}
    ),
    "layout_scan": Case(LayoutAssignment(), product_in_a_scan, {"group_info": packed_group_info}),
    "layout_trained_weights": Case(
        LayoutAssignment(), trained_weights, {"group_info": packed_group_info}
    ),
    "split_folded_weights": Case(LoadSplit(), folded_weights),
    "split_nothing_to_load": Case(LoadSplit(), nothing_to_load),
    "split_trained_weights": Case(LoadSplit(), trained_weights),
    "fusion_softmax": Case(OperatorFusion(), softmax_row),
    "fusion_epilogue": Case(OperatorFusion(), product_with_epilogue),
    "fusion_two_readers": Case(OperatorFusion(), two_readers),
    "fusion_around_a_product": Case(OperatorFusion(), around_a_product),
    "fusion_residual": Case(OperatorFusion(), residual_around_a_product),
    "fusion_update": Case(OperatorFusion(), update_of_a_weight),
    "fusion_flipped_self": Case(OperatorFusion(), flipped_self),
    "fusion_body": Case(OperatorFusion(), fused_body),
    "fusion_constant_operand": Case(OperatorFusion(), constant_operand),
    "memory_planning_chain": Case(MemoryPlanning(), chain),
    "backend_lowering_signature": Case(BackendLowering(), signature),
}
