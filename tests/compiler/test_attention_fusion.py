"""Two products with a softmax between them become one group, if nothing else reads the scores."""

import math

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.compiler.check_fusion import check_fusion
from frame.compiler.passes.operator_fusion import fuse
from tests.compiler.support import CAPABILITIES, build, tensor

ANCHORS = CAPABILITIES.anchors | {"attention"}
SHAPES = (tensor(2, 3, 16, 8), tensor(2, 3, 20, 8), tensor(2, 3, 20, 4))


def softmax(x):
    last = (x.rank - 1,)
    weights = ops.exp(x - ops.max(x, last, True))
    return weights / ops.sum(weights, last, True)


def attend(q, k, v, score=lambda scores: scores * 0.5):
    return ops.matmul(softmax(score(ops.matmul(q, k, transpose_b=True))), v)


def anchors(function, *types, kinds=ANCHORS):
    graph = build(function, *(types or SHAPES))
    fused = fuse(graph, kinds)
    check_fusion(graph, fused)
    return [node.attributes["anchor"] for node in fused.nodes if node.op == "group"]


def test_attention_is_one_group():
    assert anchors(attend) == ["attention"]
    assert "attention" not in anchors(attend, kinds=CAPABILITIES.anchors)


def test_masks_and_scales_are_part_of_it():
    def masked(q, k, v, mask, seen):
        return attend(q, k, v, lambda x: ops.where(ops.less(seen, 1.0), x * 0.5 + mask, -math.inf))

    found = anchors(masked, *SHAPES, tensor(16, 20), tensor(2, 1, 1, 20))
    assert found == ["elementwise", "attention"]


def test_views_of_operands_and_of_the_result_are_part_of_it():
    def heads(x):
        parts = ops.transpose(x, (2, 0, 3, 1, 4))
        q, k, v = (
            ops.reshape(
                ops.slice(parts, (i, 0, 0, 0, 0), (i + 1, *parts.shape[1:])), parts.shape[1:]
            )
            for i in range(3)
        )
        return ops.transpose(attend(q, k, v), (0, 2, 1, 3))

    assert anchors(heads, tensor(2, 16, 3, 4, 8)) == ["attention"]


def _scores_returned(q, k, v):
    scores = ops.matmul(q, k, transpose_b=True)
    return ops.matmul(softmax(scores), v), scores


def _weights_returned(q, k, v):
    weights = softmax(ops.matmul(q, k, transpose_b=True))
    return ops.matmul(weights, v), weights


OTHERS = {
    "scores that are returned": (_scores_returned, SHAPES),
    "weights that are returned": (_weights_returned, SHAPES),
    "few queries": (attend, (tensor(2, 3, 4, 8), *SHAPES[1:])),
    "keys of unknown number": (attend, (tensor(16, 8), tensor("n", 8), tensor("n", 4))),
    "wide features": (attend, (tensor(16, 512), tensor(20, 512), tensor(20, 4))),
    "a score that reads the scores twice": (
        lambda q, k, v: attend(q, k, v, lambda x: x * ops.tanh(x)),
        SHAPES,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_needs_the_scores_keeps_them(name):
    function, types = OTHERS[name]
    found = anchors(function, *types)
    assert "attention" not in found
    assert found.count("contraction") == 2


def test_a_model_of_attention_agrees_with_numpy():
    layer = nn.MultiheadAttention(12, 2, causal=True)
    model = frame.compile(layer, [frame.spec((2, 18, 12))])
    x = np.random.default_rng(3).standard_normal((2, 18, 12)).astype(np.float32)
    assert "for panel of keys" in model.source()["loop"]
    found = model(x)
    params = {name: np.asarray(value, np.float64) for name, value in model.params.items()}

    def project(name, value):
        return value @ params[f"{name}.weight"] + params[f"{name}.bias"]

    q, k, v = (project(n, x).reshape(2, 18, 2, 6).transpose(0, 2, 1, 3) for n in "qkv")
    scores = np.where(np.tri(18, dtype=bool), q @ k.swapaxes(-1, -2) / math.sqrt(6), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    expected = project("o", mixed.transpose(0, 2, 1, 3).reshape(2, 18, 12))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sums_of_values_near_the_largest_float_stay_finite():
    model = frame.compile(attend, [frame.spec(shape) for shape in ((16, 8), (20, 8), (20, 4))])
    assert "for panel of keys" in model.source()["loop"]
    random = np.random.default_rng(4)
    q, k = (random.standard_normal((n, 8)).astype(np.float32) for n in (16, 20))
    found = model(q, k, np.full((20, 4), 3e38, np.float32))
    np.testing.assert_allclose(found, np.full((16, 4), 3e38), rtol=1e-5)
