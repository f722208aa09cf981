"""The whole pipeline: what compile_graph makes of graphs, and how the list of passes is edited."""

from __future__ import annotations

from frame import ops
from frame.ir.graph import Graph, Role
from frame.ops.interpreter import interpret
from tests.compiler.support import (
    arrays_for,
    assert_same,
    build,
    compiled,
    packed_group_info,
    recorded,
    run_compiled,
    tensor,
)


def mlp() -> Graph:
    def body(x, w, bias):
        hidden = ops.gelu(x @ w + bias)
        y = ops.softmax(ops.layer_norm(hidden, bias, bias))
        return y * 1.0, ops.argmax(y, axis=1)

    weights = (tensor(8, 16), Role.PARAMETER), (tensor(16), Role.PARAMETER)
    return build(body, tensor("batch", 8), *weights)


def test_mlp_becomes_two_pieces_that_compute_the_same():
    graph = mlp()
    result = compiled(graph, group_info=packed_group_info)
    assert [node.op for node in result.load.graph.nodes] == ["group"]
    assert [node.attributes["anchor"] for node in result.run.graph.nodes] == [
        "contraction",
        "reduction",
    ]
    assert [str(source) for source in result.run_sources] == ["input 0", "input 2", "derived 0"]
    arrays = arrays_for(graph)
    assert_same(interpret(graph, arrays), run_compiled(result, arrays))


def test_compiling_leaves_a_canonical_graph_alone():
    _, recorder = recorded(mlp())
    first = {record.name for record in recorder.records if record.changed}
    assert "canonicalize" in first
    last = {record.name: record for record in recorder.records}
    assert not last["canonicalize"].changed and not last["constant_folding"].changed
