"""Layers whose values are larger than the cache run on some images of a batch at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frame import ops
from frame.compiler.passes.batch_blocks import BatchBlocks
from frame.core.dtypes import float64
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role, TensorType
from frame.ops.interpreter import interpret
from tests.compiler import support

BATCH = 6
ROOM = 1 << 15  # of the last cache: an eighth holds the values of two images of 8 x 8
WEIGHTS = ((4, 3, 3, 3), (4, 1, 3, 3), (4, 4, 1, 1), (4,))


def block_context():
    context = support.context()
    return replace(context, target=replace(context.target, l3=ROOM))


def network(kind: str, x, each, wide, deep, bias):
    """Layers that keep images apart, with one thing between them that may not."""
    y = ops.conv2d(x, wide, padding=(1,) * 4) + ops.reshape(bias, (1, 4, 1, 1))
    y = ops.minimum(ops.maximum(y, 0.0), 6.0)
    z = ops.conv2d(y, each, padding=(1,) * 4, groups=4)
    z = {
        "nothing": lambda: z,
        "residual": lambda: z + y,
        "rows of the image": lambda: z + ops.max(y, axes=(2, 3), keepdims=True),
        "reshape": lambda: ops.reshape(ops.reshape(z, (BATCH, 4, -1)) * 2.0, z.shape),
        "concat": lambda: ops.concat([z, y], axis=1)[:, 1:5],
        "mean of the batch": lambda: z - ops.sum(z, axes=(0,), keepdims=True),
        "turned": lambda: z + ops.reshape(ops.transpose(y, (1, 0, 2, 3)), z.shape),
        "beside": lambda: z + ops.sum(y, axes=(0, 1, 2)),
    }[kind]()
    z, _ = ops.max_pool2d(ops.conv2d(z, deep), (2, 2), strides=(2, 2))
    sums = ops.sum(z, axes=(2, 3))
    return sums - ops.max(sums, axes=(0,), keepdims=True)


def graph_of(kind: str, batch=BATCH):
    with GraphBuilder("network") as builder:
        x = builder.input(TensorType(float64, (batch, 3, 8, 8)))
        wide, each, deep, bias = (
            builder.input(TensorType(float64, shape), Role.PARAMETER, f"w{i}")
            for i, shape in enumerate(WEIGHTS)
        )
        builder.output(network(kind, x, each, wide, deep, bias))
    return builder.finish()


def lengths(graph):
    return [n.attributes["length"] for n in graph.nodes if n.op == "scan"]


def arrays_for(graph):
    random = np.random.default_rng(0)
    return [random.standard_normal(entry.value.shape) for entry in graph.inputs]


APART = ("nothing", "residual", "rows of the image", "reshape")
MEETING = ("mean of the batch", "turned", "beside")


@pytest.mark.parametrize("kind", [*APART, "concat", *MEETING])
def test_results_stay_the_same(kind):
    graph = graph_of(kind)
    blocked = BatchBlocks().run(graph, block_context())
    arrays = arrays_for(graph)
    for new, old in zip(interpret(blocked, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", APART)
def test_layers_run_on_some_images_at_a_time(kind):
    graph = graph_of(kind)
    blocked = BatchBlocks().run(graph, block_context())
    assert lengths(blocked) == [BATCH // 2] or lengths(blocked) == [BATCH]
    layers = {"conv2d", "max_pool2d"}
    assert not layers & {node.op for node in blocked.nodes}
    (scan,) = (node for node in blocked.nodes if node.op == "scan")
    inner = [node for node in scan.attributes["body"].nodes if node.op in layers]
    declared = [node for node in graph.nodes if node.op in layers]
    assert [node.origin for node in inner] == [node.origin for node in declared]


def test_images_that_meet_end_the_loop():
    blocked = BatchBlocks().run(graph_of("mean of the batch"), block_context())
    ops_left = [node.op for node in blocked.nodes]
    assert lengths(blocked) and "max_pool2d" in ops_left
    assert ops_left.count("conv2d") == 1


@pytest.mark.parametrize("kind", ["turned", "beside"])
def test_what_images_meet_in_is_not_saved_by_a_loop(kind):
    """The one value between two layers is read behind them as well."""
    graph = graph_of(kind)
    assert BatchBlocks().run(graph, block_context()) is graph


def test_small_values_stay_whole():
    graph = graph_of("nothing")
    context = block_context()
    large = replace(context, target=replace(context.target, l3=64 * ROOM))
    assert BatchBlocks().run(graph, large) is graph
    assert BatchBlocks().run(graph, replace(context, target=replace(context.target, l3=0))) is graph


def test_a_symbolic_batch_stays_whole():
    with GraphBuilder("network") as builder:
        x = builder.input(TensorType(float64, (Dim.symbol("batch"), 3, 8, 8)))
        w = builder.input(TensorType(float64, WEIGHTS[0]), Role.PARAMETER, "w")
        builder.output(ops.conv2d(x, w))
    graph = builder.finish()
    assert BatchBlocks().run(graph, block_context()) is graph


@pytest.mark.parametrize(
    ("batch", "expected"), [(14, []), (30, [2]), (20, [2]), (28, [2]), (17, []), (34, []), (74, [])]
)
def test_a_batch_without_a_block_that_fills_the_room_stays_whole(batch, expected):
    """With room for 16 images blocks of 4 and more run; 17, 34 and 74 have none but 1 and 2."""
    context = support.context()
    room = replace(context.target, l3=8 * 16 * 8 * 8 * 8 * 8)  # of 8 planes of 8 x 8 float64
    context = replace(context, target=room)
    assert lengths(BatchBlocks().run(convolutions(batch), context)) == expected


def convolutions(batch, kept=()):
    """Layers of 4 planes; those of the results of `kept` are read behind them."""
    with GraphBuilder("layers") as builder:
        y = builder.input(TensorType(float64, (batch, 3, 8, 8)))
        results = []
        for k, shape in enumerate(((4, 3, 3, 3), (4, 4, 3, 3), (4, 4, 3, 3))):
            weight = builder.input(TensorType(float64, shape), Role.PARAMETER, f"w{k}")
            y = ops.maximum(ops.conv2d(y, weight, padding=(1,) * 4), 0.0)
            results.append(y)
        builder.output(y)
        for k, behind in kept:
            value = results[k]
            builder.output(ops.sum(value, axes=(0,)) if behind else value)
    return builder.finish()


@pytest.mark.parametrize("behind", [False, True], ids=["returned", "read"])
def test_what_is_read_behind_the_layers_is_not_saved(behind):
    """As a gradient reads the result of each layer, which then goes to memory anyway."""
    context = support.context()
    context = replace(context, target=replace(context.target, l3=4 * ROOM))
    assert lengths(BatchBlocks().run(convolutions(96), context))
    kept = [(k, behind) for k in range(3)]
    assert not lengths(BatchBlocks().run(convolutions(96, kept), context))
