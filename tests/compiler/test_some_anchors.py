"""Targets that have schedules for some kinds of groups: the others are left alone, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frame import ops
from frame.compiler.check_fusion import check_fusion
from frame.compiler.passes.backend_lowering import BackendLowering
from frame.compiler.passes.bodies import subgraphs
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.operator_fusion import anchor_of
from frame.core.dtypes import int64
from frame.core.errors import UnimplementedError
from frame.ir.graph import Graph
from frame.ir.verify import verify
from tests.compiler.support import (
    CAPABILITIES,
    build,
    compiled,
    context,
    tensor,
)

KINDS = ("contraction", "concat", "elementwise", "gather", "reduction")


def layers() -> Graph:
    """A graph with a group of each of KINDS, with views, broadcasts and epilogues between them."""

    def body(x, w, bias, index):
        y = ops.relu(x @ w + bias)
        z = ops.exp(ops.transpose(y, (1, 0)) - ops.max(y))
        picked = ops.gather(z, index, axis=0) * 2.0
        both = ops.concat([picked, ops.expand(bias, (3, 4))[:, :3]], axis=1)
        return both + 1.0, ops.sum(ops.reshape(both, (-1,)), 0)

    return build(body, tensor(6, 5), tensor(5, 4), tensor(4), tensor(3, dtype=int64))


def without(*kinds: str):
    return replace(CAPABILITIES, anchors=CAPABILITIES.anchors.difference(kinds))


def fused(graph: Graph, *missing: str) -> Graph:
    return OperatorFusion().run(graph, context(capabilities=without(*missing)))


def groups(graph: Graph) -> list[str]:
    return [n.attributes["anchor"] for g in subgraphs(graph) for n in g.nodes if n.op == "group"]


def test_the_graph_has_a_group_of_each_kind():
    assert set(groups(fused(layers()))) == set(KINDS)


@pytest.mark.parametrize("missing", [*((kind,) for kind in KINDS), ("contraction", "elementwise")])
def test_no_group_of_a_kind_that_is_missing(missing: tuple[str, ...]):
    graph = layers()
    after = fused(graph, *missing)
    verify(after)
    check_fusion(graph, after)
    assert groups(after) and not set(groups(after)) & set(missing)
    lone = [n for n in after.nodes if n.op not in ("group", "constant", "reshape")]
    assert lone and {anchor_of(node) for node in lone} <= set(missing)


@pytest.mark.parametrize("kind", KINDS)
def test_the_refusal_names_what_the_fallback_must_take(kind: str):
    with pytest.raises(UnimplementedError, match=f"no schedule for '{kind}'") as caught:
        compiled(layers(), capabilities=without(kind))
    assert "test_some_anchors.py" in str(caught.value), "the user's line"
    assert {anchor_of(node) for node in caught.value.nodes} == {kind}


def test_bodies_are_fused_for_the_same_target():
    graph = build(
        lambda xs, w: ops.scan(lambda h, x: (ops.tanh(h @ w + x), h), ops.zeros((2, 4)), xs)[1],
        tensor(3, 2, 4),
        tensor(4, 4),
    )
    inner = [node for g in subgraphs(fused(graph, "contraction")) for node in g.nodes]
    assert [n.op for n in inner].count("matmul") == 1
    assert "contraction" not in groups(fused(graph, "contraction"))


def test_a_group_of_another_kind_names_its_own_node():
    """A broadcast that is copied into a group stands first in its body."""
    graph = build(
        lambda x, w: ops.relu(ops.matmul(ops.expand(x, (5, 9)), w)), tensor(1, 9), tensor(9, 4)
    )
    few = context(capabilities=without("contraction"))
    with pytest.raises(UnimplementedError, match="no schedule for 'contraction'") as caught:
        BackendLowering().run(fused(graph), few)
    assert [node.op for node in caught.value.nodes] == ["matmul"]
