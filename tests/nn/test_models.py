"""The networks of the literature have the sizes and the shapes of their papers."""

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Role
from frame.nn import models
from frame.ops.interpreter import run_body

IMAGE = ((1, 3, 224, 224), "float32")
SMALL_IMAGE = ((2, 3, 32, 32), "float32")

# network, its trained parameters (as published, but for bert, mlp and the small ones), input,
# shape of the result
NETWORKS = {
    "mlp": (models.mlp(), 1_462_538, ((3, 784), "float32"), (3, 10)),
    "lenet5": (models.lenet5(), 61_706, ((2, 1, 28, 28), "float32"), (2, 10)),
    "resnet18": (models.resnet(18), 11_689_512, IMAGE, (1, 1000)),
    "resnet34": (models.resnet(34), 21_797_672, IMAGE, (1, 1000)),
    "resnet50": (models.resnet(50), 25_557_032, IMAGE, (1, 1000)),
    "resnet101": (models.resnet(101), 44_549_160, IMAGE, (1, 1000)),
    "resnet152": (models.resnet(152), 60_192_808, IMAGE, (1, 1000)),
    "mobilenet_v2": (models.mobilenet_v2(), 3_504_872, IMAGE, (1, 1000)),
    "vgg16_bn": (models.vgg16_bn(), 138_361_768, IMAGE, (1, 1000)),
    "vit": (models.vit(), 5_717_416, IMAGE, (1, 1000)),
    "bert": (models.bert(), 12_585_984, ((2, 128), "int64"), (2, 128, 256)),
    "small resnet18": (models.resnet(18, 10, small=True), 11_173_962, SMALL_IMAGE, (2, 10)),
    "small vgg16_bn": (models.vgg16_bn(10, small=True), 14_724_042, SMALL_IMAGE, (2, 10)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_are_those_of_the_literature(name):
    network, parameters, (shape, dtype), result = NETWORKS[name]
    assert network.count_parameters(trainable=True) == parameters
    names = [spec.name for spec in network.parameters()]
    assert len(set(names)) == len(names)
    graph = nn.build_graph(network, [frame.spec(shape, dtype)])
    assert [output.shape for output in graph.outputs] == [result]


@pytest.mark.parametrize(
    "declare, complaint",
    [
        (lambda: models.mlp((3,)), "widths must be two or more integers"),
        (lambda: models.mlp("12"), "widths must be two or more integers"),
        (lambda: models.mlp((3, 0)), "got 0"),
        (lambda: models.resnet(20), "depth must be one of 18, 34, 50, 101, 152, got 20"),
        (lambda: models.resnet([18]), "depth must be an integer"),
        (lambda: models.resnet(18.0), "depth must be an integer"),
        (lambda: models.resnet(18, width=0), "width"),
        (lambda: models.resnet(18, classes=-1), "got -1"),
        (lambda: models.resnet(18, small="yes"), "small"),
        (lambda: models.vgg16_bn(width=-8), "width"),
        (lambda: models.vgg16_bn(width=1.5), "width"),
        (lambda: models.vgg16_bn(small=1), "small"),
        (lambda: models.vit(image=224, patch=15), "image, 224, must divide by patch, 15"),
        (lambda: models.vit(heads=5), "heads"),
        (lambda: models.vit(layers=0), "layers"),
        (lambda: models.bert(layers=0), "layers"),
        (lambda: models.bert(length=0), "length"),
        (lambda: models.bert(words=0), "got 0"),
    ],
)
def test_bad_arguments_are_named(declare, complaint):
    with pytest.raises(InvalidArgumentError, match=complaint):
        declare()


@pytest.mark.parametrize("network", [models.bert(2, 16, 2, 8, 50, 40), models.vit(32, 4, 1, 16, 2)])
def test_tables_begin_small(network):
    tables = ("words.weight", "positions", "segments", "token")
    found = [spec for spec in network.parameters() if spec.name in tables]
    assert len(found) > 1
    values = np.concatenate([nn.materialize(spec).ravel() for spec in found])
    assert abs(values.mean()) < 0.002
    assert 0.018 < values.std() < 0.022


def test_bert_takes_segments_and_a_mask():
    network = models.bert(2, 8, 2, 12, words=11, length=5)
    values = [np.asarray(nn.materialize(spec), np.float64) * 20 for spec in network.parameters()]
    tokens = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])

    def run(*inputs):
        specs = [frame.spec(x.shape, str(x.dtype)) for x in inputs]
        (result,) = run_body(nn.build_graph(network, specs), [*inputs, *values])
        return result

    alone, zeros = run(tokens), np.zeros_like(tokens)
    every = np.ones(tokens.shape, bool)
    np.testing.assert_allclose(run(tokens, zeros, every), alone, atol=1e-12)
    assert not np.allclose(run(tokens, zeros + 1), alone)
    some = every.copy()
    some[:, 3:] = False
    other = tokens.copy()
    other[:, 3:] = 7
    masked, changed = run(tokens, zeros, some), run(other, zeros, some)
    np.testing.assert_allclose(masked[:, :3], changed[:, :3], atol=1e-12)
    assert not np.allclose(masked[:, :3], alone[:, :3])


def test_a_residual_branch_of_zeros_leaves_the_input():
    """With zero gains behind every branch, a network of blocks is its stem and its head."""
    network = models.resnet(18, classes=4, small=True, width=8)
    graph = nn.build_graph(network, [frame.spec((1, 3, 8, 8))])
    random = np.random.default_rng(0)
    values = {
        entry.name: random.uniform(0.5, 1.5, entry.value.shape)
        for entry in graph.inputs
        if entry.role in (Role.PARAMETER, Role.BUFFER)
    }
    image = random.standard_normal((1, 3, 8, 8))
    silent = {
        name: np.zeros_like(value)
        if name.endswith((".branch.4.gamma", ".branch.4.beta"))
        else value
        for name, value in values.items()
    }
    assert any(np.any(silent[name] != values[name]) for name in values)
    (changed,) = run_body(graph, [image, *values.values()])
    (plain,) = run_body(graph, [image, *silent.values()])
    middle = {
        name: -value if ".branch.0." in name or ".branch.3." in name else value
        for name, value in silent.items()
    }
    (same,) = run_body(graph, [image, *middle.values()])
    assert np.array_equal(plain, same)
    assert not np.allclose(plain, changed)
