"""The table of cases is well formed, and every case runs in frame in small."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.suite.case import LEARNING_RATE, MOMENTUM
from benchmarks.suite.cases import ABSENT, CASES, GROUPS, PRODUCTS, relative_error, select
from benchmarks.suite.peers import frame_peer
from benchmarks.suite.peers.base import CHECKED_STEPS
from frame import nn
from frame.compiler.optimizers import SGD, build_training_graph
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role
from frame.ops.interpreter import run_body

DISTINCT = {(case.declare.__name__, str(case.tiny)): case for case in CASES}
SLOW = ("resnet50", "mobilenetv2", "train_resnet18", "train_vgg16bn")


def small_cases():
    for case in DISTINCT.values():
        slow = case.name.startswith(SLOW)
        yield pytest.param(case, id=case.name, marks=[pytest.mark.slow] if slow else [])


def test_names_differ_and_groups_are_known():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.group for case in CASES} == set(GROUPS)
    assert not set(names) & set(ABSENT)
    assert all(reason for reason in ABSENT.values())
    assert all(0 < case.tolerance < 0.1 for case in CASES)


def test_the_products_of_the_issue_stand_twice():
    names = {case.name for case in select(group="matrix product")}
    assert len(names) == 2 * len(PRODUCTS)
    assert {"matmul_1x4096x4096", "linear_1000x17x3", "linear_2048x2048x2048"} <= names


@pytest.mark.parametrize("case", list(small_cases()))
def test_frame_runs_the_case_in_small(case):
    instance = case.instance(small=True)
    got = frame_peer.prepare(instance, 1).outputs()
    for result, expected in zip(got, reference(instance), strict=True):
        assert relative_error(result, expected) < 1e-4


def reference(instance):
    """The outputs, or the losses of the first steps, by the interpreter in float64."""
    declaration = instance.declaration
    if not instance.training:
        graph = nn.build_graph(declaration.module, instance.specs)
        values = [*instance.arrays, *instance.values.values()]
        return run_body(graph, [wide(value) for value in values])
    return [np.array(reference_losses(instance))]


def wide(value):
    return value.astype(np.float64) if value.dtype == np.float32 else value


def reference_losses(instance):
    loss = nn.CrossEntropyLoss() if instance.classes else nn.MseLoss()
    with GraphBuilder("step") as builder, nn.BuildContext("train"):
        specs = [*instance.specs, instance.declaration.target.spec]
        *inputs, target = [builder.input(spec, Role.INPUT) for spec in specs]
        output = instance.declaration.module(*inputs)
        builder.output(loss(output, target))
    graph = build_training_graph(builder.finish(), SGD(momentum=MOMENTUM))
    state = {
        entry.name: wide(instance.values.get(entry.name, np.zeros(entry.value.shape, np.float32)))
        for entry in graph.inputs
    }
    free = iter([*map(wide, instance.arrays), instance.target])
    for entry in graph.inputs:
        if entry.role is Role.INPUT:
            state[entry.name] = wide(next(free))
        elif entry.role is Role.HYPERPARAMETER:
            state[entry.name] = np.float64(LEARNING_RATE)
    losses = []
    for _ in range(CHECKED_STEPS):
        returned = run_body(replace_outputs(graph), [state[entry.name] for entry in graph.inputs])
        losses.append(float(returned[0]))
        for update, value in zip(graph.updates, returned[len(graph.outputs) :], strict=True):
            state[graph.inputs[update.input_index].name] = value
    return losses


def replace_outputs(graph):
    from dataclasses import replace

    return replace(graph, outputs=graph.returned, updates=())


def test_the_flops_of_the_headline_step():
    (case,) = [case for case in CASES if case.name == "train_mlp_b128"]
    widths = (784, 1024, 512, 256, 10)
    layers = [2 * 128 * a * b for a, b in itertools.pairwise(widths)]
    assert case.instance().flops == 3 * sum(layers) - layers[0]


def test_the_flops_of_a_network():
    (case,) = [case for case in CASES if case.name == "lenet_b1"]
    convolutions = 2 * 784 * 6 * 25 + 2 * 100 * 16 * 150
    assert case.instance().flops == convolutions + 2 * (400 * 120 + 120 * 84 + 84 * 10)
    (scan,) = [case for case in CASES if case.name == "lstm_h128_t64_b16"]
    assert scan.instance().flops == 2 * 64 * 16 * 256 * 512


def test_inputs_depend_on_the_seed_alone():
    case = CASES[0]
    first, second = case.instance(), case.instance()
    for one, other in zip(first.arrays, second.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(*first.arrays)


def test_select():
    assert {case.name for case in select("mlp_b1,lenet_b1", "inference")} >= {"mlp_b1", "lenet_b1"}
    assert not select("no such case")
    assert select() == list(CASES)


def test_relative_error():
    expected = np.array([1.0, -4.0], np.float32)
    assert relative_error(expected + np.float32(0.5), expected) == 0.125
    assert relative_error(np.zeros(0), np.zeros(0)) == 0.0
    assert math.isnan(relative_error(np.array([np.nan, 1.0]), expected))
    with pytest.raises(ValueError, match="expected the shape"):
        relative_error(np.zeros(3), expected)
