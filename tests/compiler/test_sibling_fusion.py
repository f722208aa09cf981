"""Groups that lie side by side become one: which do, which must not, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import ops
from frame.compiler.check_fusion import check_fusion
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.fusion_groups import MOST_NODES
from frame.compiler.passes.sibling_fusion import MOST_SMALL_STREAMS, MOST_STREAMS
from frame.ir.graph import Graph
from frame.ops.interpreter import interpret
from tests.compiler.support import build, run_one, tensor


def fused(body, *types) -> list[Graph]:
    """Return the bodies of the groups of a function, after the proof that they are right."""
    before = build(body, *types)
    after = run_one(OperatorFusion(), before)
    check_fusion(before, after)
    return [node.attributes["body"] for node in after.nodes if node.op == "group"]


def multiples(count):
    return lambda x: tuple(x * float(i + 2) for i in range(count))


def test_two_thousand_outputs_of_one_input():
    groups = fused(multiples(2000), tensor(64))
    assert sum(len(body.outputs) for body in groups) == 2000
    assert len(groups) == -(-2000 // (MOST_SMALL_STREAMS - 1))
    assert max(len(body.nodes) for body in groups) <= 2 * MOST_NODES


def test_large_values_share_few_streams():
    groups = fused(multiples(20), tensor(1 << 16))
    assert [len(body.outputs) for body in groups] == [MOST_STREAMS - 1, MOST_STREAMS - 1, 4]


def test_streams_that_are_read_count_too():
    def body(x, *others):
        return tuple(x * other for other in others)

    groups = fused(body, *[tensor(1 << 16)] * 9)
    assert max(len(body.inputs) + len(body.outputs) for body in groups) <= MOST_STREAMS
    assert len(groups) == 2


def test_reductions_of_equal_axes():
    groups = fused(lambda x: (ops.sum(x, 1), ops.max(x, 1), ops.sum(x, 0)), tensor(32, 16))
    assert sorted(len(body.outputs) for body in groups) == [1, 2]


def test_equal_slices_but_no_transpose():
    groups = fused(lambda x: tuple(x[i * 4 : i * 4 + 4] for i in range(3)), tensor(12, 8))
    assert len(groups) == 1
    assert len(fused(lambda x: (ops.transpose(x, (1, 0)), x * 2.0), tensor(8, 8))) == 2


@pytest.mark.parametrize(
    "body",
    [
        lambda x, y: (x * 2.0, y * 2.0),
        lambda x, y: (x * 2.0, ops.flip(y, 0) + ops.flip(x * 2.0, 0)),
        lambda x, y: (x * 2.0, ops.reshape(x, (64,)) * 3.0),
    ],
    ids=["nothing shared", "one waits for the other", "other loops"],
)
def test_what_stays_apart(body):
    assert len(fused(body, tensor(8, 8), tensor(8, 8))) >= 2


def test_no_cycle_between_two_pairs_of_siblings():
    """a -> b over a product, c -> d over another: joining a with d and b with c is a cycle."""

    def body(x, w):
        a, c = x * 2.0, x * 3.0
        return ops.flip(a @ w, 0) + x, ops.flip(c @ w, 0) - x

    assert len(fused(body, tensor(8, 8), tensor(8, 8))) >= 4


def test_siblings_far_apart_stay_apart():
    """The result of the later one would hold its memory from the first on."""

    def body(x, y):
        first = x * 2.0
        for _ in range(MOST_NODES + 8):
            y = ops.tanh(y)
        return first, y, x * 3.0

    groups = fused(body, tensor(8), tensor(8))
    assert all(len(body.outputs) == 1 for body in groups)


def several(x, w):
    sums = tuple(ops.sum(x * float(i + 1), 1) for i in range(20))
    rows = (ops.softmax(x), ops.layer_norm(x, w[0], w[1]), ops.log_softmax(x))
    slices = tuple(x[:, i * 5 : i * 5 + 5] for i in range(3))
    return (*multiples(40)(x), *sums, *rows, *slices, ops.mean(x), ops.max(x))


@pytest.mark.parametrize("shape", [(3, 16), (37, 19), (300, 64)])
def test_numbers_of_compiled_siblings(shape):
    random = np.random.default_rng(0)
    arrays = [random.normal(size=s).astype(np.float32) for s in (shape, (2, shape[1]))]
    graph = frame.trace(several, *(frame.spec(array.shape) for array in arrays))
    expected = interpret(graph, arrays, precision="float64")
    found = frame.compile(graph)(*arrays)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
