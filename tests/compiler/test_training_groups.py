"""How a training step is grouped: nothing is written that the next kernel could compute itself."""

from __future__ import annotations

import functools
from dataclasses import replace

import frame
from frame import nn
from frame.compiler.optimizers import Recipe, build_training_graph
from frame.compiler.passes.layout_assignment import LayoutAssignment
from frame.compiler.passes.operator_fusion import fuse
from frame.compiler.passes.rematerialisation import Rematerialisation
from frame.compiler.pipeline import simplify_graph
from frame.hal.interfaces import GroupInfo
from frame.ir.graph import Graph, Layout, Node
from frame.ir.verify import verify
from frame.runtime.training import graph_with_loss
from frame.train import SGD
from tests.compiler.support import CAPABILITIES, TARGET, context

WHOLE = replace(CAPABILITIES, composites=CAPABILITIES.composites | {"conv2d_filter_grad"})
IMAGES = (3, 4, 8, 8)
TRANSFORMS = Layout((2, 3, 1, 0), ((1, 4), (0, 4)), 4)


def network() -> nn.Module:
    """Return two convolutions with normalisation, and a classifier."""

    def layers(before: int) -> list[nn.Module]:
        convolution = nn.Conv2d(before, 4, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(4), nn.ReLU()]

    head = [nn.GlobalAvgPool2d(), nn.Linear(4, 3)]
    return nn.Sequential("net", [*layers(2), *layers(4), *head])


@functools.cache
def step() -> Graph:
    """Return the training graph of the network, with momentum, before fusion."""
    images, labels = frame.spec((3, 2, 8, 8)), frame.spec((3,), "int64")
    whole = graph_with_loss(network(), nn.CrossEntropyLoss(), {"x": images}, [labels], "train")
    graph = build_training_graph(whole, Recipe(SGD(momentum=0.9)))
    return simplify_graph(graph, TARGET, WHOLE)


@functools.cache
def grouped() -> Graph:
    graph = fuse(step(), WHOLE.anchors)
    verify(graph)
    return graph


def ops_of(group: Node) -> list[str]:
    return [] if group.op != "group" else [node.op for node in group.attributes["body"].nodes]


def with_op(op: str, graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if op in ops_of(node)]


def normalisations(graph: Graph) -> list[Node]:
    """Return the backward groups of the normalisations, the last layer first."""
    groups = [n for n in with_op("sum", graph) if n.results[0].shape == IMAGES]
    return [n for n in groups if "rsqrt" not in ops_of(n)]


def test_a_convolution_writes_one_gradient_for_the_normalisation_before_it() -> None:
    (backward,) = [node for node in with_op("conv2d", grouped()) if "where" in ops_of(node)]
    assert [result.shape for result in backward.results] == [IMAGES]


def test_the_gradient_of_a_normalisation_reads_two_images_and_updates_its_vectors() -> None:
    groups = normalisations(grouped())
    assert len(groups) == 2
    reads = [v for v in groups[-1].operands if v.shape == IMAGES]
    assert len(reads) == 2 and len(groups[-1].results) == 5
    updated = {update.value for update in grouped().updates}
    assert updated.issuperset(groups[-1].results[1:])


def test_the_gradient_by_weights_is_fused_with_their_update() -> None:
    updated = {update.value for update in grouped().updates}
    groups = with_op("conv2d_filter_grad", grouped())
    assert len(groups) == 2
    for group in groups:
        assert len(group.results) == 2 and updated.issuperset(group.results)


def test_an_update_runs_as_soon_as_its_gradient_is_there() -> None:
    graph = Rematerialisation().run(grouped(), context(capabilities=WHOLE))
    verify(graph)
    second, first = [graph.nodes.index(n) for n in with_op("conv2d_filter_grad", graph)]
    below = graph.nodes.index(normalisations(graph)[-1])
    assert second < below < first


def asking(repeated: bool) -> Graph:
    """Return the groups for a target that wants the weights of windows of 3 x 3 transformed."""

    def group_info(group: Node, target: object) -> GroupInfo:
        shapes = [operand.shape for operand in group.operands]
        if "conv2d" not in ops_of(group) or shapes[1:] != [(4, 4, 3, 3)]:
            return GroupInfo()
        return GroupInfo(layouts={1: TRANSFORMS}, repeated=frozenset({1} if repeated else ()))

    asked = context(capabilities=WHOLE, group_info=group_info)
    return fuse(LayoutAssignment().run(step(), asked), WHOLE.anchors)


def test_weights_that_change_are_laid_out_in_each_step_where_that_pays() -> None:
    assert not with_op("relayout", asking(repeated=False))
    forward, backward = with_op("relayout", asking(repeated=True))
    assert ops_of(forward) == ["relayout"]
    assert ops_of(backward) == ["transpose", "flip", "relayout"]
